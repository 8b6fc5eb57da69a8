"""Dependence of outputs on inputs: measured paths are shortest, depths are those of chains; L2,
H14.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec

from tests.drawing import normals
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.attention import attend
from transformer_jax.functional.convolution import convolve
from transformer_jax.functional.jacobian_paths import (
    copies_needed,
    dependence,
    path_length,
    product_flops,
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


def by_xla(function, *inputs):
    return jax.jit(function).lower(*inputs).cost_analysis()["flops"]


def test_products_cost_what_xla_counts():
    x, kernel, taps = normals((2, 6, 4), (2, 4, 5), (3, 2, 8))
    product = lambda x: jnp.einsum("bmk,bkn->bmn", x, kernel)
    assert product_flops(product, x) == by_xla(product, x) == 2 * 2 * 6 * 4 * 5
    assert product_flops(jax.vmap(jnp.dot), x[0], x[0]) == 2 * 6 * 4
    grouped = lambda x: lax.conv_general_dilated(
        x, taps, (1,), "VALID", feature_group_count=2, dimension_numbers=("NWC", "WIO", "NWC")
    )
    assert product_flops(grouped, x) == by_xla(grouped, x) == 2 * (2 * 4 * 8) * 3 * 2
    back = lambda x: jax.grad(lambda x: product(x).sum())(x)
    assert product_flops(back, x) == product_flops(product, x)  # the product itself is not needed


def test_every_step_of_a_loop_counts_and_what_is_called_counts_as_itself():
    x, kernel = normals((6, 4), (4, 4))
    once = lambda x: x @ kernel
    one = product_flops(once, x)
    chain = lambda x: lax.scan(lambda h, _: (once(h), None), x, length=5)[0]
    assert product_flops(chain, x) == 5 * one
    assert product_flops(lambda x: lax.map(lambda row: row @ kernel, x), x) == one
    either = lambda x: lax.cond(x[0, 0] > 0, lambda x: once(once(x)), once, x)
    assert product_flops(jax.jit(jax.checkpoint(either)), x) == 2 * one
    block = lambda out, x, w: out.__setitem__(..., x[...] @ w[...])
    rows = pl.pallas_call(
        lambda x, w, out: block(out, x, w),
        jax.ShapeDtypeStruct((6, 4), x.dtype),
        grid=(3,),
        in_specs=[pl.BlockSpec((2, 4), lambda i: (i, 0)), pl.BlockSpec((4, 4), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((2, 4), lambda i: (i, 0)),
    )
    assert product_flops(rows, x, kernel) == one
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("data")
    parts = jax.shard_map(once, mesh=mesh, in_specs=spec, out_specs=spec)
    assert product_flops(parts, x) == one
