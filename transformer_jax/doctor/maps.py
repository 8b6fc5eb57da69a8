"""The law of attention weights, for every layer of a model."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, PyTree

from transformer_jax import laws
from transformer_jax.doctor.checks import Check, largest
from transformer_jax.doctor.outputs import Outputs
from transformer_jax.laws import Finding

__all__ = ["Sight", "map_checks"]


class Sight(NamedTuple):
    """The keys that the queries of an attention layer see.

    Attributes:
        real: True at keys that are not padding, ``[B S]``; None is all.
        causal: Whether queries see no later keys.
        windows: Maps a layer, from 0, to its sliding window or None; None means no windows.
    """

    real: Bool[np.ndarray, "B S"] | None = None
    causal: bool = False
    windows: Callable[[int], int | None] | None = None

    def visible(self, T: int, S: int, layer: int) -> Bool[np.ndarray, "..."]:
        """Returns the mask ``[B 1 T S]`` of a layer.

        Example:
            >>> Sight(causal=True, windows=lambda layer: 2).visible(3, 3, 0)[0, 0].astype(int)
            array([[1, 0, 0],
                   [1, 1, 0],
                   [0, 1, 1]])
        """
        seen = np.ones((1, 1, T, S), bool)
        ahead = np.arange(S)[None] - np.arange(T)[:, None]
        if self.real is not None:
            seen = seen & self.real[:, None, None]
        if self.causal:
            seen = seen & (ahead <= 0)
        window = None if self.windows is None else self.windows(layer)
        return seen if window is None else seen & (np.abs(ahead) < window)


def map_checks(
    model: nnx.Module,
    maps: Callable[..., Mapping[str, Array]],
    args: tuple[PyTree, ...],
    sights: Mapping[str, Sight],
) -> list[Check]:
    """Returns the law of attention weights, if a model has attention.

    Args:
        model: A module.
        maps: Maps the module and arguments to weights ``[L B N T S]`` by name.
        args: The arguments.
        sights: The visible keys, by name; missing names are not checked.
    """
    mixer = getattr(getattr(model, "config", None), "mixer", None)
    if mixer is not None and not mixer.attends:  # only cross-attention exists
        sights = {name: sight for name, sight in sights.items() if name == "cross"}
    if not sights:
        return []

    def by_layer(model: nnx.Module, *args: PyTree) -> dict[str, Array]:
        return {
            f"{name} layer {n}".strip(): weights
            for name, layers in maps(model, *args).items()
            for n, weights in enumerate(layers, 1)
        }

    outputs = Outputs(model, by_layer, args)

    def run(tolerance: float) -> Finding:
        each = []
        for name, weights in outputs(*args).items():
            side, _, number = name.rpartition("layer ")
            sight = sights[side.strip()]
            T, S = weights.shape[-2:]
            seen = sight.visible(T, S, int(number) - 1)
            size = outputs.sizes[name]
            found = laws.weights_sum_to_one(weights * size, seen, tolerance=tolerance)
            each.append((name, dataclasses.replace(found, where=_in_words(found.where))))
        return largest(each)

    return [Check("weights_sum_to_one", run)]


def _in_words(where: str) -> str:
    """Describes a row of weights, or a weight, with the names of its axes.

    Example:
        >>> _in_words("row [2, 1, 4]"), _in_words("weight [0, 0, 3, 5] of an invisible key")
        ('row 2, head 1, query 4', 'weight of row 0, head 0, query 3, key 5 of an invisible key')
    """
    axes = ("row", "head", "query", "key")

    def named(found: re.Match[str]) -> str:
        numbers = found[2].split(", ")
        words = ", ".join(f"{axis} {n}" for axis, n in zip(axes, numbers, strict=False))
        return words if found[1] == "row" else f"{found[1]} of {words}"

    return re.sub(r"(row|weight) \[([\d, ]+)\]", named, where)
