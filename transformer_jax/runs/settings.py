"""Settings that the runs of all families share."""

import dataclasses
from typing import Any, Literal

from transformer_jax.data.plan import Batching

__all__ = ["TokenizerConfig", "batching_of"]


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Tokenizer settings; source and target share one vocabulary."""

    kind: Literal["bpe", "wordpiece", "unigram", "bytes", "characters"] = "bpe"
    # At most so many tokens are learnt; None follows from the size of the text, up to 8000.
    vocab_size: int | None = 8000
    path: str | None = None  # a tokenizer.json to load instead of learning one


def batching_of(training: Any) -> Batching:
    """The batching of a run, from its training settings."""
    return Batching(
        training.max_tokens,
        training.num_buckets,
        training.required_batch_size_multiple,
        training.seed,
        training.pad_to_multiple_of,
    )
