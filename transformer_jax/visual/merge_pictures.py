"""Pictures of byte-pair encoding, merge by merge."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.data.merges import MergeStep
from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_merges"]

PLAIN, MERGED, NEW = "#e8edf3", "#a8cbe8", "#f4b183"
_GAP, _SPACE = 0.35, 1.2  # between subwords, and additionally between words, in character widths
_LONGEST = 120  # characters per row
_STEPS = 61  # rows drawn: the letters, then one per merge


def plot_merges(steps: Sequence[MergeStep], path: Path | None = None) -> "Figure":
    """Draws a row of boxes for each step: the subwords of the text, new ones in orange.

    Only the first 60 merges and the first 120 characters are drawn. Bishop and Bishop 2024, section
    12.2.2.

    Args:
        steps: Steps from :func:`.merge_steps`.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.

    Raises:
        ConfigError: An unsupported suffix.
    """
    title, steps = "Byte-pair encoding", steps[:_STEPS]
    letters = min(_LONGEST, sum(len("".join(word)) + 3 for word in steps[0].words))
    figure = new_figure(max(4.0, 2.6 + 0.17 * letters), 0.9 + 0.42 * len(steps))
    ax = figure.subplots()
    widest = max(_row(ax, step, -row) for row, step in enumerate(steps))
    ax.set_xlim(-0.5, widest)
    ax.set_ylim(0.6 - len(steps), 0.6)
    ax.set_yticks([-row for row in range(len(steps))], [_label(step) for step in steps])
    ax.set_xticks([])
    ax.tick_params(length=0, labelsize=9)
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=11)
    return save(figure, path, title=title)


def _row(ax: "Axes", step: MergeStep, y: int) -> float:
    """Draws the subwords of a step from left to right; returns the end position."""
    from matplotlib.patches import Rectangle

    x, new = 0.0, "".join(step.pair or ())
    for word in step.words:
        for piece in word:
            if x > _LONGEST:
                ax.text(x, y, "…", va="center", fontsize=9)
                return x + 1
            color = NEW if piece == new else MERGED if len(piece) > 1 else PLAIN
            width = len(piece) + 0.4
            ax.add_patch(Rectangle((x, y - 0.32), width, 0.64, facecolor=color))
            # A dollar sign would begin a formula.
            name = piece.replace("$", r"\$")
            ax.text(
                x + width / 2, y, name, ha="center", va="center", fontsize=9, family="monospace"
            )
            x += width + _GAP
        x += _SPACE
    return x


def _label(step: MergeStep) -> str:
    if step.pair is None:
        return "letters"
    left, right = (piece.replace("$", r"\$") for piece in step.pair)
    return f"{left} + {right}, {step.times} ×"
