"""Shared by all predictors: the base class, inputs as lists, warnings about texts."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from transformer_jax.core.errors import ArgumentError, plural, were
from transformer_jax.data.coverage import unknown_note

if TYPE_CHECKING:
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["Predictor", "listed", "several", "truncated", "warn_after", "warn_of_texts"]


class Predictor:
    """Base class of trained models as functions.

    Args:
        path: Run directory or Hugging Face checkpoint.
        checkpoint: ``best``, ``last``, a step, or ``average:N``, the mean of the last N.

    Attributes:
        model: The Flax module, or the counts of an n-gram model.
        tokenizer: The tokenizer used in training; an image model has none.
        opened: The opened model, with what is known of it.

    Raises:
        ConfigError: The model is of another family.
        CheckpointError: The path has no trained model, or its files are damaged.
    """

    model: Any
    tokenizer: Any
    opened: "Pretrained"


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
def warn_of_texts(counts: Mapping[str, int]) -> Iterator[None]:
    """Context manager: warns afterwards of texts that the model did not read as they are.

    Args:
        counts: The numbers so far of texts that were truncated to the model's length (``cut``), and
            of texts with text that the tokenizer does not know (``unknown``).
    """
    before = dict(counts)
    yield
    for name, message in (("cut", truncated), ("unknown", unknown_note)):
        if new := counts.get(name, 0) - before.get(name, 0):
            warnings.warn(message(new), stacklevel=4)


def warn_after(parts: Iterable[str], counts: Mapping[str, int]) -> Iterator[str]:
    """Yields the parts of a text, and then warns as :func:`warn_of_texts`."""
    with warn_of_texts(counts):
        yield from parts


def truncated(count: int) -> str:
    """Returns a message about texts of which the model reads only a part.

    Example:
        >>> truncated(1)
        '1 text was longer than the model reads, and truncated'
    """
    return f"{plural(count, 'text')} {were(count)} longer than the model reads, and truncated"
