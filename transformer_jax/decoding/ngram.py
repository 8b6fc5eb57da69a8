"""N-gram models as language models, generating token by token on the CPU."""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.data.coverage import unknown_texts
from transformer_jax.data.store import TokenStore
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.vocabulary_check import check_vocabulary
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.requests import GenerationRequest, TextScore
from transformer_jax.decoding.text_generation import CausalTextGenerator, Pending
from transformer_jax.models.ngram import NgramModel, Smoothing

__all__ = ["NgramLanguageModel", "process_probs", "sample_token"]

Probabilities = Float[np.ndarray, " V"]


class NgramLanguageModel(CausalTextGenerator):
    """An n-gram model with its tokenizer: a `LanguageModel`.

    Its tables are sorted counts in host memory, looked up in float64, so it adapts
    :class:`CausalTextGenerator` token by token instead of being a ``Decodable`` of arrays.

    A prompt is the beginning of a document; an empty prompt starts a new document. The start and
    padding tokens have no probability, and the unknown token is scored but never written.

    Attributes:
        counts: Numbers so far: ``prompts``, and prompts and scored texts with text that the
            tokenizer does not know, ``unknown``.
    """

    def __init__(self, model: NgramModel, tokenizer: Tokenizer):
        """Combines a model and its tokenizer.

        Raises:
            ConfigError: The model has a different vocabulary.
        """
        check_vocabulary(tokenizer, model.vocab_size, exact=True)
        self.model = model
        self.tokenizer = tokenizer
        self.counts: collections.Counter[str] = collections.Counter()

    @classmethod
    def train(
        cls,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        *,
        order: int,
        smoothing: Smoothing | None = None,
    ) -> "NgramLanguageModel":
        """Trains a model on texts, each a document ending with the end token.

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

    def document_log_probs(self, store: TokenStore) -> np.ndarray:
        """Returns the log-probability of every token of tokenized documents, in order."""
        return self.model.log_probs(store.ids, store.offsets)

    def score(self, texts: Sequence[str], prompts: Sequence[str] | None = None) -> list[TextScore]:
        """Returns the log-probability of each text, given its prompt if there are prompts.

        Prompts are encoded separately, and the end of a text is not scored.

        Raises:
            ConfigError: The numbers of prompts and texts differ.
        """
        if prompts is not None and len(prompts) != len(texts):
            raise ConfigError(
                f"{plural(len(texts), 'text')} but {plural(len(prompts), 'prompt')}: "
                f"give one per text"
            )
        texts = [self.prepare(text) for text in texts]
        prompts = [self.prepare(prompt) for prompt in prompts or ()]
        rows = self.tokenizer.encode_batch(texts)
        self.counts["unknown"] += unknown_texts(texts, self.tokenizer)
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

    def prompt_tokens(self, prompt: str) -> list[int]:
        """Returns the tokens of the prompt, without a start token."""
        [ids] = self.tokenizer.encode_batch([prompt])
        self.counts["prompts"] += 1
        self.counts["unknown"] += unknown_texts([prompt], self.tokenizer, ids)
        return ids

    def batches(
        self, sequences: Sequence[GenerationSequence]
    ) -> Iterator[list[GenerationSequence]]:
        """Yields sequences one by one; the identical greedy samples of a request together."""
        same = lambda one: (one.index, one.sample if one.request.samples else -1)
        for _, batch in itertools.groupby(sequences, key=same):
            yield list(batch)

    def extend(self, batch: list[GenerationSequence], streaming: bool = False) -> Iterator[None]:
        """Generates the tokens of the first sequence, shared by the rest; yields after each.

        A sample depends only on the seed and the indices of request and sample.
        """
        del streaming  # it always yields
        first, *copies = batch
        request = first.request
        rng = np.random.default_rng((request.seed, request.number or 0, first.sample))
        while first.remaining:
            ids = [*first.prompt_ids, *first.tokens]
            probs = self.model.distribution(ids)
            early = len(first.tokens) < (request.min_new_tokens or 0)
            weights = process_probs(self._writable(probs, early), ids, request)
            self._append(first, sample_token(weights, rng.random()), probs)
            yield
        for copy in copies:
            copy.tokens, copy.log_prob = list(first.tokens), first.log_prob
            copy.finish_reason = first.finish_reason

    def search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int | None
    ) -> Pending:
        """Starts beam search, by the log-probability of the complete text."""
        found = {
            (start.index, place): best.done()
            for start in batch
            for place, best in enumerate(self._beam_search(start, config, kept))
        }
        return lambda: found

    def _beam_search(
        self, start: GenerationSequence, config: GenerationConfig, kept: int | None
    ) -> list[GenerationSequence]:
        """Returns the best finished sequences, best first; ties go to the one found first."""
        kept = config.num_return_sequences if kept is None else kept
        live, done = [start], list[GenerationSequence]()
        while live:
            found = []
            for beam in live:
                probs = self.model.distribution([*beam.prompt_ids, *beam.tokens])
                with np.errstate(divide="ignore"):
                    log_p = beam.log_prob + np.log(self._writable(probs))
                best = np.argsort(-log_p, kind="stable")[: config.num_beams + 1]
                found += [(float(log_p[i]), beam, int(i), probs) for i in best]
            found.sort(key=lambda f: -f[0])
            live = []
            for log_prob, beam, token, probs in found:
                if log_prob == -np.inf or len(live) == config.num_beams:
                    break
                longer = dataclasses.replace(beam, tokens=list(beam.tokens))
                self._append(longer, token, probs)
                (done if longer.finish_reason else live).append(longer)
            done = sorted(done, key=lambda beam: -beam.log_prob)[:kept]
            # A live beam can only become less probable.
            if len(done) == kept and live and live[0].log_prob <= done[-1].log_prob:
                break
        return done

    def _append(self, sequence: GenerationSequence, token: int, probs: Probabilities) -> None:
        with np.errstate(divide="ignore"):
            sequence.add([token], float(np.log(probs[token])))

    def _writable(self, likely: Probabilities, early: bool = False) -> Probabilities:
        """Removes unknown tokens; if no others remain, the text ends.

        Args:
            likely: The model's own probabilities.
            early: Whether the text may not end yet, if anything else may follow.
        """
        unknown = [] if self.tokenizer.unk is None else [self.tokenizer.unk]
        if not early and not unknown:
            return likely
        likely = likely.copy()
        likely[unknown] = 0
        if not likely.any():
            likely[self.tokenizer.eos] = 1
        if early:
            longer = likely.copy()
            longer[list(self.tokenizer.end_tokens)] = 0
            likely = longer if longer.any() else likely
        return likely


def process_probs(
    likely: Probabilities, seen: Sequence[int], request: GenerationRequest
) -> Probabilities:
    """Applies penalties, temperature and truncation to probabilities, which then sum to 1.

    Penalties that leave nothing are ignored. Ties go to the earlier tokens.

    Args:
        likely: The model's own probabilities.
        seen: Tokens read and written so far.
        request: The settings.

    Example:
        >>> process_probs(np.array([0.5, 0.25, 0.15, 0.1]), [], GenerationRequest("", top_k=2))
        array([0.66666667, 0.33333333, 0.        , 0.        ])
    """
    log_p = _penalized(likely, seen, request)
    order = np.argsort(-log_p, kind="stable")
    if not request.samples:
        return (np.arange(len(log_p)) == order[0]).astype(np.float64)
    p = np.exp((log_p[order] - log_p[order[0]]) / request.temperature)
    if request.top_k is not None:
        p[request.top_k :] = 0
    if request.top_p is not None and request.top_p < 1:
        p /= p.sum()
        # A sum within one part in a million of it counts as reaching it, to allow for rounding.
        p[1:][np.cumsum(p)[:-1] >= request.top_p * (1 - 1e-6)] = 0
    if request.min_p is not None:
        p[p < request.min_p * p[0]] = 0
    weights = np.empty_like(p)
    weights[order] = p / p.sum()
    return weights


def sample_token(weights: Probabilities, uniform: float) -> int:
    """Returns the token selected by a number in [0, 1).

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
    """Log-probabilities after the repetition penalty, without tokens that repeat an n-gram."""
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
