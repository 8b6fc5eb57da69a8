"""Mixers of the positions of a block other than attention: recurrence and convolution.

Both replace self-attention, with the same masks of texts and the same cache: each position stores
values in its slot, and later positions read the slots that their beams see.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.convolution import convolve, gated_linear_unit
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.partitioning import unshard_fsdp
from transformer_jax.functional.recurrent import CELLS, State
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.cache import LayerCache
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import initial
from transformer_jax.models.layers.recurrent_layers import RecurrentLayer

__all__ = ["ConvolutionMixer", "RecurrentMixer", "make_mixer", "segments_of", "slot_size"]


class _Slots(NamedTuple):
    """A cache of earlier positions, and its visible slots.

    Attributes:
        cache: Holds the values of each slot.
        visible: Slots that each beam, or each of several next tokens, sees, ``[#B #Q J]``.
        first: The slot of the first new position.
    """

    cache: LayerCache
    visible: Bool[Array, "#B #Q J"]
    first: int | Int[Array, ""]

    def earlier(self, distance: int, queries: int) -> Float[Array, "B {queries} H"]:
        """Returns the values ``distance`` positions before each beam's or token's own, or zeros."""
        beams = self.cache.beams
        held = self.cache.keys
        held = held[:, 0] if held.ndim == 4 else held
        own = self.first // beams
        if beams > 1:
            start = (own - distance) * beams
            block = lax.dynamic_slice_in_dim(held, start, beams, axis=1)
            chosen = lax.dynamic_slice_in_dim(self.visible, start, beams, axis=2)
            chosen = (chosen & (start >= 0)).astype(held.dtype)
            chosen = jnp.broadcast_to(chosen, (len(held), queries, beams))
            return jnp.einsum("bqm,bmh->bqh", chosen, block)
        at = own - distance + jnp.arange(queries)
        there = jnp.maximum(at, 0)
        seen = jnp.take_along_axis(self.visible[:, :queries], there[None, :, None], axis=2)
        seen = seen[..., 0] & (at >= 0)[None]
        return jnp.where(seen[:, :, None], jnp.take(held, there, axis=1), 0)


def _slots(cache: LayerCache, mask: Mask | None, first: int | Array) -> _Slots:
    assert mask is not None, "a step of decoding has a mask"
    assert mask.dense is not None, "a step of decoding has a mask"
    return _Slots(cache, mask.dense[:, 0], first)


def _extended(cache: LayerCache, values: Float[Array, "B T H"], slots: int | Array) -> LayerCache:
    nothing = jnp.zeros((*values.shape[:2], 0), values.dtype)
    return cache.extend(values[:, None], nothing[:, None], slots)[0]


def segments_of(mask: Mask | None, T: int) -> Int[Array, "B {T}"] | None:
    """The text that each of ``T`` positions belongs to; 0 is padding, None is one text per row.

    Raises:
        ArgumentError: The mask is of another kind: these mixers support only texts and padding.

    Example:
        >>> segments_of(Mask(kv_lengths=jnp.array([2])), 3)
        Array([[1, 1, 0]], dtype=int32)
    """
    if mask is None:
        return None
    found = mask.kv_segments
    if mask.kv_lengths is not None:
        inside = (jnp.arange(T)[None] < mask.kv_lengths[:, None]).astype(jnp.int32)
        found = inside if found is None else found * inside
    if mask.dense is not None:
        keys = mask.dense
        if keys.ndim != 4 or keys.shape[1:3] != (1, 1):
            raise ArgumentError(
                "a recurrent or convolutional mixer reads texts in order: its mask says which "
                "positions are padding and which text each belongs to, and nothing else"
            )
        found = keys[:, 0, 0].astype(jnp.int32) if found is None else found * keys[:, 0, 0]
    return found


def _begins(segments: Int[Array, "B T"]) -> Bool[Array, "B T"]:
    """Marks the starts of texts and of padding."""
    first = jnp.ones((len(segments), 1), bool)
    return jnp.concatenate([first, segments[:, 1:] != segments[:, :-1]], axis=1)


class RecurrentMixer(Module):
    """A recurrent layer; in an encoder, both directions with half the width each.

    Each position stores its state for the next one, in float32.
    """

    def __init__(self, config: TransformerConfig, *, causal: bool, rngs: nnx.Rngs):
        D, cell = config.d_model, config.mixer.cell
        self.truncate = config.mixer.bptt_length
        size = D if causal else D // 2
        self.forward = RecurrentLayer(D, size, cell, rngs=rngs)
        self.backward = None if causal else RecurrentLayer(D, size, cell, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Mask | None = None,
        *,
        cache: LayerCache | None = None,
        slots: int | Int[Array, ""] = 0,
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        """Returns the outputs at every position, and the cache with their states.

        Args:
            x: Vectors of a text, or of one new token per beam, or of several tokens of one beam.
            mask: Texts and padding; in a decoding step, the visible slots.
            cache: States of earlier positions.
            slots: Slot of the first position; the Python number 0 is a prompt.
        """
        if cache is not None and not isinstance(slots, int):
            return self._next(x, _slots(cache, mask, slots))
        segments = segments_of(mask, x.shape[1])
        y, last = self._run(self.forward, x, segments)
        if self.backward is not None:
            turned = None if segments is None else segments[:, ::-1]
            back = self._run(self.backward, x[:, ::-1], turned)[0][:, ::-1]
            y = jnp.concatenate([y, back], axis=-1)
        if cache is not None:
            # The earlier states of a prompt are never read: decoding continues after it.
            state = jnp.concatenate(last, axis=-1)[:, None]
            held = jnp.pad(state, [(0, 0), (x.shape[1] - 1, 0), (0, 0)])
            cache = _extended(cache, held, 0)
        return y, cache

    def _run(self, layer: RecurrentLayer, x: Array, segments: Array | None) -> tuple[Array, State]:
        begins = None if segments is None else _begins(segments)
        return layer(x, truncate=self.truncate, begins=begins)

    def _next(self, x: Array, slots: _Slots) -> tuple[Array, LayerCache]:
        """Processes one new token of every beam at once, or several of one beam in turn."""
        B, T, _ = x.shape
        projected = self.forward.projected(x)
        beams = slots.cache.beams > 1
        rows = lambda y: y.reshape(-1, y.shape[-1])
        state = rows(slots.earlier(1, T if beams else 1))
        parts = CELLS[self.forward.cell].states

        def after(state: Array, projected: Array) -> tuple[Array, Array]:
            split = tuple(jnp.split(state, parts, axis=-1))
            state = jnp.concatenate(self.forward.next_state(projected, split), axis=-1)
            return state, state

        if beams:
            states = after(state, rows(projected))[0].reshape(B, T, -1)
        else:
            states = lax.scan(after, state, projected.swapaxes(0, 1))[1].swapaxes(0, 1)
        cache = _extended(slots.cache, states, slots.first)
        return states[..., : x.shape[-1]].astype(x.dtype), cache


class ConvolutionMixer(Module):
    """A convolution to twice the width, followed by a gated linear unit.

    ``y = a ⊙ σ(b)`` where ``[a; b]`` is the convolution; in a decoder it reads no later position.
    Each position stores its input for later ones. Gehring et al. 2017, Dauphin et al. 2017.
    """

    def __init__(
        self, config: TransformerConfig, *, causal: bool, dilation: int = 1, rngs: nnx.Rngs
    ):
        D, places = config.d_model, config.mixer.kernel_size
        init = jax.nn.initializers.variance_scaling(
            1.0, "fan_in", "truncated_normal", in_axis=(0, 1), out_axis=2
        )
        kernel = initial(init, rngs, (places, D, 2 * D))
        self.kernel = nnx.Param(kernel, axes=(None, "embed", None))
        self.bias = nnx.Param(jnp.zeros(2 * D), axes=(None,))
        self.causal, self.dilation = causal, dilation

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Mask | None = None,
        *,
        cache: LayerCache | None = None,
        slots: int | Int[Array, ""] = 0,
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        """Returns the outputs at every position, and the cache with their inputs.

        Args:
            x: Vectors of a text, or of one new token per beam, or of several tokens of one beam.
            mask: Texts and padding; in a decoding step, the visible slots.
            cache: Inputs of earlier positions.
            slots: Slot of the first position; the Python number 0 is a prompt.
        """
        kernel = unshard_fsdp(self.kernel[...], (None, "embed", None), x.dtype)
        bias, places = self.bias[...], kernel.shape[0]
        if cache is not None:
            cache = _extended(cache, x, slots)
            if not isinstance(slots, int):
                read = _slots(cache, mask, slots)
                found = [
                    read.earlier((places - 1 - j) * self.dilation, x.shape[1]).astype(x.dtype)
                    for j in range(places - 1)
                ]
                flat = kernel.reshape(-1, kernel.shape[-1])
                beside = jnp.concatenate([*found, x], axis=-1)
                y = jnp.matmul(beside, flat, preferred_element_type=jnp.float32).astype(x.dtype)
                return gated_linear_unit(y + bias.astype(y.dtype).reshape(1, 1, -1)), cache
        y = convolve(
            x,
            kernel,
            bias,
            dilation=self.dilation,
            causal=self.causal,
            segments=segments_of(mask, x.shape[1]),
        )
        return gated_linear_unit(y), cache


def make_mixer(
    config: TransformerConfig, *, causal: bool, layer: int, rngs: nnx.Rngs
) -> RecurrentMixer | ConvolutionMixer | None:
    """The mixer of a block, or None if it is attention.

    Args:
        config: Configuration of the model.
        causal: Whether no position may read a later one.
        layer: Index of the block, from 0, which selects its dilation.
        rngs: Random streams of the parameters.
    """
    mixer = config.mixer
    if mixer.kind == "recurrent":
        return RecurrentMixer(config, causal=causal, rngs=rngs)
    if mixer.kind == "convolution":
        dilation = mixer.dilations[layer % len(mixer.dilations)]
        return ConvolutionMixer(config, causal=causal, dilation=dilation, rngs=rngs)
    return None


def slot_size(config: TransformerConfig) -> tuple[int, str]:
    """Number of values that a position of a mixer stores in the cache, and their dtype.

    Example:
        >>> import dataclasses
        >>> from transformer_jax.models.config import MixerConfig
        >>> slot_size(TransformerConfig(mixer=MixerConfig("recurrent", cell="lstm")))
        (1024, 'float32')
    """
    if config.mixer.kind == "recurrent":
        return CELLS[config.mixer.cell].states * config.d_model, "float32"
    return config.d_model, config.compute.dtype
