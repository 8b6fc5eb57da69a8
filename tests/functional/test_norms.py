"""Norms equal their formulas and plain autodiff, in the formulation of each platform."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals, value_and_pullback
from tests.functional import formulas
from tests.platforms import trace_for
from transformer_jax.functional.layers import layer_norm, rms_norm

PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])


@PLATFORMS
def test_u7_golden_row(monkeypatch, platform):
    trace_for(monkeypatch, platform)
    y = layer_norm(jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.ones(4), None, 0.0)
    np.testing.assert_allclose(y, [-1.341641, -0.447214, 0.447214, 1.341641], atol=1e-6)


@PLATFORMS
@pytest.mark.parametrize(
    ("rows", "biased", "eps"), [((), True, 0.1), ((6,), False, 1e-5), ((2, 3), True, 1e-5)]
)
@pytest.mark.quick("rows1-False-1e-05-tpu", "rows0-True-0.1-cuda")
def test_layer_norm_is_autodiff(monkeypatch, platform, rows, biased, eps):
    trace_for(monkeypatch, platform)
    with jax.enable_x64():
        shape = (*rows, 5)
        x, gain, bias, g = normals(shape, (5,), (5,), shape, seed=2, dtype=jnp.float64)
        x = 3 + 2 * x
        args = (x, gain, bias if biased else None)
        ours = value_and_pullback(lambda *a: layer_norm(*a, eps), g, *args)
        with jax.numpy_rank_promotion("allow"):
            plain = value_and_pullback(lambda *a: formulas.layer_norm(*a, eps), g, *args)
        chex.assert_trees_all_close(ours, plain, rtol=1e-12, atol=1e-12)


@PLATFORMS
@pytest.mark.parametrize("rows", [(), (2, 3)])
@pytest.mark.quick("rows0-cpu", "rows1-tpu", "rows0-cuda")
def test_rms_norm_is_autodiff(monkeypatch, platform, rows):
    trace_for(monkeypatch, platform)
    with jax.enable_x64():
        shape = (*rows, 5)
        x, gain, g = normals(shape, (5,), shape, seed=3, dtype=jnp.float64)
        x = 3 + 2 * x
        ours = value_and_pullback(lambda *a: rms_norm(*a, 1e-3), g, x, gain)
        with jax.numpy_rank_promotion("allow"):
            plain = value_and_pullback(lambda *a: formulas.rms_norm(*a, 1e-3), g, x, gain)
        chex.assert_trees_all_close(ours, plain, rtol=1e-12, atol=1e-12)


@PLATFORMS
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.quick("layer-cpu", "rms-tpu")
def test_statistics_are_float32_and_dtypes_are_kept(monkeypatch, platform, norm):
    trace_for(monkeypatch, platform)
    # 301 numbers near 100, apart by less than bfloat16 sums can tell.
    x = (100 + jnp.arange(301) % 3).astype(jnp.bfloat16)[None]
    gain, bias = jnp.full(301, 0.7), jnp.full(301, 0.1)

    def f(x, gain, bias):
        return layer_norm(x, gain, bias, 1e-5) if norm == "layer" else rms_norm(x, gain, 1e-5)

    y, (dx, dgain, dbias) = value_and_pullback(f, jnp.ones_like(x), x, gain, bias)
    assert y.dtype == jnp.bfloat16
    exact = jax.jit(f)(x.astype(jnp.float32), gain, bias)
    np.testing.assert_array_equal(y, exact.astype(jnp.bfloat16))
    assert (dx.dtype, dgain.dtype, dbias.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)


@PLATFORMS
def test_layer_norm_ignores_shift_and_scale_of_a_row(monkeypatch, platform, key):
    trace_for(monkeypatch, platform)
    [x] = normals((4, 16))
    y = layer_norm(x, jnp.ones(16), jnp.zeros(16), 0.0)
    np.testing.assert_allclose(
        layer_norm(5 * x + 3, jnp.ones(16), jnp.zeros(16), 0.0), y, atol=1e-5
    )
    np.testing.assert_allclose(y.mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(y.var(-1), 1, atol=1e-5)


@PLATFORMS
def test_rms_norm_ignores_scale_but_not_shift(monkeypatch, platform, key):
    trace_for(monkeypatch, platform)
    [x] = normals((4, 16))
    y = rms_norm(x, jnp.ones(16), 0.0)
    np.testing.assert_allclose(rms_norm(5 * x, jnp.ones(16), 0.0), y, atol=1e-5)
    assert jnp.abs(rms_norm(x + 3, jnp.ones(16), 0.0) - y).max() > 0.1


@PLATFORMS
def test_a_constant_row_is_finite_with_eps(monkeypatch, platform):
    trace_for(monkeypatch, platform)
    x = jnp.full((2, 4), 7.0)
    norm = lambda x: layer_norm(x, jnp.ones(4), jnp.full(4, 0.5), 1e-5)
    y, [dx] = value_and_pullback(norm, jnp.ones_like(x), x)
    np.testing.assert_allclose(y, 0.5)
    assert jnp.isfinite(dx).all()


@pytest.mark.quick("1000000.0-tpu")
@PLATFORMS
@pytest.mark.parametrize("value", [12345.6, -0.1, 1e6])
def test_a_constant_row_is_its_bias_and_a_nearly_constant_one_that_of_float64(
    monkeypatch, platform, value
):
    """The rounded mean of equal numbers is none of them: rows of 12345.6 became 0.9."""
    trace_for(monkeypatch, platform)
    for D in (7, 100, 768):
        gain, bias = normals((D,), (D,))
        rows = jnp.full((2, D), value, jnp.float32)
        for some in (rows, rows[:1]):
            found = layer_norm(some, gain, bias, 1e-5)
            np.testing.assert_allclose(found, np.tile(bias, (len(some), 1)), atol=2e-5)
        near = np.float32(value) * (1 + np.arange(D, dtype=np.float32)[None] % 5 * 2**-22)
        exact = near.astype(np.float64)
        wanted = (exact - exact.mean()) / np.sqrt(exact.var() + 1e-5)
        found = layer_norm(jnp.asarray(near), jnp.ones(D), None, 1e-5)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@PLATFORMS
def test_a_number_that_lies_apart_costs_no_precision(monkeypatch, platform):
    trace_for(monkeypatch, platform)
    row = np.random.default_rng(0).normal(size=(1, 768)).astype(np.float32)
    row[0, 0] = 3e4
    exact = row.astype(np.float64)
    wanted = (exact - exact.mean()) / np.sqrt(exact.var() + 1e-5)
    found = layer_norm(jnp.asarray(row), jnp.ones(768), None, 1e-5)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
@pytest.mark.parametrize("shape", [(2, 1), (2, 768), (2, 1, 5), (40, 3, 768)])
@pytest.mark.quick("shape3-layer_norm", "shape0-rms_norm")
def test_gradients_by_sums_of_squares_are_those_of_the_formula(monkeypatch, norm, shape):
    """Rows of bfloat16 lie up to 64 standard deviations from 0, or are constant."""
    x, g = normals(shape, shape, seed=4)
    gain, bias = normals(shape[-1:], shape[-1:], seed=5)
    if shape[0] == 40:
        shift = np.repeat([0.0, 4.0, 16.0, 64.0], len(x) // 4).astype(np.float32)[:, None, None]
        x = (x + shift).at[1, 1].set(7.0).at[2].set(0.0)
    low = x.astype(jnp.bfloat16), gain, g.astype(jnp.bfloat16)
    rest = {layer_norm: (bias, 1e-5), rms_norm: (1e-5,)}[norm]

    def gradients(platform, x, gain, g):
        trace_for(monkeypatch, platform)
        return value_and_pullback(lambda x, gain: norm(x, gain, *rest), g, x, gain)

    (y, (dx, dgain)), wanted = gradients("cuda", *low), gradients("tpu", *low)
    np.testing.assert_array_equal(y, wanted[0])
    np.testing.assert_array_equal(dx, wanted[1][0])
    scale = jnp.abs(wanted[1][1]).max() + 1e-3
    np.testing.assert_allclose(dgain / scale, wanted[1][1] / scale, atol=2e-4)


def test_a_nearly_constant_row_has_no_gradient_that_no_row_could_have(monkeypatch):
    """A sum of squares cannot tell its variance: no number is further than √D deviations away."""
    trace_for(monkeypatch, "cuda")
    rows, D = 4, 768
    x = jnp.full((rows, D), 1000, jnp.bfloat16).at[:, 5].set(1004)
    back = jax.vjp(lambda gain: layer_norm(x, gain, None, 1e-5), jnp.ones(D))[1]
    [dgain] = back(jnp.ones_like(x))
    assert jnp.abs(dgain).max() <= 1.0001 * rows * np.sqrt(D)
