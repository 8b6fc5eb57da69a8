"""Checks of a training command before it waits in the queue of a cluster."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.cli.commands import PROGRAM, import_modules
from transformer_jax.cli.resuming import resume_flags, unfinished
from transformer_jax.cli.run_flags import asked_run, parse_flags
from transformer_jax.cli.training import COMMANDS, every_kind, take_plan
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.storage.urls import url_of

if TYPE_CHECKING:
    from transformer_jax.recipes.settings import RunSettings, Trained

__all__ = ["check_command"]

# Settings whose values are files, folders or runs. Those of the data may have parts, such as
# data.test.source.
_FILES = ("tokenizer.path", "model.embedding.init", "reward.file")
_OF_DATA = ("images", "jsonl", "pairs", "source", "target", "test", "text", "train", "valid")
_RUNS = ("init_from", "task.init_from", "init_encoder", "reward.run")


def check_command(words: Sequence[str], devices: int, plan: str, *, files: bool) -> None:
    """Refuses a training command that would be refused at its start, without starting it.

    Commands that do not train are not checked.

    Args:
        words: A command of ``transformer-jax`` and its arguments.
        devices: Number of devices of all machines.
        plan: The devices, for messages.
        files: Whether the paths of the command are also those of this machine.

    Raises:
        UserError: The command, its settings, the mesh or a file is refused.
    """
    command, *arguments = import_modules(words)
    if command not in COMMANDS or command == "evaluate":
        return
    if {"-h", "--help"} & {*arguments}:
        raise ConfigError(f"{command} --help needs no cluster: leave launch out")
    if command == "resume":
        if files:
            _check_resume(arguments, devices, plan)
        return
    _check_start(command, [word for word in arguments if word != "--resume"], devices, plan, files)


def _check_resume(arguments: Sequence[str], devices: int, plan: str) -> None:
    from transformer_jax.inference.pretrained import open_directory

    kind = resume_flags()
    asked = parse_flags(kind, f"{PROGRAM} resume", arguments)
    try:
        run = unfinished(open_directory(asked.run, asked.allow_changed_config))
    except Exception as error:
        raise _elsewhere(error) from None
    default = kind(asked.run, loop=run.loop, mesh=run.mesh)
    mesh = parse_flags(kind, f"{PROGRAM} resume", arguments, default).mesh
    again = [path for path in _paths(run) if path[0].startswith(("data.", "reward."))]
    _check_there(again)  # what is read when the run is resumed
    _check_mesh(dataclasses.replace(run, mesh=mesh), devices, plan)


def _check_start(
    command: str, arguments: Sequence[str], devices: int, plan: str, files: bool
) -> None:
    from transformer_jax.recipes.checks import validated_settings
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.registry import get_recipe
    from transformer_jax.recipes.settings import Trained, start_config

    target, _, arguments = take_plan(arguments)
    if target is not None:
        raise ConfigError("--plan after -- only plans: leave it out, or leave launch out")
    _, run, named, _ = asked_run(f"{PROGRAM} {command}", every_kind().commands, arguments)
    if isinstance(run, Trained):
        _check_mesh(run, devices, plan)
    paths = list(_paths(run))
    if files:
        _check_there(paths)
    recipe = get_recipe(run.recipe)
    if not any(name.startswith("data.") for name, _ in paths) and not _built_in(run):
        recipe.data(run)  # which says what data it needs
    # Sizes of a start are unknown until it is read.
    if isinstance(run, Trained) and start_config(run).init_from is None and not recipe.needs_start:
        without = run if files or run.tokenizer is None else _without_files(run)
        validated_settings(without, Given(named))


def _check_mesh(run: "Trained", devices: int, plan: str) -> None:
    """Refuses a mesh that the devices cannot form, and batches that they cannot divide."""
    from transformer_jax.parallel.mesh import mesh_shape
    from transformer_jax.recipes.checks import check_rows
    from transformer_jax.recipes.settings import ExampleBatches

    try:
        mesh_shape(run.mesh, devices)
    except ConfigError as error:
        raise ConfigError(f"{plan}: {error}") from None
    if isinstance(run.training, ExampleBatches):
        check_rows(run, devices)


def _paths(run: "RunSettings") -> Iterator[tuple[str, str]]:
    """Yields the files and folders of a run's settings, with the setting of each."""
    from transformer_jax.data.pair_files import named_files
    from transformer_jax.runs.config_guard import leaves

    for name, value in leaves(dataclasses.asdict(run)).items():
        group, _, rest = name.partition(".")
        of_data = group == "data" and rest.partition(".")[0] in _OF_DATA
        counts = name == "data.pairs" and _built_in(run)  # of sentences, a-b=10000
        if not value or counts or not (of_data or name in (*_FILES, *_RUNS)):
            continue
        if isinstance(value, str):
            yield name, value
        else:  # pairs of languages
            for files in named_files(value, name).values():
                yield from ((name, path) for path in files.split(","))


def _check_there(paths: Sequence[tuple[str, str]]) -> None:
    from transformer_jax.inference.pretrained import open_directory

    for name, path in paths:
        if url_of(path) is not None:
            continue
        try:
            if name in _RUNS:
                open_directory(path)
            elif not os.path.exists(path):
                raise ConfigError(f"{name} {path}: no such file (looked from {Path.cwd()})")
        except Exception as error:
            raise _elsewhere(error) from None


def _elsewhere(error: Exception) -> Exception:
    """Returns an error with the way out for paths of the cluster alone."""
    from transformer_jax.core.errors import UserError

    if not isinstance(error, UserError):
        return error
    return type(error)(f"{error}; if it is on the cluster alone, add --cluster-paths before --")


def _built_in(run: "RunSettings") -> bool:
    data = run.data
    return any(getattr(data, name, None) is not None for name in ("corpus", "tfds"))


def _without_files(run: "Trained") -> "Trained":
    return dataclasses.replace(run, tokenizer=dataclasses.replace(run.tokenizer, path=None))
