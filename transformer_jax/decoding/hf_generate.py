"""Texts exactly as ``generate()`` of Hugging Face ``transformers`` writes them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PyTree

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.core.trees import AnyArray
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.programs import SearchPrompts, search_prompts
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues, plan_of, values_of
from transformer_jax.decoding.search_state import PromptContext, SearchResult
from transformer_jax.decoding.windows import round_up
from transformer_jax.parallel.placement import ModelOrSplit, prepared, split_model

__all__ = ["HFGenerationOutput", "HFGenerator"]


class HFGenerationOutput(NamedTuple):
    """The output of ``generate()``: ``num_return_sequences`` rows for each prompt."""

    tokens: Int[np.ndarray, "R W"]  # including the prompt or start, cut after the longest
    scores: Float[np.ndarray, " R"]  # of beams: the ranking score; of greedy texts: log-probability


class _Batch(NamedTuple):
    """Prompts as inputs of a program."""

    ids: Int[AnyArray, "B S"]  # padded on the right to a compiled length
    real: Bool[AnyArray, "B S"]  # True for ids that are not padding
    width: Int[Array | np.int32, ""]  # number of columns in use
    rows: Bool[AnyArray, " B"]  # True for rows in use
    start: Int[Array | np.int32, ""]  # the decoder's start token
    # Normalized pixels, which are then the encoder's input.
    images: Float[AnyArray, "B height width C"] | None = None


class HFGenerator:
    """A model with its generation config, as a function of token ids.

    Returns the same as ``generate(do_sample=False)``, in the same order, with prompts and padding.
    As there, rows of one call are padded alike, and padding of prompts counts in n-grams and
    lengths. Padding to compiled shapes changes nothing: one program is compiled and kept for each
    number of beams and each shape.

    Attributes:
        graph: The static part of the model, prepared for decoding.
        params: Its parameters, prepared for decoding.
        generation_config: Default config of calls.
    """

    def __init__(
        self,
        model: ModelOrSplit,
        generation_config: GenerationConfig,
        *,
        others: Sequence[GenerationConfig] = (),
        rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
        lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
    ):
        """Takes ``model``, a decoder, an encoder-decoder or a pair ``(graph, params)``.

        Args:
            model: The model with its weights.
            generation_config: From :func:`from_generation_config`.
            others: Configs of later calls; programs have room for them from the start.
            rows: Numbers of prompts per batch, which is filled up to one of them.
            lengths: Lengths to which prompts and texts are padded.

        Raises:
            ConfigError: A config names a token missing from the model, or lacks a required one.
        """
        graph, params = split_model(model)
        merged = nnx.merge(graph, params)
        model_config = merged.config
        self.encodes = hasattr(merged, "encoded")
        self.vocab = model_config.vocab_size  # input vocabulary
        self.written_vocab = (
            model_config.decoder_vocab_size if self.encodes else None
        ) or model_config.vocab_size
        self.positions = model_config.positions
        self.generation_config, self.rows, self.lengths = generation_config, rows, lengths
        self.served = (generation_config, *others)
        for config in self.served:
            self._check(config)
        self.graph, self.params = prepared(graph, params)
        self._run = jax.jit(self._run_batch, static_argnames=("plan", "steps"))

    def generate(
        self,
        ids: Int[np.ndarray, "B S"] | Sequence[Sequence[int]],
        mask: Array | np.ndarray | Sequence[Sequence[int]] | None = None,
        generation_config: GenerationConfig | None = None,
    ) -> HFGenerationOutput:
        """Returns continuations of prompts, or outputs for the inputs of an encoder.

        Args:
            ids: Rows of equal length; padded on the left for a decoder, anywhere for an encoder.
            mask: Rows of the same shape: 1 for tokens, 0 for padding. None is no padding.
            generation_config: Config of this call.

        Raises:
            ConfigError: A config names a token missing from the model, or lacks a required one.
            DataError: Invalid prompts, or prompts longer than the model or the config allows.
            NumericsError: The model computed NaN or infinity.
        """
        return self.submit(ids, mask, generation_config)()

    def submit(
        self,
        ids: Int[np.ndarray, "B S"] | Sequence[Sequence[int]],
        mask: Array | np.ndarray | Sequence[Sequence[int]] | None = None,
        generation_config: GenerationConfig | None = None,
        images: Float[np.ndarray, "B height width C"] | None = None,
    ) -> Callable[[], HFGenerationOutput]:
        """Starts :meth:`generate`; the returned function waits for the result.

        Args:
            ids: The prompts; one token per picture if there are pictures, which is not read.
            mask: As for :meth:`generate`.
            generation_config: Config of this call.
            images: Normalized pixels, for an encoder of pictures.

        Raises:
            ConfigError: As for :meth:`generate`; or a setting reads the tokens of the input.
            DataError: As for :meth:`generate`.
        """
        config = self.generation_config if generation_config is None else generation_config
        self._check(config)
        if images is not None:
            reason = "a picture has no tokens: leave it out of the generation config"
            read = {"encoder_repetition_penalty", "encoder_no_repeat_ngram_size"}
            config.refuse_settings({f.name for f in dataclasses.fields(config)} - read, reason)
        ids = self._rows(ids)
        real = self._real(ids, mask)
        known = 1 if self.encodes else ids.shape[1]
        longest = config.longest(known, self.positions.max_length)
        if longest <= known:
            raise DataError(
                f"the prompt has {plural(known, 'token')} and texts may have {longest}: raise "
                f"max_length, or give max_new_tokens"
            )
        self._fits(real, longest - known)
        most = self.rows[-1]
        pending = [
            self._submit(
                ids[at : at + most],
                real[at : at + most],
                config,
                (known, longest),
                None if images is None else images[at : at + most],
            )
            for at in range(0, len(ids), most)
        ]
        return lambda: _output(pending, config, len(ids), known)

    def _submit(
        self,
        ids: Int[np.ndarray, "B S"],
        real: Bool[np.ndarray, "B S"],
        config: GenerationConfig,
        lengths: tuple[int, int],
        images: np.ndarray | None,
    ) -> tuple[Array, Array, Array]:
        """Starts the search for at most as many prompts as a program takes.

        ``lengths`` are the known tokens of a text, and the most that it may have.
        """
        (B, S), (known, longest) = ids.shape, lengths
        rows, width = round_up(B, self.rows), round_up(S, self.lengths)
        steps = round_up(longest - known, self.lengths)
        plan = plan_of((*self.served, config), beams=config.num_beams)
        filled = ((0, rows - B), (0, width - S))
        real = np.pad(real, filled)
        real[B:, S - 1] = True
        return self._run(
            self.params,
            _Batch(
                np.pad(ids, filled),
                real,
                np.int32(S),
                np.arange(rows) < B,
                np.int32(config.decoder_start_token_id or 0),
                None if images is None else np.pad(images, ((0, rows - B), *[(0, 0)] * 3)),
            ),
            values_of(
                config, plan, vocab=self.written_vocab, length=steps, prompt=known, longest=longest
            ),
            np.int32(longest - known),
            plan=plan,
            steps=steps,
        )

    def _run_batch(
        self,
        params: PyTree,
        batch: _Batch,
        values: SearchValues,
        most: Array,
        *,
        plan: SearchPlan,
        steps: int,
    ) -> tuple[Array, Array, Array]:
        """Returns tokens with prompts ``[B M W]``, numbers of new tokens, and scores ``[B M]``."""
        ids, real, width, rows, start, images = batch
        model, (B, S) = nnx.merge(self.graph, params), ids.shape
        limits = jnp.where(rows, most, 0)
        if self.encodes:
            tokens = {"source": ids, "source_lengths": real}
            inputs = tokens if images is None else {"images": images}
            prompts, known = jnp.full((B, 1), start), jnp.int32(1)
            starts = jnp.zeros(B, jnp.int32)
            aligned = SearchPrompts(prompts, starts, limits, inputs)
        else:
            counts = real.sum(1)
            prompts, known = jnp.asarray(ids), jnp.asarray(width)
            starts = known - counts
            # The cache needs prompts that end in the last column; processors read them unchanged.
            aligned = SearchPrompts(jnp.roll(ids, S - width, axis=1), S - counts, limits)
        context = PromptContext(prompts, known, starts, ids, width)
        found = search_prompts(model, aligned, plan, values, length=steps, context=context)
        return _whole(found, context, plan, values)

    def _rows(
        self, ids: Int[np.ndarray, "B S"] | Sequence[Sequence[int]]
    ) -> Int[np.ndarray, "B S"]:
        """Converts prompts to an array.

        Raises:
            DataError: Rows of different lengths, no rows, or tokens missing from the model.
        """
        lengths = {len(row) for row in ids}
        if len(lengths) != 1 or 0 in lengths:
            raise DataError(
                f"prompts have {sorted(lengths)} tokens: pad them to one length, and tell with a "
                f"mask which tokens are real"
            )
        rows = np.asarray(ids)
        if rows.dtype.kind not in "iu":
            raise DataError(f"prompts are {rows.dtype}: tokens are whole numbers")
        strange = rows[(rows < 0) | (rows >= self.vocab)]
        if strange.size:
            raise DataError(
                f"a prompt holds token {strange[0]}: the model has tokens 0 to {self.vocab - 1}"
            )
        return rows.astype(np.int32)

    def _real(
        self, ids: Int[np.ndarray, "B S"], mask: Array | np.ndarray | Sequence[Sequence[int]] | None
    ) -> Bool[np.ndarray, "B S"]:
        """Marks the tokens of each row that are not padding.

        Raises:
            DataError: A mask of another shape, or padding in a wrong place.
        """
        real = np.ones(ids.shape, bool) if mask is None else np.asarray(mask) != 0
        if real.shape != ids.shape:
            raise DataError(f"the mask has shape {real.shape} and the prompts {ids.shape}")
        # After the first token there is no padding.
        fine = real.any(1) if self.encodes else (real == (real.cumsum(1) > 0)).all(1) & real[:, -1]
        if not fine.all():
            row = int(np.flatnonzero(~fine)[0])
            where = "must " if self.encodes else "must be on the left and "
            raise DataError(
                f"row {row + 1} of the mask is {real[row].astype(int).tolist()}: padding {where}"
                f"leave at least 1 token"
            )
        return real

    def _fits(self, real: Bool[np.ndarray, "B S"], new: int) -> None:
        """Refuses texts beyond the table of positions, or for which angles depend on the length.

        Raises:
            DataError: They are too long.
        """
        if not self.positions.bounded:
            return
        most = self.positions.max_length
        total = max(real.shape[1], new) if self.encodes else int(real.sum(1).max()) + new - 1
        if total > most:
            raise DataError(
                f"texts of {plural(total, 'token')} do not fit: the model has positions for "
                f"{most}; shorten the prompts or lower max_new_tokens"
            )

    def _check(self, config: GenerationConfig) -> None:
        """Refuses a generation config that does not fit the model.

        Raises:
            ConfigError: It names a token missing from the model, or lacks the decoder's start
                token.
        """
        beyond = sorted(token for token in config.tokens if token >= self.written_vocab)
        if beyond:
            raise ConfigError(
                f"the generation config names token {beyond[0]}: the model writes 0 to "
                f"{self.written_vocab - 1}"
            )
        if not self.encodes:
            return
        start = config.decoder_start_token_id
        if start is None:
            raise ConfigError("decoder_start_token_id is missing: the decoder starts from it")
        if start >= self.written_vocab:
            raise ConfigError(
                f"decoder_start_token_id is {start}: the decoder reads 0 to "
                f"{self.written_vocab - 1}"
            )


def _whole(
    found: SearchResult, context: PromptContext, plan: SearchPlan, values: SearchValues
) -> tuple[Array, Array, Array]:
    """Returns texts after their prompts, as rows, with their lengths and ranking scores."""
    tokens, count = context.tokens.astype(jnp.int32), found.tokens.shape[2]
    whole = jnp.pad(tokens, ((0, 0), (0, count)))
    whole = jnp.where((jnp.arange(whole.shape[1]) < context.length)[None], whole, values.pad)
    whole = jnp.repeat(whole[:, None], plan.beams, axis=1)
    zero = jnp.int32(0)
    whole = lax.dynamic_update_slice(whole, found.tokens, (zero, zero, context.length))
    return whole, found.lengths, found.log_probs if plan.beams == 1 else found.scores


def _output(
    pending: Sequence[tuple[Array, Array, Array]], config: GenerationConfig, count: int, known: int
) -> HFGenerationOutput:
    """Returns the texts of ``count`` prompts of ``known`` tokens; waits for the device."""
    tokens, written, scores = (
        np.concatenate(parts)[:count] for parts in zip(*map(jax.device_get, pending), strict=True)
    )
    if not config.remove_invalid_values:
        refuse_nonfinite(scores)
    keep = config.num_return_sequences
    tokens, written, scores = (part[:, :keep] for part in (tokens, written, scores))
    width = known + int(written.max())
    return HFGenerationOutput(tokens[:, :, :width].reshape(-1, width), scores.reshape(-1))
