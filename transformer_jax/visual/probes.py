"""Pictures of the accuracy of linear probes on the layers of a model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_probes"]

LAYER, JOINED, BEST = "#0072b2", "#56b4e9", "#d55e00"


def plot_probes(
    accuracies: Mapping[str, float],
    path: Path | None = None,
    *,
    guess: tuple[str, float] | None = None,
    title: str = "",
) -> "Figure":
    """Draws the held-out accuracy of a probe on each layer; the best is orange.

    Args:
        accuracies: Accuracies by name of the vectors: ``layer 0 (embeddings)``, ``layer 1`` and so
            on, then sums and concatenations of layers.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        guess: Name and accuracy of guessing, drawn as a dotted line.
        title: Title, such as the name of the file with labels.

    Raises:
        ConfigError: An unsupported suffix.
    """
    names, values = list(accuracies), list(accuracies.values())
    figure = new_figure(7.0, 1.3 + 0.32 * len(names))
    ax = figure.subplots()
    colors = [
        BEST if value == max(values) else LAYER if name.startswith("layer") else JOINED
        for name, value in accuracies.items()
    ]
    ax.barh(names, values, color=colors, height=0.65)
    for row, value in enumerate(values):
        ax.text(value + 0.01, row, f"{value:.1%}", va="center", fontsize=8, color="0.2")
    if guess is not None:
        ax.axvline(guess[1], color="0.3", linestyle=":", linewidth=1.2)
        label = guess[0].replace("$", r"\$")
        ax.text(guess[1], -0.75, label, ha="center", fontsize=8, color="0.3")
    ax.set_xlim(0, 1.1)
    ax.set_ylim(len(names) - 0.4, -1.1)
    ax.set_xlabel("accuracy of a linear probe")
    ax.set_title(title.replace("$", r"\$"), fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    return save(figure, path, title=title or "Probes by layer")
