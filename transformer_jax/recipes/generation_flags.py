"""Flags of text generation, derived from :class:`.GenerationConfig`."""

import dataclasses
import functools
import types
import typing
from typing import Annotated, Any

from transformer_jax.core.config_fields import Configuration, Flag, field_help, field_types
from transformer_jax.data.languages import Direction
from transformer_jax.decoding.generation_config import GenerationConfig

__all__ = ["LanguageFlags", "generation_flags"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageFlags(Configuration, group="--"):
    """The flags of commands that use a multilingual translator."""

    from_language: Annotated[str | None, Flag("from")] = None
    """Language of the text, for a multilingual translator."""
    to: str | None = None
    """Language of the translations, for a multilingual translator."""

    @property
    def direction(self) -> Direction:
        """Returns the direction that the flags name."""
        return Direction(self.from_language, self.to)


def generation_flags(usual: GenerationConfig, *names: str, **notes: str) -> Any:
    """Returns a base class for commands with flags for a :class:`.GenerationConfig`.

    An absent flag is None, for the default value. The method ``generation`` of the base class
    returns the configuration.

    Args:
        usual: The configuration without flags.
        *names: Settings that become flags.
        **notes: The meaning of None, by name, if it is not the default value.

    Example:
        >>> flags = generation_flags(GenerationConfig(num_beams=4), "num_beams", "top_k")
        >>> flags(top_k=3).generation().num_beams, flags(num_beams=2).generation().num_beams
        (4, 2)
    """
    fields: list[tuple[str, Any, Any]] = []
    for name in names:
        default = getattr(usual, name)
        none = "" if default in (None, ()) else f"None is {_shown(default)}"
        text = functools.partial(_help, name, notes.get(name, none))
        kind, empty = _flag_type(field_types(GenerationConfig)[name]), None
        if isinstance(default, tuple):
            empty = default
        else:
            kind = kind | None
        fields.append((name, kind, dataclasses.field(default=empty, metadata={"help": text})))
    namespace = {
        "given": _given,
        "generation": functools.partialmethod(_generation, usual),
        "__doc__": "Flags of text generation.",
    }
    flags: Any = dataclasses.make_dataclass(
        "GenerationFlags",
        fields,
        bases=(Configuration,),
        frozen=True,
        kw_only=True,
        namespace=namespace,
    )
    flags.group, flags.FLAGS = "--", names
    return flags


def _help(name: str, none: str) -> str:
    """Returns the help of a setting's flag, with the meaning of None."""
    text = "; ".join(filter(None, (field_help(GenerationConfig, name).rstrip("."), none)))
    return f"{text[0].upper()}{text[1:]}."


def _given(command: Any) -> dict[str, Any]:
    """Returns the settings whose flags are given."""
    settings = {}
    for name in type(command).FLAGS:
        value = getattr(command, name)
        if value is not None and value != ():
            settings[name] = value
    return settings


def _generation(command: Any, usual: GenerationConfig, **settings: Any) -> GenerationConfig:
    """Returns the configuration of the flags; ``settings`` take precedence.

    Raises:
        ConfigError: A value contradicts another.
    """
    return usual.changed(**{**_given(command), **settings})


def _flag_type(kind: Any) -> Any:
    """Returns the type of a flag's value; numbers are floats."""
    if typing.get_origin(kind) is types.UnionType or typing.get_origin(kind) is typing.Union:
        [kind] = [part for part in typing.get_args(kind) if part is not types.NoneType]
    inner, *ranges = typing.get_args(kind) or (kind,)
    return Annotated[float, *ranges] if inner == float | int else kind


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
