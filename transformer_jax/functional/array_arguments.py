"""Arguments of functions of real arrays: integers are promoted, wrong ranks refused."""

import inspect
import types
import typing

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer_jax.core.arguments import Function, with_check
from transformer_jax.core.errors import ArgumentError, plural

__all__ = ["as_real", "check_bias_dtype", "check_mask", "real_arguments"]


def real_arguments(function: Function) -> Function:
    """Decorator: converts integer and boolean arrays to floats where floats are declared.

    Integer arithmetic would silently give different results: the scale of a score rounds to 0, a
    mean to an integer. Lists of numbers become arrays. An array whose rank differs from its
    annotation is refused, and so are booleans as ``bias``, where a mask is meant.

    Raises:
        ArgumentError: On a call with an array of the wrong rank, or of complex numbers or objects.

    Example:
        >>> from jaxtyping import Array, Float
        >>> @real_arguments
        ... def halves(x: Float[Array, " T"]) -> Float[Array, " T"]:
        ...     return x * jnp.asarray(0.5, x.dtype)
        >>> halves(jnp.array([1, 2]))
        Array([0.5, 1. ], dtype=float32)
        >>> halves(jnp.array([[1, 2]]))
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: halves: x has shape (1, 2): [T] is needed
    """
    parameters = inspect.signature(function).parameters
    declared = {
        name: dims
        for name, parameter in parameters.items()
        if (dims := _dimensions(parameter.annotation)) is not None
    }
    optional = {
        name for name in declared if types.NoneType in typing.get_args(parameters[name].annotation)
    }

    def check(given: dict[str, object]) -> None:
        for name, ranks in declared.items():
            if name not in given or (given[name] is None and name in optional):
                continue
            where = f"{function.__name__}: {name}"
            if name == "bias":
                check_bias_dtype(given[name], where)
            if not _is_number(given[name]):
                given[name] = _checked(given[name], ranks, where)
            elif not _admits_numbers(parameters[name].annotation, ranks):
                raise ArgumentError(f"{where} is {given[name]}: {_needed(ranks)} is needed")

    return with_check(function, check)


def check_bias_dtype(bias: object, where: str) -> None:
    """Refuses a boolean array, which would add 0 and 1.

    Args:
        bias: The bias, or None.
        where: Name of the argument, for messages.

    Raises:
        ArgumentError: It holds True and False.
    """
    bias = np.asarray(bias) if isinstance(bias, list | tuple) else bias
    if str(getattr(bias, "dtype", "")) in ("bool", "torch.bool"):
        raise ArgumentError(
            f"{where} holds True and False, and would add 1 and 0: numbers are needed; a mask "
            f"(True where a query may attend) is the argument mask"
        )


def check_mask(mask: object, where: str) -> None:
    """Refuses anything but a boolean array that may broadcast to ``[B N T S]``.

    Args:
        mask: The array.
        where: Name of the argument, for messages.

    Raises:
        ArgumentError: The message says what to give.
    """
    if not hasattr(mask, "dtype") or not hasattr(mask, "ndim"):
        raise ArgumentError(
            f"{where} is {mask!r:.60}: a Mask or a boolean array [B N T S] is needed, True where a "
            f"query may attend"
        )
    rank = mask.ndim
    if jnp.dtype(mask.dtype) != jnp.bool_:
        raise ArgumentError(
            f"{where}: an array of {mask.dtype}, not bool: True where a query may attend"
        )
    if rank != 4:
        hint = {2: "array[None, None]", 3: "array[:, None], the same for all heads"}.get(rank)
        raise ArgumentError(
            f"{where}: an array with {plural(rank, 'dimension')} instead of the four of [B N T S]"
            + (f": use {hint}" if hint else "")
        )


def as_real(x: object, where: str) -> Array:
    """Returns an array of floats: the array itself, or integers, booleans or lists converted.

    Args:
        x: An array, or a list of numbers.
        where: Name of the argument, for messages.

    Raises:
        ArgumentError: It holds anything else.
    """
    if isinstance(x, list | tuple):
        try:
            x = np.asarray(x)
        except ValueError:
            raise ArgumentError(f"{where}: lists must have equal lengths") from None
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        raise ArgumentError(f"{where} is {type(x).__name__}: an array is needed")
    try:
        dtype = np.dtype(dtype)
    except TypeError:  # an array of another library
        raise ArgumentError(
            f"{where} is {type(x).__name__}: a NumPy or JAX array is needed"
        ) from None
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(x) if isinstance(x, np.ndarray) else typing.cast(Array, x)
    if jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.bool_):
        return jnp.asarray(typing.cast(Array, x), jnp.result_type(float))
    raise ArgumentError(f"{where} holds {dtype}: real numbers are needed")


def _checked(value: object, ranks: tuple[str, ...], where: str) -> Array:
    x = as_real(value, where)
    if any("*" in dims or "..." in dims or len(dims.split()) == x.ndim for dims in ranks):
        return x
    raise ArgumentError(f"{where} has shape {x.shape}: {_needed(ranks)} is needed")


def _needed(ranks: tuple[str, ...]) -> str:
    return " or ".join(f"[{dims.replace('#', '').strip()}]" for dims in ranks)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | complex) and not isinstance(value, np.generic)


def _admits_numbers(annotation: object, ranks: tuple[str, ...]) -> bool:
    """Returns whether an annotation admits a Python number or a zero-dimensional array."""
    return bool({int, float, complex} & {*typing.get_args(annotation)}) or any(
        "*" in dims or "..." in dims or not dims.split() for dims in ranks
    )


def _dimensions(annotation: object) -> tuple[str, ...] | None:
    """The dimensions of an annotation that admits only arrays of floats; None for any other."""
    parts = typing.get_args(annotation) or (annotation,)
    shapes = [part for part in parts if hasattr(part, "dim_str")]
    lists = [part.dtypes for part in shapes if isinstance(part.dtypes, list | tuple)]
    if not lists or len(lists) < len(shapes):  # another annotation admits any dtype
        return None
    if any(part.array_type is np.ndarray for part in shapes):  # constants of a program
        return None
    if not all("float" in str(dtype) for dtypes in lists for dtype in dtypes):
        return None
    return tuple(part.dim_str for part in shapes)
