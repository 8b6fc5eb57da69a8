"""One word in several sentences: its vectors and their cosines, as one self-contained page."""

import html
import importlib.resources
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer_jax.core.numerics import cosine

__all__ = ["WordVectors", "cosines", "word_vectors_html"]


class WordVectors(NamedTuple):
    """One word of a sentence.

    Attributes:
        sentence: The sentence as read by the model.
        start: Index of the word's first character.
        pieces: The tokens of the word.
        static: Mean of their rows in the embedding table, without context.
        layers: Mean of their vectors after each layer; layer 0 is the embeddings.
        words: All words of the sentence, as (start, end).
        reads: Attention of the word's tokens to each of these words, by layer: means over heads.
    """

    sentence: str
    start: int
    pieces: tuple[str, ...]
    static: Float[np.ndarray, " D"]
    layers: Float[np.ndarray, "layers D"]
    words: tuple[tuple[int, int], ...]
    reads: Float[np.ndarray, "L words"]

    def attended(self, top: int = 5) -> list[tuple[str, float]]:
        """Returns the other words of the sentence that it attends to most, averaged over layers."""
        shares = self.reads.mean(0)
        order = np.argsort(-shares, kind="stable").tolist()
        found = [(self.words[i], float(shares[i])) for i in order]
        return [
            (self.sentence[begin:end], share)
            for (begin, end), share in found
            if begin != self.start and self.sentence[begin].isalnum()
        ][:top]


def cosines(words: Sequence[WordVectors]) -> tuple[list[str], list[tuple[str, list[float]]]]:
    """The cosines of all pairs of occurrences of a word: of its static vectors, and of each layer.

    Returns:
        The names of the pairs, such as ``1, 2``, and a name and values for each kind of vectors.

    Example:
        >>> layers = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> a = WordVectors("a", 0, ("a",), layers[0], layers, ((0, 1),), np.ones((1, 1)))
        >>> cosines([a, a._replace(layers=layers[::-1])])
        (['1, 2'], [('static', [1.0]), ('layer 0', [0.0]), ('layer 1', [0.0])])
    """
    pairs = list(itertools.combinations(range(len(words)), 2))
    names = [f"{a + 1}, {b + 1}" for a, b in pairs]
    static = [float(cosine(words[a].static, words[b].static)) for a, b in pairs]
    layers = np.stack([cosine(words[a].layers, words[b].layers) for a, b in pairs], 1)
    rows = [("static", static)]
    rows += [(f"layer {i}", row) for i, row in enumerate(layers.tolist())]
    return names, rows


def word_vectors_html(words: Sequence[WordVectors], *, word: str, top: int = 5) -> str:
    """Returns an HTML page with these cosines, and the words that each occurrence attends to."""
    names, rows = cosines(words)
    head = "".join(f"<th>sentences {name}</th>" for name in names)
    table = "".join(
        f"<tr><td>{name}</td>{''.join(_cell(value) for value in values)}</tr>"
        for name, values in rows
    )
    body = (
        f"<section class='card'><h2>Cosine of the vectors of “{html.escape(word)}”</h2>"
        f"<table><tr><th>vectors</th>{head}</tr>{table}</table></section>"
    )
    body += "".join(_sentence(i, one, top) for i, one in enumerate(words, 1))
    subtitle = (
        "Its static vector is the same in every sentence; the vectors after each layer are not. "
        "Stronger color means more attention, averaged over heads and layers."
    )
    parts = {"TITLE": f"{html.escape(word)} in {len(words)} places", "SUBTITLE": subtitle}
    parts["BODY"] = body
    template = importlib.resources.files(__package__).joinpath("words.html")
    text = template.read_text(encoding="utf-8")
    return re.sub("__(TITLE|SUBTITLE|BODY)__", lambda place: parts[place[1]], text)


def _cell(value: float) -> str:
    width = round(90 * max(0.0, value))
    return f"<td><span class='bar' style='width:{width}px'></span>{value:.4f}</td>"


def _sentence(number: int, one: WordVectors, top: int) -> str:
    """A sentence whose words are colored by the attention that they receive."""
    shares = one.reads.mean(0)
    others = [share for (at, _), share in zip(one.words, shares, strict=True) if at != one.start]
    most = max(others, default=0.0) or 1.0
    out, done = [], 0
    for (begin, end), share in zip(one.words, shares, strict=True):
        out.append(html.escape(one.sentence[done:begin]))
        name = html.escape(one.sentence[begin:end])
        if begin == one.start:
            out.append(f"<b>{name}</b>")
        else:
            shade = 0.6 * min(1.0, float(share / most))
            out.append(
                f"<span style='background:rgb(var(--accent) / {shade:.3f})' "
                f"title='{share:.4f}'>{name}</span>"
            )
        done = end
    out.append(html.escape(one.sentence[done:]))
    said = ", ".join(f"{html.escape(name)} {share:.3f}" for name, share in one.attended(top))
    pieces = " ".join(html.escape(piece.strip(" ")) for piece in one.pieces)
    return (
        f"<section class='card'><h2>Sentence {number}</h2><p class='sentence'>{''.join(out)}</p>"
        f"<p>attends most to: {said or 'no other word'}; tokens: {pieces}</p></section>"
    )
