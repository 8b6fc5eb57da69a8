"""Translators on CTranslate2."""

import collections
import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np

from transformer_jax.core.keys import key_for
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.length_penalty import length_penalty
from transformer_jax.decoding.line_translator import LineTranslator, sampled
from transformer_jax.decoding.options import TranslationBatching
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.text_generation import Found, Pending
from transformer_jax.interop.ctranslate2_engine import CTranslate2Engine, check_settings
from transformer_jax.models.config import TransformerConfig

__all__ = ["CTranslate2Translator"]


class CTranslate2Translator(LineTranslator):
    """A translator on CTranslate2, as a function of lines of text.

    Greedy search gives the same texts as in JAX. Beam search ends with ``num_beams`` complete
    hypotheses, of which the best by our score is chosen, whereas JAX continues while a better one
    is possible. With ``early_stopping="never"``, it continues to the length limit and finds the
    same texts as JAX. Texts truncated by the limit have no EOS.
    """

    def __init__(
        self,
        engine: CTranslate2Engine,
        tokenizer: Tokenizer,
        config: TransformerConfig,
        *,
        search: GenerationConfig = TRANSLATION,
        batching: TranslationBatching | None = None,
        preparation: Preparation | None = None,
    ):
        """Initializes it with an engine, tokenizer and configuration.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        super().__init__(
            tokenizer, config, search=search, batching=batching, preparation=preparation
        )
        self.engine = engine
        self._lengths = np.arange(self.most + 1)

    def searches(
        self,
        sequences: Sequence[GenerationSequence],
        config: GenerationConfig,
        kept: int | None = None,
    ) -> Iterator[Pending]:
        """Searches batch by batch, for lines with the same limit and similar length.

        Samples depend on the seed and on all sequences.
        """
        if sampled(config) and sequences:
            key = key_for(config.seed, "sampling")
            key = jax.random.fold_in(key, sequences[0].request.number or 0)
            self.engine.reseed(int(jax.random.bits(key)))
        length = lambda one: (one.limit, len(one.source))
        ordered = sorted(sequences, key=length)
        beams = config.num_beams
        search: Any = self._generate
        if beams > 1:
            search = functools.partial(self._beam_search, kept=kept or config.num_return_sequences)
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

    def check(self, config: GenerationConfig) -> None:
        """Refuses settings that CTranslate2 does not support.

        Raises:
            ConfigError: The message names the setting.
        """
        super().check(config)
        check_settings(config, "translator")

    def _scores(self, config: GenerationConfig) -> np.ndarray:
        """Returns the divisors of log-probabilities, by the number of tokens."""
        return length_penalty(self._lengths, config.normalization, config.length_penalty)

    def _generate(self, batch: list[GenerationSequence], config: GenerationConfig) -> Found:
        """Returns the greedy or sampled translations of a batch."""
        limits = [one.limit for one in batch]
        texts: list[list[int]] = [[] for _ in batch]
        worth = [0.0] * len(batch)

        def receive(row: int, token: int, log_prob: float) -> bool:
            texts[row].append(token)
            worth[row] += log_prob
            return len(texts[row]) >= limits[row]

        bounded = config.changed(min_new_tokens=min(config.shortest(), *limits))
        rows, begins = (
            [cast(Sequence[int], one.source) for one in batch],
            [one.begins for one in batch],
        )
        self.engine.generate(rows, max(limits), bounded, receive, begins)
        divisor = self._scores(config)
        return {
            (one.index, 0): one.completed(text, value, value / float(divisor[len(text)]))
            for one, text, value in zip(batch, texts, worth, strict=True)
        }

    def _beam_search(
        self, batch: list[GenerationSequence], config: GenerationConfig, kept: int
    ) -> Found:
        """Returns the ``kept`` best translations of each line of a batch."""
        divisor, ends = self._scores(config), self.tokenizer.end_tokens
        found: Found = {}
        later = [(list(batch), config.early_stopping == "never" or kept > config.num_beams)]
        while later:
            part, exhaustive = later.pop()
            limit = max(one.limit for one in part)
            bounded = config.changed(min_new_tokens=min(config.shortest(), limit))
            rows, begins = (
                [cast(Sequence[int], one.source) for one in part],
                [one.begins for one in part],
            )
            texts = self.engine.beam_search(rows, limit, bounded, exhaustive, begins)
            again = collections.defaultdict(list)
            for one, hypotheses in zip(part, texts, strict=True):
                own = one.limit
                best = _ranked(hypotheses, ends, divisor)[:kept]
                if own < limit and any(len(tokens) > own for tokens, _ in hypotheses):
                    again[own, exhaustive].append(one)  # its own limit affects the search
                elif not exhaustive and not _ended(best[-1][1], ends):
                    again[own, True].append(one)  # other complete hypotheses may have been dropped
                else:
                    cut = _is_cut(hypotheses, ends, divisor)
                    found |= {
                        (one.index, place): one.completed(tokens, log_prob, score, cut=cut)
                        for place, (score, tokens, log_prob) in enumerate(best)
                    }
            later += [(lines, way) for (_, way), lines in again.items()]
        return found


def _ranked(
    hypotheses: list[tuple[list[int], float]], ends: tuple[int, ...], divisor: np.ndarray
) -> list[tuple[float, list[int], float]]:
    """Sorts hypotheses with their scores: complete ones before truncated ones, best first.

    Example:
        >>> divisor = np.array([1.0, 1.0, 2.0])
        >>> _ranked([([5, 6], -1.0), ([3], -4.0), ([5, 3], -5.0)], (3,), divisor)
        [(-2.5, [5, 3], -5.0), (-4.0, [3], -4.0), (-0.5, [5, 6], -1.0)]
    """
    scored = [(log_prob / float(divisor[len(ids)]), ids, log_prob) for ids, log_prob in hypotheses]
    return sorted(scored, key=lambda one: (not _ended(one[1], ends), -one[0]))


def _ended(tokens: list[int], ends: tuple[int, ...]) -> bool:
    """Returns whether the last token is an end token."""
    return bool(tokens) and tokens[-1] in ends


def _is_cut(
    hypotheses: list[tuple[list[int], float]], ends: tuple[int, ...], divisor: np.ndarray
) -> bool:
    """Returns whether a truncated hypothesis has a better score than every complete one.

    Example:
        >>> divisor = np.ones(4)
        >>> _is_cut([([5, 6], -1.0), ([3], -4.0)], (3,), divisor)
        True
    """
    return not _ended(max(_ranked(hypotheses, ends, divisor))[1], ends)
