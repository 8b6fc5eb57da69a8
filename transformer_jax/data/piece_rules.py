"""Regular expressions in the files of tokenizers that are made from SentencePiece models."""

import re
from collections.abc import Iterable, Sequence

__all__ = ["UNKNOWN_TEXT", "name_guard", "others_pattern", "with_letters"]

# Stands for a run of characters without pieces: a noncharacter, which no text contains.
UNKNOWN_TEXT = "\ufffe"
_END = "]{2,}"


def others_pattern(letters: Iterable[str]) -> str:
    r"""Returns a pattern for two or more other characters.

    Example:
        >>> others_pattern("abd")
        '[^\\x{61}-\\x{62}\\x{64}-\\x{64}]{2,}'
    """
    ranges: list[list[int]] = []
    for code in sorted(map(ord, set(letters))):
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return f"[^{_spelled(ranges)}{_END}"


def with_letters(pattern: str, letters: Iterable[str]) -> str:
    r"""Returns a pattern of :func:`others_pattern` for fewer characters.

    Example:
        >>> with_letters(others_pattern("a"), "b")
        '[^\\x{61}-\\x{61}\\x{62}-\\x{62}]{2,}'
    """
    codes = map(ord, letters)
    return pattern.removesuffix(_END) + _spelled([code, code] for code in codes) + _END


def _spelled(ranges: Iterable[list[int]]) -> str:
    return "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in ranges)


def name_guard(names: Sequence[str]) -> str:
    """Returns a pattern for the first character of each name, followed by the rest of the name.

    Text is split there, so that the model never sees a complete name.

    Example:
        >>> name_guard(["<s>", "</s>"])
        '<(?=s>|/s>)'
    """
    rests: dict[str, list[str]] = {}
    for name in names:
        if len(name) > 1:
            rests.setdefault(name[0], []).append(re.escape(name[1:]))
    return "|".join(f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
