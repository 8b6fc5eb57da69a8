"""Layers that hold the parameters of one map each: linear, norm, feed-forward."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.layers import (
    ACTIVATIONS,
    dropout,
    layer_norm,
    linear,
    linear_transposed,
    rms_norm,
)
from transformer_jax.models.config import NormConfig, TransformerConfig
from transformer_jax.models.layers.parameters import logical_axes
from transformer_jax.models.layers.summary import Summarized

__all__ = ["FeedForward", "Linear", "LinearTransposed", "Norm", "initial_key"]

Axes = tuple[str | None, str | None]


class Linear(Summarized):
    """``x W + b``, where ``W`` is initialized as Glorot-uniform and ``b`` as zeros.

    ``axes`` are the logical axes of the kernel; the last is the axis of the bias.
    """

    def __init__(self, inputs: int, outputs: int, axes: Axes, *, bias: bool = True, rngs: nnx.Rngs):
        init = jax.nn.initializers.glorot_uniform()
        kernel = init(initial_key(rngs), (inputs, outputs), jnp.float32)
        self.kernel = nnx.Param(kernel, axes=axes)
        self.bias = nnx.Param(jnp.zeros(outputs), axes=axes[1:]) if bias else None

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """Maps each row of ``x``."""
        bias = None if self.bias is None else self.bias[...]
        return linear(x, self.kernel[...], bias, logical_axes(self.kernel))

    @property
    def plain(self) -> "Linear | None":
        """The map below any adapter, if it may be fused with others; None for a subclass."""
        return self if type(self) is Linear else None

    def adapted(
        self, x: Float[Array, "*rows D"], y: Float[Array, "*rows F"]
    ) -> Float[Array, "*rows F"]:
        """Adds an adapter's change for ``x`` to the output ``y``: nothing, without an adapter."""
        return y

    @classmethod
    def of(cls, kernel: Any, bias: Any) -> "Linear":
        """Makes the map from these ``nnx.Param``; ``bias`` may be None."""
        make = lambda: cls(1, 1, (None, None), bias=bias is not None, rngs=nnx.Rngs(0))
        made: Any = nnx.eval_shape(make)
        made.kernel, made.bias = kernel, bias
        return made


class LinearTransposed(Summarized):
    """The map of a ``Linear`` with its kernel as ``[F D]``: see :func:`linear_transposed`."""

    def __init__(self, linear: Linear):
        axes = linear.kernel.get_metadata("axes")
        self.kernel: Any = linear.kernel.replace(linear.kernel[...].T, axes=axes[::-1])
        self.bias = linear.bias

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """Maps each row of ``x``."""
        bias = None if self.bias is None else self.bias[...]
        return linear_transposed(x, self.kernel[...], bias, logical_axes(self.kernel))


class Norm(Summarized):
    """The norm selected by ``config``, over the last axis."""

    def __init__(self, config: NormConfig, size: int, axis: str = "embed"):
        self.config = config
        # The gain is the offset plus the parameter, and starts at one.
        self.gain = nnx.Param(jnp.full(size, 1.0 - config.gain_offset), axes=(axis,))
        has_bias = config.kind == "layer" and config.bias
        self.bias = nnx.Param(jnp.zeros(size), axes=(axis,)) if has_bias else None

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """Normalizes ``x``, multiplies by the gain and adds the bias, if there is one."""
        gain = self.gain[...]
        if self.config.gain_offset:
            gain = gain + self.config.gain_offset
        if self.config.kind == "rms":
            return rms_norm(x, gain, self.config.eps)
        return layer_norm(x, gain, None if self.bias is None else self.bias[...], self.config.eps)


class FeedForward(Summarized):
    """``f(x W₁ + b₁) W₂ + b₂``, or gated ``(f(x W₁) ⊙ x V) W₂``, applied to every position.

    Vaswani et al. 2017, equation 2; Shazeer 2020 for the gated form.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        ff = config.feed_forward
        self.config = ff
        up = lambda: Linear(config.d_model, ff.d_ff, ("embed", "mlp"), bias=ff.bias, rngs=rngs)
        self.up = up()
        self.gate = up() if ff.gated else None
        self.down = Linear(ff.d_ff, config.d_model, ("mlp", "embed"), bias=ff.bias, rngs=rngs)

    def __call__(
        self, x: Float[Array, "*rows D"], key: Key[Array, ""] | None = None
    ) -> Float[Array, "*rows D"]:
        """Returns the sub-layer's output; with a ``key``, dropout applies to the hidden units."""
        hidden = ACTIVATIONS[self.config.activation](self.up(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.down(dropout(hidden, self.config.activation_dropout, key))


def initial_key(rngs: Any) -> Any:
    """Returns the random key of a new parameter.

    Raises:
        ArgumentError: ``rngs`` is not random streams but, for example, a seed.

    Example:
        >>> initial_key(0)
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: rngs is 0: random streams are needed, ...
    """
    if not isinstance(rngs, nnx.Rngs | nnx.RngStream):
        seed = rngs if isinstance(rngs, int) else 0
        raise ArgumentError(f"rngs is {rngs!r}: random streams are needed, flax.nnx.Rngs({seed})")
    return rngs.params() if isinstance(rngs, nnx.Rngs) else rngs()
