"""Refuses invalid values of flags before any work: broken text, NaN, numbers too large."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

from transformer_jax.cli.flags import flag_of, positional
from transformer_jax.core.errors import ConfigError

__all__ = ["check_text", "check_value", "check_values"]

# Larger than any use needs, and too small to exhaust memory.
_MOST = {
    "batch_size": 65_536,
    "buffer_size": 10_000_000,
    "context": 1_000_000,
    "length_penalty": 100.0,
    "max_len_a": 10_000.0,
    "max_len_b": 1_000_000,
    "max_new_tokens": 1_000_000,
    "num_beams": 1_000,
    "num_return_sequences": 10_000,
    "prompt_lookup_num_tokens": 1_000,
    "repetition_penalty": 1e6,
    "seed": 2**63 - 1,
    "temperature": 1e6,
}
_LARGEST = 2**31 - 1
_LONGEST_NAME = 255  # bytes of a part of a path, of common file systems
_LONGEST_PATH = 4095  # bytes
_SHOWN = 40  # digits


def check_values(command: Any, group: str = "") -> None:
    """Refuses values of flags that no command can use.

    Refused are numbers that are not finite or too large, text with a lone surrogate or a NUL, and
    paths that no file system allows. Each command checks further limits itself.

    Args:
        command: A dataclass with a field for each flag, or for a group of flags.
        group: Prefix of the names of the flags.

    Raises:
        ConfigError: It names the flag.
    """
    for field in dataclasses.fields(command):
        value, flag = getattr(command, field.name), flag_of(type(command), field.name, group)
        if dataclasses.is_dataclass(value):
            check_values(value, f"{flag}.")
            continue
        # Training has groups of flags, and allows larger values than other commands.
        name = "" if group and field.name != "seed" else field.name
        shown = field.name if positional(field) else f"--{flag}"
        for each in value if isinstance(value, tuple) else (value,):
            check_value(shown, name, each)


def check_value(shown: str, name: str, value: Any) -> None:
    """Refuses a value that no command can use.

    Args:
        shown: Name of the setting in messages.
        name: The setting, which determines the limit.
        value: A number, a text or a path; other types pass.

    Raises:
        ConfigError: It names the setting.
    """
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        _check_number(shown, value, _MOST.get(name, _LARGEST))
    elif isinstance(value, Path):
        _check_path(shown, value)
    elif isinstance(value, str):
        check_text(shown, value)
        if "\0" in value:
            raise ConfigError(f"{shown}: holds a NUL character, which is no text")


def check_text(shown: str, text: str) -> None:
    """Refuses a lone surrogate (half a character), which UTF-8 cannot encode.

    Raises:
        ConfigError: The text contains one; the message names it ``shown``.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{shown}: holds half a character (a lone surrogate)") from None


def _check_number(shown: str, value: int | float, most: int | float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{shown} is {value}: a finite number is needed")
    if abs(value) > most:
        digits = str(value)
        if len(digits) > _SHOWN:
            digits = f"a number of {len(digits.lstrip('-'))} digits"
        raise ConfigError(f"{shown} is {digits}: at most {most:,} is possible")


def _check_path(shown: str, path: Path) -> None:
    try:
        parts = [os.fsencode(part) for part in path.parts]
    except UnicodeEncodeError:
        raise ConfigError(f"{shown}: holds half a character (a lone surrogate)") from None
    if any(b"\0" in part for part in parts):
        raise ConfigError(f"{shown}: holds a NUL character, which no file has in its name")
    if any(len(part) > _LONGEST_NAME for part in parts):
        raise ConfigError(f"{shown}: a name in the path has more than {_LONGEST_NAME} bytes")
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise ConfigError(f"{shown}: the path has more than {_LONGEST_PATH:,} bytes")
