"""Shared by all predictors: the base class, inputs as lists, warnings of truncation."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from transformer_jax.errors import plural, were

__all__ = ["Predictor", "listed", "truncation"]


class Predictor:
    """A trained model as a function.

    Args:
        path: A run directory or a Hugging Face checkpoint.
        checkpoint: ``best``, ``last``, a step, or ``average:N``, the mean of the last N.

    Attributes:
        model: The Flax module; the counts of an n-gram model.
        tokenizer: Tokenizer used in training; an image model has none.

    Raises:
        ConfigError: The model is of another family.
        CheckpointError: The path holds no trained model, or its files are damaged.
    """

    model: Any
    tokenizer: Any


def listed(texts: str | Iterable[str]) -> list[str]:
    """The texts as a list: a string is one text.

    Example:
        >>> listed("ab"), listed(["ab", "c"])
        (['ab'], ['ab', 'c'])
    """
    return [texts] if isinstance(texts, str) else list(texts)


@contextlib.contextmanager
def truncation(count: Callable[[], int]) -> Iterator[None]:
    """Warn afterwards if texts were longer than the model reads.

    Args:
        count: Number of truncated texts so far.
    """
    before = count()
    yield
    if new := count() - before:
        message = f"{plural(new, 'text')} {were(new)} longer than the model reads, and truncated"
        warnings.warn(message, stacklevel=4)
