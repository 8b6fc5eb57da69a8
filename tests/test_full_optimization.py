"""Laws that hold in programs as users run them: the other tests compile without optimization."""

import dataclasses
import functools
import time

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import drawn, normals
from transformer_jax import laws
from transformer_jax.functional import masks
from transformer_jax.functional.attention import attend_heads_first
from transformer_jax.functional.kernels.products import kernel_gradient
from transformer_jax.functional.layers import dropout_mask, layer_norm, linear, rms_norm
from transformer_jax.functional.losses import OutputTable, cross_entropy, linear_cross_entropy
from transformer_jax.functional.scores import Scores
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.placement import prepare_for_decoding

FULL = {"xla_backend_optimization_level": 3}
B, T, V = 2, 6, 11
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, V, (B, T)), jnp.int32)


def run(f, *args):
    """The result of ``f`` when XLA optimizes it."""
    return jax.jit(f, compiler_options=FULL)(*args)


@pytest.fixture(scope="module")
def decoder():
    base = PRESETS["nanogpt_char"]
    config = dataclasses.replace(
        base,
        vocab_size=V,
        d_model=12,
        decoder_layers=1,
        attention=dataclasses.replace(base.attention, num_heads=2),
        feed_forward=dataclasses.replace(base.feed_forward, d_ff=8),
    )
    return drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)))


def test_optimization_changes_the_machine_code():
    # A program that no run before had: one out of the cache has no machine code to show.
    number = time.time_ns() % 2**20
    f = lambda x: jnp.cumsum(jnp.tanh(x * number), 0)
    lowered = lambda options: jax.jit(f, compiler_options=options).lower(jnp.ones((64, 64)))
    code = lambda options: lowered(options).compile().runtime_executable().serialize()
    assert len(code(FULL)) != len(code({"xla_backend_optimization_level": 0}))


@pytest.fixture(scope="module")
def method(decoder):
    """A method of the model as an optimized program; of another model where one is given."""

    def program(name, model=None):
        graph, params = decoder if model is None else nnx.split(model)
        call = lambda params, *args: getattr(nnx.merge(graph, params), name)(*args)
        return functools.partial(jax.jit(call, compiler_options=FULL), params)

    return program


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.slow
def test_stepwise_equals_teacher_forcing(decoder, method, prepared):
    model = nnx.merge(*decoder)
    model = prepare_for_decoding(model) if prepared else model
    parts = method("prefill", model), method("step", model), model.init_cache(None, B, T)
    laws.prefilled(method("__call__"), *parts, TOKENS, 2).require()


@pytest.mark.slow
def test_beams_equal_separate_sequences(decoder, method):
    cache = nnx.merge(*decoder).init_cache(None, 1, T, beams=B)
    parts = method("__call__"), method("step"), method("reorder"), cache
    laws.reordered(*parts, TOKENS[None]).require()


def test_no_gradient_comes_from_the_future(decoder):
    graph, params = decoder
    early = lambda x: nnx.merge(graph, params).decoder(x)[:, :3].sum()
    [x] = normals((B, T, 12))
    gradient = run(jax.grad(early), x)
    assert (gradient[:, 3:] == 0).all()
    assert (gradient[:, :3] != 0).any()


@pytest.mark.slow
def test_packed_texts_equal_texts_of_their_own(method):
    alone = lambda tokens: method("__call__")(np.pad(tokens, ((0, 0), (0, T - tokens.shape[1]))))
    documents = [TOKENS[0, :4], TOKENS[1, :2]]
    cut = lambda tokens: alone(tokens)[:, : tokens.shape[1]]
    laws.packing(method("__call__"), cut, documents, length=T).require()


@pytest.mark.quick("xla")
@pytest.mark.parametrize("implementation", ["xla", "chunked"])
def test_attention_is_its_formula_and_masked_rows_are_zero(implementation):
    inputs = normals((B, 4, 5, 8), (B, 2, 7, 8), (B, 2, 7, 3))
    mask = masks.causal(1) & masks.length_mask(jnp.array([4, 0]))
    kernel = laws.with_gradients(
        lambda q, k, v, mask: attend_heads_first(
            q, k, v, Scores(mask), implementation=implementation
        )
    )
    optimized = lambda *args: run(kernel, *args)
    laws.attention_kernel(optimized, *inputs, mask).require()
    laws.masked_rows(optimized, *inputs, mask).require()


@pytest.mark.slow
def test_gradients_of_linear_maps_and_norms_are_those_of_autodiff():
    x, kernel, bias, gain = normals((3, 4, 5), (5, 7), (7,), (5,))

    def ours(x, kernel, bias, gain):
        x = rms_norm(layer_norm(x, gain, gain, 1e-5), gain, 1e-5)
        return jnp.sin(linear(x, kernel, bias)).sum()

    def plain(x, kernel, bias, gain):
        gain = gain[None, None]
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = x * gain + gain
        x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * gain
        return jnp.sin(x @ kernel + bias[None, None]).sum()

    found, wanted = (run(jax.grad(f, (0, 1, 2, 3)), x, kernel, bias, gain) for f in (ours, plain))
    chex.assert_trees_all_close(found, wanted, atol=2e-4)


def test_fused_loss_equals_the_loss_of_logits():
    x, table = normals((8, 4), (V, 4))
    targets, weights = jnp.arange(8) % V, jnp.array([1.0, 0, 1, 1, 2, 1, 0, 1])
    fused = lambda x, table: linear_cross_entropy(x, OutputTable(table), targets, weights, chunk=3)[
        0
    ]
    plain = lambda x, table: cross_entropy(OutputTable(table).logits(x), targets, weights)[0]
    found, wanted = (run(jax.value_and_grad(f, (0, 1)), x, table) for f in (fused, plain))
    chex.assert_trees_all_close(found, wanted, atol=1e-5)


def test_bfloat16_products_are_summed_in_float32():
    a, b = normals((33, 9), (33, 5), dtype=jnp.bfloat16)
    wanted = np.asarray(a, np.float32).T @ np.asarray(b, np.float32)
    np.testing.assert_allclose(run(kernel_gradient, a, b), wanted, rtol=1e-5, atol=1e-5)
    ones = jnp.ones((1, 4097), jnp.bfloat16)
    assert float(run(linear, ones, ones.T)[0, 0]) == pytest.approx(4097, rel=2**-8)


def test_dropout_depends_on_key_and_place_alone(key):
    f = lambda key: dropout_mask(key, (B, 5, 7), 0.3)
    chex.assert_trees_all_equal(run(f, key), jax.jit(f)(key))
