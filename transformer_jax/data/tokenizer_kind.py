"""Kinds, sizes and permissions of tokenizers, for flags, which come before slow imports."""

from typing import Annotated, Literal

from transformer_jax.core.config_fields import Range

__all__ = ["LARGEST_VOCABULARY", "Permission", "TokenizerKind", "VocabSize"]

# The trainers reserve memory for all tokens before they read the text.
LARGEST_VOCABULARY = 1 << 24
VocabSize = Annotated[int, Range(1, LARGEST_VOCABULARY)]

TokenizerKind = Literal[
    "bpe", "wordpiece", "wordpiece_likelihood", "unigram", "words", "bytes", "characters"
]

# What data may have that a tokenizer cannot read or restore, if its settings allow that.
Permission = Literal["unknown", "lossy"]
