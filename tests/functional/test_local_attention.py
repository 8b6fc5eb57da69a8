"""Restricted self-attention is attention under a window, at a cost linear in the length; H14."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals
from transformer_jax import laws
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.jacobian_paths import dependence
from transformer_jax.functional.local_attention import local_attention, local_blocks
from transformer_jax.functional.masks import Mask

# One block; many, the last of them not full; a reach of nothing, and of a whole block.
CASES = [(1, 3), (20, 5), (50, 3), (65, 16), (97, 32), (40, 0)]


def heads_first(x):
    return x.swapaxes(1, 2)


@pytest.mark.quick("65-16", "40-0")
@pytest.mark.parametrize(("length", "reach"), CASES)
def test_it_is_attention_under_a_window_with_the_same_gradients(length, reach):
    local = lambda q, k, v, mask: heads_first(local_attention(*map(heads_first, (q, k, v)), reach))
    inputs = normals((2, 2, length, 4), (2, 2, length, 4), (2, 2, length, 3))
    kernel, mask = laws.with_gradients(local), Mask(window=reach + 1)
    laws.attention_kernel(kernel, *inputs, mask, tolerance=2e-5).require()


@pytest.mark.parametrize(("length", "reach"), [(50, 3), (65, 16)])
def test_a_position_depends_on_its_neighbourhood_alone(length, reach):
    heads = lambda x: x[None, :, None]
    [x] = normals((length, 2))
    found = dependence(lambda x: local_attention(*[heads(x)] * 3, reach)[0, :, 0], x)
    apart = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    np.testing.assert_array_equal(found, apart <= reach)


@pytest.mark.parametrize(("length", "reach"), CASES)
def test_blocks_hold_every_query_and_all_that_it_sees(length, reach):
    blocks, queries, keys = local_blocks(length, reach)
    assert (blocks - 1) * queries < length <= blocks * queries
    assert keys == length if blocks == 1 else keys == queries + 2 * reach <= length


@pytest.mark.slow
def test_bfloat16_stays_bfloat16():
    x = jnp.ones((1, 40, 1, 4), jnp.bfloat16)
    assert local_attention(x, x, x, 1).dtype == jnp.bfloat16


@pytest.mark.parametrize(("length", "reach"), [(0, 3), (5, -1)])
def test_a_length_or_reach_that_cannot_be_is_refused(length, reach):
    with pytest.raises(ArgumentError, match=f"length is {length} and reach {reach}"):
        local_blocks(length, reach)
