"""Shared by all predictors: the base class, inputs as lists, truncation warnings."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from transformer_jax.core.errors import ArgumentError, plural, were

__all__ = ["Predictor", "listed", "several", "truncated", "truncation"]


class Predictor:
    """Base class of trained models as functions.

    Args:
        path: Run directory or Hugging Face checkpoint.
        checkpoint: ``best``, ``last``, a step, or ``average:N``, the mean of the last N.

    Attributes:
        model: The Flax module, or the counts of an n-gram model.
        tokenizer: The tokenizer used in training; an image model has none.

    Raises:
        ConfigError: The model is of another family.
        CheckpointError: The path has no trained model, or its files are damaged.
    """

    model: Any
    tokenizer: Any


def listed(texts: Any) -> list[str]:
    """Returns texts as a list; a string becomes a list of one text.

    Raises:
        ArgumentError: The value is neither a text nor a list of texts.

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
    """Returns the items of a list or another iterable.

    Raises:
        ArgumentError: The value is not iterable, is bytes, or has no order.
    """
    if isinstance(texts, bytes | bytearray | Mapping | Set) or not isinstance(texts, Iterable):
        shown = repr(texts)[:40]
        raise ArgumentError(
            f"{shown} is {type(texts).__name__}: a text or a list of texts is needed"
        )
    return list(texts)


@contextlib.contextmanager
def truncation(count: Callable[[], int]) -> Iterator[None]:
    """Context manager: warns afterwards if texts were truncated to the model's length.

    Args:
        count: Function that returns the number of truncated texts so far.
    """
    before = count()
    yield
    if new := count() - before:
        warnings.warn(truncated(new), stacklevel=4)


def truncated(count: int) -> str:
    """Returns a message about texts of which the model reads only a part.

    Example:
        >>> truncated(1)
        '1 text was longer than the model reads, and truncated'
    """
    return f"{plural(count, 'text')} {were(count)} longer than the model reads, and truncated"
