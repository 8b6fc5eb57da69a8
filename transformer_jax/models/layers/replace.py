"""Modules of a model in place of others: layouts for decoding, adapters, quantized weights."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from transformer_jax.functional.kernels.choice import resolve_implementation
from transformer_jax.models.layers.attention import Attention
from transformer_jax.models.layers.basic import Linear, LinearTransposed
from transformer_jax.models.layers.stack import Stack

__all__ = ["prepare_for_decoding", "replaced", "with_attention_kernels"]

# On a CPU, weights of this width come from memory and lie best in the order of outputs: products of
# 4 to 32 rows take 0.7 to 0.9 of the time. Those of half of it come from caches, and take 1.1 to
# 1.5 of it.
WIDE = 512


def replaced(model: Any, make: Callable[[str, Any], Any]) -> Any:
    """The model with ``make(path, module)`` in place of each of its modules.

    ``make`` gets a module and its path, such as ``"decoder/blocks/0/feed_forward/up"``, and returns
    another module, or None to keep this one. Modules are visited from the model down; those inside
    a new module are not visited. A module that is in several places is visited once and replaced in
    all of them. The model that is given does not change; unchanged parameters are shared with it.

    Args:
        model: A module, real or abstract.
        make: Function from path and module to a module or None. New modules declare the axes of
            their parameters, so that they shard.

    Example:
        >>> model = nnx.Dict(up=nnx.Linear(2, 3, rngs=nnx.Rngs(0)), down=nnx.Dict())
        >>> none = lambda path, module: nnx.Dict() if path == "up" else None
        >>> sorted(nnx.to_pure_dict(nnx.state(replaced(model, none)))), len(nnx.state(model))
        ([], 1)
    """
    done: dict[int, Any] = {}

    def visit(path: str, module: Any) -> Any:
        if id(module) in done:
            return done[id(module)]
        made = make(path, module)
        done[id(module)] = module if made is None else made
        if made is None:
            for name, child in list(nnx.iter_children(module)):
                if isinstance(child, nnx.Variable):
                    continue
                if (new := visit(f"{path}/{name}".lstrip("/"), child)) is not child:
                    _set(module, name, new)
        return done[id(module)]

    return visit("", nnx.merge(*nnx.split(model)))


def _set(module: Any, name: Any, child: Any) -> None:
    if isinstance(module, nnx.List | nnx.Dict):
        module[name] = child
    else:
        setattr(module, name, child)


def prepare_for_decoding(model: Any, wide: int = WIDE) -> Any:
    """A model that computes the same and decodes faster; the model that is given does not change.

    Layers that are stacked along an axis, which would be copied at every token, become modules of
    their own; query, key and value projections become one; kernels of at least ``wide`` rows and
    columns are transposed (:func:`transformer_jax.functional.layers.linear_transposed`). Where the
    model computes in bfloat16, matrices are cast to it once instead of at every token.

    Args:
        model: A decoder, an encoder-decoder or a part of one.
        wide: Smallest number of rows and columns of kernels that are transposed.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> from transformer_jax.models.decoder import Decoder
        >>> import dataclasses
        >>> sizes = {"vocab_size": 5, "d_model": 12, "decoder_layers": 1}
        >>> config = dataclasses.replace(PRESETS["nanogpt_char"], **sizes)
        >>> model = prepare_for_decoding(Decoder(config, rngs=nnx.Rngs(0)))
        >>> model.decoder.blocks[0].self_attention.fused_qkv.kernel.shape
        (12, 36)
    """

    def unstack(path: str, module: Any) -> Any:
        return module.unstacked() if isinstance(module, Stack) else None

    def fuse(path: str, module: Any) -> Any:
        is_self = isinstance(module, Attention) and path.endswith("self_attention")
        return module.with_fused_qkv() if is_self else None

    def transpose(path: str, module: Any) -> Any:
        is_plain = type(module) is Linear and "blocks/" in path
        return LinearTransposed(module) if is_plain and min(module.kernel.shape) >= wide else None

    for make in (unstack, fuse, transpose):
        model = replaced(model, make)
    return _cast(model)


def with_attention_kernels(model: Any, device: Any) -> Any:
    """The model with the attention kernels of a device; the model that is given does not change.

    ``attention.implementation`` is resolved here, once, since kernels depend on more than the
    platform that a program is lowered for: see :func:`.resolve_implementation`.

    Args:
        model: A module, real or abstract.
        device: Device that it will run on, such as the first of a mesh.

    Example:
        >>> from transformer_jax.models.presets import PRESETS
        >>> from transformer_jax.models.decoder import Decoder
        >>> model = nnx.eval_shape(lambda: Decoder(PRESETS["nanogpt_char"], rngs=nnx.Rngs(0)))
        >>> model = with_attention_kernels(model, jax.devices("cpu")[0])
        >>> model.decoder.blocks[0].self_attention.attention.implementation
        'auto'
    """
    platform = {"cuda": "gpu", "rocm": "gpu"}.get(device.platform, device.platform)
    capability = getattr(device, "compute_capability", None)

    def resolve(path: str, module: Any) -> Any:
        if isinstance(module, Attention):
            settings = module.attention
            name: Any = resolve_implementation(
                settings.implementation,
                platform,
                module.dtype,
                max(module.H, module.U),
                float(capability or 9.0),
            )
            module.attention = dataclasses.replace(settings, implementation=name)
        return None

    return replaced(model, resolve)


def _cast(model: Any) -> Any:
    """The model with matrices in the type that its stacks compute in."""
    found = [part for _, part in nnx.iter_modules(model) if isinstance(part, Stack)]
    if not found:
        return model
    dtype = jnp.dtype(found[0].config.compute.dtype)
    return jax.tree.map(lambda a: a.astype(dtype) if a.ndim > 1 else a, model)
