"""Convolutions are their sums, causal ones see no future, and paths have the lecture's lengths."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals
from transformer_jax.core.errors import UserError
from transformer_jax.functional import masks
from transformer_jax.functional.attention import attend
from transformer_jax.functional.convolution import convolve, gated_linear_unit
from transformer_jax.functional.jacobian_paths import dependence, path_length
from transformer_jax.functional.recurrent import CELLS, recur

B, T, D, F = 2, 9, 3, 4


@pytest.mark.quick("1-1-False", "2-3-True", "5-4-False")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("width", "dilation"), [(1, 1), (3, 1), (2, 3), (4, 2), (5, 4)])
def test_a_convolution_is_its_sum(width, dilation, causal):
    x, kernel, bias = normals((B, T, D), (width, D, F), (F,))
    # One text; two texts and padding between them.
    segments = np.array([[1] * T, [1, 1, 1, 0, 2, 2, 2, 2, 2]])
    how = {"dilation": dilation, "causal": causal}
    found = np.array(
        jax.jit(lambda x, *texts: convolve(x, kernel, bias, segments=texts[0], **how))(x, segments)
    )
    found[0] = jax.jit(lambda x: convolve(x, kernel, bias, **how))(x)[0]
    middle = width - 1 if causal else (width - 1) // 2
    for b, t in itertools.product(range(B), range(T)):
        places = [(j, t + (j - middle) * dilation) for j in range(width)]
        inside = [(j, s) for j, s in places if 0 <= s < T and segments[b, s] == segments[b, t]]
        if segments[b, t] == 0:
            continue
        wanted = sum((x[b, s] @ kernel[j] for j, s in inside), np.asarray(bias))
        np.testing.assert_allclose(found[b, t], wanted, atol=1e-5)


def test_a_causal_convolution_sees_no_later_input():
    x, kernel = normals((T, D), (4, D, F))
    layer = lambda x: convolve(x[None], kernel, dilation=2, causal=True)[0]
    assert not np.triu(dependence(layer, x), 1).any()


def test_what_has_no_halves_or_no_distance_is_refused():
    x, kernel = normals((B, T, D), (2, D, F))
    with pytest.raises(UserError, match="gated_linear_unit: 3 values cannot be split into halves"):
        gated_linear_unit(x)
    with pytest.raises(UserError, match="convolve: dilation is 0: at least 1"):
        convolve(x, kernel, dilation=0)


def windowed(n, w):
    [x] = normals((n, 2))
    mask = masks.sliding_window_mask(w + 1)
    heads = lambda x: x[None, :, None]
    return dependence(lambda x: attend(heads(x), heads(x), heads(x), mask)[0, :, 0], x)


def convolved(n, width, dilation):
    x, kernel = normals((n, 2), (width, 2, 2))
    return dependence(lambda x: convolve(x[None], kernel, dilation=dilation, causal=True)[0], x)


@pytest.mark.parametrize(("w", "layers"), [(1, 63), (4, 16), (8, 8)])
def test_restricted_attention_needs_so_many_layers(w, layers):
    assert path_length([windowed(64, w)] * 70) == layers  # row H14: ceil((n - 1) / w)


@pytest.mark.quick("81-3-4")
@pytest.mark.parametrize(("n", "k", "layers"), [(64, 2, 6), (64, 4, 3), (81, 3, 4)])
def test_dilated_convolutions_need_logarithmically_many_layers(n, k, layers):
    # Row H14: the last output sees all inputs after log_k(n) layers; causal ones see no later one.
    reached = np.eye(n, dtype=bool)
    for number in range(layers):
        assert not reached[-1].all()
        reached = convolved(n, k, k**number) @ reached
    assert reached[-1].all()


@pytest.mark.slow
def test_attention_and_recurrence_need_one_layer():
    x, kernel = normals((8, 4), (4, 4))
    heads = lambda x: x[None, :, None]
    everywhere = dependence(lambda x: attend(heads(x), heads(x), heads(x))[0, :, 0], x)
    assert path_length([everywhere]) == 1
    state = (jnp.zeros((1, 4)),)
    before = dependence(lambda x: recur(CELLS["tanh"], x[None], kernel, state)[0][0], x)
    np.testing.assert_array_equal(before, np.tri(8, dtype=bool))
