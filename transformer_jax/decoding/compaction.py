"""Greedy decoding of a batch that becomes smaller as its rows end."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from transformer_jax.decoding.generate import (
    GenerationOutput,
    GenerationState,
    continue_generation,
)
from transformer_jax.devices import device_of
from transformer_jax.models.protocol import Decodable
from transformer_jax.parallel.inference import mesh_of

__all__ = ["compaction_sizes", "generate_compacting"]


def compaction_sizes(rows: int, params: Any) -> tuple[int, ...]:
    """The sizes to which a batch of so many rows falls where its parameters lie, falling.

    There are none on accelerators, which read all parameters at every step, however many rows
    there are, and none on a mesh, whose devices would exchange rows.

    Example:
        >>> compaction_sizes(128, {"gain": jnp.ones(3)}), compaction_sizes(8, {})
        ((32, 8), ())
    """
    if device_of(params).platform != "cpu" or mesh_of(params) is not None:
        return ()
    return tuple(size for size in (32, 8) if size < rows)


def generate_compacting(
    model: Decodable,
    state: GenerationState,
    until: int,
    append: Callable[[GenerationState, Array], GenerationState],
    sizes: Sequence[int],
) -> GenerationOutput:
    """What :func:`.generate` gives, at less cost: rows that have ended are not computed.

    Whenever no more rows remain than the next of ``sizes``, these alone go on, in a loop of that
    size. All loops are one program, which has one more for each size. It pays where the time of a
    step grows with its rows, as on CPUs.

    Args:
        model: Decoder or encoder-decoder.
        state: Where the generation begins.
        until: Most tokens of any row.
        append: Chooses tokens, with the same settings for all rows.
        sizes: Numbers of rows, falling.
    """
    found, places = state, jnp.arange(len(state.last))
    for size in sizes:
        state = continue_generation(model.step, state, until, append, remaining=size)
        found = _put(found, state, places)
        order = jnp.argsort(~state.active, stable=True)[:size]
        state, places = _take(model, state, order), places[order]
    state = continue_generation(model.step, state, until, append)
    found = _put(found, state, places)
    return GenerationOutput(found.tokens, found.lengths, found.log_probs, found.finished)


def _take(model: Decodable, state: GenerationState, rows: Array) -> GenerationState:
    """The generation of some rows."""
    cache = model.take(state.cache, rows)
    parts = {name: getattr(state, name)[rows] for name in _ROWS}
    return state._replace(cache=cache, **parts)


def _put(found: GenerationState, state: GenerationState, places: Array) -> GenerationState:
    """``found`` with what its rows ``places`` have come to."""
    parts = {name: getattr(found, name).at[places].set(getattr(state, name)) for name in _ROWS}
    return found._replace(**parts)


_ROWS = tuple(name for name in GenerationState._fields if name not in ("t", "cache"))
