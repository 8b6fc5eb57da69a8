"""A residual block: self-attention or another mixer, cross-attention, then feed-forward."""

from typing import NamedTuple

import jax
from flax import nnx
from jaxtyping import Array, Float, Key

from transformer_jax.functional.layers import dropout
from transformer_jax.functional.masks import Mask
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.attention import Attention, OnWeights, Positions
from transformer_jax.models.layers.basic import FeedForward, Norm
from transformer_jax.models.layers.cache import LayerCache
from transformer_jax.models.layers.mixer import make_mixer
from transformer_jax.models.layers.summary import Summarized

__all__ = ["Block", "Memory"]


Norms = tuple[Norm | None, Norm | None]  # of a sub-layer's input or of the sum, and of its output


class Memory(NamedTuple):
    """The input of cross-attention."""

    states: Float[Array, "B S D"] | None  # encoded; None: the cache holds their keys and values
    mask: Mask | None = None  # which of them are not padding; None is all


class Block(Summarized):
    """The sub-layers of one layer, each added to the residual stream at ``norm.placement``.

    ``post``: ``norm(x + f(x))``; ``pre``: ``x + f(norm(x))``; ``sandwich``:
    ``x + norm'(f(norm(x)))``. Vaswani et al. 2017, figure 1, uses ``post``; Xiong et al. 2020
    compare it with ``pre``; ``sandwich`` is from Ding et al. 2021.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        cross: bool,
        causal: bool = False,
        layer: int = 0,
        rngs: nnx.Rngs,
    ):
        """Makes the block.

        Args:
            config: Configuration of the model.
            cross: Whether it attends to encoded states.
            causal: Whether no position may read a later one; mixers need it, attention uses masks.
            layer: Index of the layer, from 0.
            rngs: Random streams of the parameters.
        """
        self.config = config.norm
        self.mixer = make_mixer(config, causal=causal, layer=layer, rngs=rngs)
        rotate, attends = config.positions.kind == "rope", self.mixer is None
        self.self_attention = Attention(config, rotate=rotate, rngs=rngs) if attends else None
        self.cross_attention = Attention(config, rngs=rngs) if cross else None
        feeds = config.feed_forward.d_ff > 0
        self.feed_forward = FeedForward(config, rngs=rngs) if feeds else None
        norm = lambda part: None if part is None else Norm(config.norm, config.d_model)
        self.mixer_norm = norm(self.mixer)
        self.self_attention_norm = norm(self.self_attention)
        self.cross_attention_norm = norm(self.cross_attention)
        self.feed_forward_norm = norm(self.feed_forward)
        after = lambda part: norm(part) if config.norm.placement == "sandwich" else None
        self.mixer_norm_after = after(self.mixer)
        self.self_attention_norm_after = after(self.self_attention)
        self.cross_attention_norm_after = after(self.cross_attention)
        self.feed_forward_norm_after = after(self.feed_forward)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Mask | None = None,
        *,
        memory: Memory | None = None,
        cache: LayerCache | None = None,
        positions: Positions | None = None,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        last_n: int | None = None,
    ) -> tuple[Float[Array, "B _ D"], LayerCache | None]:
        """Returns the block's output, at the last ``last_n`` positions if given, and its cache.

        Args:
            x: Vectors of tokens, or of one new token per beam.
            mask: Which keys each query of self-attention sees.
            memory: The input of cross-attention.
            cache: Keys and values of earlier tokens, and of the memory.
            positions: Positions of the tokens.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of self- and of cross-attention.
            last_n: Number of positions to return; None is all.
        """
        keys = (None,) * 6 if key is None else tuple(jax.random.split(key, 6))
        on_self, on_cross = (None, None) if on_weights is None else on_weights
        if self.self_attention is not None:
            norms = self.self_attention_norm, self.self_attention_norm_after
            y, cache = self.self_attention(
                self.enter(x, norms),
                mask,
                cache=cache,
                positions=positions,
                key=keys[1],
                on_weights=on_self,
                last_n=last_n,
            )
        else:
            norms = self.mixer_norm, self.mixer_norm_after
            slots = 0 if positions is None else positions.slots
            y, cache = self.mixer(self.enter(x, norms), mask, cache=cache, slots=slots)
            y = y if last_n is None else y[:, -last_n:]
        x = self.residual(x, y, norms, keys[0])
        if self.cross_attention is not None:
            norms = self.cross_attention_norm, self.cross_attention_norm_after
            states, real = memory or Memory(None)
            projected = None if cache is None else cache.memory  # once for all steps of decoding
            if projected is None:
                assert states is not None, "cross-attention needs memory"
                projected = self.cross_attention.project_memory(states)
            y, _ = self.cross_attention(
                self.enter(x, norms), real, memory=projected, key=keys[3], on_weights=on_cross
            )
            x = self.residual(x, y, norms, keys[2])
        if self.feed_forward is not None:
            norms = self.feed_forward_norm, self.feed_forward_norm_after
            y = self.feed_forward(self.enter(x, norms), keys[5])
            x = self.residual(x, y, norms, keys[4])
        return x, cache

    def enter(self, x: Float[Array, "*rows D"], norms: Norms) -> Float[Array, "*rows D"]:
        """Returns the input of a sub-layer: normalized, unless norms come after the addition."""
        norm, _ = norms
        return x if norm is None or self.config.placement == "post" else norm(x)

    def residual(
        self,
        x: Float[Array, "*rows D"],
        y: Float[Array, "*last D"],
        norms: Norms,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "*last D"]:
        """Adds a sub-layer's output to its input, of which ``y`` may have only the last rows."""
        norm, after = norms
        x = x if x.shape == y.shape else x[:, -y.shape[1] :]
        y = y if after is None else after(y)
        x = x + dropout(y, self.config.residual_dropout, key)
        return x if norm is None or self.config.placement != "post" else norm(x)
