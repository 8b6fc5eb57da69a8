"""Evaluation of runs that generate texts: flags, word splitting and the output file."""

import csv
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.task_progress import log
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.recipes.generation_flags import generation_flags

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import Translation
    from transformer_jax.inference.facts import Facts

__all__ = [
    "LIMIT_FLAGS",
    "SearchFlags",
    "beam_search",
    "choose_words",
    "reference_columns",
    "required",
    "write_table",
    "write_texts",
]


SearchFlags: Any = generation_flags(
    TRANSLATION,
    *("num_beams", "length_penalty", "max_len_a", "max_len_b"),
    length_penalty="None is that of the run (0.6 if unset)",
    max_len_a="per position for a recording; None is the limit of the run",
    max_len_b="None is the limit of the run",
)
LIMIT_FLAGS = "--max-len-a or --max-len-b"  # which raise the limit, for messages


def beam_search(request: Any, facts: "Facts") -> GenerationConfig:
    """Returns the beam search of the flags, by default with the run's length limit and penalty."""
    from transformer_jax.inference.folder_generation import GivenSearch, note_unused
    from transformer_jax.inference.generation_settings import search_settings

    note_unused(facts, GivenSearch(request.given(), request.FLAGS, has_hf=False))
    search: GenerationConfig = request.generation(**search_settings(facts) | request.given())
    return search


def choose_words(flag: str | None, setting: str | None, references: Sequence[str]) -> str | None:
    """Returns the word splitting: of the flag, the run, or the script of the references.

    Logs a note if the script does not separate words by blanks.

    Args:
        flag: The value of ``--tokenize``.
        setting: The setting of the run.
        references: Reference texts.

    Raises:
        ConfigError: A package is missing, or a model cannot be downloaded.
    """
    from transformer_jax.evaluation.word_splitting import check_tokenize, choose_tokenize

    if flag is not None:
        if flag != "latin":
            check_tokenize(flag, "--tokenize")
        return flag
    by_script = choose_tokenize(references)
    if setting is None and by_script != "13a":
        log(f"note: words are split by {by_script}, for the script of the references: --tokenize")
    elif setting in ("13a", "latin") and by_script != "13a":
        log(
            f"note: words are split by {setting}, the run's setting, but the script of the "
            f"references needs {by_script}: give --tokenize {by_script}"
        )
    return setting


def required(request: Any, title: str, *names: str) -> list[str]:
    """Returns the values of required flags.

    Raises:
        ConfigError: A flag is missing.
    """
    values = [getattr(request, name) for name in names]
    if None in values:
        missing = names[values.index(None)]
        flags = " and ".join(f"--{name}" for name in names)
        raise ConfigError(
            f"--{missing} is missing: {request.run} is the run of {title}: give {flags}"
        )
    return values


def write_texts(
    output: Path | None,
    texts: "Sequence[Translation]",
    references: Sequence[Sequence[str]],
    of: Literal["source", "document", "recording", "picture"],
) -> int:
    """Writes texts to the file of ``--output``, and returns the exit code.

    Args:
        output: The file, with a text in each line or, if its name ends in ``.csv``, with a row for
            each: its source, references, the text, its log-probability and number of tokens; None
            writes nothing.
        texts: Sources with their texts.
        references: The references of each.
        of: What the texts are of: the name of the first column, by which ``score-file`` knows
            translations, summaries, transcripts and captions.

    Raises:
        ConfigError: The file cannot be written.
    """
    if output is None:
        return 0
    if output.suffix.lower() != ".csv":
        _write(output, "".join(one.text.replace("\n", " ") + "\n" for one in texts))
        return 0
    names, rows = reference_columns(references), []
    for one, wanted in zip(texts, references, strict=True):
        given, best = [*wanted, *[""] * (len(names) - len(wanted))], one.hypotheses[0]
        rows.append([one.source, *given, one.text, best.log_prob, len(best.tokens)])
    write_table(output, [of, *names, "predicted", "log_prob", "tokens"], rows)
    return 0


def reference_columns(references: Iterable[Sequence[str]]) -> list[str]:
    """Returns the names of the columns of references, as many as an example has at most.

    Example:
        >>> reference_columns([["a cat"], ["a dog", "the dog"]])
        ['reference', 'reference 2']
    """
    most = max(map(len, references), default=0)
    return ["reference", *(f"reference {i}" for i in range(2, most + 1))]


def write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes a table as CSV.

    Args:
        path: The file of ``--output``.
        columns: Names of the columns.
        rows: The cells of each row.

    Raises:
        ConfigError: The file cannot be written.
    """
    lines = list[str]()
    # The writer quotes cells with the characters of its line end, so it has both.
    write = types.SimpleNamespace(write=lambda row: lines.append(row.removesuffix("\r\n") + "\n"))
    csv.writer(write, lineterminator="\r\n").writerows([columns, *rows])
    _write(path, "".join(lines))


def _write(path: Path, text: str) -> None:
    data = text.encode()  # before the file is opened, and what it has is gone
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"--output {path}: cannot be written: {error.strerror}") from None
