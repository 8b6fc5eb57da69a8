"""BLEU against the cost of training (Vaswani et al. 2017, table 2)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from transformer_jax.core.figure_fonts import drawn
from transformer_jax.evaluation.bleu_results import CAVEATS, TABLE, OwnScore, PublishedTranslator
from transformer_jax.visual.figures import new_figure, save
from transformer_jax.visual.labels import place_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_bleu"]

SINGLE, ENSEMBLE, TRANSFORMER = "#0072b2", "#56b4e9", "#d55e00"
MARKERS = "osD^vP"
LONGEST = 40  # characters in the name of a test set


class _Point(NamedTuple):
    name: str
    flops: float
    bleu: float
    color: str


def plot_bleu(path: Path | None = None, own: Sequence[OwnScore] = ()) -> "Figure":
    """Draws the table of the paper as points, one panel per language, and own scores in another.

    Own scores are on other test sets with another BLEU, so they have separate axes; if the training
    cost is not stored, a score is a horizontal line.

    Args:
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        own: Scores of own models.

    Raises:
        ConfigError: An unsupported suffix.
    """
    across = 2 + bool(own)
    figure = new_figure(5.2 * across, 5.2 + 0.2 * len(own))
    axes = figure.subplots(1, across)
    figure.suptitle("BLEU against the cost of training", fontsize=12)
    figure.supxlabel("\n".join(CAVEATS), fontsize=7.5, color="0.35")
    panels = []
    for ax, language, costs, scores in (
        (axes[0], "German", "flops_de", "bleu_de"),
        (axes[1], "French", "flops_fr", "bleu_fr"),
    ):
        known = [
            _Point(row.name, getattr(row, costs), getattr(row, scores), _color(row))
            for row in TABLE
            if getattr(row, costs) is not None and getattr(row, scores) is not None
        ]
        for point in known:
            ax.plot([point.flops], [point.bleu], "o", color=point.color, markersize=7)
        _dress(ax, f"newstest2014, English to {language}", "BLEU, tokenised")
        panels.append((ax, known))
    if own:
        _own(axes[2], own)
    with drawn(figure):
        figure.draw_without_rendering()  # computes the layout, in which names are measured
    for ax, known in panels:
        _name(ax, known)
    return save(figure, path, title="BLEU against the cost of training")


def _color(row: PublishedTranslator) -> str:
    return TRANSFORMER if "Transformer" in row.name else ENSEMBLE if row.ensemble else SINGLE


def _dress(ax: "Axes", title: str, label: str) -> None:
    ax.set_xscale("log")
    ax.margins(0.2, 0.12)
    ax.set_title(title, fontsize=10)
    ax.set_xlabel("FLOPs of training")
    ax.set_ylabel(label)
    ax.grid(which="major", color="0.92", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _name(ax: "Axes", points: Sequence[_Point]) -> None:
    """Writes each name next to its point."""
    labels = []
    for point in points:
        text = ax.annotate(
            point.name, (point.flops, point.bleu), xytext=(0, 0), textcoords="offset points",
            fontsize=8, color="0.2",
        )  # fmt: skip
        text.set_in_layout(False)
        labels.append(text)
    place_labels(ax, labels, [(point.flops, point.bleu) for point in points])


def _own(ax: "Axes", own: Sequence[OwnScore]) -> None:
    """Draws own scores, in table order, with a legend below."""
    for number, one in enumerate(own):
        cut = one.test[:LONGEST].rstrip(" ,")
        test = one.test if len(one.test) <= LONGEST else f"{cut} …"
        color = f"C{number % 10}"
        label = f"{one.bleu:.1f}  {one.source}, {test}, {one.search}".rstrip(", ")
        if one.flops:
            marker = MARKERS[number // 10 % len(MARKERS)]
            ax.plot([one.flops], [one.bleu], marker, color=color, markersize=7, label=label)
        else:
            label += " (FLOPs not stored)"
            ax.axhline(one.bleu, color=color, linewidth=1.2, linestyle=":", label=label)
    _dress(ax, "own runs, each on its own test set", "sacreBLEU")
    if not any(one.flops for one in own):
        ax.set_xticks([])
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=7, frameon=False)
