"""Choices, ranges and help of settings, declared with their fields and checked on creation.

A field's type declares its values: ``Literal`` its choices, ``Annotated[int, Range(1)]`` its range.
A dataclass that derives from :class:`Configuration` refuses anything else when it is made, whether
from Python, flags or JSON. Relations between fields are checked by the dataclass itself.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import io
import itertools
import math
import numbers
import os
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.old_names import VALUES

__all__ = [
    "Amount",
    "Configuration",
    "Count",
    "FieldError",
    "FieldProblem",
    "Flag",
    "Fraction",
    "Local",
    "NotNegative",
    "OutputPath",
    "Positive",
    "Range",
    "Rate",
    "Registered",
    "Seed",
    "Share",
    "UnregisteredError",
    "check_fields",
    "field_help",
    "field_problem",
    "field_types",
    "nearest",
    "range_of",
    "registry_of",
]


_FAR = 99_999  # larger bounds only protect memory and arithmetic


@dataclasses.dataclass(frozen=True)
class Range:
    """The range of a number; None is no bound. To allow infinity, set ``most=math.inf``.

    Example:
        >>> [Range(0, below=1).refusal(value) for value in (0.0, 0.5, 1.0)]
        [None, None, 'allowed are 0 up to, not including, 1']
    """

    least: int | float | None = None
    most: int | float | None = None
    above: int | float | None = None
    below: int | float | None = None

    def refusal(self, value: Any) -> str | None:
        """Returns what is allowed, if a value is out of range; otherwise None."""
        inside = (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )
        if inside and (math.isfinite(value) or self.most == math.inf):
            return None
        if inside:
            return "a finite number is needed"
        if self.above is not None:
            ends = f" and below {self.below:g}" if self.below is not None else ""
            if self.most is not None and self.most <= _FAR:
                ends += f" and at most {self.most:g}"
            return f"above {self.above:g}{ends}"
        if self.below is not None:
            return f"allowed are {self.least or 0:g} up to, not including, {self.below:g}"
        if self.most is not None and value > self.most:
            return f"at most {self.most}"
        return f"at least {self.least}"

    def __str__(self) -> str:
        """Returns what is allowed, for help; bounds far beyond any use are left out.

        Example:
            >>> str(Range(1, 64)), str(Range(above=0)), str(Range(0, below=1)), str(Range(1, 2**30))
            ('1 to 64', 'above 0', '0 up to, not including, 1', 'at least 1')
        """
        most = None if self.most is None or self.most > _FAR else f"{self.most:g}"
        if self.above is not None:
            least = f"above {self.above:g}"
            ends = f", at most {most}" if most else ""
            return f"{least} and below {self.below:g}" if self.below is not None else least + ends
        if self.below is not None:
            return f"{self.least or 0:g} up to, not including, {self.below:g}"
        if self.least is None:
            return f"at most {most}" if most else ""
        return f"{self.least:g} to {most}" if most else f"at least {self.least:g}"


@dataclasses.dataclass(frozen=True)
class Flag:
    """The flag of a field, if it belongs to a setting elsewhere."""

    name: str | None = None  # None derives it from the field's name and group
    also: tuple[str, ...] = ()  # further flags of the field


@dataclasses.dataclass(frozen=True)
class Local:
    """Marks a path written on this machine: a URL of an object store is refused."""

    def refusal(self, value: object) -> str | None:
        """Returns the advice for a URL; None for a path."""
        if re.match(r"[a-z][a-z0-9+.-]+:/", str(value)) is None:
            return None
        return "this command writes local files: name one, and copy it to the object store"


@dataclasses.dataclass(frozen=True, eq=False)
class Registered:
    """Marks a text as a name in a registry, which may grow while a program runs.

    ``advice`` ends the message for a name that is not in it, and is like none that is.
    """

    names: Mapping[str, object]
    advice: str

    def choices(self) -> object:
        """Returns the type of the names that are registered now."""
        return Literal[tuple(self.names)]

    def problem(self, value: object) -> "FieldProblem | None":
        """Returns why a value is no name in the registry; None if it is one.

        Example:
            >>> Registered({"a": 1, "b": 2}, "register it").problem("c")
            FieldProblem(allowed='allowed are a, b; register it', kind=False)
        """
        unknown = field_problem(value, self.choices())
        if unknown is None or "did you mean" in unknown.allowed:
            return unknown
        return FieldProblem(f"{unknown.allowed}; {self.advice}", False)


Count = Annotated[int, Range(1)]
Amount = Annotated[int, Range(0)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(0)]
Rate = Annotated[float, Range(0, below=1)]
Share = Annotated[float, Range(0, 1)]
Fraction = Annotated[float, Range(above=0, most=1)]
Seed = Annotated[int, Range(0, 2**63 - 1)]
OutputPath = Annotated[Path, Local()]


class FieldProblem(NamedTuple):
    """The reason why a field does not admit a value.

    Attributes:
        allowed: What is allowed.
        kind: Whether the value's type is wrong too.
    """

    allowed: str
    kind: bool

    def __str__(self) -> str:
        """The end of a message."""
        return f"{self.allowed} is needed" if self.kind else self.allowed


def field_problem(value: object, kind: object, none: str = "None") -> FieldProblem | None:
    """Returns why a type does not admit a value; None if it does.

    Only choices, numbers, text, booleans, tuples and dataclasses are checked; other types admit
    anything.

    Args:
        value: The value.
        kind: The type of a field, with its ranges.
        none: The name of None.

    Example:
        >>> [str(field_problem(value, Count | None)) for value in (0, "1", None)]
        ['at least 1, or None', 'a whole number or None is needed', 'None']
        >>> str(field_problem("cosin", Literal["linear", "cosine"]))
        'allowed are linear, cosine; did you mean cosine?'
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        if (registry := registry_of(kind)) is not None:
            return registry.problem(value)
        found = field_problem(value, parts[0], none)
        if found is None or (isinstance(value, float) and not math.isfinite(value)):
            rules = [part for part in parts[1:] if isinstance(part, Range | Local)]
            refused = [said for one in rules if (said := one.refusal(value)) is not None]
            endless = isinstance(value, float) and math.isinf(value) and bool(rules)
            return FieldProblem(refused[0], False) if refused else None if endless else found
        return found
    if origin in (typing.Union, types.UnionType):
        return _problem_of_all(value, parts, none)
    if origin is Literal:
        if any(type(value) is type(part) and value == part for part in parts):
            return None
        return FieldProblem(
            f"allowed are {', '.join(map(str, parts))}{nearest(value, parts)}", False
        )
    if origin is tuple:
        return _problem_of_tuple(value, parts, none)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return (
            None if isinstance(value, kind) else FieldProblem(f"an object ({kind.__name__})", True)
        )
    if kind is int and type(value) is int and not -(2**63) <= value < 2**63:
        return FieldProblem(f"at most {2**63 - 1}" if value > 0 else f"at least {-(2**63)}", False)
    for known, fits, name in _KINDS:
        if kind is known:
            if not fits(value):
                return FieldProblem(name.format(none=none), True)
            if known is float and (bound := _float_bound(value)) is not None:
                return FieldProblem(bound, False)
            fault = _fault_of_text(value) if known in (str, Path) else None
            return None if fault is None else FieldProblem(fault, False)
    return None


def registry_of(kind: object) -> Registered | None:
    """Returns the registry of a field's type, if it has one."""
    marks = typing.get_args(kind)[1:] if typing.get_origin(kind) is Annotated else ()
    return next((mark for mark in marks if isinstance(mark, Registered)), None)


def nearest(value: object, choices: Iterable[object], path: str = "") -> str:
    """Returns a question that suggests the most similar choice; empty if none is similar.

    Args:
        value: The given value.
        choices: The allowed values.
        path: The setting, whose values may have had other names in earlier versions.

    Example:
        >>> nearest("bf16", ["float32", "bfloat16"]), nearest("x", ["float32"])
        ('; did you mean bfloat16?', '')
    """
    names = {str(choice).lower(): str(choice) for choice in choices}
    earlier = VALUES.get(f"model.{path}", {}).get(value) if isinstance(value, str) else None
    if earlier is not None:
        return f"; did you mean {earlier}?"
    given = str(value).lower()
    near = [name for name in names if len(given) > 2 and name.startswith(given)]
    near = near or difflib.get_close_matches(given, names, 1, 0.5)
    return f"; did you mean {names[near[0]]}?" if near else ""


class FieldError(ConfigError):
    """A value that its field does not admit.

    Attributes:
        path: The field with the groups known to its class, such as ``norm.placement``.
        fault: The value, and what is allowed.
    """

    def __init__(self, path: str, fault: str):
        super().__init__(f"{path} {fault}")
        self.path, self.fault = path, fault


class UnregisteredError(FieldError):
    """A name that is in no registry yet: see :class:`Registered`."""


class Configuration:
    """A base of configuration dataclasses, whose fields are checked on creation.

    A subclass names its group, ``class NormConfig(Configuration, group="norm")``, which messages
    put before the name of a field; ``group="--"`` names flags. A subclass with its own
    ``__post_init__`` calls the base's first.
    """

    group: ClassVar[str] = ""

    def __init_subclass__(cls, group: str | None = None, **more: object) -> None:
        super().__init_subclass__(**more)
        if group is not None:
            cls.group = group

    def __post_init__(self) -> None:
        """Refuses a value that its field does not admit; a list becomes a tuple.

        Raises:
            FieldError: Names the field, its value and what is allowed.
        """
        cls: Any = type(self)
        for name, kind in field_types(cls).items():
            if isinstance(value := getattr(self, name), list) and _holds_tuples(kind):
                object.__setattr__(self, name, tuple(value))
        check_fields(cls, {name: getattr(self, name) for name in field_types(cls)})


def check_fields(cls: Any, values: Mapping[str, object], none: str = "None") -> None:
    """Refuses values that the fields of a configuration do not admit.

    Args:
        cls: A subclass of ``Configuration``.
        values: Values by the name of their field.
        none: The name of None, ``null`` in JSON.

    Raises:
        FieldError: Names the field, its value and what is allowed.

    Example:
        >>> from transformer_jax.models.config import NormConfig
        >>> check_fields(NormConfig, {"placement": "prenorm"})
        Traceback (most recent call last):
        ...
        transformer_jax.core.config_fields.FieldError: norm.placement is prenorm: allowed are ...
    """
    usual = _fitting_defaults(cls)
    for name, value in values.items():
        if value is usual.get(name, dataclasses.MISSING):
            continue
        if (found := field_problem(value, field_types(cls)[name], none)) is not None:
            path = _path(cls, name)
            hint = "" if "did you mean" in found.allowed else nearest(value, (), path)
            shown = repr(value)[:80] if found.kind else _shown(value)
            kind = UnregisteredError if registry_of(field_types(cls)[name]) else FieldError
            raise kind(path, f"is {shown}: {found}{hint}")


@functools.cache
def field_types(cls: type) -> dict[str, object]:
    """Returns the types of a dataclass's fields, with their ranges, by name."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@functools.cache
def _fitting_defaults(cls: type) -> dict[str, object]:
    """Returns the defaults that their fields admit, so that each is checked only once."""
    usual = {field.name: field.default for field in dataclasses.fields(cls)}
    fits = lambda name: field_problem(usual[name], field_types(cls)[name]) is None
    return {name: default for name, default in usual.items() if fits(name)}


def _path(cls: Any, name: str) -> str:
    if cls.group != "--":
        return f"{cls.group}.{name}" if cls.group else name
    flags = (part for part in typing.get_args(field_types(cls)[name]) if isinstance(part, Flag))
    return f"--{next((flag.name for flag in flags if flag.name), name.replace('_', '-'))}"


def _shown(value: object, most: int = 80) -> str:
    if isinstance(value, os.PathLike):
        value = re.sub(r"^([a-z][a-z0-9+.-]+):/(?!/)", r"\1://", os.fspath(value))  # a URL
    huge = type(value) is int and abs(value) >= 10**40
    text = f"a number of {len(str(value))} digits" if huge else repr(value)
    if isinstance(value, str) and value.isprintable() and value:
        text = value
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _fault_of_text(value: object) -> str | None:
    """Returns the advice for text that no file, or a path that no file system, can hold."""
    if "\0" in str(value):
        return "text without NUL characters"
    try:
        encoded = os.fsencode(value) if isinstance(value, os.PathLike) else str(value).encode()
    except UnicodeEncodeError:
        return "whole characters: half of one (a lone surrogate) is in it"
    if isinstance(value, os.PathLike):
        if any(len(part) > _LONGEST_NAME for part in encoded.split(os.sep.encode())):
            return f"names of at most {_LONGEST_NAME} bytes in a path"
        if len(encoded) > _LONGEST_PATH:
            return f"a path of at most {_LONGEST_PATH:,} bytes"
    return None


def _float_bound(value: object) -> str | None:
    """Returns the advice for an integer beyond any float, or for infinity."""
    if isinstance(value, int) and abs(value) > 1e308:
        return "at most 1e308" if value > 0 else "at least -1e308"
    endless = isinstance(value, numbers.Real) and math.isinf(value)
    return "a finite number is needed" if endless else None  # a range may allow it


def _problem_of_all(value: object, parts: Sequence[object], none: str) -> FieldProblem | None:
    choices = [part for part in parts if typing.get_origin(part) is Literal]
    named: Any = (
        [Literal[tuple(itertools.chain(*map(typing.get_args, choices)))]] if choices else []
    )
    parts = [*named, *(part for part in parts if part not in choices)]  # choices are named together
    if float in parts:  # any integer is a float too
        parts = [part for part in parts if part is not int]
    found = [field_problem(value, part, none) for part in parts]
    if None in found:
        return None
    wrong = [one for one in found if one is not None]
    ranges = [one.allowed for one in wrong if not one.kind]
    if not ranges:
        return FieldProblem(" or ".join(dict.fromkeys(one.allowed for one in wrong)), True)
    text, question, hint = ranges[-1].partition("; did you mean")
    others = [str(one) for part in choices if len(ranges) > 1 for one in typing.get_args(part)]
    others += [none] if types.NoneType in parts else []
    return FieldProblem(f"{', or '.join([text, *others])}{question}{hint}", False)


def _problem_of_tuple(value: object, parts: Sequence[object], none: str) -> FieldProblem | None:
    if not isinstance(value, tuple):
        return FieldProblem("a list", True)
    each = [parts[0]] * len(value) if parts[1:] == (...,) else list(parts)
    if len(each) != len(value):
        return FieldProblem(f"a list of {len(each)} values", True)
    for one, kind in zip(value, each, strict=True):
        if (found := field_problem(one, kind, none)) is not None:
            return FieldProblem(f"{_shown(one, 32)} in it: {found}", False)
    return None


def _holds_tuples(kind: object) -> bool:
    return typing.get_origin(kind) is tuple or any(map(_holds_tuples, typing.get_args(kind)))


_LONGEST_NAME = 255  # bytes of a part of a path, of common file systems
_LONGEST_PATH = 4095  # bytes

# Types, the classes of their values, and their names.
_KINDS: tuple[tuple[Any, Any, str], ...] = (
    (bool, lambda value: isinstance(value, bool), "true or false"),
    (int, lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    (
        float,  # NaN is not a number
        lambda v: isinstance(v, numbers.Real) and not isinstance(v, bool) and v == v,
        "a number",
    ),
    (str, lambda value: isinstance(value, str | os.PathLike), "text"),
    (Path, lambda value: isinstance(value, os.PathLike), "a path"),
    (types.NoneType, lambda value: value is None, "{none}"),
)


# --- Help: the comments of fields -----------------------------------------------------------------


def field_help(cls: type, name: str) -> str:
    """Returns the help of a field of a dataclass, from its source code.

    It is the text below a field, the comments above it and on its line, its entry in the
    docstring's attributes, or the result of the function in its metadata.

    Args:
        cls: The dataclass.
        name: The field.

    Example:
        >>> from transformer_jax.models.config import AttentionConfig
        >>> field_help(AttentionConfig, "num_kv_heads")
        'Number of key and value heads, K; None is num_heads, fewer is GQA.'
    """
    own: Any = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    [field] = (field for field in dataclasses.fields(cls) if field.name == name)
    return _own_help(own).get(name) or field.metadata.get("help", str)()


def range_of(cls: type, name: str) -> str:
    """Returns a field's range of numbers in words; empty without a range.

    Args:
        cls: The dataclass.
        name: The field.

    Example:
        >>> from transformer_jax.models.config import AttentionConfig
        >>> range_of(AttentionConfig, "num_heads"), range_of(AttentionConfig, "bias")
        ('1 to 16384', '')
    """
    return next((text for one in _ranges(field_types(cls)[name]) if (text := str(one))), "")


def _ranges(kind: object) -> Iterator[Range]:
    for part in typing.get_args(kind):
        if isinstance(part, Range):
            yield part
        else:
            yield from _ranges(part)


@functools.cache
def _own_help(cls: type) -> dict[str, str]:
    """Returns the help of the fields declared by the class itself; empty without source code."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    listed = (ast.get_docstring(tree) or "").partition("Attributes:\n")[2]
    attributes = re.findall(r"^    (\w+): (.+(?:\n     +.+)*)", listed, re.MULTILINE)
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines, help_texts = source.splitlines(), {}
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            help_texts[node.target.id] = " ".join(str(after.value.value).split())
            continue
        first = node.lineno
        while lines[first - 2].lstrip().startswith("#"):
            first -= 1
        assert node.end_lineno is not None
        words = (comments.get(i, "") for i in range(first, node.end_lineno + 1))
        help_texts[node.target.id] = " ".join(
            word for word in words if word not in ("", "fmt: skip")
        )
    texts = {name: " ".join(text.split()).replace("``", "") for name, text in attributes}
    return {name: text or texts.get(name, "") for name, text in help_texts.items()}
