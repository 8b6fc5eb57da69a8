"""Evaluation of any checkpoint with the validation metrics, on the run's data or a file."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from transformer_jax.core.config_fields import Flag
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.recipes.read_flags import RowFlags
from transformer_jax.recipes.settings import Trained

if TYPE_CHECKING:
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task
    from transformer_jax.training.validation import Validated

__all__ = ["ValidationFlags", "answer_scores", "plain_scores", "print_scores", "validate"]


@dataclasses.dataclass(frozen=True)
class ValidationFlags(RowFlags):
    """Print the validation metrics."""

    data: Annotated[str | None, Flag(also=("data.valid",))] = None
    """JSONL file of conversations, pairs, labels or prompts; None is the validation data of the
    run."""


def validate(
    request: Any,
    run: Trained,
    directory: "RunDirectory",
    task: "Task",
    beside: Mapping[str, Any] | None = None,
) -> "Validated":
    """Returns the metrics of a checkpoint on the validation data of a task, and the model.

    Args:
        request: The flags, with the checkpoint.
        run: The settings.
        directory: Of the run.
        task: The task of the run.
        beside: Frozen parameters, which checkpoints do not store.

    Raises:
        ConfigError: There are no validation data, or their rows cannot be divided over the devices.
        CheckpointError: The checkpoint does not exist, or is damaged.
    """
    from transformer_jax.inference.pretrained import chosen_checkpoint
    from transformer_jax.parallel.sharding import num_batch_shards
    from transformer_jax.training.validation import validate_checkpoint

    mesh, unit = request.opening().mesh, run.training.row_unit
    shards = 1 if mesh is None else num_batch_shards(mesh)
    if unit % shards:
        raise ConfigError(
            f"--mesh divides rows by {shards}, but the batches of {request.run} have a multiple of "
            f"{plural(unit, 'row')}: choose another mesh"
        )
    if not task.valid:
        raise ConfigError(f"{request.run}: no validation data: give --data")
    which, average = chosen_checkpoint(request.checkpoint)
    return validate_checkpoint(
        task, directory.path, which, average=average, mesh=mesh, beside=beside
    )


def plain_scores(validated: "Validated") -> dict[str, Any]:
    """Returns the step and the metrics, without the name of the data."""
    scores = {name.removeprefix("valid_"): value for name, value in validated.scores.items()}
    return {"step": validated.step, **scores}


def answer_scores(task: "Task", validated: "Validated") -> dict[str, Any]:
    """Returns the metrics of conversations, with perplexity and number of tokens."""
    scores, data = plain_scores(validated), task.valid["valid"]
    scores["perplexity"] = math.exp(min(scores["loss"], 700.0))
    steps = range(data.plan.steps_per_epoch)
    rows = (data.make_batch(data.plan.batch(step))["weights"] for step in steps)
    scores["answer_tokens"] = int(sum(float(weights.sum()) for weights in rows))
    return scores


def print_scores(
    request: Any, scores: dict[str, Any], more: Callable[[], dict[str, Any]] = dict
) -> int:
    """Prints a table of scores, writes the file of ``--output`` and returns the exit code.

    Args:
        request: The flags.
        scores: Scores by name.
        more: Prints text after the table, and returns further scores for the file.
    """
    from transformer_jax.recipes.tasks.scores import table, write_scores

    name = "valid" if request.data is None else "data"
    shown = {what.replace("_", " "): value for what, value in scores.items() if what != "step"}
    print(table({name: shown}), flush=True)
    write_scores(request.output, {name: scores | more()})
    return 0
