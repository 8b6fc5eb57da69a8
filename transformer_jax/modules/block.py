"""A residual block: self-attention, in a decoder cross-attention, then feed-forward."""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.config import TransformerConfig
from transformer_jax.functional.dropout import dropout
from transformer_jax.functional.masks import Mask
from transformer_jax.modules.attention import Attention, OnKeyValues, OnWeights
from transformer_jax.modules.cache import LayerCache
from transformer_jax.modules.feed_forward import FeedForward
from transformer_jax.modules.norm import Norm

__all__ = ["Block"]


class Block(nnx.Module):
    """The parts of one layer, each joined to the residual stream as ``norm.placement`` says.

    ``post``: ``norm(x + f(x))``; ``pre``: ``x + f(norm(x))``; ``sandwich``:
    ``x + norm'(f(norm(x)))``. Vaswani et al. 2017, figure 1; rows L11, B11, B12, T14.
    """

    def __init__(self, config: TransformerConfig, *, cross: bool, rngs: nnx.Rngs):
        self.config = config.norm
        rotate = config.positions.kind == "rope"
        self.self_attention = Attention(config, rotate=rotate, rngs=rngs)
        self.cross_attention = Attention(config, rngs=rngs) if cross else None
        self.feed_forward = FeedForward(config, rngs=rngs)
        D, sandwich = config.d_model, config.norm.placement == "sandwich"
        for part in ("self_attention", "cross_attention", "feed_forward"):
            here = getattr(self, part) is not None
            setattr(self, f"{part}_norm", Norm(config.norm, D) if here else None)
            after = Norm(config.norm, D) if here and sandwich else None
            setattr(self, f"{part}_norm_after", after)

    def residual(
        self,
        part: str,
        x: Float[Array, "*rows D"],
        f: Callable[[Float[Array, "*rows D"]], Float[Array, "*kept D"]],
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "*kept D"]:
        """``x`` with what ``f`` makes of it, at the last positions if ``f`` keeps no others."""
        norm, after = getattr(self, f"{part}_norm"), getattr(self, f"{part}_norm_after")
        post, rate = self.config.placement == "post", self.config.residual_dropout
        y = f(x if post else norm(x))
        if y.shape != x.shape:
            x = x[:, -y.shape[1] :]
        if post:
            return norm(x + dropout(y, rate, key))
        return x + dropout(y if after is None else after(y), rate, key)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Mask | None = None,
        *,
        bias: Float[Array, "#B #N #T #T"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
        memory: Float[Array, "B S D"] | None = None,
        memory_mask: Mask | None = None,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        on_kv: OnKeyValues | None = None,
        last_n: int | None = None,
    ) -> Float[Array, "B _ D"]:
        """The block's output, at the last ``last_n`` positions only if that is given.

        ``on_weights`` is called with the weights of self- and cross-attention, ``on_kv`` with the
        keys and values of self-attention.
        """
        keys = (None,) * 6 if key is None else tuple(jax.random.split(key, 6))
        see, see_across = (None, None) if on_weights is None else on_weights

        def look_back(y):
            how: dict[str, Any] = {
                "bias": bias,
                "positions": positions,
                "key": keys[1],
                "last_n": last_n,
            }
            return self.self_attention(y, None, mask, on_weights=see, on_kv=on_kv, **how)

        x = self.residual("self_attention", x, look_back, keys[0])
        if (across := self.cross_attention) is not None:
            look_across = lambda y: across(
                y, memory, memory_mask, key=keys[3], on_weights=see_across
            )
            x = self.residual("cross_attention", x, look_across, keys[2])
        return self.residual("feed_forward", x, lambda y: self.feed_forward(y, keys[5]), keys[4])

    def step(
        self,
        x: Float[Array, "R D"],
        cache: LayerCache,
        slot: Int[Array, ""],
        positions: Int[Array, "#B #M"],
        visible: Bool[Array, "#B 1 #M J"],
        bias: Float[Array, "1 N #M J"] | None,
        memory_mask: Bool[Array, "B 1 1 S"] | None,
    ) -> tuple[Float[Array, "R D"], Array, Array]:
        """The output for one new token of each row, and its layer's keys and values with it."""
        keys, values = cache.keys, cache.values

        def look_back(y):
            nonlocal keys, values
            y, keys, values = self.self_attention.step(
                y, keys, values, slot, positions, visible, bias
            )
            return y

        x = self.residual("self_attention", x, look_back)
        if (across := self.cross_attention) is not None:
            assert cache.memory_keys is not None
            assert cache.memory_values is not None
            read = cache.memory_keys, cache.memory_values
            x = self.residual(
                "cross_attention", x, lambda y: across.cross_attend(y, *read, memory_mask)
            )
        return self.residual("feed_forward", x, self.feed_forward), keys, values
