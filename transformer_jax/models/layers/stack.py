"""A stack of Transformer blocks: token vectors to hidden states."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.functional import positions as positional
from transformer_jax.functional.layers import dropout
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.partitioning import constrain
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.attention import OnWeights, Positions
from transformer_jax.models.layers.basic import Linear, Norm
from transformer_jax.models.layers.block import Block, Memory
from transformer_jax.models.layers.cache import Cache, LayerCache
from transformer_jax.models.layers.embedding import Embed, sinusoids
from transformer_jax.models.layers.mixer import slot_size
from transformer_jax.models.layers.parameters import at_depth, stacked, unstacked
from transformer_jax.models.layers.summary import Summarized

__all__ = ["OnHidden", "Stack"]

OnHidden = Callable[[Float[Array, "B T D"]], object]


class Stack(Summarized):
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
        learned, relative = places.kind == "learned", places.kind == "relative"
        rows, heads = places.max_length + places.offset, config.attention.num_heads
        table = lambda use, rows, axes, width, scale: (
            Embed(rows, width, axes, scale=scale, rngs=rngs) if use else None
        )
        segments = embedding.type_vocab_size
        self.positions = table(learned, rows, ("position", "embed"), E, spread)
        self.segments = table(segments, segments, ("token_type", "embed"), E, spread)
        self.embedding_norm = Norm(config.norm, E) if embedding.layernorm_embedding else None
        width = config.input_size
        self.projection = None if width == D else Linear(width, D, ("embed", None), rngs=rngs)
        self.relative = table(relative, places.num_buckets, ("bucket", "head"), heads, D**-0.5)
        inputs = self.positions, self.segments, self.embedding_norm, self.projection, self.relative
        for part in inputs:
            if part is not None:
                at_depth(part, 0)
        make = lambda layer, rngs: Block(
            config, cross=cross, causal=decoder, layer=layer, rngs=rngs
        )
        if config.compute.scan_layers and layers:
            self.blocks: Any = stacked(functools.partial(make, 0), layers, rngs)
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
        self,
        x: Float[Array, "B T D"],
        cache: Cache,
        starts: Int[Array, " B"] | None = None,
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
        cache = dataclasses.replace(cache, layers=layers, length=at + tokens)
        return x.reshape(shape[0], -1), cache

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

        def body(block, x, mask, layer=None, key=None, last_n=None):
            context = {"memory": memory, "positions": positions, "on_weights": on_weights}
            return block(x, mask, cache=layer, key=key, last_n=last_n, **context)

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

    def _scan(self, body, remat, x, masks, keys):
        """Runs the loop of :meth:`run` as a scan: one block's code over stacked parameters."""
        local = jnp.array([self.window(i) is not None for i in range(self.layers)])
        # Layers have one window at most, or none: see ScoreConfig.
        near, *far = (masks[window] for window in sorted(masks, key=lambda window: window is None))
        mixed, T = bool(far) and far[0] is not near, x.shape[1]

        def scanned(x, layer):
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
        if not self.config.compute.scan_layers or not self.layers:
            return list(self.blocks)
        return unstacked(self.blocks, self.layers)

    def _slot_sizes(self) -> tuple[tuple[int, int], str]:
        """Sizes of a key and a value, or of another mixer's state, and their dtype."""
        if self.config.mixer.kind != "attention":
            size, dtype = slot_size(self.config)
            return (size, 0), dtype
        H = self.config.head_dim
        return (H, self.config.attention.value_dim or H), self.config.compute.dtype

    @property
    def cache_heads(self) -> int:
        """Heads in the cache: the key heads, or one for a mixer other than attention."""
        if self.config.mixer.kind != "attention":
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
            layer = LayerCache.empty(rows, length * beams, sizes, jnp.dtype(dtype), beams)
            if memory is not None and block.cross_attention is not None:
                layer = layer.with_memory(block.cross_attention.project_memory(memory))
            layers.append(layer)
        ancestry = jnp.zeros((sentences, beams, length), jnp.int32) if beams > 1 else None
        return Cache(tuple(layers), jnp.int32(0), memory_mask, ancestry)


def _dense(mask: Mask | None, T: int) -> Bool[Array, "#B #N T T"]:
    """The mask as an array, even if everything is visible."""
    dense = None if mask is None else mask.array(T, T)
    return jnp.ones((1, 1, T, T), bool) if dense is None else dense
