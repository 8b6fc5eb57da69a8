"""Measures the diversity of texts."""

import dataclasses
from collections.abc import Sequence

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.evaluation.word_splitting import choose_tokenize, make_bleu, split_words

__all__ = ["Diversity", "distinct_n", "diversity", "self_bleu"]


@dataclasses.dataclass(frozen=True)
class Diversity:
    """The diversity of texts of one decoding method.

    Attributes:
        distinct_1: Distinct words divided by all words, over all texts.
        distinct_2: The same for pairs of words.
        self_bleu: Self-BLEU of the texts of a line, averaged over lines, 0 to 100; None if each
            line has one text.
        words: Mean number of words per text.
        tokenize: Word splitting, see :func:`.split_words`; self-BLEU also splits punctuation.
    """

    distinct_1: float
    distinct_2: float
    self_bleu: float | None
    words: float
    tokenize: str


def diversity(texts: Sequence[Sequence[str]], tokenize: str | None = None) -> Diversity:
    """Computes the diversity of one or more texts per line.

    Args:
        texts: The texts of each line.
        tokenize: Word splitting: a name of :data:`.Tokenize`; None is chosen by the script.

    Raises:
        ConfigError: The tokenizer is unknown.
        DataError: There are no texts.

    Example:
        >>> diversity([["a cat sat", "a cat sat"], ["one dog ran", "it rains"]]).distinct_1
        0.7272727272727273
    """
    every = [text for row in texts for text in row]
    if not every:
        raise DataError("there are no texts to compare")
    several = [row for row in texts if len(row) > 1]
    tokenize = choose_tokenize(every) if tokenize is None else tokenize
    scores = [self_bleu(row, tokenize) for row in several]
    split = split_words(tokenize)
    return Diversity(
        distinct_n(every, 1, tokenize),
        distinct_n(every, 2, tokenize),
        sum(scores) / len(scores) if scores else None,
        sum(len(split(text)) for text in every) / len(every),
        tokenize,
    )


def distinct_n(texts: Sequence[str], n: int, tokenize: str = "13a") -> float:
    """Returns distinct word n-grams divided by all n-grams of the texts, 0 to 1 (Li et al. 2016).

    0 if no text has ``n`` words.

    Args:
        texts: The texts, counted together.
        n: Length of n-grams in words, at least 1.
        tokenize: Word splitting, see :func:`.split_words`: by default at blanks.

    Raises:
        ConfigError: ``n`` is below 1.

    Example:
        >>> distinct_n(["the cat sat", "the cat ran"], 1), distinct_n(["a b a b"], 2)
        (0.6666666666666666, 0.6666666666666666)
    """
    if n < 1:
        raise ConfigError(f"n is {n}: at least 1")
    words = list(map(split_words(tokenize), texts))
    found = [tuple(row[i : i + n]) for row in words for i in range(len(row) - n + 1)]
    return len(set(found)) / max(len(found), 1)


def self_bleu(texts: Sequence[str], tokenize: str = "13a") -> float:
    """Returns the mean sacreBLEU of each text against all other texts as references, 0 to 100.

    100 means that every text equals another one, 0 that no words are shared (Zhu et al. 2018,
    Texygen). Texts of fewer than four words are compared by the n-grams that they have.

    Args:
        texts: The texts.
        tokenize: Tokenizer of sacreBLEU: a name of :data:`.Tokenize`.

    Raises:
        DataError: There are fewer than two texts.

    Example:
        >>> same = self_bleu(["the cat sat down"] * 3)
        >>> other = self_bleu(["the cat sat down", "a dog ran off", "it rains here today"])
        >>> round(same, 6), round(other, 6)
        (100.0, 0.0)
    """
    if len(texts) < 2:
        raise DataError("self-BLEU compares texts with each other: there must be two or more")
    bleu = make_bleu(tokenize, effective_order=True)
    scores = [
        bleu.sentence_score(text, [*texts[:i], *texts[i + 1 :]]).score
        for i, text in enumerate(texts)
    ]
    return float(sum(scores) / len(scores))
