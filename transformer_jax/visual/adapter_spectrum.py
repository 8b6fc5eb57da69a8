"""Singular values of the changes that adapters make to their maps (Hu et al. 2021, section 7)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_spectra", "spectra"]

# Colors that do not depend on telling red from green (Okabe and Ito 2008).
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def spectra(changes: Mapping[str, np.ndarray], rank: int) -> dict[str, np.ndarray]:
    """Returns the ``rank`` largest singular values of each change of a kernel, in descending order.

    Example:
        >>> spectra({"query": np.diag([3.0, 0.0, 1.0])}, 2)["query"].tolist()
        [3.0, 1.0]
    """
    return {
        name: np.linalg.svd(change, compute_uv=False)[:rank] for name, change in changes.items()
    }


def plot_spectra(
    found: Mapping[str, np.ndarray], path: Path | None = None, *, title: str
) -> "Figure":
    """Draws the singular values of each map by index, with a panel for each kind of map.

    Lines are layers, darker towards the output. Values below a millionth of the largest, which are
    rounding errors, are not drawn.

    Args:
        found: Singular values by path of the map.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        title: Title of the picture.

    Raises:
        ConfigError: An unsupported suffix.
    """
    kinds: dict[str, list[str]] = {}
    for name in found:
        kinds.setdefault("/".join(name.split("/")[-2:]), []).append(name)
    columns = min(4, len(kinds))
    rows = -(-len(kinds) // columns)
    figure = new_figure(3.0 * columns + 0.6, 2.6 * rows + 0.9)
    grid = list(figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flat)
    least = 1e-6 * max(float(values.max()) for values in found.values())
    for ax in grid[len(kinds) :]:
        ax.set_axis_off()
    for i, (ax, (kind, names)) in enumerate(zip(grid, kinds.items(), strict=False)):
        for layer, name in enumerate(names, 1):
            shown = np.where(found[name] > least, found[name], np.nan)
            numbers = np.arange(1, len(shown) + 1)
            strength = 0.3 + 0.7 * layer / len(names)
            ax.plot(numbers, shown, "o-", ms=3, lw=1.2, alpha=strength, color=COLORS[i % 7])
        ax.set_title(kind.replace("_", " "), fontsize=9)
        ax.set_yscale("log")
        ax.grid(alpha=0.3)
    figure.supxlabel("index of the singular value", fontsize=9)
    figure.supylabel("singular value of the change", fontsize=9)
    figure.suptitle(f"{title}\nlines are layers, darker towards the output", fontsize=10)
    return save(figure, path, title=title)
