"""Row B25: gradients fall and grow exponentially in recurrent networks, and not with attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals
from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.jacobian_paths import gradient_norms
from transformer_jax.functional.recurrent import Cell, recur
from transformer_jax.laboratory.gradients import gradients
from transformer_jax.laboratory.settings import GradientSettings

B, T, D = 3, 40, 6
LINEAR = Cell(1, 1, 1, lambda add, state: (add(state[0], 0, 1),))


def norms(kernel, **how):
    """Norms by lag of a linear recurrence ``h' = x + h U``."""
    [x] = normals((B, T, D))
    last = lambda x: recur(LINEAR, x, kernel, (jnp.zeros((B, D)),), **how)[0][:, -1]
    return np.asarray(gradient_norms(last, x, jax.random.key(0)))[:, ::-1]


def orthogonal():
    [square] = normals((D, D))
    return jnp.linalg.qr(square)[0]


@pytest.mark.quick("0.9")
@pytest.mark.parametrize("radius", [0.5, 0.9, 1.0, 1.2])
def test_gradients_of_a_linear_recurrence_go_as_powers_of_the_spectral_radius(radius):
    found = norms(radius * orthogonal())
    np.testing.assert_allclose(found, np.tile(radius ** np.arange(T), (B, 1)), rtol=1e-4)


def test_norms_do_not_underflow_before_the_gradients():
    found = norms(0.01 * orthogonal())
    np.testing.assert_allclose(found[:, 15], 1e-30, rtol=1e-3)  # its square is no float32


def test_truncated_backpropagation_reaches_no_further():
    found = norms(0.9 * orthogonal(), truncate=8)
    assert (found[:, :8] > 0).all()
    assert (found[:, 8:] == 0).all()


@pytest.fixture(scope="module")
def figures():
    return gradients(
        GradientSettings(
            lags=48, texts=16, trained_distance=8, symbols=3, parameters=4_000, steps=200,
            learning_rate=5e-3,
        )
    )  # fmt: skip


@pytest.mark.slow
def test_gradients_vanish_and_explode_in_recurrent_networks(figures):
    far = {name: rows[48][0] / rows[1][0] for name, rows in figures.untrained.items()}
    assert far["tanh"] < 1e-4
    assert far["lstm"] < 1e-2
    assert far["gru"] < 1e-4
    assert far["relu"] < 1e-2
    assert far["relu × 2"] > 1e4
    assert 0.1 < far["attention"] < 10


@pytest.mark.slow
def test_training_keeps_the_gradient_of_what_is_recalled(figures):
    for name in ("lstm", "attention"):
        assert figures.accuracy[name][0] > 0.95
        cue, first = figures.trained[name][8][0], figures.untrained[name][8][0]
        assert cue > 1.5 * first, name


@pytest.mark.slow
def test_figures_have_a_row_for_each_lag(figures, tmp_path):
    assert {len(rows) for rows in figures.untrained.values()} == {49}
    assert {len(rows) for rows in figures.trained.values()} == {9}
    head, *rows = figures.table()
    assert [row[0] for row in rows] == ["tanh", "relu", "relu × 2", "lstm", "gru", "attention"]
    assert {len(row) for row in rows} == {len(head)}
    figures.draw(tmp_path / "gradients.png")
    assert (tmp_path / "gradients.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_without_training_and_scale_there_is_one_panel():
    asked = GradientSettings(
        lags=2, models=("relu",), kernel_scale=1.0, texts=2, trained_distance=0, parameters=500,
        seeds=2,
    )  # fmt: skip
    found = gradients(asked)
    assert found == gradients(asked)
    assert list(found.untrained) == ["relu"]
    assert (found.trained, found.accuracy) == ({}, {})
    assert [len(row) for row in found.untrained["relu"]] == [2, 2, 2]


@pytest.mark.slow
def test_states_that_overflow_are_refused_and_not_drawn_as_zeros():
    asked = GradientSettings(lags=90, models=("relu",), kernel_scale=9.0, texts=2, parameters=900)
    with pytest.raises(ConfigError, match="--kernel-scale 9: states grow beyond float32"):
        gradients(asked)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lags": 0}, "--lags is 0: at least 1"),
        ({"lags": 9_000}, "--lags is 9000: at most 8192"),
        ({"kernel_scale": 0.0}, "--kernel-scale is 0.0: above 0"),
        ({"trained_distance": -1}, "--trained-distance is -1: at least 0"),
        ({"models": ()}, "--models needs at least one value"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        GradientSettings(**wrong)
