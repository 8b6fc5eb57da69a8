"""Costs of layers by the length of the text (Vaswani et al. 2017, section 4)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.laboratory.complexity.layers import KINDS, Layer
from transformer_jax.laboratory.complexity.measure import Measured
from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["plot_layers"]

# Colors that do not depend on telling red from green (Okabe and Ito 2008).
COLORS = dict(zip(KINDS, ("#0072b2", "#56b4e9", "#d55e00", "#009e73", "#cc79a7"), strict=True))
MARKERS = dict(zip(KINDS, ("o", "s", "^", "D", "X"), strict=True))
MOST_TICKS = 8
Panel = Callable[[Measured], float | int | None]


def plot_layers(measured: Sequence[Measured], path: Path | None = None, *, device: str) -> "Figure":
    """Draws curves by length: FLOPs, times if there are any, and path lengths.

    For FLOPs, points are counted and lines follow the formula; for path lengths, points are
    measured. Both axes are logarithmic. Each size ``d`` has a row of panels.

    Args:
        measured: The layers.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        device: Device on which times were measured.

    Raises:
        ConfigError: An unsupported suffix.
    """
    sizes = sorted({one.layer.d for one in measured})
    panels: list[tuple[str, Panel, Panel]] = [
        ("FLOPs of the forward pass", lambda one: one.flops, lambda one: one.layer.flops)
    ]
    if all(one.times is not None for one in measured):
        panels.append((f"milliseconds on {device}", _forward, _backward))
    panels.append(("path length", lambda one: one.path, lambda one: one.layer.path_length))
    figure = new_figure(4.1 * len(panels), 3.4 * len(sizes) + 1.15)
    grid = figure.subplots(len(sizes), len(panels), squeeze=False, sharex=True)
    lengths = sorted({one.layer.n for one in measured})
    for d, row in zip(sizes, grid, strict=True):
        for ax, (title, points, line) in zip(row, panels, strict=True):
            _panel(ax, [one for one in measured if one.layer.d == d], points, line)
            ax.set_title(title if len(sizes) == 1 else f"{title}, d = {d}", fontsize=10)
            if len(lengths) <= MOST_TICKS:
                ax.set_xticks(lengths, [str(n) for n in lengths], fontsize=8)
                ax.set_xticks([], minor=True)
    for ax in grid[-1]:
        ax.set_xlabel("length n")
    handles = _legend([one.layer for one in measured])
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    about = "FLOPs: points are counted by XLA, lines the formula"
    if len(panels) == 3:
        about += "; times: solid forward, dashed backward"
    size = f" of size {sizes[0]}" if len(sizes) == 1 else ""
    figure.suptitle(f"Layers over n vectors{size}\n{about}", fontsize=11)
    return save(figure, path, title=f"Costs of layers{size}")


def _forward(one: Measured) -> float | None:
    return None if one.times is None else 1e3 * one.times.forward


def _backward(one: Measured) -> float | None:
    return None if one.times is None else 1e3 * one.times.backward


def _panel(ax: "Axes", measured: Sequence[Measured], points: Panel, line: Panel) -> None:
    """Draws one quantity of each layer by its length; backward passes are dashed."""
    timed = points is _forward
    for name in dict.fromkeys(one.layer.name for one in measured):
        curve = [one for one in measured if one.layer.name == name]
        lengths = [one.layer.n for one in curve]
        color, marker = _style(curve[0].layer, [one.layer for one in measured])
        ys = np.array([points(one) for one in curve], float)
        ax.plot(lengths, ys, "-" if timed else "", color=color, marker=marker, markersize=5)
        ax.plot(
            lengths,
            np.array([line(one) for one in curve], float),
            "--" if timed else "-",
            color=color,
        )
    ax.set(xscale="log", yscale="log")
    ax.grid(which="major", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)


def _legend(layers: Sequence[Layer]) -> "list[Line2D]":
    """Returns a line with its marker for each layer."""
    from matplotlib.lines import Line2D

    found = {layer.name: _style(layer, layers) for layer in layers}
    return [
        Line2D([], [], color=color, marker=marker, markersize=5, label=name)
        for name, (color, marker) in found.items()
    ]


def _style(layer: Layer, layers: Sequence[Layer]) -> tuple[tuple[float, float, float], str]:
    """Color and marker by kind; wider kernels and windows are darker."""
    extents = sorted({one.extent or 0 for one in layers if one.kind == layer.kind})
    dark = extents.index(layer.extent or 0) / max(len(extents) - 1, 1)
    shade = lambda i: int(COLORS[layer.kind][i : i + 2], 16) / 255 * (1 - 0.6 * dark)
    return (shade(1), shade(3), shade(5)), MARKERS[layer.kind]
