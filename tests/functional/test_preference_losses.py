"""Losses of preferences: formulas in float64, gradients, the optimum of DPO, row B40."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional import calibration, preference_losses

BETA = 0.3
LOSSES = {
    "dpo": (preference_losses.dpo_loss, {"beta": BETA}),
    "cdpo": (preference_losses.dpo_loss, {"beta": BETA, "label_smoothing": 0.1}),
    "ipo": (preference_losses.ipo_loss, {"beta": BETA}),
    "simpo": (preference_losses.simpo_loss, {"beta": BETA, "margin": 0.7}),
    "bradley-terry": (preference_losses.bradley_terry_loss, {}),
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def expected(name, c, r, c0=0.0, r0=0.0):
    """The formulas of the papers."""
    h = (c - c0) - (r - r0)
    if name == "dpo":
        return -np.log(sigmoid(BETA * h))
    if name == "cdpo":
        return -0.9 * np.log(sigmoid(BETA * h)) - 0.1 * np.log(sigmoid(-BETA * h))
    if name == "ipo":
        return (h - 1 / (2 * BETA)) ** 2
    if name == "simpo":
        return -np.log(sigmoid(BETA * h - 0.7))
    return -np.log(sigmoid(h))


def arguments(name):
    rng = np.random.default_rng(0)
    count = 4 if name in ("dpo", "cdpo", "ipo") else 2
    return [rng.normal(-3, 4, 6) for _ in range(count)]


def slope(f, values, index, size=1e-5):
    """Central differences of ``Σ f`` in one argument."""
    up, down = ([v.copy() for v in values] for _ in range(2))
    up[index] += size
    down[index] -= size
    return (f(*up) - f(*down)) / (2 * size)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_those_of_the_papers(name):
    loss, how = LOSSES[name]
    values = arguments(name)
    with jax.enable_x64():
        given = [jnp.asarray(v) for v in values]
        found = loss(*given, **how)
        grads = jax.grad(lambda *v: loss(*v, **how).sum(), tuple(range(len(given))))(*given)
    np.testing.assert_allclose(found, expected(name, *values), 1e-9)
    for i, grad in enumerate(grads):
        wanted = slope(lambda *v: expected(name, *v), values, i)
        np.testing.assert_allclose(grad, wanted, 1e-6, 1e-8)


@pytest.mark.parity
@pytest.mark.parametrize("name", ["dpo", "cdpo", "ipo", "simpo"])
def test_losses_and_gradients_are_those_of_trl(name):
    """TRL's own function computes the losses of margins; here it gets those of the reference."""
    torch = pytest.importorskip("torch")
    trl = pytest.importorskip("trl.experimental.cpo.cpo_trainer")
    loss, how = LOSSES[name]
    values = arguments(name)
    tensors = [torch.tensor(v, requires_grad=True) for v in values]
    trainer = types.SimpleNamespace(
        alpha=0.0,
        beta=BETA,
        accelerator=types.SimpleNamespace(device="cpu"),
        loss_type={"ipo": "ipo", "simpo": "simpo"}.get(name, "sigmoid"),
        simpo_gamma=0.7,
        label_smoothing=how.get("label_smoothing", 0.0),
    )
    ratios = tensors if len(tensors) == 2 else [tensors[0] - tensors[2], tensors[1] - tensors[3]]
    theirs, *_ = trl.CPOTrainer.cpo_loss(trainer, *ratios)
    theirs.sum().backward()
    with jax.enable_x64():
        given = [jnp.asarray(v) for v in values]
        ours = loss(*given, **how)
        grads = jax.grad(lambda *v: loss(*v, **how).sum(), tuple(range(len(given))))(*given)
    np.testing.assert_allclose(ours, theirs.detach().numpy(), 1e-6)
    for grad, tensor in zip(grads, tensors, strict=True):
        np.testing.assert_allclose(grad, tensor.grad.numpy(), 1e-6, 1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_finite_however_far_apart_the_completions_are(name):
    loss, how = LOSSES[name]
    far = [jnp.array([1e4, -1e4]), jnp.array([-1e4, 1e4])]
    zeros = [jnp.zeros(2)] * (len(arguments(name)) - 2)
    grad = jax.grad(lambda c: loss(c, far[1], *zeros, **how).sum())(far[0])
    assert jnp.isfinite(loss(*far, *zeros, **how)).all()
    assert jnp.isfinite(grad).all()


def test_kto_measures_gains_and_losses_from_the_reference_point():
    rng = np.random.default_rng(1)
    log_prob, reference = rng.normal(-3, 2, (2, 5))
    desirable, z = np.array([True, False, True, True, False]), 0.4
    gain = BETA * (log_prob - reference - z)
    wanted = np.where(desirable, 1.5 * (1 - sigmoid(gain)), 0.5 * (1 - sigmoid(-gain)))
    how = {"beta": BETA, "desirable_weight": 1.5, "undesirable_weight": 0.5}

    def loss(x):
        arguments = x, jnp.asarray(reference), jnp.asarray(desirable), jnp.asarray(z)
        return preference_losses.kto_loss(*arguments, **how)

    with jax.enable_x64():
        found = loss(jnp.asarray(log_prob))
        grad = jax.grad(lambda x: loss(x).sum())(jnp.asarray(log_prob))
    weights = np.where(desirable, -1.5, 0.5)
    np.testing.assert_allclose(found, wanted, 1e-9)
    np.testing.assert_allclose(grad, weights * BETA * sigmoid(gain) * sigmoid(-gain), 1e-6)


def test_the_reference_point_of_kto_is_a_constant_that_no_empty_row_moves():
    log_prob, reference = jnp.array([1.0, 3.0, jnp.nan]), jnp.array([0.0, 1.0, 5.0])
    weights = jnp.array([1.0, 1.0, 0.0])
    point = preference_losses.kto_reference_kl
    assert point(log_prob, reference, weights) == 1.5
    assert point(-log_prob, reference, weights) == 0.0
    assert not jax.grad(point)(log_prob, reference, weights).any()


def test_dpo_of_a_tabular_policy_ends_at_the_optimum_of_rl_with_a_kl_penalty():
    """``π* = π_ref exp(r/β) / Z``, Rafailov et al. 2023, formula (4)."""
    reference = jax.nn.log_softmax(jnp.array([0.3, -1.0, 0.5, 0.0]))
    reward, beta = jnp.array([0.5, 1.0, -0.4, 0.1]), 0.7
    optimum = jax.nn.softmax(reference + reward / beta)
    a, b = (jnp.asarray(i) for i in np.triu_indices(4, 1))
    prefers = jax.nn.sigmoid(reward[a] - reward[b])  # the probability of a, by Bradley and Terry

    def loss(logits):
        log_prob = jax.nn.log_softmax(logits)
        pairs = log_prob[a], log_prob[b], reference[a], reference[b]
        other = log_prob[b], log_prob[a], reference[b], reference[a]
        won = preference_losses.dpo_loss(*pairs, beta=beta)
        lost = preference_losses.dpo_loss(*other, beta=beta)
        return (prefers * won + (1 - prefers) * lost).mean()

    step = lambda logits, _: (logits - 4.0 * jax.grad(loss)(logits), None)
    logits, _ = jax.lax.scan(step, reference, None, length=600)
    np.testing.assert_allclose(jax.nn.softmax(logits), optimum, atol=1e-3)
    rewards = preference_losses.implicit_reward(jax.nn.log_softmax(logits), reference, beta)
    np.testing.assert_allclose(rewards - rewards[0], reward - reward[0], atol=1e-2)


def test_calibration_error_against_a_loop_over_bins():
    rng = np.random.default_rng(2)
    p = rng.uniform(size=200)
    right = rng.uniform(size=200) < p**2
    bins = [[i for i in range(200) if k / 5 < p[i] <= (k + 1) / 5] for k in range(5)]
    wanted = sum(len(b) / 200 * abs(right[b].mean() - p[b].mean()) for b in bins)
    table = calibration.reliability(jnp.asarray(p, jnp.float32), jnp.asarray(right), bins=5)
    np.testing.assert_allclose(table.counts, [len(b) for b in bins])
    np.testing.assert_allclose(calibration.expected_calibration_error(table), wanted, 1e-5)


def test_edges_of_bins_and_no_predictions():
    table = calibration.reliability(jnp.array([0.0, 1.0]), jnp.array([False, True]), bins=4)
    assert table.counts.tolist() == [1, 0, 0, 1]
    empty = calibration.reliability(jnp.zeros(0), jnp.zeros(0, bool), bins=4)
    assert calibration.expected_calibration_error(empty) == 0
