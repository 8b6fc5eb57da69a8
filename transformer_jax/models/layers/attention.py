"""Multi-head attention: projections around :func:`attend_heads_first`."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Key

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.attention import attend_heads_first
from transformer_jax.functional.kernels.choice import resolve_implementation
from transformer_jax.functional.kernels.products import split_columns
from transformer_jax.functional.layers import linear
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.partitioning import axis_size
from transformer_jax.functional.positions import (
    apply_rotary_embedding,
    dynamic_base,
    rotary_frequencies,
    yarn_frequencies,
)
from transformer_jax.functional.scores import ScaledDot, Scores
from transformer_jax.models.config import PositionConfig, TransformerConfig
from transformer_jax.models.layers.basic import Linear, Norm
from transformer_jax.models.layers.cache import KeysValues, LayerCache
from transformer_jax.models.layers.parameters import logical_axes
from transformer_jax.models.layers.summary import Summarized

__all__ = ["Attention", "OnWeights", "Positions", "frequencies_of", "stack_weights"]

# Called with the weights of each attention layer as it runs, [B N T S].
OnWeights = Callable[[Float[Array, "B N T S"]], None]


def stack_weights(layers: Sequence[Array]) -> Float32[Array, "L B N T S"]:
    """Stacks the weights of all layers of a model.

    Raises:
        ConfigError: There are none: the blocks have another mixer.

    Example:
        >>> stack_weights([jnp.ones((1, 2, 3, 3))] * 4).shape
        (4, 1, 2, 3, 3)
    """
    if not layers:
        raise ConfigError("this model has no attention: mixer.kind is recurrent or convolution")
    return jnp.stack(layers)


class Positions(NamedTuple):
    """Positions of the tokens of self-attention, the same for every layer."""

    ids: Int[Array, "#B T"] | None = None  # in the text, for rotary embeddings
    slots: int | Int[Array, ""] = 0  # in the cache: see LayerCache.extend
    bias: Float[Array, "#B #N #T J"] | None = None  # bias of relative positions


class Attention(Summarized):
    """``Concat(head₁ … head_N) W^O``, each head attending with its own slice of the projections.

    The fused kernel ``[D, N H]`` is the per-head ``[D, H]`` kernels side by side.
    Vaswani et al. 2017, section 3.2.2.
    """

    def __init__(self, config: TransformerConfig, *, rotate: bool = False, rngs: nnx.Rngs):
        att, D = config.attention, config.d_model
        self.attention, self.positions = att, config.positions
        self.score = ScaledDot(config.scores.scale, config.scores.attn_logit_softcapping)
        self.rotate, self.dtype = rotate, config.compute.dtype
        self.N, self.K = att.num_heads, att.num_kv_heads or att.num_heads
        self.H = config.head_dim
        self.U = att.value_dim or self.H
        self.query = Linear(D, self.N * self.H, ("embed", "heads"), bias=att.bias, rngs=rngs)
        self.key = Linear(D, self.K * self.H, ("embed", "heads"), bias=att.bias, rngs=rngs)
        self.value = Linear(D, self.K * self.U, ("embed", "heads"), bias=att.bias, rngs=rngs)
        self.out = Linear(self.N * self.U, D, ("heads", "embed"), bias=att.out_bias, rngs=rngs)
        # For decoding, prepare.fuse_qkv puts one map in place of the three.
        self.fused_qkv: Linear | None = None
        self.fused_groups = 1
        self.query_norm = Norm(config.norm, self.H, "head_dim") if att.qk_norm else None
        self.key_norm = Norm(config.norm, self.H, "head_dim") if att.qk_norm else None

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Mask | None = None,
        *,
        memory: KeysValues | None = None,
        cache: LayerCache | None = None,
        positions: Positions | None = None,
        key: Key[Array, ""] | None = None,
        on_weights: OnWeights | None = None,
        last_n: int | None = None,
    ) -> tuple[Float[Array, "B _ D"], LayerCache | None]:
        """Returns the attended values of ``T`` queries, and the cache with their keys and values.

        Queries are the tokens of a text or prompt, or one new token of each of ``T`` beams.

        Args:
            x: Vectors of the queries; without ``memory`` also of the keys and values.
            mask: Which keys each query sees.
            memory: Result of :meth:`project_memory`, for cross-attention. None is self-attention.
            cache: Keys and values of earlier tokens, which the new ones are added to.
            positions: Positions of the queries; None is no rotary embeddings and no biases.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the attention weights.
            last_n: Only this many last queries attend; all tokens have keys and values.
        """
        ids, slots, bias = positions or Positions()
        scores = Scores(mask, bias, self.score)
        if memory is None:
            q, k, v = self.split_qkv(self.project_qkv(x))
        else:
            q, (k, v) = split_heads(self.query(x), self.N), memory
        q = q if self.query_norm is None else self.query_norm(q)
        if memory is None:
            k = k if self.key_norm is None else self.key_norm(k)
            q, k = self.apply_rope(q, k, ids)
        if cache is not None:
            cache, (k, v) = cache.extend(k, v, slots)
        if last_n is not None:
            skip = q.shape[2] - last_n
            q, scores = q[:, :, skip:], scores.last_queries(last_n, skip)
        if on_weights is not None:
            on_weights(scores.weights(q, k))
        return self.out(merge_heads(self.attend(q, k, v, scores, key))), cache

    def project_memory(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Computes keys and values of encoded states, for any number of queries."""
        k, v = (split_heads(part(memory), self.K) for part in (self.key, self.value))
        return (k if self.key_norm is None else self.key_norm(k)), v

    def attend(
        self,
        q: Float[Array, "B N T H"],
        k: Float[Array, "C _ S H"],
        v: Float[Array, "C _ S U"],
        scores: Scores,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B N T U"]:
        """Computes ``softmax(score(q, k) + bias) v`` under the mask of ``scores``.

        ``C`` is ``B``, or 1 for a cache, which holds the heads of all texts as the heads of one.
        """
        B, N, T, _ = q.shape
        if k.shape[0] != B:
            q = q.reshape(1, B * N, *q.shape[2:])
            scores = scores.of_one_sequence(B, N, T, k.shape[2])
        kernel, rate = self.attention.implementation, self.attention.dropout
        y = attend_heads_first(q, k, v, scores, implementation=kernel, dropout=(rate, key))
        return y.reshape(B, N, T, -1)

    def project_qkv(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """Computes queries, keys and values side by side: in one product if their maps are plain.

        Adapters add to that product, which is the same with and without them.
        """
        if self.fused_qkv is not None:
            return self.fused_qkv(x)
        maps, groups = (self.query, self.key, self.value), self.groups()
        plain = [base for part in maps if (base := getattr(part, "plain", None)) is not None]
        if len(plain) < len(maps):
            return side_by_side([part(x) for part in maps], groups)
        y = linear(x, *fused(plain, groups), logical_axes(plain[0].kernel))
        if plain == list(maps):
            return y
        parts = apart(y, [part.kernel.shape[1] for part in plain], groups)
        parts = [part.adapted(x, y) for part, y in zip(maps, parts, strict=True)]
        return side_by_side(parts, groups)

    def groups(self) -> int:
        """Returns the number of groups of heads in the fused projection.

        On a mesh with a ``tensor`` axis, query, key and value heads are grouped by key head, so
        that each device has its part of all three and no data moves.
        """
        if self.fused_qkv is not None:
            return self.fused_groups
        tensor = axis_size("tensor")
        return self.K if tensor > 1 and self.K % tensor == 0 else 1

    def resolve_kernel(self, platform: str, capability: float) -> None:
        """Chooses the kernel for a kind of device: see :func:`.resolve_implementation`.

        Args:
            platform: ``cpu``, ``gpu`` or ``tpu``.
            capability: The compute capability of a GPU.
        """
        name: Any = resolve_implementation(
            self.attention.implementation, platform, self.dtype, max(self.H, self.U), capability
        )
        self.attention = dataclasses.replace(self.attention, implementation=name)

    def split_qkv(self, qkv: Float[Array, "B T F"]) -> tuple[Array, Array, Array]:
        """Splits the output of the fused projection into queries, keys and values, heads first."""
        (B, T, _), ends = qkv.shape, (self.N * self.H, (self.N + self.K) * self.H)
        heads = self.N, self.K, self.K
        if (groups := self.groups()) > 1:
            sizes = (self.N // groups * self.H, self.H)
            parts = jnp.split(qkv.reshape(B, T, groups, -1), (sizes[0], sum(sizes)), axis=-1)
            parts = [part.reshape(B, T, n, -1) for part, n in zip(parts, heads, strict=True)]
            q, k, v = (part.swapaxes(1, 2) for part in parts)
        else:
            parts = split_columns(qkv, ends)
            q, k, v = (split_heads(part, n) for part, n in zip(parts, heads, strict=True))
        return q, k, v

    def apply_rope(self, q, k, ids):
        """Rotates query and key heads by their positions, if the model has rotary embeddings."""
        if not self.rotate:
            return q, k
        how = frequencies_of(self.positions, self.H), self.positions.rope_attention_factor
        rotate = lambda x: apply_rotary_embedding(x.swapaxes(1, 2), ids, *how).swapaxes(1, 2)
        return rotate(q), rotate(k)


def split_heads(x: Float[Array, "B T F"], heads: int) -> Float[Array, "B N T H"]:
    """Reshapes ``[B T N·H]`` to ``[B N T H]``."""
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(1, 2)


def merge_heads(x: Float[Array, "B N T U"]) -> Float[Array, "B T F"]:
    """Reshapes ``[B N T U]`` to ``[B T N·U]``."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def fused(maps: Sequence[Linear], groups: int = 1) -> tuple[Array, Array | None]:
    """Kernel and bias of several linear maps of the same inputs, with outputs side by side."""
    biases = [part.bias[...] for part in maps if part.bias is not None]
    kernel = side_by_side([part.kernel[...] for part in maps], groups)
    return kernel, side_by_side(biases, groups) if biases else None


def side_by_side(parts: list[Array], groups: int) -> Array:
    """Concatenates arrays along their last axis, or along each of its ``groups`` equal parts."""
    if groups == 1:
        return jnp.concatenate(parts, axis=-1)
    rows = parts[0].shape[:-1]
    grouped = [part.reshape(*rows, groups, -1) for part in parts]
    return jnp.concatenate(grouped, axis=-1).reshape(*rows, -1)


def apart(y: Array, widths: list[int], groups: int) -> list[Array]:
    """Splits the result of :func:`side_by_side` again."""
    rows = y.shape[:-1]
    grouped = y.reshape(*rows, groups, -1)
    ends = [sum(widths[:i]) // groups for i in range(1, len(widths))]
    return [part.reshape(*rows, -1) for part in jnp.split(grouped, ends, axis=-1)]


def frequencies_of(places: PositionConfig, head_dim: int) -> Float[np.ndarray, " pairs"]:
    """Angular frequency of each pair of rotary channels, in radians per position.

    The frequencies of dynamic NTK and LongRoPE (Ding et al. 2024, arXiv:2402.13753) depend on the
    length of the text. Here every text uses the frequencies for length ``places.max_length``, so
    the vector of a token never depends on later tokens.

    Example:
        >>> import dataclasses
        >>> frequencies_of(PositionConfig(kind="rope", rope_dim=4), 8)
        array([1.  , 0.01])
        >>> places = PositionConfig(kind="rope", rope_theta=100.0, max_length=64)
        >>> dynamic = dataclasses.replace(places, rope_dynamic=(2.0, 32))
        >>> frequencies_of(dynamic, 8).round(3)
        array([1.   , 0.219, 0.048, 0.011])
    """
    size, base = places.rope_dim or head_dim, places.rope_theta
    if places.rope_yarn is not None:
        return yarn_frequencies(size, base, *places.rope_yarn) / places.rope_interpolation
    if places.rope_dynamic is not None:
        base = dynamic_base(size, base, *places.rope_dynamic, places.max_length)
    found = rotary_frequencies(size, base, places.rope_scaling, places.rope_interpolation)
    if places.rope_original_max_length is not None:
        short = places.max_length <= places.rope_original_max_length
        found = found / np.asarray(places.rope_short_factor if short else places.rope_long_factor)
    return found
