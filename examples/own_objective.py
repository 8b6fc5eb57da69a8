"""A custom objective and its run: a contrastive loss that compares the rows of a batch."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import transformer_jax as tj


class Projection(nnx.Module):
    """A map whose parameters declare their axes, so that they can be sharded."""

    def __init__(self, size: int, *, rngs: nnx.Rngs):
        draw = jax.random.normal(rngs.params(), (size, size)) * size**-0.5
        self.kernel = nnx.Param(draw, axes=("embed", "mlp"))

    def __call__(self, x):
        """Returns unit vectors."""
        y = x @ self.kernel[...]
        return y / jnp.linalg.norm(y, axis=-1, keepdims=True)


def contrast(model, batch, key=None):
    """Cross-entropy of each row's partner among all rows of the batch."""
    scores = 5 * model(batch["left"]) @ model(batch["right"]).T
    right = (scores.argmax(-1) == jnp.arange(len(scores))).sum(dtype=jnp.float32)
    loss, rows = -jnp.trace(jax.nn.log_softmax(scores)), jnp.float32(len(scores))
    return {"loss": (loss, rows), "accuracy": (right, rows)}


contrast.whole_batch = True  # micro-batches would compare fewer rows


def main(folder: str = "runs/own-objective") -> float:
    # Pairs of noisy views of the same vectors, with mostly noise.
    rng = np.random.default_rng(0)
    views = np.repeat(rng.normal(size=(1, 64, 8)), 2, axis=0)
    views[..., 4:] = 3 * rng.normal(size=(2, 64, 4))
    left, right = views.astype(np.float32)
    data = tj.Data(tj.ArrayPlan(64, 16), lambda rows: {"left": left[rows], "right": right[rows]})
    best = (tj.Metric("valid_accuracy", better="higher"),)
    task = tj.Task(lambda rngs: Projection(8, rngs=rngs), data, contrast, {"valid": data}, best)
    adam = tj.OptimizerConfig("adam", 0.02, tj.ScheduleConfig("constant", 0))
    mesh = tj.make_mesh(devices=jax.devices()[:1])
    trainer = tj.Trainer(task, folder, adam, mesh, loop=tj.LoopConfig(evaluate_every=20))
    print(f"accuracy {(accuracy := trainer.fit(steps=60).best.value):.3f}")
    return accuracy


if __name__ == "__main__":
    main(*sys.argv[1:])
