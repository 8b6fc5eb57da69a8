"""``--import MODULE``: a module of the user's own, imported before a command reads its flags."""

import importlib
import sys
import traceback
from collections.abc import Sequence

from transformer_jax.core.errors import ConfigError

__all__ = ["import_modules"]

_FLAG = "--import"


def import_modules(arguments: Sequence[str]) -> list[str]:
    """Imports the modules that ``--import`` names, such as one that registers a mixer.

    They are on Python's path or in the working directory.

    Args:
        arguments: The words of a command.

    Returns:
        The words without these flags.

    Raises:
        ConfigError: The flag has no name, or the module cannot be imported.

    Example:
        >>> import_modules(["train", "small", "--import", "json", "--overwrite"])
        ['train', 'small', '--overwrite']
    """
    rest, words = [], iter(arguments)
    for word in words:
        flag, given, name = word.partition("=")
        if flag != _FLAG:
            rest.append(word)
            continue
        name = name if given else next(words, "")
        if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
            hint = f", such as {name[:-3]}" if name.endswith(".py") else ""
            raise ConfigError(f"{_FLAG} {name}: the name of a Python module is needed{hint}")
        _import(name)
    return rest


def _import(name: str) -> None:
    if "" not in sys.path:  # the program is no script of the working directory
        sys.path.append("")
    try:
        importlib.import_module(name)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        missing = isinstance(error, ModuleNotFoundError) and error.name == name
        place = "" if missing else f" ({where.filename}:{where.lineno})"
        says = str(error).partition("\n")[0]
        raise ConfigError(
            f"{_FLAG} {name}: {type(error).__name__}: {says}{place}: a module of the working "
            f"directory or of Python's path is needed"
        ) from None
