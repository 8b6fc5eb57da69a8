"""The kinds of tokenizers that are trained here; flags read them before slow imports."""

from typing import Literal

__all__ = ["TokenizerKind"]

TokenizerKind = Literal[
    "bpe", "wordpiece", "wordpiece_likelihood", "unigram", "words", "bytes", "characters"
]
