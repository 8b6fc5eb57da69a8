"""What a run is made of: a model, data, an objective, and how results are measured."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from flax import nnx
from jaxtyping import Int

from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.training.partition import EVERYTHING, Partition
from transformer_jax.training.step import Batch, Objective, make_step

__all__ = ["Data", "Items", "Metric", "Plan", "Task", "fingerprint", "select_rows"]

_HASHED = 1 << 24  # ids at a time


@runtime_checkable
class Items(Protocol):
    """What makes up one batch, row by row; arrays of numbers are items too."""

    def __len__(self) -> int:
        """Rows of the batch, over all processes."""

    def select(self, rows: Int[np.ndarray, " b"]) -> "Items":
        """Some of the rows, such as those that one process holds."""


@runtime_checkable
class Plan(Protocol):
    """Which items make up each batch: a pure function of the step, so that runs resume exactly."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches of an epoch."""

    def batch(self, step: int) -> Any:
        """Items of batch ``step``, counted from 0 over all epochs."""

    def padding(self, start: int = 0) -> list[Any]:
        """Items of every shape, in the order in which batches after ``start`` steps need them."""


class Data(NamedTuple):
    """Batches to train or to measure on.

    Attributes:
        plan: Which items make up each batch.
        make_batch: From items, the rows of them that a process holds, to arrays whose first axis
            is rows. Dictionaries of arrays may be nested.
        fingerprint: Tells this data from others of the same sizes; a run refuses to resume on
            other data than it began with.
    """

    plan: Any
    make_batch: Callable[[Any], Batch]
    fingerprint: str = ""


class Metric(NamedTuple):
    """A measured value that ranks checkpoints.

    Attributes:
        name: As in measurements: ``valid_loss``, or what ``Task.evaluate`` returns.
        better: Which values are better.
    """

    name: str
    better: Literal["lower", "higher"]


@dataclasses.dataclass(frozen=True)
class Task:
    """What a run trains, on what, and how it is measured.

    Attributes:
        model: Makes the model from its random streams. A function, since parameters are created
            where they live.
        train: Training data.
        objective: ``(model, batch, key) -> {"loss": (sum, weight), name: (sum, weight), ...}``.
        valid: Validation data by name. Their sums are measured as ``NAME_SUM``: ``valid_loss``.
        metrics: What can rank checkpoints; the first does unless ``LoopConfig.best`` says another.
        eval_objective: What is summed over validation data, e.g. without label smoothing; None is
            ``objective``.
        evaluate: ``model -> {name: value}``, such as BLEU of what the model writes. Only the first
            process calls it, with parameters on its first device.
        test: ``(model, step) -> JSON``, results of the best checkpoint; called like ``evaluate``.
        partition: What is trained.
        initial: From drawn parameters, in host memory, to those that training begins with. Only
            called at step 0: a resumed run needs nothing of it.
        make_step: Another than :func:`make_step` where a step is more than the gradient of a batch.
        predictor: ``(model, tokenizer) -> what transformer_jax.load(directory, task) returns``,
            such as a function of texts. The model is what the objective takes, without dropout.
        regularization: What the training loss contains and the validation loss does not, such as
            "dropout", for messages and curves.
        tokenizer: Stored with the run.
        settings: A dataclass that ``config.json`` holds; None stores nothing.
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
    regularization: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    settings: Any = None


def select_rows(items: Any, rows: Int[np.ndarray, " b"]) -> Any:
    """Some rows of a batch's items.

    Example:
        >>> select_rows(np.array([5, 6, 7]), np.array([0, 2]))
        array([5, 7])
    """
    return items[rows] if isinstance(items, np.ndarray) else items.select(rows)


def fingerprint(plan: str, ids: Iterable[np.ndarray]) -> str:
    """Tells data apart: of the plan's own fingerprint and every token id, in blocks.

    Example:
        >>> fingerprint("plan", [np.arange(3)]) == fingerprint("plan", [np.arange(4)])
        False
    """
    found = hashlib.sha256(plan.encode())
    for part in ids:
        for start in range(0, len(part), _HASHED):
            found.update(np.ascontiguousarray(part[start : start + _HASHED]).data)
    return found.hexdigest()[:16]
