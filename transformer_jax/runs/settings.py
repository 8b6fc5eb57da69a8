"""Settings that the runs of all families share."""

import dataclasses
from typing import Any, Literal

from transformer_jax.errors import ConfigError

__all__ = ["TokenizerConfig", "at_least"]


def at_least(group: str, config: Any, **least: int) -> None:
    """Refuses fields of ``config`` below what is given for them; None passes.

    Raises:
        ConfigError: It names the setting as ``group.field``.
    """
    for name, bound in least.items():
        value = getattr(config, name)
        if value is not None and value < bound:
            raise ConfigError(f"{group}.{name} is {value}: at least {bound}")


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes tokens; one vocabulary for both sides."""

    kind: Literal["bpe", "wordpiece", "unigram", "bytes", "characters"] = "bpe"
    # At most so many tokens are learnt; None follows from the size of the text, up to 8000.
    vocab_size: int | None = 8000
    path: str | None = None  # a tokenizer.json to load instead of learning one
