"""A plot of the diversity of texts from several generation methods."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.evaluation.diversity import Diversity
from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_diversity"]

SEARCH, SAMPLING = "#d55e00", "#0072b2"


def plot_diversity(path: Path | None, rows: Mapping[str, Diversity], number: int) -> "Figure":
    """Draws bars of self-BLEU and of distinct n-grams, one row per method.

    Search is orange, sampling blue. Greedy search has one text per line, and so no self-BLEU.

    Args:
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        rows: The measurements, by name of the method.
        number: Number of texts per line, for the title.

    Raises:
        ConfigError: An unsupported suffix.
    """
    title = f"Diversity of texts: {number} per line, one for greedy search"
    figure = new_figure(10.5, 1.6 + 0.42 * len(rows))
    left, right = figure.subplots(1, 2, sharey=True)
    figure.suptitle(title, fontsize=12)
    names = list(rows)
    colors = [SEARCH if _searches(name) else SAMPLING for name in names]
    scores = [rows[name].self_bleu for name in names]
    left.barh(names, [score or 0.0 for score in scores], color=colors, height=0.6)
    for i, score in enumerate(scores):
        said = "one text" if score is None else f"{score:.1f}"
        left.text(1.0 + (score or 0.0), i, said, va="center", fontsize=8, color="0.2")
    left.set_xlim(0, 112)
    left.set_xticks(range(0, 101, 20))
    left.set_xlabel("self-BLEU of the texts of a line (100: all equal)")
    for n, shade, shift in ((1, 1.0, -0.17), (2, 0.45, 0.17)):
        values = [getattr(rows[name], f"distinct_{n}") for name in names]
        places = [i + shift for i in range(len(names))]
        right.barh(places, values, color=colors, height=0.32, alpha=shade)
        for place, value in zip(places, values, strict=True):
            right.text(value + 0.01, place, f"{n}: {value:.2f}", va="center", fontsize=7.5,
                       color="0.2")  # fmt: skip
    right.set_xlim(0, 1.12)
    right.set_xlabel("distinct 1-grams (full) and 2-grams (pale) of all texts")
    left.invert_yaxis()
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
    return save(figure, path, title=title)


def _searches(name: str) -> bool:
    return name.startswith(("greedy", "beam"))
