"""The feed-forward sub-layer."""

from flax import nnx
from jaxtyping import Array, Float, Key

from transformer_jax.config import TransformerConfig
from transformer_jax.functional.activations import ACTIVATIONS
from transformer_jax.functional.dropout import dropout
from transformer_jax.modules.linear import Linear

__all__ = ["FeedForward"]


class FeedForward(nnx.Module):
    """``f(x W₁ + b₁) W₂ + b₂``, or gated ``(f(x W₁) ⊙ x V) W₂``, at every position alike.

    Vaswani et al. 2017, equation 2 (rows U8, T13); Shazeer 2020 for the gated form.
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
        """The sub-layer's output; a ``key`` drops hidden units out."""
        hidden = ACTIVATIONS[self.config.activation](self.up(x))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        return self.down(dropout(hidden, self.config.activation_dropout, key))
