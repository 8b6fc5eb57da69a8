"""Returns, advantages, clipped losses and estimators of KL against NumPy in float64, row B40."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional import policy_gradients

B, T = 4, 6
LENGTHS = [6, 3, 1, 0]


@pytest.fixture
def episodes():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, B, T))
    mask = np.arange(T) < np.array(LENGTHS)[:, None]
    return rewards, values, mask


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_returns_are_the_discounted_sums_of_what_follows(episodes, discount):
    rewards, _, mask = episodes
    wanted = np.zeros((B, T))
    for b, length in enumerate(LENGTHS):
        for t in range(length):
            wanted[b, t] = sum(discount ** (k - t) * rewards[b, k] for k in range(t, length))
    with jax.enable_x64():
        given = jnp.asarray(rewards), jnp.asarray(mask)
        found = policy_gradients.discounted_returns(*given, discount)
    np.testing.assert_allclose(found, wanted, 1e-9)


@pytest.mark.parametrize(("discount", "decay"), [(1.0, 0.95), (0.9, 0.5), (0.9, 0.0), (0.8, 1.0)])
def test_advantages_are_the_sums_of_the_paper(episodes, discount, decay):
    rewards, values, mask = episodes
    wanted = np.zeros((B, T))
    for b, length in enumerate(LENGTHS):
        v = np.append(values[b, :length], 0)
        delta = [rewards[b, t] + discount * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            terms = ((discount * decay) ** (k - t) * delta[k] for k in range(t, length))
            wanted[b, t] = sum(terms)
    with jax.enable_x64():
        given = (jnp.asarray(x) for x in episodes)
        how = {"discount": discount, "decay": decay}
        found, returns = policy_gradients.generalized_advantages(*given, **how)
    np.testing.assert_allclose(found, wanted, 1e-9, 1e-12)
    np.testing.assert_allclose(returns, wanted + np.where(mask, values, 0), 1e-9, 1e-12)


def test_what_stands_at_padding_changes_nothing(episodes):
    rewards, values, mask = (jnp.asarray(x) for x in episodes)
    clean = policy_gradients.generalized_advantages(rewards, values, mask)
    spoilt = (jnp.where(mask, x, jnp.nan) for x in (rewards, values))
    other = policy_gradients.generalized_advantages(*spoilt, mask)
    for one, two in zip(clean, other, strict=True):
        np.testing.assert_array_equal(one, two)
    normal = policy_gradients.normalized_advantages(jnp.where(mask, rewards, jnp.nan), mask)
    inside = np.asarray(normal)[np.asarray(mask)]
    np.testing.assert_allclose([inside.mean(), inside.var()], [0, 1], atol=1e-5)


def test_the_policy_loss_stops_where_the_clip_is_passed_and_turns_back_where_it_errs():
    """The four cases of Schulman et al. 2017, figure 1."""
    ratio = jnp.array([1.5, 0.5, 1.5, 0.5])
    advantages = jnp.array([2.0, 2.0, -3.0, -3.0])
    loss = lambda x: policy_gradients.ppo_policy_loss(x, jnp.zeros(4), advantages, 0.2)
    np.testing.assert_allclose(loss(jnp.log(ratio)), [-2.4, -1.0, 4.5, 2.4], 1e-6)
    slopes = jax.grad(lambda x: loss(x).sum())(jnp.log(ratio))
    np.testing.assert_allclose(slopes, [0, -1.0, 4.5, 0], 1e-6)


def test_the_first_gradient_is_that_of_the_policy_gradient_theorem():
    logits, advantage = jnp.array([0.2, -0.3, 1.0]), jnp.float32(1.7)
    log_prob = lambda x: jax.nn.log_softmax(x)[1]
    old = log_prob(logits)
    loss = lambda x: policy_gradients.ppo_policy_loss(log_prob(x), old, advantage)
    wanted = -advantage * (jax.nn.one_hot(1, 3) - jax.nn.softmax(logits))
    np.testing.assert_allclose(jax.grad(loss)(logits), wanted, 1e-6)


def test_the_value_loss_is_the_larger_of_two_and_has_no_gradient_beyond_the_clip():
    values, old, returns = jnp.array([1.0, 0.1, -1.0]), jnp.zeros(3), jnp.array([2.0, 2.0, 2.0])
    loss = lambda v: policy_gradients.ppo_value_loss(v, old, returns, 0.2)
    np.testing.assert_allclose(loss(values), [0.5 * 1.8**2, 0.5 * 1.9**2, 0.5 * 9.0], 1e-6)
    slopes = jax.grad(lambda v: loss(v).sum())(values)
    np.testing.assert_allclose(slopes, [0, -1.9, -3.0], 1e-6)


def test_advantages_of_a_group_are_standard_scores_and_equal_rewards_give_none():
    rewards = np.random.default_rng(3).normal(size=(3, 5))
    rewards[1] = 7.0
    std = rewards.std(1, ddof=1, keepdims=True)
    wanted = (rewards - rewards.mean(1, keepdims=True)) / (std + 1e-4)
    with jax.enable_x64():
        found = policy_gradients.group_advantages(jnp.asarray(rewards))
    np.testing.assert_allclose(found, wanted, 1e-6, 1e-9)
    assert not found[1].any()


@pytest.mark.slow
@pytest.mark.parametrize("reward", [12345.6, 0.1, -3.3, 1e20, -3.3e38, 1e-30])
def test_equal_rewards_and_advantages_are_exactly_zero(reward):
    group = jax.jit(policy_gradients.group_advantages)
    whole = jax.jit(policy_gradients.normalized_advantages)
    for G in (1, 2, 3, 7, 33):
        rewards = jnp.full((2, G), reward, jnp.float32)
        assert not np.asarray(group(rewards)).any(), G
        assert not np.asarray(policy_gradients.group_advantages(rewards, 0.0)).any(), G
        mask = jnp.ones((2, G), bool).at[0, 0].set(False)
        other = rewards.at[0, 0].set(7.0)  # padding
        assert not np.asarray(whole(other, mask)).any(), G
        assert not np.asarray(whole(other, mask & False)).any(), G
        assert not np.asarray(policy_gradients.normalized_advantages(other, mask, 0.0)).any(), G


@pytest.mark.parametrize("scale", [1e-3, 1.0, 12345.6, 1e6, 1e25, 1.5e38])
@pytest.mark.parametrize("steps", [2**-22, 0.5])
def test_advantages_are_those_of_float64(scale, steps):
    """Rewards that differ in their last bits, and those whose squares overflow."""
    draws = np.random.default_rng(1).integers(-2, 3, (4, 7))
    rewards = (scale * (1 + steps * draws)).astype(np.float32)
    exact = rewards.astype(np.float64)
    wanted = exact - exact.mean(1, keepdims=True)
    wanted /= exact.std(1, ddof=1, keepdims=True) + 1e-4
    found = policy_gradients.group_advantages(jnp.asarray(rewards))
    np.testing.assert_allclose(found, wanted, 2e-5, 1e-6)
    wanted = (exact - exact.mean()) / np.sqrt(exact.var() + 1e-8)
    found = policy_gradients.normalized_advantages(jnp.asarray(rewards), jnp.ones((4, 7), bool))
    np.testing.assert_allclose(found, wanted, 2e-5, 1e-6)


def test_estimators_of_kl_have_their_means():
    """k1 and k3 are unbiased, k3 is never negative; k2 is near where the policies are near."""
    p, q = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.4, 0.35, 0.25])
    kl = float((p * jnp.log(p / q)).sum())
    mean = lambda estimate: float((p * estimate(jnp.log(p), jnp.log(q))).sum())
    assert mean(policy_gradients.kl_k1) == pytest.approx(kl, rel=1e-5)
    assert mean(policy_gradients.kl_k3) == pytest.approx(kl, rel=1e-5)
    assert mean(policy_gradients.kl_k2) == pytest.approx(kl, rel=0.1)
    assert (policy_gradients.kl_k3(jnp.log(p), jnp.log(q)) >= 0).all()
    spread = lambda f: float((p * jnp.square(f(jnp.log(p), jnp.log(q)) - kl)).sum())
    assert spread(policy_gradients.kl_k3) < spread(policy_gradients.kl_k1) / 10
