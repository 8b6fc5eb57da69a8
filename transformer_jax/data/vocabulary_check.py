"""Checks that a tokenizer and a model match."""

import os
from typing import Any

from transformer_jax.core.errors import CheckpointError, ConfigError, plural

__all__ = ["check_vocabulary"]


def check_vocabulary(
    tokenizer: Any, *vocabs: int, exact: bool = False, where: str | os.PathLike[str] | None = None
) -> None:
    """Refuses a tokenizer whose ids exceed a model's embeddings; spare embeddings are usual.

    Args:
        tokenizer: Tokenizer whose ``vocab_size`` is its largest id plus one.
        vocabs: The vocabulary sizes of the model's tables.
        exact: Whether the model must have as many tokens as the tokenizer (n-gram models).
        where: Folder or run that holds both; None for objects in memory.

    Raises:
        ConfigError: The objects do not match.
        CheckpointError: The files of the folder do not match.

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
