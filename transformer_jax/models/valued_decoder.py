"""A language model that also estimates the value of a text: the policy of PPO."""

from flax import nnx
from jaxtyping import Array, Float, Float32

from transformer_jax.config import TransformerConfig
from transformer_jax.models.decoder import Decoder
from transformer_jax.modules.layers import Linear

__all__ = ["ValuedDecoder"]


class ValuedDecoder(Decoder):
    """A decoder with a value head: ``V_t = w h_t + b``, what is still to be earned.

    The policy and its value function share all layers. Ziegler et al. 2019,
    https://arxiv.org/abs/1909.08593.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.value = Linear(config.d_model, 1, ("embed", "label"), rngs=rngs)

    def values(self, hidden: Float[Array, "*rows D"]) -> Float32[Array, "*rows"]:
        """The value at each position, in float32."""
        return self.value(hidden)[..., 0].astype("float32")
