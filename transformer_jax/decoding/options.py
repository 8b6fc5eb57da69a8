"""Special tokens of search, and the shapes of batches."""

import dataclasses
import itertools
from typing import Literal, NamedTuple

from transformer_jax.core.config_fields import Amount, Configuration, Count
from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.text_tokenizer import TextTokenizer

__all__ = ["BatchingConfig", "SpecialTokens", "TranslationBatching", "special_tokens"]


class SpecialTokens(NamedTuple):
    """Token ids with a special role in search."""

    eos: int  # ends a training sequence
    pad: int  # follows the end
    suppress_tokens: tuple[int, ...] = ()  # never generated; probabilities are unchanged
    end_tokens: tuple[int, ...] = ()  # more tokens that end a sequence, such as an end of turn

    @property
    def ends(self) -> tuple[int, ...]:
        """All tokens that end a sequence; ``eos`` is the first."""
        return tuple(dict.fromkeys((self.eos, *self.end_tokens)))


def special_tokens(
    tokenizer: TextTokenizer, vocab_size: int, ends: bool = True, end_tokens: tuple[int, ...] = ()
) -> SpecialTokens:
    """Returns the special tokens of generated texts.

    Padding, BOS, the unknown token and ids missing from the tokenizer are never generated.

    Args:
        tokenizer: The model's tokenizer.
        vocab_size: The model's vocabulary size.
        ends: Whether texts end with the end tokens of the tokenizer; otherwise these are never
            generated.
        end_tokens: More tokens that end a text.
    """
    found = {tokenizer.pad, tokenizer.bos, *range(tokenizer.vocab_size, vocab_size)}
    found |= set() if tokenizer.unk is None else {tokenizer.unk}
    own = set(tokenizer.end_tokens)
    found = found - own if ends else found | own
    found -= set(end_tokens)
    more = dict.fromkeys((*(tokenizer.end_tokens[1:] if ends else ()), *end_tokens))
    return SpecialTokens(tokenizer.eos, tokenizer.pad, tuple(sorted(found)), tuple(more))


@dataclasses.dataclass(frozen=True)
class TranslationBatching(Configuration, group="batching"):
    """Compiled shapes of translation; a line's padding does not depend on other lines."""

    source_lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)  # lengths to round up to
    # Lines per batch, which is filled up; None is up to 32, or up to 128 without beams.
    rows: tuple[int, ...] | None = None
    tokens: Count = 8192  # at most this many source tokens per batch, unless a single line has more
    window: Count = 4096  # lines read ahead and sorted by length; order is kept
    too_long: Literal["truncate", "error"] = "truncate"  # for lines beyond the longest shape

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("source_lengths", "rows"):
            sizes = getattr(self, name)
            if sizes is None:
                continue
            if not sizes or sizes[0] < 1 or any(b <= a for a, b in itertools.pairwise(sizes)):
                raise ConfigError(f"{name} is {sizes}: must be increasing numbers from 1 on")

    def allowed_rows(self, size: int, beams: int = 1) -> tuple[int, ...]:
        """Returns the possible numbers of lines of ``size`` source tokens per batch, ascending.

        Example:
            >>> batching = TranslationBatching()
            >>> batching.allowed_rows(64), batching.allowed_rows(64, beams=4)
            ((1, 8, 32, 128), (1, 8, 32))
            >>> batching.allowed_rows(512)
            (1, 8)
        """
        rows = self.rows or ((1, 8, 32, 128) if beams == 1 else (1, 8, 32))
        return tuple(n for n in rows if n * size <= self.tokens) or rows[:1]


@dataclasses.dataclass(frozen=True)
class BatchingConfig(Configuration, group="batching"):
    """Compiled shapes of text generation, and the treatment of a full context."""

    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # texts per batch, which is filled up
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)  # of prompts
    caches: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)  # of keys
    chunk: Count = 16  # tokens between checks of a text that is streamed or may meet a stop string
    tokens: Count = 4096  # at most this many tokens are scored at once
    too_long: Literal["truncate", "error"] = "truncate"  # the start of prompts beyond the context
    # If the context is full: continue with its latter half, or stop.
    full: Literal["slide", "stop"] = "slide"
    num_draft_tokens: Amount = 0  # draft tokens per step of prompt lookup; 0 is off
