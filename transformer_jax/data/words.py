r"""Words and sentence ends of every script: the only place that says where a text is cut.

A combining mark belongs to its letter: Python's ``\w`` matches no vowel sign of an Indic script,
so it would cut a word of Hindi at each of them.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator

__all__ = [
    "blank_words",
    "end_places",
    "find_word",
    "letter_words",
    "mark_groups",
    "marked_letters",
    "spellings",
    "word_spans",
]

_NO_BREAK = "\u00a0\u2007\u202f"  # blanks at which no line may be broken: they join a word
_NO_WIDTH = "\u200b\u2060\ufeff"  # blanks that do not show: no part of a word at its ends
_JOINERS = "\u200c\u200d"  # zero-width, within words of Persian, Hindi and other languages
_PLANES = (range(0x300, 0x20000), range(0xE0100, 0xE01F0))  # those that have combining marks

# Marks that end sentences (Unicode Standard Annex 29, Sentence_Terminal) and nothing else, so no
# blank need follow: of Armenian, Arabic and Urdu, Syriac, N'Ko, Indic scripts, Burmese, Ethiopic,
# Khmer, Mongolian, Balinese, Ol Chiki, Chinese and Japanese, Javanese, Meetei.
_ENDS = (
    "\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0964\u0965\u104b\u1362\u1367\u1368\u17d4\u17d5"
    "\u1803\u1809\u1944\u1945\u1b5a\u1b5b\u1b5e\u1b5f\u1c7e\u1c7f\u3002\ua8ce\ua8cf\ua9c8\ua9c9"
    "\uabeb\uff01\uff1f\uff61"
)
_QUOTES = "\"'”’)\\]"
_END = re.compile(
    rf"(?<![.!?…])[.!?…]+[{_QUOTES}]*\s+"
    rf"|[{_ENDS}][.!?…{_ENDS}]*[{_QUOTES}»」』）]*\s*"
    r"|(?<=[\u0370-\u03ff\u1f00-\u1fff])[;\u037e]+[»”’)]*\s+"  # the Greek question mark
    r"|\n+"
)


@functools.cache
def _marks() -> str:
    """Returns the combining marks and joiners as ranges of a regular expression."""
    marks = [i for plane in _PLANES for i in plane if unicodedata.category(chr(i))[0] == "M"]
    starts = [i for i, before in zip(marks, [0, *marks], strict=False) if before != i - 1]
    stops = [i for i, after in zip(marks, [*marks[1:], 0], strict=True) if after != i + 1]
    ranges = zip(map(chr, starts), map(chr, stops), strict=True)
    return _JOINERS + "".join(f"{start}-{stop}" for start, stop in ranges)


_ASCII_WORD = re.compile(r"\w+(?:'\w+)*")  # the same words, twice as fast


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns the patterns of words with inner apostrophes, and of words and other characters."""
    word = rf"\w[\w{_marks()}]*"
    return re.compile(f"{word}(?:['’]{word})*"), re.compile(rf"{word}|[^\w\s][{_marks()}]*")


def spellings(text: str) -> tuple[str, ...]:
    r"""Returns a text as it is, composed and decomposed: canonically equal texts, once each.

    Example:
        >>> spellings("plain"), spellings("\u00e9") == ("\u00e9", "e\u0301")
        (('plain',), True)
    """
    forms = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    return tuple(dict.fromkeys((text, *forms)))


def blank_words(text: str) -> list[str]:
    r"""Returns the words between blanks of any kind, except blanks that forbid a line break.

    Example:
        >>> blank_words("see\u3000page\t10\u00a0000 .")
        ['see', 'page', '10\xa0000', '.']
    """
    if not any(blank in text for blank in _NO_BREAK + _NO_WIDTH):
        return text.split()
    words = re.findall(rf"(?:\S|[{_NO_BREAK}])+", text)
    return [word for word in (word.strip(_NO_BREAK + _NO_WIDTH) for word in words) if word]


def letter_words(text: str) -> list[str]:
    """Returns the runs of letters, digits and ``_``, with their marks and inner apostrophes.

    Example:
        >>> letter_words("A dog's ball, red. हिन्दी में")
        ['A', "dog's", 'ball', 'red', 'हिन्दी', 'में']
    """
    pattern = _ASCII_WORD if text.isascii() else _patterns()[0]
    return pattern.findall(text)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Returns the spans of words, and of other characters one by one, without blanks.

    Example:
        >>> text = "है, don't"
        >>> [text[start:stop] for start, stop in word_spans(text)]
        ['है', ',', 'don', "'", 't']
    """
    return [match.span() for match in _patterns()[1].finditer(text)]


def find_word(text: str, word: str) -> list[tuple[int, int]]:
    """Returns the spans of a word in a text, in any spelling, where it is not part of another.

    Example:
        >>> find_word("कि किताब, कि", "कि"), find_word("a cat", "")
        ([(0, 2), (10, 12)], [])
    """
    if not word:
        return []
    letter = rf"[\w{_marks()}]"
    words = "|".join(map(re.escape, spellings(word)))
    pattern = rf"(?<!{letter})(?:{words})(?!{letter})"
    return [match.span() for match in re.finditer(pattern, text)]


def marked_letters(letters: str) -> re.Pattern[str]:
    """Returns a pattern of one letter with its marks.

    Args:
        letters: The letters, as ranges of a regular expression.

    Example:
        >>> marked_letters("\u0e01-\u0e2e").findall("ที่นี่")
        ['ที่', 'นี่']
    """
    return re.compile(rf"[{letters}][{_marks()}]*")


def mark_groups(text: str) -> Iterator[tuple[int, str]]:
    r"""Yields each character with its marks, and the place of the character.

    Characters of different groups never compose: Hangul vowels and finals count as marks.

    Example:
        >>> [(at, len(group)) for at, group in mark_groups("cafe\u0301s")]
        [(0, 1), (1, 1), (2, 1), (3, 2), (5, 1)]
    """
    pattern = rf"(?s:.)[{_marks()}\u1160-\u11ff]*"
    return ((match.start(), match[0]) for match in re.finditer(pattern, text))


def end_places(text: str) -> Iterator[int]:
    r"""Yields the places at which sentences of any script end, with the blanks after them.

    These are line ends; full stops, question and exclamation marks before a blank; and the marks
    that end sentences in their script wherever they stand, such as ``।`` in Hindi, ``۔`` in Urdu,
    ``؟`` in Arabic, ``։`` in Armenian, ``።`` in Amharic and ``。`` in Chinese. Thai and Lao have no
    such mark.

    Example:
        >>> [*end_places("It rains. 3.5 mm?\n"), *end_places("वह गया।मैं भी।")]
        [10, 18, 7, 14]
    """
    return (match.end() for match in _END.finditer(text))
