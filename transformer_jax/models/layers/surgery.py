"""Replacement of modules in any model: adapters, quantized weights, kernels of a device."""

import dataclasses
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar, cast, runtime_checkable

from flax import nnx

from transformer_jax.functional.kernels.cross_entropy import logits_limit

__all__ = ["replaced", "with_attention_kernels"]

Model = TypeVar("Model", bound=nnx.Module)


@runtime_checkable
class OnPlatform(Protocol):
    """A device of JAX, or one that is only described."""

    @property
    def platform(self) -> str:
        """Its platform, such as "gpu"."""


Make = Callable[[str, nnx.Module], nnx.Module | None]


def replaced(model: Model, *makes: Make) -> Model:
    """Returns the model with ``make(path, module)`` in place of each module.

    ``make`` gets a module and its path, such as ``"decoder/blocks/0/feed_forward/up"``, and returns
    another module, or None to keep this one. Modules are visited from the model down, but not
    inside new modules; several functions visit them one after another. A module that occurs in
    several places is visited once and replaced in all of them. The given model does not change;
    unchanged parameters are shared with it.

    Args:
        model: A module, real or abstract.
        *makes: Functions from path and module to a module or None. New modules declare the axes of
            their parameters, so that they can be sharded.

    Example:
        >>> model = nnx.Dict(up=nnx.Linear(2, 3, rngs=nnx.Rngs(0)), down=nnx.Dict())
        >>> none = lambda path, module: nnx.Dict() if path == "up" else None
        >>> sorted(nnx.to_pure_dict(nnx.state(replaced(model, none)))), len(nnx.state(model))
        ([], 1)
    """
    made: nnx.Module = nnx.merge(*nnx.split(model))
    for make in makes:
        made = _replaced(made, make)
    return cast(Model, made)


def _replaced(model: nnx.Module, make: Make) -> nnx.Module:
    """Returns ``make("", model)``, or the model, in which other modules are replaced."""
    done: dict[int, nnx.Module] = {}

    def visit(path: str, module: nnx.Module) -> nnx.Module:
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

    return visit("", model)


def _set(module: nnx.Module, name: Hashable, child: nnx.Module) -> None:
    if isinstance(module, nnx.List | nnx.Dict):
        module[name] = child  # type: ignore[index]
    else:
        setattr(module, str(name), child)


def with_attention_kernels(model: Model, device: OnPlatform | None) -> Model:
    """Returns the model with the attention kernels of a device; ``model`` does not change.

    Modules with a method ``resolve_kernel``, such as :class:`.Attention`, choose their kernel here,
    once, since it depends on more than the platform that a program is lowered for. Modules with a
    ``logits_storage``, such as :class:`.Head`, get the limit of the device: see
    :func:`.logits_limit`.

    Args:
        model: A module, real or abstract.
        device: Device that the model will run on, such as the first of a mesh; None computes
            attention by its formula on any device, so that a traced program shows its products.

    Example:
        >>> import jax
        >>> from transformer_jax.models.presets import PRESETS
        >>> from transformer_jax.models.transformer.models import Decoder
        >>> model = nnx.eval_shape(lambda: Decoder(PRESETS["nanogpt_char"], rngs=nnx.Rngs(0)))
        >>> model = with_attention_kernels(model, jax.devices("cpu")[0])
        >>> model.decoder.blocks[0].self_attention.attention.implementation
        'auto'
    """
    platform = getattr(device, "platform", "")
    platform = {"cuda": "gpu", "rocm": "gpu"}.get(platform, platform)
    capability = getattr(device, "compute_capability", None)
    limit = logits_limit(getattr(device, "device_kind", ""))

    def resolve(path: str, module: nnx.Module) -> None:
        if hasattr(module, "logits_storage"):
            module.logits_storage = module.logits_storage._replace(most=limit)
        if not hasattr(module, "resolve_kernel"):
            return
        if device is not None:
            module.resolve_kernel(platform, float(capability or 9.0))
        elif hasattr(module, "attention"):
            module.attention = dataclasses.replace(module.attention, implementation="xla")

    return replaced(model, resolve)
