"""A picture of the similarity of encoder states across languages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from transformer_jax.core.errors import plural
from transformer_jax.evaluation.similarity import Similarity
from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_similarity"]


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
