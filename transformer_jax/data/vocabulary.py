"""Checks that a tokenizer and a model fit together."""

import os
from typing import Any

from transformer_jax.core.errors import CheckpointError, ConfigError, plural

__all__ = ["check_vocabulary"]


def check_vocabulary(
    tokenizer: Any,
    *vocabs: int,
    exact: bool = False,
    where: str | os.PathLike[str] | None = None,
) -> None:
    """Refuses a tokenizer with ids that a model has no embedding for; more embeddings are usual.

    Args:
        tokenizer: Its ``vocab_size`` is one more than its largest id.
        vocabs: The vocabulary sizes of the model's tables.
        exact: Whether the model must have as many tokens as the tokenizer (n-gram models).
        where: The folder or run that holds both; None for objects in memory.

    Raises:
        ConfigError: The objects do not fit together.
        CheckpointError: The files of the folder do not fit together.

    Example:
        >>> from transformer_jax.data.tokenizer import train_tokenizer
        >>> tokenizer = train_tokenizer("characters", ["abc"], 7)
        >>> check_vocabulary(tokenizer, 7)
        >>> check_vocabulary(tokenizer, 64, 6)
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: the tokenizer has 7 tokens but the model 6: ...
    """
    ids, known = tokenizer.vocab_size, min(vocabs)
    if ids == known or (ids < known and not exact):
        return
    said = (
        f"the tokenizer has {plural(ids, 'token')} but the model {known:,}: use the tokenizer it "
        f"was trained with"
    )
    raise ConfigError(said) if where is None else CheckpointError(f"{where}: {said}")
