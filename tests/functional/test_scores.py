"""Attention is a score, a masked softmax and mixing, and any score can stand in."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals
from transformer_jax.core.errors import UserError
from transformer_jax.functional import masks
from transformer_jax.functional.alignment_scores import (
    additive_scores,
    concat_scores,
    general_scores,
    location_scores,
)
from transformer_jax.functional.attention import attend, attend_heads_first, attention_weights
from transformer_jax.functional.scores import (
    ScaledDot,
    Scores,
    dot,
    masked_softmax,
    mix,
    scaled_dot,
)

B, T, S, N, K, H, U = 2, 5, 7, 4, 2, 6, 3


def inputs(J=H):
    return normals((B, T, N, H), (B, S, K, J), (B, S, K, U))


def test_attention_is_mixing_by_the_masked_softmax_of_scores():
    q, k, v = (x.swapaxes(1, 2) for x in inputs())
    mask = masks.causal(1) & masks.length_mask(jnp.array([4, 0]))
    weights = masked_softmax(scaled_dot(q, k), mask.array(T, S))
    chex.assert_shape(weights, (B, N, T, S))
    parts = mix(weights, v)
    chex.assert_trees_all_equal(
        attend_heads_first(q, k, v, Scores(mask), implementation="xla"), parts
    )
    assert (parts[1] == 0).all()


A, PLACES = 3, 9  # hidden numbers of an additive score, places of a score by location


class Learned(NamedTuple):
    """A score: its parameters' shapes, the function, and the formula of one query and one key."""

    shapes: tuple[tuple[int, ...], ...]
    function: Any
    formula: Any
    key_size: int = H


LEARNED = {
    "general": Learned(((H, 4),), general_scores, lambda q, k, s, W: q @ W @ k, 4),
    "additive": Learned(
        ((H, A), (4, A), (A,)),
        additive_scores,
        lambda q, k, s, W, U, v: v @ np.tanh(q @ W + k @ U),
        4,
    ),
    "concat": Learned(
        ((H + 4, A), (A,)),
        concat_scores,
        lambda q, k, s, W, v: v @ np.tanh(np.concatenate([q, k]) @ W),
        4,
    ),
    "location": Learned(((H, PLACES),), location_scores, lambda q, k, s, W: (q @ W)[s], 4),
}


def additive(v):
    """A score in which queries and keys are summed as they are."""
    return lambda q, k: additive_scores(q, k, jnp.eye(H), jnp.eye(H), v)


@pytest.mark.quick("concat", "location")
@pytest.mark.parametrize("name", LEARNED)
def test_a_learned_score_is_a_closure(name):
    score = LEARNED[name]
    q, k, v = inputs(score.key_size)
    learned = normals(*score.shapes, seed=2)
    mask = masks.causal(1) & masks.length_mask(jnp.array([4, 0]))
    make = lambda learned: lambda q, k: score.function(q, k, *learned)

    def loss(learned, q, k, v):
        return attend(q, k, v, mask, score=make(learned)).sum()

    def formula(b, t, n):
        last = min(t + 2, [4, 0][b])
        s = np.array([score.formula(q[b, t, n], k[b, s, n // 2], s, *learned) for s in range(last)])
        w = np.exp(s - s.max()) / np.exp(s - s.max()).sum() if last else s
        return w @ np.asarray(v[b, :last, n // 2])

    forward = lambda learned, q, k, v: (
        attend(q, k, v, mask, score=make(learned)),
        attention_weights(q, k, mask, score=make(learned)),
    )
    y, weights = jax.jit(forward)(learned, q, k, v)
    chex.assert_shape(y, (B, T, N, U))
    wanted = [[[formula(b, t, n) for n in range(N)] for t in range(T)] for b in range(B)]
    np.testing.assert_allclose(y, wanted, atol=1e-5)
    gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(learned, q, k, v)
    chex.assert_tree_all_finite(gradients)
    chex.assert_trees_all_equal_shapes(gradients, (learned, q, k, v))
    assert (gradients[1][1] == 0).all()  # fully masked rows
    np.testing.assert_allclose(weights[0].sum(-1), 1, atol=1e-6)


EYE = jnp.eye(2)
GOLDEN = {  # rows T3 to T7 and A6: scores, weights and context
    "dot": (dot, [1, 2, 3], [0.090031, 0.244728, 0.665241], [0.755272, 0.909969]),
    "scaled": (
        scaled_dot,
        [0.707107, 1.414214, 2.121320],
        [0.140029, 0.283995, 0.575975],
        [0.716005, 0.859971],
    ),
    "general": (
        lambda q, k: general_scores(q, k, EYE[::-1]),
        [2, 1, 3],
        [0.244728, 0.090031, 0.665241],
        [0.909969, 0.755272],
    ),
    "concat": (
        lambda q, k: concat_scores(q, k, jnp.concatenate([EYE, EYE]), jnp.ones(2)),
        [1.928055, 1.756649, 1.959082],
        [0.347948, 0.293139, 0.358913],
        [0.706861, 0.652052],
    ),
    "additive": (
        lambda q, k: additive_scores(q, k, EYE, EYE, jnp.ones(2)),
        [1.928055, 1.756649, 1.959082],
        [0.347948, 0.293139, 0.358913],
        [0.706861, 0.652052],
    ),
    "location": (
        lambda q, k: location_scores(q, k, jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])),
        [1, 2, 0],
        [0.244728, 0.665241, 0.090031],
        [0.334759, 0.755272],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_scores_of_the_lecture(name):
    score, *golden = GOLDEN[name]
    s = jnp.array([1.0, 2.0])[None, None, None]
    states = jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])[None, :, None]
    heads_first = states.swapaxes(1, 2)
    found = (
        score(s, heads_first)[0, 0, 0],
        attention_weights(s, states, score=score)[0, 0, 0],
        attend(s, states, states, score=score)[0, 0, 0],  # keys and values are the states: row H5
    )
    for one, wanted in zip(found, golden, strict=True):
        np.testing.assert_allclose(one, wanted, atol=1e-6)


def test_the_scale_of_a_dot_product_follows_from_the_states_and_not_from_the_source():
    # Row T4: the n under the root is the size of a state.
    q, k, _ = (x.swapaxes(1, 2) for x in inputs())
    k = np.repeat(k, N // K, 1)
    np.testing.assert_allclose(scaled_dot(q, k[:, :, :3]), scaled_dot(q, k)[..., :3], atol=1e-6)
    np.testing.assert_allclose(scaled_dot(q, k) * H**0.5, dot(q, k), atol=1e-5)


def test_location_scores_of_a_shorter_source_are_renormalized_and_a_longer_one_is_refused():
    q, k, v = inputs()
    [kernel] = normals((H, PLACES), seed=3)
    score = lambda q, k: location_scores(q, k, kernel)
    whole = np.asarray(jax.nn.softmax(q.swapaxes(1, 2) @ kernel))
    weights = attention_weights(q, k, score=score)
    np.testing.assert_allclose(
        weights, whole[..., :S] / whole[..., :S].sum(-1, keepdims=True), atol=1e-6
    )
    message = "location_scores: the source has 10 tokens, and there are scores for 9 places"
    with pytest.raises(UserError, match=message):
        attend(q, *(np.repeat(x, 2, 1)[:, :10] for x in (k, v)), score=score)


def test_a_concat_kernel_of_other_rows_is_refused():
    q, k = normals((B, N, T, H), (B, N, S, 4))
    with pytest.raises(UserError, match="has 9 rows; queries of size 6 and keys of size 4 need 10"):
        concat_scores(q, k, jnp.ones((9, A)), jnp.ones(A))


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
