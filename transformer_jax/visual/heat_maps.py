"""Heat maps of cross-attention over an image, one per word, as a page and as a picture."""

import base64
import dataclasses
import html
import importlib.resources
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8

from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.data.words import blank_words
from transformer_jax.visual.figures import new_figure, save

__all__ = ["HeatMaps", "heat_map_page", "word_maps"]


@dataclasses.dataclass(frozen=True)
class HeatMaps:
    """The attention of each word of a caption to the patches of its picture.

    Attributes:
        title: Name of the picture.
        text: The caption.
        words: The words of the caption, then the end of the text.
        pixels: The picture as the model reads it, before normalization.
        weights: Weight of each patch in every layer and head, in line order. The rest of each
            word's attention is on the class embedding.
    """

    title: str
    text: str
    words: tuple[str, ...]
    pixels: UInt8[np.ndarray, "height width C"]
    weights: Float[np.ndarray, "L N words rows columns"]

    def of_word(
        self, word: int, layer: int | None = None, head: int | None = None
    ) -> Float[np.ndarray, "rows columns"]:
        """Returns the weights of a word.

        Args:
            word: Index of the word.
            layer: The layer, from 0; None is the mean of all layers.
            head: The head, from 0; None is the mean of all heads.

        Raises:
            ArgumentError: There is no such word, layer or head.
        """
        for name, value, count in zip(
            ("layer", "head", "word"), (layer, head, word), self.weights.shape, strict=False
        ):
            if value is not None and not -count <= value < count:
                raise ArgumentError(f"{name} is {value}: there are 0 to {count - 1}")
        layers = self.weights if layer is None else self.weights[[layer]]
        heads = layers if head is None else layers[:, [head]]
        return np.asarray(heads[:, :, word].mean((0, 1)))

    def html(self, path: str | Path | None = None) -> str:
        """Returns a self-contained page of the heat maps.

        Args:
            path: File to write the page to.

        Raises:
            ConfigError: The file cannot be written.
        """
        return heat_map_page([self], path)

    def png(self, path: str | Path, *, layer: int | None = None) -> None:
        """Saves a picture with the heat map of each word.

        Args:
            path: The file, with suffix ``.png`` or ``.svg``.
            layer: The layer, from 0; None is the mean of all layers.

        Raises:
            ConfigError: The file cannot be written.
        """
        count = len(self.words)
        across = min(count + 1, 5)
        down = math.ceil((count + 1) / across)
        figure = new_figure(2.2 * across, 2.4 * down + 0.5)
        axes = figure.subplots(down, across, squeeze=False)
        shown = self.pixels if self.pixels.shape[2] > 1 else self.pixels[..., 0]
        height, width = self.pixels.shape[:2]
        for i, ax in enumerate(axes.flat):
            ax.set_axis_off()
            if i > count:
                continue
            ax.imshow(shown, cmap="gray", interpolation="nearest")
            if i:
                one = self.of_word(i - 1, layer)
                extent = (-0.5, width - 0.5, height - 0.5, -0.5)
                ax.imshow(one, cmap="inferno", alpha=0.65, extent=extent, interpolation="nearest")
                # A dollar sign would begin a formula.
                ax.set_title(self.words[i - 1].replace("$", r"\$"), fontsize=10)
        figure.suptitle(self.text.replace("$", r"\$"), fontsize=11, wrap=True)
        try:
            save(figure, Path(path), title=self.text)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def word_maps(
    title: str,
    pixels: UInt8[np.ndarray, "height width C"],
    weights: Float[np.ndarray, "L N T S"],
    ids: Sequence[int],
    decode: Callable[[Sequence[int]], str],
) -> HeatMaps:
    """Returns the heat maps of the words of a caption: the means over the tokens of each.

    Args:
        title: Name of the picture.
        pixels: The picture.
        weights: The attention of each token to the patches, the last columns, in line order.
        ids: The tokens, ending with the end token.
        decode: Function from tokens to text.

    Raises:
        NumericsError: A weight is NaN.
    """
    refuse_nonfinite(weights)
    side = math.isqrt(weights.shape[3])
    patches = weights[..., weights.shape[3] - side * side :]  # without the embeddings before them
    # The number of words up to each token: further subwords of a word do not add to it.
    counts = [len(blank_words(decode(ids[: i + 1]))) for i in range(len(ids) - 1)]
    places = np.maximum(np.array(counts, int) - 1, 0)
    names = blank_words(decode(ids[:-1]))
    maps = [patches[:, :, : len(places)][:, :, places == i].mean(2) for i in range(len(names))]
    stacked = np.stack([*maps, patches[:, :, len(ids) - 1]], axis=2)
    L, N, words, _ = stacked.shape
    grid = stacked.reshape(L, N, words, side, side)
    return HeatMaps(title, " ".join(names), (*names, "⏎"), pixels, np.asarray(grid, np.float32))


def heat_map_page(maps: Sequence[HeatMaps], path: str | Path | None = None) -> str:
    """Returns a self-contained HTML page with the heat maps of several pictures.

    Args:
        maps: The heat maps of each picture.
        path: File to write the page to.

    Raises:
        ConfigError: The file cannot be written.

    Example:
        >>> weights = np.ones((1, 1, 1, 2, 2), np.float32)
        >>> one = HeatMaps("a.png", "cat", ("cat",), np.zeros((4, 4, 3), np.uint8), weights)
        >>> "data:image/png;base64," in heat_map_page([one])
        True
    """
    data = json.dumps([_for_page(one) for one in maps], ensure_ascii=False, separators=(",", ":"))
    template = importlib.resources.files(__package__).joinpath("heat_maps.html")
    # No text may end the script element, and these two are line ends in older JavaScript.
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    title = maps[0].text if len(maps) == 1 else f"{len(maps)} captions"
    parts = {"TITLE": html.escape(title), "DATA": data}
    text = template.read_text(encoding="utf-8")
    page = re.sub("__(TITLE|DATA)__", lambda place: parts[place[1]], text)
    if path is not None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(page, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    return page


def _for_page(maps: HeatMaps) -> dict[str, Json]:
    from PIL import Image

    held = io.BytesIO()
    pixels = maps.pixels if maps.pixels.shape[2] > 1 else maps.pixels[..., 0]
    Image.fromarray(pixels).save(held, format="PNG")
    weights = np.ascontiguousarray(maps.weights.astype("<f4"))
    return {
        "title": maps.title,
        "text": maps.text,
        "words": maps.words,
        "image": "data:image/png;base64," + base64.b64encode(held.getvalue()).decode("ascii"),
        "shape": weights.shape,
        "weights": base64.b64encode(weights.tobytes()).decode("ascii"),
    }
