"""The command ``transformer-jax``: parses its arguments and runs a sub-command."""

import difflib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

from transformer_jax import __version__, old_names
from transformer_jax.cli import families
from transformer_jax.cli.analogy import Analogy
from transformer_jax.cli.answer import Answer
from transformer_jax.cli.attention import Attention
from transformer_jax.cli.chat import Chat
from transformer_jax.cli.checks import check_values
from transformer_jax.cli.classify import Classify
from transformer_jax.cli.complexity import Complexity
from transformer_jax.cli.convert import Convert
from transformer_jax.cli.describe import Describe
from transformer_jax.cli.diversity import DiversityCommand
from transformer_jax.cli.embed import Embed
from transformer_jax.cli.errors import guarded, run_and_leave, terminated
from transformer_jax.cli.export import Export
from transformer_jax.cli.fill_mask import FillMask
from transformer_jax.cli.flags import check_flags, flags_of, in_one_line, together
from transformer_jax.cli.generate import Generate
from transformer_jax.cli.launch import Launch
from transformer_jax.cli.merge import Merge
from transformer_jax.cli.most_similar import MostSimilar
from transformer_jax.cli.prefer import Prefer
from transformer_jax.cli.probe import Probe
from transformer_jax.cli.prompt import Prompt
from transformer_jax.cli.report import Report
from transformer_jax.cli.run_command import RunCommand
from transformer_jax.cli.score import Score
from transformer_jax.cli.semantic_search import SemanticSearch
from transformer_jax.cli.spectrum import Spectrum
from transformer_jax.cli.tag import Tag
from transformer_jax.cli.transcribe import Transcribe
from transformer_jax.cli.translate import Translate
from transformer_jax.cli.verify import Verify
from transformer_jax.cli.win_rate import WinRateCommand
from transformer_jax.cli.word_vectors import WordVectorsCommand
from transformer_jax.errors import ConfigError

__all__ = ["main", "run_as_program"]

log = logging.getLogger(__name__)

PROGRAM = "transformer-jax"
COMMANDS: dict[str, Any] = {
    "translate": Translate,
    "transcribe": Transcribe,
    "generate": Generate,
    "chat": Chat,
    "prompt": Prompt,
    "score": Score,
    "prefer": Prefer,
    "win-rate": WinRateCommand,
    "diversity": DiversityCommand,
    "fill-mask": FillMask,
    "classify": Classify,
    "tag": Tag,
    "answer": Answer,
    "embed": Embed,
    "semantic-search": SemanticSearch,
    "probe": Probe,
    "word-vectors": WordVectorsCommand,
    "analogy": Analogy,
    "most-similar": MostSimilar,
    "attention": Attention,
    "describe": Describe,
    "complexity": Complexity,
    "report": Report,
    "verify": Verify,
    "convert": Convert,
    "export": Export,
    "merge": Merge,
    "spectrum": Spectrum,
    "launch": Launch,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of ``arguments``, or of the command line; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] and given[0] in families.COMMANDS:
        return families.main(given)
    debug = os.environ.get("TRANSFORMER_JAX_DEBUG", "0") not in ("", "0")
    with terminated("stopped by a signal"):
        return guarded(lambda: _run(given), debug=debug)


def _run(arguments: list[str]) -> int | None:
    if arguments[:1] == ["--version"]:
        print(f"{PROGRAM} {__version__}")
        return 0
    command = _parse(arguments)
    check_values(command)
    from transformer_jax.allocator import retain_freed_memory
    from transformer_jax.compilation_cache import enable_compilation_cache

    retain_freed_memory()
    enable_compilation_cache()
    if not isinstance(command, RunCommand):
        code: int | None = command()
        return code
    with command.loading():
        return command()  # type: ignore[operator]


def _parse(arguments: list[str]) -> Any:
    """The sub-command with its flags.

    Raises:
        ConfigError: The command or a flag is unknown; the message suggests the nearest.
    """
    import tyro

    if arguments and arguments[0] in old_names.COMMANDS:
        old, arguments = arguments[0], [old_names.COMMANDS[arguments[0]], *arguments[1:]]
        log.warning("%s is now %s", old, arguments[0])
    if arguments and arguments[0] in COMMANDS:
        known, see = flags_of(COMMANDS[arguments[0]]), f"{PROGRAM} {arguments[0]}"
        # What follows a lone -- is another command's.
        end = arguments.index("--") if "--" in arguments else len(arguments)
        flags = old_names.current_flags(arguments[0], arguments[1:end], known)
        arguments[1:end] = flags
        check_flags(arguments[0], known, arguments[1:], see)
        arguments[1:] = together(COMMANDS[arguments[0]], arguments[1:])
    elif arguments and arguments[0] not in ("-h", "--help"):
        known_names = [*COMMANDS, *families.COMMANDS]
        near = difflib.get_close_matches(arguments[0], known_names, 1, 0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"unknown command {arguments[0]}: {hint}there are {', '.join(known_names)} "
            f"(see {PROGRAM} --help)"
        )
    else:
        arguments = ["--help"]
    parse = lambda: tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        prog=PROGRAM,
        description="Use a trained model: text in, text and pictures out. To train one: "
        f"{', '.join(families.COMMANDS)} (see transformer-jax train --help). "
        "--version: its version.",
        args=arguments,
    )
    return in_one_line(parse, f"{PROGRAM} {arguments[0]}")


def run_as_program() -> None:
    """Run the command line and exit with its code."""
    run_and_leave(main)


if __name__ == "__main__":
    run_as_program()
