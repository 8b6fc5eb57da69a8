"""The layers of a Transformer, from attention to a stack of blocks: Vaswani et al. 2017, section 3.

Positions (section 3.5), multi-head attention (3.2), the feed-forward network (3.3), a block and a
stack of blocks (3.1). :mod:`.models` makes encoders and decoders of them.

Axes: ``B`` texts, ``T`` tokens (``S`` of the other side), ``D`` model, ``N`` query heads, ``K`` key
heads, ``H`` and ``U`` sizes of a key and a value head, ``L`` layers. The formula of attention is in
:mod:`transformer_jax.functional.attention`, the maps with parameters that any model uses in
:mod:`transformer_jax.models.layers.basic`. What changes a finished model is apart:
:mod:`transformer_jax.models.lora_layers` and :mod:`transformer_jax.models.prepare`.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Float32, Int, Key

from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.functional import positions as positional
from transformer_jax.functional.attention import attend_heads_first
from transformer_jax.functional.kernels.choice import resolve_implementation
from transformer_jax.functional.kernels.products import apart, side_by_side, split_columns
from transformer_jax.functional.layers import (
    ACTIVATIONS,
    dropout,
    linear,
    linear_maps,
    with_stored_gradient,
)
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.partitioning import axis_size, constrain
from transformer_jax.functional.positions import (
    apply_rotary_embedding,
    dynamic_base,
    rotary_frequencies,
    sinusoidal,
    sinusoidal_2d,
    yarn_frequencies,
)
from transformer_jax.functional.scores import ScaledDot, Scores
from transformer_jax.models.config import (
    MIXER_KINDS,
    Implementation,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.layers.basic import Embed, Linear, Norm, fused
from transformer_jax.models.layers.cache import Cache, KeysValues, LayerCache
from transformer_jax.models.layers.mixer import make_mixer, slot_size
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import at_depth, logical_axes, stacked, unstacked

__all__ = [
    "ATTENTIONS",
    "Attention",
    "Block",
    "FeedForward",
    "Memory",
    "OnHidden",
    "OnWeights",
    "Positions",
    "Stack",
    "frequencies_of",
    "merge_heads",
    "register_mixer",
    "sinusoids",
    "split_heads",
    "stack_weights",
]

# Called with the weights of each attention layer as it runs, [B N T S].
OnWeights = Callable[[Float[Array, "B N T S"]], None]
OnHidden = Callable[[Float[Array, "B T D"]], object]


# --- positions: section 3.5 -----------------------------------------------------------------------


class Positions(NamedTuple):
    """Positions of the tokens of self-attention, the same for every layer."""

    ids: Int[Array, "#B T"] | None = None  # in the text, for rotary embeddings
    slots: int | Int[Array, ""] = 0  # in the cache: see LayerCache.extend
    bias: Float[Array, "#B #N #T J"] | None = None  # bias of relative positions


def sinusoids(
    config: TransformerConfig, length: int | None = None
) -> Float[Array, "length {config.embedding_size}"]:
    """Returns sinusoidal position vectors, from the first position on.

    For a grid, embeddings before the patches have zeros.

    Args:
        config: Configuration with the kind, offset and number of positions.
        length: Number of positions, if it differs from the configuration's.

    Example:
        >>> from transformer_jax.models.config import AttentionConfig, PositionConfig
        >>> config = TransformerConfig(
        ...     d_model=4,
        ...     attention=AttentionConfig(num_heads=1),
        ...     positions=PositionConfig("sinusoidal_fairseq", offset=2),
        ... )
        >>> np.asarray(sinusoids(config, 1)).round(3)
        array([[ 0.909,  0.   , -0.416,  1.   ]], dtype=float32)
    """
    places, image, width = config.positions, config.image, config.embedding_size
    length = places.max_length if length is None else length
    if places.kind == "sinusoidal_2d":
        side = image.image_size // image.patch_size
        grid = sinusoidal_2d(side, side, width)
        return jnp.pad(grid, ((image.num_prefixes, 0), (0, 0)))[:length]
    layouts: dict[str, positional.Layout] = {"sinusoidal_halves": "halves"}
    layouts |= dict.fromkeys(("sinusoidal", "concatenated"), "interleaved")
    layout = layouts.get(places.kind, "fairseq")
    first = places.offset if layout == "fairseq" else 0
    return sinusoidal(length, width, layout, first)


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


# --- attention: section 3.2 -----------------------------------------------------------------------


class Attention(Module):
    """``Concat(head₁ … head_N) W^O``, each head attending with its own slice of the projections.

    The fused kernel ``[D, N H]`` is the per-head ``[D, H]`` kernels side by side.
    Vaswani et al. 2017, section 3.2.2. For self-attention of one's own, register a subclass:
    :func:`register_mixer`.
    """

    def __init__(self, config: TransformerConfig, *, rotate: bool = False, rngs: nnx.Rngs):
        att, D = config.attention, config.d_model
        self.attention, self.positions = att, config.positions
        self.score = ScaledDot(config.scores.scale, config.scores.attn_logit_softcapping)
        self.rotate, self.dtype = rotate, config.compute.dtype
        self.merges_heads = True  # in caches, see LayerCache
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
            q, k, v = self.project_heads(x)
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

    def project_heads(self, x: Float[Array, "B T D"]) -> tuple[Array, Array, Array]:
        """Computes queries, keys and values, heads first."""
        maps, kind = (self.query, self.key, self.value), type(self)
        # A subclass may have its own of either.
        both = (kind.project_qkv, kind.split_qkv) == (Attention.project_qkv, Attention.split_qkv)
        plain = both and all(type(part) is Linear for part in maps)
        if not plain:
            return self.split_qkv(self.project_qkv(x))
        kernels = tuple(part.kernel[...] for part in maps)
        biases = tuple(None if part.bias is None else part.bias[...] for part in maps)
        q, k, v = linear_maps(x, kernels, biases, logical_axes(self.query.kernel), self.groups())
        return split_heads(q, self.N), split_heads(k, self.K), split_heads(v, self.K)

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
        """Chooses kernel and cache for a kind of device: see :func:`.resolve_implementation`.

        Args:
            platform: ``cpu``, ``gpu`` or ``tpu``.
            capability: The compute capability of a GPU.
        """
        name = resolve_implementation(
            self.attention.implementation, platform, self.dtype, max(self.H, self.U), capability
        )
        self.attention = dataclasses.replace(
            self.attention, implementation=cast(Implementation, name)
        )
        self.merges_heads = platform != "gpu"

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
            columns = split_columns(qkv, ends)
            q, k, v = (split_heads(part, n) for part, n in zip(columns, heads, strict=True))
        return q, k, v

    def apply_rope(self, q: Array, k: Array, ids: Array | None) -> tuple[Array, Array]:
        """Rotates query and key heads by their positions, if the model has rotary embeddings."""
        if not self.rotate:
            return q, k
        if ids is None:
            raise ArgumentError("Attention: rotary embeddings need positions=Positions(ids)")
        how = frequencies_of(self.positions, self.H), self.positions.rope_attention_factor
        rotate = lambda x: apply_rotary_embedding(x.swapaxes(1, 2), ids, *how).swapaxes(1, 2)
        return rotate(q), rotate(k)


# The classes of self-attention by mixer.kind.
ATTENTIONS: dict[str, type[Attention]] = {"attention": Attention}


def register_mixer(name: str, attention: type) -> None:
    """Makes ``mixer.kind=name`` a self-attention of one's own; configurations store the name.

    It has the parameters, cache, heads, positions, adapters and mesh of :class:`Attention`, of
    which it usually overrides :meth:`Attention.attend`. Cross-attention stays
    :class:`Attention`. A program that loads the model registers the class first.

    Args:
        name: The kind. A name that is registered already gets this class.
        attention: The class.

    Raises:
        ArgumentError: The name is one of this library's, or no name; or the class is no
            :class:`Attention`.

    Example:
        >>> class Mine(Attention):
        ...     pass
        >>> register_mixer("attention", Mine)
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: register_mixer: name is attention: ...
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ArgumentError(
            f"register_mixer: name is {name!r:.80}: letters, digits and _ are needed"
        )
    if name in _BUILT_IN:
        raise ArgumentError(
            f"register_mixer: name is {name}: a mixer of this library: choose another name"
        )
    if not issubclass(attention, Attention):
        raise ArgumentError(
            f"register_mixer: {name} is {attention!r:.80}: a subclass of tj.Attention is needed"
        )
    ATTENTIONS[name], MIXER_KINDS[name] = attention, True


_BUILT_IN = frozenset(MIXER_KINDS)


def split_heads(x: Float[Array, "B T F"], heads: int) -> Float[Array, "B N T H"]:
    """Reshapes ``[B T N·H]`` to ``[B N T H]``."""
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(1, 2)


def merge_heads(x: Float[Array, "B N T U"]) -> Float[Array, "B T F"]:
    """Reshapes ``[B N T U]`` to ``[B T N·U]``."""
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


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


# --- the feed-forward network: section 3.3 --------------------------------------------------------


class FeedForward(Module):
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


# --- a block: section 3.1 -------------------------------------------------------------------------


class Memory(NamedTuple):
    """The input of cross-attention."""

    states: Float[Array, "B S D"] | None  # encoded; None: the cache holds their keys and values
    mask: Mask | None = None  # which of them are not padding; None is all


Norms = tuple[Norm | None, Norm | None]  # of a sub-layer's input or of the sum, and of its output


class Block(Module):
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
        rotate, kind = config.positions.kind == "rope", config.mixer.kind
        attends = ATTENTIONS[kind] if config.mixer.attends else None
        own = config.at_layer(layer)
        self.self_attention = None if attends is None else attends(own, rotate=rotate, rngs=rngs)
        self.cross_attention = Attention(config, rngs=rngs) if cross else None
        feeds = config.feed_forward.d_ff > 0
        self.feed_forward = FeedForward(config, rngs=rngs) if feeds else None
        norm = lambda part: None if part is None else Norm(config.norm, config.d_model)
        first = lambda part: norm(part) if layer or config.norm.first else None
        self.mixer_norm = first(self.mixer)
        self.self_attention_norm = first(self.self_attention)
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
        # Dropout of the output and the weights of self-attention, the same of cross-attention, and
        # of the output and the hidden units of the feed-forward network.
        keys = (None,) * 6 if key is None else tuple(jax.random.split(key, 6))
        on_self, on_cross = (None, None) if on_weights is None else on_weights
        if self.self_attention is not None:
            norms = self.self_attention_norm, self.self_attention_norm_after
            y, cache = self.self_attention(
                self.sublayer_input(x, norms),
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
            assert self.mixer is not None, "a block has self-attention or another mixer"
            y, cache = self.mixer(self.sublayer_input(x, norms), mask, cache=cache, slots=slots)
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
                self.sublayer_input(x, norms),
                real,
                memory=projected,
                key=keys[3],
                on_weights=on_cross,
            )
            x = self.residual(x, y, norms, keys[2])
        if self.feed_forward is not None:
            norms = self.feed_forward_norm, self.feed_forward_norm_after
            y = self.feed_forward(self.sublayer_input(x, norms), keys[5])
            x = self.residual(x, y, norms, keys[4])
        return x, cache

    def sublayer_input(self, x: Float[Array, "*rows D"], norms: Norms) -> Float[Array, "*rows D"]:
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
        if norm is None or self.config.placement != "post":
            return x
        return norm(with_stored_gradient(x))


# --- a stack of blocks: section 3.1 ---------------------------------------------------------------


class Stack(Module):
    """Positions, ``L`` blocks and a final norm.

    Looped, each block keeps its own parameters, which runs fastest on CPU. Scanned, parameters are
    stacked along a leading axis and XLA compiles a single block, which compiles fastest.
    :mod:`.prepare` converts between the two layouts.
    """

    def __init__(
        self, config: TransformerConfig, layers: int, *, decoder: bool, cross: bool, rngs: nnx.Rngs
    ):
        if config.compute.dtype == "auto":
            raise ConfigError(
                "compute.dtype is auto, which training commands resolve: a model needs float32 or "
                "bfloat16"
            )
        self.config, self.layers, self.decoder = config, layers, decoder
        D, places, embedding = config.d_model, config.positions, config.embedding
        E = config.embedding_size
        spread = E**-0.5 if embedding.scale is None else 0.02
        rows, heads = places.max_length + places.offset, config.attention.num_heads
        table = lambda use, rows, axes, width, scale: (
            Embed(rows, width, axes, scale=scale, rngs=rngs) if use else None
        )
        segments = embedding.type_vocab_size
        self.positions = table(places.learned, rows, ("position", "embed"), E, spread)
        self.segments = table(segments, segments, ("token_type", "embed"), E, spread)
        self.embedding_norm = Norm(config.norm, E) if embedding.layernorm_embedding else None
        width = config.input_size
        self.projection = None if width == D else Linear(width, D, ("embed", None), rngs=rngs)
        buckets = places.num_buckets
        self.relative = table(places.relative, buckets, ("bucket", "head"), heads, D**-0.5)
        inputs = self.positions, self.segments, self.embedding_norm, self.projection, self.relative
        for part in inputs:
            if part is not None:
                at_depth(part, 0)
        make = lambda layer, rngs: Block(
            config, cross=cross, causal=decoder, layer=layer, rngs=rngs
        )
        if config.compute.scan_layers and layers:
            self.blocks: Block | nnx.List[Block] = stacked(functools.partial(make, 0), layers, rngs)
            at_depth(self.blocks, tuple(range(1, layers + 1)))
        else:
            self.blocks = nnx.List([make(layer, rngs) for layer in range(layers)])
            for depth, block in enumerate(self.blocks, 1):
                at_depth(block, depth)
        self.final_norm = Norm(config.norm, D) if config.final_norm else None

    def __call__(
        self,
        x: Float[Array, "B T E"],
        mask: Mask | None = None,
        *,
        positions: Int[Array, "#B T"] | None = None,
        segments: Int[Array, "B T"] | None = None,
        memory: Memory | None = None,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the hidden states of the last layer.

        Args:
            x: Scaled token embeddings, without positions.
            mask: Attention mask; a decoder adds the causal mask.
            positions: Position of each token; None is 0, 1, 2, …
            segments: Token type ids (BERT's segments); None is 0.
            memory: Encoder states for cross-attention.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self- and cross-attention, in order.
            on_hidden: Called with the first block's input and each block's output, the last after
                the final norm.
        """
        if x.ndim != 3:
            raise ArgumentError(
                f"hidden states have shape {x.shape}: [B T D] is needed, of tokens [B T]"
            )
        T, keys = x.shape[1], (None, None) if key is None else jax.random.split(key)
        positions = jnp.arange(T)[None] if positions is None else positions
        x = self.embed_inputs(x, positions, segments, keys[0])
        if self.decoder:
            causal = Mask(causal=True)
            mask = causal if mask is None else mask & causal
        where = Positions(positions, bias=self.bias(T, T))
        masks, watch = self.windowed(mask, T), (on_weights, on_hidden)
        return self.run(x, masks, where, memory=memory, key=keys[1], watch=watch)[0]

    def prefill(
        self, x: Float[Array, "B T D"], cache: Cache, starts: Int[Array, " B"] | None = None
    ) -> tuple[Float[Array, "B D"], Cache]:
        """Returns the hidden states of the prompts' last tokens, and the filled cache.

        Args:
            x: Scaled token embeddings, without positions.
            cache: Empty cache from :meth:`init_cache`.
            starts: First slot of each prompt, for left-padded prompts.
        """
        T, mask = x.shape[1], Mask(causal=True)
        positions = jnp.arange(T)[None]
        if starts is not None:
            steps = positions - starts[:, None]
            real = (steps >= 0).astype(jnp.int32)
            mask = mask & Mask(q_segments=real, kv_segments=real)
            positions = jnp.maximum(steps, 0)
        where, masks = Positions(positions, bias=self.bias(T, T)), self.windowed(mask, T)
        x = self.embed_inputs(x, positions)
        x, layers = self.run(x, masks, where, cache=cache, last_n=1)
        cache = dataclasses.replace(cache, layers=layers, length=jnp.int32(T), starts=starts)
        return x[:, -1], cache

    def step(self, x: Float[Array, "R D"], cache: Cache) -> tuple[Float[Array, "R D"], Cache]:
        """Returns the hidden states of the next tokens of each sequence, and the extended cache.

        The rows of a sequence are its beams, one token each, or successive tokens of its only beam.
        """
        shape = x.shape
        x = x.reshape(cache.sequences(self.cache_heads), -1, shape[-1])
        tokens = x.shape[1] if cache.beams == 1 else 1
        at, positions = cache.length, cache.positions(tokens)
        positions = jnp.broadcast_to(positions, (positions.shape[0], x.shape[1]))
        x, cache = self.embed_inputs(x, positions), cache.claim_slots()
        bias = self.bias(tokens, cache.size, at)
        if bias is not None:
            bias = jnp.repeat(bias, cache.beams, axis=3)
        masks = {window: Mask(dense=cache.visible(window, tokens)) for window in self.windows()}
        where = Positions(positions, at * cache.beams, bias)
        x, layers = self.run(x, masks, where, cache=cache)
        x = x.reshape(shape[0], -1)
        return x, dataclasses.replace(cache, layers=layers, length=at + tokens)

    def run(
        self,
        x: Float[Array, "B T D"],
        masks: Mapping[int | None, Mask | None],
        positions: Positions,
        *,
        memory: Memory | None = None,
        cache: Cache | None = None,
        key: Key[Array, ""] | None = None,
        last_n: int | None = None,
        watch: tuple[tuple[OnWeights, OnWeights] | None, OnHidden | None] = (None, None),
    ) -> tuple[Float[Array, "B _ D"], tuple[LayerCache, ...]]:
        """Runs all blocks and the final norm.

        Args:
            x: Input of the first block.
            masks: The mask of self-attention for each sliding window of a layer.
            positions: Positions of the tokens.
            memory: Encoder states for cross-attention.
            cache: Keys and values of earlier tokens and of the memory, in place of ``memory``.
            key: Random key of dropout; None is no dropout.
            last_n: Number of positions to return; None is all.
            watch: ``on_weights`` and ``on_hidden``.

        Returns:
            Hidden states, and the extended cache of each block; none without a cache.
        """
        on_weights, on_hidden = watch
        if cache is not None:
            real = cache.memory_mask
            memory = Memory(None, None if real is None else Mask(dense=real))
        keys = None if key is None else jax.random.split(key, self.layers)
        trains = cache is None and on_weights is None and on_hidden is None
        remat = jax.checkpoint if trains and self.config.compute.remat else lambda body: body
        layers: tuple[LayerCache, ...] = ()

        def body(
            block: Block,
            x: Array,
            mask: Mask | None,
            layer: LayerCache | None = None,
            key: Array | None = None,
            last_n: int | None = None,
        ) -> tuple[Array, LayerCache | None]:
            return block(
                x,
                mask,
                memory=memory,
                cache=layer,
                positions=positions,
                key=key,
                on_weights=on_weights,
                last_n=last_n,
            )

        if trains and self.config.compute.scan_layers and self.layers:
            x = self._scan(body, remat, x, masks, keys)
        else:
            body = remat(body)
            for i, block in enumerate(self.iter_blocks()):
                if on_hidden is not None:
                    on_hidden(x)
                # The last block needs only the last outputs, but all keys and values.
                only = last_n if i + 1 == self.layers else None
                layer = None if cache is None else cache.layers[i]
                mask, key = masks[self.window(i)], None if keys is None else keys[i]
                x, layer = body(block, x, mask, layer, key, only)
                layers += () if layer is None else (layer,)
        x = x if self.final_norm is None else self.final_norm(x)
        if on_hidden is not None:
            on_hidden(x)
        return x, layers

    def _scan(
        self,
        body: Callable[..., tuple[Array, LayerCache | None]],
        remat: Callable[..., Callable[..., tuple[Array, None]]],
        x: Array,
        masks: Mapping[int | None, Mask | None],
        keys: Array | None,
    ) -> Array:
        """Runs the loop of :meth:`run` as a scan: one block's code over stacked parameters."""
        local = jnp.array([self.window(i) is not None for i in range(self.layers)])
        # Layers have one window at most, or none: see ScoreConfig.
        near, *far = (masks[window] for window in sorted(masks, key=lambda window: window is None))
        mixed, T = bool(far) and far[0] is not near, x.shape[1]

        def scanned(x: Array, layer: tuple[Block, Array | None, Array]) -> tuple[Array, None]:
            block, key, local = layer
            mask = near
            if mixed:  # which layers are local is data here, so a mask that differs is an array
                mask = Mask(dense=jnp.where(local, _dense(near, T), _dense(far[0], T)))
            return body(block, x, mask, key=key)[0], None

        # Around the body of the scan: around the block alone, XLA would save other residuals.
        return jax.lax.scan(remat(scanned), x, (self.blocks, keys, local))[0]

    def position_ids(
        self, T: int, padding_mask: Int[Array, " B"] | Bool[Array, "B {T}"]
    ) -> Int[Array, "B {T}"] | None:
        """Positions of tokens, or None for 0, 1, 2 and so on.

        With ``skip_padding``, padding is not counted and has position -1. ``padding_mask`` is the
        length of each row, or True for tokens that are not padding.
        """
        if not self.config.positions.skip_padding:
            return None
        if padding_mask.ndim == 1:
            padding_mask = jnp.arange(T)[None] < padding_mask[:, None]
        return jnp.where(padding_mask, jnp.cumsum(padding_mask, axis=1, dtype=jnp.int32) - 1, -1)

    def embed_inputs(
        self,
        x: Float[Array, "B T E"],
        positions: Int[Array, "#B T"],
        segments: Int[Array, "B T"] | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the input of the first block: token vectors with positions and segments.

        Inputs of another width are projected to the width of the model.
        """
        places = self.config.positions
        if self.positions is not None:
            # Padding has position -1: clamp it to 0, since it is masked anyway.
            x = x + self.positions(jnp.maximum(positions + places.offset, 0))
        elif places.kind.startswith("sinusoidal"):
            table = sinusoids(self.config)
            x = x + jnp.take(jnp.asarray(table), positions, axis=0, mode="clip").astype(x.dtype)
        if self.segments is not None:
            rows = jnp.zeros((1, 1), jnp.int32) if segments is None else segments
            x = x + self.segments(rows)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if places.kind == "concatenated":
            beside = jnp.take(jnp.asarray(sinusoids(self.config)), positions, axis=0, mode="clip")
            beside = jnp.broadcast_to(beside.astype(x.dtype), x.shape)
            x = jnp.concatenate([x, beside], axis=-1)
        x = x.astype(self.config.compute.dtype)
        x = dropout(x, self.config.embedding.dropout, key)
        x = x if self.projection is None else self.projection(x)
        # A mesh divides rows and positions; blocks keep this layout.
        return constrain(x, ("batch", "sequence", None))

    def bias(
        self, T: int, S: int, offset: int | Int[Array, ""] = 0
    ) -> Float[Array, "1 N T S"] | None:
        """Position bias of the scores of ``T`` queries, the first at position ``offset``."""
        places, heads = self.config.positions, self.config.attention.num_heads
        if places.kind == "alibi":
            return positional.alibi_bias(T, S, heads, offset)
        if self.relative is None:
            return None
        buckets = positional.relative_position_bucket(
            T, S, not self.decoder, places.num_buckets, places.max_distance, offset
        )
        return self.relative(buckets).transpose(2, 0, 1)[None]

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer; None for full attention."""
        return self.config.scores.window_of(layer)

    def windows(self) -> list[int | None]:
        """The sliding windows of all layers, each once."""
        return list(dict.fromkeys(map(self.window, range(self.layers))))

    def windowed(self, mask: Mask | None, T: int) -> dict[int | None, Mask | None]:
        """The mask of each window; one that is not shorter than the text changes nothing."""
        near = lambda window: Mask(window=window) if mask is None else mask & Mask(window=window)
        return {w: mask if w is None or w >= T else near(w) for w in self.windows()}

    def iter_blocks(self) -> list[Block]:
        """Iterates over all blocks, also of a scanned stack."""
        if isinstance(self.blocks, nnx.List):
            return list(self.blocks)
        return unstacked(self.blocks, self.layers)

    def _slot_sizes(self) -> tuple[tuple[int, int], str]:
        """Sizes of a key and a value, or of another mixer's state, and their dtype."""
        if not self.config.mixer.attends:
            size, dtype = slot_size(self.config)
            return (size, 0), dtype
        H = self.config.head_dim
        return (H, self.config.attention.value_dim or H), self.config.compute.dtype

    @property
    def cache_heads(self) -> int:
        """Heads in the cache: the key heads, or one for a mixer other than attention."""
        if not self.config.mixer.attends:
            return 1
        return self.config.attention.num_kv_heads or self.config.attention.num_heads

    def init_cache(
        self,
        sentences: int,
        length: int,
        *,
        beams: int = 1,
        memory: Float[Array, "B S D"] | None = None,
        memory_mask: Bool[Array, "B 1 1 S"] | None = None,
    ) -> Cache:
        """An empty cache for ``length`` tokens; cross-attention projects ``memory`` once, here."""
        rows, (sizes, dtype) = (sentences, self.cache_heads), self._slot_sizes()
        layers = []
        for block in self.iter_blocks():
            attention, slots = block.self_attention, length * beams
            merged = attention is None or attention.merges_heads
            layer = LayerCache.empty(rows, slots, sizes, jnp.dtype(dtype), beams, merged=merged)
            if memory is not None and block.cross_attention is not None:
                layer = layer.with_memory(block.cross_attention.project_memory(memory))
            layers.append(layer)
        ancestry = jnp.zeros((sentences, beams, length), jnp.int32) if beams > 1 else None
        return Cache(tuple(layers), jnp.int32(0), memory_mask, ancestry)


def _dense(mask: Mask | None, T: int) -> Bool[Array, "#B #N T T"]:
    """The mask as an array, even if everything is visible."""
    dense = None if mask is None else mask.array(T, T)
    return jnp.ones((1, 1, T, T), bool) if dense is None else dense
