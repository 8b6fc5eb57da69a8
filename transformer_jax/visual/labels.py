"""Labels of points, each placed on the side where it covers the least of the plot."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

__all__ = ["place_labels"]

_RADIUS = 5.0  # radius of a point, in units of 1/100 inch
# Offset of a label in points, with its horizontal and vertical alignment.
_Side = tuple[
    tuple[int, int], Literal["left", "center", "right"], Literal["bottom", "center", "top"]
]
_SIDES: tuple[_Side, ...] = (
    ((5, 4), "left", "bottom"), ((-5, 4), "right", "bottom"), ((5, -4), "left", "top"),
    ((-5, -4), "right", "top"), ((0, 7), "center", "bottom"), ((0, -7), "center", "top"),
    ((8, 0), "left", "center"), ((-8, 0), "right", "center"),
)  # fmt: skip


class Bounds(NamedTuple):
    """A rectangle in pixels."""

    left: float
    low: float
    right: float
    high: float

    def overlap(self, other: "Bounds") -> float:
        """The area of the intersection.

        Example:
            >>> Bounds(0.0, 0.0, 2.0, 2.0).overlap(Bounds(1.0, 1.0, 4.0, 4.0))
            1.0
        """
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.high, other.high) - max(self.low, other.low)
        return max(width, 0.0) * max(height, 0.0)


def place_labels(
    ax: "Axes",
    labels: "Sequence[Annotation]",
    drawn: Sequence[tuple[float, float]] | Float[np.ndarray, "n 2"],
) -> None:
    """Moves each label to the side of its point where it covers the least.

    Args:
        ax: Axes of a figure whose layout has been drawn, since labels are measured in pixels.
        labels: Annotations whose text has an offset in points.
        drawn: Coordinates that labels should not cover ``[n 2]``: points, and positions on lines.
    """
    radius, frame = _RADIUS / 100 * ax.figure.dpi, _bounds(ax)
    taken = [
        Bounds(x - radius, y - radius, x + radius, y + radius)
        for x, y in ax.transData.transform(drawn).tolist()
    ]

    def cost(label: "Annotation", side: _Side) -> float:
        _move(label, side)
        found = _bounds(label)
        beyond = found.overlap(found) - found.overlap(frame)
        return beyond + sum(found.overlap(one) for one in taken)

    for label in labels:
        _move(label, min(_SIDES, key=functools.partial(cost, label)))
        taken.append(_bounds(label))


def _move(label: "Annotation", side: _Side) -> None:
    offset, horizontal, vertical = side
    label.set(position=offset, ha=horizontal, va=vertical)


def _bounds(artist: "Artist") -> Bounds:
    left, low, right, high = map(float, artist.get_window_extent().extents)
    return Bounds(left, low, right, high)
