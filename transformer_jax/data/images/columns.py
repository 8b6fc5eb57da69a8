"""The columns, fields and arrays of pictures and of their texts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from transformer_jax.core.errors import DataError
from transformer_jax.data.images.folders import is_picture

__all__ = ["PICTURES", "TEXTS", "Columns", "TextKind"]

# Usual names of columns, fields and arrays of pictures and texts, if none are given.
PICTURES = ("file_name", "image", "images", "image_name", "file", "path", "x")
_LABELS, _CAPTIONS = ("label", "labels"), ("caption", "captions", "comment", "text", "texts")
TextKind = Literal["label", "caption"]
TEXTS: dict[TextKind, tuple[str, ...]] = {
    "label": (*_LABELS, *_CAPTIONS, "y"),
    "caption": (*_CAPTIONS, *_LABELS, "y"),
}


class Columns(NamedTuple):
    """The columns, fields or arrays of pictures and of texts.

    Attributes:
        image: The name for pictures; None looks for a usual name.
        text: The name for texts; None looks for a usual name.
        text_kind: The texts whose usual names are tried first.
    """

    image: str | None = None
    text: str | None = None
    text_kind: TextKind = "label"

    def choose_image(self, names: Iterable[str], where: str, what: str) -> str:
        """Returns the name of the column, field or array of pictures.

        Raises:
            DataError: There is none.
        """
        return _choose(names, self.image, PICTURES, "image", where, what)

    def choose_text(self, names: Iterable[str], where: str, what: str) -> str:
        """Returns the name of the column, field or array of texts.

        Raises:
            DataError: There is none.
        """
        return _choose(names, self.text, TEXTS[self.text_kind], "text", where, what)

    def refuse_second(self, row: Mapping[str, object], used: Sequence[str], place: str) -> None:
        """Refuses a row with another picture, unless the one to read is given by name.

        Args:
            row: The values of the row, by name.
            used: The names of the picture and of the text.
            place: File and line, for messages.

        Raises:
            DataError: There is another picture.
        """
        if self.image is not None:
            return
        for name, value in row.items():
            values = value if isinstance(value, list) else [value]
            files = [one for one in values if isinstance(one, str) and is_picture(one.strip())]
            others = [file for file in files if file != row[used[0]] and "://" not in file]
            if name not in used and others:
                raise DataError(
                    f"{place}: a second picture, {name!r}: name the one to read with "
                    f"data.read.image {used[0]}"
                )


def _choose(
    names: Iterable[str],
    wanted: str | None,
    usual: tuple[str, ...],
    option: str,
    where: str,
    what: str,
) -> str:
    """Chooses the name of a column, field or array."""
    known = list(names)
    for name in (wanted,) if wanted is not None else usual:
        if known.count(name) == 1:
            return name
    missing = repr(wanted) if wanted is not None else "of " + ", ".join(map(repr, usual))
    shown = ", ".join(map(repr, known[:12])) or "none"
    raise DataError(f"{where}: no {what} {missing}, only {shown}: name one with data.read.{option}")
