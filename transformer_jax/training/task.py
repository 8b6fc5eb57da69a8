"""Tasks: a model, data, an objective and metrics."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, get_type_hints, runtime_checkable

import numpy as np
from flax import nnx
from jaxtyping import Int, PyTree

from transformer_jax.core.arguments import check_values
from transformer_jax.core.config_fields import Count
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.models.partition import EVERYTHING, Partition
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.runs.manifest import DataRecord
from transformer_jax.training.step import Batch, MakeStep, Objective, make_step

__all__ = ["Data", "Items", "Plan", "Task", "fingerprint", "select_rows"]

_HASHED = 1 << 24  # ids to hash at a time


@runtime_checkable
class Items(Protocol):
    """The items of one batch, one per row, such as an array."""

    def __len__(self) -> int:
        """Number of rows of the batch, over all processes."""

    def select(self, rows: Int[np.ndarray, " b"]) -> "Items":
        """Selects rows, such as those of one process."""


@runtime_checkable
class Plan(Protocol):
    """The items of each batch, as a pure function of the step, so that runs resume exactly."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches per epoch."""

    def batch(self, step: int) -> Items | np.ndarray:
        """Returns the items of batch ``step``, counted from 0 over all epochs."""

    def padding(self, start: int = 0) -> Sequence[Items | np.ndarray]:
        """Returns items of every shape, in the order needed after ``start`` steps."""


class FingerprintedPlan(Plan, Protocol):
    """A plan with a checksum."""

    @property
    def fingerprint(self) -> str:
        """Checksum of all that the items of batches depend on."""


class Data(NamedTuple):
    """Batches for training or evaluation.

    Attributes:
        plan: The items of each batch.
        make_batch: Function from the items of a process's rows to arrays with rows as first axis,
            in possibly nested dictionaries.
        fingerprint: Checksum of the data; a run refuses to resume on training or validation data
            with a different checksum. Empty is not compared.
        threads: Number of threads that create training batches, e.g. to decode pictures.
        earlier_fingerprints: The checksum in earlier versions, if it was another.
    """

    plan: Plan
    make_batch: Callable[[Any], Batch]  # of the items of its plan
    fingerprint: str = ""
    threads: Count = 1
    earlier_fingerprints: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        plan: FingerprintedPlan,
        make_batch: Callable[[Any], Batch],
        content: Iterable[np.ndarray],
        threads: int = 1,
    ) -> "Data":
        """Returns batches with the checksum of their plan and of the arrays of their content."""
        return cls(plan, make_batch, fingerprint(plan.fingerprint, content), threads)


@dataclasses.dataclass(frozen=True)
class Task:
    """The model, the data, the objective and the metrics of a run.

    Attributes:
        model: Function that creates the model from random streams, so that parameters are created
            directly on their devices.
        train: Training data.
        objective: ``(model, batch, key) -> {"loss": (sum, weight), name: (sum, weight), ...}``.
        valid: Validation data by name. Metrics are called ``NAME_SUM``: ``valid_loss``.
        metrics: Metrics that can rank checkpoints; ``loop.best_checkpoint_metric`` chooses one, by
            default the first.
        eval_objective: Objective for validation data, e.g. without label smoothing; None is
            ``objective``.
        evaluate: ``model -> {name: value}``, such as BLEU of translations. It is called only in the
            first process, with parameters on its first device.
        test: ``(model, step) -> JSON``, results of the best checkpoint; called like ``evaluate``.
        partition: Split of the parameters into trainable and frozen.
        initial: Function from initialized parameters, in host memory, to the parameters of step 0.
            Not called by resumed runs.
        make_step: Replacement for :func:`make_step`, if a step is more than the gradient of a
            batch.
        predictor: ``(model, tokenizer) -> predictor``, the result of
            ``transformer_jax.load(directory, task)``, such as a function of texts. The model is the
            objective's, without dropout.
        flops: Function from a batch to the FLOPs of a training step, by its shapes, for MFU in
            metrics and progress. None counts the products of the traced step, if the peak of the
            devices is known; the second forward pass of ``jax.checkpoint`` counts, too.
        counts: The unit of the weight of the training loss, for speeds: "tokens", "examples".
        regularization: Terms that only the training loss includes, such as "dropout", for messages
            and curves.
        tokenizer: Tokenizer to store with the run.
        settings: A dataclass to store in ``config.json``, or None.
        means: Metrics that are means of other metrics, by name, such as ``valid_loss`` of several
            validation sets.
        inputs: Checksums of what else the run reads, by name for messages, such as a file with a
            reward function; a run refuses to resume with different ones.
        tests: Checksums of test data by name; a run that is resumed tells a change.

    Raises:
        ArgumentError: A part of another type, such as an objective that is no function.
        ConfigError: ``valid`` is no mapping, or there is no metric.
    """

    model: Callable[[nnx.Rngs], nnx.Module]
    train: Data
    objective: Objective
    valid: Mapping[str, Data] = dataclasses.field(default_factory=dict)
    metrics: tuple[Metric, ...] = (Metric("valid_loss", better="lower"),)
    eval_objective: Objective | None = None
    evaluate: Callable[[PyTree], Mapping[str, float]] | None = None
    test: Callable[[PyTree, int], Mapping[str, Json]] | None = None
    partition: Partition = EVERYTHING
    initial: Callable[[PyTree], PyTree] | None = None
    make_step: MakeStep = make_step
    predictor: Callable[[PyTree, Tokenizer | None], object] | None = None
    flops: Callable[[Mapping[str, PyTree]], float] | None = None
    counts: str = "tokens"
    regularization: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    settings: object = None
    means: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tests: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.valid, Mapping):
            raise ConfigError('valid maps names to validation data: give {"valid": data}')
        hints = get_type_hints(Task, include_extras=True)
        check_values("Task: ", hints, {name: getattr(self, name) for name in hints})
        if not self.metrics:
            raise ConfigError('metrics is empty: give tj.Metric("valid_loss", "lower") or others')
        for name, data in {"train": self.train, **self.valid}.items():
            check_values("Task: ", {name: Data}, {name: data})
            parts = get_type_hints(Data, include_extras=True)
            check_values(f"Task: {name}: ", parts, data._asdict())

    @property
    def checksums(self) -> dict[str, str]:
        """The checksums of all data but those of training, by name for messages."""
        title = lambda name: "the validation data" + (f" ({name})" if name != "valid" else "")
        held = {title(name): data.fingerprint for name, data in self.valid.items()}
        return {name: value for name, value in {**held, **self.inputs}.items() if value}

    def describe_data(self) -> DataRecord:
        """Returns the checksums for the manifests of checkpoints."""
        return {
            "fingerprint": self.train.fingerprint,
            "steps_per_epoch": self.train.plan.steps_per_epoch,
            "inputs": self.checksums,
            "tests": dict(self.tests),
        }


def select_rows(items: Items | np.ndarray, rows: Int[np.ndarray, " b"]) -> Items | np.ndarray:
    """Selects rows of a batch's items.

    Example:
        >>> select_rows(np.array([5, 6, 7]), np.array([0, 2]))
        array([5, 7])
    """
    return items[rows] if isinstance(items, np.ndarray) else items.select(rows)


def fingerprint(plan: str, ids: Iterable[np.ndarray]) -> str:
    """Returns the checksum of data, from the plan's fingerprint and all token ids.

    Example:
        >>> fingerprint("plan", [np.arange(3)]) == fingerprint("plan", [np.arange(4)])
        False
    """
    found = hashlib.sha256(plan.encode())
    for part in ids:
        for start in range(0, len(part), _HASHED):
            found.update(np.ascontiguousarray(part[start : start + _HASHED]).data)
    return found.hexdigest()[:16]
