"""Trees of arrays as flat dictionaries by name, and back; the device of a tree."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

import jax
import numpy as np
from jaxtyping import Array, PyTree

__all__ = [
    "AnyArray",
    "Child",
    "default_device",
    "device_of",
    "flatten_dict",
    "path_name",
    "unflatten_dict",
    "with_leaves",
]


# On a device, or on the host.
AnyArray: TypeAlias = Array | np.ndarray
# Nested dictionaries of arrays, by names or numbers.
Nested = dict[str | int, PyTree]

Kind = TypeVar("Kind")
if TYPE_CHECKING:
    Child = Annotated[Kind, "of a pytree"]
else:

    class Child:
        """``Child[Array]``, a field of a pytree: an ``Array``, which nothing checks at run time.

        JAX rebuilds trees with placeholders, such as shapes and shardings, in place of arrays.
        """

        def __class_getitem__(cls, kind: object) -> type:
            return object


def path_name(path: Sequence[object]) -> str:
    """A tree path as text: ``(DictKey('up'), DictKey('kernel'))`` as ``'up/kernel'``.

    Example:
        >>> path_name((jax.tree_util.DictKey("blocks"), jax.tree_util.SequenceKey(0)))
        'blocks/0'
    """
    return "/".join(str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in path)


def flatten_dict(tree: PyTree) -> dict[str, PyTree]:
    """The leaves of any tree by name, in the tree's order; empty nodes are dropped.

    Names are the same for a dictionary, a tuple and a named tuple, so stored leaves do not depend
    on the Python types of an optimizer's state.

    Example:
        >>> flatten_dict({"blocks": {0: {"kernel": 1}}, "rest": (2, None)})
        {'blocks/0/kernel': 1, 'rest/0': 2}
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {path_name(path): leaf for path, leaf in leaves}


def with_leaves(tree: PyTree, leaves: Mapping[str, PyTree]) -> PyTree:
    """Returns a tree of the same structure, with leaves from ``leaves`` by name.

    Example:
        >>> with_leaves({"a": (1, 2)}, {"a/1": 20, "a/0": 10})
        {'a': (10, 20)}
    """
    return jax.tree.unflatten(
        jax.tree.structure(tree), [leaves[name] for name in flatten_dict(tree)]
    )


def unflatten_dict(leaves: Mapping[str, PyTree], *, numbers: bool = True) -> Nested:
    """Nested dictionaries from names; a level with only numbers gets ``int`` keys, in order.

    Example:
        >>> unflatten_dict({"blocks/10/kernel": 1, "blocks/2/kernel": 2, "table": 3})
        {'blocks': {2: {'kernel': 2}, 10: {'kernel': 1}}, 'table': 3}
        >>> unflatten_dict({"blocks/0": 1}, numbers=False)
        {'blocks': {'0': 1}}
    """
    tree: Nested = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = tree
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = leaf
    return _numbered(tree) if numbers else tree


def _numbered(tree: PyTree) -> PyTree:
    if not isinstance(tree, dict):
        return tree
    tree = {key: _numbered(child) for key, child in tree.items()}
    if tree and all(key.isdecimal() for key in tree):
        return {int(key): tree[key] for key in sorted(tree, key=int)}
    return tree


def default_device() -> jax.Device:
    """The default device of arrays."""
    [device] = jax.device_put(np.zeros(())).devices()
    return device


def device_of(tree: PyTree) -> jax.Device:
    """The first device with arrays of a tree; NumPy arrays go to the default device.

    Example:
        >>> device_of({"a": np.zeros(2), "b": jax.device_put(1.0, jax.devices()[0])}).id
        0
    """
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            return min(leaf.devices(), key=lambda device: device.id)
    return default_device()
