"""Reads and writes RoPE settings of Hugging Face configurations.

Files of transformers 5 have ``rope_parameters``, earlier files ``rope_theta`` and ``rope_scaling``.
https://huggingface.co/docs/transformers/main/en/internal/rope_utils
"""

import math
from collections.abc import Mapping
from typing import Any

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.models.config import PositionConfig

__all__ = ["KINDS", "rope_fields", "rope_group", "rope_positions"]

# transformers' names of kinds of scaling, by ours.
KINDS: Mapping[str, str] = {
    name: name for name in ("default", "linear", "llama3", "yarn", "dynamic", "longrope")
}


def rope_positions(
    fields: ConfigReader, *, kinds: Mapping[str, str] = KINDS, head_dim: int | None = None
) -> PositionConfig:
    """Reads the settings of rotary positions.

    If angles depend on the length of a text, the angles for lengths within training are used: up to
    ``max_position_embeddings`` for dynamic NTK, which changes nothing there, and up to
    ``original_max_position_embeddings`` for LongRoPE, with the short factors. Longer texts are
    not supported: in transformers, angles then change while a text grows (dynamic NTK mixes
    keys of several bases in its cache, LongRoPE reads the complete text again), and with the
    longest text of a batch.

    Args:
        fields: The configuration, with ``max_position_embeddings``.
        kinds: The kinds of scaling that the family supports, by name.
        head_dim: The size of a head, for families with partial rotary dimensions.

    Raises:
        CheckpointError: The kind of scaling is not supported.
    """
    group = rope_group(fields)
    nested = next((name for name, value in group.values.items() if isinstance(value, dict)), None)
    if nested is not None:
        raise group.refused(nested, group.values[nested], "all layers must have one kind")
    longest = fields.whole("max_position_embeddings")
    base = fields.number("rope_theta", default=10_000.0, above=0)
    kind = group.choice(("rope_type", "type"), kinds, "default")
    settings: dict[str, Any] = {
        "kind": "rope",
        "max_length": longest,
        "rope_theta": group.number("rope_theta", default=base, above=0),
        "rope_dim": _rotary_dim(fields, group, head_dim),
    }
    if kind == "linear":
        settings["rope_interpolation"] = group.number("factor", above=0)
    elif kind == "dynamic":
        settings["rope_dynamic"] = (group.number("factor", above=0), longest)
    elif kind != "default":
        settings |= _OLD[kind](group, longest, _old_length(fields, group, longest))
    return PositionConfig(**settings)


def rope_group(fields: ConfigReader) -> ConfigReader:
    """Returns the keys of ``rope_scaling``, or else of ``rope_parameters``."""
    group = fields.group("rope_scaling")
    return group if group.values else fields.group("rope_parameters")


def _rotary_dim(fields: ConfigReader, group: ConfigReader, head_dim: int | None) -> int | None:
    """Returns the number of rotary dimensions of a head, or None for all."""
    if head_dim is None:
        for where in (fields, group):
            where.only(partial_rotary_factor=1.0)
        return None
    fraction = fields.number("partial_rotary_factor", default=1.0, above=0)
    fraction = group.number("partial_rotary_factor", default=fraction, above=0)
    return None if fraction == 1.0 else int(head_dim * fraction)


def _old_length(fields: ConfigReader, group: ConfigReader, longest: int) -> int:
    """Returns the maximum length in training; the key next to the others takes precedence."""
    name = "original_max_position_embeddings"
    if fields.is_null(name):
        raise fields.refused(name, None, "an integer is needed, or no such key")
    return fields.whole(name, default=group.whole(name, default=longest))


def _llama3(group: ConfigReader, longest: int, old_length: int) -> dict[str, Json]:
    names = ("factor", "low_freq_factor", "high_freq_factor")
    numbers = tuple(group.number(name, above=0) for name in names)
    return {"rope_scaling": (*numbers, old_length)}


def _yarn(group: ConfigReader, longest: int, old_length: int) -> dict[str, Json]:
    factor = group.number("factor", above=0)
    fast = group.number("beta_fast", default=32.0, above=0)
    slow = group.number("beta_slow", default=1.0, above=0)
    whole = group.values.get("truncate", True)
    if not isinstance(whole, bool):
        raise group.refused("truncate", whole, "true or false is needed")
    above, below = (group.number(name, default=0.0) for name in ("mscale", "mscale_all_dim"))
    magnitude = lambda scale: 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0
    usual = magnitude(above) / magnitude(below) if above and below else magnitude(1.0)
    return {
        "rope_yarn": (factor, fast, slow, old_length, whole),
        "rope_attention_factor": group.number("attention_factor", default=usual, above=0),
    }


def _longrope(group: ConfigReader, longest: int, old_length: int) -> dict[str, Json]:
    factor = group.number("factor", default=longest / old_length, above=0)
    usual = 1.0
    if factor > 1 and old_length > 1:
        usual = math.sqrt(1 + math.log(factor) / math.log(old_length))
    return {
        "max_length": min(longest, old_length),
        "rope_short_factor": group.numbers("short_factor"),
        "rope_long_factor": group.numbers("long_factor"),
        "rope_original_max_length": old_length,
        "rope_attention_factor": group.number("attention_factor", default=usual, above=0),
    }


_OLD = {"llama3": _llama3, "yarn": _yarn, "longrope": _longrope}


def rope_fields(places: PositionConfig, head_dim: int) -> dict[str, Json]:
    """Returns the keys about positions for a published configuration."""
    rope, more = _scaling(places)
    rope = {"rope_type": "default", "rope_theta": places.rope_theta, **rope}
    if places.rope_dim is not None:
        fraction = places.rope_dim / head_dim
        if int(head_dim * fraction) != places.rope_dim:
            fraction = (places.rope_dim + 0.5) / head_dim
        rope["partial_rotary_factor"] = fraction
    return {
        "max_position_embeddings": places.max_length,
        "rope_parameters": rope,
        # Read by versions before transformers 5.
        "rope_theta": places.rope_theta,
        **({"rope_scaling": rope} if rope["rope_type"] != "default" else {}),
        **more,
    }


def _scaling(places: PositionConfig) -> tuple[dict[str, Json], dict[str, Json]]:
    """Returns the keys within ``rope_parameters`` and the keys next to it."""
    old = "original_max_position_embeddings"
    if places.rope_scaling is not None:
        factor, low, high, length = places.rope_scaling
        slow = {"low_freq_factor": low, "high_freq_factor": high, old: length}
        return {"rope_type": "llama3", "factor": factor, **slow}, {}
    if places.rope_yarn is not None:
        factor, fast, slow_turns, length, whole = places.rope_yarn
        return {
            "rope_type": "yarn",
            "factor": factor,
            "beta_fast": fast,
            "beta_slow": slow_turns,
            "truncate": whole,
            "attention_factor": places.rope_attention_factor,
            old: length,
        }, {}
    if places.rope_original_max_length is not None:
        length = places.rope_original_max_length
        return {
            "rope_type": "longrope",
            "short_factor": list(places.rope_short_factor),
            "long_factor": list(places.rope_long_factor),
            "attention_factor": places.rope_attention_factor,
            old: length,
        }, {old: length}  # where Phi-3 reads it
    if places.rope_dynamic is not None:
        return {"rope_type": "dynamic", "factor": places.rope_dynamic[0]}, {}
    if places.rope_interpolation != 1.0:
        return {"rope_type": "linear", "factor": places.rope_interpolation}, {}
    return {}, {}
