"""Pictures of the data flow in an attention layer, with the shape of each array."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transformer_jax.visual.boxes import DATA, MAP, STEP, Box, plot_boxes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HeadSizes", "plot_attention_head", "plot_multi_head_attention"]


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


def plot_attention_head(sizes: HeadSizes, path: Path | None = None) -> "Figure":
    """Draws scaled dot-product self-attention, from the tokens at the bottom to its output.

    Bishop and Bishop 2024, section 12.1.5.

    Args:
        sizes: N, D, D_k and D_v.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.

    Raises:
        ConfigError: An unsupported suffix.
    """
    return plot_boxes(_head(sizes, 1), "Scaled dot-product self-attention", path)


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
        Box("concatenate", (N, heads * D_v), (2.9, 5.9), STEP, ("A V",)),
        Box("$W^{(o)}$", (heads * D_v, D), (2.9, 6.9), MAP, ("concatenate",)),
        Box("Y", (N, D), (2.9, 7.9), DATA, ("$W^{(o)}$",)),
    ]
    title = f"Multi-head self-attention with {heads} heads"
    return plot_boxes([*_head(sizes, heads), *joined], title, path)


def _head(sizes: HeadSizes, copies: int) -> list[Box]:
    """The boxes of one head, or of several that differ only in their matrices."""
    N, D, D_k, D_v = sizes
    maps = [("q", D_k), ("k", D_k), ("v", D_v)]
    boxes = [Box("X", (N, D), (2.0, 0.0), DATA)]
    boxes += [
        Box(f"$W^{{({name})}}$", (D, size), (2.0 * column, 1.0), MAP, ("X",), copies)
        for column, (name, size) in enumerate(maps)
    ]
    return [
        *boxes,
        Box("Q Kᵀ", (N, N), (1.0, 2.1), STEP, ("$W^{(q)}$", "$W^{(k)}$"), copies),
        Box("divide by $\\sqrt{D_k}$", None, (1.0, 3.0), STEP, ("Q Kᵀ",), copies),
        Box("softmax: A", (N, N), (1.0, 3.9), STEP, ("divide by $\\sqrt{D_k}$",), copies),
        Box("A V", (N, D_v), (2.9, 4.9), STEP, ("softmax: A", "$W^{(v)}$"), copies),
    ]
