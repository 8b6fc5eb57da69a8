"""The base of all modules, which print as short tables of parts, shapes and parameters."""

import math
from collections.abc import Iterator, Sequence

import jax
from flax import nnx

__all__ = ["Module", "summarize"]

_DEEPEST = 3  # depth of the parts shown


class Module(nnx.Module):
    """A module that prints as a table of its parts; ``nnx.Module.__repr__`` prints all of it."""

    def __repr__(self) -> str:
        return summarize(self)

    __str__ = __repr__


def summarize(module: nnx.Module) -> str:
    """Returns a table of the parts of a module: names, classes, shapes, parameters.

    Of equal blocks, only the first is shown.

    Args:
        module: The module.

    Example:
        >>> from transformer_jax.models.layers.basic import Norm
        >>> from transformer_jax.models.config import NormConfig
        >>> print(summarize(Norm(NormConfig(), 8)))
        Norm: 16 parameters
          gain  8  8
          bias  8  8
    """
    rows = [("  " * depth + name, what, count) for depth, name, what, count in _parts(module, 1)]
    widths = [max(map(len, column)) for column in zip(*(row[:2] for row in rows), strict=True)]
    most = max((len(f"{count:,}") for *_, count in rows), default=0)
    lines = [
        f"{name:<{widths[0]}}  {what:<{widths[1]}}  {count:>{most},}" for name, what, count in rows
    ]
    return "\n".join([f"{type(module).__name__}: {_count(module):,} parameters", *lines])


def _parts(module: nnx.Module, depth: int) -> Iterator[tuple[int, str, str, int]]:
    """Depth, name, class or shape, and number of parameters of each part that has any."""
    for name, part in vars(module).items():
        if isinstance(part, nnx.Param):
            yield depth, name, " x ".join(map(str, part.shape)) or "1", math.prod(part.shape)
            continue
        several = list(part) if isinstance(part, Sequence | nnx.List) else [part]
        if not several or not all(isinstance(one, nnx.Module) for one in several):
            continue
        if total := sum(map(_count, several)):
            what = type(several[0]).__name__
            inner = list(_parts(several[0], depth + 1))
            if len(several) > 1:
                what = f"{len(several)} x {what}"
            elif len(inner) == 1:  # a single parameter
                what, inner = f"{what} {inner[0][2]}", []
            yield depth, name, what, total
            yield from inner if depth < _DEEPEST else ()


def _count(module: nnx.Module) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))
