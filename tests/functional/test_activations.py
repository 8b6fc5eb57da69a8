"""Activations equal their formulas, and the GELUs' own backward plain autodiff."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals
from tests.functional import formulas
from transformer_jax.functional.layers import ACTIVATIONS

FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "tanh": math.tanh,
}
NAMES = pytest.mark.parametrize("name", sorted(FORMULAS))


def test_the_names_are_these():
    assert set(ACTIVATIONS) == set(FORMULAS)


@NAMES
def test_value_is_the_formula(name):
    with jax.enable_x64():
        x = jnp.linspace(-9, 9, 91, dtype=jnp.float64)
        wanted = [FORMULAS[name](float(v)) for v in x]
        np.testing.assert_allclose(ACTIVATIONS[name](x), wanted, rtol=1e-12, atol=1e-12)


@NAMES
def test_gradient_is_the_slope_of_the_formula(name):
    with jax.enable_x64():
        x, h = jnp.linspace(-6.05, 6.05, 40, dtype=jnp.float64), 1e-5
        slope = [(FORMULAS[name](float(v) + h) - FORMULAS[name](float(v) - h)) / (2 * h) for v in x]
        gradient = jax.vjp(ACTIVATIONS[name], x)[1](jnp.full_like(x, 2.0))[0]
        np.testing.assert_allclose(gradient, 2 * np.array(slope), rtol=1e-8, atol=1e-9)


@pytest.mark.quick("gelu_tanh")
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_own_backward_is_autodiff(name):
    with jax.enable_x64():
        [x] = normals((5, 7), seed=4, dtype=jnp.float64)
        x = 3 * x
        plain = jax.grad(lambda x: formulas.FORMULAS[name](x).sum())(x)
        ours = jax.grad(lambda x: ACTIVATIONS[name](x).sum())(x)
        np.testing.assert_allclose(ours, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_one_array_is_kept_for_the_backward_pass(name):
    x = jnp.ones((3, 5))
    kept = jax.tree.leaves(jax.vjp(ACTIVATIONS[name], x)[1])
    assert [k.shape for k in kept if getattr(k, "size", 0) > 1] == [x.shape]


@NAMES
def test_bfloat16_stays_and_is_right_to_its_rounding(name):
    x = jnp.linspace(-4, 4, 65).astype(jnp.bfloat16)
    y, back = jax.vjp(ACTIVATIONS[name], x)
    assert y.dtype == jnp.bfloat16
    assert back(jnp.ones_like(y))[0].dtype == jnp.bfloat16
    wanted = [FORMULAS[name](float(v)) for v in x]
    np.testing.assert_allclose(y.astype(jnp.float32), wanted, rtol=2**-6, atol=2**-7)


@NAMES
def test_far_out_everything_is_finite(name):
    x = jnp.array([-3e38, -1e20, -1e4, -100.0, 0.0, 100.0, 1e4, 1e20, 3e38])
    y, back = jax.vjp(ACTIVATIONS[name], x)
    assert jnp.isfinite(y).all()
    assert jnp.isfinite(back(jnp.ones_like(y))[0]).all()
