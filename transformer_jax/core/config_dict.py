"""Dataclasses from nested dicts, as read from JSON."""

import dataclasses
import json
import typing
from typing import Any

from transformer_jax.core.config_fields import field_problem, field_types
from transformer_jax.core.errors import ConfigError

__all__ = ["from_dict"]


def from_dict(cls: type, values: dict[str, Any], where: str = "") -> Any:
    """Makes a dataclass of type ``cls`` from the result of ``dataclasses.asdict``, or its JSON.

    Nested dataclasses are rebuilt and lists become tuples.

    Raises:
        ConfigError: An unknown key, named with the nearest field; or a value outside its field's
            type or range.

    Example:
        >>> from transformer_jax.models.config import ComputeConfig
        >>> from_dict(ComputeConfig, {"scan_layers": True})
        ComputeConfig(dtype='float32', scan_layers=True, remat=False)
    """
    import difflib

    hints = field_types(cls)
    out = {}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            hint = f"; did you mean {where}{near[0]}?" if near else ""
            raise ConfigError(f"unknown setting {where}{name}{hint}")
        kind = hints[name]
        kinds = (kind, *typing.get_args(kind))
        nested = [k for k in kinds if isinstance(k, type) and dataclasses.is_dataclass(k)]
        if isinstance(value, dict) and nested:
            value = from_dict(nested[0], value, f"{where}{name}.")
        elif isinstance(value, list):
            value = tuple(value)
        if (found := field_problem(value, kind, "null")) is not None:
            said = json.dumps(value, default=str)[:80]
            raise ConfigError(f"{where}{name} is {said}: {found}")
        whole = type(value) is int and _exactly(float, kind) and not _exactly(int, kind)
        out[name] = float(value) if whole else value
    return cls(**out)


def _exactly(wanted: type, kind: Any) -> bool:
    """Returns whether a type is ``wanted``, or a union that contains it."""
    return wanted is kind or any(_exactly(wanted, part) for part in typing.get_args(kind))
