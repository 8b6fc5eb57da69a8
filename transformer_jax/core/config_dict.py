"""Dataclasses from nested dicts, as read from JSON."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from typing import Any

from transformer_jax.core.config_fields import (
    UnregisteredError,
    field_problem,
    field_types,
    registry_of,
)
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json

__all__ = ["from_dict"]


def from_dict(cls: type, values: Mapping[str, Json], where: str = "") -> Any:
    """Makes a dataclass of type ``cls`` from the result of ``dataclasses.asdict``, or its JSON.

    Nested dataclasses are rebuilt and lists become tuples.

    Raises:
        ConfigError: An unknown key, named with the nearest field; or a value outside its field's
            type or range.

    Example:
        >>> from transformer_jax.models.config import ComputeConfig
        >>> from_dict(ComputeConfig, {"scan_layers": True}).scan_layers
        True
    """
    import difflib

    hints = field_types(cls)
    out: dict[str, object] = {}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            hint = f"; did you mean {where}{near[0]}?" if near else ""
            raise ConfigError(f"unknown setting {where}{name}{hint}")
        kind = hints[name]
        kinds = (kind, *typing.get_args(kind))
        nested = [k for k in kinds if isinstance(k, type) and dataclasses.is_dataclass(k)]
        made: object = value
        if isinstance(value, dict) and nested:
            made = from_dict(nested[0], value, f"{where}{name}.")
        elif isinstance(value, list):
            made = tuple(value)
        if (found := field_problem(made, kind, "null")) is not None:
            said = json.dumps(made, default=str)[:80]
            if registry_of(kind) is not None:
                raise UnregisteredError(f"{where}{name}", f"is {said}: {found}")
            raise ConfigError(f"{where}{name} is {said}: {found}")
        floats = _exactly(float, kind) and not _exactly(int, kind)
        out[name] = float(made) if type(made) is int and floats else made
    return cls(**out)


def _exactly(wanted: type, kind: object) -> bool:
    """Returns whether a type is ``wanted``, or a union that contains it."""
    return wanted is kind or any(_exactly(wanted, part) for part in typing.get_args(kind))
