"""Evaluation of runs of ``instruct`` and ``align``: what training validates, of any checkpoint."""

import dataclasses
import functools
import math
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from transformer_jax.chat.template import find_template
from transformer_jax.data.preferences import PreferenceSplits, read_preferences
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import CheckpointError, ConfigError, DataError, plural
from transformer_jax.parallel.inference import loading_mesh
from transformer_jax.parallel.sharding import num_batch_shards
from transformer_jax.predictors.checkpoint_names import chosen_checkpoint
from transformer_jax.runs import alignment, alignment_settings, instruct, instruct_settings
from transformer_jax.runs.alignment_settings import PolicyRun, PreferenceRun, RewardConfig
from transformer_jax.runs.initial import load_pretrained
from transformer_jax.runs.instruct_settings import InstructRun
from transformer_jax.runs.reference import FAMILIES, compute_reference
from transformer_jax.runs.rewarding import (
    FLAGS,
    RewardSource,
    check_form,
    check_reward,
    reward_source,
)
from transformer_jax.runs.train import load_tokenizer
from transformer_jax.tasks.fit import allowing
from transformer_jax.tasks.preference_task import CompletionRows, Encoded
from transformer_jax.tasks.scores import table, write_scores
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Data, Task
from transformer_jax.training.validation import Validated, validate_checkpoint

__all__ = ["Asked", "evaluate", "is_tuned"]

TunedRun: TypeAlias = InstructRun | PreferenceRun | PolicyRun


@runtime_checkable
class Asked(Protocol):
    """What a command asks for.

    Attributes:
        run: The run directory.
        data: A file; None is the validation data of the run.
        reward_file: What samples are rewarded by in place of what the run was trained with.
        reward_run: The same: a reward model.
        checkpoint: As in :func:`.chosen_checkpoint`.
        output: A JSON file for the results.
    """

    run: str
    data: str | None
    reward_file: str | None
    reward_run: str | None
    checkpoint: str
    output: str | None


def is_tuned(directory: RunDirectory) -> bool:
    """Whether a run is one of ``instruct`` or ``align``.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    return not {"chat", "align"}.isdisjoint(directory.read_config())


@allowing(unknown=True)
def evaluate(asked: Asked, directory: RunDirectory) -> int:
    """Print the metrics of a run on its validation data or a file; optionally write them as JSON.

    Args:
        asked: Of which checkpoint, on what.
        directory: Of the run.

    Raises:
        ConfigError: There are no data to validate on, or a setting does not fit the run.
        DataError: A file cannot be read or holds something else, or a reward is no number.
        CheckpointError: There is no such checkpoint, or it is damaged.
    """
    run = _read(directory)
    which, average = chosen_checkpoint(asked.checkpoint)
    tokenizer, mesh = load_tokenizer(run, directory), loading_mesh()
    shards = 1 if mesh is None else num_batch_shards(mesh)
    if run.training.row_unit % shards:
        raise ConfigError(
            f"--mesh divides rows by {shards}, and the batches of {asked.run} have a multiple of "
            f"{plural(run.training.row_unit, 'row')}: choose another mesh"
        )
    splits = _preferences(asked, run, directory)
    run, source = _rewarded(asked, run, directory, tokenizer, splits)
    task = _task(asked, run, directory, tokenizer, splits, source)
    if not task.valid:
        raise ConfigError(f"{asked.run}: has no validation data: give --data")
    beside = None
    if source is not None and source.model is not None and _asks_for_a_reward(asked):
        beside = {"reward": source.model.params}
    with alignment.rewarding(source):
        found = validate_checkpoint(
            task, directory.path, which, average=average, mesh=mesh, beside=beside
        )
    name = "valid" if asked.data is None else "data"
    scores: dict[str, dict[str, Any]] = {
        name: {"step": found.step, **_scores(run, task.valid["valid"], found)}
    }
    print(table({name: _shown(scores[name])}), flush=True)
    if task.test is not None and isinstance(run, PreferenceRun):  # the table of a reward model
        said = task.test(found.model, found.step)["scores"]["valid"]
        scores[name]["reliability"] = said["reliability"]
    write_scores(asked.output, scores)
    return 0


def _read(directory: RunDirectory) -> TunedRun:
    if "chat" in directory.read_config():
        return instruct_settings.read(directory)
    run = alignment_settings.read(directory)
    if run.init_from is None and not (
        isinstance(run, PreferenceRun) and run.align.method == "reward"
    ):
        raise ConfigError(
            f"{directory.path}: adapters were merged into it, and its reference is not kept: "
            f"evaluate the run that it was made from"
        )
    return run


def _asks_for_a_reward(asked: Asked) -> bool:
    return (asked.reward_file, asked.reward_run) != (None, None)


def _preferences(asked: Asked, run: TunedRun, directory: RunDirectory) -> PreferenceSplits | None:
    """The preferences or prompts of the run, or of the file; None of a run on conversations."""
    if isinstance(run, InstructRun):
        return None
    if asked.data is None:
        return alignment.open_run(run)
    kind = run.align.kind if isinstance(run, PreferenceRun) else "prompts"
    given = read_preferences(asked.data, kind, run.data.read, "--data")
    trained = _on_conversations(run, directory)
    if trained not in (None, given.conversational):
        forms = ("texts", "conversations")
        raise ConfigError(
            f"--data {asked.data}: holds {forms[given.conversational]}, and {asked.run} was "
            f"trained on {forms[not given.conversational]}: give a file of these"
        )
    return PreferenceSplits(given, given)


def _on_conversations(run: PreferenceRun | PolicyRun, directory: RunDirectory) -> bool | None:
    """Whether a run was trained on conversations; None where nobody can tell any more."""
    if find_template(directory.path) is None:
        return False
    if run.align.method == "reward":
        return True  # a reward model of texts has no template; other runs keep that of their start
    try:
        return alignment.open_run(run).train.conversational
    except DataError:
        return None


def _rewarded(
    asked: Asked,
    run: TunedRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    splits: PreferenceSplits | None,
) -> tuple[TunedRun, RewardSource | None]:
    """The run with the reward that is asked for, and that reward."""
    given = _asks_for_a_reward(asked)
    if not isinstance(run, PolicyRun):
        if given:
            flag = "file" if asked.reward_file is not None else "run"
            raise ConfigError(
                f"--reward-{flag}: {asked.run} does not learn from rewards of samples: leave it out"
            )
        return run, None
    assert splits is not None
    if given:
        run = dataclasses.replace(run, reward=RewardConfig(asked.reward_file, asked.reward_run))
    itself = load_pretrained(str(directory.path), FAMILIES)
    flags = ("--reward-file", "--reward-run") if given else FLAGS
    check_reward(run, itself, run.first, flags)
    data = None if asked.data is None else f"--data {asked.data}"
    check_form(run, itself, splits.train, flags[1], data)
    return run, reward_source(run, tokenizer, splits)


def _task(
    asked: Asked,
    run: TunedRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    splits: PreferenceSplits | None,
    source: RewardSource | None,
) -> Task:
    """The task of the run, whose validation data are those asked for."""
    if isinstance(run, InstructRun):
        if asked.data is None:
            return instruct.make_task(run, directory, tokenizer)
        return instruct.task_on(run, directory, tokenizer, asked.data)
    assert splits is not None
    if asked.data is None:
        return alignment.make_task(run, directory, tokenizer, splits, source)
    if isinstance(run, PolicyRun):
        assert source is not None
        return alignment.policy_task(run, directory, tokenizer, splits, source)
    reference = functools.partial(_reference_of, asked.data)
    return alignment.preference_task(run, directory, tokenizer, splits, reference)


def _reference_of(
    path: str,
    run: PreferenceRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    encoded: Encoded,
    rows: CompletionRows,
) -> dict[str, np.ndarray]:
    """Log-probabilities of the reference for a file, by what the run started from."""
    del directory
    try:
        found = compute_reference(run, tokenizer, Encoded(encoded.train, None), rows)
    except CheckpointError as error:
        raise CheckpointError(
            f"--data {path}: the reference of {run.align.method} is {run.init_from}, which the run "
            f"started from, and which other pairs need: {error}"
        ) from None
    return {"train": found["train"], "valid": found["train"]}


def _scores(run: TunedRun, data: Data, found: Validated) -> dict[str, float | int]:
    """The metrics without the name of the data, and those that follow from them."""
    scores: dict[str, float | int] = {
        name.removeprefix("valid_"): value for name, value in found.scores.items()
    }
    if isinstance(run, InstructRun):
        scores["perplexity"] = math.exp(min(scores["loss"], 700.0))
        steps = range(data.plan.steps_per_epoch)
        rows = (data.make_batch(data.plan.batch(step))["weights"] for step in steps)
        scores["answer_tokens"] = int(sum(float(weights.sum()) for weights in rows))
    return scores


def _shown(scores: dict[str, Any]) -> dict[str, float]:
    """What a table shows of them."""
    return {name.replace("_", " "): value for name, value in scores.items() if name != "step"}
