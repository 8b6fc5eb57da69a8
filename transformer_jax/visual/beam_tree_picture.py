"""Pictures of the tree of a beam search."""

from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.decoding.beam_tree import BeamNode, BeamTree
from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_beam_tree"]

COLORS = {"kept": "#0072b2", "ended": "#009e73", "pruned": "#9aa5b1"}
BEST = "#d55e00"
_STEPS = 24  # largest number of steps drawn


def plot_beam_tree(tree: BeamTree, path: Path | None = None, *, title: str = "") -> "Figure":
    """Draws the continuations of each step, the most probable at the top, and their parents.

    Beams are blue, finished hypotheses green, pruned continuations grey, and the path of the best
    text orange. Labels are log-probabilities from the beginning of the text. Only the first 24
    steps are drawn. Bishop and Bishop 2024, section 12.3.2.

    Args:
        tree: A tree from :func:`.tree_of_beams`.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        title: Title, such as the source.

    Raises:
        ConfigError: An unsupported suffix.
    """
    shown = [i for i, node in enumerate(tree.nodes) if node.step <= _STEPS]
    steps = max((tree.nodes[i].step for i in shown), default=1)
    by_step = [[i for i in shown if tree.nodes[i].step == step] for step in range(1, steps + 1)]
    rows = max(map(len, by_step), default=1)
    figure = new_figure(2.0 + 1.55 * steps, 1.5 + 0.24 * rows)
    ax = figure.subplots()
    places = {-1: (0.0, 0.0)}
    for x, nodes in enumerate(by_step, 1):
        places |= {i: (float(x), -float(row)) for row, i in enumerate(nodes)}
    for i in shown:
        _draw(ax, tree, i, places)
    ax.plot(0, 0, "o", color="black", markersize=5)
    ax.set_xlim(-0.2, steps + 0.95)
    ax.set_ylim(0.3 - rows, 0.8)
    ax.set_yticks([])
    ax.set_xticks(range(1, steps + 1))
    ax.set_xlabel("step")
    ax.spines[["left", "right", "top"]].set_visible(False)
    named = [("best text", BEST), ("beam", COLORS["kept"]), ("finished", COLORS["ended"]),
             ("pruned", COLORS["pruned"])]  # fmt: skip
    handles = [ax.plot([], [], "o-", color=color, label=name)[0] for name, color in named]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    what = f"Beam search with {tree.num_beams} beams"
    whole = f"{title}\n{what}" if title else what
    # A dollar sign would begin a formula.
    ax.set_title(whole.replace("$", r"\$"), fontsize=10)
    return save(figure, path, title=title or what)


def _draw(ax: "Axes", tree: BeamTree, i: int, places: dict[int, tuple[float, float]]) -> None:
    node, (x, y) = tree.nodes[i], places[i]
    color, (x0, y0) = _color(node), places[node.parent]
    start = x0 + (0.62 if node.parent >= 0 else 0.0)  # after the name of the parent
    ax.plot([start, x - 0.06], [y0, y], color=color, linewidth=1.8 if node.best else 0.7,
            zorder=2 if node.best else 1)  # fmt: skip
    name = tree.names[node.token].replace(" ", "▁").replace("\n", "⏎").replace("$", r"\$")
    weight = "bold" if node.fate != "pruned" else "normal"
    ax.text(x, y, f"{name[:12]}  {node.log_prob:.2f}", color=color, va="center", fontsize=8,
            weight=weight)  # fmt: skip


def _color(node: BeamNode) -> str:
    return BEST if node.best else COLORS[node.fate]
