"""Attention is a score, a masked softmax and mixing, and any score can stand in."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals
from transformer_jax.errors import UserError
from transformer_jax.functional import masks
from transformer_jax.functional.attention import attend, attend_heads_first, attention_weights
from transformer_jax.functional.scores import ScaledDot, masked_softmax, mix, scaled_dot

B, T, S, N, K, H, U = 2, 5, 7, 4, 2, 6, 3


def inputs(J=H):
    return normals((B, T, N, H), (B, S, K, J), (B, S, K, U))


def additive(v):
    """The score ``vᵀ tanh(q + k)`` of Bahdanau et al. 2015."""
    return lambda q, k: jnp.tanh(q[:, :, :, None] + k[:, :, None]) @ v


def general(weight):
    """The score ``qᵀ W k`` of Luong et al. 2015, for queries and keys of different sizes."""
    return lambda q, k: jnp.einsum("BNTH,HJ,BNSJ->BNTS", q, weight, k)


def test_attention_is_mixing_by_the_masked_softmax_of_scores():
    q, k, v = (x.swapaxes(1, 2) for x in inputs())
    mask = masks.causal(1) & masks.length_mask(jnp.array([4, 0]))
    weights = masked_softmax(scaled_dot(q, k), mask.array(T, S))
    chex.assert_shape(weights, (B, N, T, S))
    parts = mix(weights, v)
    chex.assert_trees_all_equal(attend_heads_first(q, k, v, mask, implementation="xla"), parts)
    assert (parts[1] == 0).all()


@pytest.mark.parametrize("name", ["additive", "general"])
def test_another_score_is_a_closure(name):
    J = 4 if name == "general" else H
    q, k, v = inputs(J)
    [parameter] = normals((H,) if name == "additive" else (H, J), seed=2)
    mask = masks.causal(1) & masks.length_mask(jnp.array([4, 0]))
    make = {"additive": additive, "general": general}[name]

    def loss(parameter, q, k, v):
        return attend(q, k, v, mask, score=make(parameter)).sum()

    def formula(b, t, n):
        one = {
            "additive": lambda q, k: np.tanh(q + k) @ parameter,
            "general": lambda q, k: q @ parameter @ k,
        }[name]
        last = min(t + 2, [4, 0][b])
        s = np.array([one(q[b, t, n], k[b, s, n // 2]) for s in range(last)])
        w = np.exp(s - s.max()) / np.exp(s - s.max()).sum() if last else s
        return w @ np.asarray(v[b, :last, n // 2])

    forward = lambda parameter, q, k, v: (
        attend(q, k, v, mask, score=make(parameter)),
        attention_weights(q, k, mask, score=make(parameter)),
    )
    y, weights = jax.jit(forward)(parameter, q, k, v)
    chex.assert_shape(y, (B, T, N, U))
    wanted = [[[formula(b, t, n) for n in range(N)] for t in range(T)] for b in range(B)]
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(parameter, q, k, v)
    chex.assert_tree_all_finite(gradients)
    chex.assert_trees_all_equal_shapes(gradients, (parameter, q, k, v))
    assert (gradients[1][1] == 0).all()  # fully masked rows
    np.testing.assert_allclose(weights[0].sum(-1), 1, atol=1e-6)


def test_a_score_may_forbid_keys():
    q, k, v = inputs()
    score = lambda q, k: jnp.where(jnp.arange(S) < 2, scaled_dot(q, k), -jnp.inf)
    short = jax.jit(lambda: attend(q, k[:, :2], v[:, :2]))()
    np.testing.assert_allclose(jax.jit(lambda: attend(q, k, v, score=score))(), short, atol=1e-6)
    nothing = lambda q, k: jnp.full((B, N, T, S), -jnp.inf)
    assert (jax.jit(lambda: attend(q, k, v, score=nothing))() == 0).all()


def test_bias_and_dropout_work_with_any_score(key):
    q, k, v = inputs()
    wide = [np.repeat(x, 2, 2) for x in (k, v)]
    [bias, v2] = normals((1, N, T, S), (H,), seed=4)
    biased = lambda q, k: additive(v2)(q, k) + bias
    one = lambda *args, **how: jax.jit(lambda: attend(*args, **how))()
    found = one(q, k, v, bias=bias, score=additive(v2))
    np.testing.assert_allclose(found, one(q, k, v, score=biased), atol=1e-6)
    dropped = one(q, k, v, score=additive(v2), dropout=(0.5, key))
    as_dot = one(q, k, v, dropout=(0.5, key))
    assert np.abs(dropped - one(q, k, v, score=additive(v2))).max() > 0.1
    # The weights that are dropped depend on the key alone, whatever the score.
    same = lambda q, k: scaled_dot(q, k)  # hides from the kernels that it is a dot product
    np.testing.assert_allclose(one(q, *wide, score=same, dropout=(0.5, key)), as_dot, atol=1e-5)


def test_a_score_of_another_shape_and_fused_kernels_are_refused():
    q, k, v = inputs()
    with pytest.raises(UserError, match=r"attend: score gives shape \(2, 4, 5\), not \[B N T S\]"):
        attend(q, k, v, score=lambda q, k: q[..., 0])
    for name in ("chunked", "cudnn", "splash"):
        with pytest.raises(UserError, match=f"attend: implementation {name} computes dot products"):
            attend(q, k, v, score=additive(jnp.ones(H)), implementation=name)


@pytest.mark.parametrize("implementation", ["xla", "chunked"])
def test_scale_and_soft_cap_are_those_of_the_score(implementation):
    q, k, v = inputs()
    plain = lambda q, k: 2.0 * jnp.tanh(jnp.einsum("BNTH,BNSH->BNTS", q, k) * 0.7 / 2.0)
    score = ScaledDot(0.7, 2.0)
    found = jax.jit(lambda: attend(q, k, v, score=score, implementation=implementation))()
    wanted = jax.jit(lambda: attend(q, k, v, score=plain))()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
