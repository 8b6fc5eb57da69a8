"""Scores with and without a scale: their variance, and the gradient of their softmax (row B8)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.laboratory.scales import ScaleFigures, scales, softmax_gradient_norm
from transformer_jax.laboratory.settings import ScaleSettings


@pytest.mark.slow
def test_b8_the_norm_is_that_of_the_jacobian():
    scores = jnp.array([[0.3, -1.0, 2.0, 0.0], [9.0, 0.0, 0.0, 0.0]])
    jacobians = jax.vmap(jax.jacobian(jax.nn.softmax))(scores)
    wanted = np.sqrt(np.square(jacobians).sum((1, 2)))
    np.testing.assert_allclose(softmax_gradient_norm(jax.nn.softmax(scores)), wanted, rtol=1e-4)


@pytest.mark.slow
def test_b8_gradients_vanish_with_the_size_unless_scores_are_scaled():
    """Row B8: the variance is D and the gradient falls; with the scale both stay."""
    figures = scales(ScaleSettings(sizes=(16, 256), queries=256, seeds=1))
    variance, gradient = ({k: np.ravel(v) for k, v in part.items()}
                          for part in (figures.variance, figures.gradient))  # fmt: skip
    np.testing.assert_allclose(variance["plain"], [16, 256], rtol=0.15)
    np.testing.assert_allclose(variance["scaled"], 1, rtol=0.15)
    assert gradient["plain"][1] < gradient["plain"][0] / 2
    assert gradient["scaled"][1] == pytest.approx(gradient["scaled"][0], rel=0.15)
    assert [len(row) for row in figures.table()] == [4] * 5


@pytest.mark.slow
def test_both_panels_are_logarithmic():
    rows = {name: [[1.0], [0.5]] for name in ("scaled", "plain")}
    figure = ScaleFigures(ScaleSettings(sizes=(1, 4)), rows, rows).draw()
    assert [(ax.get_xscale(), ax.get_yscale()) for ax in figure.axes] == [("log", "log")] * 2
