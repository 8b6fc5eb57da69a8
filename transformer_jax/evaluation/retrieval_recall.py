"""Retrieval between images and texts, and among texts: recall, MRR and nDCG."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float

from transformer_jax.core.errors import ConfigError

__all__ = ["matches", "ranking_scores", "recall", "recalls"]

_DEPTHS = (1, 5, 10)
_BLOCK = 1024  # rows of similarities at a time


def matches(
    rows: Sequence[int], texts: Sequence[str]
) -> tuple[list[int], list[str], Bool[np.ndarray, "images texts"]]:
    """Returns the images, the distinct texts, and whether each text belongs to each image.

    Equal texts are merged, so that retrieving another image with the same text is not an error.

    Args:
        rows: The image of each text.
        texts: The texts.

    Example:
        >>> images, different, own = matches([7, 8, 8], ["a dog", "a cat", "a dog"])
        >>> images, different, own.tolist()
        ([7, 8], ['a dog', 'a cat'], [[True, False], [True, True]])
    """
    images, different = list(dict.fromkeys(rows)), list(dict.fromkeys(texts))
    places = {row: i for i, row in enumerate(images)}
    columns = {text: i for i, text in enumerate(different)}
    own = np.zeros((len(images), len(different)), bool)
    for row, text in zip(rows, texts, strict=True):
        own[places[row], columns[text]] = True
    return images, different, own


def recall(
    queries: Float[np.ndarray, "Q P"],
    candidates: Float[np.ndarray, "C P"],
    own: Bool[np.ndarray, "Q C"],
    depths: Sequence[int] = _DEPTHS,
) -> list[float]:
    """Returns the fraction of queries with a match among the nearest candidates, for each depth.

    On ties, matches are ranked last, so that equal vectors gain nothing. A query without any match
    finds none.

    Args:
        queries: A unit vector per query.
        candidates: A unit vector per candidate.
        own: Whether each candidate matches each query.
        depths: Numbers of nearest candidates.

    Raises:
        ConfigError: There are no queries.

    Example:
        >>> queries, candidates = np.eye(2), np.array([[0.8, 0.6], [1.0, 0.0]])
        >>> recall(queries, candidates, np.eye(2, dtype=bool), (1, 2))
        [0.0, 1.0]
    """
    if not len(queries):
        raise ConfigError("there are no queries: no images or no texts")
    places = []
    for start in range(0, len(queries), _BLOCK):
        mine = own[start : start + _BLOCK]
        near = queries[start : start + _BLOCK] @ candidates.T
        best = np.where(mine, near, -np.inf).max(1, keepdims=True)
        before = ((near >= best) & ~mine).sum(1)
        places.append(np.where(mine.any(1), before, np.inf))
    ranks = np.concatenate(places)
    return [float((ranks < depth).mean()) for depth in depths]


def recalls(
    images: Float[np.ndarray, "I P"], texts: Float[np.ndarray, "C P"], own: Bool[np.ndarray, "I C"]
) -> dict[str, float]:
    """Returns recall at 1, 5 and 10 of texts by images and images by texts, and their mean at 1.

    Example:
        >>> found = recalls(np.eye(2), np.eye(2), np.eye(2, dtype=bool))
        >>> found["text_recall_1"], found["image_recall_10"], found["recall_1"]
        (1.0, 1.0, 1.0)
    """
    found = {}
    for name, given in (("text", (images, texts, own)), ("image", (texts, images, own.T))):
        for depth, value in zip(_DEPTHS, recall(*given), strict=True):
            found[f"{name}_recall_{depth}"] = value
    mean = (found["text_recall_1"] + found["image_recall_1"]) / 2
    return found | {"recall_1": mean}


def ranking_scores(
    queries: Float[np.ndarray, "Q P"],
    candidates: Float[np.ndarray, "C P"],
    relevant: Sequence[Sequence[int]],
) -> dict[str, float]:
    """Returns recall at 1, 5 and 10, and MRR and nDCG at 10, averaged over queries.

    Recall is the fraction of a query's relevant candidates that are found, MRR the inverse rank of
    the first. nDCG adds ``1 / log2(1 + rank)`` for each that is found, divided by the largest
    possible sum (Järvelin and Kekäläinen 2002). On ties, relevant candidates are ranked last.

    Args:
        queries: A vector per query, compared by dot product.
        candidates: A vector per candidate.
        relevant: Indices of the relevant candidates of each query, at least one.

    Raises:
        ConfigError: There are no queries.

    Example:
        >>> queries, candidates = np.eye(2), np.array([[0.8, 0.6], [1.0, 0.0]])
        >>> found = ranking_scores(queries, candidates, [[0], [0]])
        >>> found["recall_1"], found["mrr_10"], round(found["ndcg_10"], 4)
        (0.5, 0.75, 0.8155)
    """
    if not len(queries):
        raise ConfigError("there are no queries")
    sums = dict.fromkeys((*(f"recall_{depth}" for depth in _DEPTHS), "mrr_10", "ndcg_10"), 0.0)
    most = _DEPTHS[-1]
    for start in range(0, len(queries), _BLOCK):
        near = queries[start : start + _BLOCK] @ candidates.T
        for row, own in zip(near, relevant[start : start + _BLOCK], strict=True):
            mine = -np.sort(-row[[*own]])
            others = np.delete(row, [*own])
            before = np.array([(others >= one).sum() for one in mine])
            ranks = before + np.arange(1, len(mine) + 1)
            for depth in _DEPTHS:
                sums[f"recall_{depth}"] += float((ranks <= depth).mean())
            sums["mrr_10"] += 1.0 / float(ranks[0]) if ranks[0] <= most else 0.0
            ideal = 1 / np.log2(1 + np.arange(1, min(most, len(mine)) + 1))
            sums["ndcg_10"] += float((1 / np.log2(1 + ranks[ranks <= most])).sum() / ideal.sum())
    return {name: value / len(queries) for name, value in sums.items()}
