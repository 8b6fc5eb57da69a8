"""Translators whose translations CTranslate2 searches for."""

import collections
import functools
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from transformer_jax.config import TransformerConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.generate import SamplingConfig
from transformer_jax.decoding.lengths import length_penalty
from transformer_jax.decoding.line_translator import LineTranslator, TranslationSearch
from transformer_jax.decoding.options import BeamSearchConfig, TranslationBatching
from transformer_jax.decoding.text_generation import Found, Pending
from transformer_jax.decoding.writing import GenerationSequence
from transformer_jax.errors import ConfigError
from transformer_jax.interop.ctranslate2_engine import (
    BeamSettings,
    CTranslate2Engine,
    SamplingSettings,
)

__all__ = ["CTranslate2Translator"]


class CTranslate2Translator(LineTranslator):
    """A translator that CTranslate2 computes, as a function of lines of text.

    Greedy search writes what ours writes. Beam search is over when ``num_beams`` hypotheses have
    ended, of which the best by our score is taken; ours goes on while a better one is possible.
    With ``early_stopping=False`` it goes on to the length limit and finds what ours finds. Texts
    that the limit cuts have no EOS.
    """

    def __init__(
        self,
        engine: CTranslate2Engine,
        tokenizer: Tokenizer,
        config: TransformerConfig,
        *,
        search: BeamSearchConfig | None = None,
        batching: TranslationBatching | None = None,
    ):
        """Takes the engine with its tokenizer and its configuration.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        super().__init__(tokenizer, config, search=search, batching=batching)
        self.engine = engine
        self._lengths = np.arange(self.most + 1)

    def searches(
        self, sequences: Sequence[GenerationSequence], config: TranslationSearch
    ) -> Iterator[Pending]:
        """The search of one batch after another, lines of like limit and length together.

        Samples follow from the key and from all the sequences.

        Raises:
            ConfigError: A setting that CTranslate2 does not have.
        """
        _check_sampling(config.sampling)
        if config.config.unscored_eos:
            raise ConfigError("unscored_eos: CTranslate2 scores no EOS at its limit: leave it out")
        if config.key is not None and sequences:
            key = jax.random.fold_in(config.key, sequences[0].request.number or 0)
            self.engine.reseed(int(jax.random.bits(key)))
        length = lambda one: (one.request.max_new_tokens, len(one.source))
        ordered = sorted(sequences, key=length)
        search = self._generate if self._alone(config) else self._beam_search
        beams = 1 if self._alone(config) else config.config.num_beams
        while ordered:
            longest = len(ordered[0].source)
            size = 1
            for one in ordered[1 : self.batching.allowed_rows(1, beams)[-1]]:
                longest = max(longest, len(one.source))
                if longest * (size + 1) > self.batching.tokens:
                    break
                size += 1
            batch, ordered = ordered[:size], ordered[size:]
            yield functools.partial(search, batch, config)

    def _alone(self, config: TranslationSearch) -> bool:
        return config.key is not None or config.config.num_beams == 1

    def _scores(self, config: BeamSearchConfig) -> np.ndarray:
        """Returns the divisors of log-probabilities, by the number of tokens."""
        return np.asarray(
            length_penalty(self._lengths, config.normalization, config.length_penalty)
        )

    def _generate(self, batch: list[GenerationSequence], config: TranslationSearch) -> Found:
        """The greedy or sampled translations of a batch."""
        limits = [one.request.max_new_tokens for one in batch]
        texts: list[list[int]] = [[] for _ in batch]
        worth = [0.0] * len(batch)

        def receive(row: int, token: int, log_prob: float) -> bool:
            texts[row].append(token)
            worth[row] += log_prob
            return len(texts[row]) >= limits[row]

        drawn = config.sampling or SamplingConfig()
        least = min(config.config.min_length - 1, *limits)
        settings = SamplingSettings(
            temperature=0.0 if config.key is None else float(drawn.temperature),
            top_k=drawn.top_k,
            top_p=drawn.top_p,
            min_length=least,
            allow_unk=config.config.allow_unk,
        )
        self.engine.generate([one.source for one in batch], max(limits), settings, receive)
        divisor = self._scores(config.config)
        return {
            (one.index, 0): one.completed(text, value, value / float(divisor[len(text)]))
            for one, text, value in zip(batch, texts, worth, strict=True)
        }

    def _beam_search(self, batch: list[GenerationSequence], config: TranslationSearch) -> Found:
        """The ``nbest`` translations of each line of a batch."""
        search = config.config
        plain = search.normalization == "none"
        settings = BeamSettings(
            search.num_beams,
            search.nbest,
            length_penalty=0.0 if plain else float(search.length_penalty),
            min_length=search.min_length - 1,
            allow_unk=search.allow_unk,
        )
        divisor, ends = self._scores(search), self.tokenizer.end_tokens
        found: Found = {}
        later = [(list(batch), not search.early_stopping or search.kept > search.num_beams)]
        while later:
            part, exhaustive = later.pop()
            limit = max(one.request.max_new_tokens for one in part)
            settings = settings._replace(
                min_length=min(settings.min_length, limit), exhaustive=exhaustive
            )
            texts = self.engine.beam_search([one.source for one in part], limit, settings)
            again = collections.defaultdict(list)
            for one, hypotheses in zip(part, texts, strict=True):
                own = one.request.max_new_tokens
                best = _ranked(hypotheses, ends, divisor)[: search.kept]
                if own < limit and any(len(tokens) > own for tokens, _ in hypotheses):
                    again[own, exhaustive].append(one)  # its own limit would change the search
                elif not exhaustive and not _ended(best[-1][1], ends):
                    again[own, True].append(one)  # others may have ended, and were dropped
                else:
                    cut = _is_cut(hypotheses, ends, divisor)
                    found |= {
                        (one.index, place): one.completed(tokens, log_prob, score, cut=cut)
                        for place, (score, tokens, log_prob) in enumerate(best)
                    }
            later += [(rows, way) for (_, way), rows in again.items()]
        return found


def _ranked(
    hypotheses: list[tuple[list[int], float]], ends: tuple[int, ...], divisor: np.ndarray
) -> list[tuple[float, list[int], float]]:
    """Hypotheses with their scores, best first: those that ended before those that did not.

    Example:
        >>> divisor = np.array([1.0, 1.0, 2.0])
        >>> _ranked([([5, 6], -1.0), ([3], -4.0), ([5, 3], -5.0)], (3,), divisor)
        [(-2.5, [5, 3], -5.0), (-4.0, [3], -4.0), (-0.5, [5, 6], -1.0)]
    """
    scored = [(log_prob / float(divisor[len(ids)]), ids, log_prob) for ids, log_prob in hypotheses]
    return sorted(scored, key=lambda one: (not _ended(one[1], ends), -one[0]))


def _ended(tokens: list[int], ends: tuple[int, ...]) -> bool:
    """Returns whether the last token of a text ends it."""
    return bool(tokens) and tokens[-1] in ends


def _is_cut(
    hypotheses: list[tuple[list[int], float]], ends: tuple[int, ...], divisor: np.ndarray
) -> bool:
    """Returns whether one that the limit cut has a better score than every one that ended.

    Example:
        >>> divisor = np.ones(4)
        >>> _is_cut([([5, 6], -1.0), ([3], -4.0)], (3,), divisor)
        True
    """
    return not _ended(max(_ranked(hypotheses, ends, divisor))[1], ends)


def _check_sampling(sampling: SamplingConfig | None) -> None:
    """Refuses settings of sampling that CTranslate2 does not have.

    Raises:
        ConfigError: It names the setting.
    """
    if sampling is not None and sampling.min_p is not None:
        raise ConfigError("min_p: CTranslate2 has no such sampling: leave it out")
