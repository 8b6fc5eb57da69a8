"""Language identification by character n-grams, trained on the texts of a run."""

import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import DataError, plural

__all__ = ["LanguageIdentifier", "off_target_rate", "train_identifier"]

_ORDERS = (2, 3)  # lengths of n-grams, in addition to single characters
_SMOOTHING = 0.1  # added to every count
_LEAST_TEXTS = 10  # minimum per language
_MOST_TEXTS = 20_000  # maximum per language: more hardly change the counts
_MOST_HELD = 1_000  # maximum of held-out texts per language, and at most a tenth


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageIdentifier:
    """A naive Bayes classifier on the character n-grams of a text, with equal priors.

    Lui and Baldwin 2012 use the same model on bytes.

    Attributes:
        languages: The names of the languages.
        rows: The row of each n-gram.
        log_probs: The log-probability of each n-gram in each language.
        accuracies: The accuracy on held-out texts of each language, 0 to 1; empty without held-out
            texts.
        held_out: The number of held-out texts.
    """

    languages: tuple[str, ...]
    rows: Mapping[str, int]
    log_probs: Float[np.ndarray, "grams languages"]
    accuracies: Mapping[str, float] = dataclasses.field(default_factory=dict)
    held_out: int = 0

    @classmethod
    def learn(cls, texts: Mapping[str, Sequence[str]]) -> "LanguageIdentifier":
        """Trains an identifier on all texts of each language, without held-out texts."""
        counts = {
            language: Counter(itertools.chain(*map(_grams, some)))
            for language, some in texts.items()
        }
        grams = dict.fromkeys(itertools.chain(*counts.values()))
        rows = {gram: row for row, gram in enumerate(grams)}
        table = np.full((len(rows), len(texts)), _SMOOTHING)
        for column, count in enumerate(counts.values()):
            table[[rows[gram] for gram in count], column] += [*count.values()]
        return cls(tuple(texts), rows, np.log(table) - np.log(table.sum(axis=0)))

    def __call__(self, texts: Sequence[str]) -> list[str | None]:
        """Returns the most probable language of each text.

        None for a text without any n-gram of the training texts.
        """
        return [self._identify(text) for text in texts]

    def _identify(self, text: str) -> str | None:
        rows = [self.rows[gram] for gram in _grams(text) if gram in self.rows]
        if not rows:
            return None
        return self.languages[int(np.argmax(self.log_probs[rows].sum(axis=0)))]


def train_identifier(texts: Mapping[str, Sequence[str]]) -> LanguageIdentifier:
    """Trains a language identifier, and measures its accuracy on held-out texts.

    A tenth of the texts is held out by a hash, independent of their order; equal texts count once.

    Args:
        texts: Texts by language, of which the first 20,000 different ones are used.

    Raises:
        DataError: There are fewer than two languages, or a language has fewer than ten different
            texts.

    Example:
        >>> de = [f"das ist nicht mein Haus {i}" for i in range(50)]
        >>> en = [f"this is not my house {i}" for i in range(50)]
        >>> identify = train_identifier({"de": de, "en": en})
        >>> identify(["ein Haus", "a house", "", "☃"]), identify.accuracies
        (['de', 'en', None, None], {'de': 1.0, 'en': 1.0})
    """
    if len(texts) < 2:
        raise DataError("a language identifier needs texts of two or more languages")
    kept: dict[str, list[str]] = {}
    held: dict[str, list[str]] = {}
    for language, some in texts.items():
        distinct = dict.fromkeys(text for text in some if text.strip())
        if len(distinct) < _LEAST_TEXTS:
            raise DataError(
                f"{language}: {plural(len(distinct), 'different text')} to identify the language: "
                f"{_LEAST_TEXTS} are needed"
            )
        order = sorted(itertools.islice(distinct, _MOST_TEXTS), key=_digest)
        size = min(len(order) // 10, _MOST_HELD)
        held[language], kept[language] = order[:size], order[size:]
    identify = LanguageIdentifier.learn(kept)
    accuracies = {
        language: identify(some).count(language) / len(some) for language, some in held.items()
    }
    count = sum(map(len, held.values()))
    return dataclasses.replace(identify, accuracies=accuracies, held_out=count)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def off_target_rate(identify: LanguageIdentifier, texts: Sequence[str], language: str) -> float:
    """Returns the fraction of texts identified as a language other than ``language``.

    Zhang et al. 2020 use it to evaluate zero-shot translation. A text without language, such as an
    empty one, is not counted.

    Raises:
        DataError: There are no texts, or the identifier does not know the language.
    """
    if language not in identify.languages:
        raise DataError(f"{language}: the language identifier was not trained on it")
    if not texts:
        raise DataError("there are no texts to identify")
    return sum(found not in (None, language) for found in identify(texts)) / len(texts)


def _grams(text: str) -> Iterator[str]:
    """Yields the n-grams of a text whose words are separated by single blanks.

    Example:
        >>> [*_grams("ab")]
        ['a', 'b', ' a', 'ab', 'b ', ' ab', 'ab ']
    """
    text = " ".join(text.split())
    yield from text.replace(" ", "")
    padded = f" {text} "
    for order in _ORDERS:
        yield from (padded[at : at + order] for at in range(len(padded) - order + 1))
