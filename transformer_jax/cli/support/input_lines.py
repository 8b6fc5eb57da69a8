"""Lines of files and standard input: texts, prompts and requests; and rows of results."""

import dataclasses
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.cli.output import note, waiting
from transformer_jax.core.config_fields import check_fields
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.old_names import REQUESTS, current_keys

if TYPE_CHECKING:
    from transformer_jax.decoding.generation_config import GenerationConfig
    from transformer_jax.decoding.requests import CountingLanguageModel, GenerationRequest
    from transformer_jax.inference.encoding.vectors import Layers

__all__ = [
    "check_lines",
    "file_lines",
    "given_lines",
    "given_texts",
    "layers_of",
    "note_prompts",
    "requests_of",
    "windows",
    "write",
]

log = logging.getLogger(__name__)

_LONGEST_NAME = 200  # a longer text is not looked for among files


def file_lines(path: Path, flag: str = "", what: str = "texts") -> Iterator[str]:
    """Yields the lines of a file, or of standard input if ``path`` is ``-``.

    Args:
        path: The file.
        flag: Names the file in messages.
        what: The lines, for a note that standard input is read.

    Raises:
        DataError: The file does not exist (the message names ``flag``), or a line is not UTF-8.
    """
    from transformer_jax.data.text import decode_lines, read_lines

    if str(path) != "-":
        return read_lines(path, flag)
    waiting(what)
    return decode_lines(sys.stdin.buffer, "<stdin>")


def check_lines(path: Path, command: str) -> None:
    """Refuses a file of lines that cannot be read, before a model is loaded.

    Args:
        path: The file; ``-`` is standard input, which is not touched.
        command: Reads the lines; it has ``-``.

    Raises:
        DataError: It is a folder, does not exist, or is not text.
    """
    from transformer_jax.data.text import check_readable

    if path.is_dir():
        raise DataError(
            f"{command} {path}: this is a folder; a file is needed, or - for standard input, as "
            f"after cat {path}/*.txt |"
        )
    if str(path) != "-":
        check_readable(path, command)


def given_lines(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields texts from the command line or standard input, each after a name for messages."""
    for number, text in enumerate(texts, 1):
        yield f"text {number}", text
    if not texts:
        for number, line in enumerate(file_lines(Path("-")), 1):
            yield f"<stdin>:{number}", line


def given_texts(texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the same for texts that are no paths; a note says that one is the name of a file."""
    for text in texts:
        if len(text) < _LONGEST_NAME and Path(text).is_file():
            note(f"{text} is a file, but read as a text: < {text} gives its lines")
    return given_lines(texts)


def windows(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yields lists of ``size`` items; of one item at a terminal.

    Example:
        >>> list(windows("abc", 2))
        [['a', 'b'], ['c']]
    """
    remaining = iter(items)
    while window := list(itertools.islice(remaining, 1 if sys.stdin.isatty() else size)):
        yield window


def write(*cells: str) -> None:
    """Prints one row of tab-separated cells in UTF-8, regardless of the locale.

    Tabs and line ends within a cell become blanks.
    """
    blank = str.maketrans("\t\n\r", "   ")
    row = "\t".join(cell.translate(blank) for cell in cells)
    sys.stdout.buffer.write(row.encode() + b"\n")


def layers_of(text: str) -> "Layers":
    """Parses the value of ``--layers``.

    Raises:
        ConfigError: The value is neither a known name nor a number.

    Example:
        >>> layers_of("concat4"), layers_of("2")
        ('concat4', 2)
    """
    if text.isdecimal():
        return int(text)
    if text in ("last", "all", "sum4", "concat4"):
        return text  # type: ignore[return-value]
    raise ConfigError(f"--layers {text}: allowed are last, all, sum4, concat4 and a number from 0")


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
    for number, line in enumerate(file_lines(path, "--requests", "requests"), 1):
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
