"""Pictures of position encodings and of attention masks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from transformer_jax.functional.masks import Mask, segment_mask
from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["padded_masks", "plot_masks", "plot_positions"]


def plot_positions(
    table: Float[np.ndarray, "T D"], path: Path | None = None, *, title: str = "Position encoding"
) -> "Figure":
    """Draws a heat map of position vectors: one row per position, one column per dimension.

    Vaswani et al. 2017, section 3.5: sines and cosines of the position, slower from left to right.
    """
    T, D = table.shape
    most = float(np.abs(table).max()) or 1.0
    figure = new_figure(8.0, min(max(2.5, 8.0 * T / D), 8.0))
    ax = figure.subplots()
    image = ax.imshow(table, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    ax.set(xlabel="dimension", ylabel="position", title=title)
    figure.colorbar(image, ax=ax, pad=0.01)
    return save(figure, path, title=title)


def plot_masks(
    masks: Mapping[str, Mask | Bool[np.ndarray, "T S"]],
    path: Path | None = None,
    *,
    length: int,
    keys: int | None = None,
    tokens: Sequence[str] | None = None,
) -> "Figure":
    """Draws masks side by side as matrices: row ``t`` is filled where query ``t`` may attend.

    Args:
        masks: Masks by title; for a batch, the first row is drawn.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        length: Number of queries, T.
        keys: Number of keys, S; None is the number of queries.
        tokens: Names of both rows and columns.
    """
    S = length if keys is None else keys
    figure = new_figure(0.6 + 3.1 * len(masks), 3.6)
    axes = figure.subplots(1, len(masks), squeeze=False)[0]
    for ax, (title, mask) in zip(axes, masks.items(), strict=True):
        ax.imshow(visible(mask, length, S), cmap="Blues", vmin=0, vmax=1.4, aspect="equal")
        ax.set_xticks(np.arange(S + 1) - 0.5, minor=True)
        ax.set_yticks(np.arange(length + 1) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=1.2)
        ax.tick_params(which="both", length=0, labelsize=8)
        if tokens is None:
            ax.set(xlabel="key", ylabel="query")
        else:
            ax.set_xticks(range(S), tokens[:S], rotation=60)
            ax.set_yticks(range(length), tokens[:length])
        ax.set_title(title, fontsize=10)
    return save(figure, path, title=", ".join(masks))


def padded_masks(length: int, stacks: Sequence[str], window: int | None = None) -> dict[str, Mask]:
    """Returns masks for rows with padding, and for a row with two packed texts.

    Three quarters of a row are tokens, the rest is padding. In a packed row, the first text takes a
    half and the second a quarter.

    Args:
        length: Length of a row.
        stacks: ``encoder``, ``decoder`` or both, which then have cross-attention.
        window: Sliding window of attention.

    Example:
        >>> masks = padded_masks(4, ["decoder"])
        >>> list(masks), visible(masks["decoder, two texts"], 4, 4).astype(int)
        (['decoder, padding', 'decoder, two texts'], array([[1, 0, 0, 0],
               [1, 1, 0, 0],
               [0, 0, 1, 0],
               [0, 0, 0, 0]]))
    """
    real = max(1, 3 * length // 4)
    padding, places = Mask.padding(jnp.array([real])), np.arange(length)
    segments = jnp.asarray(np.where(places < length // 2, 1, 2) * (places < real))[None]
    masks = {}
    for stack in stacks:
        own = Mask(causal=stack == "decoder", window=window)
        masks[f"{stack}, padding"] = own & padding
        if stack == "decoder":
            masks["decoder, two texts"] = own & segment_mask(segments, segments)
    if len(stacks) > 1:
        masks["cross-attention, padding"] = padding
    return masks


def visible(
    mask: Mask | Bool[np.ndarray, "T S"], length: int, keys: int
) -> Bool[np.ndarray, "T S"]:
    """Returns the keys that each query may attend to, in the first row and head.

    Example:
        >>> visible(Mask(causal=True), 2, 2)
        array([[ True, False],
               [ True,  True]])
    """
    if isinstance(mask, np.ndarray):
        return mask
    dense = mask.array(length, keys)
    if dense is None:
        return np.ones((length, keys), bool)
    return np.broadcast_to(np.asarray(dense)[0, 0], (length, keys))
