"""Measures the diversity of texts."""

import dataclasses
from collections.abc import Sequence

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.evaluation.words import choose_tokenize, make_bleu, split_words

__all__ = ["Diversity", "distinct_n", "diversity", "self_bleu"]


@dataclasses.dataclass(frozen=True)
class Diversity:
    """The diversity of texts that were generated in one way.

    Attributes:
        distinct_1: Different words divided by all words, of all texts.
        distinct_2: The same of pairs of words.
        self_bleu: Of the texts of a line against each other, the mean over lines, 0 to 100; None
            where each line has one text.
        words: Words of a text, on average.
        tokenize: How words are split, see :func:`.split_words`; self-BLEU splits punctuation too.
    """

    distinct_1: float
    distinct_2: float
    self_bleu: float | None
    words: float
    tokenize: str


def diversity(texts: Sequence[Sequence[str]], tokenize: str | None = None) -> Diversity:
    """Computes the diversity of one or more texts for each of some lines.

    Args:
        texts: Of each line its texts.
        tokenize: How words are split: a name of :data:`.Tokenize`; None follows from the script.

    Raises:
        ConfigError: There is no such tokenizer.
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
    """Different n-grams of words divided by all n-grams of the texts, 0 to 1 (Li et al. 2016).

    0 where no text has ``n`` words.

    Args:
        texts: The texts, which count together.
        n: Words of an n-gram, at least 1.
        tokenize: How words are split, see :func:`.split_words`: by default at blanks.

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
    """Mean sacreBLEU of each text against all others as its references, 0 to 100.

    100 says that every text is as another one, 0 that none shares a word (Zhu et al. 2018,
    Texygen). Texts of fewer than four words are compared by the n-grams that they have.

    Args:
        texts: The texts.
        tokenize: How sacreBLEU splits words: a name of :data:`.Tokenize`.

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
