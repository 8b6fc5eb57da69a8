"""Laws of a model's attention kernels, with its heads, scale and data type."""

import dataclasses
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from transformer_jax import laws
from transformer_jax.core.trees import default_device
from transformer_jax.doctor.checks import Check, largest
from transformer_jax.functional.kernels.choice import device_reason, recorded_choices, select_kernel
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import ScaledDot, Score, Scores
from transformer_jax.laws import Finding
from transformer_jax.laws.attention import Kernel
from transformer_jax.models.config import Implementation, TransformerConfig
from transformer_jax.models.transformer.layers import ATTENTIONS, Attention

__all__ = ["kernel_checks", "kernels_of"]

LENGTH = 24
FUSED = 128  # shortest texts of accelerator kernels
_FUSED = ("cudnn", "splash")


@dataclasses.dataclass(frozen=True)
class _Layer:
    """An attention layer from the view of its kernel: equal ones are checked once."""

    score: Score
    kernel: str
    dtype: str
    heads: tuple[int, int, int, int]  # query heads, key heads, sizes of keys and of values
    formula: ScaledDot  # from the configuration
    causal: bool
    code: int  # identity of the attention function


def kernel_checks(model: nnx.Module) -> list[Check]:
    """Returns the laws of attention for each distinct attention layer of a model.

    Args:
        model: A module; without attention there are no checks.
    """
    layers: dict[_Layer, tuple[str, Attention]] = {}
    for path, module in attention_layers(model):
        layers.setdefault(_layer(model, path, module), (path, module))
    cases = {
        f"{path}, {_selected(layer, kernel, T)}": (layer, _kernel(module, layer, kernel), T)
        for layer, (path, module) in layers.items()
        for kernel, T in kernels_of(layer.kernel)
    }
    if not cases:
        return []

    def check(law: str, run: Callable[..., Finding]) -> Check:
        return Check(
            law, lambda t: largest((name, run(*case, tolerance=t)) for name, case in cases.items())
        )

    return [
        check("attention_kernel", _formula),
        check("mask_polarity", _polarity),
        check("masked_rows", _masked),
    ]


def kernels_of(name: str) -> list[tuple[str, int]]:
    """Returns the kernels that an attention layer uses here, each with a length of texts.

    ``auto`` chooses by length. Fused kernels are checked on longer texts, which they require.

    Example:
        >>> kernels_of("auto"), kernels_of("xla")
        ([('xla', 24), ('chunked', 24)], [('xla', 24)])
    """
    device = default_device()
    if name == "auto":
        return [("xla", LENGTH), ("chunked", LENGTH)]
    if name in _FUSED and device_reason(name, device.platform, jnp.bfloat16, 64) is not None:
        return [("xla", LENGTH)]
    return [(name, FUSED if name in _FUSED else LENGTH)]


def attention_layers(model: nnx.Module) -> list[tuple[str, Attention]]:
    """Returns the attention layers of a model with their paths, such as ``encoder/blocks/0``.

    Layers of a registered class are left out: their formula need not be that of the laws.
    """
    found, registered = [], set(ATTENTIONS.values()) - {Attention}
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Attention) and type(module) not in registered:
            found.append(("/".join(map(str, path)), module))
    return sorted(found, key=lambda item: [_number(part) for part in item[0].split("/")])


def _number(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdecimal() else (-1, part)


def _layer(model: nnx.Module, path: str, module: Attention) -> _Layer:
    config, causal = _config(model, path)
    scores = config.scores
    attend = vars(module).get("attend", type(module).attend)
    return _Layer(
        score=module.score,
        kernel=module.attention.implementation,
        dtype=module.dtype,
        heads=(module.N, module.K, module.H, module.U),
        formula=ScaledDot(scores.scale, scores.attn_logit_softcapping),
        causal=causal and "cross_attention" not in path,
        code=id(attend),
    )


def _config(model: nnx.Module, path: str) -> tuple[TransformerConfig, bool]:
    """The configuration of the nearest module around a layer, and whether it is causal."""
    found, causal = None, False
    module = model
    for part in ("", *path.split("/")):
        if part:
            module = module[int(part)] if isinstance(module, nnx.List) else getattr(module, part)
        config = getattr(module, "config", None)
        if isinstance(config, TransformerConfig):
            found = config
            causal = bool(getattr(module, "decoder", False) is True)
    assert found is not None, "attention lies in a module with a configuration"
    return found, causal


def _kernel(module: Attention, layer: _Layer, kernel: str) -> Kernel:
    """Attention of heads-first float32 arrays with a layer, in its data type, with gradients."""
    made = nnx.merge(*nnx.split(module))
    made.attention = dataclasses.replace(
        made.attention, implementation=cast(Implementation, kernel)
    )

    def attend(q: Array, k: Array, v: Array, mask: Mask) -> Array:
        q, k, v = (jnp.asarray(x, layer.dtype) for x in (q, k, v))
        return made.attend(q, k, v, Scores(mask, None, made.score)).astype(jnp.float32)

    return laws.with_gradients(attend)


def _selected(layer: _Layer, kernel: str, T: int) -> str:
    """Returns the kernel that runs: XLA's where the layer's sizes are not supported."""
    N, K, H, U = layer.heads
    shapes = (2, N, T, H), (2, K, T, H), (2, K, T, U)
    q, k, v = (jax.ShapeDtypeStruct(shape, layer.dtype) for shape in shapes)
    with recorded_choices() as choices:
        select_kernel(kernel, q, k, v, Scores(_mask(layer, T, T - 7), None, layer.score))
    return choices[-1].kernel


def _inputs(layer: _Layer, T: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    N, K, H, U = layer.heads
    draw = np.random.default_rng(0)
    # Rounded to the data type of the layer, so that the formula reads the same values.
    rounded = lambda x: np.asarray(jnp.asarray(x, layer.dtype).astype(jnp.float32))
    shapes = (2, N, T, H), (2, K, T, H), (2, K, T, U)
    q, k, v = (rounded(draw.standard_normal(shape, np.float32)) for shape in shapes)
    return q, k, v


def _mask(layer: _Layer, *lengths: int) -> Mask:
    """The mask of a layer for rows with these lengths."""
    padding = Mask(kv_lengths=jnp.asarray(lengths, jnp.int32))
    return padding & Mask(causal=True) if layer.causal else padding


def _formula(layer: _Layer, kernel: Kernel, T: int, *, tolerance: float) -> Finding:
    q, k, v = _inputs(layer, T)
    mask = _mask(layer, T, T - 7)
    return laws.attention_kernel(kernel, q, k, v, mask, score=layer.formula, tolerance=tolerance)


def _polarity(layer: _Layer, kernel: Kernel, T: int, *, tolerance: float) -> Finding:
    q, k, v = _inputs(layer, T)
    U, mask = v.shape[-1], _mask(layer, T, T - 7)

    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Mask) -> np.ndarray:
        """Attends to values of any size, in parts of the layer's size."""
        parts = []
        for first in range(0, v.shape[-1], U):
            part = v[..., first : first + U]
            wide = np.pad(part, [(0, 0)] * 3 + [(0, U - part.shape[-1])])
            cotangent = np.zeros((*q.shape[:3], U), np.float32)
            parts.append(np.asarray(kernel(q, k, wide, cotangent, mask)[0])[..., : part.shape[-1]])
        return np.concatenate(parts, axis=-1)

    # Small scores, so that no weight of a visible key is rounded to zero.
    return laws.mask_polarity(attend, q / 8, k / 8, mask, tolerance=tolerance)


def _masked(layer: _Layer, kernel: Kernel, T: int, *, tolerance: float) -> Finding:
    q, k, v = _inputs(layer, T)
    return laws.masked_rows(kernel, q, k, v, _mask(layer, T, 0), tolerance=tolerance)
