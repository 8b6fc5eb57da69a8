"""Sizes of texts in tokens: the compression and the losses of a tokenizer."""

import dataclasses
from collections.abc import Sequence

from transformer_jax.data.coverage import Coverage, text_coverage
from transformer_jax.data.preparation import compose
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.words import blank_words

__all__ = ["Compression", "compression"]


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
