"""Figures of a tokenizer on texts: the share that it does not know, their sizes, and its losses."""

import dataclasses
import functools
import itertools
import unicodedata
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Integer

from transformer_jax.core.errors import plural
from transformer_jax.data.preparation import compose
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.words import blank_words

__all__ = [
    "Compression",
    "Coverage",
    "compression",
    "text_coverage",
    "unknown_note",
    "unknown_texts",
]

_BATCH = 200  # texts encoded at a time
_LONGEST = 1 << 14  # characters of a text that are read
_MOST = 1 << 21  # characters of all texts
_SHOWN = 5  # examples
_WIDEST = 20  # characters of an example
_BLANK_MARKS = " ▁Ġ"


@runtime_checkable
class _Encoder(Protocol):
    """A tokenizer, as far as unknown texts need it."""

    unk: int | None

    def __hash__(self) -> int:
        """Hashes the tokenizer, as all objects."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes many texts, without special tokens."""

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns a printable name for each id."""


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
    drops = _drops_of(tokenizer)
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


def unknown_texts(
    texts: Sequence[str],
    tokenizer: _Encoder,
    ids: Container[int] | Integer[np.ndarray, " total"] | None = None,
) -> int:
    """Returns the number of texts with text that a tokenizer does not know.

    Args:
        texts: The texts.
        tokenizer: The tokenizer of the texts.
        ids: The tokens that are read of all texts, if they are known: without an unknown one among
            them, texts are not tokenized again.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["ab"], 6)
        >>> unknown_texts(["ab", "a\u03b2", ""], tokenizer)
        1
    """
    drops, unk = _drops_of(tokenizer), tokenizer.unk
    drops.learn(texts)
    if unk is None or (ids is not None and unk not in ids):
        return sum(map(drops.are_in, texts))
    rows = tokenizer.encode_batch(texts)
    return sum(unk in row or drops.are_in(text) for text, row in zip(texts, rows, strict=True))


def unknown_note(count: int, what: str = "text", total: int | None = None) -> str:
    """Returns a message about texts that a tokenizer does not know as a whole.

    Args:
        count: Number of texts with unknown text.
        what: What the texts are, in the singular.
        total: Number of all texts, if known.

    Example:
        >>> unknown_note(1), unknown_note(2, "line", 7)
        ('1 text holds text that the tokenizer does not know', '2 of 7 lines hold text that ...')
    """
    which = plural(count, what) if total is None else f"{count:,} of {plural(total, what)}"
    return f"{which} {'holds' if count == 1 else 'hold'} text that the tokenizer does not know"


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

    def __init__(self, tokenizer: _Encoder):
        self._tokenizer, self._known = tokenizer, set[str]()
        self._dropped = set[str]()

    def learn(self, texts: Sequence[str]) -> None:
        """Finds out about the characters of texts."""
        new = set().union(*texts) - self._known
        self._known |= new
        # Control characters and marks may go by normalization, without a loss.
        signs = [one for one in new if unicodedata.category(one)[0] in "LNPS"]
        if not signs:
            return
        for one, ids in zip(signs, self._tokenizer.encode_batch(signs), strict=True):
            names = self._tokenizer.convert_ids_to_tokens(ids)
            if not any(name.strip(_BLANK_MARKS) for name in names):
                self._dropped.add(one)

    def are_in(self, text: str) -> bool:
        """Returns whether something of a text is dropped."""
        return not self._dropped.isdisjoint(text)

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Returns the dropped parts of a text, with their combining marks."""
        if not self.are_in(text):
            return []
        found = list[tuple[int, int]]()
        for i, one in enumerate(text):
            begun = bool(found) and found[-1][1] == i
            if one in self._dropped or (begun and unicodedata.category(one)[0] == "M"):
                found[len(found) - begun :] = [(found[-1][0] if begun else i, i + 1)]
        return found


@functools.lru_cache(maxsize=4)
def _drops_of(tokenizer: _Encoder) -> _Drops:
    """Returns what is known of a tokenizer: each character is tried once."""
    return _Drops(tokenizer)


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


@dataclasses.dataclass(frozen=True)
class Compression:
    """Counts over the tokens of texts.

    Attributes:
        vocab_size: Size of the vocabulary.
        tokens: Number of tokens, without special tokens.
        unknown: Number of unknown tokens.
        words: Number of words between blanks.
        bytes: Number of bytes in UTF-8.
        texts: Number of texts.
        restored: Number of texts that decode to themselves, up to composed characters.
        coverage: The characters of texts that the tokenizer knows, see :func:`.text_coverage`.
    """

    vocab_size: int
    tokens: int
    unknown: int
    words: int
    bytes: int
    texts: int
    restored: int
    coverage: Coverage

    @property
    def tokens_per_byte(self) -> float:
        """Returns the number of tokens per byte of text."""
        return self.tokens / max(self.bytes, 1)

    @property
    def tokens_per_word(self) -> float:
        """Returns the number of tokens per word (fertility)."""
        return self.tokens / max(self.words, 1)

    @property
    def unknown_rate(self) -> float:
        """Returns the share of unknown tokens, each of which may stand for much or little text."""
        return self.unknown / max(self.tokens, 1)

    @property
    def restored_rate(self) -> float:
        """Returns the share of texts that decode to themselves."""
        return self.restored / max(self.texts, 1)


def compression(
    tokenizer: Tokenizer, texts: Sequence[str], originals: Sequence[str] | None = None
) -> Compression:
    """Counts tokens, words, bytes and unknown characters, and texts that decode to themselves.

    Args:
        tokenizer: The tokenizer to measure.
        texts: Texts as a model reads them, such as lines of a file.
        originals: The same texts before preparation, such as lower-casing, whose words and bytes
            are counted; None is ``texts``.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> counts = compression(train_tokenizer("bytes", []), ["né", "two words"])
        >>> counts.tokens, counts.words, counts.bytes, counts.restored
        (12, 3, 12, 2)
        >>> compression(train_tokenizer("bytes", []), ["né"], ["NÉ"]).restored
        0
        >>> words = compression(train_tokenizer("words", ["a"]), ["a much"])
        >>> words.unknown_rate, words.coverage.share
        (0.5, 0.8)
    """
    rows = tokenizer.encode_batch(texts)
    again, coverage = tokenizer.decode_batch(rows), text_coverage(texts, tokenizer)
    texts = texts if originals is None else originals
    return Compression(
        vocab_size=tokenizer.vocab_size,
        tokens=sum(map(len, rows)),
        unknown=0 if tokenizer.unk is None else sum(row.count(tokenizer.unk) for row in rows),
        words=sum(len(blank_words(text)) for text in texts),
        bytes=sum(len(text.encode("utf-8", "surrogatepass")) for text in texts),
        texts=len(texts),
        restored=sum(a == compose(b) for a, b in zip(again, texts, strict=True)),
        coverage=coverage,
    )
