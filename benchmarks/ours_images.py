"""Our cases for pictures: a training step of an image classifier."""

# ruff: noqa: E402 (the allocator is set before jax is imported)

from transformer_jax.core.runtime import retain_freed_memory

retain_freed_memory()

import dataclasses

import numpy as np
from flax import nnx

from benchmarks.ours_steps import training_steps
from benchmarks.worker import serve
from transformer_jax.models.presets import vit
from transformer_jax.models.vision import ImageClassifier
from transformer_jax.training.objectives import image_classification

CLASSES = 1000


def train(width, heads, layers, hidden, image, patch, batch):
    """One AdamW step of a Vision Transformer on pictures with 1,000 classes."""
    config = vit(width, layers, image_size=image, patch_size=patch)
    config = dataclasses.replace(
        config,
        attention=dataclasses.replace(config.attention, num_heads=heads),
        feed_forward=dataclasses.replace(config.feed_forward, d_ff=hidden),
    )
    rng = np.random.default_rng(0)
    batches = [
        {
            "images": rng.standard_normal((batch, image, image, 3)).astype(np.float32),
            "labels": rng.integers(0, CLASSES, batch).astype(np.int32),
        }
        for _ in range(4)
    ]
    model = ImageClassifier(config, labels=CLASSES, rngs=nnx.Rngs(0))
    return training_steps(model, image_classification(), width, batches, weight_decay=0.05)


if __name__ == "__main__":
    serve({"train": train})
