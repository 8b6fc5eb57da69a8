"""Graph and parameters of models that decode."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from transformer_jax.core.devices import device_of
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.models.layers.replace import prepare_for_decoding, with_attention_kernels
from transformer_jax.parallel.inference import mesh_of, shard_parameters

__all__ = ["prepared", "split_model"]


def split_model(model: Any) -> tuple[Any, Any]:
    """The graph and the parameters of a model, or of what is that pair already.

    Example:
        >>> graph, params = split_model(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
        >>> sorted(params), split_model((graph, params))[1] is params
        (['bias', 'kernel'], True)
    """
    if isinstance(model, tuple):
        return model
    graph, state = nnx.split(model)
    return graph, nnx.to_pure_dict(state)


def prepared(graph: Any, params: Any) -> tuple[Any, Any]:
    """Graph and parameters of a model as :func:`prepare_for_decoding` makes it, for its device.

    Parameters on a mesh stay there, laid out as the new ones declare.

    Args:
        graph: The static part of a decoder or an encoder-decoder.
        params: Its parameters in nested dictionaries, of NumPy or JAX arrays.
    """
    params = jax.tree.map(jnp.asarray, params)
    model = nnx.merge(graph, params)
    model = with_attention_kernels(model, device_of(params))
    mesh = mesh_of(params)
    if mesh is None:
        return split_model(prepare_for_decoding(model))
    with on_mesh(mesh):
        graph, params = split_model(prepare_for_decoding(model))
    return graph, shard_parameters(graph, params, mesh)
