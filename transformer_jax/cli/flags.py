"""Flags of commands, from the fields of dataclasses: names, parsing, refusals.

A field of a :class:`.Configuration` has a flag with its comment, range and choices. Words pass
through :func:`check_flags`, which suggests the nearest flag for an unknown one, and :func:`parse`.
"""

import contextlib
import dataclasses
import difflib
import functools
import io
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from transformer_jax.cli.process import as_help
from transformer_jax.core.config_fields import (
    Configuration,
    FieldError,
    Flag,
    check_fields,
    field_help,
    field_types,
    range_of,
    registry_of,
)
from transformer_jax.core.errors import ConfigError

__all__ = [
    "check_flags",
    "flag_of",
    "flag_types",
    "flags_of",
    "merge_repeated_flags",
    "own_flag",
    "parse",
    "positional",
    "read_words",
    "refuse_flags",
]

T = TypeVar("T")

_REGISTRY = ConstructorRegistry()
_POSITIONAL = typing.get_args(tyro.conf.Positional[int])[-1]
_METAVARS = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH", bool: "{True,False}"}


# --- Names ----------------------------------------------------------------------------------------


def positional(field: "dataclasses.Field[Any]") -> bool:
    """Returns whether a field of a command is a positional argument."""
    return _POSITIONAL in typing.get_args(field.type)


def flags_of(kind: type, prefix: str = "") -> list[str]:
    """Returns the flags of a dataclass without dashes; flags of nested dataclasses are dotted.

    Example:
        >>> from transformer_jax.models.config import ComputeConfig
        >>> flags_of(ComputeConfig)[:5]
        ['dtype', 'scan-layers', 'no-scan-layers', 'remat', 'no-remat']
    """
    found: list[str] = []
    for flag, hint in flag_types(kind, prefix):
        found.append(flag)
        if hint is bool:
            path, _, name = flag.rpartition(".")
            found.append(f"{path}.no-{name}" if path else f"no-{name}")
    return found


def flag_of(kind: type, name: str, prefix: str = "") -> str:
    """Returns the flag of a field without dashes.

    Args:
        kind: The dataclass.
        name: The field.
        prefix: The groups around it, each with a dot.
    """
    return own_flag(kind, name).name or prefix + name.replace("_", "-")


def own_flag(kind: type, name: str) -> Flag:
    """Returns the ``Flag`` that a field declares.

    Args:
        kind: The dataclass.
        name: The field.
    """
    parts = typing.get_args(field_types(kind)[name])
    return next((part for part in parts if isinstance(part, Flag)), Flag())


@functools.cache
def flag_types(kind: type, prefix: str = "") -> tuple[tuple[str, Any], ...]:
    """Returns the flags of a dataclass and of nested ones, without dashes, with types of values."""
    return tuple(_flag_types(kind, prefix))


def _flag_types(kind: type, prefix: str) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if positional(field):
            continue
        flag, hint = flag_of(kind, field.name, prefix), hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _flag_types(typing.cast(type, hint), f"{flag}.")
        else:
            yield flag, hint
            yield from ((other, hint) for other in own_flag(kind, field.name).also)


# --- Unknown flags ----------------------------------------------------------------------------


def check_flags(
    command: str,
    allowed: Iterable[str],
    arguments: Sequence[str],
    see: str,
    elsewhere: Callable[[str], str] = lambda flag: "",
) -> None:
    """Refuses flags that a command does not have.

    Args:
        command: Name of the command for the message.
        allowed: Flags without their dashes.
        arguments: The arguments on the command line.
        see: The command that shows all flags.
        elsewhere: Function from a flag to what has it instead, or to nothing.

    Raises:
        ConfigError: A flag is unknown; the message suggests the nearest.

    Example:
        >>> check_flags("score", ["num-beams"], ["--num-beam", "4"], "transformer-jax score")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: score has no flag --num-beam: did you mean ...

        >>> check_flags("train", ["data.valid.source"], ["--data.valid", "a"], "transformer-jax")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: train has no flag --data.valid: there are ...
    """
    known = ["help", *allowed]
    # Arguments after a lone -- are positional.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for argument in arguments[:end]:
        flag = argument[2:].partition("=")[0].replace("_", "-")
        if not argument.startswith("--") or not flag or flag in known:
            continue
        near = " or ".join(f"--{one}" for one in nearest_flags(flag, known))
        if group := [f"--{name}" for name in known if name.startswith(f"{flag}.")]:
            hint = f": there are {', '.join(group)}"
        elif other := elsewhere(flag):
            hint = f", which is for {other}"
        else:
            hint = f": did you mean {near}?" if near else ""
        raise ConfigError(f"{command} has no flag --{flag}{hint} (see {see} --help)")


# Names of settings in other libraries, and the last names of flags that have this meaning here.
_ELSEWHERE = {
    "batch-size": "max-tokens",
    "per-device-train-batch-size": "max-tokens",
    "lr": "learning-rate",
    "num-train-epochs": "epochs",
    "max-steps": "steps",
    "max-seq-length": "max-length",
    "model-name-or-path": "init-from",
}


def nearest_flags(flag: str, known: Sequence[str]) -> list[str]:
    """Returns the known flags that an unknown one may stand for, at most two.

    Flags with the same last name come first, in the order of ``known``, then a flag that is spelled
    nearly the same, then flags of which one last name begins with the other, then the flag that is
    spelled most alike.

    Example:
        >>> known = ["model.dropout", "data.read.text", "training.seed", "mesh.context"]
        >>> nearest_flags("text", known), nearest_flags("seeds", known), nearest_flags("x", known)
        (['data.read.text'], ['training.seed'], [])
    """
    last = lambda one: one.rpartition(".")[2]
    word = last(flag)
    if all(last(one) != word for one in known):
        word = _ELSEWHERE.get(word, word)
    close = difflib.get_close_matches(flag, known, 1, 0.8)
    for fits in (
        lambda one: last(one) == word,
        lambda one: one in close,
        lambda one: last(one).startswith(f"{word}-"),
        lambda one: word.startswith(f"{last(one)}-"),
    ):
        if alike := [one for one in known if fits(one)]:
            group = flag.rpartition(".")[0]
            return [one for one in alike if group and one.startswith(group)][:1] or alike[:2]
    by_name = {last(one): one for one in reversed(known)}
    near = [by_name[one] for one in difflib.get_close_matches(word, by_name, 1, 0.6)]
    return near or difflib.get_close_matches(flag, known, 1, 0.5)


def refuse_flags(command: Any, allowed: Sequence[str]) -> None:
    """Refuses flags that do not go with ``--generation-config hf``.

    Raises:
        ConfigError: It names the flag.
    """
    for field in dataclasses.fields(command):
        if field.name in (*allowed, "run", "generation_config", "allow_changed_config"):
            continue
        if getattr(command, field.name) != field.default:
            flag = field.name.replace("_", "-")
            said = ", ".join(f"--{name.replace('_', '-')}" for name in allowed if name != "prompt")
            raise ConfigError(
                f"--{flag} does not go with --generation-config hf, which takes {said}"
            )


# --- Words to values --------------------------------------------------------------------------


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
    words = merge_repeated_flags(kind, arguments)
    how: dict[str, Any] = {} if default is None else {"default": default}
    read = lambda: tyro.cli(
        kind, prog=program, args=words, description=description, registry=_REGISTRY, **how
    )
    try:
        values = _in_one_line(read, program)
    except FieldError as error:
        raise ConfigError(f"{_flag(kind, error.path, arguments)} {error.fault}") from None
    check_sizes(values)
    return values


def merge_repeated_flags(kind: type, arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with repeated flags of several values merged into one.

    Otherwise only the last occurrence would count. Merged flags come last, before a lone ``--``.

    Args:
        kind: The dataclass of the command; flags of nested dataclasses are dotted.
        arguments: The arguments on the command line.

    Example:
        >>> kind = dataclasses.make_dataclass("Ask", [("stop", tuple[str, ...]), ("seed", int)])
        >>> merge_repeated_flags(kind, ["run", "--stop", "a", "b", "--seed", "1", "--stop=c"])
        ['run', '--seed', '1', '--stop', 'a', 'b', 'c']
    """
    # For a flag with a fixed number of values, the last occurrence counts.
    several = {
        flag
        for flag, hint in flag_types(kind)
        if any(typing.get_args(one)[-1:] == (...,) for one in (hint, *typing.get_args(hint)))
    }
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept: list[str] = []
    found: dict[str, list[list[str]]] = {}
    open_flag: list[str] | None = None  # the values of the current flag
    for argument in arguments[:end]:
        name, equals, value = argument.partition("=")
        flag = name[2:].replace("_", "-") if name.startswith("--") else ""
        if flag in several:
            values = [value] if equals else []
            found.setdefault(flag, []).append(values)
            open_flag = None if equals else values
        elif open_flag is not None and not argument.startswith("--"):
            open_flag.append(argument)
        else:
            open_flag = None
            kept.append(argument)
    if all(len(times) == 1 for times in found.values()):
        return list(arguments)
    for flag, times in found.items():
        kept += [f"--{flag}", *(value for values in times for value in values)]
    return [*kept, *arguments[end:]]


def _in_one_line(parse: Callable[[], T], see: str) -> T:
    """Returns the result of ``parse``; reduces an error message that it prints to one line.

    Args:
        parse: A parser that prints a framed message and raises ``SystemExit``, as tyro does.
        see: The command that shows all flags.

    Raises:
        ConfigError: A flag or a value is invalid.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), as_help():
            return parse()
    except SystemExit as end:
        if not end.code:
            raise
        raise ConfigError(_one_line(complaint.getvalue(), see)) from None


def _one_line(box: str, see: str) -> str:
    """Returns the text of a framed message up to its first rule, as one line."""
    words: list[str] = []
    for line in box.splitlines():
        text = line.strip().strip("│╭╮╰╯─ ")
        if words and set(line.strip()) <= set("│╭╮╰╯─ "):
            break
        words.append(text + ":" if line.startswith("╭") and text else text)
    if words[1:] and words[0] and words[1].startswith(words[0]):  # repeats the frame's title
        del words[0]
    return f"{_plain(' '.join(word for word in words if word))} (see {see} --help)"


def _plain(complaint: str) -> str:
    """Returns the complaint of the parser as one sentence.

    Example:
        >>> _plain("Required options: Missing from export: PATH Output folder. (required)")
        'export needs PATH (Output folder)'
        >>> _plain("Missing argument: Missing value for argument '--output'. Expected 1 values.")
        '--output needs a value'
    """
    if missing := re.fullmatch(r"Required options: Missing from (.+?): (.+)", complaint):
        parts = missing[2].removesuffix(" (required)").split(" (required) ")
        form = r"^((?:--\S+ )?(?:{.*?}|\S+)) (.+?)\.?$"  # flag and kind of value, then help
        named = [re.sub(form, r"\1 (\2)", part) for part in parts]
        return f"{missing[1]} needs {' and '.join(named)}"
    if value := re.search(r"Missing value for argument '(.+?)'. Expected (\S+) values", complaint):
        return f"{value[1]} needs {'a value' if value[2] == '1' else f'{value[2]} values'}"
    if loose := re.fullmatch(r"Unrecognized options: (.+)", complaint):
        return (
            f"no flag stands before {loose[1]}: name the flag, and put quotes around a text of "
            f"several words"
        )
    return complaint


# Larger than any use needs, and too small to exhaust memory.
_MOST = {
    "batch_size": 65_536,
    "buffer_size": 10_000_000,
    "context": 1_000_000,
    "length_penalty": 100.0,
    "max_len_a": 10_000.0,
    "max_len_b": 1_000_000,
    "max_new_tokens": 1_000_000,
    "num_beams": 1_000,
    "num_return_sequences": 10_000,
    "prompt_lookup_num_tokens": 1_000,
    "repetition_penalty": 1e6,
    "seed": 2**63 - 1,
    "temperature": 1e6,
}
_LARGEST = 2**31 - 1
_SHOWN = 40  # digits


def check_sizes(values: Any, group: str = "") -> None:
    """Refuses numbers that no command can use: too large for memory, or not finite.

    Args:
        values: A dataclass with a field for each flag, or for a group of flags.
        group: Prefix of the names of the flags.

    Raises:
        ConfigError: It names the flag.
    """
    for field in dataclasses.fields(values):
        value, flag = getattr(values, field.name), flag_of(type(values), field.name, group)
        if dataclasses.is_dataclass(value):
            check_sizes(value, f"{flag}.")
            continue
        # Training has groups of flags, and allows larger values than other commands.
        most = _MOST.get("" if group and field.name != "seed" else field.name, _LARGEST)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                _check_number(field.name if positional(field) else f"--{flag}", number, most)


def _check_number(shown: str, value: int | float, most: int | float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{shown} is {value}: a finite number is needed")
    if abs(value) > most:
        digits = str(value)
        if len(digits) > _SHOWN:
            digits = f"a number of {len(digits.lstrip('-'))} digits"
        raise ConfigError(f"{shown} is {digits}: at most {most:,} is possible")


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
    kinds, fields = field_types(cls), []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        reader = _with_reader(kinds[field.name], field.name)
        if (names := own_flag(cls, field.name)) != Flag():
            aliases = [f"--{name}" for name in names.also]
            flag = tyro.conf.arg(
                name=names.name, prefix_name=names.name is None, aliases=aliases or None
            )
            reader = Annotated[reader, flag]
        text = functools.partial(_help, cls, field)
        fields.append(StructFieldSpec(field.name, reader, _default(info, field), text))

    def make(**values: Any) -> Any:
        check_fields(cls, values)  # before types are checked, as in tests
        return cls(**values)

    make.__doc__ = cls.__doc__
    return StructConstructorSpec(make, tuple(fields))


def _help(cls: type, field: "dataclasses.Field[Any]") -> str | None:
    """Returns the help of a field; it is read from source code, and so only when it is shown."""
    text = field_help(cls, field.name)
    limits = "" if "help" in field.metadata else range_of(cls, field.name)
    return (f"{text} ({limits})" if limits else text).strip() or None


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
    return Annotated[(object, reader, *marks)]  # tyro checks it, unlike Any, without typeguard


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
