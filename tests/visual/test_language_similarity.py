"""The picture of similarities: the same figures give the same bytes, and other figures others."""

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.evaluation.similarity import Similarity
from transformer_jax.visual.charts import plot_similarity


def draw(path, retrieval=0.5):
    pairs = {("a", "b"): Similarity(0.4, retrieval, 20), ("b", "c"): Similarity(-0.1, 1.0, 20)}
    plot_similarity(path, ["a", "b", "c"], {"into a": pairs, "into b": {}})
    return path.read_bytes()


def test_the_picture_depends_on_the_figures_alone(tmp_path):
    first = draw(tmp_path / "one.svg")
    assert first == draw(tmp_path / "two.svg")
    assert first != draw(tmp_path / "three.svg", retrieval=0.6)


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="pictures are written as"):
        draw(tmp_path / "x.pdf")
