"""User errors, each with the exit code of the command that ends with it.

A message is one line: what is wrong, where (file:line or flag), what is allowed and what to do.
A ``ListedError`` has more lines. Commands print it without a traceback.
"""

import os
import re
import shlex
import signal as signals
from collections.abc import Sequence

__all__ = [
    "RESTART",
    "ArgumentError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ListedError",
    "NumericsError",
    "Stopped",
    "UserError",
    "command",
    "install",
    "no_such_run",
    "pasted",
    "plural",
    "visible",
    "were",
]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

# The exit code of a run that saved its state and asks to be restarted: EX_TEMPFAIL of sysexits.
RESTART = 75


class UserError(Exception):
    """The base of all errors that the user can fix; ``exit_code`` ends the command."""

    exit_code = 2


class ConfigError(UserError):
    """An invalid setting or flag; exit code 2."""

    exit_code = 2


class ArgumentError(UserError, ValueError):
    """An invalid argument of a library function, such as arrays that do not match."""


class DataError(UserError):
    """A file or corpus that cannot be read as requested; exit code 3."""

    exit_code = 3


class ListedError(DataError):
    """A data error about several places, such as bad rows of a file."""

    def __init__(self, message: str, places: Sequence[str] = ()):
        super().__init__("\n  ".join([message, *places]))

    @property
    def lines(self) -> list[str]:
        """The message, and a line for each place."""
        return str(self).split("\n  ")


class CheckpointError(UserError):
    """A run directory or checkpoint that is missing, damaged, foreign or not writable; code 4."""

    exit_code = 4


class NumericsError(UserError):
    """Training, or a trained model, that no longer produces finite numbers; exit code 5."""

    exit_code = 5


class Stopped(BaseException):
    """Work that ended early, but in order, after a signal.

    Like ``KeyboardInterrupt`` it is not an ``Exception``: code that treats any exception of a
    library as damage, or continues with the next input, does not mistake a signal for one.

    The exit code is ``128 + signal``, or 75 for SIGUSR1, the warning that time is running out.
    """

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal
        self.exit_code = RESTART if signal == signals.SIGUSR1 else 128 + signal


def command(*words: str | os.PathLike[str]) -> str:
    """Returns a command of this package for a message, in backticks, ready to be pasted.

    Args:
        words: The words after ``transformer-jax``; paths are quoted for a shell.

    Example:
        >>> command("resume", "runs/my first")
        "`transformer-jax resume 'runs/my first'`"
    """
    return pasted("transformer-jax", *words)


def install(extra: str) -> str:
    """Returns the command that installs an extra of this package, in backticks.

    Example:
        >>> install("rouge")
        "`pip install 'transformer-jax[rouge]'`"
    """
    return pasted("pip", "install", f"transformer-jax[{extra}]")


def pasted(*words: str | os.PathLike[str]) -> str:
    """Returns a command of any program in backticks, with its words quoted for a shell.

    Example:
        >>> pasted("pip", "install", "sacrebleu[ja]")
        "`pip install 'sacrebleu[ja]'`"
    """
    return f"`{shlex.join([os.fspath(word) for word in words])}`"


# Models that Hugging Face's hub also knows without their owner, by owner.
_KEPT_BY = {
    r"gpt2(-medium|-large|-xl)?": "openai-community",
    r"distilgpt2|distilbert-base-.+": "distilbert",
    r"bert-(base|large)-.+": "google-bert",
    r"t5-(small|base|large|3b|11b)": "google-t5",
    r"(xlm-)?roberta-(base|large)(-.+)?": "FacebookAI",
}


def no_such_run(path: str | os.PathLike[str]) -> str:
    """Returns the message of a missing run directory or checkpoint folder.

    If ``path`` may be the name of a model on Hugging Face's hub, it explains how to get the folder.

    Example:
        >>> no_such_run("runs/none/best")
        'runs/none/best: no such run directory'
        >>> no_such_run("gpt2")[-59:]
        '`hf download openai-community/gpt2 --local-dir models/gpt2`'
    """
    name = os.fspath(path)
    owner, _, model = name.rpartition("/")
    found = f"{name}: no such run directory"
    if not re.fullmatch(r"([\w.-]*\w/)?\w[\w.-]*", name) or owner == "runs":
        return found
    if owner not in ("", "models") and os.path.isdir(owner):
        return found
    if owner in ("", "models"):
        known_by = (one for names, one in _KEPT_BY.items() if re.fullmatch(names, model))
        owner = next(known_by, "")
    known = f"{owner}/{model}" if owner else "openai-community/gpt2"
    folder = f"models/{known.rpartition('/')[2]}"
    download = pasted("hf", "download", known, "--local-dir", folder)
    purpose = "get the folder with" if owner else "get a folder of a model's files first, such as"
    return (
        f"{found}, and no folder of a Hugging Face checkpoint; nothing is downloaded: {purpose} "
        f"{download}"
    )


def plural(count: int, noun: str, several: str | None = None) -> str:
    """``count`` with its noun, in the right number.

    Args:
        count: The number.
        noun: The singular.
        several: The plural; None is the regular one.

    Example:
        >>> plural(1, "step"), plural(0, "class"), plural(12_000, "query")
        ('1 step', '0 classes', '12,000 queries')
    """
    if several is None:
        several = noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")
        if noun.endswith("y") and noun[-2:-1] not in "aeiou":
            several = noun[:-1] + "ies"
    return f"{count:,} {noun if count == 1 else several}"


def visible(text: str) -> str:
    r"""Returns a text with control characters escaped, so that a terminal shows everything.

    Example:
        >>> print(visible("red \x1b[31m\x9b, bell \a"))
        red \x1b[31m\x9b, bell \x07
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def were(count: int) -> str:
    """Returns "was" or "were", by number.

    Example:
        >>> were(1), were(2)
        ('was', 'were')
    """
    return "was" if count == 1 else "were"
