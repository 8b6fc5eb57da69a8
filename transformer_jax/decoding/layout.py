"""Weights as decoding reads them fastest."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

__all__ = ["laid_out", "split_model"]


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


def laid_out(graph: Any, params: Any) -> tuple[Any, Any]:
    """A model that decodes, by its graph and parameters, settled once for all that it will write.

    Nothing that it computes changes, see :meth:`Stack.settle`, but where it computes in bfloat16:
    matrices and tables are cast to that here, once, and no more at every token.

    Args:
        graph: The static part of a decoder or an encoder-decoder.
        params: Its parameters, in nested dictionaries.

    Example:
        >>> from transformer_jax.config import PRESETS
        >>> from transformer_jax.models.decoder import Decoder
        >>> import dataclasses
        >>> config = dataclasses.replace(PRESETS["char"], vocab=5, width=12, decoder_layers=1)
        >>> _, params = laid_out(*split_model(Decoder(config, rngs=nnx.Rngs(0))))
        >>> params["decoder"]["blocks"][0]["self_attention"]["joined"]["kernel"].shape
        (12, 36)
    """
    model = nnx.merge(graph, jax.tree.map(jnp.asarray, params))
    model.settle()
    graph, params = split_model(model)
    dtype = jnp.dtype(model.config.compute.dtype)
    return graph, jax.tree.map(lambda a: a.astype(dtype) if a.ndim > 1 else a, params)
