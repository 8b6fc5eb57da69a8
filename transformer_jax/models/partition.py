"""Partitions of a model's parameters into trainable and frozen."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Key, PyTree

from transformer_jax.core.json_types import Json
from transformer_jax.core.trees import Nested, path_name

__all__ = [
    "EVERYTHING",
    "Graph",
    "Merge",
    "Partition",
    "merge_parts",
    "merging",
    "overlay",
    "where",
]

Graph = nnx.GraphDef[PyTree]  # the static part of a model
# (trainable, frozen, key) -> the model that the objective receives: a module, or a tuple of some.
Merge = Callable[[PyTree, PyTree, Key[Array, ""] | None], PyTree]


class Partition(NamedTuple):
    """The split into trainable and frozen parameters, as two pure functions.

    Only the trainable part has gradients and optimizer state. The model that an objective receives
    need not be one module: it is whatever ``merge`` returns.

    Attributes:
        split: ``(params, rngs) -> (trainable, frozen)``, two nested dictionaries of arrays.
            ``rngs`` is for parameters that the split adds.
        merge: ``(graph, trainable, frozen, key) -> model``, which at step 0 computes the same as
            the parameters that were split. The key is the step's, None without dropout.
        stored: How to make a plain model from stored parameters, for ``transformer_jax.load``:
            ``"overlay"`` if they are in one tree, a description under ``lora`` for adapters, the
            ids of tokens whose rows are trained under ``tokens``, or all of this under ``policy``
            if a reference is stored too; None if only the task knows.
    """

    split: Callable[[PyTree, nnx.Rngs], tuple[PyTree, PyTree]]
    merge: Callable[[Graph, PyTree, PyTree, Key[Array, ""] | None], PyTree]
    stored: str | Mapping[str, Json] | None = None


def overlay(first: PyTree, second: PyTree) -> PyTree:
    """Merges two nested dictionaries; where both have a leaf, the second one's is used.

    Example:
        >>> overlay({"a": {"x": 1}}, {"a": {"y": 2}, "b": 3})
        {'a': {'x': 1, 'y': 2}, 'b': 3}
    """
    if not isinstance(first, dict) or not isinstance(second, dict):
        return second
    shared = {name: overlay(first[name], second[name]) for name in first if name in second}
    return {**first, **second, **shared}


def merge_parts(
    graph: Graph, trainable: PyTree, frozen: PyTree, key: Key[Array, ""] | None = None
) -> nnx.Module:
    """Makes the model from parameters in two trees that share no leaf."""
    del key
    return nnx.merge(graph, overlay(frozen, trainable) if frozen else trainable)


def merging(graph: Graph) -> Merge:
    """``merge`` for :func:`make_step` from a model's static graph alone.

    Example:
        >>> graph, params = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> merging(graph)(nnx.to_pure_dict(params), {}, None).kernel.shape
        (2, 3)
    """
    return lambda trainable, frozen, key: merge_parts(graph, trainable, frozen, key)


def where(trained: Callable[[str], bool]) -> Partition:
    """Trains the parameters whose path, such as ``encoder/blocks/0/norm/gain``, passes a test.

    Example:
        >>> part = where(lambda path: path.startswith("labels/"))
        >>> part.split({"labels": {"bias": 1}, "encoder": {"bias": 2}}, nnx.Rngs(0))
        ({'labels': {'bias': 1}}, {'encoder': {'bias': 2}})
    """

    def split(params: PyTree, rngs: nnx.Rngs) -> tuple[PyTree, PyTree]:
        del rngs
        parts: tuple[Nested, Nested] = {}, {}
        is_leaf = lambda node: not isinstance(node, dict)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params, is_leaf=is_leaf):
            *parents, last = [entry.key for entry in path]
            node = parts[not trained(path_name(path))]
            for name in parents:
                node = node.setdefault(name, {})
            node[last] = leaf
        return parts

    return Partition(split, merge_parts, "overlay")


EVERYTHING = where(lambda path: True)
