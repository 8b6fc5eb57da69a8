"""Attention maps as one self-contained page, as a picture and as JSON."""

import base64
import dataclasses
import html
import importlib.resources
import json
import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float

from transformer_jax.core.json_types import Json
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.visual.figures import new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["AttentionMaps", "as_json", "attention_html", "plot_attention", "translation_maps"]

Kind = Literal["encoder", "decoder", "cross"]

LABELS = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention",
}


@dataclasses.dataclass(frozen=True)
class AttentionMaps:
    """Attention of one kind in every layer and head: the weight of each column for each row.

    If rows are tokens being written, ``read`` is the token just read by the decoder.
    """

    kind: Kind
    rows: tuple[str, ...]  # T
    columns: tuple[str, ...]  # S
    weights: np.ndarray  # [L N T S]
    read: tuple[str, ...] | None = None  # T

    def __post_init__(self) -> None:
        shape = self.weights.shape
        if len(shape) != 4 or shape[2:] != (len(self.rows), len(self.columns)):
            sizes = f"[L, N, {len(self.rows)}, {len(self.columns)}]"
            raise ValueError(f"{self.kind} weights are {shape}, not {sizes}")


def translation_maps(
    source: Sequence[str],
    target: Sequence[str],
    weights: dict[str, Float[np.ndarray, "L B N T S"]],
    *,
    start: str = "<s>",
) -> tuple[AttentionMaps, ...]:
    """Returns the maps of one sentence, the only row of its batch, and its translation.

    The decoder reads ``start`` and all but the last target token; a row is named after the token
    that it writes next. Stacks without layers are left out.

    Args:
        source: Source tokens.
        target: Target tokens.
        weights: Weights by kind: "encoder", "decoder" and "cross".
        start: First token that the decoder reads.

    Raises:
        NumericsError: A weight is NaN.

    Example:
        >>> one = np.ones((1, 1, 1, 1, 1), np.float32)
        >>> maps = translation_maps(["oi"], ["hi"], {"cross": one})
        >>> maps[0].rows, maps[0].columns, maps[0].read
        (('hi',), ('oi',), ('<s>',))
    """
    refuse_nonfinite(*weights.values())
    inputs = (start, *target[:-1])
    names: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...] | None]] = {
        "encoder": (tuple(source), tuple(source), None),
        "decoder": (tuple(target), inputs, inputs),
        "cross": (tuple(target), tuple(source), inputs),
    }
    kinds: tuple[Kind, ...] = ("encoder", "decoder", "cross")
    return tuple(
        AttentionMaps(
            kind, names[kind][0], names[kind][1], np.asarray(weights[kind])[:, 0], names[kind][2]
        )
        for kind in kinds
        if kind in weights and weights[kind].shape[0]
    )


def attention_html(maps: Sequence[AttentionMaps], *, title: str, subtitle: str = "") -> str:
    """Returns a self-contained HTML page that shows every layer and head.

    It contains the exact weights, as little-endian float32 in base64.

    Example:
        >>> maps = AttentionMaps("encoder", ("a",), ("a",), np.ones((1, 1, 1, 1)))
        >>> text = attention_html([maps], title="a < b")
        >>> "<h1>a &lt; b</h1>" in text
        True
    """
    kinds = [_for_page(each) for each in maps]
    first = next((i for i, each in enumerate(maps) if each.kind == "cross"), 0)
    data = json.dumps({"first": first, "kinds": kinds}, ensure_ascii=False, separators=(",", ":"))
    template = importlib.resources.files(__package__).joinpath("attention.html")
    # No token may end the script element, and these two are line ends in older JavaScript.
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    parts = {"TITLE": html.escape(title), "SUBTITLE": html.escape(subtitle), "DATA": data}
    # In one pass: inserted text may look like a placeholder.
    text = template.read_text(encoding="utf-8")
    return re.sub("__(TITLE|SUBTITLE|DATA)__", lambda place: parts[place[1]], text)


def _for_page(maps: AttentionMaps) -> dict[str, Json]:
    writing = maps.kind != "encoder"
    label = LABELS[maps.kind]
    return {
        "name": label.replace("-attention", ""),
        "label": label,
        "rows": maps.rows,
        "columns": maps.columns,
        "read": maps.read,
        "verb": "reads",
        "rowname": "Token being written:" if writing else "Token that reads:",
        "columnname": "What it reads:",
        "shape": maps.weights.shape,
        "weights": base64.b64encode(maps.weights.astype("<f4").tobytes()).decode("ascii"),
    }


def as_json(maps: Sequence[AttentionMaps]) -> str:
    """Returns plain JSON: ``{kind: {"rows": ..., "columns": ..., "weights": [L][N][T][S]}}``.

    Example:
        >>> as_json([AttentionMaps("encoder", ("a",), ("a",), np.ones((1, 1, 1, 1)))])
        '{"encoder": {"rows": ["a"], "columns": ["a"], "weights": [[[[1.0]]]]}}'
    """
    listed = {
        each.kind: {"rows": each.rows, "columns": each.columns, "weights": each.weights.tolist()}
        for each in maps
    }
    return json.dumps(listed, ensure_ascii=False)


def plot_attention(
    maps: AttentionMaps, path: Path | None = None, *, layer: int | None = -1, title: str = ""
) -> "Figure":
    """Draws the heads of one layer, or with ``layer=None`` of all layers.

    The suffix of ``path`` selects PNG, SVG or HTML. Colors range from zero to each head's largest
    weight.
    """
    weights = maps.weights if layer is None else maps.weights[layer][None]
    L, N, T, S = weights.shape
    down, across = (L, N) if L > 1 else _grid(N)
    wordy = max(T, S) <= 40
    side = min(max(1.3 + 0.17 * max(T, S), 2.2), 6.0) if wordy else 3.0
    figure = new_figure(across * side + 0.6, down * side * max(0.6, T / max(T, S)) + 1.1)
    axes = figure.subplots(down, across, squeeze=False)
    for ax in axes.flat[L * N :]:
        ax.set_visible(False)
    for index in range(L * N):
        i, n = divmod(index, N)
        ax = axes.flat[index]
        ax.imshow(weights[i, n], cmap="Blues", vmin=0.0, aspect="auto", interpolation="nearest")
        number = (layer % maps.weights.shape[0] if layer is not None else i) + 1
        ax.set_title(f"layer {number}, head {n + 1}" if L > 1 else f"head {n + 1}", fontsize=9)
        column, row = index % across, index // across
        last = index + across >= L * N
        _words(ax, maps, wordy, left=column == 0, below=last or row == down - 1)
    name = LABELS[maps.kind] + ("" if layer is None else f", layer {number}")
    # A character of this size is about a twelfth of an inch wide.
    lines = textwrap.wrap(title, max(20, int(figure.get_figwidth() * 12)))
    figure.suptitle("\n".join([*lines, name]), fontsize=11)
    return save(figure, path, title=title or name)


def _grid(heads: int) -> tuple[int, int]:
    """Rows and columns for ``heads`` pictures, at most four side by side."""
    across = min(heads, 4)
    return math.ceil(heads / across), across


def _words(ax: "Axes", maps: AttentionMaps, wordy: bool, *, left: bool, below: bool) -> None:
    """Labels rows and columns if there is room, only at the outer pictures."""
    ax.tick_params(length=0, labelsize=8)
    for spine in ax.spines.values():
        spine.set_color("#c9d1dc")
    # A dollar sign would begin a formula.
    names = [[word.replace("$", r"\$") for word in words] for words in (maps.rows, maps.columns)]
    ax.set_yticks(
        range(len(names[0])) if left and wordy else [], names[0] if left and wordy else []
    )
    show = below and wordy
    ax.set_xticks(range(len(names[1])) if show else [], names[1] if show else [], rotation=60)
    for label in ax.get_xticklabels():
        label.set_horizontalalignment("right")
        label.set_rotation_mode("anchor")
