"""``babel``: sentences in four artificial languages, generated from meanings by one grammar.

Every meaning has one sentence in each language, and every sentence one meaning, so the correct
translation of any sentence into any language is known. :mod:`.babel_languages` has the words.
"""

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal, get_args

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.corpora.babel_languages import (
    ADJECTIVES,
    BEINGS,
    INTRANSITIVE,
    LANGUAGES,
    RELATIONS,
    THINGS,
    TRANSITIVE,
    VALUES,
    Form,
    Language,
    stable_hash,
)
from transformer_jax.data.languages import Direction, listed
from transformer_jax.data.pairs import Pairs

__all__ = [
    "TESTS",
    "Meaning",
    "Phrase",
    "Split",
    "babel_pairs",
    "express",
    "meanings",
    "parallel_sentences",
    "parse",
    "split_of",
    "training_counts",
    "training_meanings",
    "translate",
]

Split = Literal["train", "valid", "test"]

_ASIDE = 0.1  # fraction of the meanings, for each of valid and test
_PATIENCE = 50_000  # draws without a new meaning before a split counts as exhausted


@dataclasses.dataclass(frozen=True)
class Phrase:
    """A noun with its number and adjective."""

    noun: str
    number: str
    adjective: str | None = None


@dataclasses.dataclass(frozen=True)
class Meaning:
    """A statement: everything that a sentence says, in any language."""

    verb: str
    tense: str
    polarity: str
    subject: Phrase
    object: Phrase | None = None
    relation: str | None = None
    place: Phrase | None = None


def express(meaning: Meaning, language: str) -> str:
    """Returns the sentence for a meaning.

    Example:
        >>> dogs = Phrase("dog", "plural", "red")
        >>> see = Meaning("see", "past", "affirmed", dogs, Phrase("tree", "singular"))
        >>> for language in LANGUAGES:
        ...     print(express(see, language))
        kumi pukis mititen niru
        zengolar bonvorar zorberem berbokud
        satwamistan femwolai holsomai folfelo
        michechu rixichele vijuqi vicheqi
    """
    grammar = LANGUAGES[language]
    subject = meaning.subject
    features = {"tense": meaning.tense, "polarity": meaning.polarity}
    parts = {
        "S": _phrase(grammar, subject, "nominative"),
        "V": (grammar.word("verb", meaning.verb, features | _features(grammar, subject)),),
        "X": (grammar.negation,) if grammar.negation and meaning.polarity == "negated" else (),
        "O": _phrase(grammar, meaning.object, "accusative"),
        "P": _place(grammar, meaning),
    }
    return " ".join(word for part in grammar.order for word in parts[part])


def _features(grammar: Language, phrase: Phrase) -> dict[str, str]:
    return {"number": phrase.number, "class": grammar.word_class(phrase.noun)}


def _phrase(grammar: Language, phrase: Phrase | None, case: str) -> tuple[str, ...]:
    """Returns the words of a noun and its adjective."""
    if phrase is None:
        return ()
    features = _features(grammar, phrase) | {"case": case}
    words = [grammar.word("noun", phrase.noun, features)]
    if phrase.adjective is not None:
        at = 0 if grammar.adjective_first else 1
        words.insert(at, grammar.word("adjective", phrase.adjective, features))
    return tuple(words)


def _place(grammar: Language, meaning: Meaning) -> tuple[str, ...]:
    if meaning.relation is None:
        return ()
    relation = (grammar.word("relation", meaning.relation, {}),)
    phrase = _phrase(grammar, meaning.place, "locative")
    return relation + phrase if grammar.preposition else phrase + relation


def parse(sentence: str, language: str) -> Meaning | None:
    """Returns the meaning of a sentence, or None if it is not in the language.

    Example:
        >>> parse(express(meanings("test", 1)[0], "d"), "d") == meanings("test", 1)[0]
        True
        >>> parse("puki puki puki", "a") is None
        True
    """
    known = _readings(language)
    words = sentence.split(" ")
    if any(word not in known for word in words):
        return None
    forms = [known[word] for word in words if known[word].kind != "negation"]
    match = _pattern(language).fullmatch("".join(form.kind[0] for form in forms))
    if match is None:
        return None
    parts = {part: forms[slice(*match.span(part))] for part in "SVOP"}
    [verb] = parts["V"]
    negated = len(forms) < len(words) or verb.features.get("polarity") == "negated"
    meaning = Meaning(
        verb.concept,
        verb.features["tense"],
        VALUES["polarity"][negated],
        _read_phrase(parts["S"]),
        _read_phrase(parts["O"]) if parts["O"] else None,
        _concept(parts["P"], "relation"),
        _read_phrase(parts["P"]) if parts["P"] else None,
    )
    return meaning if express(meaning, language) == sentence else None


@cache
def _readings(language: str) -> Mapping[str, Form]:
    return dict(LANGUAGES[language].forms())


@cache
def _pattern(language: str) -> re.Pattern[str]:
    """Returns a pattern for the order of sentence parts, with a letter per kind of word."""
    grammar = LANGUAGES[language]
    phrase = "a?n" if grammar.adjective_first else "na?"
    place = f"r{phrase}" if grammar.preposition else f"{phrase}r"
    parts = {"S": f"(?P<S>{phrase})", "O": f"(?P<O>{phrase})?", "P": f"(?P<P>{place})?"}
    return re.compile("".join((parts | {"V": "(?P<V>v)", "X": ""})[part] for part in grammar.order))


def _concept(forms: Sequence[Form], kind: str) -> str | None:
    return next((form.concept for form in forms if form.kind == kind), None)


def _read_phrase(forms: Sequence[Form]) -> Phrase:
    noun = next(form for form in forms if form.kind == "noun")
    return Phrase(noun.concept, noun.features["number"], _concept(forms, "adjective"))


def translate(sentence: str, source: str, target: str) -> str | None:
    """Returns the translation of a sentence, or None if it is not in the source language.

    Example:
        >>> translate("pukis naran", "a", "b")
        'zengolar dergerez'
    """
    meaning = parse(sentence, source)
    return None if meaning is None else express(meaning, target)


def split_of(meaning: Meaning) -> Split:
    """Returns the split of a meaning, for any seed: valid and test get a tenth each."""
    place = stable_hash(f"babel {express(meaning, 'a')}") / 2**48
    return "test" if place < _ASIDE else "valid" if place < 2 * _ASIDE else "train"


def meanings(split: Split, count: int, seed: int = 0) -> list[Meaning]:
    """Returns distinct meanings of a split, in an order that depends only on the seed.

    A smaller count is a prefix of a larger one. No meaning belongs to two splits, for any seeds.

    Raises:
        ConfigError: An unknown split, or a negative count.
        DataError: Random draws do not find this many.

    Example:
        >>> first, *rest = meanings("train", 3)
        >>> [first] == meanings("train", 1), first.verb, str(first.place)
        (True, 'sleep', "Phrase(noun='field', number='plural', adjective=None)")
    """
    if split not in get_args(Split) or count < 0:
        raise ConfigError(
            f"babel: no {plural(count, 'meaning')} of {split!r}; the splits are "
            f"{', '.join(get_args(Split))} and a count is 0 or more"
        )
    draw, distinct, idle = random.Random(f"babel {seed}"), dict[Meaning, None](), 0
    while len(distinct) < count:
        meaning, before = _draw(draw), len(distinct)
        if split_of(meaning) == split:
            distinct.setdefault(meaning)
        idle = 0 if len(distinct) > before else idle + 1
        if idle > _PATIENCE:
            raise DataError(
                f"babel: found {plural(before, 'meaning')} of {split!r}, not {count}: ask for fewer"
            )
    return list(distinct)


def training_meanings(
    sizes: Sequence[int], overlap: float = 0.0, seed: int = 0
) -> list[list[Meaning]]:
    """Returns the meanings of the training texts for several language pairs.

    Args:
        sizes: The number of meanings of each pair.
        overlap: Fraction of the smallest pair's meanings that all pairs share; no two pairs share
            any other meaning.
        seed: Random seed of the meanings.

    Raises:
        DataError: There are not enough meanings.

    Example:
        >>> first, second = training_meanings([100, 50], overlap=0.5)
        >>> len(first), len(second), len({*first} & {*second})
        (100, 50, 25)
    """
    shared = round(overlap * min(sizes))
    stream = meanings("train", shared + sum(size - shared for size in sizes), seed)
    common, at, texts = stream[:shared], shared, []
    for size in sizes:
        texts.append(common + stream[at : at + size - shared])
        at += size - shared
    return texts


def _draw(draw: random.Random) -> Meaning:
    def phrase(nouns: Sequence[str]) -> Phrase:
        adjective = draw.choice(ADJECTIVES) if draw.random() < 0.4 else None
        return Phrase(draw.choice(nouns), draw.choice(VALUES["number"]), adjective)

    polarity = VALUES["polarity"][draw.random() < 0.25]
    tense, subject = draw.choice(VALUES["tense"]), phrase(BEINGS)
    transitive = draw.random() < 0.7
    verb = draw.choice(TRANSITIVE if transitive else INTRANSITIVE)
    patient = phrase(BEINGS + THINGS) if transitive else None
    if draw.random() < 0.6:
        return Meaning(verb, tense, polarity, subject, patient)
    relation, place = draw.choice(RELATIONS), phrase(THINGS)
    return Meaning(verb, tense, polarity, subject, patient, relation, place)


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
    drawn = training_meanings([*sizes.values()], overlap, seed)
    shared = dict(zip(sizes, drawn, strict=True))
    train = {direction: shared[frozenset(direction)][:count] for direction, count in counts.items()}
    tests = {
        f"test {direction}": _pairs({direction: _test_meanings()}, f"babel test {direction}")
        for direction in counts
    }
    valid = meanings("valid", VALIDATION)
    return _pairs(train, "babel train"), _pairs(dict.fromkeys(counts, valid), "babel valid"), tests


def parallel_sentences() -> dict[str, list[str]]:
    """Returns the test sentences of each language, in the same order.

    Example:
        >>> {language: len(some) for language, some in parallel_sentences().items()}
        {'a': 200, 'b': 200, 'c': 200, 'd': 200}
    """
    tests = _test_meanings()
    return {code: [express(one, code) for one in tests] for code in LANGUAGES}


def _test_meanings() -> list[Meaning]:
    return meanings("test", TESTS)


def _pairs(said: Mapping[Direction, Sequence[Meaning]], name: str) -> Pairs:
    rows = [(way, one) for way, some in said.items() for one in some]
    return Pairs(
        [express(one, str(way.source)) for way, one in rows],
        [express(one, str(way.target)) for way, one in rows],
        name,
        directions=[way for way, _ in rows],
    )
