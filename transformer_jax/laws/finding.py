"""Findings: a law, how much a callable breaks it, and where."""

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, PyTree, Shaped

from transformer_jax.core.arguments import check_values, checked_arguments
from transformer_jax.core.config_fields import NotNegative
from transformer_jax.core.errors import ArgumentError
from transformer_jax.core.trees import flatten_dict

__all__ = [
    "ALL",
    "Finding",
    "Law",
    "LawBroken",
    "Place",
    "difference",
    "errors",
    "finding",
    "law",
    "worst",
]

# The largest error and its place, in words.
Place = tuple[float, str]
Check = TypeVar("Check", bound=Callable[..., "Finding"])


class LawBroken(AssertionError):  # noqa: N818
    """Raised if a callable breaks a law.

    Attributes:
        finding: The law, the error and the place.
    """

    def __init__(self, finding: "Finding"):
        super().__init__(str(finding))
        self.finding = finding


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of a law.

    Attributes:
        law: Name of the law, a function of ``transformer_jax.laws``.
        sentence: The law in words.
        error: Largest deviation; infinite if an output is NaN or must not be constant.
        tolerance: Largest deviation with which the law holds.
        where: The place of the largest deviation, or "" if there is none.

    Example:
        >>> sentence = "No position reads a later one."
        >>> found = Finding("causality", sentence, 0.5, 0.0, "row 0: position 1 reads position 2")
        >>> found.holds
        False
        >>> print(found)
        causality: No position reads a later one. Error 0.5, tolerance 0: row 0: position 1 reads
        position 2
    """

    law: str
    sentence: str
    error: float
    tolerance: float
    where: str

    @property
    def holds(self) -> bool:
        """Returns whether the error is within the tolerance."""
        return self.error <= self.tolerance

    def require(self) -> "Finding":
        """Returns the finding if the law holds.

        Raises:
            LawBroken: The law does not hold; the message has the law, the error and the place.
        """
        if not self.holds:
            raise LawBroken(self)
        return self

    def __str__(self) -> str:
        end = f": {self.where}" if self.where else ""
        return (
            f"{self.law}: {self.sentence} Error {self.error:.3g}, tolerance {self.tolerance:g}{end}"
        )


@dataclasses.dataclass(frozen=True)
class Law:
    """An entry of ``ALL``.

    Attributes:
        name: Name of the function in ``transformer_jax.laws``.
        sentence: The law in words.
        tolerance: Default tolerance of the function.
        check: The function, which returns a :class:`Finding`.
    """

    name: str
    sentence: str
    tolerance: float
    check: Callable[..., Finding]


ALL: dict[str, Law] = {}


def law(sentence: str) -> Callable[[Check], Check]:
    """Decorator that adds a function to ``ALL`` under its name, with its default tolerance.

    Calls refuse arguments that their annotations do not admit.
    """

    def register(check: Check) -> Check:
        name, known = check.__name__, checked_arguments(check)
        tolerance = inspect.signature(check).parameters["tolerance"].default

        @functools.wraps(check)
        def checked(*args: object, tolerance: float = tolerance, **kwargs: object) -> Finding:
            check_values(f"{name}: ", {"tolerance": NotNegative}, {"tolerance": tolerance})
            return known(*args, tolerance=tolerance, **kwargs)

        ALL[name] = Law(name, sentence, tolerance, checked)
        return typing.cast(Check, checked)

    return register


def finding(name: str, place: Place, tolerance: float) -> Finding:
    """Returns the finding for the law with this name."""
    error, where = place
    return Finding(name, ALL[name].sentence, error, tolerance, where if error else "")


def worst(*places: Place) -> Place:
    """Returns the place of the largest error; of equal errors, the first.

    Example:
        >>> worst((0.0, ""), (0.5, "row 1"), (0.5, "row 2"))
        (0.5, 'row 1')
    """
    return max(places, key=lambda place: place[0], default=(0.0, ""))


def difference(
    found: PyTree,
    wanted: PyTree,
    axes: tuple[str, ...] = (),
    mask: Bool[np.ndarray, "..."] | None = None,
) -> Place:
    """Returns the largest absolute difference between two trees of arrays, and its place.

    Args:
        found: Arrays of any library, readable by NumPy.
        wanted: Arrays of the same shapes in a tree of the same structure.
        axes: Names of the leading axes, for the place.
        mask: Entries to compare, as an array over the leading axes.

    Raises:
        ArgumentError: There are no entries, so that any law would hold.

    Example:
        >>> difference({"a": np.array([[1, 2]])}, {"a": np.array([[1, 5]])}, ("row", "position"))
        (3.0, 'a: row 0, position 1')
    """
    one, other = flatten_dict(found), flatten_dict(wanted)
    if one.keys() != other.keys():
        return math.inf, f"leaves {sorted(one)} instead of {sorted(other)}"
    if not any(np.size(leaf) for leaf in (*one.values(), *other.values())):
        raise ArgumentError("laws: the results are empty: there is nothing to compare")
    return worst(*(_of_leaf(name, one[name], other[name], axes, mask) for name in one))


def _of_leaf(
    name: str,
    found: object,
    wanted: object,
    axes: tuple[str, ...],
    mask: Bool[np.ndarray, "..."] | None,
) -> Place:
    found, wanted = np.asarray(found), np.asarray(wanted)
    begin = f"{name}: " if name else ""
    if found.shape != wanted.shape:
        return math.inf, f"{begin}shape {list(found.shape)} instead of {list(wanted.shape)}"
    error = errors(found, wanted)
    if mask is not None:
        error = np.where(mask.reshape(mask.shape + (1,) * (error.ndim - mask.ndim)), error, 0)
    if not error.size:
        return 0.0, ""
    index = np.unravel_index(int(np.argmax(error)), error.shape)
    words = [f"{axis} {i}" for axis, i in zip(axes, index, strict=False)]
    return float(error[index]), f"{begin}{', '.join(words) or list(map(int, index))}"


def errors(
    found: Shaped[np.ndarray, "..."], wanted: Shaped[np.ndarray, "..."]
) -> Shaped[np.ndarray, "..."]:
    """Returns absolute differences of entries, infinite if only one is a number.

    Example:
        >>> errors(np.array([1.0, np.nan]), np.array([1.5, 2.0]))
        array([0.5, inf])
    """
    same = found == wanted
    if found.dtype.kind not in "fiubV" or wanted.dtype.kind not in "fiubV":  # text
        return np.where(same, 0.0, math.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    return np.where(same, 0.0, np.where(np.isnan(error), math.inf, error))
