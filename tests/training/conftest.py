"""A small model with the interface of ours, and batches of sentences of uneven length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer_jax.functional.losses import OutputTable

V, D, N, F = 24, 16, 4, 32


class ToyBlock(nnx.Module):
    def __init__(self, rngs):
        size = {"embed": D, "heads": D, "mlp": F}

        def linear(*axes):
            kernel = jax.random.normal(rngs.params(), [size[axis] for axis in axes])
            kernel = nnx.Param(kernel * size[axes[0]] ** -0.5, axes=axes)
            return nnx.Dict(kernel=kernel, bias=nnx.Param(jnp.zeros(size[axes[1]]), axes=axes[1:]))

        self.self_attention = nnx.Dict(
            {name: linear("embed", "heads") for name in ("query", "key", "value")},
            out=linear("heads", "embed"),
        )
        self.feed_forward = nnx.Dict(up=linear("embed", "mlp"), down=linear("mlp", "embed"))
        self.feed_forward_norm = nnx.Dict(gain=nnx.Param(jnp.ones(D), axes=("embed",)))

    def __call__(self, x, seen):
        product = lambda x, to: x @ to["kernel"][...] + to["bias"][...][None, None]
        heads = lambda name: product(x, self.self_attention[name]).reshape(*x.shape[:2], N, D // N)
        y = jax.nn.dot_product_attention(heads("query"), heads("key"), heads("value"), mask=seen)
        x = x + product(y.reshape(x.shape), self.self_attention["out"])
        x = x + product(jax.nn.gelu(product(x, self.feed_forward["up"])), self.feed_forward["down"])
        return (
            x
            * jax.lax.rsqrt(1e-6 + jnp.mean(x * x, -1, keepdims=True))
            * (self.feed_forward_norm["gain"][...][None, None])
        )


class Toy(nnx.Module):
    """Reads source and target as one sequence and predicts the target."""

    def __init__(self, rngs, dropout=0.0):
        self.embedding = nnx.Dict(
            table=nnx.Param(jax.random.normal(rngs.params(), (V, D)), axes=("vocab", "embed"))
        )
        self.encoder = nnx.Dict(blocks=nnx.List([ToyBlock(rngs) for _ in range(2)]))
        self.dropout = dropout

    def hidden(self, inputs, tokens, *, key=None):
        source, source_lengths = inputs["source"], inputs["source_lengths"]
        S, T = source.shape[1], tokens.shape[1]
        x = self.embedding["table"][...][jnp.concatenate([source, tokens], 1)]
        if key is not None and self.dropout:
            x = jnp.where(jax.random.bernoulli(key, 1 - self.dropout, x.shape), x, 0.0)
        there = jnp.arange(S + T)[None] < source_lengths[:, None]
        written = (jnp.arange(S + T) >= S)[None] & jnp.tri(S + T, dtype=bool)
        seen = there[:, None] | written[None]
        for block in self.encoder["blocks"]:
            x = block(x, seen[:, None])
        return x[:, S:]

    def __call__(self, source, target, source_lengths, *, key=None):
        inputs = {"source": source, "source_lengths": source_lengths}
        return self.output_table().logits(self.hidden(inputs, target, key=key))

    def output_table(self):
        return OutputTable(self.embedding["table"][...], None, 1.0, None)


@pytest.fixture
def make_toy():
    return lambda: Toy(nnx.Rngs(0))


@pytest.fixture
def make_dropping_toy():
    return lambda: Toy(nnx.Rngs(0), dropout=0.5)


def draw_sentences(number=0, rows=16):
    """A batch by its number: rows of uneven length, the last two of them only padding."""
    rng = np.random.default_rng(number)
    lengths = rng.integers(1, 8, rows)
    lengths[-2:] = 0
    inputs = {
        "source": rng.integers(3, V, (rows, 5)).astype(np.int32),
        "source_lengths": rng.integers(1, 6, rows).astype(np.int32),
    }
    target = rng.integers(3, V, (rows, 7)).astype(np.int32)
    return {"inputs": inputs, "target": target, "lengths": lengths.astype(np.int32)}


@pytest.fixture
def sentences():
    return draw_sentences
