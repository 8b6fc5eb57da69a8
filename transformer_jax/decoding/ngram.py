"""N-gram models as language models: prompts in, text out, token by token on the CPU."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float

from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.vocabulary import check_vocabulary
from transformer_jax.decoding.requests import (
    Continuation,
    FinishReason,
    GenerationRequest,
    TextScore,
    numbered,
)
from transformer_jax.decoding.writing import stable_prefix, truncate_at_stop
from transformer_jax.errors import ConfigError, plural
from transformer_jax.models.ngram import NgramModel, Smoothing

__all__ = ["NgramLanguageModel", "process_probs", "sample_token"]

Probabilities = Float[np.ndarray, " V"]


class NgramLanguageModel:
    """An n-gram model with its tokenizer: a `LanguageModel`.

    A prompt is what a document begins with; after an empty one a document begins. The start and
    padding tokens have no probability, and what the vocabulary lacks is scored but never written.
    """

    def __init__(self, model: NgramModel, tokenizer: Tokenizer):
        """Both together.

        Raises:
            ConfigError: The model is of another vocabulary.
        """
        check_vocabulary(tokenizer, model.vocab_size, exact=True)
        self.model = model
        self.tokenizer = tokenizer

    @classmethod
    def train(
        cls,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        *,
        order: int,
        smoothing: Smoothing | None = None,
    ) -> "NgramLanguageModel":
        """The model of texts, each a document that the end token ends.

        Raises:
            ConfigError: An order below 1.

        Example:
            >>> from transformer_jax.data.tokenizer import train_tokenizer
            >>> tokenizer = train_tokenizer("characters", ["abc"], 7)
            >>> model = NgramLanguageModel.train(["abc"] * 9, tokenizer, order=2)
            >>> [c.text for c in model.generate([GenerationRequest("a", temperature=0.0)])[0]]
            ['bc']
        """
        rows = [[*row, tokenizer.eos] for row in tokenizer.encode_batch(texts)]
        ids, offsets = _flat(rows)
        excluded = {tokenizer.pad, tokenizer.bos} - {tokenizer.eos}
        made = NgramModel.train(
            ids,
            offsets,
            order=order,
            vocab_size=tokenizer.vocab_size,
            smoothing=smoothing,
            excluded=excluded,
        )
        return cls(made, tokenizer)

    def generate(self, requests: Sequence[GenerationRequest]) -> list[list[Continuation]]:
        """The continuations of each prompt: ``samples`` of them, or ``nbest``, best first.

        A draw depends on ``seed`` and the numbers of request and sample alone. Beam search goes by
        the log-probability of the whole, without regard to length.
        """
        prompts = self.tokenizer.encode_batch([request.prompt for request in requests])
        asked = zip(numbered(requests), prompts, strict=True)
        return [self._answer(request, ids) for request, ids in asked]

    def stream(self, request: GenerationRequest) -> Iterator[str]:
        """The first continuation piece by piece, as it is written; a search, when it is over."""
        prompt = self.tokenizer.encode(request.prompt)
        if request.num_beams > 1:
            yield self._search(request, prompt)[0].text
            return
        sent = 0
        for path in self._write(request, prompt, 0):
            text = path.text if path.finish_reason else stable_prefix(path.text, request.stop)
            if len(text) > sent:
                yield text[sent:]
                sent = len(text)

    def document_log_probs(self, store: TokenStore) -> np.ndarray:
        """The log-probability of every token of tokenized documents, one after the other."""
        return self.model.log_probs(store.ids, store.offsets)

    def score(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[TextScore]:
        """The log-probability of each text, given its prompt if there are prompts.

        Prompts are encoded for themselves, and no text is asked to end where it does.

        Raises:
            ConfigError: More or fewer prompts than texts.
        """
        if prompts is not None and len(prompts) != len(texts):
            raise ConfigError(
                f"{plural(len(texts), 'text')} but {plural(len(prompts), 'prompt')}: one for each"
            )
        rows = self.tokenizer.encode_batch(texts)
        before = self.tokenizer.encode_batch(prompts) if prompts else [[] for _ in texts]
        ids, offsets = _flat([a + b for a, b in zip(before, rows, strict=True)])
        log_probs = self.model.log_probs(ids, offsets)
        scores = []
        for text, row, end in zip(texts, rows, offsets[1:], strict=True):
            each = log_probs[end - len(row) : end]
            scores.append(
                TextScore(
                    log_prob=float(each.sum()),
                    tokens=tuple(row),
                    log_probs=tuple(each.tolist()),
                    characters=len(text),
                    bytes=len(text.encode()),
                )
            )
        return scores

    def _answer(self, request: GenerationRequest, prompt: list[int]) -> list[Continuation]:
        if request.num_beams > 1:
            return self._search(request, prompt)
        if request.temperature == 0:  # all samples are one
            return [self._last(request, prompt, 0)] * request.num_return_sequences
        return [
            self._last(request, prompt, sample) for sample in range(request.num_return_sequences)
        ]

    def _last(self, request: GenerationRequest, prompt: list[int], sample: int) -> Continuation:
        return collections.deque(self._write(request, prompt, sample), 1).pop().continuation()

    def _write(
        self, request: GenerationRequest, prompt: list[int], sample: int
    ) -> Iterator["_Path"]:
        """One continuation after each of its tokens; the last has a reason to be the last."""
        rng = np.random.default_rng((request.seed, request.number or 0, sample))
        path = self._start(prompt)
        while not path.finish_reason:
            likely = self.model.distribution(path.ids)
            weights = process_probs(self._writable(likely), path.ids, request)
            token = sample_token(weights, rng.random())
            path = self._extend(path, token, likely, request)
            yield path

    def _search(self, request: GenerationRequest, prompt: list[int]) -> list[Continuation]:
        """The best continuations that a beam meets; ties go to the earlier found."""
        live, done = [self._start(prompt)], list[_Path]()
        while live:
            found = []
            for path in live:
                likely = self.model.distribution(path.ids)
                with np.errstate(divide="ignore"):
                    log_p = path.log_prob + np.log(self._writable(likely))
                best = np.argsort(-log_p, kind="stable")[: request.num_beams + 1]
                found += [(float(log_p[i]), path, int(i), likely) for i in best]
            found.sort(key=lambda f: -f[0])
            live = []
            for log_prob, path, token, likely in found:
                if log_prob == -np.inf or len(live) == request.num_beams:
                    break
                longer = self._extend(path, token, likely, request)
                (done if longer.finish_reason else live).append(longer)
            done = sorted(done, key=lambda path: -path.log_prob)[: request.nbest]
            # What is live only becomes less probable.
            if len(done) == request.nbest and live and live[0].log_prob <= done[-1].log_prob:
                break
        return [path.continuation() for path in done]

    def _writable(self, likely: Probabilities) -> Probabilities:
        """The same without what the vocabulary lacks; where that was all, a text ends."""
        if self.tokenizer.unk is None:
            return likely
        likely = likely.copy()
        likely[self.tokenizer.unk] = 0
        if not likely.any():
            likely[self.tokenizer.eos] = 1
        return likely

    def _start(self, prompt: list[int]) -> "_Path":
        begin = max(0, len(prompt) - _WINDOW)
        return _Path(tuple(prompt), len(prompt), begin, len(prompt), "")

    def _extend(
        self, path: "_Path", token: int, likely: Probabilities, request: GenerationRequest
    ) -> "_Path":
        """The path with one more token, and the reason if it ends there."""
        with np.errstate(divide="ignore"):
            log_prob = path.log_prob + float(np.log(likely[token]))
        path = dataclasses.replace(path, ids=(*path.ids, token), log_prob=log_prob)
        end = token == self.tokenizer.eos
        last = end or len(path.ids) - path.prompt == request.max_new_tokens
        path = path.read(self.tokenizer.decode, last)
        text, stopped = truncate_at_stop(path.text, request.stop)
        if stopped:
            return dataclasses.replace(path, text=text, finish_reason="stop")
        reason: FinishReason | None = "end" if end else "length" if last else None
        return dataclasses.replace(path, finish_reason=reason)


_WINDOW = 8  # tokens of a prompt that may change how what follows them is written


@dataclasses.dataclass(frozen=True)
class _Path:
    """A prompt and what was written after it so far.

    Text is decoded a few tokens at a time: those from ``begin``, of which the ones before
    ``seen`` are in ``text`` already. Half a character waits for its other half.
    """

    ids: tuple[int, ...]
    prompt: int  # how many of them are the prompt's
    begin: int
    seen: int
    text: str
    log_prob: float = 0.0
    finish_reason: FinishReason | None = None

    def read(self, decode: Callable[[Sequence[int]], str], last: bool) -> "_Path":
        old = decode(self.ids[self.begin : self.seen])
        new = decode(self.ids[self.begin :])
        if new.endswith("\ufffd") and not last:
            return self
        added = new[len(old) :] if new.startswith(old) else decode(self.ids[self.seen :])
        return dataclasses.replace(
            self, text=self.text + added, begin=self.seen, seen=len(self.ids)
        )

    def continuation(self) -> Continuation:
        assert self.finish_reason is not None
        return Continuation(self.text, self.ids[self.prompt :], self.log_prob, self.finish_reason)


def process_probs(
    likely: Probabilities, seen: Sequence[int], request: GenerationRequest
) -> Probabilities:
    """What a token is drawn from: penalties, then temperature, then the cuts; sums to 1.

    Where the penalties leave nothing, they do not count. Of equals, the earlier tokens stay.

    Args:
        likely: The model's own probabilities.
        seen: Tokens read and written so far.
        request: Says how.

    Example:
        >>> process_probs(np.array([0.5, 0.25, 0.15, 0.1]), [], GenerationRequest("", top_k=2))
        array([0.66666667, 0.33333333, 0.        , 0.        ])
    """
    log_p = _penalized(likely, seen, request)
    order = np.argsort(-log_p, kind="stable")
    if request.temperature == 0:
        return (np.arange(len(log_p)) == order[0]).astype(np.float64)
    p = np.exp((log_p[order] - log_p[order[0]]) / request.temperature)
    if request.top_k is not None:
        p[request.top_k :] = 0
    if request.top_p is not None and request.top_p < 1:
        p /= p.sum()
        # A sum within one part in a million of it has reached it, whatever the rounding.
        p[1:][np.cumsum(p)[:-1] >= request.top_p * (1 - 1e-6)] = 0
    if request.min_p is not None:
        p[p < request.min_p * p[0]] = 0
    weights = np.empty_like(p)
    weights[order] = p / p.sum()
    return weights


def sample_token(weights: Probabilities, uniform: float) -> int:
    """The token that a number in [0, 1) falls on.

    Example:
        >>> sample_token(np.array([0.5, 0.0, 0.5]), 0.5)
        2
    """
    sums = np.cumsum(weights)
    token = np.searchsorted(sums, uniform * sums[-1], side="right")
    return int(min(token, np.flatnonzero(weights)[-1]))


def _penalized(
    likely: Probabilities, seen: Sequence[int], request: GenerationRequest
) -> Probabilities:
    """Log-probabilities after the repetition penalty and without what would repeat a run."""
    with np.errstate(divide="ignore"):
        log_p = np.log(likely)
    own, n = log_p, request.no_repeat_ngram_size
    if request.repetition_penalty != 1 and seen:
        known = np.unique(np.asarray(seen))
        log_p = log_p.copy()
        log_p[known] *= request.repetition_penalty  # none is above 0
    if 0 < n <= len(seen):
        runs = np.lib.stride_tricks.sliding_window_view(np.asarray(seen), n)
        last = np.asarray(seen)[len(seen) - n + 1 :]
        log_p = log_p.copy()
        log_p[runs[(runs[:, :-1] == last[None]).all(1), -1]] = -np.inf
    return log_p if (log_p > -np.inf).any() else own


def _flat(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *map(len, rows)])
    ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(offsets[-1]))
    return ids, offsets
