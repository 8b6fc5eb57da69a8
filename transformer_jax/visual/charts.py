"""Charts of figures that commands measure: diversity, probes, similarities, adapters, errors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.core.errors import plural
from transformer_jax.evaluation.classification import ClassReport
from transformer_jax.evaluation.diversity import Diversity
from transformer_jax.evaluation.similarity import Similarity
from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "plot_confusions",
    "plot_diversity",
    "plot_probes",
    "plot_similarity",
    "plot_spectra",
    "spectra",
]


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


def plot_similarity(
    path: Path | None,
    languages: Sequence[str],
    similarities: Mapping[str, Mapping[tuple[str, str], Similarity]],
) -> "Figure":
    """Draws heat maps of languages by languages: color is retrieval, cells also show cosines.

    Args:
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        languages: The rows and columns.
        similarities: Similarities of pairs of languages, by title of the heat map. A missing pair
            is blank.

    Raises:
        ConfigError: An unsupported suffix.
    """
    count = max(one.sentences for pairs in similarities.values() for one in pairs.values())
    title = f"Mean encoder states of {plural(count, 'parallel sentence')}"
    size = max(2.4, 0.75 * len(languages))
    figure = new_figure(1.6 + (size + 0.6) * len(similarities), size + 1.5)
    axes = figure.subplots(1, len(similarities), squeeze=False)[0]
    figure.suptitle(title, fontsize=10)
    for ax, (name, pairs) in zip(axes, similarities.items(), strict=True):
        table = np.full((len(languages), len(languages)), np.nan)
        for (first, second), similarity in pairs.items():
            i, j = languages.index(first), languages.index(second)
            table[i, j] = table[j, i] = similarity.retrieval
            text = f"{similarity.retrieval:.0%}\n{similarity.cosine:.2f}"
            color = "white" if similarity.retrieval > 0.55 else "black"
            for x, y in {(i, j), (j, i)}:
                ax.text(x, y, text, ha="center", va="center", fontsize=8, color=color)
        ax.set_facecolor("0.93")
        image = ax.imshow(table, cmap="Blues", vmin=0, vmax=1)
        ax.set_xticks(range(len(languages)), languages)
        ax.set_yticks(range(len(languages)), languages)
        ax.tick_params(length=0)
        ax.set_title(name, fontsize=10)
    figure.colorbar(image, ax=list(axes), label="retrieval of the translation; below: cosine")
    return save(figure, path, title=title)


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


_NUMBERS = 20  # classes of a matrix whose cells show numbers


def plot_confusions(path: Path | None, reports: Mapping[str, ClassReport]) -> "Figure":
    """Draws confusion matrices: color is the share of a true class, cells show numbers of examples.

    Args:
        path: Output file, PNG, SVG or HTML by its suffix; None writes no file.
        reports: Scores of each class, by title of the matrix.

    Raises:
        ConfigError: An unsupported suffix.
    """
    count = max(len(report.labels) for report in reports.values())
    size = min(12.0, max(2.4, 0.5 * count))
    figure = new_figure(1.8 + (size + 1.2) * len(reports), size + 1.5)
    axes = figure.subplots(1, len(reports), squeeze=False)[0]
    for ax, (name, report) in zip(axes, reports.items(), strict=True):
        shares = report.matrix / np.maximum(report.support, 1)[:, None]
        image = ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        places = range(len(report.labels))
        small = min(9.0, 72 * size / len(places))
        ax.set_xticks(places, report.labels, rotation=90 if count > 4 else 0, fontsize=small)
        ax.set_yticks(places, report.labels, fontsize=small)
        ax.tick_params(length=0)
        ax.set(xlabel="predicted", ylabel="true")
        accuracy = np.trace(report.matrix) / report.support.sum()
        ax.set_title(f"{name}: accuracy {accuracy:.3f}", fontsize=10)
        for (i, j), number in np.ndenumerate(report.matrix) if count <= _NUMBERS else ():
            color = "white" if shares[i, j] > 0.55 else "black"
            ax.text(j, i, f"{number:,}", ha="center", va="center", fontsize=small, color=color)
    figure.colorbar(image, ax=list(axes), label="share of the true class")
    return save(figure, path, title="Confusion matrix")
