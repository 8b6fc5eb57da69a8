"""Keys of a published ``config.json`` and the corresponding settings, in both directions."""

import dataclasses
import operator
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.models.config import Activation, TransformerConfig

__all__ = ["ACTIVATIONS", "Key", "KeyTable", "activation", "flag", "number", "size", "written"]

# Hugging Face's names of activations, and ours.
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
    "tanh": "tanh",
}

_Read = Callable[[ConfigReader], object]
_Write = Callable[[TransformerConfig], Json]


class Key(NamedTuple):
    """One key of a ``config.json``.

    Attributes:
        name: The key.
        settings: Dotted paths of the settings that it sets.
        read: Function that reads the value; None for a key that is only written.
        write: Function from a configuration to the value of the key.
    """

    name: str
    settings: tuple[str, ...]
    read: _Read | None
    write: _Write


def size(
    setting: str,
    *names: str,
    default: int | Callable[[ConfigReader], int] | None = None,
    write: _Write | None = None,
) -> Key:
    """Returns the key of a positive integer.

    Args:
        setting: The dotted path of the setting.
        names: The key, and older keys that are read if it is missing.
        default: The default, possibly a function of other keys; None makes it required.
        write: Function to the value to write; None is the setting's.
    """
    usual = lambda fields: default(fields) if callable(default) else default
    read = lambda fields: fields.whole(*names, default=usual(fields))
    return Key(names[0], (setting,), read, write or operator.attrgetter(setting))


def number(
    settings: str, name: str, *, default: float | None = None, above: float | int | None = None
) -> Key:
    """Returns the key of a number.

    Args:
        settings: Dotted paths of the settings, separated by blanks.
        name: The key.
        default: The default; None makes it required.
        above: Exclusive lower bound.
    """
    paths = tuple(settings.split())
    read = lambda fields: fields.number(name, default=default, above=above)
    return Key(name, paths, read, operator.attrgetter(paths[0]))


def flag(
    settings: str, name: str, default: bool, values: tuple[object, object] = (False, True)
) -> Key:
    """Returns the key of a boolean for two values.

    Args:
        settings: Dotted paths of the settings, separated by blanks.
        name: The key.
        default: Whether a missing key counts as true.
        values: The value of the settings for false and for true.
    """
    paths = tuple(settings.split())
    value_of = operator.attrgetter(paths[0])
    read = lambda fields: values[fields.flag(name, default)]
    return Key(name, paths, read, lambda config: value_of(config) == values[True])


def activation(
    name: str,
    default: str,
    *,
    setting: str = "feed_forward.activation",
    known: Mapping[str, str] = ACTIVATIONS,
    tanh: str = "gelu_new",
) -> Key:
    """Returns the key of an activation.

    Args:
        name: The key.
        default: The default.
        setting: The dotted path of the setting.
        known: Our names by Hugging Face's.
        tanh: The name to write for the tanh approximation of GELU.
    """
    value_of = operator.attrgetter(setting)
    return Key(
        name,
        (setting,),
        lambda fields: fields.choice((name,), known, default),
        lambda config: value_of(config).replace("gelu_tanh", tanh),
    )


def written(name: str, setting: str) -> Key:
    """Returns a key that is only written; the family reads its value together with the tensors."""
    return Key(name, (), None, operator.attrgetter(setting))


class KeyTable:
    """The keys of a family.

    Example:
        >>> table = KeyTable(size("d_model", "n_embd", "hidden_size"))
        >>> table.settings(ConfigReader({"hidden_size": 64}))
        {'d_model': 64}
    """

    def __init__(self, *keys: Key):
        self.keys = keys

    def settings(self, fields: ConfigReader) -> dict[str, object]:
        """Returns the values of settings by dotted path.

        Raises:
            CheckpointError: A value is invalid.
        """
        found = {}
        for key in self.keys:
            if key.read is not None:
                found.update(dict.fromkeys(key.settings, key.read(fields)))
        return found

    def config(self, fields: ConfigReader, settings: Mapping[str, object]) -> TransformerConfig:
        """Returns the configuration of a model.

        Args:
            fields: The keys.
            settings: Further settings, or groups of settings, by dotted path.

        Raises:
            CheckpointError: A value is invalid.
        """
        groups: dict[str, dict[str, object]] = {name: {} for name in _GROUPS}
        values: dict[str, Any] = {}
        for path, value in (self.settings(fields) | dict(settings)).items():
            group, _, name = path.rpartition(".")
            (groups[group] if group else values)[name] = value
        for group, members in groups.items():
            if group in values:
                values[group] = dataclasses.replace(values[group], **members)
            else:
                values[group] = _GROUPS[group](**members)
        return TransformerConfig(**values)

    def fields(self, config: TransformerConfig) -> dict[str, Json]:
        """Returns the keys of a configuration."""
        return {key.name: key.write(config) for key in self.keys}


# The nested configurations by name.
_GROUPS: dict[str, Callable[..., object]] = {
    name: cast(Callable[..., object], kind)
    for name, kind in typing.get_type_hints(TransformerConfig).items()
    if dataclasses.is_dataclass(kind)
}
