"""Laws on a model of another library: a Flax NNX translator, with and without faults.

The faults are from the translation tutorial of jax-ai-stack (in 2026): no mask is passed, the loss
includes padding in its mean, and ``deterministic=False`` is passed even in evaluation.
"""

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from transformer_jax import laws

D, V, LENGTH = 16, 32, 6


class Translator(nnx.Module):
    """One layer on each side."""

    def __init__(self, rngs: nnx.Rngs):
        attention = lambda: nnx.MultiHeadAttention(2, D, decode=False, rngs=rngs)
        self.words, self.places = nnx.Embed(V, D, rngs=rngs), nnx.Embed(LENGTH, D, rngs=rngs)
        self.encode, self.decode, self.cross = attention(), attention(), attention()
        self.dropout, self.out = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(D, V, rngs=rngs)

    def __call__(self, source, target, real=None, deterministic=False):
        """Returns logits [B T V]."""
        embed = lambda ids: self.words(ids) + self.places(jnp.arange(ids.shape[1]))[None]
        mask = None if real is None else jnp.asarray(real)[:, None, None]
        x, y = embed(source), embed(target)
        x = x + self.encode(x, mask=mask)
        y = y + self.decode(y, mask=nnx.make_causal_mask(target))
        return self.out(self.dropout(y + self.cross(y, x, mask=mask), deterministic=deterministic))


def check(mended: bool) -> list[laws.Finding]:
    model, draw = Translator(nnx.Rngs(0)), np.random.default_rng(0)
    source, target, labels = draw.integers(1, V, (3, 2, LENGTH))
    real = np.arange(LENGTH)[None] < np.array([[LENGTH], [3]])
    translate = lambda source, real, target: model(source, target, real if mended else None, True)

    def loss(labels, real):
        logits = translate(source, real, target)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return (each * real).sum() if mended else each.mean()

    return [
        laws.causality(lambda tokens: translate(source, real, tokens), target),
        laws.source_padding(translate, source, real, target),
        laws.loss_padding(loss, labels, real),
        laws.repeatability(lambda args: model(*args, deterministic=mended), (source, target)),
    ]


if __name__ == "__main__":
    for before, after in zip(check(mended=False), check(mended=True), strict=True):
        print(f"{before.law:<15} {before.holds!s:<6} {after.holds!s:<6} {before.where}")
