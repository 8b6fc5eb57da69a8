"""Text generation with a checkpoint's generation config, like ``generate()`` of transformers."""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from flax import nnx

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.hf_config import from_generation_config
from transformer_jax.decoding.hf_generate import HFGenerator
from transformer_jax.decoding.line_translator import Directions, each_direction
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.requests import Continuation, GenerationRequest
from transformer_jax.decoding.text_generation import Found, Pending, TextGenerator
from transformer_jax.decoding.text_tokenizer import frame_of
from transformer_jax.parallel.placement import mesh_of

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["SEARCH_HERE", "HFTextGenerator"]


class HFTextGenerator(TextGenerator[GenerationConfig]):
    """A model and its generation config, as a function of texts.

    The generation config is checked, and weights are prepared, at first use.

    Args:
        opened: A decoder, an encoder-decoder or a captioner.
        batch: Maximum number of texts per batch.
        changes: Settings that override the generation config.

    Attributes:
        tokenizer: Tokenizer of the run.
        counts: Numbers so far: of texts that were read, ``texts``; of those with text that the
            tokenizer does not know, ``unknown``; and of those that were truncated, ``cut``.
    """

    tokenizer: "Tokenizer"

    def __init__(
        self, opened: "Pretrained", *, batch: int, changes: Mapping[str, Any] | None = None
    ):
        facts, self.tokenizer = opened.facts, opened.tokenizer
        self._facts, self._model, self._changes = facts, opened.model, changes or {}
        self.counts: collections.Counter[str] = collections.Counter()
        self._encodes, self._batch = facts.kind != "decoder", batch
        prepare = facts.preparation
        self._prepare = prepare.source if facts.kind == "encoder-decoder" else prepare.text
        self._first = facts.first_token(self.tokenizer)
        # Texts of a model trained here begin with a start token.
        trained = "published" not in facts.record
        self._before = (self._first,) if trained else self.tokenizer.prefix_ids

    @functools.cached_property
    def generation_config(self) -> GenerationConfig:
        """The generation config.

        Raises:
            ConfigError: A setting is invalid or not supported, or the model is recurrent.
            CheckpointError: The generation config is damaged.
        """
        fields, changes = self._facts.record, self._changes
        published = fields.get("published")
        if fields["model"].get("kind") == "recurrent":
            raise ConfigError(
                "generation_config hf is for Transformers, and this is a recurrent translator: "
                "leave it out"
            )
        if published is None:
            longest = fields["model"]["positions"]["max_length"]
            own = GenerationConfig(
                finishing="hf",
                do_sample=False,
                max_length=longest,
                eos_token_id=self.tokenizer.end_tokens,
                pad_token_id=self.tokenizer.pad,
                decoder_start_token_id=self.tokenizer.bos,
                forced_bos_token_id=next(iter(self.tokenizer.target_prefix_ids), None),
            )
            return _changed(own, changes)
        if not isinstance(published, dict) or not isinstance(published.get("generation"), dict):
            raise CheckpointError(
                f"{self._facts.file}: published is not the record of a checkpoint: damaged?"
            )
        return _changed(from_generation_config(published["generation"]), changes)

    @functools.cached_property
    def _generator(self) -> HFGenerator:
        if mesh_of(nnx.state(self._model)) is not None:
            raise ConfigError(
                "generation_config hf searches on one device: leave it out, or load the model "
                "without a mesh"
            )
        sizes = (1, 2, 4, 8, 16, 32)
        rows = tuple(sorted({n for n in sizes if n < self._batch} | {self._batch}))
        return HFGenerator(self._model, self.generation_config, rows=rows)

    def __call__(
        self,
        texts: Iterable[str],
        changes: Mapping[str, Any] | None = None,
        directions: Directions = DEFAULT_DIRECTION,
        *,
        too_long: Literal["truncate", "error"] = "error",
    ) -> Iterator[list[Continuation]]:
        """Returns the texts for each input, best first; the translation of an empty input is empty.

        Args:
            texts: Prompts, or sentences to translate.
            changes: Settings of this call that override the generation config.
            directions: The direction of all sentences to translate, or one per sentence.
            too_long: Whether sentences beyond the model's positions are truncated or refused.

        Raises:
            ConfigError: A language is unknown or missing, or targets begin with several tokens.
            DataError: A text does not fit the model's positions.
        """
        config = self.generation_config
        config = _changed(config, changes) if changes else config
        remaining, each = iter(texts), each_direction(directions)
        while chunk := list(itertools.islice(remaining, self._batch)):
            placed = enumerate(zip(chunk, each, strict=False))
            sequences = [self._sequence(i, text, config, one) for i, (text, one) in placed]
            if too_long == "truncate" and self._encodes:
                for sequence in sequences:
                    self._truncate(sequence)
            nonempty = [one for one in sequences if len(one.source) or one.prompt_ids]
            found = self.search_texts(nonempty, config)
            for i in range(len(chunk)):
                yield found.get(i, [Continuation("", (), 0.0, "end", 0.0)])

    def _truncate(self, sequence: GenerationSequence) -> None:
        """Removes the last tokens of a sentence that is too long, not the special ones after it."""
        most, source = self._facts.transformer.positions.max_length, list(sequence.source)
        if len(source) > most:
            after = len(
                frame_of(
                    self.tokenizer, self._facts.direction(self.tokenizer, DEFAULT_DIRECTION)
                ).after
            )
            sequence.source = [*source[: most - after], *source[len(source) - after :]]
            self.counts["cut"] += 1

    def searches(
        self,
        sequences: Sequence[GenerationSequence],
        config: GenerationConfig,
        kept: int | None = None,
    ) -> Iterator[Pending]:
        """Starts the search batch by batch, in the order of the sequences.

        Rows of a batch have equal padding, since padding counts for n-grams and lengths.
        """
        del kept  # texts are as in transformers, which may repeat
        # Here the first token of a target is a setting, shared by the rows of a batch.
        by_first = collections.defaultdict(list)
        for sequence in sequences:
            by_first[sequence.begins].append(sequence)
        for first, alike in by_first.items():
            forced = config if not first else config.changed(forced_bos_token_id=first[0])
            for start in range(0, len(alike), self._batch):
                yield self._search(alike[start : start + self._batch], forced)

    def _search(self, batch: Sequence[GenerationSequence], config: GenerationConfig) -> Pending:
        ids, mask, images = self.inputs(batch)
        wait = self._generator.submit(ids, mask, config, images)
        prompt = 1 if self._encodes else ids.shape[1]

        positions = self._generator.positions.max_length
        most = config.longest(prompt, positions) - prompt

        def found() -> Found:
            tokens, scores = wait()
            places = itertools.product(batch, range(config.num_return_sequences))
            return {
                (sequence.index, place): _continuation(
                    sequence, row[prompt:].tolist(), float(score), config, most
                )
                for (sequence, place), row, score in zip(places, tokens, scores, strict=True)
            }

        return found

    def inputs(
        self, batch: Sequence[GenerationSequence]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns the tokens of a batch, the mask of those that are no padding, and pictures."""
        rows = [sequence.source or sequence.prompt_ids for sequence in batch]
        width = max(map(len, rows))
        ids = np.full((len(rows), width), self.tokenizer.pad, np.int32)
        mask = np.zeros(ids.shape, np.int32)
        for i, row in enumerate(rows):
            columns = slice(0, len(row)) if self._encodes else slice(width - len(row), width)
            ids[i, columns], mask[i, columns] = row, 1
        return ids, mask, None

    def _sequence(
        self, index: int, text: str, config: GenerationConfig, direction: Direction
    ) -> GenerationSequence:
        text = self._prepare(text)
        ids, source = self.tokenizer.encode(text), list[int]()
        self.counts.update(texts=1, unknown=unknown_texts([text], self.tokenizer, ids))
        frame = frame_of(self.tokenizer, direction)
        if self.tokenizer.languages and len(frame.begins) > 1:
            begins = " ".join(self.tokenizer.convert_ids_to_tokens(frame.begins))
            raise ConfigError(
                f"generation_config hf begins a text with one token, but texts of this model begin "
                f"with {begins}: leave it out"
            )
        if self._encodes:
            source = [*frame.before, *ids, *frame.after] if ids else []
        read = [] if self._encodes else [*self._before, *ids] or [self._first]
        return GenerationSequence(
            GenerationRequest(text),
            index=index,
            sample=0,
            prompt_ids=read,
            tokenizer=self.tokenizer,
            prompt_text=self.tokenizer.decode(read),
            source=source,
            begins=frame.begins if self.tokenizer.languages else (),
            end_tokens=config.eos_token_id,
        )


# Settings that search in transformers does not have.
SEARCH_HERE = {
    *("top_k", "top_p", "min_p", "stop", "seed", "at_limit", "normalization", "max_len_a"),
    *("max_len_b", "allow_unk", "adapter", "temperature"),
}


def _changed(config: GenerationConfig, changes: Mapping[str, Any]) -> GenerationConfig:
    """Returns the generation config of a checkpoint with changed settings.

    Raises:
        ConfigError: A setting is unknown, out of range, or not for greedy or beam search.
    """
    changes = {"temperature": 1.0, **changes}
    if changes["temperature"] == 0:  # means greedy search, as here
        changes["temperature"] = 1.0
    reason = "generation_config hf is greedy or beam search, to a max_length: leave it out"
    # Sampling settings are refused in calls, and ignored in the file.
    if changes.get("do_sample"):
        raise ConfigError(f"do_sample is {changes['do_sample']}: {reason}")
    changed = config.changed(**{**changes, "finishing": "hf", "do_sample": False})
    taken = {field.name for field in dataclasses.fields(config)} - SEARCH_HERE
    changed.refuse_settings(taken, reason)
    return changed


def _continuation(
    sequence: GenerationSequence, ids: list[int], score: float, config: GenerationConfig, most: int
) -> Continuation:
    """Returns one text of a sequence: ``ids`` up to an end token, without padding.

    An end token at position ``most``, where the config forces one, does not mean that the text
    ended.
    """
    ends = [i for i, token in enumerate(ids) if token in config.eos_token_id]
    written = ids[: ends[0] + 1] if ends else ids
    forced = bool(config.forced_eos_token_id) and len(written) >= most
    log_prob = score if config.num_beams == 1 else math.nan
    return sequence.completed(written, log_prob, score, cut=forced)
