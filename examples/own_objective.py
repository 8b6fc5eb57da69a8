"""An objective of your own with its run: a contrastive loss that compares the rows of a batch.

python examples/own_objective.py [FOLDER]
"""

import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from transformer_jax.data.plan import ArrayPlan
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.training.loop import LoopConfig
from transformer_jax.training.optimizers import OptimizerConfig, ScheduleConfig
from transformer_jax.training.task import Data, Metric, Task
from transformer_jax.training.trainer import Trainer


class Projection(nnx.Module):
    """A map whose parameters declare their axes, so that they shard."""

    def __init__(self, size: int, *, rngs: nnx.Rngs):
        draw = jax.random.normal(rngs.params(), (size, size)) * size**-0.5
        self.kernel = nnx.Param(draw, axes=("embed", "mlp"))

    def __call__(self, x):
        """Unit vectors."""
        y = x @ self.kernel[...]
        return y / jnp.linalg.norm(y, axis=-1, keepdims=True)


def contrast(model, batch, key=None):
    """Cross-entropy of each row's own partner among all of the batch."""
    scores = 5 * model(batch["left"]) @ model(batch["right"]).T
    right = (scores.argmax(-1) == jnp.arange(len(scores))).sum(dtype=jnp.float32)
    losses = -jnp.diagonal(jax.nn.log_softmax(scores))
    rows = jnp.float32(len(scores))
    return {"loss": (losses.sum(), rows), "accuracy": (right, rows)}


contrast.whole_batch = True  # micro-batches would compare fewer rows


def make_task(size: int = 8, count: int = 64) -> Task:
    """Pairs of noisy views of the same vectors, most of whose numbers are noise."""
    rng = np.random.default_rng(0)
    views = np.repeat(rng.normal(size=(1, count, size)), 2, axis=0)
    views[..., size // 2 :] = 3 * rng.normal(size=views[..., size // 2 :].shape)
    left, right = views.astype(np.float32)
    data = Data(ArrayPlan(count, 16), lambda rows: {"left": left[rows], "right": right[rows]})
    return Task(
        model=lambda rngs: Projection(size, rngs=rngs),
        train=data,
        objective=contrast,
        valid={"valid": data},
        metrics=(Metric("valid_accuracy", better="higher"),),
    )


def main(folder: str) -> float:
    """Accuracy after training."""
    optimizer = OptimizerConfig("adam", 0.02, ScheduleConfig("constant", 0))
    trainer = Trainer(
        make_task(), folder, optimizer, make_mesh(MeshConfig(), jax.devices()[:1]),
        loop=LoopConfig(evaluate_every=20),
    )  # fmt: skip
    best = trainer.fit(steps=60).best
    assert best is not None
    return best.value


if __name__ == "__main__":
    print(main(sys.argv[1] if sys.argv[1:] else tempfile.mkdtemp()))
