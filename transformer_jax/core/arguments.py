"""Arguments of public functions, checked against their annotations."""

import collections.abc
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np

from transformer_jax.core.config_fields import field_problem
from transformer_jax.core.errors import ArgumentError

__all__ = ["Function", "check_values", "checked_arguments", "with_check"]

Function = TypeVar("Function", bound=Callable[..., object])

_UNIONS = (typing.Union, types.UnionType)
# Names of the dtypes of jaxtyping, the kinds of NumPy dtypes that they admit, and their name.
_DTYPES = (
    ("float", "fV", " of floating-point numbers"),
    ("int", "iu", " of whole numbers"),
    ("bool", "b", " of True and False"),
)


def checked_arguments(function: Function) -> Function:
    """Decorator: refuses arguments that their annotations do not admit.

    Numbers, choices, text, truth values, configurations, functions, other classes, and the kinds
    and ranks of arrays are checked. Any other annotation admits everything.

    Raises:
        ArgumentError: On a call; the message names the argument, and what is needed.

    Example:
        >>> @checked_arguments
        ... def halves(count: int, how: Literal["up", "down"] = "up") -> int:
        ...     return count // 2
        >>> halves(4)
        2
    """
    where = f"{_name(function)}: "
    return with_check(function, lambda given: check_values(where, _hints(function), given))


def with_check(function: Function, check: Callable[[dict[str, Any]], None]) -> Function:
    """Returns the function with a check of its arguments before each call.

    Args:
        function: Any function.
        check: Takes the arguments of a call by name; it refuses them, or puts others in place.

    Example:
        >>> with_check(lambda count: 2 * count, lambda given: given.update(count=1))("many")
        2
    """
    signature = inspect.signature(function)

    def checked(*args: object, **kwargs: object) -> object:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # which reports the error
        check(bound.arguments)
        return function(*bound.args, **bound.kwargs)

    return typing.cast(Function, functools.update_wrapper(checked, function))


def check_values(where: str, hints: Mapping[str, object], values: Mapping[str, object]) -> None:
    """Refuses values that their types do not admit.

    Args:
        where: The beginning of the message.
        hints: Types by name.
        values: Values by name; a value without a type is not checked.

    Raises:
        ArgumentError: The message names the value, and what is needed.

    Example:
        >>> check_values("halves: ", {"count": int}, {"count": 4.5})
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: halves: count is 4.5: a whole number is needed
    """
    for name, value in values.items():
        if name in hints and (needed := _refusal(value, hints[name])) is not None:
            raise ArgumentError(f"{where}{name} is {_shown(value)}: {needed}")


def _name(function: Callable[..., object]) -> str:
    """Returns the name for messages: ``Trainer.fit``, but not the function that a name is in."""
    return function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")


@functools.cache
def _hints(function: Callable[..., object]) -> dict[str, object]:
    """Returns the types of arguments, without the types that are only known to type checkers."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError:
        hints = dict(inspect.get_annotations(function))
    kinds = inspect.signature(function).parameters
    single = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    named = {name: hint for name, hint in hints.items() if name in kinds}
    return {name: hint for name, hint in named.items() if kinds[name].kind in single}


def _refusal(value: object, kind: object) -> str | None:
    """Returns what is needed instead of a value; None if its type admits it."""
    if kind in (Any, object):
        return None
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    plain = all(map(_is_plain, parts)) if origin in _UNIONS else _is_plain(kind)
    if plain:
        number = _as_python(value)
        refused = None if number is NotImplemented else field_problem(number, kind)
        return None if refused is None else str(refused)
    if origin in _UNIONS:
        found = [_refusal(value, part) for part in parts]
        return None if None in found else _alternatives(found)
    if hasattr(kind, "dim_str"):
        return _array_refusal(value, kind)
    if origin is collections.abc.Callable or _is_signature(kind):
        return None if callable(value) else "a function is needed"
    if origin is collections.abc.Sequence:
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        return None if is_list or getattr(value, "ndim", 0) > 0 else "a list is needed"
    if origin is collections.abc.Mapping:
        return None if isinstance(value, Mapping) else "a dictionary is needed"
    own = origin or kind
    if isinstance(own, type) and _is_checked(own):
        return None if isinstance(value, own) else f"{_article(own.__name__)} is needed"
    return None


def _is_plain(kind: object) -> bool:
    """Returns whether :func:`.field_problem` knows a type."""
    known = typing.get_origin(kind) in (Annotated, Literal, tuple)
    return known or kind in (int, float, bool, str, types.NoneType)


def _alternatives(needed: list[str | None]) -> str:
    """Joins alternatives: "a whole number is needed", "None is needed"."""
    end = " is needed"
    said = list(dict.fromkeys(one for one in needed if one is not None))
    plain = [one.removesuffix(end) for one in said]
    return " or ".join(plain) + (end if said[-1].endswith(end) else "")


def _as_python(value: object) -> object:
    """Returns a number of NumPy or JAX as one of Python; NotImplemented if its value is unknown."""
    if getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return NotImplemented if _is_symbolic(value) else value
    try:
        return value.item()
    except TypeError:  # a tracer, whose value is unknown
        return NotImplemented


def _is_symbolic(value: Any) -> bool:
    """Returns whether a value is a size of a symbolic shape: a whole number that is not known."""
    if not type(value).__module__.startswith("jax"):
        return False
    from jax import export

    return bool(export.is_symbolic_dim(value))


def _array_refusal(value: Any, kind: Any) -> str | None:
    """Returns which array is needed, by the annotation of jaxtyping."""
    dims = kind.dim_str.split()
    kinds, of = _allowed_dtypes(kind.dtypes)
    needed = f"an array{of} [{kind.dim_str.strip()}] is needed" if dims else "a scalar is needed"
    if isinstance(value, numbers.Number) and not dims:
        value = np.asarray(value)
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return needed
    several = [dim for dim in dims if dim.startswith("*") or dim == "..."]
    rank, least = len(value.shape), len(dims) - len(several)
    if rank < least or (rank > least and not several):
        return needed
    known = isinstance(value.dtype, np.dtype) and bool(kinds)  # keys and torch have other dtypes
    return needed if known and value.dtype.kind not in kinds else None


def _allowed_dtypes(dtypes: object) -> tuple[str, str]:
    """Returns the kinds of NumPy dtypes that an annotation admits, and their name; "" for any."""
    if not isinstance(dtypes, list | tuple):
        return "", ""
    names = {str(dtype).rstrip("0123456789_") for dtype in dtypes}
    for name, kinds, of in _DTYPES:
        if name in names:
            return kinds, of
    return "", ""


def _is_checked(kind: type) -> bool:
    """Returns whether ``isinstance`` works: not for protocols that are for type checkers alone."""
    return not getattr(kind, "_is_protocol", False) or getattr(kind, "_is_runtime_protocol", False)


def _is_signature(kind: object) -> bool:
    """Returns whether a protocol describes functions."""
    return getattr(kind, "_is_protocol", False) and "__call__" in vars(kind)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _shown(value: object, most: int = 60) -> str:
    if isinstance(value, bool | int | float | str | types.NoneType | list | tuple):
        text = repr(value)
        return text if len(text) <= most else f"{text[: most - 3]}..."
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of {value.dtype} {list(value.shape)}"
    return _article(type(value).__name__)
