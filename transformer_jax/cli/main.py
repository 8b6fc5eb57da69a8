"""The command ``transformer-jax``: runs a sub-command by name."""

import logging
import os
import sys
from collections.abc import Sequence

from transformer_jax import __version__
from transformer_jax.cli.commands import COMMANDS, GROUPS, PROGRAM, PROGRAMS, load_command
from transformer_jax.cli.errors import guarded, run_and_leave, terminated
from transformer_jax.cli.help import columns
from transformer_jax.cli.user_modules import import_modules
from transformer_jax.core import old_names
from transformer_jax.core.errors import ConfigError

__all__ = ["main", "run_as_program"]

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of ``arguments``, or of the command line; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get("TRANSFORMER_JAX_DEBUG", "0") not in ("", "0")
    if given[:1] != ["launch"]:  # whose processes import them
        failed = guarded(lambda: given.__setitem__(slice(None), import_modules(given)), debug=debug)
        if failed:
            return failed
    if given[:1] and given[0] in old_names.COMMANDS:
        old, given = given[0], [old_names.COMMANDS[given[0]], *given[1:]]
        log.warning("%s is now %s", old, given[0])
    name = _name(given)
    if name is not None and name in PROGRAMS:  # a program handles its own errors
        rest = given if PROGRAMS[name] == "families" else given[1:]
        code: int = load_command(name)(rest)
        return code
    with terminated("stopped by a signal"):
        return guarded(lambda: _run(name, given), debug=debug)


def _name(arguments: Sequence[str]) -> str | None:
    """Returns the command of one or two words that arguments begin with; None if there is none."""
    two = " ".join(arguments[:2])
    return next((name for name in (two, *arguments[:1]) if name in COMMANDS), None)


def _run(name: str | None, arguments: list[str]) -> int | None:
    if name is None:
        return _without_command(arguments)
    from transformer_jax.cli.run_command import RunCommand
    from transformer_jax.cli.run_flags import parse_flags

    command = parse_flags(load_command(name), f"{PROGRAM} {name}", arguments[1:])
    from transformer_jax.core.runtime import enable_compilation_cache, retain_freed_memory

    retain_freed_memory()
    enable_compilation_cache()
    if not isinstance(command, RunCommand):
        code: int | None = command()
        return code
    with command.loading():
        return command()  # type: ignore[operator]


def _without_command(arguments: Sequence[str]) -> int:
    """Prints the version or the list of commands; refuses any other word.

    Raises:
        ConfigError: The command is unknown; the message suggests the nearest ones.
    """
    word = arguments[0] if arguments else "--help"
    if word == "--version":
        print(f"{PROGRAM} {__version__}")
        return 0
    if word in ("-h", "--help"):
        print(_map())
        return 0
    from transformer_jax.cli.run_flags import near

    raise ConfigError(f"unknown command {word}: {near(word, COMMANDS, PROGRAM)}")


def _map() -> str:
    """Returns all commands in groups, one per line."""
    parts = [f"usage: {PROGRAM} COMMAND ...\n\nTransformers in JAX: train them, use them, "
             "look inside."]  # fmt: skip
    for title, group in GROUPS.items():
        parts.append(f"{title}:\n{columns(group.items())}")
    parts.append(
        "COMMAND --help shows the flags of a command; --version prints the version.\n"
        "Any command takes --import MODULE, a Python module of yours to import first."
    )
    return "\n\n".join(parts)


def run_as_program() -> None:
    """Runs the command line and exits with its code."""
    run_and_leave(main)


if __name__ == "__main__":
    run_as_program()
