"""Prompts and requests for language models, from lines of files or standard input."""

import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.cli.output import note, waiting
from transformer_jax.core.config_fields import check_fields
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.old_names import REQUESTS, current_keys

if TYPE_CHECKING:
    from transformer_jax.decoding.generation_config import GenerationConfig
    from transformer_jax.decoding.requests import CountingLanguageModel, GenerationRequest

__all__ = ["note_prompts", "prompt_lines", "requests_of"]

log = logging.getLogger(__name__)


def prompt_lines(path: Path, flag: str) -> Iterator[str]:
    """Yields the lines of a file, or of standard input if ``path`` is ``-``.

    Raises:
        DataError: The file does not exist (the message names ``flag``), or a line is not UTF-8.
    """
    from transformer_jax.data.text import decode_lines, read_lines

    if str(path) != "-":
        return read_lines(path, flag)
    waiting("prompts" if flag == "--prompts" else "requests")
    return decode_lines(sys.stdin.buffer, "<stdin>")


def note_prompts(model: "CountingLanguageModel", where: str = "") -> None:
    """Prints notes about prompts that a model did not read as they are, if there are any.

    Args:
        model: The model that has read them.
        where: Beginning of the notes.
    """
    from transformer_jax.data.coverage import unknown_note

    counts = model.counts
    if cut := counts["cut"]:  # an n-gram model reads prompts of any length
        said, room = plural(counts["prompts"], "prompt"), getattr(model, "context", 0) - 1
        note(f"{where}{cut:,} of {said} exceeded {plural(room, 'token')}; start truncated")
    if unknown := counts["unknown"]:
        note(where + unknown_note(unknown, "prompt", counts["prompts"]))


# Settings that a line may have besides the prompt.
_SETTINGS = (
    *("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("no_repeat_ngram_size", "stop", "num_return_sequences", "seed", "num_beams", "adapter"),
    "number",
)


def requests_of(
    path: Path, usual: "GenerationConfig", check: "Callable[[GenerationRequest], None]"
) -> "Iterator[GenerationRequest]":
    """Yields the requests of JSON lines, and lists up to twenty that are not valid in one error.

    Args:
        path: The file; ``-`` is standard input.
        usual: Default settings, which lines override.
        check: Raises ``ConfigError`` for a request that contradicts the flags.

    Raises:
        ListedError: Lines are not valid requests.
    """
    from transformer_jax.data.bad_rows import BadRows

    name = "<stdin>" if str(path) == "-" else str(path)
    renamed, bad, count = set[str](), BadRows(name, what="request"), 0
    for number, line in enumerate(prompt_lines(path, "--requests"), 1):
        if not line.strip():
            continue
        with bad:
            earlier = _fields(line, f"{name}:{number}")
            fields = current_keys(earlier, REQUESTS)
            for old in sorted(earlier.keys() - fields.keys() - renamed):
                log.warning("%s: %s is now %s", name, old, REQUESTS[old])
                renamed.add(old)
            request = _request(fields, usual, check, f"{name}:{number}")
            count += 1
            yield request
    bad.check(count)


def _fields(line: str, where: str) -> dict[str, Any]:
    """Returns the prompt, or the conversation, and the settings of a JSON line."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    conversation = isinstance(fields, dict) and "messages" in fields
    if not isinstance(fields, dict) or not (
        isinstance(fields.get("prompt"), str) or (conversation and "prompt" not in fields)
    ):
        raise DataError(f'{where}: needs an object with a text "prompt", or with "messages"')
    return fields


def _request(
    fields: dict[str, Any],
    usual: "GenerationConfig",
    check: "Callable[[GenerationRequest], None]",
    where: str,
) -> "GenerationRequest":
    """Returns the request of the fields of a line."""
    from transformer_jax.decoding.requests import GenerationRequest

    unknown = sorted(fields.keys() - {*_SETTINGS, "prompt", "messages"})
    if unknown:
        raise DataError(
            f"{where}: unknown setting {unknown[0]}: known are {', '.join(sorted(_SETTINGS))}"
        )
    try:
        given = {setting: _typed(setting, value) for setting, value in fields.items()}
        request = dataclasses.replace(GenerationRequest.of("", usual), **given)
        if "messages" in fields and request.num_beams > 1:
            raise ConfigError(
                f"num_beams is {request.num_beams}: an answer to messages is sampled or greedy: "
                f"leave it out"
            )
        check(request)
    except ConfigError as error:
        raise DataError(f"{where}: {error}") from None
    return request


def _typed(name: str, value: Any) -> Any:
    """Converts a setting or the prompt of a JSON line to its type in the request."""
    if name == "messages":
        from transformer_jax.data.conversations import check_asked

        return tuple(check_asked(value))
    if name == "stop":
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"stop is {value}: a text or a list of texts")
        for text in texts:
            _check_characters(name, text)
        return tuple(texts)
    if isinstance(value, str):
        _check_characters(name, value)
    from transformer_jax.decoding.requests import GenerationRequest

    check_fields(GenerationRequest, {name: value}, none="null")
    return value


def _check_characters(name: str, text: str) -> None:
    """Refuses a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name}: holds half a character (a lone surrogate)") from None
