"""Sizes of texts in tokens: what a tokenizer saves, and what it loses."""

import dataclasses
from collections.abc import Sequence

from transformer_jax.data.preparation import compose
from transformer_jax.data.tokenizer import Tokenizer

__all__ = ["Compression", "compression"]


@dataclasses.dataclass(frozen=True)
class Compression:
    """Counts of the tokens of texts.

    Attributes:
        vocab_size: Tokens of the vocabulary.
        tokens: Tokens of the texts, without special ones.
        unknown: The unknown ones of them.
        words: Words between white space.
        bytes: Bytes in UTF-8.
        texts: Texts.
        restored: Texts that their tokens give back, up to composed characters.
    """

    vocab_size: int
    tokens: int
    unknown: int
    words: int
    bytes: int
    texts: int
    restored: int

    @property
    def tokens_per_byte(self) -> float:
        """Returns the tokens of a byte of text."""
        return self.tokens / max(self.bytes, 1)

    @property
    def tokens_per_word(self) -> float:
        """Returns the tokens of a word (also called fertility)."""
        return self.tokens / max(self.words, 1)

    @property
    def unknown_rate(self) -> float:
        """Returns the share of unknown tokens."""
        return self.unknown / max(self.tokens, 1)

    @property
    def restored_rate(self) -> float:
        """Returns the share of texts that their tokens give back."""
        return self.restored / max(self.texts, 1)


def compression(
    tokenizer: Tokenizer, texts: Sequence[str], originals: Sequence[str] | None = None
) -> Compression:
    """Counts tokens, words and bytes of texts, and the texts that are decoded as they were.

    Args:
        tokenizer: Divides them.
        texts: Such as lines of a file, as a model reads them.
        originals: The same texts before they were prepared, in lower case for example, whose words
            and bytes count; None is ``texts``.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> counts = compression(train_tokenizer("bytes", []), ["né", "two words"])
        >>> counts.tokens, counts.words, counts.bytes, counts.restored
        (12, 3, 12, 2)
        >>> compression(train_tokenizer("bytes", []), ["né"], ["NÉ"]).restored
        0
    """
    rows = tokenizer.encode_batch(texts)
    again = tokenizer.decode_batch(rows)
    texts = texts if originals is None else originals
    return Compression(
        vocab_size=tokenizer.vocab_size,
        tokens=sum(map(len, rows)),
        unknown=0 if tokenizer.unk is None else sum(row.count(tokenizer.unk) for row in rows),
        words=sum(len(text.split()) for text in texts),
        bytes=sum(len(text.encode("utf-8", "surrogatepass")) for text in texts),
        texts=len(texts),
        restored=sum(a == compose(b) for a, b in zip(again, texts, strict=True)),
    )
