"""The keys of a configuration that cause an error, found by trying other values."""

from collections.abc import Callable, Iterator
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.interop.config_reader import ConfigReader

__all__ = ["deciding_keys"]


def deciding_keys(fields: ConfigReader, outcome: Callable[[ConfigReader], Any]) -> str:
    """The keys on which an outcome depends, with their values, to follow an error.

    Each number and flag that was read is changed, and named if the outcome then is another.

    Args:
        fields: A configuration that was read.
        outcome: Function of a configuration. Values for which it raises an error are skipped.

    Example:
        >>> fields = ConfigReader({"heads": 4, "size": 8})
        >>> width = lambda fields: fields.whole("heads") * fields.whole("size")
        >>> _ = width(fields), fields.whole("layers", default=2)
        >>> deciding_keys(fields, width)
        ' (heads 4, size 8)'
    """
    now, found = outcome(fields), []
    for name, value in tuple(fields.asked.items()):
        for other in _others(value):
            try:
                then = outcome(ConfigReader(fields.values | {name: other}, fields.where))
            except UserError:
                continue
            if then != now:
                found.append(f"{name} {len(value)} names" if isinstance(value, dict)
                             else f"{name} {value}")  # fmt: skip
                break
    return f" ({', '.join(found)})" if found else ""


def _others(value: Any) -> Iterator[Any]:
    """Values near a value; some may be invalid."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (other for other in (value + 1, 2 * value, value // 2, value - 1) if other > 0)
    elif isinstance(value, float):
        yield from (value / 2, 0.5)
    elif value:
        yield dict(list(value.items())[:-1])
        yield {str(i): str(i) for i in range(len(value) + 1)}
