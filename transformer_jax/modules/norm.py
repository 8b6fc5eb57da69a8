"""Layer norm and RMS norm with their gains and biases."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from transformer_jax.config import NormConfig
from transformer_jax.functional.norms import layer_norm, rms_norm

__all__ = ["Norm"]


class Norm(nnx.Module):
    """The norm that ``config`` names, over the last axis."""

    def __init__(self, config: NormConfig, size: int, axis: str = "embed"):
        self.config = config
        # A gain is the offset plus the parameter, and starts at one.
        self.gain = nnx.Param(jnp.full(size, 1.0 - config.gain_offset), axes=(axis,))
        has_bias = config.kind == "layer" and config.bias
        self.bias = nnx.Param(jnp.zeros(size), axes=(axis,)) if has_bias else None

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        """``x`` normalised, times the gain, plus the bias if there is one."""
        gain = self.gain[...]
        if self.config.gain_offset:
            gain = gain + self.config.gain_offset
        if self.config.kind == "rms":
            return rms_norm(x, gain, self.config.eps)
        return layer_norm(x, gain, None if self.bias is None else self.bias[...], self.config.eps)
