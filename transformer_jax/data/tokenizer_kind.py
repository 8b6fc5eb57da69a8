"""The kinds of tokenizers trained here, for flags that are needed before slow imports."""

from typing import Literal

__all__ = ["TokenizerKind"]

TokenizerKind = Literal[
    "bpe", "wordpiece", "wordpiece_likelihood", "unigram", "words", "bytes", "characters"
]
