"""Sentence pairs of ``babel``: training, validation and test texts for given directions."""

from collections.abc import Mapping, Sequence

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.corpora import babel
from transformer_jax.data.corpora.babel_languages import LANGUAGES
from transformer_jax.data.languages import Direction, listed
from transformer_jax.data.pairs import Pairs

__all__ = ["TESTS", "babel_pairs", "parallel_sentences", "training_counts"]

VALIDATION, TESTS = 100, 200  # meanings per direction
_MOST = 1_000_000  # training pairs per direction


def training_counts(pairs: Mapping[Direction, str]) -> dict[Direction, int]:
    """Returns the number of training pairs of each direction.

    Raises:
        ConfigError: A language is not in ``babel``, or a number is invalid.

    Example:
        >>> training_counts({Direction("a", "b"): "5000"})
        {Direction(source='a', target='b'): 5000}
    """
    for direction, count in pairs.items():
        if not {*direction} <= LANGUAGES.keys():
            raise ConfigError(
                f"data.pairs {direction}: the languages of babel are {listed(LANGUAGES)}"
            )
        # Python refuses to read numbers of thousands of digits.
        if not count.isdecimal() or not 1 <= int(count[:20]) <= _MOST:
            raise ConfigError(
                f"data.pairs {direction}={count}: babel needs the number of pairs, 1 to {_MOST:,}, "
                f"such as {direction}=10000"
            )
    return {direction: int(count) for direction, count in pairs.items()}


def babel_pairs(
    counts: Mapping[Direction, int], overlap: float = 0.0, seed: int = 0
) -> tuple[Pairs, Pairs, dict[str, Pairs]]:
    """Returns the training, validation and test pairs of the directions.

    Both directions of a language pair use the same meanings; the smaller count is a prefix. All
    directions are validated and tested on the same meanings, none of which is trained on.

    Args:
        counts: Number of training pairs of each direction.
        overlap: Fraction of meanings that language pairs share, see :func:`.training_meanings`.
        seed: Random seed of the training meanings.

    Raises:
        DataError: There are not enough meanings.

    Example:
        >>> train, valid, tests = babel_pairs({Direction("a", "b"): 3, Direction("b", "a"): 2})
        >>> train.sources[0] == train.targets[3], len(train), list(tests)
        (True, 5, ['test a-b', 'test b-a'])
    """
    sizes: dict[frozenset[str | None], int] = {}
    for direction, count in counts.items():
        both = frozenset(direction)
        sizes[both] = max(count, sizes.get(both, 0))
    drawn = babel.training_meanings([*sizes.values()], overlap, seed)
    meanings = dict(zip(sizes, drawn, strict=True))
    train = {
        direction: meanings[frozenset(direction)][:count] for direction, count in counts.items()
    }
    tests = {
        f"test {direction}": _pairs({direction: _test_meanings()}, f"babel test {direction}")
        for direction in counts
    }
    valid = babel.meanings("valid", VALIDATION)
    return _pairs(train, "babel train"), _pairs(dict.fromkeys(counts, valid), "babel valid"), tests


def parallel_sentences() -> dict[str, list[str]]:
    """Returns the test sentences of each language, in the same order.

    Example:
        >>> {language: len(some) for language, some in parallel_sentences().items()}
        {'a': 200, 'b': 200, 'c': 200, 'd': 200}
    """
    meanings = _test_meanings()
    return {code: [babel.express(one, code) for one in meanings] for code in LANGUAGES}


def _test_meanings() -> list[babel.Meaning]:
    return babel.meanings("test", TESTS)


def _pairs(meanings: Mapping[Direction, Sequence[babel.Meaning]], name: str) -> Pairs:
    rows = [(way, one) for way, some in meanings.items() for one in some]
    return Pairs(
        [babel.express(one, str(way.source)) for way, one in rows],
        [babel.express(one, str(way.target)) for way, one in rows],
        name,
        directions=[way for way, _ in rows],
    )
