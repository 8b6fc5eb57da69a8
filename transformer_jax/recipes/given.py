"""Settings given by a command, as opposed to the settings of a named run."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any, TypeVar

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.preparation import TextNormalization

__all__ = ["normalization_of", "settings_given", "was_given", "with_normalization"]

Kind = TypeVar("Kind", bound=Any)

# Settings given by the command, even if equal to the named run's.
_given: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "given", default=frozenset()
)


@contextlib.contextmanager
def settings_given(names: frozenset[str]) -> Iterator[None]:
    """Context manager: records the settings given by a command, for :func:`was_given`."""
    token = _given.set(names)
    try:
        yield
    finally:
        _given.reset(token)


def was_given(name: str) -> bool:
    """Returns whether the command gave a setting, such as ``model.norm.residual_dropout``.

    Example:
        >>> with settings_given(frozenset({"model.d_model"})):
        ...     was_given("model.d_model"), was_given("model.head.bias")
        (True, False)
    """
    return name in _given.get()


def normalization_of(run: Any) -> TextNormalization:
    """Returns the text normalization of a run: ``nfc`` if its data have no such setting."""
    normalization: TextNormalization = getattr(_read(run), "normalization", "nfc")
    return normalization


def _read(run: Any) -> Any:
    """Returns the settings of reading text; None for data without them, such as pictures."""
    return getattr(run.data, "read", None)


def with_normalization(run: Kind, own: TextNormalization) -> Kind:
    """Returns the run with the text normalization of its tokenizer.

    Args:
        run: The settings of a run with an existing tokenizer.
        own: The normalization of the tokenizer.

    Raises:
        ConfigError: The command gave a different normalization.
    """
    read = _read(run)
    if read is None:
        return run
    if was_given("data.read.normalization") and read.normalization != own:
        raise ConfigError(
            f"data.read.normalization is {read.normalization}, but the given tokenizer has "
            f"{own}: leave it out"
        )
    data = dataclasses.replace(run.data, read=dataclasses.replace(read, normalization=own))
    made: Kind = dataclasses.replace(run, data=data)
    return made
