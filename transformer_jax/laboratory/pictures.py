"""Pictures of the experiments: lines over a distance or a length, in panels side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Line", "Panel", "draw_panels"]

# A model has the same color and marker in every picture.
_STYLES = {
    "tanh": ("#d55e00", "o"),
    "relu": ("#e69f00", "s"),
    "lstm": ("#009e73", "^"),
    "gru": ("#56b4e9", "v"),
    "none": ("#d55e00", "o"),
    "attention": ("#0b3d91", "D"),
    "concat": ("#0b3d91", "D"),
    "general": ("#8e44ad", "P"),
    "dot": ("#c2185b", "X"),
    "grpo": ("#0b3d91", "D"),
    "ppo": ("#d55e00", "o"),
    "scaled": ("#0b3d91", "D"),
    "plain": ("#d55e00", "o"),
}
_OTHER = ("#777777", "x")


class Line(NamedTuple):
    """The line of one model.

    Attributes:
        name: Name in the legend; its first word determines the style.
        x: Horizontal coordinates.
        y: For each coordinate one value, or one per seed.
        label: Text for the legend instead of the name.
    """

    name: str
    x: Sequence[int | float]
    y: Sequence[float] | Sequence[Sequence[float]] | np.ndarray
    label: str | None = None


class Panel(NamedTuple):
    """Lines on common axes.

    Attributes:
        title: Title of the panel.
        x: Label of the x axis.
        y: Label of the y axis.
        lines: The lines.
        logarithmic: Logarithmic axes: ``""``, ``"x"``, ``"y"`` or ``"both"``.
        level: A marked value on the y axis, and its name.
        edge: A marked value on the x axis, and its name.
        limits: Limits of the y axis; None fits the lines.
        marks: Whether each value has a marker.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    logarithmic: Literal["", "x", "y", "both"] = ""
    level: tuple[int | float, str] | None = None
    edge: tuple[int | float, str] | None = None
    limits: tuple[int | float, int | float] | None = None
    marks: bool = True


def draw_panels(panels: Sequence[Panel], path: Path | None = None, *, title: str = "") -> "Figure":
    """Draws panels side by side; the suffix of ``path`` selects PNG, SVG or HTML.

    With several seeds, the mean is a line and the range a band. Zeros and non-finite values are
    left out of a logarithmic axis.

    Args:
        panels: Panels from left to right.
        path: Output file; None writes no file.
        title: Common title.
    """
    figure = new_figure(5.2 * len(panels), 3.8)
    if title:
        figure.suptitle(title, fontsize=12)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _draw(axes, panel)
    return save(figure, path, title=title or panels[0].title)


def _draw(axes: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    for line in panel.lines:
        y = np.asarray(line.y, float)
        y = y[:, None] if y.ndim == 1 else y
        if panel.logarithmic in ("y", "both"):
            y = np.where(np.isfinite(y) & (y > 0), y, np.nan)
        color, mark = _STYLES.get(line.name.split()[0], _OTHER)
        again = " " in line.name  # a variant of the model named by the first word
        axes.plot(
            line.x, y.mean(1), color=color, linestyle="--" if again else "-", linewidth=2,
            marker=mark if panel.marks else "", markersize=5, label=line.label or line.name,
        )  # fmt: skip
        if y.shape[1] > 1:
            axes.fill_between(line.x, y.min(1), y.max(1), color=color, alpha=0.15, linewidth=0)
    if panel.logarithmic in ("x", "both"):
        axes.set_xscale("log", base=2)
        places = sorted({place for line in panel.lines for place in line.x})
        axes.set_xticks(places, [f"{place:g}" for place in places], minor=False)
    else:
        locator = axes.xaxis.get_major_locator()
        assert isinstance(locator, MaxNLocator)
        locator.set_params(integer=True)
    if panel.logarithmic in ("y", "both"):
        axes.set_yscale("log")
    if panel.level is not None:
        axes.axhline(panel.level[0], color="0.5", linestyle=":", linewidth=1.2)
        right = max(max(line.x) for line in panel.lines)
        axes.annotate(
            panel.level[1], (right, panel.level[0]), xytext=(0, 3), textcoords="offset points",
            ha="right", color="0.4", fontsize=8,
        )  # fmt: skip
    if panel.edge is not None:
        axes.axvline(panel.edge[0], color="0.5", linestyle=":", linewidth=1.2)
        axes.annotate(
            panel.edge[1], (panel.edge[0], 0.02), xytext=(4, 0), textcoords="offset points",
            xycoords=("data", "axes fraction"), color="0.4", fontsize=8,
        )  # fmt: skip
    if panel.limits is not None:
        axes.set_ylim(*panel.limits)
    axes.set(xlabel=panel.x, ylabel=panel.y)
    axes.set_title(panel.title, fontsize=11)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, frameon=False)
