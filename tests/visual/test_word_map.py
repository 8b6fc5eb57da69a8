"""A map of words is their principal components."""

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.visual.word_map import plot_words, principal_components


def test_components_are_uncorrelated_and_keep_the_most_variance():
    x = np.random.default_rng(0).normal(size=(40, 6)) * [5, 3, 1, 1, 1, 0.5]
    y = principal_components(x, 2)
    values = np.linalg.eigvalsh(np.cov(x.T))[::-1]
    np.testing.assert_allclose(np.cov(y.T), np.diag(values[:2]), atol=1e-8)
    np.testing.assert_allclose(principal_components(-x[::-1], 2), -y[::-1] * np.sign(
        (principal_components(-x[::-1], 2) * -y[::-1]).sum(0)
    ), atol=1e-8)  # fmt: skip


def test_points_of_one_line_have_one_component():
    y = principal_components(np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]), 3)
    assert y.shape == (3, 3)
    np.testing.assert_allclose(y[:, 1:], 0, atol=1e-12)


@pytest.mark.quick(".png")
@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
def test_the_same_words_give_the_same_bytes(tmp_path, suffix):
    words, vectors = ["a", "b", "c", "d"], np.random.default_rng(0).normal(size=(4, 5))
    written = []
    for name in ("one", "two"):
        path = tmp_path / (name + suffix)
        plot_words(words, vectors, path, arrows=[("a", "b"), ("c", "d")], title="words")
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert len(written[0]) > 1000


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="pictures are written as"):
        plot_words(["a", "b"], np.eye(2), tmp_path / "x.pdf")
