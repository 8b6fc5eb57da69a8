"""Shared by all predictors: the base class, inputs as lists, warnings of truncation."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from transformer_jax.core.errors import ArgumentError, plural, were

__all__ = ["Predictor", "listed", "several", "truncation"]


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


def listed(texts: Any) -> list[str]:
    """Returns the texts as a list: a string is one text.

    Raises:
        ArgumentError: It is neither a text nor a list of texts.

    Example:
        >>> listed("ab"), listed(["ab", "c"])
        (['ab'], ['ab', 'c'])
        >>> listed(5)
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: 5 is int: a text or a list of texts is needed
    """
    found = [texts] if isinstance(texts, str) else several(texts)
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise ArgumentError(f"text {i + 1} is {type(text).__name__}: text is needed")
    return found


def several(texts: Any) -> list[Any]:
    """Returns what a list or another iterable holds.

    Raises:
        ArgumentError: It is one value, bytes, or has no order of its texts.
    """
    if isinstance(texts, bytes | bytearray | Mapping | Set) or not isinstance(texts, Iterable):
        shown = repr(texts)[:40]
        raise ArgumentError(
            f"{shown} is {type(texts).__name__}: a text or a list of texts is needed"
        )
    return list(texts)


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
