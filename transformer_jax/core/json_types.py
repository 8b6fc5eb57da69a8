"""The type of JSON values, read or to be written."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

__all__ = ["Json"]

if TYPE_CHECKING:
    Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
else:  # checks at run time look no deeper
    Json = bool | int | float | str | Sequence | Mapping | None
