"""The tokenizer protocol of decoding."""

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.languages import Direction, Frame, LanguageTags

__all__ = ["TextTokenizer", "frame_of"]


@runtime_checkable
class TextTokenizer(Protocol):
    """A tokenizer for decoding; ids of special tokens are attributes."""

    vocab_size: int
    pad: int
    bos: int
    eos: int
    end_tokens: tuple[int, ...]  # each ends a generated text; the first is eos
    unk: int | None
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    target_prefix_ids: tuple[int, ...]
    languages: LanguageTags | None  # of a multilingual translator

    def __hash__(self) -> int:
        """Hashes the tokenizer, as all objects."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes many texts, without special tokens."""

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes ids, without special tokens."""

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns a printable name for each id."""


def frame_of(tokenizer: TextTokenizer, direction: Direction) -> Frame:
    """Returns the special tokens around both sides of a translation.

    Raises:
        ConfigError: A language of the direction is unknown, or is missing but needed for a tag.
    """
    if tokenizer.languages is not None:
        return tokenizer.languages.frame(direction)
    if direction != Direction():
        raise ConfigError(
            f"the direction {direction}: this model translates in one direction and has no tags of "
            f"languages: leave the languages out"
        )
    return Frame(tokenizer.prefix_ids, tokenizer.suffix_ids, tokenizer.target_prefix_ids)
