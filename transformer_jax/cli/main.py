"""The command ``transformer-jax``: runs a sub-command by name."""

import logging
import os
import sys
from collections.abc import Sequence

from transformer_jax import __version__
from transformer_jax.cli import commands
from transformer_jax.cli.output import columns
from transformer_jax.cli.process import guarded, run_and_leave, terminated
from transformer_jax.core import old_names
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.runtime import prepare_process, run_package_alone

__all__ = ["main", "run_as_program"]

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of ``arguments``, or of the command line; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = os.environ.get("TRANSFORMER_JAX_DEBUG", "0") not in ("", "0")
    with terminated("stopped by a signal"):
        return guarded(lambda: _run(given), debug=debug)


def _run(given: list[str]) -> int | None:
    given = commands.import_modules(given)
    if given[:1] and given[0] in old_names.COMMANDS:
        old, given = given[0], [old_names.COMMANDS[given[0]], *given[1:]]
        log.warning("%s is now %s", old, given[0])
    two = " ".join(given[:2])
    name = next((name for name in (two, *given[:1]) if name in commands.COMMANDS), None)
    if name is None:
        return _without_command(given)
    if name in commands.PROGRAMS:
        code: int | None = commands.load_command(name)(
            given if commands.PROGRAMS[name] == "training" else given[1:]
        )
        return code
    from transformer_jax.cli.run_flags import parse_flags
    from transformer_jax.cli.support.engine_flags import EngineCommand

    command = parse_flags(commands.load_command(name), f"{commands.PROGRAM} {name}", given[1:])
    prepare_process()
    if isinstance(command, EngineCommand):
        command.check_engine()
    result: int | None = command()
    return result


def _without_command(arguments: Sequence[str]) -> int:
    """Prints the version or the list of commands; refuses any other word.

    Raises:
        ConfigError: The command is unknown; the message suggests the nearest ones.
    """
    word = arguments[0] if arguments else "--help"
    if word == "--version":
        print(f"{commands.PROGRAM} {__version__}")
        return 0
    if word in ("-h", "--help"):
        print(_map())
        return 0
    from transformer_jax.cli.run_flags import near

    raise ConfigError(f"unknown command {word}: {near(word, commands.COMMANDS, commands.PROGRAM)}")


def _map() -> str:
    """Returns all commands in groups, one per line."""
    parts = [f"usage: {commands.PROGRAM} COMMAND ...\n\nTransformers in JAX: train them, use them, "
             "look inside."]  # fmt: skip
    for title, group in commands.GROUPS.items():
        parts.append(f"{title}:\n{columns(group.items())}")
    parts.append(
        "COMMAND --help shows the flags of a command; --version prints the version.\n"
        "Any command takes --import MODULE, a Python module of yours to import first."
    )
    return "\n\n".join(parts)


def run_as_program() -> None:
    """Runs the command line and exits with its code."""
    run_package_alone()
    run_and_leave(main)


if __name__ == "__main__":
    run_as_program()
