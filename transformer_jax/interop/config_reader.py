"""Reads the keys of a published ``config.json``, and names the keys that cause an error."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from transformer_jax.core.errors import CheckpointError, UserError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.tensor_files import INDEX, WEIGHTS, inside

__all__ = ["ConfigReader", "diagnose_config", "is_hf_checkpoint", "read_config"]

Value = TypeVar("Value")

_LARGEST = 2**40  # of any plausible size; tensors are compared with it later
_MOST_BYTES = 16 << 20


class ConfigReader:
    """The keys of a ``config.json``, with checks of their types.

    Args:
        values: The content of the file.
        where: Name of the file, for errors.

    Attributes:
        asked: The numbers, flags and objects that were read, including defaults of missing ones.
        groups: The nested objects that were read; missing ones are empty.
    """

    def __init__(self, values: Mapping[str, Json], where: str = "config.json"):
        self.values, self.where = dict(values), where
        self.asked: dict[str, Json] = {}
        self.groups: dict[str, ConfigReader] = {}

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Returns the integer under the first of ``names`` that exists and is not null.

        Raises:
            CheckpointError: The value is missing without a default, not an integer, or out of
                range.
        """
        name, value = self._find(names)
        if value is None and default is not None:
            self.asked[name] = default
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _LARGEST:
            raise self.refused(name, value, f"a whole number from {least} on is needed")
        self.asked[name] = value
        return value

    def number(
        self, *names: str, default: float | None = None, above: float | int | None = None
    ) -> float:
        """Returns the number under the first of ``names`` that exists and is not null.

        Raises:
            CheckpointError: The value is missing without a default, not a finite number, or not
                greater than ``above``.
        """
        name, value = self._find(names)
        if value is None and default is not None:
            self.asked[name] = default
            return default
        # NaN is not below the largest either.
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) <= _LARGEST
            or (above is not None and value <= above)
        ):
            least = "" if above is None else f" above {above}"
            raise self.refused(name, value, f"a number{least} is needed, at most {_LARGEST}")
        self.asked[name] = float(value)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Returns whether ``name`` is set.

        Raises:
            CheckpointError: The value is neither true nor false.
        """
        value = self.values.get(name)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise self.refused(name, value, "true or false is needed")
        self.asked[name] = value
        return value

    def is_null(self, name: str) -> bool:
        """Returns whether ``name`` has the value null; False for a missing key.

        Example:
            >>> fields = ConfigReader({"sliding_window": None})
            >>> fields.is_null("sliding_window"), fields.is_null("vocab_size")
            (True, False)
        """
        return name in self.values and self.values[name] is None

    def choice(self, names: tuple[str, ...], allowed: Mapping[str, Value], default: str) -> Value:
        """Returns the value in ``allowed`` for the string under the first of ``names``.

        Raises:
            CheckpointError: The string is not in ``allowed``.
        """
        name, value = self._find(names)
        value = default if value is None else value
        if not isinstance(value, str) or value not in allowed:
            raise self.refused(name, value, f"known are {', '.join(allowed)}")
        return allowed[value]

    def numbers(self, name: str) -> tuple[float, ...]:
        """Returns the numbers in a list.

        Raises:
            CheckpointError: The value is missing, or is not a list of finite numbers.
        """
        value = self.values.get(name)
        if not isinstance(value, list) or not value:
            raise self.refused(name, value, "a list of numbers is needed")
        each = ConfigReader(
            {str(i): number for i, number in enumerate(value)}, f"{self.where}: {name}"
        )
        return tuple(each.number(str(i)) for i in range(len(value)))

    def filled(self, /, **usual: Json) -> "ConfigReader":
        """Returns the keys with defaults ``usual`` for missing ones; null counts as a value.

        Example:
            >>> ConfigReader({"head_dim": None}).filled(head_dim=128, vocab_size=9).values
            {'head_dim': None, 'vocab_size': 9}
        """
        return self.replaced(**usual | self.values)

    def replaced(self, /, **values: Json) -> "ConfigReader":
        """Returns the keys with some values replaced; reading them counts as reading these."""
        found = ConfigReader(self.values | values, self.where)
        found.asked, found.groups = self.asked, self.groups
        return found

    def group(self, name: str) -> "ConfigReader":
        """Returns the keys of a nested object; empty if missing.

        Raises:
            CheckpointError: The value is not an object.
        """
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.refused(name, value, "an object is needed")
        if value is not None:
            self.asked[name] = value
        found = ConfigReader(value or {}, f"{self.where}: {name}")
        known = self.groups.setdefault(name, found)
        found.asked, found.groups = known.asked, known.groups
        return found

    def only(self, **usual: Json) -> None:
        """Refuses keys with values other than these; the first value is the default.

        Raises:
            CheckpointError: A key has another value, for a model that is not supported.
        """
        for name, value in usual.items():
            told = self.values.get(name)
            if told is not None and told != value:
                wanted = "nothing" if value is None else json.dumps(value)
                raise self.refused(name, told, f"only {wanted} can be loaded")

    def refused(self, name: str, value: Json, reason: str) -> CheckpointError:
        """Returns the error about one key."""
        said = "missing" if value is None else json.dumps(value, default=str)[:80]
        return CheckpointError(f"{self.where}: {name} is {said}: {reason}")

    def _find(self, names: tuple[str, ...]) -> tuple[str, Json]:
        for name in names:
            if self.values.get(name) is not None:
                return name, self.values[name]
        return names[0], None


def read_config(path: Path) -> ConfigReader:
    """Reads the keys of the JSON file at ``path``.

    Raises:
        CheckpointError: The file is missing, too large, not a regular file, a link out of its
            folder, not a JSON object, or has a duplicate key.
    """
    real = inside(path.parent, path.name)
    try:
        if real.stat().st_size > _MOST_BYTES:
            raise CheckpointError(f"{path}: larger than {_MOST_BYTES >> 20} MiB: no configuration")
        values = json.loads(real.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except _TwiceError as error:
        raise CheckpointError(f"{path}: has a duplicate key, {error}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged (not JSON)") from None
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: damaged (not an object)")
    return ConfigReader(values, str(path))


class _TwiceError(Exception):
    pass


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(repr(next(name for name in found if names.count(name) > 1)))
    return found


def diagnose_config(fields: ConfigReader, outcome: Callable[[ConfigReader], object]) -> str:
    """Names the keys that an outcome depends on, with their values, to append to an error.

    Each number and flag that was read, including in nested objects, is changed, and named if the
    outcome then differs.

    Args:
        fields: A configuration that was read.
        outcome: Function of a configuration. Values for which it raises an error are skipped.

    Example:
        >>> fields = ConfigReader({"heads": 4, "size": 8})
        >>> width = lambda fields: fields.whole("heads") * fields.whole("size")
        >>> _ = width(fields), fields.whole("layers", default=2)
        >>> diagnose_config(fields, width)
        ' (heads 4, size 8)'
        >>> fields = ConfigReader({"text": {"size": 8}})
        >>> diagnose_config(fields, lambda fields: fields.group("text").whole("size"))
        ' (text.size 8)'
    """
    now, found = outcome(fields), []
    for path, value in tuple(_read(fields)):
        for other in _others(value):
            try:
                then = outcome(ConfigReader(_changed(fields.values, path, other), fields.where))
            except UserError:
                continue
            if then != now:
                name = ".".join(path)
                found.append(f"{name} {len(value)} names" if isinstance(value, dict)
                             else f"{name} {value}")  # fmt: skip
                break
    return f" ({', '.join(found)})" if found else ""


def _read(fields: ConfigReader) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yields the paths and values that were read; for objects, of their keys."""
    for name, value in fields.asked.items():
        if name not in fields.groups or not fields.groups[name].asked:
            yield (name,), value
    for name, group in fields.groups.items():
        for path, value in _read(group):
            yield (name, *path), value


def _changed(values: Mapping[str, Json], path: tuple[str, ...], other: Json) -> dict[str, Json]:
    """Returns the keys with another value at a path."""
    first, *rest = path
    inner = values.get(first)
    if rest:
        other = _changed(inner if isinstance(inner, Mapping) else {}, tuple(rest), other)
    return {**values, first: other}


def _others(value: Json) -> Iterator[Json]:
    """Returns values near a value; some may be invalid."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        near = (value + 1, 2 * value, value // 2, value - 1, 1)
        yield from (other for other in near if other > 0)
    elif isinstance(value, float):
        yield from (value / 2, 0.5)
    elif isinstance(value, Mapping) and value:
        yield dict(list(value.items())[:-1])
        yield {str(i): str(i) for i in range(len(value) + 1)}


def is_hf_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Returns whether a folder is a Hugging Face checkpoint rather than a run.

    It has weights, or a configuration with the name of its family.

    Raises:
        CheckpointError: The configuration cannot be read.
    """
    folder = Path(path)
    if not os.path.isfile(folder / "config.json"):  # also for paths that are too long
        return False
    weights = any((folder / name).exists() for name in (WEIGHTS, INDEX))
    try:
        values = read_config(folder / "config.json").values
    except CheckpointError:
        if weights:
            raise
        return False  # errors in the configuration of a run are reported when it is read
    # A run that was converted from a checkpoint stores the original configuration within its own.
    return not isinstance(values.get("model"), dict) and (weights or "model_type" in values)
