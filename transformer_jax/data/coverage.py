"""The share of text that a tokenizer does not know, by characters."""

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from transformer_jax.data.tokenizer import Tokenizer

__all__ = ["Coverage", "text_coverage"]

_BATCH = 200  # texts encoded at a time
_LONGEST = 1 << 14  # characters of a text that are read
_MOST = 1 << 21  # characters of all texts
_SHOWN = 5  # examples
_WIDEST = 20  # characters of an example
_BLANK_MARKS = " ▁Ġ"


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The numbers of all and of unknown characters of texts.

    Attributes:
        characters: Number of characters, without white space.
        unknown: Number of them in unknown tokens, or without any token.
        examples: The first different texts that are unknown.
    """

    characters: int = 0
    unknown: int = 0
    examples: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The fraction of unknown characters.

        Example:
            >>> Coverage(4, 1).share, Coverage().share
            (0.25, 0.0)
        """
        return self.unknown / self.characters if self.characters else 0.0

    def __add__(self, other: "Coverage") -> "Coverage":
        """Joins the coverage of two texts."""
        examples = tuple(dict.fromkeys((*self.examples, *other.examples)))[:_SHOWN]
        return Coverage(self.characters + other.characters, self.unknown + other.unknown, examples)


def text_coverage(
    texts: Iterable[str], tokenizer: Tokenizer, *, without_unknown: bool = False
) -> Coverage:
    """Returns how much of texts a tokenizer knows.

    Tokens do not tell: an unknown token may stand for a character, a word or a line, and some
    tokenizers drop what they do not know. Of a list with more than 2 million characters, texts at
    equal distances are read; of other texts, the first. Of a text, the first
    16,384 characters are.

    Args:
        texts: The texts.
        tokenizer: The tokenizer of the texts.
        without_unknown: Whether the texts are known to have no unknown tokens, so that only
            dropped characters count.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["ab"], 6)
        >>> text_coverage(["ab \u03b2a", "\u03b2\u03b3"], tokenizer)
        Coverage(characters=6, unknown=3, examples=('\u03b2', '\u03b3'))
    """
    found, rest = Coverage(), _sampled(texts)
    drops = _Drops(tokenizer)
    has_spans = not (without_unknown or tokenizer.unk is None)
    while batch := list(itertools.islice(rest, _BATCH)):
        spans = _unknown_spans(batch, tokenizer) if has_spans else itertools.repeat([])
        drops.learn(batch)
        for text, places in zip(batch, spans, strict=False):
            parts = [text[start:end].strip() for start, end in places or drops.spans(text)]
            unknown = sum(map(_visible, parts))
            examples = tuple(dict.fromkeys(part[:_WIDEST] for part in parts if part))
            found += Coverage(_visible(text), unknown, examples)
    return found


def _sampled(texts: Iterable[str]) -> Iterator[str]:
    """Yields the beginnings of texts, with a limited number of characters."""
    if isinstance(texts, Sequence):
        size = sum(min(len(text), _LONGEST) for text in texts)
        texts = texts[:: 1 + size // _MOST]
    left = _MOST
    for text in texts:
        if left <= 0:
            return
        left -= min(len(text), _LONGEST)
        yield text[:_LONGEST]


def _visible(text: str) -> int:
    return len("".join(text.split()))


class _Drops:
    """The letters, digits and signs that a tokenizer drops, as far as texts have them."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._known = tokenizer, set[str]()
        self._dropped = set[str]()

    def learn(self, texts: Sequence[str]) -> None:
        """Finds out about the characters of texts."""
        new = set().union(*texts) - self._known
        self._known |= new
        # Control characters and marks may go by normalization, without a loss.
        signs = (one for one in new if unicodedata.category(one)[0] in "LNPS")
        names = lambda one: map(self._tokenizer.name, self._tokenizer.encode(one))
        self._dropped |= {
            one for one in signs if not any(name.strip(_BLANK_MARKS) for name in names(one))
        }

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the dropped parts of a text, with their combining marks."""
        if self._dropped.isdisjoint(text):
            return []
        found = list[tuple[int, int]]()
        for i, one in enumerate(text):
            begun = bool(found) and found[-1][1] == i
            if one in self._dropped or (begun and unicodedata.category(one)[0] == "M"):
                found[len(found) - begun :] = [(found[-1][0] if begun else i, i + 1)]
        return found


def _unknown_spans(texts: Sequence[str], tokenizer: Tokenizer) -> Iterator[list[tuple[int, int]]]:
    """Yields the parts of each text that unknown tokens stand for."""
    is_blank = functools.cache(lambda id: not tokenizer.name(id).strip(_BLANK_MARKS))
    for ids, spans in tokenizer.encode_spans(texts):
        found, end = list[tuple[int, int]](), 0
        for id, (_, stop) in zip(ids, spans, strict=True):
            if id == tokenizer.unk:
                # The span of a run of unknown characters may be the last of them.
                found.append((end, max(end, stop)))
            elif is_blank(id):
                continue  # the span of a blank may be the next character
            end = max(end, stop)
        yield found
