"""Language models whose texts CTranslate2 generates."""

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
from transformer_jax.data.vocabulary import check_vocabulary
from transformer_jax.decoding.batching import batch_by_length
from transformer_jax.decoding.context import ContextTextGenerator, TextStart
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import BatchingConfig, special_tokens
from transformer_jax.decoding.requests import Continuation, GenerationRequest
from transformer_jax.decoding.text_generation import Found, Pending
from transformer_jax.decoding.windows import Window
from transformer_jax.decoding.writing import GenerationSequence
from transformer_jax.interop.ctranslate2_engine import (
    CTranslate2Engine,
    check_settings,
    depends_on_text,
)
from transformer_jax.models.config import TransformerConfig

__all__ = ["CTranslate2LanguageModel"]

_LOOK = 0.05  # seconds between looks at a text that is shown as it grows


class CTranslate2LanguageModel(ContextTextGenerator):
    """A decoder that CTranslate2 computes, as a function of texts.

    Greedy texts are those of ours; samples of a batch follow from the seed and the prompts of the
    batch.
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
        """Takes the engine with its tokenizer and its configuration.

        Args:
            engine: Of a decoder.
            tokenizer: Of its training.
            config: Of the model.
            start: The tokens before a text.
            ends: Whether texts of its training end with EOS; otherwise it writes to the limit.
            shapes: Rows of a batch, and what happens to long prompts and where a context is full.

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
        """Refuses a request that CTranslate2 would generate otherwise than asked.

        Raises:
            ConfigError: It names the setting.
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
                f"{name}: CTranslate2 does not count the token that texts of this model begin "
                f"with: leave it out, or use the engine jax"
            )
        read = self.start.read(self.tokenizer.encode_batch([request.prompt])[0])
        room = self.context - len(read)
        if self.shapes.full == "slide" and request.new_tokens(len(read)) > room + 1:
            raise ConfigError(
                f"{name}: CTranslate2 forgets what leaves the context of {self.context} tokens: "
                f"ask for at most {max(room + 1, 1)} new tokens, or use the engine jax"
            )

    def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Continuation]]:
        """Generates texts like any model, after :meth:`check` of each request."""
        for request in requests:
            self.check(request)
        return super().generate(requests)

    def stream(self, request: GenerationRequest) -> Iterator[str]:
        """Streams a text like any model, after :meth:`check` of the request."""
        self.check(request)
        return super().stream(request)

    def batches(
        self, sequences: Sequence[GenerationSequence]
    ) -> Iterator[list[GenerationSequence]]:
        """Sequences of one setting and of like length."""
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
        """Generates tokens to the end of each sequence; yields where a text is shown or stops."""
        first = batch[0]
        if first.request.samples:
            drawn = (first.request.seed, first.request.number or 0, first.sample)
            self.engine.reseed(_mixed(*drawn))
        yield from super().extend(batch, streaming)

    def segment(self, sequences: list[GenerationSequence], streaming: bool) -> Iterator[None]:
        """Reads what stands there and writes until contexts are full or all have ended."""
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
        """Yields while ``run`` generates, as often as there is news."""
        with ThreadPoolExecutor(1) as pool:
            done: Future[None] = pool.submit(run)
            try:
                while not done.done():
                    with contextlib.suppress(queue.Empty):
                        news.get(timeout=_LOOK)
                        yield
            finally:
                left.set()  # nobody reads on
            done.result()

    def _rescore(
        self,
        sequences: Sequence[GenerationSequence],
        parts: Sequence["_Growing"],
        seen: Sequence[list[int]],
    ) -> None:
        """Gives texts their log-probability under the model without penalties."""
        for one, part, ids in zip(sequences, parts, seen, strict=True):
            if part.count:
                [values] = self.engine.log_probs([[*ids, *one.tokens[-part.count :]]])
                one.log_prob += sum(values[-part.count :]) - part.log_prob

    def search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int | None
    ) -> Pending:
        """The continuations that beam search finds, which lie within one context."""
        return functools.partial(self._search, batch, config, kept or config.num_return_sequences)

    def _search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int
    ) -> Found:
        alike = collections.defaultdict(list)
        for one in batch:
            ids = self.context_tokens(one)
            limit = min(one.remaining, self.context - len(ids) + 1)
            # A limit counts from the shortest prompt of a batch there.
            alike[len(ids), limit].append((one, ids))
        # Search ends hypotheses, also where texts do not end by themselves.
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
        self,
        texts: Sequence[Sequence[int] | np.ndarray],
        asked: list[tuple[int, Window]],
    ) -> Iterator[tuple[tuple[int, Window], np.ndarray]]:
        """The log-probability of each token but the first of each window of each text."""
        for i, window in asked:
            [values] = self.engine.log_probs(
                [list(map(int, texts[i][window.start : window.stop + 1]))]
            )
            yield (i, window), np.array(values)


@dataclasses.dataclass
class _Growing:
    """A sequence that gets its tokens one by one, and shows them ``chunk`` by chunk."""

    sequence: GenerationSequence
    limit: int  # most tokens
    chunk: int
    count: int = 0
    log_prob: float = 0.0
    _new: list[int] = dataclasses.field(default_factory=list)
    _gain: float = 0.0

    def receive(self, token: int, log_prob: float) -> tuple[bool, bool]:
        """Takes a token; whether the sequence ends with it, and whether it shows something new."""
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
    """A number that follows from several and looks random."""
    return int.from_bytes(hashlib.sha256(repr(numbers).encode()).digest()[:4], "big")
