"""Flags from configurations: a flag per field, with its comment, range and choices."""

import dataclasses
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from transformer_jax.cli.flags import flags_of, in_one_line, own_flag, positional
from transformer_jax.core.config_fields import (
    Configuration,
    FieldError,
    Flag,
    check_fields,
    field_types,
    registry_of,
)
from transformer_jax.core.config_help import field_help, range_of
from transformer_jax.core.errors import ConfigError

__all__ = ["parse", "read_words"]

_REGISTRY = ConstructorRegistry()
_POSITIONAL = typing.get_args(tyro.conf.Positional[int])[-1]
_METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH", bool: "{True,False}"}


def parse(
    kind: Any,
    program: str,
    arguments: Sequence[str],
    default: Any = None,
    description: str | None = None,
) -> Any:
    """Returns the configuration specified by flags.

    Invalid words are passed on unchanged, so that the configuration refuses them as it does in
    Python.

    Args:
        kind: A subclass of ``Configuration``.
        program: The command, for messages.
        arguments: Its flags and positional arguments.
        default: A configuration with the values of absent flags.
        description: The text of ``--help`` before the flags; None is the docstring of ``kind``.

    Raises:
        ConfigError: A flag or a value is invalid.

    Example:
        >>> from transformer_jax.models.config import NormConfig
        >>> parse(NormConfig, "norm", ["--placement", "pre"]).placement
        'pre'
        >>> parse(NormConfig, "norm", ["--eps", "small"])
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: --eps is 'small': a number is needed
    """
    how: dict[str, Any] = {} if default is None else {"default": default}
    read = lambda: tyro.cli(
        kind, prog=program, args=arguments, description=description, registry=_REGISTRY, **how
    )
    try:
        return in_one_line(read, program)
    except FieldError as error:
        raise ConfigError(f"{_flag(kind, error.path, arguments)} {error.fault}") from None


def read_words(cls: Any, name: str, words: Sequence[str]) -> Any:
    """Parses the words of a field; invalid words are returned unchanged.

    Args:
        cls: A subclass of ``Configuration``.
        name: The field.
        words: The words after its flag.

    Example:
        >>> from transformer_jax.models.config import NormConfig
        >>> read_words(NormConfig, "eps", ["1e-6"]), read_words(NormConfig, "final", ["None"])
        (1e-06, None)
    """
    parts = _alternatives(field_types(cls)[name])
    return _value(parts, [part for part in parts if typing.get_origin(part) is tuple], words)


@_REGISTRY.struct_rule
def _fields_of(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Returns the fields of a configuration; None for other types."""
    if not (isinstance(info.type, type) and issubclass(info.type, Configuration)):
        return None
    cls: Any = info.type
    kinds, texts, fields = field_types(cls), field_help(cls), []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        limits = range_of(cls, field.name)
        text = f"{texts[field.name]} ({limits})" if limits else texts[field.name]
        reader = _with_reader(kinds[field.name], field.name)
        if (names := own_flag(cls, field.name)) != Flag():
            aliases = [f"--{name}" for name in names.also]
            flag = tyro.conf.arg(
                name=names.name, prefix_name=names.name is None, aliases=aliases or None
            )
            reader = Annotated[reader, flag]
        fields.append(
            StructFieldSpec(field.name, reader, _default(info, field), text.strip() or None)
        )

    def make(**values: Any) -> Any:
        check_fields(cls, values)  # before types are checked, as in tests
        return cls(**values)

    make.__doc__ = cls.__doc__
    return StructConstructorSpec(make, tuple(fields))


def _default(info: StructTypeInfo, field: "dataclasses.Field[Any]") -> Any:
    """Returns the value of an absent flag; tyro's marker if the flag is required."""
    if isinstance(info.default, info.type):
        return getattr(info.default, field.name)
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return tyro.MISSING


def _with_reader(kind: Any, name: str) -> Any:
    """Returns a field's type with a parser of words; switches and groups are unchanged."""
    plain, marks = kind, ()
    if typing.get_origin(kind) is Annotated:
        plain, *rest = typing.get_args(kind)
        marks = tuple(rest)
    parts = _alternatives(plain)
    if plain is bool or any(map(dataclasses.is_dataclass, parts)):
        return kind
    lists = [part for part in parts if typing.get_origin(part) is tuple]
    choices = any(typing.get_origin(part) is Literal for part in parts)
    named = _POSITIONAL in marks and not choices
    reader = PrimitiveConstructorSpec(
        nargs="*" if lists else 1,
        metavar=_placeholder(name, bool(lists)) if named else _metavar(parts, lists),
        instance_from_str=lambda words: _value(parts, lists, words),
        is_instance=lambda value: True,
        str_from_instance=lambda value: (
            [str(one) for one in value] if isinstance(value, tuple) else [str(value)]
        ),
    )
    return Annotated[(Any, reader, *marks)]


def _alternatives(kind: Any) -> list[Any]:
    """Returns the types of a union, without their ranges."""
    if (registry := registry_of(kind)) is not None:
        return [registry.choices()]
    if typing.get_origin(kind) is Annotated:
        return _alternatives(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [one for part in typing.get_args(kind) for one in _alternatives(part)]
    return [kind]


def _items(kind: Any, number: int) -> list[list[Any]]:
    """Returns the alternative types of each item of a tuple."""
    parts = typing.get_args(kind)
    if parts[1:] == (...,):
        return [_alternatives(parts[0])] * number
    return [_alternatives(parts[min(i, len(parts) - 1)]) for i in range(number)]


def _value(parts: Sequence[Any], lists: Sequence[Any], words: Sequence[str]) -> Any:
    if not lists or (words == ["None"] and types.NoneType in parts):
        return _scalar(parts, words[0])
    kinds = _items(lists[0], len(words))
    return tuple(_scalar(each, word) for each, word in zip(kinds, words, strict=True))


def _scalar(parts: Sequence[Any], word: str) -> Any:
    """Converts the word to the first type that fits; returns the word itself if none fits."""
    for part in parts:
        if part is types.NoneType and word == "None":
            return None
        for choice in typing.get_args(part) if typing.get_origin(part) is Literal else ():
            if str(choice) == word:
                return choice
        if part is bool and word in ("True", "False"):
            return word == "True"
    for part in parts:
        if part in (int, float):
            try:
                return part(word)
            except ValueError:
                continue
        if part is Path and word.strip():  # Path("") would be the working directory
            return Path(word)
    return word


def _placeholder(name: str, several: bool) -> str:
    """Returns the placeholder of a positional argument, which is its name.

    Example:
        >>> _placeholder("run", False), _placeholder("texts", True)
        ('RUN', 'TEXT [TEXT ...]')
    """
    word = name.upper()
    if not several:
        return word
    word = word.removesuffix("S")
    return f"{word} [{word} ...]"


def _metavar(parts: Sequence[Any], lists: Sequence[Any]) -> str:
    def named(part: Any) -> str:
        if part is types.NoneType:
            return "{None}"
        if typing.get_origin(part) is Literal:
            return f"{{{','.join(map(str, typing.get_args(part)))}}}"
        return _METAVARS.get(part, "STR")

    of = lambda kinds: "|".join(dict.fromkeys(map(named, kinds)))
    if not lists:
        return of(sorted(parts, key=lambda part: part is not types.NoneType))
    items = typing.get_args(lists[0])
    one = of(_alternatives(items[0]))
    several = f"[{one} [{one} ...]]"
    if items[1:] != (...,):
        several = " ".join(of(_alternatives(item)) for item in items)
    return f"{{None}}|{several}" if types.NoneType in parts else several


def _flag(kind: Any, path: str, arguments: Sequence[str]) -> str:
    """Returns the flag of a field; if several share a path, the one in ``arguments``."""
    if path.startswith("--"):
        places = [field.name for field in dataclasses.fields(kind) if positional(field)]
        return next((name for name in places if path == f"--{name.replace('_', '-')}"), path)
    known = {flag: f".{flag}".replace("-", "_") for flag in flags_of(kind)}
    flags = [flag for flag, name in known.items() if name.endswith(f".{path}")]
    flags = flags or [flag for flag, name in known.items() if path.endswith(name)]
    words = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    names = [f"--{flag}" for flag in flags if f"--{flag}" in words] or [f"--{f}" for f in flags]
    return names[0] if names else path
