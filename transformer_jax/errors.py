"""Mistakes a user can make, each with the exit code that a command ends with.

A message is one line and says what is wrong, where (file:line or flag), what is allowed and what
to do. Commands print it without a traceback.
"""

import signal as signals
from typing import Any

__all__ = [
    "RESTART",
    "ArgumentError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "NumericsError",
    "Stopped",
    "UserError",
    "plural",
    "were",
]

# The exit code of a run that saved its state and asks to be started again: EX_TEMPFAIL of sysexits.
RESTART = 75


class UserError(Exception):
    """The base of all mistakes that are the user's to mend; ``exit_code`` ends the command."""

    exit_code = 2


class ConfigError(UserError):
    """A setting or flag that cannot be; exit code 2."""

    exit_code = 2


class ArgumentError(UserError, ValueError):
    """An argument that a function of the library cannot take, such as arrays that do not fit."""


class DataError(UserError):
    """A file or corpus that cannot be read as asked; exit code 3."""

    exit_code = 3


class CheckpointError(UserError):
    """A run directory or checkpoint that is missing, damaged, foreign or cannot be written; 4."""

    exit_code = 4


class NumericsError(UserError):
    """Training or a trained model that no longer produces finite numbers; exit code 5."""

    exit_code = 5


class Stopped(UserError):  # noqa: N818  (it is the user who stopped it: no error)
    """Work ended early and in order after a signal.

    The exit code is ``128 + signal``, and 75 for SIGUSR1, the warning that time runs out.
    """

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal
        self.exit_code = RESTART if signal == signals.SIGUSR1 else 128 + signal


def plural(count: int, noun: str, several: str | None = None) -> str:
    """``count`` and its noun, as a sentence has them.

    Args:
        count: How many.
        noun: What one of them is called.
        several: What others are called; None is the regular plural.

    Example:
        >>> plural(1, "step"), plural(0, "class"), plural(12_000, "query")
        ('1 step', '0 classes', '12,000 queries')
    """
    if several is None:
        several = noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
        if noun.endswith("y") and noun[-2:-1] not in "aeiou":
            several = noun[:-1] + "ies"
    return f"{count:,} {noun if count == 1 else several}"


def were(count: int) -> str:
    """The verb of so many.

    Example:
        >>> were(1), were(2)
        ('was', 'were')
    """
    return "was" if count == 1 else "were"


def at_least(group: str, config: Any, **least: int) -> None:
    """Refuses fields of ``config`` below what is given for them; None passes.

    Raises:
        ConfigError: It names the setting as ``group.field``.
    """
    for name, bound in least.items():
        value = getattr(config, name)
        if value is not None and value < bound:
            raise ConfigError(f"{group}.{name} is {value}: at least {bound}")
