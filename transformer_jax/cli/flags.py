"""Flags of commands: a wrong one is refused in one line, with the nearest that there is."""

import contextlib
import dataclasses
import difflib
import io
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from transformer_jax.errors import ConfigError

__all__ = ["check_flags", "flags_of", "in_one_line", "positional", "refuse_flags"]

T = TypeVar("T")


def positional(field: "dataclasses.Field[Any]") -> bool:
    """Whether a field of a command is no flag: its values stand alone."""
    import tyro

    marker = typing.get_args(tyro.conf.Positional[int])[-1]
    return marker in typing.get_args(field.type)


def flags_of(kind: type, prefix: str = "") -> list[str]:
    """The flags of a dataclass without their dashes, those of dataclasses within it dotted.

    Example:
        >>> from transformer_jax.config import ComputeConfig
        >>> flags_of(ComputeConfig)
        ['dtype', 'scan-layers', 'no-scan-layers', 'remat', 'no-remat']
    """
    found: list[str] = []
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if positional(field):
            continue
        flag, hint = field.name.replace("_", "-"), hints[field.name]
        if dataclasses.is_dataclass(hint):
            found += flags_of(typing.cast(type, hint), f"{prefix}{flag}.")
        else:
            found.append(prefix + flag)
            if hint is bool:
                found.append(f"{prefix}no-{flag}")
    return found


def check_flags(command: str, allowed: Iterable[str], arguments: Sequence[str], see: str) -> None:
    """Refuses flags that a command does not have.

    Args:
        command: What it is called in the message.
        allowed: Flags without their dashes.
        arguments: What was given.
        see: The command that shows all flags.

    Raises:
        ConfigError: It names the flag and the nearest that there is.

    Example:
        >>> check_flags("score", ["num-beams"], ["--num-beam", "4"], "transformer-jax score")
        Traceback (most recent call last):
        ...
        transformer_jax.errors.ConfigError: score has no flag --num-beam: did you mean ...
    """
    known = ["help", *allowed]
    # What follows a lone -- is no flag, whatever it looks like.
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for argument in arguments[:end]:
        flag = argument[2:].partition("=")[0].replace("_", "-")
        if not argument.startswith("--") or not flag or flag in known:
            continue
        near = difflib.get_close_matches(flag, known, 1, 0.5)
        hint = f": did you mean --{near[0]}?" if near else ""
        raise ConfigError(f"{command} has no flag --{flag}{hint} (see {see} --help)")


def in_one_line(parse: Callable[[], T], see: str) -> T:
    """What ``parse`` returns; what it prints before it gives up becomes one line.

    Args:
        parse: Reads flags as tyro does: a mistake is a framed message and ``SystemExit``.
        see: The command that shows all flags.

    Raises:
        ConfigError: A mistake in the flags.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return parse()
    except SystemExit as end:
        if not end.code:
            raise
        raise ConfigError(_one_line(complaint.getvalue(), see)) from None


def _one_line(box: str, see: str) -> str:
    """What a framed message of several lines says, up to its first rule."""
    words: list[str] = []
    for line in box.splitlines():
        text = line.strip().strip("│╭╮╰╯─ ")
        if words and set(line.strip()) <= set("│╭╮╰╯─ "):
            break
        words.append(text + ":" if line.startswith("╭") and text else text)
    return f"{' '.join(word for word in words if word)} (see {see} --help)"


def refuse_flags(command: Any, allowed: Sequence[str]) -> None:
    """Refuses flags that do not go with ``--generation-config hf``.

    Raises:
        ConfigError: It names the flag.
    """
    for field in dataclasses.fields(command):
        if field.name in (*allowed, "run", "generation_config", "allow_changed_config"):
            continue
        if getattr(command, field.name) != field.default:
            flag = field.name.replace("_", "-")
            said = ", ".join(f"--{name.replace('_', '-')}" for name in allowed if name != "prompt")
            raise ConfigError(
                f"--{flag} does not go with --generation-config hf, which takes {said}"
            )
