"""Pictures in folders and their subfolders; other files are counted."""

import os

from transformer_jax.core.errors import DataError
from transformer_jax.data.bad_rows import FIRST, BadRows, RowErrors, log_unread
from transformer_jax.data.images.pixel_decoding import SUFFIXES

__all__ = ["check_name", "entries", "find_pictures", "is_folder", "is_picture", "scan_folder"]


def find_pictures(folder: str, bad: BadRows | None = None) -> list[str]:
    """Returns the pictures in a folder and its subfolders, in the order of their paths.

    A line of the log counts the other files.

    Args:
        folder: The folder.
        bad: Collects names that cannot be used, which are left out.

    Raises:
        DataError: There is no such folder, or it has no pictures.
    """
    if not os.path.isdir(folder):
        raise DataError(f"{folder or repr(folder)}: no such folder of pictures")
    pictures, others = scan_folder(folder, FIRST if bad is None else bad)
    log_unread(folder, others)
    if not pictures:
        raise DataError(f"{folder}: no pictures: their names end in {', '.join(SUFFIXES)}")
    return [os.path.join(folder, name) for name in pictures]


def scan_folder(folder: str, bad: RowErrors = FIRST) -> tuple[list[str], list[str]]:
    """Returns the pictures and the other files of a folder and its subfolders, sorted.

    Names are relative to the folder. Hidden files are neither; links to folders are other files,
    as they may lead anywhere.

    Args:
        folder: The folder.
        bad: Collects names that cannot be used, which are left out.

    Raises:
        DataError: A folder cannot be read, or a name is not UTF-8.
    """
    pictures: list[str] = []
    others: list[str] = []
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        for entry in entries(os.path.join(folder, inside)):
            with bad:
                check_name(entry)
                name = os.path.join(inside, entry.name)
                if not is_folder(entry):
                    (pictures if is_picture(entry.name) else others).append(name)
                elif entry.is_symlink():
                    others.append(name)
                else:
                    waiting.append(name)
    return sorted(pictures), sorted(others)


def entries(folder: str) -> list["os.DirEntry[str]"]:
    """Returns the visible entries of a folder, sorted by name.

    Raises:
        DataError: It cannot be read.
    """
    try:
        with os.scandir(folder) as found:
            shown = [one for one in found if not one.name.startswith((".", "__MACOSX"))]
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror or error}") from None
    return sorted(shown, key=lambda entry: entry.name)


def check_name(entry: "os.DirEntry[str]") -> None:
    """Refuses a name that is not UTF-8: it is no label, and cannot be printed.

    Raises:
        DataError: It is such a name.
    """
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        path = os.fsencode(entry.path).decode("utf-8", "backslashreplace")
        raise DataError(f"{path}: the name is not UTF-8: rename it") from None


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Returns whether an entry is a folder, or a link to one.

    Raises:
        DataError: It is a link to itself.
    """
    try:
        return entry.is_dir()
    except OSError as error:
        raise DataError(f"{entry.path}: {error.strerror or error}: remove the link") from None


def is_picture(name: str) -> bool:
    """Returns whether the name of a file is that of a picture.

    Example:
        >>> is_picture("cat.JFIF"), is_picture("cat.txt")
        (True, False)
    """
    return name.lower().endswith(SUFFIXES)
