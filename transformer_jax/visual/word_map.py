"""A two-dimensional picture of words, with arrows between analogous pairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from transformer_jax.core.figure_fonts import drawn
from transformer_jax.visual.figures import new_figure, save
from transformer_jax.visual.labels import place_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_words", "principal_components"]


def principal_components(x: Float[np.ndarray, "n D"], count: int = 2) -> Float[np.ndarray, "n C"]:
    """The coordinates of rows along the directions of largest variance (PCA), around their mean.

    ``X − mean = U S Vᵀ``; the result is the first columns of ``U S``. The sign of each column makes
    its entry of largest magnitude positive, so it does not depend on the library. If ``x`` has
    fewer dimensions than requested, the remaining columns are 0.

    Source: Pearson 1901; Jolliffe, *Principal Component Analysis*, 2002.

    Example:
        >>> principal_components(np.array([[0.0, 0.0], [0.0, 4.0]]), 1).ravel()
        array([-2.,  2.])
    """
    x = x.astype(np.float64)
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    found = (u * s)[:, :count]
    # Of entries with equal magnitude, the last decides.
    sizes = np.abs(found)
    ties = np.isclose(sizes, sizes.max(0, keepdims=True))
    last = (len(found) - 1 - ties[::-1].argmax(0))[None, :]
    signs = np.where(np.take_along_axis(found, last, axis=0) < 0, -1.0, 1.0)
    found = found * signs
    return np.pad(found, ((0, 0), (0, max(count - found.shape[1], 0))))


def plot_words(
    words: Sequence[str],
    vectors: Float[np.ndarray, "n D"],
    path: Path | None = None,
    *,
    arrows: Sequence[tuple[str, str]] = (),
    title: str = "Words",
) -> "Figure":
    """Draws a map of words: their vectors projected on the first two principal components.

    Args:
        words: Names of the points.
        vectors: One row per word.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        arrows: Pairs of words to connect with an arrow from the first to the second; in analogies,
            the arrows are nearly parallel.
        title: Title of the picture.
    """
    points = dict(zip(words, principal_components(vectors), strict=True))
    ends = {word for arrow in arrows for word in arrow}
    figure = new_figure(7.0, 5.5)
    ax = figure.subplots()
    labels = []
    for word, (x, y) in points.items():
        named = word in ends
        ax.scatter(x, y, s=22, color="tab:blue" if named else "0.6", zorder=3)
        label = ax.annotate(word, (x, y), xytext=(0, 0), textcoords="offset points", zorder=4)
        label.set(fontsize=10 if named else 8, color="black" if named else "0.4")
        labels.append(label)
    for start, end in arrows:
        style = {"arrowstyle": "->", "color": "tab:orange", "lw": 1.6, "shrinkA": 4, "shrinkB": 4}
        ax.annotate("", points[end], points[start], arrowprops=style)
    ax.margins(0.15)
    ax.set(xlabel="first principal component", ylabel="second principal component", title=title)
    ax.grid(color="0.92")
    ax.set_axisbelow(True)
    lines = [np.linspace(points[start], points[end], 30) for start, end in arrows]
    with drawn(figure):
        figure.draw_without_rendering()
    place_labels(ax, labels, np.concatenate([list(points.values()), *lines]))
    return save(figure, path, title=title)
