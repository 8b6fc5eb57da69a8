"""Pictures of the data flow in an attention layer, with the shape of each array."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["HeadSizes", "plot_attention_head", "plot_multi_head_attention"]

DATA, MAP, STEP = "#e8edf3", "#f4b183", "#a8cbe8"  # arrays, learned matrices, other operations
_WIDE, _HIGH, _SHIFT = 1.5, 0.62, 0.09  # size of a box; offset between the boxes of heads


class HeadSizes(NamedTuple):
    """Sizes of an attention head.

    Attributes:
        tokens: N, the length of the text.
        width: D, the size of the vectors of tokens.
        key: D_k, the size of queries and keys.
        value: D_v, the size of values.
    """

    tokens: int
    width: int
    key: int
    value: int


class _Box(NamedTuple):
    """A box of a picture, its center, and the names of the boxes that it reads."""

    name: str
    shape: tuple[int, int] | None
    at: tuple[float, float]
    color: str
    reads: tuple[str, ...] = ()
    copies: int = 1


def plot_attention_head(sizes: HeadSizes, path: Path | None = None) -> "Figure":
    """Draws scaled dot-product self-attention, from the tokens at the bottom to its output.

    Bishop and Bishop 2024, section 12.1.5.

    Args:
        sizes: N, D, D_k and D_v.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.

    Raises:
        ConfigError: An unsupported suffix.
    """
    return _draw(_head(sizes, 1), "Scaled dot-product self-attention", path)


def plot_multi_head_attention(sizes: HeadSizes, heads: int, path: Path | None = None) -> "Figure":
    """Draws multi-head self-attention; the boxes of the heads overlap.

    Bishop and Bishop 2024, section 12.1.6.

    Args:
        sizes: N, D, and D_k and D_v of each head.
        heads: C, the number of heads.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.

    Raises:
        ConfigError: An unsupported suffix.
    """
    N, D, _, D_v = sizes
    joined = [
        _Box("concatenate", (N, heads * D_v), (2.9, 5.9), STEP, ("A V",)),
        _Box("$W^{(o)}$", (heads * D_v, D), (2.9, 6.9), MAP, ("concatenate",)),
        _Box("Y", (N, D), (2.9, 7.9), DATA, ("$W^{(o)}$",)),
    ]
    title = f"Multi-head self-attention with {heads} heads"
    return _draw([*_head(sizes, heads), *joined], title, path)


def _head(sizes: HeadSizes, copies: int) -> list[_Box]:
    """The boxes of one head, or of several that differ only in their matrices."""
    N, D, D_k, D_v = sizes
    maps = [("q", D_k), ("k", D_k), ("v", D_v)]
    boxes = [_Box("X", (N, D), (2.0, 0.0), DATA)]
    boxes += [
        _Box(f"$W^{{({name})}}$", (D, size), (2.0 * column, 1.0), MAP, ("X",), copies)
        for column, (name, size) in enumerate(maps)
    ]
    return [
        *boxes,
        _Box("Q Kᵀ", (N, N), (1.0, 2.1), STEP, ("$W^{(q)}$", "$W^{(k)}$"), copies),
        _Box("divide by $\\sqrt{D_k}$", None, (1.0, 3.0), STEP, ("Q Kᵀ",), copies),
        _Box("softmax: A", (N, N), (1.0, 3.9), STEP, ("divide by $\\sqrt{D_k}$",), copies),
        _Box("A V", (N, D_v), (2.9, 4.9), STEP, ("softmax: A", "$W^{(v)}$"), copies),
    ]


def _draw(boxes: Iterable[_Box], title: str, path: Path | None) -> "Figure":
    named = {box.name: box for box in boxes}
    top = max(box.at[1] for box in named.values())
    figure = new_figure(5.4, 1.1 + 0.72 * (top + 1))
    ax = figure.subplots()
    for box in named.values():
        for name in box.reads:
            _arrow(ax, named[name], box)
    for box in named.values():
        _draw_box(ax, box)
    ax.set_xlim(-1.0, 5.3)
    ax.set_ylim(-0.6, top + 0.7)
    ax.set_axis_off()
    ax.set_title(title, fontsize=11)
    return save(figure, path, title=title)


def _draw_box(ax: "Axes", box: _Box) -> None:
    """Draws a box, in front of the boxes of other heads."""
    from matplotlib.patches import Rectangle

    x, y = box.at
    for back in reversed(range(min(box.copies, 4))):
        corner = x - _WIDE / 2 + _SHIFT * back, y - _HIGH / 2 + _SHIFT * back
        ax.add_patch(Rectangle(corner, _WIDE, _HIGH, facecolor=box.color, edgecolor="white"))
    shape = "" if box.shape is None else "\n{} × {}".format(*box.shape)
    ax.text(x, y, box.name + shape, ha="center", va="center", fontsize=9, linespacing=1.3)


def _arrow(ax: "Axes", start: _Box, end: _Box) -> None:
    (x, y), (u, v) = start.at, end.at
    style = {"arrowstyle": "->", "color": "#5b6573"}
    to = u + 0.3 * (x > u) - 0.3 * (x < u), v - _HIGH / 2
    ax.annotate("", xy=to, xytext=(x, y + _HIGH / 2), arrowprops=style)
