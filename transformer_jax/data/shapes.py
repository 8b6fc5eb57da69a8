"""The choice of a few batch shapes with little padding."""

import numpy as np
from jaxtyping import Int

__all__ = ["choose_shapes", "padded_length"]

_SHORT = 8  # lengths below the multiple are multiples of this
_CANDIDATES = 24  # lengths per side from which shapes are made; the search grows with the 4th power


def choose_shapes(
    source_lengths: Int[np.ndarray, " count"],
    target_lengths: Int[np.ndarray, " count"],
    count: int,
    pad_to_multiple_of: int = 8,
) -> list[tuple[int, int]]:
    """At most ``count`` shapes ``(S, T)``, each fitting into the next, with the least padding.

    An example uses the first shape that holds both its sides. Among all chains of lengths as in
    :func:`padded_length`, the result minimizes the sum of ``S + T`` over all examples; if there are
    many lengths, the candidates are their quantiles. The last shape holds every example.

    Example:
        >>> lengths = np.array([3, 4, 4, 5, 30])
        >>> choose_shapes(lengths, lengths, 2)
        [(8, 8), (32, 32)]
    """
    S = _candidates(source_lengths, pad_to_multiple_of)
    T = _candidates(target_lengths, pad_to_multiple_of)
    # held[i, j]: number of examples that fit shape (S[i], T[j]).
    held = np.zeros((len(S), len(T)), np.int64)
    np.add.at(held, (np.searchsorted(S, source_lengths), np.searchsorted(T, target_lengths)), 1)
    total = held.cumsum(0).cumsum(1).ravel()
    size = (S[:, None] + T[None, :]).ravel()
    i, j = np.divmod(np.arange(len(size)), len(T))
    inside = (i[:, None] <= i[None, :]) & (j[:, None] <= j[None, :])  # [smaller, larger]
    more = total[None, :] - total[:, None]
    step = np.where(inside, more * size[None, :], np.iinfo(np.int64).max)
    cost = total * size
    chains = []  # chains[k][c]: the shape before c in the best chain of k + 2 shapes that ends in c
    costs = [cost[-1]]
    for _ in range(count - 1):
        reach = step + np.where(inside, cost[:, None], 0)
        chains.append(reach.argmin(0))
        cost = reach.min(0)
        costs.append(cost[-1])
    best = int(np.argmin(costs))  # the first of equal ones, and so the fewest shapes
    path = [len(size) - 1]
    for previous in reversed(chains[:best]):
        path.append(int(previous[path[-1]]))
    return [(int(S[i[c]]), int(T[j[c]])) for c in reversed(path)]


def padded_length(
    lengths: Int[np.ndarray, " count"], pad_to_multiple_of: int
) -> Int[np.ndarray, " count"]:
    """Padded lengths: multiples of a number, or of 8 if they are below it.

    This way long texts have lengths that fused kernels support, and short ones are not padded to
    many times their length.

    Example:
        >>> padded_length(np.array([3, 21, 130]), 128), padded_length(np.array([3, 21, 130]), 4)
        (array([  8,  24, 256]), array([  4,  24, 132]))
    """
    unit = np.where(
        lengths > pad_to_multiple_of, pad_to_multiple_of, min(_SHORT, pad_to_multiple_of)
    )
    return -(-lengths // unit) * unit


def _candidates(lengths: Int[np.ndarray, " count"], multiple: int) -> Int[np.ndarray, " some"]:
    rounded = padded_length(lengths, multiple)
    found = np.unique(rounded)
    if len(found) > _CANDIDATES:
        points = np.quantile(rounded, np.linspace(0, 1, _CANDIDATES), method="higher")
        found = np.unique(points.astype(np.int64))
    return found
