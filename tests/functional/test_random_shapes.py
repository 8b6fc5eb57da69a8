"""Functions in the forms of each platform equal their formulas on shapes drawn anew each time."""

import dataclasses
import os

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.drawing import drawn, normals, value_and_pullback
from tests.functional import formulas
from tests.platforms import trace_for
from transformer_jax.functional import layers
from transformer_jax.functional.kernels import products
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.partition import merging
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder
from transformer_jax.training import step as steps
from transformer_jax.training.objectives import language_model, sequence_to_sequence
from transformer_jax.training.state import TrainState

pytestmark = pytest.mark.slow
PLATFORMS = ("cpu", "cuda", "tpu")


class Draw:
    """Draws shapes and choices; a failing test shows its seed."""

    def __init__(self):
        self.seed = int.from_bytes(os.urandom(4))
        self.rng = np.random.default_rng(self.seed)
        print("seed", self.seed)

    def size(self, most, least=1):
        return int(self.rng.integers(least, most + 1))

    def one_of(self, *values):
        return values[self.rng.integers(len(values))]

    def rows(self):
        return tuple(self.size(6) for _ in range(self.size(3, 0)))

    def arrays(self, *shapes):
        return normals(*shapes, seed=self.seed, dtype=jnp.float64)


def same(ours, plain, tolerance=1e-11):
    chex.assert_trees_all_close(ours, plain, rtol=tolerance, atol=tolerance)


def compare(monkeypatch, ours, plain, cotangent, *args):
    """Value and gradients on each platform are those of the formula."""
    with jax.numpy_rank_promotion("allow"):
        wanted = value_and_pullback(plain, cotangent, *args)
    for platform in PLATFORMS:
        with monkeypatch.context() as patch:
            trace_for(patch, platform)
            same(value_and_pullback(ours, cotangent, *args), wanted)


@pytest.mark.parametrize("attempt", range(8))
def test_norms(monkeypatch, attempt):
    draw = Draw()
    shape, eps = (*draw.rows(), draw.size(900, 2)), draw.one_of(1e-12, 1e-5, 1e-3)
    with jax.enable_x64():
        x, g, gain, bias = draw.arrays(shape, shape, shape[-1:], shape[-1:])
        x = draw.one_of(0, 3, 50) + draw.one_of(0.1, 1, 30) * x
        for given in ((gain, bias), (gain, None)):
            ours = lambda *a: layers.layer_norm(*a, eps)
            compare(monkeypatch, ours, lambda *a: formulas.layer_norm(*a, eps), g, x, *given)
        ours = lambda *a: layers.rms_norm(*a, eps)
        compare(monkeypatch, ours, lambda *a: formulas.rms_norm(*a, eps), g, x, gain)


@pytest.mark.parametrize("attempt", range(8))
def test_linear_maps(monkeypatch, attempt):
    draw = Draw()
    B, T, D = draw.size(4), draw.size(40), draw.size(90)
    widths = [draw.size(70) for _ in range(draw.size(4))]
    with jax.enable_x64():
        x, *rest = draw.arrays(
            (B, T, D),
            *((D, F) for F in widths),
            *((F,) for F in widths),
            *((B, T, F) for F in widths),
        )
        count = len(widths)
        kernels, biases, g = (tuple(rest[i * count : (i + 1) * count]) for i in range(3))
        if draw.one_of(True, False):
            biases = tuple(draw.one_of(bias, None) for bias in biases)
        plain = lambda x, kernels, biases: tuple(map(formulas.linear, [x] * count, kernels, biases))
        compare(monkeypatch, layers.linear_maps, plain, g, x, kernels, biases)


@pytest.mark.parametrize("attempt", range(4))
def test_a_row_alone(monkeypatch, attempt):
    draw = Draw()
    axes, D, F = (1,) * draw.size(3), draw.size(90), draw.size(300)
    with jax.enable_x64():
        x, kernel, g = draw.arrays((*axes, D), (F, D), (*axes, F))
        compare(monkeypatch, products.matmul_transposed, lambda x, b: x @ b.T, g, x, kernel)
    B, N, S, H = draw.size(4), draw.size(4), draw.size(600), draw.size(70)
    q, k, w, v = normals((B, N, 1, H), (B, N, S, H), (B, N, 1, S), (B, N, S, H))
    for platform in PLATFORMS:
        with monkeypatch.context() as patch:
            trace_for(patch, platform)
            same(products.query_key_product(q, k), q @ k.swapaxes(2, 3), 1e-4)
            same(products.value_product(w, v), w @ v, 1e-4)


@pytest.mark.parametrize("attempt", range(4))
def test_activations(monkeypatch, attempt):
    draw = Draw()
    shape = (*draw.rows(), draw.size(500))
    with jax.enable_x64():
        x, g = draw.arrays(shape, shape)
        x = draw.one_of(0.1, 1, 10, 1e3) * x
        for name in ("gelu", "gelu_tanh"):
            compare(monkeypatch, getattr(layers, name), getattr(formulas, name), g, x)


@pytest.mark.parametrize("attempt", range(4))
def test_norm_of_gradients(attempt):
    draw = Draw()
    shapes = [draw.rows() for _ in range(draw.size(4))]
    with jax.enable_x64():
        grads = draw.arrays(*(draw.one_of(*shapes) for _ in range(draw.size(12))))
        same(steps._norm_by_shape(grads), optax.tree.norm(grads))


@pytest.mark.parametrize("attempt", range(8))
def test_a_step(monkeypatch, attempt):
    """All forms together: embeddings, blocks, loss, and the norm of gradients."""
    draw = Draw()
    decodes, heads, V = attempt % 2 == 0, draw.size(3), draw.size(90, 4)
    norm = NormConfig(
        kind=draw.one_of("layer", "rms"), placement=draw.one_of("pre", "post"), bias=False
    )
    if norm.kind == "layer":
        norm = dataclasses.replace(norm, bias=draw.one_of(True, False))
    bias = draw.one_of(True, False)
    config = TransformerConfig(
        vocab_size=V,
        d_model=heads * draw.one_of(4, 6),
        encoder_layers=0 if decodes else draw.size(2),
        decoder_layers=draw.size(2),
        positions=PositionConfig(kind=draw.one_of("learned", "sinusoidal", "none"), max_length=64),
        attention=AttentionConfig(num_heads=heads, bias=bias, out_bias=bias),
        feed_forward=FeedForwardConfig(
            d_ff=draw.size(30), activation=draw.one_of("gelu", "gelu_tanh", "relu"), bias=bias
        ),
        norm=norm,
        head=HeadConfig(bias=draw.one_of(True, False)),
        compute=ComputeConfig(logits_chunk=draw.one_of(None, 5)),
    )
    B, T, S = draw.size(4), draw.size(30, 2), draw.size(20, 2)
    integers = lambda high, *shape: jnp.asarray(draw.rng.integers(0, high, shape), jnp.int32)
    target = integers(V, B, T)
    if decodes:
        make = lambda: Decoder(config, rngs=nnx.Rngs(0))
        weights = jnp.asarray(draw.rng.random((B, T)), jnp.float32)
        batch = {"tokens": integers(V, B, T), "targets": target, "weights": weights}
        objective = language_model()
    else:
        make = lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0))
        inputs = {"source": integers(V, B, S), "source_lengths": integers(S + 1, B)}
        batch = {"inputs": inputs, "target": target, "lengths": 1 + integers(T, B)}
        objective = sequence_to_sequence(0, 0.1)
    print(config, B, T, S)
    graph, params = drawn(make, seed=draw.seed % 1000)
    descent = optax.sgd(1.0)
    state = TrainState(jnp.int32(0), params, descent.init(params), None)
    found = {}
    for platform in PLATFORMS:
        with monkeypatch.context() as patch:
            trace_for(patch, platform)
            step = jax.jit(steps.make_step(objective, descent, merging(graph)))
            found[platform] = jax.block_until_ready(step(state, {}, batch))
    same(found["cuda"], found["tpu"], 2e-5)
    same(found["cpu"], found["tpu"], 2e-5)
