"""Reads outputs with their references: texts in lines, and the formats of tasks."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.labeled import LabeledOptions, Tagged, read_labeled
from transformer_jax.data.squad import read_questions
from transformer_jax.data.tables import cell_rows, json_kind
from transformer_jax.data.text import flaw_of, read_lines
from transformer_jax.evaluation.output_scores import OutputTask

__all__ = ["SystemOutputs", "read_outputs"]

_SEVERAL: tuple[OutputTask, ...] = ("translate", "summarize", "caption", "answer")


class SystemOutputs(NamedTuple):
    """SystemOutputs of a system, with the references of each.

    Attributes:
        task: Their task.
        texts: The outputs: texts, or classes, numbers, or tags with blanks between them.
        references: One or more references of each output.
    """

    task: OutputTask
    texts: list[str]
    references: list[list[str]]


def read_outputs(
    path: Path, references: Sequence[Path] = (), task: OutputTask | None = None
) -> SystemOutputs:
    """Reads outputs and their references.

    Without files of references, ``path`` is a table of predictions, as ``evaluate`` writes it with
    ``--output predictions.csv``, or the log-probabilities that ``score`` prints. Otherwise, files
    have a text, a class or a number in each line; for ``tag``, words and tags in the formats of
    :func:`.read_tagged`; for ``answer``, the answers may be a JSON object by the ids of a SQuAD
    file. Texts are compared as they stand.

    Args:
        path: The outputs.
        references: The references, in as many files as an output has.
        task: The task; None is that of the table, or ``translate``.

    Raises:
        ConfigError: References are missing, or the task takes only one.
        DataError: A file cannot be read, or files differ in length.
    """
    if not references:
        is_tsv = path.suffix.lower() == ".tsv"
        return _log_probs(path) if is_tsv else _predictions(path, task)
    task = task or "translate"
    if task == "language":
        raise ConfigError("task language compares what score prints: leave the references out")
    if len(references) > 1 and task not in _SEVERAL:
        raise ConfigError(f"task {task} takes one file of references: there are {len(references)}")
    if task == "tag":
        return _tags(path, references[0])
    if task == "answer" and path.suffix.lower() == ".json":
        return _answers(path, references)
    sides = [list(read_lines(one)) for one in (path, *references)]
    for one, lines in zip(references, sides[1:], strict=True):
        if len(lines) != len(sides[0]):
            raise DataError(
                f"{path} has {plural(len(sides[0]), 'line')}, but {one} has "
                f"{plural(len(lines), 'line')}: they must have one per example, in the same order"
            )
    if not sides[0]:
        raise DataError(f"{path}: no outputs: it is empty")
    for one, lines in zip((path, *references), sides, strict=True):
        bad = BadRows(str(one), what="line")
        for number, line in enumerate(lines, 1):
            with bad:
                _check(task, line, f"{one}:{number}")
        bad.check(len(lines) - bad.count)
    return SystemOutputs(task, sides[0], [list(row) for row in zip(*sides[1:], strict=True)])


def _check(task: OutputTask, text: str, place: str) -> None:
    """Refuses a blank class, and what is no finite number."""
    if task == "classify" and not text.strip():
        raise DataError(f"{place}: blank: a class is needed")
    if task == "regress":
        try:
            finite = math.isfinite(float(text))
        except ValueError:
            finite = False
        if not finite:
            raise DataError(f"{place}: {text!r}: a number is needed")


def _tags(path: Path, reference: Path) -> SystemOutputs:
    sides = []
    for one in (path, reference):
        suffix = one.name.removesuffix(".gz").rpartition(".")[2].lower()
        known = suffix in ("conllu", "conll", "jsonl", "ndjson")
        read = read_labeled(
            str(one), "tag", LabeledOptions(format="auto" if known else "columns"), ""
        )
        assert isinstance(read, Tagged)
        sides.append(read)
    ours, theirs = sides
    for i, (told, true) in enumerate(zip(ours.words, theirs.words, strict=False)):
        if told != true:
            raise DataError(
                f"{path}:{ours.lines[i][0]}: this sentence is {' '.join(told)[:60]!r}, but that of "
                f"{reference}:{theirs.lines[i][0]} is {' '.join(true)[:60]!r}: they must have the "
                f"same words, in the same order"
            )
    if len(ours) != len(theirs):
        raise DataError(
            f"{path} has {plural(len(ours), 'sentence')}, but {reference} has "
            f"{plural(len(theirs), 'sentence')}: they must have the same, in the same order"
        )
    told, true = ([" ".join(tags) for tags in side.tags] for side in sides)
    return SystemOutputs("tag", told, [[one] for one in true])


def _answers(path: Path, references: Sequence[Path]) -> SystemOutputs:
    """Reads answers by id, as the scripts of SQuAD do."""
    if len(references) > 1:
        raise ConfigError("answers as JSON take one file of references, which has all of them")
    try:
        given = json.loads("\n".join(read_lines(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    if not isinstance(given, dict):
        raise DataError(f"{path}: {json_kind(given)}: an object of answers by id is needed")
    questions, texts = read_questions(str(references[0]), where=""), []
    for id in questions.ids:
        answer = given.get(id)
        if not isinstance(answer, str) or (flaw := flaw_of(answer)) is not None:
            said = (
                "no answer" if id not in given else flaw if isinstance(answer, str) else "no text"
            )
            raise DataError(f'{path}: question {id}: {said}: give a text, "" for no answer')
        texts.append(answer)
    wanted = [[one.text for one in row] or [""] for row in questions.answers]
    return SystemOutputs("answer", texts, wanted)


def _log_probs(path: Path) -> SystemOutputs:
    """Reads log-probability and number of tokens of each line, which ``score`` prints."""
    rows = ((number, cells) for number, cells in cell_rows(path, "tsv") if cells)
    _, names = next(rows, (0, []))
    if names[:3] != ["line", "log_prob", "tokens"]:
        raise DataError(f"{path}: not the table that score prints: its first line differs")
    texts, bad = list[str](), BadRows(str(path))
    for number, cells in rows:
        with bad:
            for text in cells[1:3]:
                _check("regress", text, f"{path}:{number}")
            if cells[0] != "corpus":
                texts.append(" ".join(cells[1:3]))
    bad.check(len(texts))
    if not texts:
        raise DataError(f"{path}: no outputs: it is empty")
    return SystemOutputs("language", texts, [[""]] * len(texts))


def _predictions(path: Path, task: OutputTask | None) -> SystemOutputs:
    """Reads a table of predictions."""
    if path.suffix.lower() != ".csv":
        raise ConfigError(
            f"{path}: no references: name their files, or give the predictions.csv of evaluate, or "
            f"the .tsv that score prints"
        )
    rows = ((number, cells) for number, cells in cell_rows(path, "csv") if cells)
    _, names = next(rows, (0, []))
    wanted = [i for i, name in enumerate(names) if name == "label" or name[:9] == "reference"]
    if "predicted" not in names or not wanted:
        raise DataError(
            f"{path}: its first line does not have the columns predicted and label or reference: "
            f"it is not the table that evaluate --output predictions.csv writes"
        )
    task = task or _task_of(names)
    found = SystemOutputs(task, [], [])
    predicted, groups = names.index("predicted"), list[list[str]]()
    keys = [names.index(name) for name in ("data", "sentence") if name in names]
    bad = BadRows(str(path))
    for number, cells in rows:
        with bad:
            if len(cells) != len(names):
                raise DataError(f"{path}:{number}: {plural(len(cells), 'cell')}, not {len(names)}")
            for text in (cells[predicted], cells[wanted[0]]):
                _check(task, text, f"{path}:{number}")
        if bad.count:
            continue
        given = [cells[i] for i in wanted]
        given = [text for i, text in enumerate(given) if text or not i]
        if task == "summarize" and given == [""]:
            continue  # a text without a summary has no score
        group = [cells[i] for i in keys]
        if task == "tag" and groups[-1:] == [group]:
            found.texts[-1] += f" {cells[predicted]}"
            found.references[-1][0] += f" {given[0]}"
            continue
        groups.append(group)
        found.texts.append(cells[predicted])
        found.references.append(given)
    bad.check(len(found.texts))
    if not found.texts:
        raise DataError(f"{path}: no outputs: it is empty")
    return found


# Tasks by the first column of a table of texts.
_TEXTS: dict[str, OutputTask] = {
    "document": "summarize",
    "recording": "transcribe",
    "picture": "caption",
}


def _task_of(names: Sequence[str]) -> OutputTask:
    """Returns the task of a table of predictions by its columns."""
    if "sentence" in names:
        return "tag"
    if "exact_match" in names:
        return "answer"
    if "label" in names:
        classes = any(name.startswith("probability of ") for name in names)
        return "classify" if classes else "regress"
    return _TEXTS.get(names[0], "translate")
