"""The four languages of ``babel``: words, word orders and agreement.

A language has one stem per concept. Prefixes and suffixes mark number, case, class, tense and
polarity, according to the slots of the language. No two forms of a language are spelled alike, so
each word has one reading.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Literal, NamedTuple

__all__ = [
    "ADJECTIVES",
    "BEINGS",
    "CONCEPTS",
    "INTRANSITIVE",
    "LANGUAGES",
    "RELATIONS",
    "THINGS",
    "TRANSITIVE",
    "VALUES",
    "Features",
    "Form",
    "Kind",
    "Language",
    "stable_hash",
]

Kind = Literal["noun", "adjective", "verb", "relation", "negation"]
Features = Mapping[str, str]  # such as number: plural

VALUES = {
    "number": ("singular", "plural"),
    "case": ("nominative", "accusative", "locative"),
    "tense": ("past", "present", "future"),
    "polarity": ("affirmed", "negated"),
}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


BEINGS = _words(
    "dog cat horse bird fish wolf bear mouse king queen child woman man farmer teacher doctor "
    "singer sailor baker soldier"
)
THINGS = _words(
    "house tree river mountain table book apple stone boat bridge garden door letter chair field "
    "road tower bed knife lamp"
)
TRANSITIVE = _words("see love find follow hear carry want paint hide wash call help")
INTRANSITIVE = _words("sleep sing run wait fall laugh dance swim")
ADJECTIVES = _words(
    "red blue green black white big small old young happy sad good bad quick slow strong"
)
RELATIONS = _words("in on under behind near before")

CONCEPTS: dict[Kind, tuple[str, ...]] = {
    "noun": BEINGS + THINGS,
    "adjective": ADJECTIVES,
    "verb": TRANSITIVE + INTRANSITIVE,
    "relation": RELATIONS,
}


class Form(NamedTuple):
    """The reading of a word."""

    kind: Kind
    concept: str
    features: Features


@dataclasses.dataclass(frozen=True)
class Slot:
    """A position before or after a stem, with its affixes by feature values.

    Attributes:
        features: Names of the features, separated by blanks.
        affixes: Affix by the values of these features, separated by blanks.
    """

    features: str
    affixes: Mapping[str, str]

    def affix(self, features: Features) -> str:
        """Returns the affix for these features."""
        return self.affixes[" ".join(features[name] for name in self.features.split())]


_Slots = tuple[Slot, ...]
_NO_SLOTS: tuple[_Slots, _Slots] = ((), ())


@dataclasses.dataclass(frozen=True, eq=False)
class Language:
    """A language: sounds of stems, word orders, and slots of words.

    Attributes:
        code: Name in settings and tags.
        syllable: Onsets, vowels and codas, separated by blanks; - is none.
        order: Order of sentence parts: subject S, verb V, object O, place P, negation X.
        adjective_first: Whether adjectives precede their noun.
        preposition: Whether relations precede their noun.
        classes: Number of noun classes.
        noun: Prefix slots and suffix slots of nouns.
        adjective: Slots of adjectives, which agree with their noun.
        verb: Slots of verbs, which agree with their subject.
        negation: The word of negation, part X; empty if the verb marks it.
    """

    code: str
    syllable: tuple[str, str, str]
    order: str
    adjective_first: bool
    preposition: bool
    classes: int
    noun: tuple[_Slots, _Slots]
    adjective: tuple[_Slots, _Slots]
    verb: tuple[_Slots, _Slots]
    negation: str

    def word_class(self, noun: str) -> str:
        """Returns the class of a noun, an arbitrary property of the word.

        Example:
            >>> [language.word_class("dog") for language in LANGUAGES.values()]
            ['1', '1', '2', '2']
        """
        return str(1 + stable_hash(f"{self.code} class {noun}") % self.classes)

    def word(self, kind: Kind, concept: str, features: Features) -> str:
        """Returns the form of a concept with these features; irrelevant features are ignored.

        Example:
            >>> LANGUAGES["a"].word("noun", "dog", {"number": "plural"})
            'pukis'
        """
        prefixes, suffixes = self._slots(kind)
        before = "".join(slot.affix(features) for slot in prefixes)
        behind = "".join(slot.affix(features) for slot in suffixes)
        return before + _stems(self)[kind, concept] + behind

    def _slots(self, kind: Kind) -> tuple[_Slots, _Slots]:
        slots = {"noun": self.noun, "adjective": self.adjective, "verb": self.verb}
        return slots.get(kind, _NO_SLOTS)

    def forms(self) -> Iterator[tuple[str, Form]]:
        """Yields every word of the language, with its reading.

        Example:
            >>> [len({word for word, _ in language.forms()}) for language in LANGUAGES.values()]
            [223, 462, 391, 543]
        """
        values = VALUES | {"class": tuple(map(str, range(1, self.classes + 1)))}
        for kind, concepts in CONCEPTS.items():
            slots = itertools.chain(*self._slots(kind))
            names = sorted({name for slot in slots for name in slot.features.split()})
            for concept in concepts:
                for chosen in itertools.product(*(values[name] for name in names)):
                    features = dict(zip(names, chosen, strict=True))
                    own = self.word_class(concept) if kind == "noun" else None
                    if own is None or features.get("class", own) == own:
                        yield self.word(kind, concept, features), Form(kind, concept, features)
        if self.negation:
            yield self.negation, Form("negation", "not", {})


def stable_hash(text: str) -> int:
    """Returns a number below 2**48 that depends only on the text, on any machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


@cache
def _stems(language: Language) -> dict[tuple[Kind, str], str]:
    """Returns a two-syllable stem for each concept."""
    parts = [[sound.strip("-") for sound in sounds.split()] for sounds in language.syllable]
    syllables = ["".join(sounds) for sounds in itertools.product(*parts)]
    stems = sorted(
        (first + second for first, second in itertools.product(syllables, repeat=2)),
        key=lambda stem: stable_hash(f"{language.code} stem {stem}"),
    )
    concepts = [(kind, concept) for kind, names in CONCEPTS.items() for concept in names]
    return dict(zip(concepts, dict.fromkeys(stems), strict=False))


def _agreement(*affixes: str) -> Slot:
    """Returns a slot for class and number: singular and plural of each class in turn."""
    keys = [f"{1 + i // 2} {VALUES['number'][i % 2]}" for i in range(len(affixes))]
    return Slot("class number", dict(zip(keys, affixes, strict=True)))


def _slot(feature: str, *affixes: str) -> Slot:
    return Slot(feature, dict(zip(VALUES[feature], affixes, strict=True)))


_B_CASES = (_slot("number", "", "ar"), _slot("case", "", "em", "ul"))
_C_ENDINGS = _agreement("o", "oi", "a", "ai")
_D_PREFIXES = _agreement("mi", "wa", "ki", "vi", "tu", "zi")
_D_SUBJECTS = _agreement("a", "ba", "li", "ri", "ku", "zu")

LANGUAGES = {
    language.code: language
    for language in (
        # Only word order marks the object; verbs agree in number.
        Language(
            "a",
            ("p t k m n l r", "a i u", "-"),
            order="SXVOP",
            adjective_first=True,
            preposition=True,
            classes=1,
            noun=((), (_slot("number", "", "s"),)),
            adjective=_NO_SLOTS,
            verb=((), (_slot("tense", "te", "", "so"), _slot("number", "", "n"))),
            negation="ne",
        ),
        # Cases on nouns and their adjectives; the verb marks negation.
        Language(
            "b",
            ("b d g v z", "e o", "n r l k"),
            order="SPOV",
            adjective_first=False,
            preposition=False,
            classes=1,
            noun=((), _B_CASES),
            adjective=((), _B_CASES),
            verb=((), (_slot("tense", "ud", "ez", "ib"), _slot("polarity", "", "ga"))),
            negation="",
        ),
        # Two genders; adjectives and verbs agree with them.
        Language(
            "c",
            ("f s h w y", "a e o", "l m t"),
            order="XVSOP",
            adjective_first=False,
            preposition=True,
            classes=2,
            noun=((), (_C_ENDINGS,)),
            adjective=((), (_C_ENDINGS,)),
            verb=((), (_slot("tense", "is", "u", "er"), _agreement("", "n", "ta", "tan"))),
            negation="yo",
        ),
        # Three classes, marked by prefixes of nouns, adjectives and verbs.
        Language(
            "d",
            ("ch j g x q", "i u e", "-"),
            order="POVSX",
            adjective_first=True,
            preposition=False,
            classes=3,
            noun=((_D_PREFIXES,), ()),
            adjective=((_D_PREFIXES,), ()),
            verb=(
                (_agreement("a", "ba", "li", "ri", "ku", "zu"),),
                (_slot("tense", "le", "", "ta"),),
            ),
            negation="si",
        ),
    )
}
