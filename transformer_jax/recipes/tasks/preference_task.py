"""Preferences: a decoder trained on pairs or labels of completions, or a reward model."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Float, PyTree

from transformer_jax.core.config_fields import Configuration
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log, tracked
from transformer_jax.core.text_tables import aligned
from transformer_jax.data.plan import Batching, BatchPlan
from transformer_jax.data.preference_examples import (
    CompletionStore,
    EncodeAnswers,
    Truncation,
    encode_preferences,
)
from transformer_jax.data.preferences import Preferences, PreferenceSplits, prompt_text
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.functional.calibration import (
    Reliability,
    expected_calibration_error,
    reliability,
)
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.heads import DecoderSequenceClassifier
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.partition import EVERYTHING, Partition, merging
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.sharding import shardings
from transformer_jax.recipes.tasks.batching import has_dropout, without_dropout
from transformer_jax.recipes.tasks.fit import Side, describe_unknown
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import preference_objectives as objectives
from transformer_jax.training.batches import put_batch
from transformer_jax.training.preference_objectives import rewards
from transformer_jax.training.state import split
from transformer_jax.training.step import compile_eval
from transformer_jax.training.task import Data, Task

__all__ = [
    "Calibration",
    "CompletionRows",
    "EncodedCompletions",
    "encode_splits",
    "preference",
    "reference_log_probs",
    "reliability_table",
    "reward_config",
    "reward_model",
]


@dataclasses.dataclass(frozen=True)
class CompletionRows(Configuration, group="align"):
    """The conversion of prompts with completions to rows of batches."""

    first: int  # the start token
    max_length: int = 512  # maximum tokens of a prompt with its completion
    batching: Batching = Batching(max_tokens=4096)
    answers: EncodeAnswers | None = None  # encodes conversations, if prompts are
    truncation: Truncation = "pair"  # see encode_preferences

    def data(self, store: CompletionStore, pad: int, *, shuffle: bool = True) -> Data:
        """Returns the batches of examples."""
        plan = self.batching.plan(store.lengths, shuffle=shuffle)
        arrays = [store.store.ids, store.starts]
        arrays += [] if store.labels is None else [store.labels]
        made = lambda items: store.batch(items, pad)
        return Data.of(plan, made, arrays)


@dataclasses.dataclass(frozen=True)
class EncodedCompletions:
    """The examples of a run as ids; ``valid`` may be None."""

    train: CompletionStore
    valid: CompletionStore | None

    def parts(self) -> dict[str, CompletionStore]:
        """Returns the stores that exist, by name."""
        return {"train": self.train} | ({} if self.valid is None else {"valid": self.valid})

    def with_reference(self, found: Mapping[str, Float[np.ndarray, "n 2"]]) -> "EncodedCompletions":
        """Returns the examples with the log-probabilities of the reference, by name of the part."""
        changed = {
            name: dataclasses.replace(store, reference=found[name])
            for name, store in self.parts().items()
        }
        return dataclasses.replace(self, **changed)


def encode_splits(
    data: PreferenceSplits, tokenizer: Tokenizer, rows: CompletionRows
) -> EncodedCompletions:
    """Encodes preferences as ids; logs a summary line per part.

    Args:
        data: Preferences for training and validation.
        tokenizer: Of the model.
        rows: Start token and lengths.
    """

    def encode(part: Preferences) -> CompletionStore:
        store = encode_preferences(
            part, tokenizer, rows.first, rows.max_length, rows.answers, rows.truncation
        )
        what = "pair" if part.kind == "pairs" else "completion"
        cut = f", {plural(store.truncated, 'row')} truncated" if store.truncated else ""
        equal = f", {store.skipped:,} skipped: both rows are equal" if store.skipped else ""
        mean = plural(round(store.lengths.mean()), "token")
        ids, completions = store.store.ids, [*itertools.chain(*part.completions)]
        unknown = describe_unknown(
            part.name,
            Side("prompt", [*map(prompt_text, part.prompts)], tokenizer, ids),
            Side("completion", completions, tokenizer, ids),
        )
        log(f"{part.name}: {plural(len(store), what)} of {mean} on average{cut}{equal}{unknown}")
        return store

    train = encode(data.train)
    if data.valid is data.train:  # a file to evaluate
        return EncodedCompletions(train, train)
    return EncodedCompletions(train, None if data.valid is None else encode(data.valid))


def preference(
    encoded: EncodedCompletions,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    rows: CompletionRows,
    *,
    method: objectives.PreferenceMethod = "dpo",
    partition: Partition | None = None,
    dropout: bool = False,
    **how: float,
) -> Task:
    """Returns the task of training a policy on preferences with DPO, IPO, KTO or SimPO.

    Validation measures ``valid_loss``, ``valid_accuracy`` and ``valid_reward_margin``. The run must
    start from a trained model: set the task's ``initial``.

    Args:
        encoded: Examples, with the log-probabilities of the reference
            (:func:`reference_log_probs`); without them, the reference is a frozen copy of the
            initial model.
        config: Of the model.
        tokenizer: Of the model.
        rows: Batching of examples.
        method: The loss.
        partition: The trained parameters; None is all.
        dropout: Whether to train with the dropout of ``config``. The reference has none, so at
            the first step the policy would differ from it.
        how: Settings of :func:`transformer_jax.training.preference_objectives.preference`.
    """
    trained = EVERYTHING if partition is None else partition
    config = config if dropout else without_dropout(config)
    if method != "simpo" and encoded.train.reference is None:
        trained = objectives.beside_reference(trained)
    return _task(
        encoded,
        rows,
        tokenizer,
        config,
        model=lambda rngs: Decoder(config, rngs=rngs),
        objective=objectives.preference(method, **how),
        partition=trained,
    )


def reward_config(config: TransformerConfig) -> TransformerConfig:
    """Returns the configuration of a reward model, without an output table."""
    head = dataclasses.replace(config.head, tie_word_embeddings=True, bias=False)
    return dataclasses.replace(config, head=head)


def reward_model(
    encoded: EncodedCompletions,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    rows: CompletionRows,
    *,
    partition: Partition | None = None,
    dropout: bool = False,
) -> Task:
    """Returns the task of training a reward model, a decoder with a scalar output, on pairs.

    Validation measures ``valid_loss``, ``valid_accuracy`` and ``valid_calibration_error``; a run
    ends with the reliability table of its best checkpoint.

    Args:
        encoded: Pairs.
        config: Configuration of the decoder, see :func:`reward_config`.
        tokenizer: Of the model.
        rows: Batching of examples.
        partition: The trained parameters; None is all.
        dropout: Whether to train with the dropout of ``config``.
    """
    config = config if dropout else without_dropout(config)
    task = _task(
        encoded,
        rows,
        tokenizer,
        config,
        model=lambda rngs: DecoderSequenceClassifier(config, labels=1, rngs=rngs),
        objective=objectives.reward_model(),
        partition=EVERYTHING if partition is None else partition,
    )
    if not task.valid:
        return task
    measured = Calibration(task.valid["valid"])
    return dataclasses.replace(task, evaluate=measured.evaluate, test=measured.test)


def _task(
    encoded: EncodedCompletions,
    rows: CompletionRows,
    tokenizer: Tokenizer,
    config: TransformerConfig,
    **parts: Any,
) -> Task:
    train = rows.data(encoded.train, tokenizer.pad)
    valid = {}
    if encoded.valid is not None:
        valid["valid"] = rows.data(encoded.valid, tokenizer.pad, shuffle=False)

    def flops(batch: Mapping[str, Any]) -> float:
        B, sides, T = batch["tokens"].shape
        return training_flops(config, B * sides, T)

    return Task(
        train=train,
        valid=valid,
        metrics=(Metric("valid_loss", "lower"), Metric("valid_accuracy", "higher")),
        flops=flops,
        counts="pairs" if encoded.train.labels is None else "completions",
        regularization=("dropout",) * has_dropout(config),
        tokenizer=tokenizer,
        **parts,
    )


def reference_log_probs(
    make_model: Callable[[nnx.Rngs], nnx.Module],
    params: PyTree,
    store: CompletionStore,
    rows: CompletionRows,
    pad: int,
    mesh: Mesh,
    *,
    name: Literal["train", "valid"] = "train",
) -> Float[np.ndarray, "n 2"]:
    """Returns ``log π_ref`` of every completion; shows progress.

    Args:
        make_model: Creates the model of the reference.
        params: Its parameters, in host memory.
        store: The examples.
        rows: Batching of the examples.
        pad: Padding id.
        mesh: The devices.
        name: Name of the part, for progress.
    """
    declared = parameters(nnx.eval_shape(lambda: make_model(nnx.Rngs(0))))
    model = with_attention_kernels(
        nnx.eval_shape(lambda: make_model(nnx.Rngs(0))), mesh.devices.flat[0]
    )
    places = shardings(declared, mesh)
    placed = jax.device_put(params, places)
    merge = merging(nnx.graphdef(model))
    compute = lambda params, frozen, batch: objectives.reference_log_probs(
        merge(params, frozen, None), batch
    )
    program = compile_eval(compute, mesh, places)
    data, found = rows.data(store, pad, shuffle=False), np.zeros((len(store), 2), np.float32)
    for step in tracked(range(data.plan.steps_per_epoch), f"reference of {name}"):
        items = data.plan.batch(step)
        assert isinstance(items, BatchPlan)
        values = np.asarray(program(placed, {}, put_batch(data, items, mesh)))
        here = items.indices >= 0
        found[items.indices[here]] = values[here]
    if not np.isfinite(found).all():
        raise ConfigError(
            "the reference gives a completion a log-probability that is not finite: its weights "
            "are damaged, or model.compute.dtype is too narrow"
        )
    return found


class Calibration:
    """Accuracy and calibration of a reward model on pairs; compiled programs are reused.

    The model predicts that one of two completions is preferred, with probability
    ``σ(|r_a − r_b|)``.
    """

    def __init__(self, data: Data):
        """Takes the pairs."""
        self.data = data
        self._graph: Any = None
        self._program: Any = None

    def margins(self, model: Any) -> np.ndarray:
        """Returns the reward of the chosen minus the rejected completion, for each pair."""
        from flax import nnx

        graph, params = split(model)
        if self._program is None or graph != self._graph:
            self._graph = graph
            self._program = jax.jit(lambda params, batch: rewards(nnx.merge(graph, params), batch))
        found = []
        for step in tracked(range(self.data.plan.steps_per_epoch), "calibration"):
            items = self.data.plan.batch(step)
            assert isinstance(items, BatchPlan)
            values = np.asarray(self._program(params, self.data.make_batch(items)))
            found.append((values[:, 0] - values[:, 1])[items.indices >= 0])
        return np.concatenate(found)

    def table(self, model: Any) -> Reliability:
        """Returns the reliability table of a model."""
        margins = jnp.asarray(self.margins(model))
        return reliability(jax.nn.sigmoid(jnp.abs(margins)), margins > 0)

    def evaluate(self, model: Any) -> dict[str, float]:
        """Returns ``valid_calibration_error``."""
        error = expected_calibration_error(self.table(model))
        return {"valid_calibration_error": float(error)}

    def test(self, model: Any, step: int) -> dict[str, Any]:
        """Prints the reliability table of a model, and returns its values."""
        del step
        table = self.table(model)
        accuracy = float((table.accuracy * table.counts).sum() / max(float(table.counts.sum()), 1))
        error = float(expected_calibration_error(table))
        print(reliability_table(table), flush=True)
        print(f"accuracy {accuracy:.4f}, expected calibration error {error:.4f}", flush=True)
        rows = {name: np.asarray(column).tolist() for name, column in table._asdict().items()}
        found = {"accuracy": accuracy, "calibration_error": error, "reliability": rows}
        return {"scores": {"valid": found}}


def reliability_table(table: Reliability) -> str:
    """Formats a table with a line per bin with predictions.

    Example:
        >>> print(reliability_table(reliability(jnp.array([0.75, 0.95]), jnp.array([True, True]))))
        probability  pairs  predicted   right
        0.7 to 0.8       1     0.7500  1.0000
        0.9 to 1.0       1     0.9500  1.0000
    """
    count = len(table.counts)
    rows = [["probability", "pairs", "predicted", "right"]]
    for i, (pairs, predicted, right) in enumerate(zip(*map(np.asarray, table), strict=True)):
        if pairs:
            edges = f"{i / count:.1f} to {(i + 1) / count:.1f}"
            rows.append([edges, f"{int(pairs):,}", f"{predicted:.4f}", f"{right:.4f}"])
    return aligned(rows)
