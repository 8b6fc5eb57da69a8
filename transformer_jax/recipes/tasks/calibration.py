"""Calibration of a reward model's probabilities on pairs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.core.task_progress import tracked
from transformer_jax.data.plan import BatchPlan
from transformer_jax.functional.calibration import (
    Reliability,
    expected_calibration_error,
    reliability,
)
from transformer_jax.recipes.tasks.scores import aligned
from transformer_jax.training.preference_objectives import rewards
from transformer_jax.training.state import split
from transformer_jax.training.task import Data

__all__ = ["Calibration", "reliability_table"]


class Calibration:
    """Accuracy and calibration of a reward model on pairs; its programs are kept.

    The model predicts that one of two completions is preferred, with probability
    ``σ(|r_a − r_b|)``.
    """

    def __init__(self, data: Data):
        """Takes the pairs."""
        self.data = data
        self._graph: Any = None
        self._program: Any = None

    def margins(self, model: Any) -> np.ndarray:
        """Returns the reward of the chosen completion minus the rejected one's, for each pair."""
        from flax import nnx

        graph, params = split(model)
        if self._program is None or graph != self._graph:
            self._graph = graph
            self._program = jax.jit(lambda params, batch: rewards(nnx.merge(graph, params), batch))
        found = []
        for step in tracked(range(self.data.plan.steps_per_epoch), "calibration"):
            items: BatchPlan = self.data.plan.batch(step)
            values = np.asarray(self._program(params, self.data.make_batch(items)))
            found.append((values[:, 0] - values[:, 1])[items.indices >= 0])
        return np.concatenate(found)

    def table(self, model: Any) -> Reliability:
        """The reliability table of a model."""
        margins = jnp.asarray(self.margins(model))
        return reliability(jax.nn.sigmoid(jnp.abs(margins)), margins > 0)

    def evaluate(self, model: Any) -> dict[str, float]:
        """``valid_calibration_error``."""
        error = expected_calibration_error(self.table(model))
        return {"valid_calibration_error": float(error)}

    def test(self, model: Any, step: int) -> dict[str, Any]:
        """Prints the reliability table of a model, and returns what it says."""
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
    """A line for each bin that holds predictions.

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
