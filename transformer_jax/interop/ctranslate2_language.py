"""Language models on CTranslate2."""

import collections
import contextlib
import dataclasses
import functools
import hashlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.vocabulary_check import check_vocabulary
from transformer_jax.decoding.batching import batch_by_length
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import BatchingConfig, special_tokens
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.requests import Continuation, GenerationRequest
from transformer_jax.decoding.text_generation import Found, Pending
from transformer_jax.decoding.windowed_generation import ContextTextGenerator, TextStart
from transformer_jax.decoding.windows import Window
from transformer_jax.interop.ctranslate2_engine import (
    CTranslate2Engine,
    check_settings,
    depends_on_text,
)
from transformer_jax.models.config import TransformerConfig

__all__ = ["CTranslate2LanguageModel"]

_LOOK = 0.05  # seconds between updates of a streamed text


class CTranslate2LanguageModel(ContextTextGenerator):
    """A decoder on CTranslate2, as a function of texts.

    Greedy texts are the same as in JAX; samples of a batch depend on the seed and on the prompts of
    the batch.
    """

    def __init__(
        self,
        engine: CTranslate2Engine,
        tokenizer: Tokenizer,
        config: TransformerConfig,
        *,
        start: TextStart,
        ends: bool = True,
        shapes: BatchingConfig | None = None,
    ):
        """Initializes it with an engine, tokenizer and configuration.

        Args:
            engine: The engine of a decoder.
            tokenizer: The tokenizer used in training.
            config: The configuration of the model.
            start: The tokens before a text.
            ends: Whether texts in training end with EOS; otherwise texts are generated up to the
                limit.
            shapes: Batch sizes, and the treatment of long prompts and of a full context.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        check_vocabulary(tokenizer, config.vocab_size)
        self.engine, self.tokenizer = engine, tokenizer
        self.shapes = shapes or BatchingConfig()
        self.context, self.vocab = config.positions.max_length, config.vocab_size
        self.start = start
        self.special = special_tokens(tokenizer, config.vocab_size, ends)
        self.counts = collections.Counter()

    def check(self, request: GenerationRequest) -> None:
        """Refuses a request that CTranslate2 would not follow exactly.

        Raises:
            ConfigError: The message names the setting.
        """
        check_settings(request, "language model")
        penalty = request.repetition_penalty != 1
        if not penalty and not request.no_repeat_ngram_size:
            return
        name = "repetition_penalty" if penalty else "no_repeat_ngram_size"
        first = self.start.before[:1]
        ends = first == (self.special.eos,) and not penalty
        unseen = bool(first) and first[0] in self.special.suppress_tokens
        if not unseen and not (ends and request.no_repeat_ngram_size > 1):
            raise ConfigError(
                f"{name}: CTranslate2 ignores the start token of this model's "
                f"texts: leave it out, or use the engine jax"
            )
        read = self.start.read(self.tokenizer.encode_batch([self.prepare(request.prompt)])[0])
        room = self.context - len(read)
        if self.shapes.full == "slide" and request.new_tokens(len(read)) > room + 1:
            raise ConfigError(
                f"{name}: CTranslate2 ignores tokens outside the context of {self.context} tokens: "
                f"use at most {max(room + 1, 1)} new tokens, or use the engine jax"
            )

    def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Continuation]]:
        """Generates texts, after :meth:`check` of each request."""
        for request in requests:
            self.check(request)
        return super().generate(requests)

    def stream(self, request: GenerationRequest) -> Iterator[str]:
        """Streams a text, after :meth:`check` of the request."""
        self.check(request)
        return super().stream(request)

    def batches(
        self, sequences: Sequence[GenerationSequence]
    ) -> Iterator[list[GenerationSequence]]:
        """Yields batches of sequences with the same settings and similar length."""
        alike = collections.defaultdict(list)
        for one in sequences:
            seed = one.request.seed if one.request.samples else 0
            alike[self._settings(one.request), seed].append(one)
        for group in alike.values():
            yield from batch_by_length(group, self.shapes.rows[-1], alone=False)

    def _settings(self, request: GenerationRequest) -> GenerationConfig:
        return GenerationConfig(
            do_sample=request.samples,
            temperature=request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            repetition_penalty=request.repetition_penalty,
            no_repeat_ngram_size=request.no_repeat_ngram_size,
            suppress_tokens=self.special.suppress_tokens,
        )

    def extend(self, batch: list[GenerationSequence], streaming: bool = False) -> Iterator[None]:
        """Generates each sequence to its end; yields when a text is to be shown or stopped."""
        first = batch[0]
        if first.request.samples:
            drawn = (first.request.seed, first.request.number or 0, first.sample)
            self.engine.reseed(_mixed(*drawn))
        yield from super().extend(batch, streaming)

    def segment(self, sequences: list[GenerationSequence], streaming: bool) -> Iterator[None]:
        """Reads the sequences and generates until contexts are full or all have ended."""
        seen = [self.context_tokens(sequence) for sequence in sequences]
        limits = [
            min(one.remaining, self.context - len(ids) + 1)
            for one, ids in zip(sequences, seen, strict=True)
        ]
        parts = [_Growing(*pair, self.shapes.chunk) for pair in zip(sequences, limits, strict=True)]
        news: queue.SimpleQueue[None] = queue.SimpleQueue()
        left = threading.Event()

        def receive(row: int, token: int, log_prob: float) -> bool:
            ended, new = parts[row].receive(token, log_prob)
            if new:
                news.put(None)
            return ended or left.is_set()

        settings = self._settings(sequences[0].request)
        run = functools.partial(self.engine.generate, seen, max(limits), settings, receive)
        if not streaming:
            run()
        else:
            yield from self._shown(run, news, left)
        if depends_on_text(settings):
            self._rescore(sequences, parts, seen)
        yield

    def _shown(
        self, run: Callable[[], None], news: "queue.SimpleQueue[None]", left: threading.Event
    ) -> Iterator[None]:
        """Yields while ``run`` generates, whenever there are new tokens."""
        with ThreadPoolExecutor(1) as pool:
            done: Future[None] = pool.submit(run)
            try:
                while not done.done():
                    with contextlib.suppress(queue.Empty):
                        news.get(timeout=_LOOK)
                        yield
            finally:
                left.set()  # the caller has stopped reading
            done.result()

    def _rescore(
        self,
        sequences: Sequence[GenerationSequence],
        parts: Sequence["_Growing"],
        seen: Sequence[list[int]],
    ) -> None:
        """Sets the log-probabilities of texts under the model without penalties."""
        for one, part, ids in zip(sequences, parts, seen, strict=True):
            if part.count:
                [values] = self.engine.log_probs([[*ids, *one.tokens[-part.count :]]])
                one.log_prob += sum(values[-part.count :]) - part.log_prob

    def search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int | None
    ) -> Pending:
        """Returns the continuations found by beam search, within one context."""
        return functools.partial(self._search, batch, config, kept or config.num_return_sequences)

    def _search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int
    ) -> Found:
        alike = collections.defaultdict(list)
        for one in batch:
            ids = self.context_tokens(one)
            limit = min(one.remaining, self.context - len(ids) + 1)
            # CTranslate2 counts a limit from the shortest prompt of a batch.
            alike[len(ids), limit].append((one, ids))
        # Search ends hypotheses, even for texts that do not end by themselves.
        suppress = tuple(id for id in self.special.suppress_tokens if id not in self.special.ends)
        settings = config.changed(suppress_tokens=suppress)
        found: Found = {}
        for (_, limit), group in alike.items():
            rows, all_of_them = [ids for _, ids in group], kept > config.num_beams
            texts = self.engine.beam_search(rows, limit, settings, all_of_them)
            for (one, _), hypotheses in zip(group, texts, strict=True):
                best = sorted(hypotheses, key=lambda text: -text[1])[:kept]
                found |= {
                    (one.index, place): one.completed(tokens, log_prob, log_prob)
                    for place, (tokens, log_prob) in enumerate(best)
                }
        return found

    def window_log_probs(
        self, texts: Sequence[Sequence[int] | np.ndarray], asked: list[tuple[int, Window]]
    ) -> Iterator[tuple[tuple[int, Window], np.ndarray]]:
        """Returns the log-probability of each token except the first, by window and text."""
        for i, window in asked:
            [values] = self.engine.log_probs(
                [list(map(int, texts[i][window.start : window.stop + 1]))]
            )
            yield (i, window), np.array(values)


@dataclasses.dataclass
class _Growing:
    """A sequence that receives tokens one by one, and shows them in chunks of ``chunk``."""

    sequence: GenerationSequence
    limit: int  # maximum number of tokens
    chunk: int
    count: int = 0
    log_prob: float = 0.0
    _new: list[int] = dataclasses.field(default_factory=list)
    _gain: float = 0.0

    def receive(self, token: int, log_prob: float) -> tuple[bool, bool]:
        """Appends a token; returns whether the sequence ends, and whether there is text to show."""
        self.count += 1
        self.log_prob += log_prob
        self._new.append(token)
        self._gain += log_prob
        last = self.count >= self.limit or token in self.sequence.ends
        if not last and (self.count - 1) % self.chunk:
            return False, False
        self.sequence.add(self._new, self._gain)
        self._new, self._gain = [], 0.0
        return last or not self.sequence.remaining, True


def _mixed(*numbers: int) -> int:
    """Returns a hash of several numbers."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:4], "big")
