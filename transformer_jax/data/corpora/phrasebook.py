"""``phrasebook``: any number of Portuguese sentences with their English, from a grammar.

Each Portuguese sentence has one translation. Some words have two meanings (*banco* is a bank or a
bench, *manga* a mango or a sleeve), and only the rest of the sentence tells which.
"""

import hashlib
import random
from functools import cache
from typing import Literal, get_args

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.corpora.clauses import add_clauses
from transformer_jax.data.corpora.grammar import Grammar, Pair, Words
from transformer_jax.data.corpora.greetings import add_greetings
from transformer_jax.data.corpora.phrases import add_phrases, add_verbs
from transformer_jax.data.corpora.places import add_location_clauses, add_places
from transformer_jax.data.corpora.spelling import read_portuguese, write_english, write_portuguese

__all__ = [
    "L1_PAIRS",
    "Split",
    "combinations",
    "generate",
    "grammar",
    "is_held_out",
    "size",
    "split_of",
    "translate",
]

Split = Literal["train", "valid", "test", "test_unseen"]

# The four sentences of the lecture; the last two differ only in word order.
L1_PAIRS: tuple[tuple[str, str], ...] = (
    ("Olá, como vai você?", "Hello, how are you?"),
    ("O livro está em cima da mesa.", "The book is on the table."),
    ("Lucas irá viajar ao Rio em Dezembro.", "Lucas is travelling to Rio in December."),
    ("Em Dezembro, Lucas irá viajar ao Rio.", "Lucas is travelling to Rio in December."),
)
_L1_TARGETS = frozenset(english for _, english in L1_PAIRS)

_HELD_OUT = 0.05  # fraction of the combinations of two words
_ASIDE = 0.1  # fraction of the sentences, for each of valid and test
_PATIENCE = 50_000  # draws without a new sentence before a split counts as exhausted


@cache
def grammar() -> Grammar:
    """The complete grammar; a sentence is an ``<S>``.

    Example:
        >>> words = "o menino comeu uma manga madura .".split()
        >>> [" ".join(d.target) for d in grammar().parse("S", tuple(words))]
        ['the boy ate a ripe mango .']
    """
    g = Grammar()
    add_phrases(g)
    add_places(g)
    add_verbs(g)
    add_clauses(g)
    add_location_clauses(g)
    add_greetings(g)
    return g


@cache
def _known() -> set[str]:
    return grammar().words("S")[0]


def _fraction(text: str) -> float:
    """A number in [0, 1) that depends only on the text, on any machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


@cache
def is_held_out(pair: Pair) -> bool:
    """Returns whether two words never occur together in ``train``, ``valid`` and ``test``.

    Example:
        >>> is_held_out(("v:viajar", "n:Rio"))
        False
    """
    return _fraction("|".join(pair)) < _HELD_OUT


def _split(target: str, pairs: tuple[Pair, ...]) -> Split:
    if target in _L1_TARGETS:
        return "train"
    if any(map(is_held_out, pairs)):
        return "test_unseen"
    place = _fraction(target)
    return "test" if place < _ASIDE else "valid" if place < 2 * _ASIDE else "train"


def generate(split: Split, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Generates ``count`` distinct pairs of a split, in an order that depends only on ``seed``.

    A sentence belongs to one split, for any seed, by a hash of its English, so splits share no
    translations either. A sentence with a held-out combination (verb and object, noun and
    adjective) belongs to ``test_unseen``, any other to one of the remaining splits. A smaller count
    is a prefix of a larger; ``train`` begins with `L1_PAIRS`.

    Args:
        split: Name of the split.
        count: Number of pairs.
        seed: Random seed of the pairs.

    Raises:
        ConfigError: An unknown split, or a negative count.
        DataError: Random draws do not find this many pairs.

    Example:
        >>> generate("train", 3)[2]
        ('Lucas irá viajar ao Rio em Dezembro.', 'Lucas is travelling to Rio in December.')
    """
    if split not in get_args(Split) or count < 0:
        raise ConfigError(
            f"phrasebook: no {plural(count, 'pair')} of {split!r}; "
            f"the splits are {', '.join(get_args(Split))} and a count is 0 or more"
        )
    g, draw = grammar(), random.Random(f"phrasebook {seed}")
    found = dict(L1_PAIRS) if split == "train" else {}
    idle = 0
    while len(found) < count:
        derivation = g.sample("S", draw)
        target = write_english(derivation.target)
        before = len(found)
        if _split(target, derivation.pairs) == split:
            found.setdefault(write_portuguese(derivation.source), target)
        idle = 0 if len(found) > before else idle + 1
        if idle > _PATIENCE:
            raise DataError(
                f"phrasebook: found {plural(len(found), 'pair')} of {split!r}, not {count}; ask "
                f"for fewer"
            )
    return list(found.items())[:count]


def _parse(source: str) -> tuple[Words, tuple[Pair, ...]] | None:
    found = grammar().parse("S", read_portuguese(source, _known()))
    if not found or write_portuguese(found[0].source) != source:
        return None
    return found[0].target, found[0].pairs


def translate(source: str) -> str | None:
    """Translates a Portuguese sentence; None if the grammar does not generate it.

    Example:
        >>> translate("O gato dormiu no banco."), translate("Ela sentou no banco.")
        (None, 'She sat on the bench.')
        >>> translate("Ela trabalha no banco.")
        'She works at the bank.'
    """
    parsed = _parse(source)
    return write_english(parsed[0]) if parsed else None


def combinations(source: str) -> frozenset[Pair]:
    """The pairs of words that a sentence combines, such as verb and object, noun and adjective.

    Only pairs that may be held out: the meaning of an ambiguous word never has to be guessed.

    Raises:
        DataError: The grammar does not generate this sentence.

    Example:
        >>> sorted(combinations("Ela comprou um carro novo."))
        [('n:carro', 'a:novo'), ('v:comprar', 'n:carro')]
    """
    parsed = _parse(source)
    if parsed is None:
        raise DataError(f"phrasebook: {source!r} is not a sentence of its language")
    return frozenset(parsed[1])


def split_of(source: str) -> Split | None:
    """Returns the split of a sentence, or None if the grammar does not generate it.

    Example:
        >>> split_of("Em Dezembro, Lucas irá viajar ao Rio.")
        'train'
    """
    parsed = _parse(source)
    return _split(write_english(parsed[0]), parsed[1]) if parsed else None


def size() -> int:
    """Counts all pairs; exact, as no sentence has two derivations."""
    return grammar().count("S")
