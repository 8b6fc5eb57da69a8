"""Translation of lines of text, in order, with a finite set of compiled shapes."""

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PyTree

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.keys import key_for
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.core.trees import AnyArray, device_of
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction, Frame
from transformer_jax.data.preparation import Preparation
from transformer_jax.decoding.exhaustive import Scorer
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.inspect_search import BeamSearch
from transformer_jax.decoding.line_translator import Directions, LineTranslator, sampled
from transformer_jax.decoding.options import SpecialTokens, TranslationBatching
from transformer_jax.decoding.partial_text import GenerationSequence, Source
from transformer_jax.decoding.programs import Programs, SearchPrompts
from transformer_jax.decoding.requests import Translation
from transformer_jax.decoding.scoring import TargetScore, TeacherForced, TraceStep, trace_steps
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import row_keys
from transformer_jax.decoding.text_generation import Pending, read_hypotheses
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.parallel.placement import (
    ModelOrSplit,
    mesh_of,
    prepared,
    round_up_rows,
    split_model,
)

__all__ = ["Translator", "compaction_sizes"]


class Translator(LineTranslator):
    """A trained model with its tokenizer, as a function of lines of text.

    Encoder and search are one function, compiled for each shape when first needed, and kept. The
    translation of a line depends neither on other lines nor on their order.

    Attributes:
        graph: The static part of the model, prepared for decoding.
        params: The parameters, prepared for decoding; assign new ones in the model's own form.
    """

    def __init__(
        self,
        model: ModelOrSplit,
        tokenizer: TextTokenizer,
        *,
        search: GenerationConfig = TRANSLATION,
        batching: TranslationBatching | None = None,
        preparation: Preparation | None = None,
    ):
        """Takes ``model``, an encoder-decoder or the pair ``(graph, params)`` that it splits into.

        Args:
            model: The trained model.
            tokenizer: The tokenizer of the model.
            search: Usual settings of the search.
            batching: Batch sizes.
            preparation: The preparation of texts in training; None if they come prepared.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        self._given, params = split_model(model)
        config = nnx.merge(self._given, params).config
        super().__init__(
            tokenizer, config, search=search, batching=batching, preparation=preparation
        )
        self.graph, self._params = prepared(self._given, params)
        sizes, longest = self.batching.source_lengths, config.max_length
        self.shapes = (*(size for size in sizes if size < longest), longest)
        self.run = Programs(self.graph, self.special_tokens())

    def source_names(self, source: Source) -> list[str]:
        """Returns a name for each position of an encoded source, such as its tokens."""
        return self.tokenizer.convert_ids_to_tokens(source)

    @functools.cached_property
    def attend(self) -> Callable[[PyTree, AnyArray, AnyArray, AnyArray], dict[str, Array]]:
        """The function from parameters and inputs to attention weights, compiled per shape."""

        def maps(params: PyTree, source: Array, inputs: Array, lengths: Array) -> dict[str, Array]:
            return nnx.merge(self.graph, params).attention_maps(source, inputs, lengths)

        return jax.jit(maps)

    @property
    def params(self) -> PyTree:
        """The parameters in use."""
        return self._params

    @params.setter
    def params(self, params: PyTree) -> None:
        self._params = prepared(self._given, params)[1]

    def encode_targets(
        self, targets: Sequence[str], frames: Sequence[Frame] | None = None
    ) -> list[list[int]]:
        """Encodes targets, with the tokens that training adds before and after them."""
        frames = self.frames(DEFAULT_DIRECTION, len(targets)) if frames is None else frames
        last, encoder = self.tokenizer.eos, getattr(self.tokenizer, "targets", self.tokenizer)
        encoded = zip(frames, encoder.encode_batch(targets), strict=True)
        return [[*frame.begins, *ids, last] for frame, ids in encoded]

    def score(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        directions: Directions = DEFAULT_DIRECTION,
    ) -> list[TargetScore]:
        """Returns the log-probability of each target given its source, by teacher forcing.

        The fixed first tokens of targets are given: they are not part of a score, as in search.

        Args:
            sources: Sentences.
            targets: Their translations.
            directions: The direction of all pairs, or one per pair.

        Raises:
            ConfigError: A language of the directions is unknown or missing.
            DataError: Different numbers of lines, or a target too long to be scored completely.
        """
        if len(sources) != len(targets):
            raise DataError(
                f"{plural(len(sources), 'source')} but {plural(len(targets), 'target')}: they must "
                f"be one a line, in the same order"
            )
        sources = list(map(self.prepared, sources))
        targets = list(map(self.prepared_target, targets))
        frames = self.frames(directions, len(sources))
        read, _ = self.encode(sources, frames)
        written, given = self.encode_targets(targets, frames), self.given
        encoder = getattr(self.tokenizer, "targets", self.tokenizer)
        self.counts["unknown"] += unknown_texts(targets, encoder)
        for i, ids in enumerate(written):
            own = len(ids) - given
            if own > self.most:
                raise DataError(
                    f"target {i + 1} has {plural(own - 1, 'token')}: at most {self.most - 1} are "
                    f"scored; leave the pair out"
                )
        scores: dict[int, TargetScore] = {}
        both = [max(len(s), len(t)) for s, t in zip(read, written, strict=True)]
        for which, shape in self.batches(range(len(both)), both):
            chosen = [written[i] for i in which]
            out = self._forced([read[i] for i in which], chosen, *shape)
            for i, ids, row in zip(which, chosen, np.asarray(out.log_probs), strict=False):
                tokens = row[given : len(ids)].tolist()
                scores[i] = TargetScore(float(sum(tokens)), tuple(ids[given:]), tuple(tokens))
        return [scores[i] for i in range(len(both))]

    def trace(
        self,
        line: str,
        search: GenerationConfig | None = None,
        direction: Direction = DEFAULT_DIRECTION,
        best: int = 5,
    ) -> tuple[Translation, list[TraceStep]]:
        """Returns a translation and its steps, each with the ``best`` most probable tokens."""
        [translation] = self.translate([line], search, direction)
        tokens = list(translation.tokens)
        if not tokens:
            return translation, []
        [frame] = self.frames(direction, 1)
        [source], _ = self.encode([self.prepared(line)], [frame])
        whole = [*frame.begins, *tokens]
        size = max(self.shape(len(source)), self.shape(len(whole)))
        forced = self._forced([source], [whole], round_up_rows(1, self.params), size, best)
        first = (np.asarray(part)[0, self.given : len(whole)] for part in forced)
        return translation, trace_steps(self.tokenizer, tokens, first)

    def shape(self, length: int) -> int:
        """Returns the padded length of a sequence."""
        return next(size for size in self.shapes if size >= length)

    def batches(
        self, which: Iterable[int], lengths: Sequence[int], beams: int = 1
    ) -> Iterator[tuple[list[int], tuple[int, int]]]:
        """Yields lines to process together, and their shape: rows and tokens.

        Batches contain lines of similar length, so that few wait for others.
        """
        by_size = collections.defaultdict(list)
        for i in sorted(which, key=lambda i: lengths[i]):
            by_size[self.shape(lengths[i])].append(i)
        for size, members in by_size.items():
            allowed = self.batching.allowed_rows(size, beams)
            # A single number of rows for all: another would take seconds to compile.
            rows = next((rows for rows in allowed if rows >= len(members)), allowed[-1])
            rows = round_up_rows(rows, self.params)
            for start in range(0, len(members), rows):
                yield members[start : start + rows], (rows, size)

    def searches(
        self,
        sequences: Sequence[GenerationSequence],
        config: GenerationConfig,
        kept: int | None = None,
    ) -> Iterator[Pending]:
        """Starts the search of one batch at a time, each of lines of similar length."""
        lengths = [len(sequence.source) for sequence in sequences]
        for which, shape in self.batches(range(len(sequences)), lengths, config.num_beams):
            yield self._search([sequences[i] for i in which], shape, config, kept)

    def _search(
        self,
        batch: list[GenerationSequence],
        shape: tuple[int, int],
        config: GenerationConfig,
        kept: int | None,
    ) -> Pending:
        search = self._beam_search(batch, shape, config, kept)
        greedy = config.num_beams == 1 and search.prompts.keys is None
        sizes = compaction_sizes(shape[0], self.params) if greedy else ()
        output = search.run(self.run.search, sizes=sizes)
        return lambda: read_hypotheses(batch, output)

    def beam_search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int | None = None
    ) -> BeamSearch:
        """Returns the search for lines of similar length.

        Args:
            batch: The lines.
            config: The settings.
            kept: Number of finished hypotheses to return; None is ``num_return_sequences``.
        """
        lengths = [len(sequence.source) for sequence in batch]
        [(_, shape)] = self.batches(range(len(batch)), lengths, config.num_beams)
        return self._beam_search(batch, shape, config, kept)

    def _beam_search(
        self,
        batch: list[GenerationSequence],
        shape: tuple[int, int],
        config: GenerationConfig,
        kept: int | None,
    ) -> BeamSearch:
        (rows, size), keys = shape, None
        limits, seeds = np.zeros((2, rows), np.int32)
        limits[: len(batch)] = [one.limit for one in batch]
        if sampled(config):
            seeds[: len(batch)] = [one.request.number or 0 for one in batch]
            keys = row_keys(key_for(config.seed, "sampling"), jnp.asarray(seeds))
        begins = np.full((rows, 1 + self.given), self.tokenizer.bos, np.int32)
        begins[: len(batch), 1:] = [one.begins for one in batch]
        source, lengths = self.fill_sources([one.source for one in batch], rows, size)
        prompts = SearchPrompts(
            tokens=begins,
            starts=np.zeros(rows, np.int32),
            limits=limits,
            inputs=self.inputs(source, lengths),
            keys=keys,
        )
        length = config.target_tokens(size, self.most)
        plan, values = search_settings(
            config,
            self.search_tokens(config),
            vocab=self.vocab,
            length=length,
            sampled=keys is not None,
            kept=kept,
        )
        return BeamSearch(self.params, prompts, plan, values, length)

    def search_tokens(self, config: GenerationConfig) -> SpecialTokens:
        """Returns the end tokens of translations, and tokens that are never written."""
        return self.special_tokens(config.allow_unk)

    def scorer(self, sequence: GenerationSequence) -> Scorer:
        """Returns the function from translations ``[R T]``, with any first token, to logits.

        Args:
            sequence: The source.

        Raises:
            ConfigError: They are longer than the model can read.
        """
        begins, size = [self.tokenizer.bos, *sequence.begins], self.shape(len(sequence.source))

        def logits(tokens: Int[np.ndarray, "R T"]) -> Float[np.ndarray, "R T V"]:
            (R, T), rows = tokens.shape, round_up_rows(len(tokens), self.params)
            if self.most < T:
                raise ConfigError(f"texts of {plural(T, 'token')}: at most {self.most} are read")
            source, lengths = self.fill_sources([sequence.source] * R, rows, size)
            target, _ = self._fill(
                [[*begins, *row[1:]] for row in tokens.tolist()], rows, self.given + T
            )
            arguments = (source, target, lengths)
            return np.asarray(self.run.logits(self.params, arguments))[:R, self.given :]

        return logits

    def _forced(
        self,
        sources: Sequence[Source],
        targets: list[list[int]],
        rows: int,
        size: int,
        best: int = 0,
    ) -> TeacherForced:
        source, lengths = self.fill_sources(sources, rows, size)
        target, _ = self._fill(targets, rows, size)
        start = np.full((rows, 1), self.tokenizer.bos, np.int32)
        inputs = np.concatenate([start, target[:, :-1]], axis=1)
        forced = self.run.score(self.params, (source, inputs, lengths), target, best=best)
        refuse_nonfinite(forced.log_probs[: len(sources)])
        return forced

    def inputs(self, source: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the encoder's arguments by name, from the result of :meth:`fill_sources`."""
        return {"source": source, "source_lengths": lengths}

    def fill_sources(
        self, sources: Sequence[Source], rows: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns sources as rows of one array, and their lengths, 0 for empty rows."""
        return self._fill(sources, rows, size)

    def _fill(
        self, sequences: Sequence[Source], rows: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns sequences as rows of one array, and their lengths, 0 for empty rows."""
        tokens = np.full((rows, size), self.tokenizer.pad, np.int32)
        lengths = np.zeros(rows, np.int32)
        for row, ids in enumerate(sequences):
            tokens[row, : len(ids)] = ids
            lengths[row] = len(ids)
        return tokens, lengths


def compaction_sizes(rows: int, params: PyTree) -> tuple[int, ...]:
    """Returns the descending sizes to which a batch shrinks, given where its parameters are.

    There are none on accelerators, which read all parameters at every step for any number of rows,
    and none on a mesh, whose devices would have to exchange rows.

    Example:
        >>> compaction_sizes(128, {"gain": jnp.ones(3)}), compaction_sizes(8, {})
        ((32, 8), ())
    """
    if device_of(params).platform != "cpu" or mesh_of(params) is not None:
        return ()
    return tuple(size for size in (32, 8) if size < rows)
