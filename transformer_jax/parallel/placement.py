"""Models in use on the devices of a mesh: parameters, programs, and rows of batches."""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import stages
from jax.sharding import Mesh, NamedSharding
from jaxtyping import PyTree

from transformer_jax.core.trees import default_device, device_of
from transformer_jax.functional.partitioning import constrain_rows, on_mesh
from transformer_jax.models.layers.basic import Linear, LinearTransposed
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.models.layers.surgery import replaced, with_attention_kernels
from transformer_jax.models.partition import Graph
from transformer_jax.models.prepare import fuse_qkv, separate_blocks
from transformer_jax.models.protocol import Decodable
from transformer_jax.models.transformer.layers import Attention, Stack
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.parallel.sharding import num_batch_shards, shardings

__all__ = [
    "MeshProgram",
    "ModelOrSplit",
    "inference_mesh",
    "mesh_of",
    "prepare_for_decoding",
    "prepared",
    "round_up_rows",
    "shard_parameters",
    "split_model",
]

# The static part of a model, and its parameters in nested dictionaries.
Split: TypeAlias = tuple[Graph, PyTree]
ModelOrSplit: TypeAlias = nnx.Module | Decodable | Split
Model = TypeVar("Model", bound=nnx.Module)


def inference_mesh(config: MeshConfig) -> Mesh | None:
    """Returns the first devices of this machine as a mesh; None for one device.

    Args:
        config: The size of each axis. ``data=-1`` uses all devices.

    Raises:
        ConfigError: A size is out of range, or there are too few devices.

    Example:
        >>> inference_mesh(MeshConfig(data=1)) is None
        True
    """
    sizes = config.data, config.fsdp, config.context, config.tensor
    if all(size == 1 for size in sizes):
        return None
    devices, needed = jax.devices(), math.prod(sizes)
    fits = min(sizes) >= 1 and needed <= len(devices)
    return make_mesh(config, devices[:needed] if fits else devices)


def mesh_of(tree: PyTree) -> Mesh | None:
    """Returns the mesh of a tree's arrays; None on one device, and for NumPy arrays.

    Example:
        >>> mesh_of({"gain": jax.numpy.ones(3)}) is None
        True
    """
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            where = leaf.sharding
            mesh = where.mesh if isinstance(where, NamedSharding) else None
            return mesh if isinstance(mesh, Mesh) and mesh.size > 1 else None
    return None


def shard_parameters(graph: Graph, params: PyTree, mesh: Mesh) -> PyTree:
    """Places the parameters of a model on a mesh, according to their declared axes.

    Args:
        graph: The static part of the model.
        params: Its parameters in nested dictionaries, in host memory or on devices.
        mesh: Their target.

    Raises:
        ConfigError: A parameter declares no axes.
    """
    declared = parameters(nnx.eval_shape(lambda: nnx.merge(graph, params)))
    return jax.tree.map(jax.device_put, params, shardings(declared, mesh))


def round_up_rows(rows: int, tree: PyTree) -> int:
    """Returns the smallest number of rows, at least ``rows``, that divides over a tree's mesh.

    Example:
        >>> round_up_rows(3, {"gain": jax.numpy.ones(3)})
        3
    """
    mesh = mesh_of(tree)
    shards = 1 if mesh is None else num_batch_shards(mesh)
    return -(-rows // shards) * shards


class MeshProgram:
    """``jax.jit(function)``, traced for the mesh of its first argument.

    The first axis of all other arrays is split as rows of a batch. Other attributes are those of
    the jitted function.

    Args:
        function: Function whose first argument is a tree of arrays, such as a model's parameters.
        **options: Arguments of ``jax.jit``.
    """

    def __init__(self, function: Callable[..., PyTree], **options: Any):
        @functools.wraps(function)
        def split(first: PyTree, *rest: PyTree, **settings: object) -> PyTree:
            return function(first, *constrain_rows(rest), **settings)

        self.jitted = jax.jit(split, **options)

    def __call__(self, first: PyTree, *rest: PyTree, **settings: object) -> PyTree:
        """Calls the function, on the devices of the mesh."""
        mesh = mesh_of(first)
        if mesh is None:
            return self.jitted(first, *rest, **settings)
        with on_mesh(mesh):
            made = self.jitted(first, *rest, **settings)
        # CPU devices that wait for each other would use up the threads of the next program.
        is_cpu = mesh.devices.flat[0].platform == "cpu"
        return jax.block_until_ready(made) if is_cpu else made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jitted, name)

    def lower(self, first: PyTree, *rest: PyTree, **settings: object) -> stages.Lowered:
        """Lowers a program for the mesh, like ``jax.jit``."""
        mesh = mesh_of(first)
        with contextlib.nullcontext() if mesh is None else on_mesh(mesh):
            return self.jitted.lower(first, *rest, **settings)


def split_model(model: ModelOrSplit) -> Split:
    """Splits a model into graph and parameters; such a pair is returned unchanged.

    Example:
        >>> graph, params = split_model(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> sorted(params), split_model((graph, params))[1] is params
        (['bias', 'kernel'], True)
    """
    if isinstance(model, tuple):
        return model
    graph, state = nnx.split(model)
    return graph, nnx.to_pure_dict(state)


def prepared(graph: Graph, params: PyTree) -> Split:
    """Prepares graph and parameters for decoding with :func:`prepare_for_decoding`.

    Parameters on a mesh stay there, laid out as the new ones declare.

    Args:
        graph: The static part of a decoder or an encoder-decoder.
        params: Its parameters in nested dictionaries, of NumPy or JAX arrays.
    """
    params, mesh = jax.tree.map(jnp.asarray, params), mesh_of(params)
    device = device_of(params)
    on_host = mesh is None and device.platform == "cpu" and device == default_device()
    given = jax.tree.map(np.asarray, params) if on_host else params  # shares the memory
    model = with_attention_kernels(nnx.merge(graph, given), device)
    if mesh is not None:
        with on_mesh(mesh):
            graph, made = split_model(prepare_for_decoding(model))
        return graph, shard_parameters(graph, made, mesh)
    graph, made = split_model(prepare_for_decoding(model))
    known = dict(zip(map(id, jax.tree.leaves(given)), jax.tree.leaves(params), strict=True))
    return graph, jax.tree.map(lambda a: known[id(a)] if id(a) in known else jnp.asarray(a), made)


# On a CPU, weights of this width are read from memory and are best ordered by output: products of 4
# to 32 rows take 0.7 to 0.9 of the time. Weights of half the width fit in caches, and take 1.1 to
# 1.5 of the time.
WIDE = 512


def prepare_for_decoding(model: Model, wide: int = WIDE) -> Model:
    """Returns an equivalent model that decodes faster; ``model`` does not change.

    Stacked layers, which would be copied at every token, become separate modules; query, key and
    value projections become one; kernels with at least ``wide`` rows and columns are transposed
    (:func:`transformer_jax.functional.layers.linear_transposed`). If the model computes in
    bfloat16, matrices are cast to it once instead of at every token.

    Args:
        model: A decoder, an encoder-decoder or a part of one.
        wide: Smallest number of rows and columns of kernels that are transposed.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> from transformer_jax.models.transformer.models import Decoder
        >>> import dataclasses
        >>> sizes = {"vocab_size": 5, "d_model": 12, "decoder_layers": 1}
        >>> config = dataclasses.replace(PRESETS["nanogpt_char"], **sizes)
        >>> model = prepare_for_decoding(Decoder(config, rngs=nnx.Rngs(0)))
        >>> model.decoder.blocks[0].self_attention.fused_qkv.kernel.shape
        (12, 36)
    """

    def unstack(path: str, module: nnx.Module) -> nnx.Module | None:
        return separate_blocks(module) if isinstance(module, Stack) else None

    def fuse(path: str, module: nnx.Module) -> nnx.Module | None:
        if isinstance(module, Attention) and path.endswith("self_attention"):
            return fuse_qkv(module)
        return None

    def transpose(path: str, module: nnx.Module) -> nnx.Module | None:
        if type(module) is not Linear or "blocks/" not in path:
            return None
        return LinearTransposed(module) if min(module.kernel.shape) >= wide else None

    return _cast(replaced(model, unstack, fuse, transpose))


def _cast(model: Model) -> Model:
    """Returns the model with matrices in its compute dtype."""
    found = [part for _, part in nnx.iter_modules(model) if isinstance(part, Stack)]
    if not found:
        return model
    dtype = jnp.dtype(found[0].config.compute.dtype)
    cast = lambda a: a if a.ndim < 2 or a.dtype == dtype else a.astype(dtype)
    return jax.tree.map(cast, model)
