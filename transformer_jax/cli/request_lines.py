"""Prompts and requests for language models, as lines of files or of standard input."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.cli.checks import check_text, check_value
from transformer_jax.cli.output import waiting
from transformer_jax.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import GenerationRequest

__all__ = ["FLAGS", "prompt_lines", "requests_of"]

# Flags of the settings of requests, where they differ.
FLAGS = {
    "tokens": "max_new_tokens",
    "no_repeat_ngram": "no_repeat_ngram_size",
    "samples": "num_return_sequences",
    "beams": "num_beams",
}


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


def requests_of(
    path: Path, settings: dict[str, Any], check: "Callable[[GenerationRequest], None]"
) -> "Iterator[GenerationRequest]":
    """The requests of JSON lines.

    Args:
        path: The file; ``-`` is standard input.
        settings: What holds where a line does not say otherwise, and all that it may say.
        check: Refuses a request that does not go together with the flags, with a ``ConfigError``.

    Raises:
        DataError: A line asks for nothing that could be; it is named.
    """
    from transformer_jax.decoding.requests import GenerationRequest

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
            request = GenerationRequest(**settings | fields)
            check(request)
        except ConfigError as error:
            raise DataError(f"{where}: {error}") from None
        yield request


def _typed(name: str, value: Any) -> Any:
    """A setting of a JSON line, or the prompt, as a request has it."""
    if name == "prompt":
        check_text(name, value)
        return value
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"stop is {value}: a text or a list of texts")
        for text in texts:
            check_text(name, text)
        return tuple(texts)
    if value is None and name in ("top_k", "top_p", "min_p"):
        return None
    fraction = name in ("temperature", "top_p", "min_p", "repetition_penalty")
    if isinstance(value, bool) or not isinstance(value, (int, float) if fraction else int):
        raise ConfigError(f"{name} is {value!r}: a {'number' if fraction else 'whole number'}")
    check_value(name, FLAGS.get(name, name), value)  # with the limits of the flag
    return value
