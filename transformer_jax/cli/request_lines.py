"""Prompts and requests for language models, as lines of files or of standard input."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.cli.output import waiting
from transformer_jax.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import Request

__all__ = ["check_text", "prompt_lines", "requests_of"]


def prompt_lines(path: Path, flag: str) -> Iterator[str]:
    """The lines of a file, or of standard input if ``path`` is ``-``.

    Raises:
        DataError: There is no such file, which names ``flag``, or a line is no UTF-8.
    """
    from transformer_jax.data.text import decode_lines, read_lines

    if str(path) != "-":
        return read_lines(path, flag)
    waiting("prompts" if flag == "--prompts" else "requests")
    return decode_lines(sys.stdin.buffer, "<stdin>")


def requests_of(path: Path, settings: dict[str, Any]) -> "Iterator[Request]":
    """The requests of JSON lines.

    Args:
        path: The file; ``-`` is standard input.
        settings: What holds where a line does not say otherwise, and all that it may say.

    Raises:
        DataError: A line asks for nothing that could be; it is named.
    """
    from transformer_jax.decoding.requests import Request

    name = "<stdin>" if str(path) == "-" else str(path)
    for number, line in enumerate(prompt_lines(path, "--requests"), 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        if not isinstance(fields, dict) or not isinstance(fields.get("prompt"), str):
            raise DataError(f'{where}: needs an object with a text "prompt"')
        unknown = sorted(fields.keys() - settings.keys() - {"prompt"})
        if unknown:
            raise DataError(
                f"{where}: no setting is called {unknown[0]}: there are "
                f"{', '.join(sorted(settings))}"
            )
        try:
            for setting, value in fields.items():
                fields[setting] = _typed(setting, value)
            yield Request(**settings | fields)
        except ConfigError as error:
            raise DataError(f"{where}: {error}") from None


def _typed(name: str, value: Any) -> Any:
    """A setting of a JSON line, or the prompt, as a request has it."""
    if name == "prompt":
        check_text(value, "the prompt")
        return value
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"stop is {value}: a text or a list of texts")
        return tuple(texts)
    if value is None and name in ("top_k", "top_p", "min_p"):
        return None
    fraction = name in ("temperature", "top_p", "min_p", "repetition_penalty")
    if isinstance(value, bool) or not isinstance(value, (int, float) if fraction else int):
        raise ConfigError(f"{name} is {value!r}: a {'number' if fraction else 'whole number'}")
    return value


def check_text(text: str, what: str) -> None:
    """Refuses half a character (a lone surrogate), which no file can hold.

    Raises:
        ConfigError: It names the text as ``what``.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{what} holds half a character (a lone surrogate)") from None
