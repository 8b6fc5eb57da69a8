"""A trained decoder as a language model: continuations of prompts, and probabilities of texts."""

import collections
import copy
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Literal

import jax
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.data.vocabulary_check import check_vocabulary
from transformer_jax.decoding.batching import is_plain, left_pad, row_settings, sampling_keys
from transformer_jax.decoding.exhaustive import Scorer
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.inspect_search import BeamSearch, scorer_after
from transformer_jax.decoding.options import BatchingConfig, SpecialTokens, special_tokens
from transformer_jax.decoding.partial_text import GenerationSequence, KeptContext
from transformer_jax.decoding.programs import MoreTokens, Programs, PromptBatch, SearchPrompts
from transformer_jax.decoding.requests import Continuation, GenerationRequest, numbered
from transformer_jax.decoding.scoring import TeacherForced, TraceStep, trace_steps
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues, search_settings
from transformer_jax.decoding.search_state import SearchState
from transformer_jax.decoding.text_generation import Pending, beam_search_of, read_hypotheses
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.decoding.windowed_generation import ContextTextGenerator, TextStart
from transformer_jax.decoding.windows import Window, round_up, windows
from transformer_jax.models.layers.basic import check_indices
from transformer_jax.models.layers.parameters import Shapes
from transformer_jax.models.lora_layers import choose_rows
from transformer_jax.parallel.placement import ModelOrSplit, prepared, round_up_rows, split_model

__all__ = ["DecoderLanguageModel"]


class DecoderLanguageModel(ContextTextGenerator):
    """A decoder with its tokenizer, as a function of texts.

    The continuation of a prompt depends neither on other prompts nor on compiled shapes; if
    sampled, it depends on the seed and the index of its request.

    Attributes:
        context: Largest number of tokens that the model reads at once.
        counts: Numbers of prompts so far: ``prompts``, ``cut``; for speculation also ``steps`` and
            ``tokens``.
    """

    def __init__(
        self,
        model: ModelOrSplit,
        tokenizer: TextTokenizer,
        *,
        start: TextStart | None = None,
        ends: bool = True,
        shapes: BatchingConfig | None = None,
        dtype: Literal["float32", "bfloat16"] | None = None,
        context: int | None = None,
        adapters: tuple[str, ...] = (),
    ):
        """Takes ``model``, a decoder or the pair ``(graph, params)`` that it splits into.

        Args:
            model: The trained model.
            tokenizer: The model's tokenizer.
            start: The tokens before a text; None is BOS.
            ends: Whether training texts end with EOS; otherwise the model writes up to the limit.
            shapes: The compiled shapes.
            dtype: Dtype of weights and products; None is the model's own.
            context: Most tokens to read at once; at most, and by default, the model's positions.
            adapters: Names of the adapters of ``model``, in order, if each row may choose from
                several (:func:`.with_choice`).

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        graph, params = split_model(model)
        module = nnx.merge(graph, params)
        config = module.config
        check_vocabulary(tokenizer, config.vocab_size)
        if dtype is not None and dtype != config.compute.dtype:
            config = dataclasses.replace(
                config, compute=dataclasses.replace(config.compute, dtype=dtype)
            )
            graph = nnx.split(nnx.eval_shape(lambda: type(module)(config, rngs=Shapes(0))))[0]
        # Prepared once: inside the loop it would be repeated for every token.
        graph, self.params = prepared(graph, params)
        shapes = shapes or BatchingConfig()
        divided = {round_up_rows(rows, self.params) for rows in shapes.rows}
        shapes = dataclasses.replace(shapes, rows=tuple(sorted(divided)))
        self.tokenizer, self.shapes, self.adapters = tokenizer, shapes, adapters
        longest, self.vocab = config.positions.max_length, config.vocab_size
        self.context = longest if context is None else min(context, longest)
        self.start = TextStart.of(tokenizer.bos) if start is None else start
        self.ends, self.others = ends, dict[str, DecoderLanguageModel]()
        check_indices(self.start.read(()), config.vocab_size, "the first token of texts is")
        special = special_tokens(tokenizer, config.vocab_size, ends)
        # Other mixers keep a state from which nothing can be removed.
        self._resumes = config.mixer.attends
        self.counts: collections.Counter[str] = collections.Counter()
        self.run = Programs(graph, special, num_draft_tokens=self.shapes.num_draft_tokens)

    def ending_at(self, end_tokens: tuple[int, ...]) -> "DecoderLanguageModel":
        """Returns a model whose texts end with any of these tokens, or when the context is full.

        Args:
            end_tokens: Tokens that end a text in addition to the tokenizer's.
        """
        other = copy.copy(self)
        other.end_tokens, other.others = (*self.tokenizer.end_tokens, *end_tokens), {}
        other.shapes = dataclasses.replace(self.shapes, full="stop", num_draft_tokens=0)
        special = special_tokens(self.tokenizer, self.vocab, True, end_tokens)
        other.run, other.counts = Programs(self.run.graph, special), collections.Counter()
        return other

    def set_texts(self, adapter: str, start: TextStart, ends: bool) -> None:
        """Sets how an adapter's texts begin and end, if it was trained on a different format.

        Args:
            adapter: Name of the adapter.
            start: The tokens before its texts.
            ends: Whether they end with EOS.
        """
        check_indices(start.read(()), self.vocab, "the first token of texts is")
        if (start, ends) == (self.start, self.ends):
            return
        other = copy.copy(self)
        other.start, other.ends, other.others = start, ends, {}
        special = special_tokens(self.tokenizer, self.vocab, ends)
        other.run = Programs(self.run.graph, special, num_draft_tokens=self.shapes.num_draft_tokens)
        self.others[adapter] = other

    def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Continuation]]:
        """Groups requests by their adapter's start and end tokens, and generates."""
        found: dict[int, list[Continuation]] = {}
        apart = collections.defaultdict(list)
        for index, request in enumerate(numbered(requests)):
            apart[id(self.for_request(request))].append((index, request))
        for alike in apart.values():
            model = self.for_request(alike[0][1])
            texts = super(DecoderLanguageModel, model).generate([one for _, one in alike])
            found |= {index: text for (index, _), text in zip(alike, texts, strict=True)}
        return [found[index] for index in range(len(requests))]

    def stream(self, request: GenerationRequest) -> Iterator[str]:
        """Streams a text, as any language model."""
        yield from super(DecoderLanguageModel, self.for_request(request)).stream(request)

    def for_request(self, request: GenerationRequest) -> "DecoderLanguageModel":
        """Returns the model with the start and end tokens of a request's texts."""
        return self.others.get(request.adapter or "", self)

    def trace(
        self, request: GenerationRequest, best: int = 5
    ) -> tuple[Continuation, list[TraceStep]]:
        """Returns a continuation and its steps, each with the ``best`` most probable tokens."""
        [[continuation, *_]] = self.generate([request])
        read = next(self.for_request(request).sequences(request, 0)).prompt_ids
        whole = [*read, *continuation.tokens]
        asked = [(0, window) for window in windows(len(read), len(whole), self.context)]
        found = dict(self._forced([whole], asked, best, request.adapter))
        steps = []
        for _, window in asked:
            tail = (np.asarray(part)[window.at - window.start :] for part in found[0, window])
            tokens = whole[window.at + 1 : window.stop + 1]
            steps += trace_steps(self.tokenizer, tokens, tail)
        return continuation, steps

    def window_log_probs(
        self, texts: Sequence[Sequence[int] | np.ndarray], asked: list[tuple[int, Window]]
    ) -> Iterator[tuple[tuple[int, Window], np.ndarray]]:
        """Scores windows, with windows of similar size in one batch."""
        for place, forced in self._forced(texts, asked):
            yield place, np.asarray(forced.log_probs)

    def _forced(
        self,
        texts: Sequence[Sequence[int] | np.ndarray],
        asked: list[tuple[int, Window]],
        best: int = 0,
        adapter: str | None = None,
    ) -> Iterator[tuple[tuple[int, Window], TeacherForced]]:
        """Returns teacher-forced log-probabilities of each window, batched by padded length."""
        by_size = collections.defaultdict(list)
        for i, window in asked:
            by_size[self._padded_length(window.stop - window.start)].append((i, window))
        for size, same in by_size.items():
            fit = [n for n in self.shapes.rows if n * size <= self.shapes.tokens]
            most = round_up_rows(max(fit, default=1), self.params)
            rows = min(most, round_up(len(same), self.shapes.rows))
            params = self._chosen([adapter] * rows, rows)
            for at in range(0, len(same), rows):
                part = same[at : at + rows]
                inputs, targets = np.zeros((2, rows, size), np.int32)
                for row, (i, (start, stop, _)) in enumerate(part):
                    inputs[row, : stop - start] = texts[i][start:stop]
                    targets[row, : stop - start] = texts[i][start + 1 : stop + 1]
                out = jax.device_get(self.run.score(params, (inputs,), targets, best=best))
                refuse_nonfinite(out.log_probs[: len(part)])
                for row, (i, window) in enumerate(part):
                    length = window.stop - window.start
                    yield (i, window), TeacherForced(*(array[row, :length] for array in out))

    def _chosen(self, adapters: Sequence[str | None], rows: int) -> PyTree:
        """Returns the parameters with the index of each row's adapter; spare rows use none."""
        if not self.adapters:
            return self.params
        numbers = np.zeros(rows, np.int32)
        for row, name in enumerate(adapters):
            if name is not None:
                numbers[row] = 1 + self.adapters.index(name)
        return choose_rows(self.params, numbers)

    def _padded_length(self, size: int) -> int:
        return min(round_up(size, self.shapes.lengths), max(self.context, size))

    def extend(self, batch: list[GenerationSequence], streaming: bool = False) -> Iterator[None]:
        """Generates as any language model; a single plain text by prompt lookup, if enabled."""
        if len(batch) == 1 and self.shapes.num_draft_tokens and is_plain(batch[0].request):
            streaming = streaming or bool(batch[0].request.stop)
            yield from self._prompt_lookup(batch[0], streaming)
            return
        yield from super().extend(batch, streaming)

    def segment(self, sequences: list[GenerationSequence], streaming: bool) -> Iterator[None]:
        """Reads all current tokens and writes until a context is full or all texts have ended."""
        seen = [self.context_tokens(sequence) for sequence in sequences]
        # A row whose context is full must be read again, and the others with it.
        room = min(self.context - len(ids) + 1 for ids in seen)
        most = min(max(sequence.remaining for sequence in sequences), room)
        rows = round_up(len(sequences), self.shapes.rows)
        plan, values = row_settings(sequences, rows, self.run.special, self.vocab)
        prompts = self._prompts(sequences, seen, most, plan)
        params = self._chosen([one.request.adapter for one in sequences], len(prompts.limits))
        # A kept cache belongs to one model, but a text may choose another adapter for its next
        # turn.
        resumes = len(sequences) == 1 and self._resumes and not self.adapters
        kept = sequences[0].kept if resumes else None
        written = len(sequences[0].tokens)
        progress, used, size = self._begin(params, prompts, (plan, values), seen, most, kept)
        done, until = 0, 1
        while True:
            self._take(sequences, progress, done)
            done = until
            if kept is not None:
                # The last token has been generated, but not read.
                kept.origin = used - len(seen[0])
                kept.hold(progress.cache, [*seen[0], *sequences[0].tokens[written:]][:-1])
            stopped = [i for i, sequence in enumerate(sequences) if not sequence.remaining]
            if stopped and streaming:
                over = np.isin(np.arange(len(prompts.limits)), stopped)
                progress = progress._replace(done=progress.done | over)
            yield
            if until >= most or len(stopped) == len(sequences):
                return
            if kept is not None:
                kept.take()  # the programs below donate it
            until = min(most, until + self.shapes.chunk) if streaming else most
            if used - 1 + done >= size:
                size = round_up(size + 1, self.shapes.caches)
                progress = progress._replace(cache=self.run.grow(progress.cache, size=size))
            until = min(until, size - used + 1)
            progress = self.run.decode(params, progress, np.int32(until), plan=plan, values=values)

    def _prompts(
        self,
        sequences: list[GenerationSequence],
        seen: list[list[int]],
        most: int,
        plan: SearchPlan,
    ) -> PromptBatch:
        """Returns the prompt, the token limit and the penalized tokens of each row."""
        rows, read = round_up(len(seen), self.shapes.rows), self._padded_length(max(map(len, seen)))
        tokens, starts = left_pad(seen, rows, read, self.tokenizer.pad)
        limits, before = np.zeros((2, rows), np.int32)
        for row, sequence in enumerate(sequences):
            limits[row], before[row] = min(sequence.remaining, most), len(sequence.tokens)
            sequence.segment = 0.0
        known = (tokens, starts) if plan.reads_text else None
        if known is not None and any(sequence.origin for sequence in sequences):
            # Penalties apply to the complete text, including tokens outside the context.
            texts = [sequence.prompt_ids + sequence.tokens for sequence in sequences]
            longest = round_up(max(map(len, texts)), self.shapes.lengths)
            known = left_pad(texts, rows, longest, self.tokenizer.pad)
        keys = sampling_keys(sequences, rows)
        return PromptBatch(tokens, starts, limits, before, keys, known)

    def _begin(
        self,
        params: PyTree,
        prompts: PromptBatch,
        settings: tuple[SearchPlan, SearchValues],
        seen: list[list[int]],
        most: int,
        kept: KeptContext | None,
    ) -> tuple[SearchState, int, int]:
        """Returns the first token of each row, and the used and available cache slots.

        For a single text, only tokens that are not in the kept cache are read, if they fit into it.
        """
        read, length = prompts.tokens.shape[1], round_up(most, self.shapes.caches)
        how: dict[str, object] = {"plan": settings[0], "values": settings[1], "length": length}
        shared = 0 if kept is None else kept.shared(seen[0])
        more = seen[0][shared:]
        width = round_up(len(more), self.shapes.lengths)
        cache: PyTree = None if kept is None else kept.take()
        if kept is None or not shared or shared + width > self.context:
            size = round_up(min(read + most, max(256, 2 * read)), self.shapes.caches)
            return self.run.begin(params, prompts, size=size, **how), read, size
        at = kept.origin + shared
        if at + width > cache.size:
            cache = self.run.grow(cache, size=round_up(at + width, self.shapes.caches))
        tokens = np.full((len(prompts.limits), width), self.tokenizer.pad, np.int32)
        tokens[0, : len(more)] = more
        told = MoreTokens(tokens, np.int32(len(more)), np.int32(at))
        size = cache.size
        return self.run.resume(params, cache, told, prompts, **how), at + len(more), size

    def _take(self, sequences: list[GenerationSequence], progress: SearchState, done: int) -> None:
        tokens, lengths, worth = jax.device_get(
            (progress.tokens, progress.best.lengths, progress.total)
        )
        refuse_nonfinite(worth[: len(sequences)])
        for row, sequence in enumerate(sequences):
            if sequence.remaining:
                new = tokens[done : int(lengths[row, 0]), row, 0].tolist()
                sequence.add(new, float(worth[row, 0]) - sequence.segment)
                sequence.segment = float(worth[row, 0])

    def _prompt_lookup(self, sequence: GenerationSequence, streaming: bool) -> Iterator[None]:
        """Generates one text by prompt-lookup speculation."""
        guess, params = self.shapes.num_draft_tokens, self._chosen([sequence.request.adapter], 1)
        while sequence.remaining:
            seen = self.context_tokens(sequence)
            most = min(sequence.remaining, self.context - len(seen) + 1)
            read = 1 + (self._padded_length(len(seen) - 1) if len(seen) > 1 else 0)
            length = round_up(most, self.shapes.caches) + guess + 1
            tokens, starts = left_pad([seen], 1, read, self.tokenizer.pad)
            at = self.run.draft_prefill(params, tokens, starts, length=length)
            done = 0
            while done < most and sequence.remaining:
                until = min(most, done + self.shapes.chunk) if streaming else most
                at = self.run.draft_decode(params, at, np.int32(read + until))
                known, worth, steps = jax.device_get((at.known, at.log_prob, at.steps))
                refuse_nonfinite(worth)
                new = np.asarray(at.tokens)[read + done : int(known)].tolist()
                sequence.add(new, float(worth) - sequence.segment)
                sequence.segment, done = float(worth), int(known) - read
                yield
            sequence.segment = 0.0
            self.counts.update(steps=int(steps), tokens=done)
            self.end_full([sequence])

    def search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int | None
    ) -> Pending:
        """Starts beam search, within one context."""
        search = self.beam_search(batch, config, kept)
        output = search.run(self.run.search)
        return lambda: read_hypotheses(batch, output)

    def beam_search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int | None = None
    ) -> BeamSearch:
        """Returns the beam search of sequences, within one context."""
        seen = [self.context_tokens(sequence) for sequence in batch]
        rows, width = round_up(len(seen), self.shapes.rows), max(map(len, seen))
        read = 1 + (self._padded_length(width - 1) if width > 1 else 0)
        tokens, starts = left_pad(seen, rows, read, self.tokenizer.pad)
        limits = np.zeros(rows, np.int32)
        for row, (sequence, ids) in enumerate(zip(batch, seen, strict=True)):
            limits[row] = min(sequence.remaining, self.context - len(ids) + 1)
        length = round_up(max(limits.tolist()), self.shapes.caches)
        prompts, special = SearchPrompts(tokens, starts, limits), self.search_tokens(config)
        plan, values = search_settings(config, special, vocab=self.vocab, length=length, kept=kept)
        params = self._chosen([sequence.request.adapter for sequence in batch], rows)
        return BeamSearch(params, prompts, plan, values, length)

    def beam_searcher(
        self, request: GenerationRequest
    ) -> tuple["DecoderLanguageModel", GenerationSequence, GenerationConfig]:
        """Returns the model for a request's texts, their start, and their beam search."""
        model = self.for_request(request)
        return model, next(model.sequences(request, 0)), beam_search_of(request)

    def search_tokens(self, config: GenerationConfig) -> SpecialTokens:
        """Returns the special tokens of search, where texts end even if training texts do not."""
        special = self.run.special
        suppressed = tuple(t for t in special.suppress_tokens if t not in special.ends)
        return special._replace(suppress_tokens=suppressed)

    def scorer(self, sequence: GenerationSequence) -> Scorer:
        """Returns the function from continuations ``[R T]``, with any first token, to logits."""
        adapter = sequence.request.adapter
        chosen = lambda rows: self._chosen([adapter] * rows, rows)
        logits = lambda tokens: self.run.logits(chosen(len(tokens)), (tokens,))
        return scorer_after(self.context_tokens(sequence), logits, self.context, self.params)
