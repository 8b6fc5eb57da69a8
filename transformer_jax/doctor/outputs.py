"""Outputs of a model in the form that laws need: NumPy arrays by part, relative to their size."""

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree, Shaped

from transformer_jax.models.protocol import Decodable
from transformer_jax.parallel.placement import MeshProgram, mesh_of, split_model

__all__ = ["Outputs", "few", "program", "stride"]

_COLUMNS = 4096  # of logits; all come from one product


def program(
    model: nnx.Module | Decodable, function: Callable[..., PyTree], **options: Any
) -> Callable[..., PyTree]:
    """Returns ``function(model, ...)``, compiled for each shape of the other arguments.

    Args:
        model: A module.
        function: Function of the module and of arrays.
        **options: Options of ``jax.jit``.
    """
    graph, params = split_model(model)
    run = lambda params, *args: function(nnx.merge(graph, params), *args)
    return functools.partial(MeshProgram(run, **options), params)


def few(logits: Float[Array, "*rows V"]) -> Float[Array, "*rows _"]:
    """Returns logits of at most 4,096 tokens, spread evenly over the vocabulary.

    Example:
        >>> few(jnp.ones((2, 10_000))).shape
        (2, 3334)
    """
    return logits[..., :: stride(logits.shape[-1])]


def stride(vocab_size: int) -> int:
    """Returns the distance between the tokens whose logits :func:`few` selects.

    Example:
        >>> stride(4096), stride(10_000)
        (1, 3)
    """
    return -(-vocab_size // _COLUMNS)


class Outputs:
    """The outputs of a model by part, each divided by its size, so that errors are relative.

    The size of a part is its root mean square on the default arguments. Outputs for repeated
    arguments are not computed again.

    Args:
        model: A module.
        function: Maps the module and arguments to arrays by name.
        args: The default arguments.
    """

    def __init__(
        self,
        model: nnx.Module,
        function: Callable[..., Mapping[str, Array]],
        args: tuple[PyTree, ...],
    ):
        self._run, self.args = program(model, function), args
        self._model, self._function = model, function
        self._known: dict[Hashable, dict[str, np.ndarray]] = {}

    @functools.cached_property
    def sizes(self) -> dict[str, float]:
        """The size of each part."""
        return {name: _size(part) for name, part in self._arrays(*self.args).items()}

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of all parts, in order."""
        return tuple(self.sizes)

    def __call__(self, *args: PyTree) -> dict[str, np.ndarray]:
        """Returns all parts for the given arguments."""
        leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, args))
        key = structure, tuple((leaf.shape, leaf.tobytes()) for leaf in leaves)
        if key not in self._known:
            self._known[key] = self.fresh(*args)
        return self._known[key]

    def fresh(self, *args: PyTree) -> dict[str, np.ndarray]:
        """Returns all parts for the given arguments, without using earlier results."""
        sizes = self.sizes
        return {name: np.asarray(part / sizes[name]) for name, part in self._arrays(*args).items()}

    @property
    def mesh(self) -> Mesh | None:
        """The devices that share the model; None for one device."""
        return mesh_of(split_model(self._model)[1])

    def on_one_device(self) -> "Outputs":
        """Returns the same outputs, computed on the default device alone."""
        graph, params = split_model(self._model)
        alone = nnx.merge(graph, jax.tree.map(jnp.asarray, jax.device_get(params)))
        return Outputs(alone, self._function, self.args)

    def part(self, name: str) -> Callable[..., np.ndarray]:
        """Returns the function from arguments to a part."""
        return lambda *args: self(*args)[name]

    def sized(self, name: str) -> Callable[[Array], np.ndarray]:
        """Returns the function that divides a part, computed elsewhere, by its size here."""
        return lambda found: np.asarray(np.asarray(found, np.float32) / self.sizes[name])

    def _arrays(self, *args: PyTree) -> dict[str, np.ndarray]:
        # JAX sorts dictionaries by name.
        found = self._run(*args)
        return {name: np.asarray(found[name], np.float32) for name in sorted(found, key=_order)}


def _size(part: Shaped[np.ndarray, "..."]) -> float:
    size = float(np.sqrt(np.mean(np.square(part, dtype=np.float64))))
    return size if np.isfinite(size) and size else 1.0


def _order(name: str) -> tuple[int, int, str]:
    """Sorts embeddings, layers by number, then the rest; encoders before decoders.

    Example:
        >>> sorted(["logits", "decoder layer 1", "encoder layer 10", "encoder layer 9"], key=_order)
        ['encoder layer 9', 'encoder layer 10', 'decoder layer 1', 'logits']
    """
    side, _, number = name.rpartition(" layer ") if " layer " in name else ("", "", "")
    sides = ("encoder", "decoder")
    if name.endswith("embeddings"):
        side, number = name.removesuffix("embeddings").strip(), "-1"
    place = sides.index(side) if side in sides else len(sides)
    if name == "encoder":
        place, number = 0, "1000000"
    return place, int(number) if number.lstrip("-").isdecimal() else 0, name
