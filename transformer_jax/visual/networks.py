"""Pictures of small networks: word2vec, an unrolled recurrent layer, a low-rank change."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.core.errors import ArgumentError, plural
from transformer_jax.visual.boxes import DATA, FROZEN, MAP, STEP, Box, plot_boxes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_cbow", "plot_low_rank", "plot_skip_gram", "plot_unrolled"]


def plot_cbow(
    context: Sequence[str], target: str, vocabulary: int, width: int, path: Path | None = None
) -> "Figure":
    """Draws CBOW: the mean of the vectors of the context predicts the word in the middle.

    Mikolov et al. 2013, section 3.1. Rows of E are the vectors, ``softmax(U h)`` the prediction.

    Args:
        context: The words around the target; all words are different.
        target: The word in the middle.
        vocabulary: V, the number of words that the network knows.
        width: D, the size of the vectors.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.

    Raises:
        ArgumentError: No context, or a word twice.
        ConfigError: An unsupported suffix.
    """
    words, middle = _row(context, target, vocabulary, 0.0)
    boxes = [
        *words,
        Box("E", (vocabulary, width), (middle, 1.0), MAP, tuple(context)),
        Box("mean", (width,), (middle, 2.0), STEP, ("E",)),
        Box("U", (vocabulary, width), (middle, 3.0), MAP, ("mean",)),
        Box("softmax", (vocabulary,), (middle, 4.0), STEP, ("U",)),
        Box(target, (vocabulary,), (middle, 5.0), DATA, ("softmax",)),
    ]
    return plot_boxes(boxes, "CBOW: the context predicts the word in the middle", path)


def plot_skip_gram(
    context: Sequence[str], target: str, vocabulary: int, width: int, path: Path | None = None
) -> "Figure":
    """Draws skip-gram: the vector of the word in the middle predicts each word of its context.

    Mikolov et al. 2013, section 3.2. Arguments and errors are those of :func:`plot_cbow`.
    """
    words, middle = _row(context, target, vocabulary, 4.0)
    boxes = [
        Box(target, (vocabulary,), (middle, 0.0), DATA),
        Box("E", (vocabulary, width), (middle, 1.0), MAP, (target,)),
        Box("U", (vocabulary, width), (middle, 2.0), MAP, ("E",)),
        Box("softmax", (vocabulary,), (middle, 3.0), STEP, ("U",)),
        *(word._replace(reads=("softmax",)) for word in words),
    ]
    return plot_boxes(boxes, "Skip-gram: the word in the middle predicts its context", path)


def _row(context: Sequence[str], target: str, vocabulary: int, y: float) -> tuple[list[Box], float]:
    """Returns the boxes of the words of a context in a row, and the middle of the row."""
    if not context or len({*context, target}) <= len(context):
        raise ArgumentError("context and target: one or more words around another are needed")
    boxes = [Box(word, (vocabulary,), (2.0 * i, y), DATA) for i, word in enumerate(context)]
    return boxes, float(len(context) - 1)


def plot_unrolled(steps: int, inputs: int, width: int, path: Path | None = None) -> "Figure":
    """Draws a recurrent layer, unrolled over time: every step has the same matrices W and U.

    ``z_n = tanh(x_n W + z_{n-1} U + b)`` (Elman 1990).

    Args:
        steps: Number of positions, at least one.
        inputs: Size of each input.
        width: Size of each state.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.

    Raises:
        ArgumentError: ``steps`` is below 1.
        ConfigError: An unsupported suffix.
    """
    if steps < 1:
        raise ArgumentError(f"steps is {steps}: at least 1")
    name = lambda letter, n: f"${letter}_{{{n}}}$"
    boxes = [Box(name("z", 0), (width,), (0.0, 1.2), DATA)]
    for n in range(1, steps + 1):
        before, at = name("z", n - 1), 2.3 * n
        boxes.append(Box(name("x", n), (inputs,), (at, 0.0), DATA))
        reads = (name("x", n), before)
        boxes.append(Box(name("z", n), (width,), (at, 1.2), STEP, reads, labels=("W", "U")))
    return plot_boxes(boxes, f"A recurrent layer over {plural(steps, 'step')}", path)


def plot_low_rank(width: int, rank: int, path: Path | None = None) -> "Figure":
    """Draws LoRA: a frozen matrix, and two thin matrices whose product is added to it.

    Hu et al. 2022, figure 1.

    Args:
        width: D, the size of inputs and outputs.
        rank: R, the size between A and B.
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.

    Raises:
        ConfigError: An unsupported suffix.
    """
    boxes = [
        Box("x", (width,), (1.1, 0.0), DATA),
        Box("W, frozen", (width, width), (0.0, 1.5), FROZEN, ("x",)),
        Box("A", (width, rank), (2.2, 1.0), MAP, ("x",)),
        Box("B, zero at first", (rank, width), (2.2, 2.0), MAP, ("A",)),
        Box("x W + s x A B", (width,), (1.1, 3.1), STEP, ("W, frozen", "B, zero at first")),
    ]
    return plot_boxes(boxes, f"LoRA of rank {rank}", path)
