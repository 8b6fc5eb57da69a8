"""Training commands of ``transformer-jax``, such as ``train``: the family's entry point.

``train``, ``pretrain`` and ``finetune`` find the family by the name of the run, or by the file of
``--config``; ``resume`` and ``evaluate`` find it by the run directory.
"""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.cli import training
from transformer_jax.cli.errors import guarded
from transformer_jax.cli.run_flags import NOTE, near
from transformer_jax.errors import ConfigError, no_such_run
from transformer_jax.storage.urls import url_of

__all__ = ["COMMANDS", "main"]

PROGRAM = "transformer-jax"
# Commands, with the families that have them.
COMMANDS = {
    "train": ("seq2seq", "decoder_only"),
    "pretrain": ("encoder_only", "seq2seq"),
    "train-speech": ("seq2seq",),
    "finetune": ("encoder_only", "seq2seq"),
    "instruct": ("decoder_only",),
    "align": ("decoder_only",),
    "resume": ("seq2seq", "decoder_only", "encoder_only"),
    "evaluate": ("seq2seq", "decoder_only", "encoder_only"),
}
_OF_MODELS = {
    "encoder-decoder": "seq2seq",
    "speech": "seq2seq",
    "decoder": "decoder_only",
    "ngram": "decoder_only",
    "encoder": "encoder_only",
    "encoder-task": "encoder_only",
    "decoder-task": "encoder_only",
}


def main(arguments: Sequence[str]) -> int:
    """Run a training command; returns its exit code."""
    given = list(arguments)
    if len(COMMANDS[given[0]]) > 1 and given[1:2] in (["-h"], ["--help"]):
        return guarded(lambda: print(f"{_examples(given[0])}\n\n{NOTE}"))
    return training.main(lambda: _found(given[0], given[1:]), given)


def _examples(command: str) -> str:
    """Examples of a command, one per family."""
    lines = []
    for module in COMMANDS[command]:
        doc = _family(module).doc.replace(f"python -m experiments.{module}", PROGRAM)
        uses = re.findall(rf"^ *{PROGRAM} {command} (?:.*\\\n)*.*$", doc, re.MULTILINE)
        lines += ["", doc.splitlines()[0], "", *uses]
    return "\n".join(lines).strip()


def _found(command: str, arguments: list[str]) -> training.TrainingProgram:
    """The family that a command trains, renamed to this program."""
    modules = COMMANDS[command]
    if len(modules) == 1:
        return _family(modules[0])
    if command not in ("resume", "evaluate"):
        return _by_name(command, arguments, modules)
    for argument in arguments:
        path = Path(argument)
        if not argument.startswith("-") and (url_of(argument) or path.is_dir()):
            return _family(_of_run(path))
    named = next((argument for argument in arguments if not argument.startswith("-")), None)
    if named is not None:
        raise ConfigError(no_such_run(named))
    raise ConfigError(f"{command} needs a run directory, such as runs/NAME")


def _family(module: str) -> training.TrainingProgram:
    family = importlib.import_module(f"transformer_jax.cli.{module}").FAMILY
    found: training.TrainingProgram = family._replace(program=PROGRAM)
    return found


def _by_name(
    command: str, arguments: list[str], modules: Sequence[str]
) -> training.TrainingProgram:
    """The family with the named run of the first argument, or with the file after --config."""
    families = [_family(module) for module in modules]
    names = [family.begins[command]() for family in families]
    name = arguments[0] if arguments and not arguments[0].startswith("-") else None
    for family, runs in zip(families, names, strict=True):
        if name in runs:
            return family
    for i, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag == "--config":
            file = value if equals else next(iter(arguments[i + 1 :]), "")
            return _family(_of_run(Path(file)))
    known = {run: about for runs in names for run, about in runs.items()}
    if name is not None:
        raise ConfigError(f"no configuration is called {name}: {near(name, known)}")
    raise ConfigError(
        f"{command} needs the name of a configuration first, or --config FILE; there are "
        f"{', '.join(known)}"
    )


def _of_run(path: Path) -> str:
    """The family of the run of a directory or a ``config.json``."""
    from transformer_jax.predictors.alignment import aligned_method
    from transformer_jax.predictors.runs import family, open_directory
    from transformer_jax.training.run_directory import ConfigFile

    run = open_directory(path) if url_of(path) or path.is_dir() else ConfigFile(path)
    kind = family(run)
    if aligned_method(run) is not None:  # reward models too, which are else fine-tuned decoders
        return "decoder_only"
    if kind not in _OF_MODELS:
        raise ConfigError(f"{path}: no command trains or evaluates a model of the kind {kind}")
    return _OF_MODELS[kind]
