"""Tasks: a model, data, an objective and metrics."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from flax import nnx
from jaxtyping import Int

from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.models.partition import EVERYTHING, Partition
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training.step import Batch, Objective, make_step

__all__ = ["Data", "Items", "Plan", "Task", "fingerprint", "select_rows"]

_HASHED = 1 << 24  # ids at a time


@runtime_checkable
class Items(Protocol):
    """The items of one batch, row by row; arrays of numbers are items too."""

    def __len__(self) -> int:
        """Rows of the batch, over all processes."""

    def select(self, rows: Int[np.ndarray, " b"]) -> "Items":
        """Some of the rows, such as those that one process holds."""


@runtime_checkable
class Plan(Protocol):
    """The items of each batch as a pure function of the step, so that runs resume exactly."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""

    def batch(self, step: int) -> Any:
        """Items of batch ``step``, counted from 0 over all epochs."""

    def padding(self, start: int = 0) -> list[Any]:
        """Items of every shape, in the order in which batches after ``start`` steps need them."""


class Data(NamedTuple):
    """Batches for training or evaluation.

    Attributes:
        plan: Which items make up each batch.
        make_batch: From items, the rows of them that a process holds, to arrays whose first axis
            is rows. Dictionaries of arrays may be nested.
        fingerprint: Checksum of the data; a run refuses to resume on data with another one.
        threads: How many training batches are made at once, such as those that decode pictures.
    """

    plan: Any
    make_batch: Callable[[Any], Batch]
    fingerprint: str = ""
    threads: int = 1


@dataclasses.dataclass(frozen=True)
class Task:
    """The model, the data, the objective and the metrics of a run.

    Attributes:
        model: Makes the model from its random streams. A function, since parameters are created
            where they live.
        train: Training data.
        objective: ``(model, batch, key) -> {"loss": (sum, weight), name: (sum, weight), ...}``.
        valid: Validation data by name. Their sums are measured as ``NAME_SUM``: ``valid_loss``.
        metrics: Metrics that can rank checkpoints; ``loop.best_checkpoint_metric`` chooses one,
            else the first does.
        eval_objective: Objective for validation data, e.g. without label smoothing; None is
            ``objective``.
        evaluate: ``model -> {name: value}``, such as BLEU of translations. Only the first
            process calls it, with parameters on its first device.
        test: ``(model, step) -> JSON``, results of the best checkpoint; called like ``evaluate``.
        partition: Split of the parameters into trainable and frozen.
        initial: Function from initialized parameters, in host memory, to those of step 0. A
            resumed run does not call it.
        make_step: Replacement of :func:`make_step`, if a step is more than the gradient of a batch.
        predictor: ``(model, tokenizer) -> what transformer_jax.load(directory, task) returns``,
            such as a function of texts. The model is what the objective takes, without dropout.
        flops: FLOPs of a training step on a batch, from the shapes of its arrays; MFU in metrics
            and progress needs it.
        counts: What the weight of the training loss counts, for speeds: "tokens", "examples".
        regularization: Names of what only the training loss contains, such as "dropout", for
            messages and curves.
        tokenizer: Stored with the run.
        settings: A dataclass that ``config.json`` holds; None stores nothing.
        means: Metrics that are means of others, by name, such as ``valid_loss`` of several
            validation sets.
    """

    model: Callable[[nnx.Rngs], nnx.Module]
    train: Data
    objective: Objective
    valid: Mapping[str, Data] = dataclasses.field(default_factory=dict)
    metrics: tuple[Metric, ...] = (Metric("valid_loss", better="lower"),)
    eval_objective: Objective | None = None
    evaluate: Callable[[Any], Mapping[str, float]] | None = None
    test: Callable[[Any, int], Mapping[str, Any]] | None = None
    partition: Partition = EVERYTHING
    initial: Callable[[Any], Any] | None = None
    make_step: Callable[..., Any] = make_step
    predictor: Callable[[Any, Tokenizer | None], Any] | None = None
    flops: Callable[[Mapping[str, Any]], float] | None = None
    counts: str = "tokens"
    regularization: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    settings: Any = None
    means: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)


def select_rows(items: Any, rows: Int[np.ndarray, " b"]) -> Any:
    """Some rows of a batch's items.

    Example:
        >>> select_rows(np.array([5, 6, 7]), np.array([0, 2]))
        array([5, 7])
    """
    return items[rows] if isinstance(items, np.ndarray) else items.select(rows)


def fingerprint(plan: str, ids: Iterable[np.ndarray]) -> str:
    """The checksum of data, from the plan's fingerprint and every token id.

    Example:
        >>> fingerprint("plan", [np.arange(3)]) == fingerprint("plan", [np.arange(4)])
        False
    """
    found = hashlib.sha256(plan.encode())
    for part in ids:
        for start in range(0, len(part), _HASHED):
            found.update(np.ascontiguousarray(part[start : start + _HASHED]).data)
    return found.hexdigest()[:16]
