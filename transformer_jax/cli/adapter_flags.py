"""``--adapter NAME=PATH``: adapters by name, for requests to choose from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from transformer_jax.core.config_fields import field_problem
from transformer_jax.core.errors import ConfigError

__all__ = ["check_choice", "chosen_for_all", "named_adapters"]


def named_adapters(given: Sequence[str]) -> dict[str, str]:
    """Returns the paths of ``--adapter`` by name; the path itself is the name if none is given.

    A name contains no slash: a value with a slash before its first ``=`` is a path.

    Args:
        given: The values of the flag, ``NAME=PATH`` or ``PATH``.

    Raises:
        ConfigError: A name or a path is empty, a name is given twice, or no file system allows the
            path.

    Example:
        >>> named_adapters(["a=runs/mine", "peft/other", "runs/lr=0.1"])
        {'a': 'runs/mine', 'peft/other': 'peft/other', 'runs/lr=0.1': 'runs/lr=0.1'}
    """
    found: dict[str, str] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not equals or "/" in name:
            name = path = one
        if not name or not path:
            raise ConfigError(
                f"--adapter {one!r}: {'a path' if name else 'a name'} is missing: give NAME=PATH, "
                f"or PATH alone"
            )
        if name in found:
            raise ConfigError(f"--adapter: two adapters are called {name}: give each another name")
        if (problem := field_problem(Path(path), Path)) is not None:
            raise ConfigError(f"--adapter: {problem}")
        found[name] = path
    return found


def chosen_for_all(adapters: Mapping[str, str], requests: Path | None) -> str | None:
    """Returns the adapter of requests that choose none: the only one, or None for the plain model.

    Raises:
        ConfigError: There are several adapters, and the prompts cannot choose.

    Example:
        >>> chosen_for_all({"a": "runs/mine"}, None)
        'a'
    """
    if len(adapters) > 1 and requests is None:
        raise ConfigError(
            f"--adapter names {len(adapters)} adapters, and a prompt chooses none: give --requests "
            f'FILE, whose lines have "adapter", or a single one; a prompt stands before --adapter'
        )
    return next(iter(adapters)) if len(adapters) == 1 else None


def check_choice(adapter: str | None, known: Mapping[str, str]) -> None:
    """Refuses a request for an unknown adapter.

    Raises:
        ConfigError: The message names the known adapters.

    Example:
        >>> check_choice("b", {"a": "runs/mine"})
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: adapter is b: --adapter names a, and null is ...
    """
    if adapter is None or adapter in known:
        return
    if not known:
        raise ConfigError(f"adapter is {adapter}: no --adapter {adapter}=PATH is given")
    raise ConfigError(
        f"adapter is {adapter}: --adapter names {', '.join(known)}, and null is the model alone"
    )
