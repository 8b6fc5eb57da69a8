"""Words and their vectors: the nearest words, and analogies by 3CosAdd."""

import dataclasses
import difflib
import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from transformer_jax.core.errors import DataError
from transformer_jax.core.numerics import unit_rows
from transformer_jax.data.preparation import compose

__all__ = ["WordEmbeddings"]

_SUGGESTIONS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class WordEmbeddings:
    """A vector for each word, most frequent word first.

    Attributes:
        words: The words, without repetition.
        vectors: One row per word.

    Example:
        >>> table = np.array([[1, 0], [1, 1], [-1, 0], [-1, 1.2]], np.float32)
        >>> made = WordEmbeddings(("man", "king", "woman", "queen"), table)
        >>> made.analogy("king", "man", "woman", top=1)[0][0]
        'queen'
        >>> f"{made.similarity('man', 'woman'):.1f}"
        '-1.0'
    """

    words: tuple[str, ...]
    vectors: Float32[np.ndarray, "V D"]

    def __len__(self) -> int:
        return len(self.words)

    @property
    def size(self) -> int:
        """Size of a vector."""
        return int(self.vectors.shape[1])

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Maps each word to its row."""
        return {word: row for row, word in enumerate(self.words)}

    @functools.cached_property
    def unit(self) -> Float32[np.ndarray, "V D"]:
        """The vectors scaled to length 1; a zero vector stays zero."""
        return unit_rows(self.vectors)

    @functools.cached_property
    def _composed(self) -> dict[str, int]:
        """Maps each composed word to its first row."""
        rows: dict[str, int] = {}
        for row, word in enumerate(self.words):
            rows.setdefault(compose(word), row)
        return rows

    def find(self, word: str) -> int | None:
        r"""Returns the row of a word, or of the first canonically equal one; None if there is none.

        Example:
            >>> WordEmbeddings(("cafe\u0301",), np.ones((1, 2), np.float32)).find("caf\u00e9")
            0
        """
        row = self.index.get(word)
        return self._composed.get(compose(word)) if row is None else row

    def row(self, word: str) -> int:
        """Returns the row of a word, see :meth:`find`.

        Raises:
            DataError: It has no vector; the message suggests similar spellings.
        """
        if (row := self.find(word)) is not None:
            return row
        if self.find(word.lower()) is not None:
            near = [word.lower()]
        else:
            near = difflib.get_close_matches(word, self.words, _SUGGESTIONS, 0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "no word is spelled like it"
        raise DataError(f"no vector for {word!r} among {len(self):,} words: {hint}")

    def vector(self, word: str) -> Float32[np.ndarray, " D"]:
        """Returns the vector of a word.

        Raises:
            DataError: It has none.
        """
        found: np.ndarray = self.vectors[self.row(word)]
        return found

    def similarity(self, one: str, other: str) -> float:
        """Returns the cosine of two words, -1 to 1; 0 if one of their vectors is zero.

        Raises:
            DataError: A word has no vector.
        """
        return float(np.clip(self.unit[self.row(one)] @ self.unit[self.row(other)], -1, 1))

    def most_similar(
        self, positive: Sequence[str], negative: Sequence[str] = (), top: int = 10
    ) -> list[tuple[str, float]]:
        """Returns the words whose vectors have the highest cosine with a sum of unit vectors.

        Vectors of ``negative`` words are subtracted. The given words are left out.

        Args:
            positive: Words whose vectors are added.
            negative: Words whose vectors are subtracted.
            top: Number of words, at least 1.

        Raises:
            DataError: A word has no vector.
        """
        added, taken = [self.row(w) for w in positive], [self.row(w) for w in negative]
        query = self.unit[added].sum(0) - self.unit[taken].sum(0)
        length = float(np.linalg.norm(query))
        cosines = self.unit @ (query / length if length else query)
        cosines[added + taken] = -np.inf
        top = min(top, len(self) - len({*added, *taken}))
        # Ties are in the order of words, whatever the requested number.
        best = np.argsort(-cosines, kind="stable")[: max(top, 0)]
        return [(self.words[row], float(cosines[row])) for row in best]

    def analogy(self, a: str, b: str, c: str, top: int = 10) -> list[tuple[str, float]]:
        """Returns the words ``d`` with the highest ``cos(d, a − b + c)`` (3CosAdd).

        ``king − man + woman = queen``. The vectors of the three words have length 1; the words
        themselves are no answers.

        Source: Mikolov, Yih and Zweig 2013, https://aclanthology.org/N13-1090, the
        vector offset method; named 3CosAdd by Levy and Goldberg 2014,
        https://aclanthology.org/W14-1618.

        Raises:
            DataError: A word has no vector.
        """
        return self.most_similar([a, c], [b], top)
