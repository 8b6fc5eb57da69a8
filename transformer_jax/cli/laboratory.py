"""Small experiments: why attention replaced recurrence, and why a KL penalty is needed.

    transformer-jax laboratory recall
    transformer-jax laboratory gradients --models tanh lstm attention
    transformer-jax laboratory lengths --output lengths.svg
    transformer-jax laboratory rewards
    transformer-jax laboratory scales

recall: accuracy of recalling a symbol, by the distance to it in positions. gradients: norm of the
gradient of the last state, by the distance to an input in positions. lengths: accuracy and BLEU of
recurrent translators with and without attention, by the length of the sentence. rewards: reward and
KL divergence of policies trained by GRPO and PPO, with and without a KL budget. scales: variance of
attention scores and gradient of their softmax, by head size, with and without scaling.

Each takes at most minutes on two cores, prints a table, and writes a picture, with its figures next
to it as JSON. COMMAND --help lists the settings.
"""

import dataclasses
import importlib
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.cli import commands
from transformer_jax.cli.output import check_file, say, write_json, writing, wrote
from transformer_jax.cli.process import guarded, run_and_leave, terminated
from transformer_jax.cli.run_flags import near, parse_flags
from transformer_jax.core.config_fields import OutputPath
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.runtime import prepare_process
from transformer_jax.laboratory.settings import (
    GradientSettings,
    LengthSettings,
    RecallSettings,
    RewardSettings,
    ScaleSettings,
)

__all__ = ["COMMANDS", "main", "run", "run_as_program"]

PROGRAM = f"{commands.PROGRAM} laboratory"

Environment = Callable[[], dict[str, Any]]


def _command(name: str, settings: type, doc: str) -> type:
    """Returns the dataclass of an experiment's flags: its settings, and the file of its picture."""
    picture = {"help": lambda: "the picture: .png, .svg or .html"}
    output = dataclasses.field(default=Path(f"runs/laboratory/{name}.png"), metadata=picture)
    made = dataclasses.make_dataclass(
        name.capitalize(), [("output", OutputPath, output)], bases=(settings,), frozen=True
    )
    made.__doc__ = doc
    return made


# The settings of each experiment, a function of that name in a module of that name, and its help.
_EXPERIMENTS: dict[str, tuple[type, str]] = {
    "recall": (
        RecallSettings,
        "Accuracy of recalling a symbol, by the distance to it in positions.",
    ),
    "gradients": (
        GradientSettings,
        "Norm of the gradient of the last state, by the distance to an input in positions.",
    ),
    "lengths": (
        LengthSettings,
        "Accuracy and BLEU of recurrent translators, by the length of the sentence.",
    ),
    "rewards": (
        RewardSettings,
        "Reward and KL divergence of policies trained on rewards, with and without a KL budget.",
    ),
    "scales": (
        ScaleSettings,
        "Variance of attention scores and gradient of their softmax, with and without scaling.",
    ),
}
COMMANDS = {name: _command(name, *one) for name, one in _EXPERIMENTS.items()}


def main(arguments: Sequence[str] | None = None, environment: Environment = dict) -> int:
    """Runs the command of ``arguments``, or of the command line; returns its exit code.

    Args:
        arguments: A command and its flags; None is those of this process.
        environment: Facts to store with the figures: the machine, versions, the commit.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: run(commands.import_modules(given), environment))


def run_as_program(environment: Environment = dict) -> None:
    """Runs the command line and exits with its code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    run_and_leave(lambda: main(environment=environment))


def run(arguments: Sequence[str], environment: Environment = dict) -> int:
    """Runs the command of ``arguments``; returns its exit code.

    Args:
        arguments: A command and its flags.
        environment: Facts to store with the figures.
    """
    with terminated("stopped by a signal: nothing was written"):
        return _run(arguments, environment)


def _run(arguments: Sequence[str], environment: Environment) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{(__doc__ or '').rstrip()}\n\n{commands.NOTE}.")
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise ConfigError(f"unknown command {name}: {near(name, COMMANDS, PROGRAM)}")
    asked = parse_flags(COMMANDS[name], f"{PROGRAM} {name}", rest)
    from transformer_jax.visual.figures import SUFFIXES

    check_file("--output", asked.output, SUFFIXES)
    beside = asked.output.with_suffix(".json")
    check_file("--output", beside, (".json",))
    begun = time.monotonic()
    say(f"{name}: starting")
    prepare_process()
    figures = _measure(name, asked)
    from transformer_jax.core.text_tables import aligned

    head, *rows = figures.table()
    print(aligned([head, *rows], left=3))
    with writing("--output", asked.output):
        figures.draw(asked.output)
    facts = {
        "what": type(asked).__doc__,
        "command": shlex.join([*PROGRAM.split(), name, *rest]),
        "seconds": round(time.monotonic() - begun, 1),
        "cpu_seconds": round(time.process_time(), 1),  # of all cores, with imports
        **environment(),
        **figures.to_dict(),
    }
    write_json("--output", beside, facts)
    wrote(asked.output, beside)
    return 0


def _measure(name: str, asked: Any) -> Any:
    """Returns the figures of an experiment; without ``output``, settings are those of Python."""
    settings, _ = _EXPERIMENTS[name]
    plain = settings(**{f.name: getattr(asked, f.name) for f in dataclasses.fields(settings)})
    measure = getattr(importlib.import_module(f"transformer_jax.laboratory.{name}"), name)
    return measure(plain, say=say)
