"""Settings that the runs of all families share."""

import dataclasses
from typing import Any, ClassVar, Literal

from transformer_jax.data.plan import Batching
from transformer_jax.errors import ConfigError

__all__ = ["StartConfig", "TokenizerConfig", "batching_of", "start_config"]


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """Tokenizer settings; source and target share one vocabulary."""

    kind: Literal["bpe", "wordpiece", "unigram", "bytes", "characters"] = "bpe"
    # At most so many tokens are learnt; None follows from the size of the text, up to 8000.
    vocab_size: int | None = 8000
    path: str | None = None  # a tokenizer.json to load instead of learning one


@dataclasses.dataclass(frozen=True)
class StartConfig:
    """What a run starts from, and which of its parameters are trained or drawn anew."""

    # A run of this package or a Hugging Face folder to start from: its parameters, its sizes and
    # its tokenizer; None starts from nothing.
    init_from: str | None = None
    # What is not trained: none, embeddings, encoder, decoder, or N: the embeddings and the first
    # N layers.
    freeze: str = "none"
    reinit_last: int = 0  # top layers to reinitialize

    # What messages put before the names of these settings, and the parts that freeze may name.
    prefix: ClassVar[str] = ""
    parts: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if self.reinit_last < 0:
            raise ConfigError(f"{self.prefix}reinit_last is {self.reinit_last}: at least 0")
        named = ("none", "embeddings", *self.parts)
        if self.freeze not in named and not self.freeze.isdecimal():
            raise ConfigError(
                f"{self.prefix}freeze is {self.freeze}: allowed are {', '.join(named)}, or the "
                f"number of layers to freeze together with the embeddings"
            )
        if (self.freeze != "none" or self.reinit_last) and self.init_from is None:
            given = "freeze" if self.freeze != "none" else "reinit_last"
            raise ConfigError(
                f"{self.prefix}{given} is given without {self.prefix}init_from: nothing is learnt "
                f"yet"
            )


def start_config(run: Any) -> StartConfig:
    """The settings of a run about its start; those of an n-gram model start from nothing."""
    own = getattr(run, "task", run)
    return own if isinstance(own, StartConfig) else StartConfig()


def batching_of(training: Any) -> Batching:
    """The batching of a run, from its training settings."""
    return Batching(
        training.max_tokens,
        training.num_buckets,
        training.required_batch_size_multiple,
        training.seed,
        training.pad_to_multiple_of,
    )
