"""Analogy and word-similarity files, and the scores of word vectors on them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import DataError, plural
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.preparation import Preparation, compose
from transformer_jax.data.text import read_lines
from transformer_jax.data.words import blank_words
from transformer_jax.evaluation.correlation import pearson, spearman
from transformer_jax.word_vectors.embeddings import WordEmbeddings

__all__ = [
    "AnalogySection",
    "Similarities",
    "answer_analogies",
    "correlate_similarities",
    "read_analogies",
    "read_similarities",
]

_BLOCK = 256  # questions at a time
_PREPARE = Preparation()
Question = tuple[str, str, str, str]


@dataclasses.dataclass(frozen=True)
class AnalogySection:
    """The answers to the questions of a section.

    Attributes:
        name: Name of the section.
        correct: Number of correctly answered questions.
        answered: Number of questions whose four words have vectors.
        questions: Number of all questions.
    """

    name: str
    correct: int
    answered: int
    questions: int

    @property
    def accuracy(self) -> float:
        """Returns the accuracy on questions whose words have vectors; NaN without any."""
        return self.correct / self.answered if self.answered else float("nan")


@dataclasses.dataclass(frozen=True)
class Similarities:
    """The correlation of cosines with human similarity ratings.

    Attributes:
        spearman: Correlation of ranks; NaN if fewer than two pairs have vectors.
        pearson: Linear correlation.
        answered: Number of pairs whose words both have vectors.
        pairs: Number of all pairs.
    """

    spearman: float
    pearson: float
    answered: int
    pairs: int


def read_analogies(path: Path) -> dict[str, list[Question]]:
    """Reads the questions of each section of a file such as Google's ``questions-words.txt``.

    A line ``: name`` begins a section; any other line has four words, ``a b c d`` with
    ``a : b = c : d``.

    Raises:
        DataError: It cannot be read, or lines are neither; up to twenty are listed.
    """
    sections: dict[str, list[Question]] = {}
    name = ""
    bad = BadRows(str(path), what="question")
    for number, line in enumerate(read_lines(path), 1):
        words = list(map(_PREPARE.line, blank_words(line)))
        if not words:
            continue
        if words[0].startswith(":"):
            name = line.strip().removeprefix(":").strip()
            continue
        with bad:
            if len(words) != 4:
                raise DataError(
                    f"{path}:{number}: {plural(len(words), 'word')}: a question is four words, and "
                    f'a section begins with ": name"'
                )
            a, b, c, d = words
            sections.setdefault(name or "questions", []).append((a, b, c, d))
    bad.check(sum(map(len, sections.values())))
    if not sections:
        raise DataError(f"{path}: no questions: a question is a line of four words")
    return sections


def read_similarities(path: Path) -> list[tuple[str, str, float]]:
    """Reads pairs of words with a number: the first three columns, by tabs, commas or blanks.

    Empty lines and lines that begin with ``#`` are skipped, and a first line without a number is a
    header.

    Raises:
        DataError: It cannot be read, or lines are not pairs; up to twenty are listed.
    """
    pairs: list[tuple[str, str, float]] = []
    bad = BadRows(str(path), what="pair")
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip() or line.startswith("#"):
            continue
        mark = next((mark for mark in "\t," if mark in line), None)
        fields = list(map(str.strip, line.split(mark))) if mark else blank_words(line)
        with bad:
            try:
                one, other, value = *map(_PREPARE.line, fields[:2]), float(fields[2])
            except (IndexError, ValueError):
                if number == 1 and len(fields) >= 3:
                    continue
                raise DataError(
                    f"{path}:{number}: a pair is two words and a number, separated by tabs, commas "
                    f"or blanks"
                ) from None
            if not (one and other):
                raise DataError(f"{path}:{number}: a word is empty: a pair is two words")
            if not np.isfinite(value):
                raise DataError(f"{path}:{number}: {value} is not a similarity")
            pairs.append((one, other, value))
    bad.check(len(pairs))
    if not pairs:
        raise DataError(f"{path}: no pairs: a pair is a line of two words and a number")
    return pairs


def answer_analogies(
    embeddings: WordEmbeddings, sections: dict[str, list[Question]], *, limit: int = 300_000
) -> list[AnalogySection]:
    """Returns the accuracy of 3CosAdd in each section; Mikolov et al. 2013.

    Case is ignored, as in ``word2vec.c`` and gensim: of words that differ only in case, the vector
    of the first is used. The answer is the word with the highest cosine other than the three given;
    questions with a word without a vector count neither as answered nor as wrong.

    Args:
        embeddings: Word vectors.
        sections: Questions by section.
        limit: Number of words that take part: the most frequent ones.
    """
    # Of words that differ only in case, only the first is a possible answer, as in gensim.
    folded: dict[str, int] = {}
    for row, word in enumerate(embeddings.words[:limit]):
        folded.setdefault(compose(word.casefold()), row)
    unit = embeddings.unit[list(folded.values())]
    places = {word: place for place, word in enumerate(folded)}
    found = []
    for name, questions in sections.items():
        rows = [
            [places.get(compose(word.casefold()), -1) for word in question]
            for question in questions
        ]
        known = np.array([row for row in rows if min(row) >= 0], np.int64).reshape(-1, 4)
        correct = sum(
            _correct(unit, known[start : start + _BLOCK]) for start in range(0, len(known), _BLOCK)
        )
        found.append(AnalogySection(name, correct, len(known), len(questions)))
    return found


def _place(embeddings: WordEmbeddings, word: str) -> int:
    """Returns the row of a word, or of the word in lower case; -1 if there is none."""
    for spelling in (word, word.lower()):
        if (row := embeddings.find(spelling)) is not None:
            return row
    return -1


def correlate_similarities(
    embeddings: WordEmbeddings, pairs: Sequence[tuple[str, str, float]]
) -> Similarities:
    """Returns the correlation of cosines with human similarity ratings.

    A word without a vector is looked up in lower case. Pairs with a word without a vector are left
    out.
    """
    rows = [(*(_place(embeddings, word) for word in words), value) for *words, value in pairs]
    known = [row for row in rows if min(row[:2]) >= 0]
    if len(known) < 2:
        return Similarities(float("nan"), float("nan"), len(known), len(pairs))
    first, second = (embeddings.unit[[int(row[side]) for row in known]] for side in (0, 1))
    cosines = np.einsum("nd,nd->n", first, second)
    values = np.array([row[2] for row in known])
    return Similarities(spearman(cosines, values), pearson(cosines, values), len(known), len(pairs))


def _correct(unit: np.ndarray, rows: Int[np.ndarray, "n 4"]) -> int:
    """Counts the correctly answered questions."""
    a, b, c, d = rows.T
    scores = (unit[b] - unit[a] + unit[c]) @ unit.T
    np.put_along_axis(scores, rows[:, :3], -np.inf, axis=1)
    return int((scores.argmax(1) == d).sum())
