"""The linear map equals plain autodiff, in the formulation of each platform."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals
from tests.functional import formulas
from tests.platforms import trace_for
from transformer_jax.functional.kernels.products import (
    kernel_gradient,
    matmul,
    sum_rows,
    transposed_matmul,
)
from transformer_jax.functional.layers import linear, linear_maps, linear_transposed

PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "tpu"])


@PLATFORMS
@pytest.mark.parametrize(
    ("rows", "D", "F", "biased"),
    [((), 5, 3, True), ((7,), 3, 5, False), ((3, 4), 5, 3, True), ((2, 3, 2), 3, 5, True)],
)
@pytest.mark.quick("rows1-3-5-False-cpu", "rows3-3-5-True-tpu", "rows0-5-3-True-cpu")
def test_value_and_gradients_are_those_of_autodiff(monkeypatch, platform, rows, D, F, biased):
    trace_for(monkeypatch, platform)
    with jax.enable_x64():
        shapes = (*rows, D), (D, F), (F,), (*rows, F)
        *args, g = normals(*shapes, seed=1, dtype=jnp.float64)
        args = args[: 3 if biased else 2]
        ours, back = jax.vjp(linear, *args)
        with jax.numpy_rank_promotion("allow"):
            wanted, plain = jax.vjp(formulas.linear, *args)
        np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-12)
        for a, b in zip(back(g), plain(g), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@PLATFORMS
def test_bfloat16_is_summed_in_float32_and_parameters_keep_their_dtype(monkeypatch, platform):
    trace_for(monkeypatch, platform)
    # 1 + 4096 ones: summed in bfloat16, it would stop growing at 256.
    x, kernel, bias = jnp.ones((2, 4097), jnp.bfloat16), jnp.ones((4097, 3)), jnp.ones(3)
    y, back = jax.vjp(linear, x, kernel, bias)
    assert y.dtype == jnp.bfloat16
    assert float(y[0, 0]) == pytest.approx(4098, rel=2**-8)
    dx, dkernel, dbias = back(jnp.ones_like(y))
    assert (dx.dtype, dkernel.dtype, dbias.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    np.testing.assert_array_equal(dkernel, 2)
    np.testing.assert_array_equal(dbias, 2)


@pytest.mark.parametrize("rows", [(), (1,), (4,), (2, 3)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.quick(
    *("cpu-True-bfloat16-rows1", "cpu-False-float32-rows0", "cpu-True-float32-rows2"),
    *("cpu-False-bfloat16-rows3", "cuda-True-bfloat16-rows3"),
)
def test_linear_transposed_equals_linear(monkeypatch, rows, dtype, biased, platform):
    trace_for(monkeypatch, platform)
    draw = np.random.default_rng(0)
    x = jnp.asarray(draw.standard_normal((*rows, 7)), dtype)
    kernel = jnp.asarray(draw.standard_normal((7, 5)), jnp.float32)
    bias = jnp.asarray(draw.standard_normal(5), jnp.float32) if biased else None
    found, wanted = linear_transposed(x, kernel.T, bias), linear(x, kernel, bias)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    near = {"float32": 1e-6, "bfloat16": 2**-7}[dtype]
    np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in (found, wanted)), atol=4 * near)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize("biased", [(), (1,), (0, 2)])
def test_several_maps_are_linear_of_each(monkeypatch, platform, biased):
    trace_for(monkeypatch, platform)
    x, *kernels = normals((1, 2, 7), (7, 4), (7, 2), (7, 6))
    biases = [one if i in biased else None for i, one in enumerate(normals((4,), (2,), (6,)))]
    for groups in (1, 2):
        found = linear_maps(x, tuple(kernels), tuple(biases), groups=groups)
        for y, kernel, bias in zip(found, kernels, biases, strict=True):
            np.testing.assert_allclose(y, linear(x, kernel, bias), atol=1e-6)


@PLATFORMS
def test_sum_of_bfloat16_rows_does_not_stall(monkeypatch, platform):
    trace_for(monkeypatch, platform)
    assert float(sum_rows(jnp.ones((5000, 1), jnp.bfloat16))[0]) == 5000
    assert sum_rows(jnp.ones((3, 1), jnp.bfloat16), jnp.bfloat16).dtype == jnp.bfloat16


@PLATFORMS
@pytest.mark.parametrize(("A", "B"), [(2, 9), (9, 2)])
def test_kernel_gradient_is_a_transposed_product_whichever_side_is_wider(
    monkeypatch, platform, A, B
):
    trace_for(monkeypatch, platform)
    a, b = normals((6, A), (6, B))
    np.testing.assert_allclose(kernel_gradient(a, b), a.T @ b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(matmul(a, b, 0, 0), a.T @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.quick("1-1-1", "3-17-7", "64-5-33")
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize(("A", "B"), [(1, 1), (1, 8), (8, 1), (3, 17), (64, 5)])
def test_kernel_gradient_of_bfloat16_is_that_of_the_same_numbers_in_float32(rows, A, B):
    a, b = normals((rows, A), (rows, B), dtype=jnp.bfloat16)
    wanted = np.asarray(a, np.float32).T @ np.asarray(b, np.float32)
    # XLA:CPU has no product for a result that it would turn itself.
    for found in jax.jit(lambda a, b: (kernel_gradient(a, b), transposed_matmul(b, a).T))(a, b):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mapped", [False, True])
def test_products_of_bfloat16_are_not_widened(mapped):
    # XLA:CPU would convert both operands to float32 if it were let: four times as slow.
    f = jax.vmap(transposed_matmul) if mapped else transposed_matmul
    more = (2,) * mapped
    a, b = jnp.ones((*more, 64, 32), jnp.bfloat16), jnp.ones((*more, 64, 48), jnp.bfloat16)
    text = jax.jit(f).lower(a, b).compile().as_text()
    widened = [line for line in text.splitlines() if " convert(" in line and "64," in line]
    assert not widened, widened


@PLATFORMS
def test_maps_over_a_batch_of_kernels(monkeypatch, platform):
    trace_for(monkeypatch, platform)
    x, kernels = jnp.arange(6.0).reshape(2, 3), jnp.arange(24.0).reshape(2, 3, 4)
    gradient = jax.grad(lambda x, w: jnp.square(jax.vmap(linear)(x, w)).sum(), (0, 1))
    plain = jax.grad(lambda x, w: jnp.square(jnp.einsum("bd,bdf->bf", x, w)).sum(), (0, 1))
    for a, b in zip(gradient(x, kernels), plain(x, kernels), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_wrong_width_is_refused():
    with pytest.raises(Exception, match="kernel"):
        linear(jnp.ones((2, 3)), jnp.ones((4, 5)))
