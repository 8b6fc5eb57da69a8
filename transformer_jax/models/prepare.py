"""Layouts of a finished model: fused projections, and separate or stacked blocks."""

import dataclasses
from typing import TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import PyTree

from transformer_jax.functional.kernels.products import side_by_side
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.layers.surgery import replaced
from transformer_jax.models.transformer.layers import Attention, Stack

__all__ = [
    "fuse_qkv",
    "separate_blocks",
    "stack_blocks",
    "unstack_blocks",
    "with_separate_blocks",
]

Model = TypeVar("Model", bound=nnx.Module)


def fuse_qkv(attention: Attention) -> Attention:
    """Returns the same self-attention with one map for queries, keys and values.

    Otherwise decoding would concatenate the three for every token. Maps that are not plain, such
    as those with an adapter, are not fused.
    """
    maps = attention.query, attention.key, attention.value
    if not all(type(part) is Linear for part in maps):
        return attention
    made = nnx.merge(*nnx.split(attention))
    made.fused_groups = attention.groups()
    biases = [part.bias[...] for part in maps if part.bias is not None]
    kernel = side_by_side([part.kernel[...] for part in maps], made.fused_groups)
    whole = made.query
    whole.kernel = whole.kernel.replace(kernel)
    if whole.bias is not None:
        whole.bias = whole.bias.replace(side_by_side(biases, made.fused_groups))
    made.fused_qkv = nnx.data(whole)
    made.query = made.key = made.value = None  # type: ignore[assignment]
    return made


def separate_blocks(stack: Stack) -> Stack:
    """Returns the same stack with separate parameters for each block.

    A scan would copy each block's parameters out of the stacked ones at every token.
    """
    made = nnx.merge(*nnx.split(stack))
    made.blocks = nnx.List(made.iter_blocks())
    compute = dataclasses.replace(stack.config.compute, scan_layers=False)
    made.config = dataclasses.replace(stack.config, compute=compute)
    return made


def with_separate_blocks(model: Model) -> Model:
    """Returns the model with separate parameters for each block of every scanned stack."""

    def separate(path: str, module: nnx.Module) -> nnx.Module | None:
        if not isinstance(module, Stack) or isinstance(module.blocks, nnx.List):
            return None
        return separate_blocks(module)

    return replaced(model, separate)


def stack_blocks(blocks: dict[int, PyTree]) -> PyTree:
    """Stacks the parameters of separate blocks, ``{0: …, 1: …}``, for a scan.

    Example:
        >>> stack_blocks({0: {"gain": jnp.zeros(2)}, 1: {"gain": jnp.ones(2)}})["gain"].shape
        (2, 2)
    """
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(blocks[i] for i in sorted(blocks)))


def unstack_blocks(stacked: PyTree) -> dict[int, PyTree]:
    """Separates the parameters of a scanned stack: the inverse of :func:`stack_blocks`.

    Example:
        >>> blocks = {0: {"gain": jnp.zeros(2)}, 1: {"gain": jnp.ones(2)}}
        >>> unstack_blocks(stack_blocks(blocks))[1]["gain"]
        Array([1., 1.], dtype=float32)
    """
    layers = jax.tree.leaves(stacked)[0].shape[0]
    return {i: jax.tree.map(lambda a, i=i: a[i], stacked) for i in range(layers)}
