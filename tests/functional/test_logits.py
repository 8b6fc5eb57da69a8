"""Processors against the lectures' numbers, slow references, and chi-square."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.platforms import trace_for
from transformer_jax.functional import logits

INF = jnp.inf
# One program a call: op by op there would be dozens.
FIXED = {"top_k_two_stage": ("k", "group"), "no_repeat_ngram": ("n",)}
NAMES = (
    "argmax", "suppress_tokens", "force_token", "min_p", "no_repeat_ngram", "repetition_penalty",
    "sample", "temperature", "top_k", "top_k_two_stage", "top_p",
)  # fmt: skip
processors = types.SimpleNamespace(
    **{name: jax.jit(getattr(logits, name), static_argnames=FIXED.get(name)) for name in NAMES}
)


def probabilities(z):
    return np.asarray(jax.nn.softmax(z, axis=-1))


def random_logits(B=6, V=40, levels=None, seed=0):
    """Logits, with many ties where only so many levels are used."""
    z = 2 * np.random.default_rng(seed).standard_normal((B, V), np.float32)
    return jnp.asarray(z if levels is None else np.round(z * levels / 4))


def first_ranked(row, count):
    """The ``count`` largest of a row, earlier places first among equals."""
    return set(sorted(range(len(row)), key=lambda i: (-row[i], i))[:count])


def kept(z):
    return [set(np.flatnonzero(row > -np.inf).tolist()) for row in np.asarray(z)]


# Choosing

PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "cuda"])


@PLATFORMS
@pytest.mark.parametrize("levels", [None, 2])
@pytest.mark.parametrize("shape", [(5,), (3, 40), (2, 3, 17)])
@pytest.mark.quick("shape1-2-cpu", "shape2-None-cpu", "shape0-None-cpu", "shape1-2-cuda")
def test_argmax_is_jnp_argmax(monkeypatch, platform, levels, shape):
    trace_for(monkeypatch, platform)
    x = random_logits(1, int(np.prod(shape)), levels).reshape(shape)
    np.testing.assert_array_equal(logits.argmax(x), jnp.argmax(x, -1))


@PLATFORMS
def test_argmax_of_odd_rows_is_jnp_argmax(monkeypatch, platform):
    trace_for(monkeypatch, platform)
    n = jnp.nan
    x = jnp.array([[-INF, -INF, -INF], [1.0, n, 2.0], [n, 1.0, n], [0.0, INF, INF]])
    np.testing.assert_array_equal(logits.argmax(x), jnp.argmax(x, -1))


@PLATFORMS
@pytest.mark.parametrize("size", [1, 40, 64, 200])
@pytest.mark.quick("200-cuda", "40-cpu")
def test_a_normalizer_is_that_of_float64_and_not_finite_where_a_logit_is_not(
    monkeypatch, platform, size
):
    trace_for(monkeypatch, platform)
    x = 1e3 * random_logits(9, size).at[1:4].set(-INF)
    x = x.at[1, 0].set(5.0).at[4, -1].set(INF).at[5, 0].set(jnp.nan).at[6, -1].set(-INF)
    peak, rest = jax.jit(lambda x: logits.normalizer(x))(x)
    exact = np.asarray(x, np.float64)[[0, 1, 7, 8]]
    top = exact.max(-1)
    np.testing.assert_array_equal(peak[jnp.array([0, 1, 7, 8])], top)
    wanted = np.log(np.exp(exact - top[:, None]).sum(-1))
    np.testing.assert_allclose(rest[jnp.array([0, 1, 7, 8])], wanted, atol=1e-6)
    assert np.isnan(rest[2:6]).all()
    assert np.isfinite(rest[6]) == (size > 1)


@PLATFORMS
@pytest.mark.quick("3-7-3-cpu", "40-8-1-cpu", "9-1-None-cpu", "4-4-3-cuda")
@pytest.mark.parametrize("levels", [None, 1, 3])
@pytest.mark.parametrize(("k", "group"), [(1, 4), (4, 4), (3, 7), (5, 64), (40, 8), (9, 1)])
def test_two_stages_give_what_one_gives(monkeypatch, platform, levels, k, group):
    trace_for(monkeypatch, platform)
    x = random_logits(8, 40, levels).at[0, 5:].set(-INF).at[1].set(-INF)
    two_stages = jax.jit(lambda x: logits.top_k_two_stage(x, k, group))
    for ours, plain in zip(two_stages(x), jax.lax.top_k(x, k), strict=True):
        np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("platform", [pytest.param("cpu", marks=pytest.mark.slow), "cuda"])
def test_a_normalizer_and_the_largest_of_some_are_made_together(monkeypatch, platform):
    trace_for(monkeypatch, platform)
    x = 1e2 * random_logits(4, 1000).at[1, 3:].set(-INF)
    allowed = x.at[:, 2].set(-INF)
    both = jax.jit(lambda x, allowed: logits.normalizer_and_top_k(x, allowed, 3))
    (peak, rest), best = both(x, allowed)
    np.testing.assert_array_equal(peak, x.max(-1))
    np.testing.assert_allclose(peak + rest, jax.nn.logsumexp(x, -1), rtol=1e-6)
    for ours, plain in zip(best, jax.lax.top_k(allowed, 3), strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_two_stages_take_any_rows():
    x = random_logits(6, 40, 2).reshape(2, 3, 40)
    for ours, plain in zip(processors.top_k_two_stage(x, 3, 8), jax.lax.top_k(x, 3), strict=True):
        np.testing.assert_array_equal(ours, plain)


# Temperature


@pytest.mark.parametrize(
    ("t", "wanted"),
    [
        (0.5, [0.015876, 0.117310, 0.866813]),
        (1.0, [0.090031, 0.244728, 0.665241]),
        (2.0, [0.186324, 0.307196, 0.506480]),
        (10.0, [0.300610, 0.332225, 0.367165]),
        (0.0, [0.0, 0.0, 1.0]),
        (1e-30, [0.0, 0.0, 1.0]),
    ],
)
def test_b34_temperature(t, wanted):
    got = probabilities(processors.temperature(jnp.array([[1.0, 2.0, 3.0]]), t))
    np.testing.assert_allclose(got[0], wanted, atol=1e-6)


def test_temperature_has_one_for_each_row_and_0_is_the_first_maximum():
    z = jnp.array([[1.0, 3.0, 3.0], [1.0, 2.0, 3.0], [1.0, 3.0, 3.0]])
    y = processors.temperature(z, jnp.array([0.0, 2.0, 1.0]))
    np.testing.assert_array_equal(y[0], [-INF, 3, -INF])
    np.testing.assert_array_equal(y[1], z[1] / 2)
    np.testing.assert_array_equal(y[2], z[2])


# Cutting


@pytest.mark.parametrize("levels", [None, 1])
@pytest.mark.parametrize("k", [0, 1, 3, 39, 40, 100])
def test_b32_top_k_keeps_the_k_largest_the_earlier_of_equals(levels, k):
    z = random_logits(levels=levels)
    y = processors.top_k(z, k)
    assert kept(y) == [first_ranked(row, max(k, 1)) for row in np.asarray(z)]
    np.testing.assert_array_equal(y, jnp.where(y > -INF, z, -INF))


def test_b32_top_k_has_one_for_each_row():
    z, k = random_logits(levels=2), [1, 2, 3, 10, 40, 99]
    wanted = [first_ranked(row, n) for row, n in zip(np.asarray(z), k, strict=True)]
    assert kept(processors.top_k(z, jnp.array(k))) == wanted
    assert kept(processors.top_k(z, jnp.array(4))) == kept(logits.top_k(z, 4))


@pytest.mark.parametrize(
    ("p", "wanted"),
    [
        (0.7, [0.6667, 0.3333, 0, 0]),
        (0.75, [0.6667, 0.3333, 0, 0]),
        (0.76, [0.5556, 0.2778, 0.1667, 0]),
        (0.0, [1, 0, 0, 0]),
        (0.5, [1, 0, 0, 0]),
        (1.0, [0.5, 0.25, 0.15, 0.1]),
    ],
)
def test_b33_top_p(p, wanted):
    z = jnp.log(jnp.array([[0.5, 0.25, 0.15, 0.1]]))
    np.testing.assert_allclose(probabilities(processors.top_p(z, p))[0], wanted, atol=1e-4)
    mixed = jnp.array([2, 0, 3, 1])
    np.testing.assert_array_equal(
        processors.top_p(z[:, mixed], p), processors.top_p(z, p)[:, mixed]
    )


@pytest.mark.parametrize("levels", [None, 2])
def test_b33_top_p_is_the_smallest_set_that_reaches_p(levels):
    z, p = random_logits(levels=levels), jnp.array([0.1, 0.3, 0.5, 0.9, 0.99, 1.0])
    for row, likely, limit, ids in zip(
        np.asarray(z), probabilities(z), p, kept(processors.top_p(z, p)), strict=True
    ):
        assert ids == first_ranked(row, len(ids))
        assert likely[list(ids)].sum() >= limit * (1 - 2e-6)
        assert limit == 1 or likely[list(ids)].sum() - likely[list(ids)].min() < limit


def test_top_p_at_1_changes_nothing_however_unlikely():
    z = jnp.array([[0.0, -200.0, -INF]])
    np.testing.assert_array_equal(processors.top_p(z, 1.0), z)


@pytest.mark.parametrize("p", [0.0, 0.05, 0.3, 1.0])
def test_min_p_keeps_what_is_likely_enough(p):
    z = random_logits()
    likely = probabilities(z)
    wanted = likely >= p * likely.max(-1, keepdims=True)
    np.testing.assert_array_equal(np.asarray(processors.min_p(z, p)) > -np.inf, wanted)
    assert (kept(processors.min_p(z, jnp.full(6, p)))) == kept(processors.min_p(z, p))


# Repetition


@pytest.mark.parametrize("form", ["mask", "lengths"])
def test_repetition_penalty_is_the_loop(form):
    z = random_logits(3, 8).at[:, 0].set(-INF)
    tokens = jnp.array([[1, 1, 2, 7], [0, 3, 5, 5], [4, 4, 4, 4]])
    lengths, penalty = np.array([3, 4, 0]), np.array([2.0, 1.5, 3.0])
    wanted = np.array(z)
    for b in range(3):
        for v in set(np.asarray(tokens)[b, : lengths[b]].tolist()):
            wanted[b, v] *= 1 / penalty[b] if wanted[b, v] > 0 else penalty[b]
    valid = jnp.asarray(lengths)
    valid = jnp.arange(4)[None] < valid[:, None] if form == "mask" else valid
    np.testing.assert_allclose(
        processors.repetition_penalty(z, tokens, valid, jnp.asarray(penalty, jnp.float32)),
        wanted,
        rtol=1e-6,
    )
    np.testing.assert_array_equal(processors.repetition_penalty(z, tokens, valid, 1.0), z)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 11])
def test_no_ngram_comes_twice(n):
    rng = np.random.default_rng(n)
    V, T = 4, 10
    tokens, lengths = rng.integers(0, V, (12, T)), rng.integers(0, T + 1, 12)
    lengths[0], lengths[1] = 0, T
    z = jnp.zeros((12, V))
    got = np.asarray(processors.no_repeat_ngram(z, jnp.asarray(tokens), jnp.asarray(lengths), n))
    for row, length, out in zip(tokens.tolist(), lengths.tolist(), got, strict=True):
        seen = row[:length]
        runs = {tuple(seen[i : i + n]) for i in range(length - n + 1)}
        for v in range(V):
            run = (*seen, v)[-n:]
            assert (out[v] == -np.inf) == (length >= n - 1 and run in runs), (seen, v)


def test_runs_have_at_least_one_token():
    with pytest.raises(ValueError, match="at least 1"):
        processors.no_repeat_ngram(jnp.zeros((1, 3)), jnp.zeros((1, 2), int), 1, 0)


# Forbidding and forcing


def test_forbidden_tokens_have_probability_0_and_nothing_else_changes():
    z = random_logits(2, 5)
    y = processors.suppress_tokens(z, jnp.array([0, 3, -1]))
    np.testing.assert_array_equal(y, z.at[:, jnp.array([0, 3])].set(-INF))
    each = processors.suppress_tokens(z, jnp.array([[1, 1], [2, -1]]))
    np.testing.assert_array_equal(each, z.at[0, 1].set(-INF).at[1, 2].set(-INF))


def test_forced_tokens_are_certain_even_if_forbidden_before():
    z = processors.suppress_tokens(random_logits(3, 5), jnp.array([2]))
    y = processors.force_token(z, jnp.array([2, -1, 4]))
    np.testing.assert_array_equal(probabilities(y)[[0, 2]], np.eye(5)[[2, 4]])
    np.testing.assert_array_equal(y[1], z[1])
    np.testing.assert_array_equal(probabilities(processors.force_token(z, 2)), np.eye(5)[[2, 2, 2]])


CHAIN = {
    "temperature": lambda z: processors.temperature(z, jnp.array([0.0, 0.5, 1e-19, 1e9])),
    "top_k": lambda z: processors.top_k(z, 3),
    "top_p": lambda z: processors.top_p(z, 0.5),
    "min_p": lambda z: processors.min_p(z, 0.5),
    "penalty": lambda z: processors.repetition_penalty(
        z, jnp.zeros((4, 2), int), jnp.full(4, 2), 1.3
    ),
    "ngram": lambda z: processors.no_repeat_ngram(z, jnp.zeros((4, 2), int), 2, 2),
    "force_token": lambda z: processors.force_token(z, 1),
}


@pytest.mark.parametrize("name", list(CHAIN))
@pytest.mark.quick("top_p", "force_token", "ngram")
def test_forbidden_tokens_stay_so_and_softmax_is_never_nan(name):
    z = processors.suppress_tokens(jnp.array([[0.0, 1e4, -1e4, 3, 3]] * 4), jnp.array([0, 2, 4]))
    y = CHAIN[name](z)
    assert not np.isnan(probabilities(y)).any()
    assert (probabilities(y)[:, jnp.array([0, 2, 4])] == 0).all()
    assert y.dtype == z.dtype
    np.testing.assert_array_equal(jax.jit(CHAIN[name])(z), y)
    assert CHAIN[name](z.astype(jnp.bfloat16)).dtype == jnp.bfloat16


# Sampling


@pytest.mark.parametrize(
    "process",
    [
        lambda z: z,
        lambda z: processors.temperature(z, 0.7),
        lambda z: processors.top_k(z, 3),
        lambda z: processors.top_p(z, 0.8),
        lambda z: processors.min_p(z, 0.2),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p"],
)
def test_samples_follow_the_probabilities(process, key):
    n = 20_000
    z = process(jnp.array([[0.5, 2.0, -1.0, 1.0, 0.0, -3.0]]))
    counts = np.bincount(processors.sample(jnp.repeat(z, n, 0), key), minlength=6)
    expected = probabilities(z)[0].astype(np.float64) * n
    assert (counts[expected == 0] == 0).all()
    live = expected > 0
    expected = expected[live] * n / expected[live].sum()
    assert stats.chisquare(counts[live], expected).pvalue > 1e-4


def test_a_row_with_its_own_key_draws_whatever_the_others_do(key):
    z, keys = random_logits(5, 30), jax.random.split(key, 5)
    together = processors.sample(z, keys)
    for b in range(5):
        assert processors.sample(z[b : b + 1], keys[b : b + 1])[0] == together[b]
    assert (
        len(set(np.asarray(processors.sample(jnp.zeros((20, 30)), jax.random.split(key, 20))))) > 5
    )


def test_temperature_0_samples_the_maximum(key):
    z = random_logits()
    np.testing.assert_array_equal(
        processors.sample(processors.temperature(z, 0.0), key), jnp.argmax(z, -1)
    )
