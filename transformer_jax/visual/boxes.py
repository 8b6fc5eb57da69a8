"""Pictures of data flow: boxes with the shapes of arrays, and arrows between them."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DATA", "FROZEN", "MAP", "STEP", "Box", "plot_boxes"]

# Arrays, learned matrices, other operations, matrices that are not trained.
DATA, MAP, STEP, FROZEN = "#e8edf3", "#f4b183", "#a8cbe8", "#c9c9c9"
_WIDE, _HIGH, _SHIFT = 1.5, 0.62, 0.09  # size of a box; offset between the boxes of heads


class Box(NamedTuple):
    """A box of a picture.

    Attributes:
        name: Its text.
        shape: The shape of its array; None for an operation without one.
        at: Its center; a unit of the vertical axis is a row.
        color: Its color.
        reads: The names of the boxes that it reads.
        copies: The number of overlapping boxes, such as those of heads.
        labels: The texts of the arrows from ``reads``; none if empty.
    """

    name: str
    shape: tuple[int, ...] | None
    at: tuple[float, float]
    color: str
    reads: tuple[str, ...] = ()
    copies: int = 1
    labels: tuple[str, ...] = ()


def plot_boxes(boxes: Iterable[Box], title: str, path: Path | None) -> "Figure":
    """Draws boxes and the arrows between them, from bottom to top.

    Args:
        boxes: The boxes, with different names.
        title: Title of the picture.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.

    Raises:
        ConfigError: An unsupported suffix.
    """
    named = {box.name: box for box in boxes}
    left, right = (f(box.at[0] for box in named.values()) for f in (min, max))
    top = max(box.at[1] for box in named.values())
    figure = new_figure(max(5.4, 0.85 * (right - left + 2)), 1.1 + 0.72 * (top + 1))
    ax = figure.subplots()
    for box in named.values():
        for name, label in zip(box.reads, box.labels or [""] * len(box.reads), strict=True):
            _arrow(ax, named[name], box, label)
    for box in named.values():
        _draw_box(ax, box)
    ax.set_xlim(left - 1.0, right + 1.3)
    ax.set_ylim(-0.6, top + 0.7)
    ax.set_axis_off()
    ax.set_title(title, fontsize=11)
    return save(figure, path, title=title)


def _draw_box(ax: "Axes", box: Box) -> None:
    """Draws a box, in front of the boxes of other heads."""
    from matplotlib.patches import Rectangle

    x, y = box.at
    for back in reversed(range(min(box.copies, 4))):
        corner = x - _WIDE / 2 + _SHIFT * back, y - _HIGH / 2 + _SHIFT * back
        ax.add_patch(Rectangle(corner, _WIDE, _HIGH, facecolor=box.color, edgecolor="white"))
    shape = "" if box.shape is None else "\n" + " × ".join(map(str, box.shape))
    ax.text(x, y, box.name + shape, ha="center", va="center", fontsize=9, linespacing=1.3)


def _arrow(ax: "Axes", start: Box, end: Box, label: str) -> None:
    """Draws an arrow, from top to bottom, or from side to side between boxes of a row."""
    (x, y), (u, v) = start.at, end.at
    style = {"arrowstyle": "->", "color": "#5b6573"}
    if y == v:
        begin, to = (x + _WIDE / 2, y), (u - _WIDE / 2, v)
    else:
        begin = x, y + _HIGH / 2
        to = u + 0.3 * (x > u) - 0.3 * (x < u), v - _HIGH / 2
    ax.annotate("", xy=to, xytext=begin, arrowprops=style)
    if label:
        middle = (begin[0] + to[0]) / 2, (begin[1] + to[1]) / 2
        ax.text(*middle, f" {label}", ha="left", va="bottom", fontsize=9)
