"""Flags of ``evaluate`` for the reading of its files, which replace the run's settings."""

import dataclasses
import typing
from typing import Annotated, Any, Literal

from transformer_jax.core.config_fields import Configuration, Count, Flag
from transformer_jax.data.bad_rows import BadRowPolicy
from transformer_jax.recipes.settings import AnyRun

__all__ = [
    "ColumnFlags",
    "FieldFlag",
    "FieldsFlag",
    "PictureColumnFlags",
    "RowFlags",
    "changed_options",
    "with_read_flags",
]

_SETTING = "data.read."


@dataclasses.dataclass(frozen=True)
class RowFlags(Configuration, group="--"):
    """The flag for rows that cannot be read."""

    bad_rows: Annotated[BadRowPolicy | None, Flag("data.read.bad-rows")] = None
    """Rows that cannot be read: refuse them, or skip and count them. None is the run's setting."""


@dataclasses.dataclass(frozen=True)
class FieldFlag(RowFlags):
    """Flags for documents."""

    field: Annotated[str | None, Flag("data.read.field")] = None
    """JSONL key of the text; None is the run's setting."""


@dataclasses.dataclass(frozen=True)
class FieldsFlag(RowFlags):
    """Flags for rows with two texts."""

    fields: Annotated[tuple[str, str] | None, Flag("data.read.fields")] = None
    """JSONL keys, or names of columns, of the two texts; None is the run's setting."""


@dataclasses.dataclass(frozen=True)
class ColumnFlags(FieldsFlag):
    """Flags for files of pairs."""

    columns: Annotated[tuple[Count, Count] | None, Flag("data.read.columns")] = None
    """TSV or CSV columns of the two texts, from 1; None is the run's setting."""
    format: Annotated[Literal["auto", "tsv", "csv", "jsonl"] | None, Flag("data.read.format")] = (
        None
    )
    """Format of a file of pairs; auto is by its extension, None the run's setting."""


@dataclasses.dataclass(frozen=True)
class PictureColumnFlags(RowFlags):
    """Flags for tables and arrays of pictures."""

    image: Annotated[str | None, Flag("data.read.image")] = None
    """Column, field or array of the pictures; None is the run's setting."""
    text: Annotated[str | None, Flag("data.read.text")] = None
    """Column, field or array of the texts; None is the run's setting."""


def with_read_flags(run: AnyRun, request: Any) -> AnyRun:
    """Returns a run with the reading options that the flags of a request give.

    Args:
        run: The settings of a run.
        request: An object of a class with flags named ``data.read.*``; None keeps an option.

    Example:
        >>> from transformer_jax.recipes.translation import Run
        >>> with_read_flags(Run(), ColumnFlags(columns=(2, 1))).data.read.columns
        (2, 1)
    """
    read = changed_options(run.data.read, request)
    if read == run.data.read:
        return run
    return dataclasses.replace(run, data=dataclasses.replace(run.data, read=read))


def changed_options(read: Any, request: Any) -> Any:
    """Returns reading options as :func:`with_read_flags`."""
    hints = typing.get_type_hints(type(request), include_extras=True)
    named = (
        name
        for name, hint in hints.items()
        for mark in getattr(hint, "__metadata__", ())
        if isinstance(mark, Flag) and (mark.name or "").startswith(_SETTING)
    )
    given = {name: value for name in named if (value := getattr(request, name)) is not None}
    return dataclasses.replace(read, **given) if given else read
