"""Prompts and requests for language models, as lines of files or of standard input."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.cli.checks import check_text, check_value
from transformer_jax.cli.output import waiting
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.old_names import REQUESTS, current_keys

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import GenerationRequest

__all__ = ["prompt_lines", "requests_of"]

log = logging.getLogger(__name__)


def prompt_lines(path: Path, flag: str) -> Iterator[str]:
    """The lines of a file, or of standard input if ``path`` is ``-``.

    Raises:
        DataError: The file does not exist (the message names ``flag``), or a line is not UTF-8.
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
        settings: Default of each setting; a line may hold these settings and no others.
        check: Raises ``ConfigError`` for a request that contradicts the flags.

    Raises:
        DataError: A line is no valid request; the message names it.
    """
    from transformer_jax.decoding.requests import GenerationRequest

    name = "<stdin>" if str(path) == "-" else str(path)
    renamed: set[str] = set()
    for number, line in enumerate(prompt_lines(path, "--requests"), 1):
        if not line.strip():
            continue
        where = f"{name}:{number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON: {error}") from None
        conversation = isinstance(fields, dict) and "messages" in fields
        if not isinstance(fields, dict) or not (
            isinstance(fields.get("prompt"), str) or (conversation and "prompt" not in fields)
        ):
            raise DataError(
                f'{where}: needs an object with a text "prompt", or with "messages" instead'
            )
        earlier, fields = fields, current_keys(fields, REQUESTS)
        for old in sorted(earlier.keys() - fields.keys() - renamed):
            log.warning("%s: %s is now %s", name, old, REQUESTS[old])
            renamed.add(old)
        unknown = sorted(fields.keys() - settings.keys() - {"prompt", "messages"})
        if unknown:
            raise DataError(
                f"{where}: unknown setting {unknown[0]}: known are {', '.join(sorted(settings))}"
            )
        try:
            for setting, value in fields.items():
                fields[setting] = _typed(setting, value)
            request = GenerationRequest(**{"prompt": ""} | settings | fields)
            if conversation and request.num_beams > 1:
                raise ConfigError(
                    f"num_beams is {request.num_beams}: an answer to messages is sampled or "
                    f"greedy: leave it out"
                )
            check(request)
        except ConfigError as error:
            raise DataError(f"{where}: {error}") from None
        yield request


def _typed(name: str, value: Any) -> Any:
    """A setting, or the prompt, of a JSON line with the type of the request's field."""
    if name == "messages":
        from transformer_jax.data.conversations import check_asked

        return tuple(check_asked(value))
    if name == "prompt":
        check_text(name, value)
        return value
    if name == "adapter":
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"adapter is {value!r}: a name, or null for the model alone")
        check_text(name, value or "")
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
    check_value(name, name, value)  # with the limits of the flag
    return value
