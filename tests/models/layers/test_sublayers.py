"""Sub-layers of a block: which tokens each of them mixes, their formula, their gradients at depth.

Rows B2, U8 and B11.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import compiled, drawn, normals
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    FeedForwardConfig,
    NormConfig,
    TransformerConfig,
)
from transformer_jax.models.transformer.layers import Attention, FeedForward, Stack

T, D, F = 4, 8, 12
SIZES = {"vocab_size": 8, "d_model": D, "encoder_layers": 1, "decoder_layers": 0}


def config(**feed_forward):
    return TransformerConfig(
        **SIZES,
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=F, **feed_forward),
    )


def made(module):
    graph, params = drawn(lambda: module(config(), rngs=nnx.Rngs(0)))
    return nnx.merge(graph, params)


@pytest.mark.parametrize("module", [Attention, FeedForward])
def test_b2_attention_mixes_tokens_and_the_feed_forward_layer_does_not(module):
    """The Jacobian over tokens is block diagonal for the second sub-layer alone."""

    def jacobian(layer, x):
        run = lambda x: layer(x[None])[0][0] if module is Attention else layer(x)
        return jax.jacrev(run)(x)

    [x] = normals((T, D))
    across = np.abs(compiled(made(module), jacobian)(x)).max((1, 3))
    assert across.diagonal().min() > 1e-2
    others = across[~np.eye(T, dtype=bool)]
    assert others.min() > 1e-3 if module is Attention else others.max() == 0


erf = np.vectorize(math.erf)
NUMPY = {
    "relu": lambda x: np.maximum(0, x),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize(
    ("activation", "gated"), [("relu", False), ("gelu", False), ("silu", True)]
)
def test_u8_the_feed_forward_layer_is_its_formula_row_by_row(activation, gated):
    """FFN(x) = max(0, x W₁ + b₁) W₂ + b₂, or with another activation, or gated (SwiGLU)."""
    graph, params = drawn(
        lambda: FeedForward(config(activation=activation, gated=gated), rngs=nnx.Rngs(0))
    )
    layer = compiled(nnx.merge(graph, params))
    [x] = normals((T, D))
    wide = jax.tree.map(lambda array: np.asarray(array, np.float64), params)
    linear = lambda x, part: x @ wide[part]["kernel"] + wide[part]["bias"]
    rows = np.asarray(x, np.float64)
    hidden = NUMPY[activation](linear(rows, "up"))
    hidden = hidden * linear(rows, "gate") if gated else hidden
    np.testing.assert_allclose(layer(x), linear(hidden, "down"), rtol=1e-5, atol=1e-6)
    order = np.array([2, 0, 3, 1])
    np.testing.assert_array_equal(layer(x[order]), layer(x)[order])


LAYERS, WIDTH = 12, 32


def glorot(path, leaf):
    """Parameters as a new model has them, drawn by NumPy: XLA would compile for seconds."""
    name = jax.tree_util.keystr(path)
    if "kernel" not in name:
        return jnp.full(leaf.shape, float("gain" in name))
    limit = math.sqrt(6 / sum(leaf.shape[1:]))
    return jnp.asarray(np.random.default_rng(len(name)).uniform(-limit, limit, leaf.shape), "f")


def gradient_norms(placement):
    """The norm of the gradient of each layer of a new stack of twelve."""
    deep = TransformerConfig(
        vocab_size=8,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=0,
        attention=AttentionConfig(num_heads=4, implementation="xla"),
        feed_forward=FeedForwardConfig(d_ff=2 * WIDTH),
        norm=NormConfig(placement=placement),
        compute=ComputeConfig(scan_layers=True),
    )
    make = lambda: Stack(deep, LAYERS, decoder=False, cross=False, rngs=nnx.Rngs(0))
    graph, state = nnx.split(nnx.eval_shape(make))
    params = jax.tree_util.tree_map_with_path(glorot, nnx.to_pure_dict(state))
    x, readout = normals((4, 8, WIDTH), (4, 8, WIDTH))
    loss = lambda params: (nnx.merge(graph, params)(x) * readout).mean()
    layers = jax.tree.leaves(jax.jit(jax.grad(loss))(params)["blocks"])
    return np.sqrt(sum(np.square(g).reshape(LAYERS, -1).sum(1) for g in layers))


@pytest.mark.slow
def test_b11_gradients_at_depth_twelve_by_placement_of_the_norm():
    """With the norm before sub-layers the last layers learn least; after them, all learn alike.

    Xiong et al. 2020, theorem 1: the gradient of the last layer is smaller by about √L.
    """
    post, pre, sandwich = map(gradient_norms, ("post", "pre", "sandwich"))
    assert all(np.isfinite(norms).all() for norms in (post, pre, sandwich))
    for norms in (pre, sandwich):
        assert norms[0] > norms[LAYERS // 2 - 1] > norms[-1]
    assert 0.5 < post[0] / post[-1] < 2
    assert post[-1] > 2 * pre[-1]
