"""Curves of costs of layers hold every point (row H14)."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from transformer_jax.core.errors import ConfigError
from transformer_jax.laboratory.complexity import measure as layer_costs
from transformer_jax.laboratory.complexity.layer_formulas import Layer
from transformer_jax.laboratory.complexity.measure import Measured, Passes, plot_layers


def measured(times):
    layers = [Layer(*sizes) for sizes in (
        ("self-attention", 64, 8), ("self-attention", 1024, 8),
        ("convolution", 64, 8, 3), ("convolution", 64, 8, 5),
        ("convolution", 1024, 8, 3), ("convolution", 1024, 8, 5),
    )]  # fmt: skip
    return [
        Measured(one, one.flops + 7, 1, one.path_length if one.n < 512 else None, times)
        for one in layers
    ]


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws figures, and gives the last of them."""
    kept = []
    keep = lambda figure, path, **how: kept.append(figure)
    monkeypatch.setattr(layer_costs, "save", keep)

    def draw(found):
        plot_layers(found, tmp_path / "x.png", device="cpu")
        assert isinstance(kept[-1], Figure)
        return kept[-1]

    return draw


def test_points_are_counted_and_lines_the_formula(drawn):
    found = measured(Passes(1e-3, 2e-3))
    flops, times, paths = drawn(found).axes
    points, line, *others = [curve.get_xydata().tolist() for curve in flops.lines]
    attention = [one for one in found if one.layer.kind == "self-attention"]
    assert points == [[one.layer.n, one.flops] for one in attention]
    assert line == [[one.layer.n, one.layer.flops] for one in attention]
    assert len(others) == 2 * 2  # two widths of kernels
    forward, backward, *_ = [curve.get_ydata() for curve in times.lines]
    assert list(forward) == [1.0, 1.0]  # milliseconds
    assert list(backward) == [2.0, 2.0]
    np.testing.assert_array_equal(paths.lines[0].get_xydata()[:, 1], [1, np.nan])  # none: no point
    assert all(ax.get_xscale() == ax.get_yscale() == "log" for ax in (flops, times, paths))


def test_without_times_there_is_no_panel_of_times(drawn):
    assert len(drawn(measured(None)).axes) == 2


def test_every_layer_has_its_own_look(drawn):
    [legend] = drawn(measured(None)).legends
    looks = {(line.get_color(), line.get_marker()) for line in legend.get_lines()}
    assert len(looks) == len(legend.get_texts()) == 3


def test_pictures_are_repeatable(tmp_path):
    for name in "ab":
        plot_layers(measured(None), tmp_path / f"{name}.png", device="cpu")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_other_kinds_of_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"x.bmp: pictures are written as"):
        plot_layers(measured(None), tmp_path / "x.bmp", device="cpu")
