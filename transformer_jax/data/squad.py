"""Questions about paragraphs with their answers, from SQuAD files, or as rows of a table."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator
from typing import TypeVar, cast

from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.json_types import Json
from transformer_jax.data.bad_rows import BadRowPolicy, BadRows, RowErrors, Unread
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.tables import RowSource, json_kind, json_rows, source_name
from transformer_jax.data.text import flaw_of, read_lines

__all__ = ["Questions", "SquadAnswer", "read_question_rows", "read_questions"]

Kind = TypeVar("Kind")
_ROW = ("id", "context", "question", "answers", "is_impossible")  # keys of a row


@dataclasses.dataclass(frozen=True)
class SquadAnswer:
    """An answer: ``text``, which begins at character ``start`` of the paragraph."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Questions:
    """Questions, the paragraph of each, and reference answers, if any."""

    name: str
    ids: list[str]
    questions: list[str]
    contexts: list[str]
    answers: list[list[SquadAnswer]]

    def __len__(self) -> int:
        return len(self.questions)


def read_questions(
    source: RowSource,
    prepare: Preparation = Preparation("none"),
    where: str = "data.train",
    bad_rows: BadRowPolicy | None = None,
) -> Questions:
    """Reads the questions of a SQuAD file, 1.1 (Rajpurkar et al. 2016) or 2.0, in order.

    Questions with ``is_impossible`` have no answers. Paragraphs keep their blanks and lines; the
    places of answers follow their preparation.

    Args:
        source: The path of the file.
        prepare: Preparation of questions and paragraphs.
        where: Name of the setting with ``path``, for messages.
        bad_rows: Whether bad questions are refused or skipped.

    Raises:
        DataError: The file has a different format, or an answer is not at its offset. The message
            names the question.
    """
    path = source_name(source)
    try:
        whole = json.loads("\n".join(read_lines(path, where)))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from None
    bad = BadRows(path, bad_rows, "question")
    return _collected(_rows(whole, path, bad), bad, prepare)


def read_question_rows(
    source: RowSource,
    prepare: Preparation = Preparation("none"),
    where: str = "data.train",
    bad_rows: BadRowPolicy | None = None,
) -> Questions:
    """Reads questions as rows of a table, as data sets of Hugging Face have them.

    A row has ``id`` (or its number is one), ``context``, ``question`` and ``answers``, either a
    list of objects with ``text`` and ``answer_start`` or one object of lists; it may be empty.
    Arguments and errors are those of :func:`read_questions`; ``source`` may be any table of objects
    (:func:`.object_rows`).
    """
    name = source_name(source)
    bad = BadRows(name, bad_rows, "question")
    return _collected(_flat_rows(source, where, bad), bad, prepare)


def _flat_rows(source: RowSource, where: str, bad: RowErrors) -> Iterator[tuple[str, Json, str]]:
    """Yields rows of a table as :func:`_rows`."""
    unread = Unread(source_name(source), "key")
    for number, row in json_rows(source, where, bad):
        with bad:
            unread.note(row.fields, _ROW)
            fields = cast("dict[str, Json]", {"id": str(number)} | row.fields)
            answers = fields.get("answers")
            if isinstance(answers, dict):
                lists = [_field(answers, key, list, row.place) for key in ("text", "answer_start")]
                if len(lists[0]) != len(lists[1]):
                    raise DataError(f"{row.place}: the answers have as many texts as places")
                pairs = zip(*lists, strict=True)
                answers = [{"text": text, "answer_start": start} for text, start in pairs]
                fields["answers"] = answers
            fields["is_impossible"] = answers == []
            yield _field(fields, "context", str, row.place), fields, row.place
    unread.report()


def _collected(
    rows: Iterable[tuple[str, Json, str]], bad: BadRows, prepare: Preparation
) -> Questions:
    """Checks questions with their paragraphs and collects them."""
    path = bad.name
    found, ids = Questions(path, [], [], [], []), set[str]()
    placed = functools.lru_cache(1)(prepare.placed)  # questions of one paragraph are together
    for context, row, place in rows:
        with bad:
            id = _field(row, "id", str, place)
            place = f"{path}: question {id}"
            if id in ids:
                raise DataError(f"{place}: comes twice: each question needs its own id")
            ids.add(id)
            question = prepare.line(_field(row, "question", str, place))
            if not question or not context.strip():
                what = "paragraph" if question else "question"
                raise DataError(f"{place}: the {what} is empty: fill it in, or remove the question")
            answers = _answers(row, context, place)
            paragraph = placed(context)
            spans = [paragraph.prepared(one.start, one.start + len(one.text)) for one in answers]
            found.ids.append(id)
            found.questions.append(question)
            found.contexts.append(paragraph.text)
            found.answers.append([SquadAnswer(paragraph.text[a:b], a) for a, b in spans])
    bad.report(len(found))
    if not len(found):
        raise DataError(f"{path}: no questions: it is empty")
    return found


def _rows(whole: Json, path: str, bad: RowErrors) -> Iterator[tuple[str, Json, str]]:
    """Yields each question with its paragraph, and a name for messages before its id is read."""
    for i, article in enumerate(_list(whole, "data", path), 1):
        with bad:
            place = f"{path}: article {i}"
            for j, paragraph in enumerate(_list(article, "paragraphs", place), 1):
                with bad:
                    within = f"{place}, paragraph {j}"
                    context = _field(paragraph, "context", str, within)
                    for k, row in enumerate(_list(paragraph, "qas", within), 1):
                        yield context, row, f"{within}, question {k}"


def _answers(row: Json, context: str, place: str) -> list[SquadAnswer]:
    if isinstance(row, dict) and row.get("is_impossible"):
        return []
    found = [
        SquadAnswer(_field(item, "text", str, place), _field(item, "answer_start", int, place))
        for item in _list(row, "answers", place)
    ]
    if not found:
        raise DataError(f'{place}: no answers: give one, or say "is_impossible": true')
    for answer in found:
        _check(answer, context, place)
    return found


def _check(answer: SquadAnswer, context: str, place: str) -> None:
    text, start = answer.text, answer.start
    if not text.strip():
        raise DataError(f'{place}: an answer is empty: remove it, or say "is_impossible": true')
    if start >= 0 and context.startswith(text, start):
        return
    if not 0 <= start < len(context):
        there = f"outside its paragraph of {plural(len(context), 'character')}"
    else:
        there = f"where the paragraph has {_shown(context[start : start + len(text)])}"
    near = max(start, 0)
    places = context.rfind(text, 0, near + len(text)), context.find(text, near)
    found = (at for at in places if at >= 0)
    nearest = min(found, key=lambda at: abs(at - start), default=None)
    elsewhere = "nowhere in it" if nearest is None else f"nearest found at {nearest}"
    raise DataError(
        f"{place}: the answer {_shown(text)} should begin at character {start}, {there}; it is "
        f"{elsewhere}: correct answer_start, which counts characters (not bytes) from 0"
    )


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def _list(row: Json, key: str, place: str) -> list[Json]:
    return _field(row, key, list, place)


def _field(row: Json, key: str, kind: type[Kind], place: str) -> Kind:
    if not isinstance(row, dict) or key not in row:
        have = ", ".join(map(repr, row)) if isinstance(row, dict) else json_kind(row)
        raise DataError(
            f"{place}: no field {key!r}, only {have or 'none'}: SQuAD has data, paragraphs, "
            f"context, qas, id, question, answers, text, answer_start"
        )
    found = row[key]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise DataError(
            f"{place}: field {key!r} is {json_kind(found)}; {json_kind(kind())} is needed"
        )
    if isinstance(found, str) and (flaw := flaw_of(found)) is not None:
        raise DataError(f"{place}: field {key!r} {flaw}")
    return found
