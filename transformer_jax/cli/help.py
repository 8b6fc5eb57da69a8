"""Texts of ``--help``: the list of commands, named runs, and the usual flags of training."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformer_jax.cli.flags import flag_of, positional
from transformer_jax.cli.output import columns
from transformer_jax.core.config_fields import field_help, field_types

__all__ = ["kinds_help", "runs_help", "usual_help"]

# The settings that are changed most often, in this order; help shows the first ones of a run.
_USUAL = (
    *("init_from", "task.init_from", "data.source", "data.target", "data.train", "data.text"),
    *("data.images", "data.valid", "output", "training.epochs", "training.steps", "data.test"),
    *("optimizer.learning_rate", "training.max_tokens", "training.batch_size", "mesh.fsdp"),
    "tokenizer.vocab_size",
)
_SHOWN = 9  # without the flags of every run
_OF_EVERY_RUN = (
    ("--config FILE", "start from the settings in a config.json, which flags override"),
    ("--plan DEVICES", "only compile the run for devices, present or not: h200:8, v5e:2x4"),
    ("--resume", "continue the run if it exists"),
    ("--import MODULE", "import your Python module first"),
)


def runs_help(program: str, groups: Mapping[str, Mapping[str, tuple[str, Any]]]) -> str:
    """Returns the help of a command that starts runs: named runs and the usual flags.

    Args:
        program: The command.
        groups: Named runs with one-line descriptions, by the model that they train.
    """
    parts = [f"usage: {program} NAME [flags]"]
    for title, runs in groups.items():
        rows = ((name, about) for name, (about, _) in runs.items())
        parts.append(f"{title}:\n{columns(rows)}")
    settings = [run for runs in groups.values() for _, run in runs.values()]
    parts.append(usual_help(settings))
    parts.append(f"All flags: {program} NAME --help")
    return "\n\n".join(parts)


def kinds_help(program: str, kinds: Mapping[str, Any]) -> str:
    """Returns the help of a command whose flags depend on the kind of a run.

    Args:
        program: The command.
        kinds: The dataclass of the flags, by the kind of run.
    """
    flags = {title: dict(_flags(kind)) for title, kind in kinds.items()}
    shared = set.intersection(*map(set, flags.values()))
    parts = [f"usage: {program} RUN [flags]"]
    own: dict[str, list[str]] = {}  # tables, with their kinds of runs
    for title, texts in flags.items():
        if rows := [row for row in texts.items() if row[0] not in shared]:
            own.setdefault(columns(rows), []).append(title)
    parts += [f"{', '.join(titles)}:\n{table}" for table, titles in own.items()]
    rows = [row for row in next(iter(flags.values())).items() if row[0] in shared]
    rows.append(("--import", "Python module of yours to import first."))
    return "\n\n".join([*parts, f"every run:\n{columns(rows)}"])


def _flags(kind: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Returns the flags of a dataclass with their help; nested flags are dotted."""
    kinds = field_types(kind)
    for field in dataclasses.fields(kind):
        if positional(field):
            continue
        flag, part = flag_of(kind, field.name, prefix), kinds[field.name]
        if dataclasses.is_dataclass(part):
            yield from _flags(part, f"{flag}.")
        else:
            yield f"--{flag}", field_help(kind, field.name)


def usual_help(runs: Sequence[Any]) -> str:
    """Returns the usual flags of runs, one per line, with the defaults of a single run."""
    kinds = list({type(run): run for run in runs}.values())
    rows: dict[str, str] = {}
    for path in _USUAL:
        for run in kinds:
            for flag, text, value in _settings(run, path):
                default = f" (default: {value})" if len(runs) == 1 and value is not None else ""
                rows.setdefault(flag, text + default)
    return f"usual flags:\n{columns([*[*rows.items()][:_SHOWN], *_OF_EVERY_RUN])}"


def _settings(run: object, path: str) -> Iterator[tuple[str, str, Any]]:
    """Yields the flag, help and value of a setting by its dotted path, if the run has it.

    For a group of files it is the flag of the first file.
    """
    *groups, name = path.split(".")
    for group in groups:
        run = getattr(run, group, None)
    kind: Any = type(run)
    if not dataclasses.is_dataclass(run) or name not in field_types(kind):
        return
    flag = f"--{path.removeprefix('task.').replace('_', '-')}"
    value, text = getattr(run, name), field_help(kind, name)
    if not dataclasses.is_dataclass(value):
        yield flag, text, value
        return
    first, *others = [field.name for field in dataclasses.fields(value)]
    yield f"{flag}.{first}", f"{text} (also {', '.join(f'.{other}' for other in others)})", None
