"""Word and character error rates of transcripts."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from transformer_jax.core.errors import DataError, plural
from transformer_jax.evaluation.word_splitting import split_words

__all__ = ["ErrorRate", "character_error_rate", "edit_counts", "word_error_rate"]


@dataclasses.dataclass(frozen=True)
class ErrorRate:
    """Edits from references to hypotheses, summed over a corpus."""

    substitutions: int
    deletions: int
    insertions: int
    length: int  # words or characters of the references

    @property
    def errors(self) -> int:
        """The number of edits of all three kinds."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """``100 (S + D + I) / N`` in percent; above 100 with too many insertions."""
        return 100 * self.errors / self.length

    def __str__(self) -> str:
        return (
            f"{self.rate:.2f} % ({self.substitutions} substituted, {self.deletions} deleted, "
            f"{self.insertions} inserted of {self.length:,})"
        )


def word_error_rate(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "none"
) -> ErrorRate:
    """Returns the WER of a corpus: edits of words, including case and punctuation.

    Args:
        hypotheses: The transcripts.
        references: The reference texts.
        tokenize: Word splitting, see :func:`.split_words`: by default at blanks, which is
            meaningless for scripts without blanks.

    Raises:
        DataError: The numbers of texts differ, or the references have no words.

    Example:
        >>> print(word_error_rate(["the cat sat", "a dog"], ["the cat sat down", "the dog"]))
        33.33 % (1 substituted, 1 deleted, 0 inserted of 6)
        >>> print(word_error_rate(["我们去"], ["我们走"], "zh"))
        33.33 % (1 substituted, 0 deleted, 0 inserted of 3)
    """
    split = split_words(tokenize)
    return _summed(list(map(split, hypotheses)), list(map(split, references)), "word")


def character_error_rate(hypotheses: Sequence[str], references: Sequence[str]) -> ErrorRate:
    """Returns the CER of a corpus: edits of characters, including inner blanks.

    Raises:
        DataError: The numbers of texts differ, or the references have no characters.

    Example:
        >>> character_error_rate(["kitten"], ["sitting"]).errors
        3
    """
    letters = lambda texts: [list(text.strip()) for text in texts]
    return _summed(letters(hypotheses), letters(references), "character")


def _summed(hypotheses: list[list[str]], references: list[list[str]], what: str) -> ErrorRate:
    if len(hypotheses) != len(references):
        raise DataError(
            f"{plural(len(hypotheses), 'transcript')} but {plural(len(references), 'reference')}: "
            f"they must be one per line, in the same order"
        )
    length = sum(map(len, references))
    if not length:
        raise DataError(f"there is nothing to score: the references have no {what}")
    counts = np.zeros(3, np.int64)
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        counts += edit_counts(hypothesis, reference)
    substitutions, deletions, insertions = counts.tolist()
    return ErrorRate(substitutions, deletions, insertions, length)


def edit_counts(hypothesis: Sequence[str], reference: Sequence[str]) -> tuple[int, int, int]:
    """Returns substitutions, deletions and insertions of a shortest edit to the hypothesis.

    Their sum is the Levenshtein distance; among shortest edits, the one with the most substitutions
    counts. Wagner and Fischer 1974, row by row.

    Example:
        >>> edit_counts("sitting", "kitten"), edit_counts("", "ab"), edit_counts("ab", "")
        ((2, 0, 1), (0, 2, 0), (0, 0, 2))
    """
    names = {name: i for i, name in enumerate(dict.fromkeys([*hypothesis, *reference]))}
    columns = np.array([names[one] for one in hypothesis], np.int64)
    H, places = len(columns), np.arange(len(columns) + 1)
    # Distances of prefixes of the reference to all prefixes of the hypothesis, times ``many`` minus
    # the substitutions: one number orders by both.
    many = H + len(reference) + 1
    row = places * many
    for symbol in reference:
        changed = np.where(columns == names[symbol], 0, many - 1)
        without = np.concatenate([row[:1] + many, np.minimum(row[:-1] + changed, row[1:] + many)])
        # An insertion costs ``many`` per position, so it is a running minimum of the remainder.
        row = np.minimum.accumulate(without - places * many) + places * many
    total = int(row[-1])
    distance = -(-total // many)
    substitutions = distance * many - total
    # deletions + insertions, and their difference, are known.
    rest, more = distance - substitutions, len(reference) - H
    deletions = (rest + more) // 2
    return substitutions, deletions, rest - deletions
