"""Dataclasses from nested dicts, as read from JSON."""

import dataclasses
import json
import sys
import types
import typing
from typing import Any, Literal

from transformer_jax.errors import ConfigError

__all__ = ["from_dict"]


def from_dict(cls: type, values: dict[str, Any], where: str = "") -> Any:
    """A dataclass of type ``cls`` from what ``dataclasses.asdict`` made of one, via JSON or not.

    Nested dataclasses are rebuilt and lists become tuples.

    Raises:
        ConfigError: A key that ``cls`` does not have; it names the key and the nearest field. A
            value of another type than its field's.

    Example:
        >>> from transformer_jax.config import ComputeConfig
        >>> from_dict(ComputeConfig, {"scan_layers": True})
        ComputeConfig(dtype='float32', scan_layers=True, remat=False)
    """
    import difflib

    hints = typing.get_type_hints(cls)
    fields = {field.name for field in dataclasses.fields(cls)}
    out = {}
    for name, value in values.items():
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            hint = f"; did you mean {where}{near[0]}?" if near else ""
            raise ConfigError(f"unknown setting {where}{name}{hint}")
        kind = hints[name]
        kinds = (kind, *typing.get_args(kind))
        nested = [k for k in kinds if isinstance(k, type) and dataclasses.is_dataclass(k)]
        if isinstance(value, dict) and nested:
            value = from_dict(nested[0], value, f"{where}{name}.")
        elif isinstance(value, list):
            value = tuple(value)
        if not _fits(value, kind):
            said = json.dumps(value, default=str)[:80]
            raise ConfigError(f"{where}{name} is {said}: {_needed(kind)} is needed")
        whole = type(value) is int and _exactly(float, kind) and not _exactly(int, kind)
        out[name] = float(value) if whole else value
    return cls(**out)


def _exactly(wanted: type, kind: Any) -> bool:
    """Whether a type is ``wanted``, or has it among others."""
    return wanted is kind or any(_exactly(wanted, part) for part in typing.get_args(kind))


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value read from JSON can be of a type; whole numbers are numbers too."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        each = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(each) == len(value) and all(map(_fits, value, each))
    if dataclasses.is_dataclass(kind):
        return isinstance(value, typing.cast(type, kind))
    simple: dict[Any, Any] = {
        bool: bool,
        int: int,
        float: (int, float),
        str: str,
        type(None): type(None),
    }
    if kind not in simple:
        return True
    real = value == value  # NaN is no number
    if kind is float and isinstance(value, int):
        real = abs(value) <= sys.float_info.max  # JSON can hold what no float can
    return (
        isinstance(value, simple[kind])
        and real
        and (kind is bool or (value is not True and value is not False))
    )


def _needed(kind: Any) -> str:
    """A type as people say it."""
    named = {bool: "true or false", int: "a whole number", float: "a number", str: "text",
             type(None): "null"}  # fmt: skip
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(map(json.dumps, parts))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(map(_needed, parts))
    return named.get(kind, "a list" if typing.get_origin(kind) is tuple else "an object")
