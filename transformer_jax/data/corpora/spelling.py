"""Words to written sentences and back: contractions, *a* and *an*, capitals, punctuation."""

import re
from collections.abc import Sequence

__all__ = ["contract", "expand", "read_portuguese", "write_english", "write_portuguese"]

_WORDS = re.compile(r"[\w'-]+|[.,?!]")


def _contractions() -> dict[str, tuple[str, str]]:
    """Contractions and the two words that each consists of: ``{"no": ("em", "o"), ...}``."""
    articles = ("o", "a", "os", "as")
    table = {
        fused + article: (preposition, article)
        for preposition, fused in (("em", "n"), ("de", "d"))
        for article in articles
    }
    table |= {"ao": ("a", "o"), "à": ("a", "a"), "aos": ("a", "os"), "às": ("a", "as")}
    pointing = [stem + e for stem in ("est", "aquel") for e in ("e", "a", "es", "as")]
    table |= {"n" + word: ("em", word) for word in pointing}
    table |= {"d" + word: ("de", word) for word in pointing}
    table |= {"à" + word[1:]: ("a", word) for word in pointing if word[0] == "a"}
    return table | {"d" + word: ("de", word) for word in ("ele", "ela", "eles", "elas")}


_EXPANDED = _contractions()
_CONTRACTED = {pair: word for word, pair in _EXPANDED.items()}
_SOUNDS_LIKE_A_CONSONANT = ("uni", "use", "eu", "one")


def contract(words: Sequence[str]) -> list[str]:
    """Contracts prepositions with the next word, as in written Portuguese.

    Example:
        >>> contract(["viajar", "a", "o", "Rio", "em", "este", "ano"])
        ['viajar', 'ao', 'Rio', 'neste', 'ano']
    """
    done: list[str] = []
    for word in words:
        fused = _CONTRACTED.get((done[-1], word)) if done else None
        if fused:
            done[-1] = fused
        else:
            done.append(word)
    return done


def expand(words: Sequence[str]) -> list[str]:
    """The inverse of `contract`.

    Example:
        >>> expand(["à", "noite"])
        ['a', 'a', 'noite']
    """
    return [part for word in words for part in _EXPANDED.get(word, (word,))]


def _sentence(words: Sequence[str]) -> str:
    text = " ".join(words)
    for point in ".,?!":
        text = text.replace(f" {point}", point)
    return text[0].upper() + text[1:]


def write_portuguese(words: Sequence[str]) -> str:
    """Writes a sentence from its words.

    Example:
        >>> write_portuguese("em Dezembro , ela irá viajar a o Rio .".split())
        'Em Dezembro, ela irá viajar ao Rio.'
    """
    return _sentence(contract(words))


def read_portuguese(text: str, known: set[str]) -> tuple[str, ...]:
    """The inverse of `write_portuguese`; ``known`` distinguishes names from initial capitals."""
    words = _WORDS.findall(text)
    if words and (words[0].lower() in _EXPANDED or words[0].lower() in known):
        words[0] = words[0].lower()
    return tuple(expand(words))


def write_english(words: Sequence[str]) -> str:
    """Writes a sentence from its words, with *an* before a vowel.

    Example:
        >>> write_english("she bought a orange in a university .".split())
        'She bought an orange in a university.'
    """
    done = list(words)
    for i, word in enumerate(done[:-1]):
        following = done[i + 1]
        if word == "a" and following[0] in "aeiou":
            done[i] = "a" if following.startswith(_SOUNDS_LIKE_A_CONSONANT) else "an"
    return _sentence(done)
