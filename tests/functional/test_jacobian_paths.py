"""Dependence of outputs on inputs: measured paths are shortest, depths are those of chains; L2,
H14.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.drawing import normals
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.attention import attend
from transformer_jax.functional.convolution import convolve
from transformer_jax.functional.jacobian_paths import (
    copies_needed,
    dependence,
    path_length,
    sequential_depth,
)
from transformer_jax.functional.recurrent import CELLS, recur


def apart(n):
    return np.subtract.outer(np.arange(n), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 31, 65])
@pytest.mark.parametrize("reach", [1, 2, 5])
def test_copies_are_as_many_as_layers_one_by_one(n, reach):
    both, before = np.abs(apart(n)) <= reach, (apart(n) >= 0) & (apart(n) <= reach)
    needed = max(1, -(-(n - 1) // reach))
    assert copies_needed(both) == path_length([both] * n) == needed
    causal = np.tri(n, dtype=bool)
    assert copies_needed(before, causal) == path_length([before] * n, causal) == needed


def test_what_is_never_reached_is_none():
    before = np.tri(9, dtype=bool)
    assert copies_needed(before) is None
    assert path_length([before] * 20) is None


def test_layers_that_forget_themselves_are_refused():
    with pytest.raises(ArgumentError, match="does not depend on itself"):
        copies_needed(~np.eye(3, dtype=bool))


def test_dependence_is_that_of_the_jacobian_at_once():
    x, kernel = normals((9, 3), (3, 3))
    layer = lambda x: jnp.tanh(jnp.roll(x, 2, axis=0) @ kernel).at[0].set(1.0)
    blocks = jnp.abs(jax.jacobian(layer)(x)).max(axis=(1, 3))
    np.testing.assert_array_equal(dependence(layer, x), blocks > 0)


def test_depth_is_the_longest_chain_of_products():
    x, kernel, taps = normals((7, 4), (4, 4), (3, 4, 4))
    heads = lambda x: x[None, :, None]
    attention = lambda x: attend(heads(x), heads(x), heads(x), implementation="xla")
    start = (jnp.zeros((1, 4)),)
    recurrence = lambda x: recur(CELLS["tanh"], (x @ kernel)[None], kernel, start)
    # Rows L2, H14: attention and convolution do not wait for other positions, recurrence does.
    assert sequential_depth(attention, x) == 2  # of keys, then of values
    assert sequential_depth(lambda x: convolve(x[None], taps), x) == 1
    assert sequential_depth(recurrence, x) == 7
    assert sequential_depth(lambda x: x + 1, x) == 0


def test_steps_that_do_not_wait_for_each_other_are_one():
    x, kernel = normals((6, 4), (4, 4))
    assert sequential_depth(lambda x: lax.map(lambda row: row @ kernel @ kernel, x), x) == 2
    chain = lambda x: lax.scan(lambda h, row: (h @ kernel + row, None), x[0] @ kernel, x)[0]
    assert sequential_depth(chain, x) == 7
    short = lambda x: lax.cond(x[0, 0] > 0, lambda x: x @ kernel @ kernel, lambda x: x, x)
    assert sequential_depth(jax.checkpoint(jax.jit(short)), x) == 2


def test_a_loop_without_a_fixed_end_is_refused():
    with pytest.raises(ArgumentError, match="no fixed number of steps"):
        sequential_depth(lambda x: lax.while_loop(lambda x: x < 3, lambda x: x + 1, x), 0)
