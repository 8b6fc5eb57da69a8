"""Words with tags from files: CoNLL-U, columns, JSONL."""

import dataclasses
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.bad_rows import BadRows, RowErrors
from transformer_jax.data.labeled_files import (
    LabeledOptions,
    is_number,
    labeled_format,
    prepare_label,
)
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.tables import JsonRow, json_rows
from transformer_jax.data.text import numbered_lines
from transformer_jax.data.unread import Unread
from transformer_jax.data.words import blank_words

__all__ = ["Tagged", "read_tagged"]

_COLUMNS = {"form": 1, "upos": 3, "xpos": 4}  # CoNLL-U columns, from 0
_SENTENCE_END = re.compile(r"\s*(-DOCSTART-(\s.*)?)?")
_MARK = re.compile(r"#([^\S\t]|$)")  # begins a comment, or a line of the word "#"
Row: TypeAlias = tuple[str, str]  # a word and its tag


@dataclasses.dataclass(frozen=True)
class Tagged:
    """Sentences as lists of words, with a tag per word."""

    name: str
    words: list[list[str]]
    tags: list[list[str]]
    lines: list[list[int]] = dataclasses.field(default_factory=list)  # the line of each word

    def __len__(self) -> int:
        return len(self.words)


def read_tagged(
    path: str, read: LabeledOptions = LabeledOptions(), where: str = "data.train"
) -> Tagged:
    """Reads the words and tags of a file in CoNLL-U, in columns, or in JSONL.

    In CoNLL-U, comments, multi-word ranges (``1-2``) and empty nodes (``1.1``) are skipped. In
    columns, each line has a word and its tag, and an empty line ends a sentence (Tjong Kim Sang and
    De Meulder 2003); lines that begin with -DOCSTART- are skipped. If the first line has tabs, they
    separate the columns of the whole file, whose words may have blanks inside; otherwise blanks do,
    except those that forbid a line break (:func:`.blank_words`). A line that begins with ``#`` and
    a blank is a comment, if it has another number of columns than the words, or a tag that no other
    line has. In JSONL, ``read.text`` is the key of a list of words and ``read.tag`` of a list of as
    many tags.

    Raises:
        ConfigError: The column of tags is unknown.
        DataError: A word has no tag, a line has another number of columns than the first, there
            are more tags than words, or there are no sentences. The message has ``path:line``.
    """
    kind = labeled_format(path, "tag", read.format, where)
    bad = BadRows(path, read.bad_rows, "row" if kind == "jsonl" else "line")
    if kind == "jsonl":
        rows = _word_lists(path, read, where, bad)
    else:
        rows = _sentences((_conllu if kind == "conllu" else _columns)(path, read, where, bad), bad)
    found, prepare = Tagged(path, [], [], []), Preparation.of(read)
    for numbers, sentence, row in rows:
        with bad:
            words = [prepare.line(word) for word in sentence]
            tags = [prepare_label(tag, prepare) for tag in row]
            if not all((*words, *tags)):
                at = [*map(bool, words), *map(bool, tags)].index(False) % len(numbers)
                raise DataError(f"{path}:{numbers[at]}: a word or its tag is blank: fill it in")
            found.lines.append(numbers)
            found.words.append(words)
            found.tags.append(tags)
    bad.report(len(found))
    if not len(found):
        raise DataError(f"{path}: no sentences: it is empty")
    return found


def _sentences(
    rows: Iterable[tuple[int, Row | None]], bad: BadRows
) -> Iterator[tuple[list[int], list[str], list[str]]]:
    """Groups numbered words with tags into sentences, each of which ends before a None.

    A sentence with a bad line is left out.
    """
    words, before = list[tuple[int, Row]](), bad.count
    for number, row in itertools.chain(rows, [(0, None)]):
        if row is not None:
            words.append((number, row))
            continue
        if words and bad.count == before:
            tagged = [word for _, word in words]
            yield [n for n, _ in words], [word for word, _ in tagged], [tag for _, tag in tagged]
        words, before = [], bad.count


def _conllu(
    path: str, read: LabeledOptions, where: str, bad: RowErrors
) -> Iterator[tuple[int, Row | None]]:
    """Yields the line of each word with the word and its tag; None at an empty line."""
    if read.tag not in ("upos", "xpos"):
        raise ConfigError(f"data.read.tag {read.tag}: CoNLL-U has upos and xpos")
    form, tag = _COLUMNS["form"], _COLUMNS[read.tag]
    count = 0  # words of the sentence so far
    for number, line in numbered_lines(path, where, bad):
        if not line or line.isspace():
            count = 0
            yield number, None
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        is_word = not {"-", "."} & {*cells[0]}
        count += is_word
        with bad:
            if len(cells) != 10:
                raise DataError(
                    f"{path}:{number}: {plural(len(cells), 'column')}, but CoNLL-U has 10, "
                    f"separated by tabs: if the lines are words with their tags, give "
                    f"data.read.format columns"
                )
            if not is_word:
                continue
            if cells[0] != str(count):
                needed, count = count, int(cells[0]) if is_number(cells[0]) else count
                raise DataError(
                    f"{path}:{number}: the word has number {cells[0]!r}, but {needed} is needed: "
                    f"words count from 1, and an empty line ends a sentence"
                )
            word = cells[form].strip()
            if not word or cells[tag] in ("", "_"):
                what = f"has no {read.tag} tag" if word else "is empty"
                raise DataError(
                    f"{path}:{number}: the word {word[:40]!r} {what}: fill it in"
                    + (", or choose another column with data.read.tag" if word else "")
                )
            yield number, (word, cells[tag])


def _columns(
    path: str, read: LabeledOptions, where: str, bad: RowErrors
) -> Iterator[tuple[int, Row | None]]:
    """Yields as :func:`_conllu`; a line that begins with -DOCSTART- ends a sentence, too."""
    column = int(read.tag) if is_number(read.tag) else 0
    place = -1 if read.tag == LabeledOptions.tag else max(column - 1, 0)
    if place == 0:
        raise ConfigError(
            f"data.read.tag {read.tag}: columns have numbers, and words are in the first: give a "
            f"number from 2, or leave it out for the last column"
        )
    # Lines that are not text are reported in their place among the others.
    flaws = BadRows(path, kept=sys.maxsize)
    lines = dict(numbered_lines(path, where, flaws))
    layout, unread = _Layout.of([*lines.items()], place), Unread(path, "column")
    unread.note(layout.unread, ())
    unread.report()
    comments, inside, errors = 0, False, iter(flaws.errors)
    for number in range(1, len(lines) + len(flaws.errors) + 1):
        with bad:
            if (line := lines.get(number)) is None:
                raise next(errors)
            if _SENTENCE_END.fullmatch(line):
                inside = False
                yield number, None
                continue
            if layout.is_comment(line, inside, f"{path}:{number}"):
                comments += 1
                continue
            inside = True
            cells = layout.cells(line, f"{path}:{number}")
            yield number, (cells[0], cells[place])
    if comments:
        log(f"{path}: {plural(comments, 'line')} that begin with # left out as comments")


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The columns of a file, as in its first line that can only be a word with its tag.

    Attributes:
        first: The number of that line.
        width: The number of columns.
        tabs: Whether tabs separate them.
        place: Index of the column of tags.
        tags: The tags of all lines that can only be words.
    """

    first: int
    width: int
    tabs: bool
    place: int
    tags: frozenset[str]

    @classmethod
    def of(cls, lines: list[tuple[int, str]], place: int) -> "_Layout":
        """Returns the layout of numbered lines."""
        plain = [
            (number, line)
            for number, line in lines
            if not _MARK.match(line) and not _SENTENCE_END.fullmatch(line)
        ]
        first, example = plain[0] if plain else (0, "")
        tabs = "\t" in example.strip()
        every = (_cells(line, tabs) for _, line in plain)
        tags = frozenset(cells[place] for cells in every if len(cells) > max(1, place))
        return cls(first, len(_cells(example, tabs)), tabs, place, tags)

    @property
    def unread(self) -> list[str]:
        """The numbers of the columns between words and tags that are not read."""
        return [str(i + 1) for i in range(1, self.width) if i != self.place % self.width]

    def cells(self, line: str, where: str) -> list[str]:
        """Returns the cells of a line.

        Raises:
            DataError: Their number is wrong.
        """
        cells, needed = _cells(line, self.tabs), max(2, self.place + 1)
        count = plural(len(cells), "column")
        if len(cells) < needed:
            raise DataError(
                f"{where}: {count}, and the tag is in column {needed}: correct the line, or name "
                f"another by data.read.tag"
            )
        if len(cells) != self.width:
            mark = "tabs" if self.tabs else "blanks"
            hint = "" if self.tabs else "; words with blanks inside need tabs between all columns"
            raise DataError(
                f"{where}: {count} separated by {mark}, but line {self.first} has {self.width}: "
                f"correct the line{hint}"
            )
        return cells

    def is_comment(self, line: str, inside: bool, where: str) -> bool:
        """Returns whether a line is a comment, such as ``# id 7``, and not the word ``#``.

        Args:
            line: The line.
            inside: Whether the line before belongs to the same sentence.
            where: The place of the line, for messages.

        Raises:
            DataError: It may be either.
        """
        if not _MARK.match(line):
            return False
        cells = _cells(line, self.tabs)
        if len(cells) != self.width or ("\t" in line and not self.tabs):
            return True
        if cells[self.place] in self.tags:
            return False
        if inside and cells[0] == "#":
            raise DataError(
                f"{where}: a comment or the word '#' with the tag {cells[self.place]!r}, which "
                f"occurs nowhere else: move a comment before the sentence, or write a tab after "
                f"the word"
            )
        return True


def _cells(line: str, tabs: bool) -> list[str]:
    """Returns the cells of a line, separated by tabs or by blanks."""
    if not tabs:
        return blank_words(line)
    return [cell.strip(" ") for cell in line.rstrip(" \t").split("\t")]


def _word_lists(
    path: str, read: LabeledOptions, where: str, bad: RowErrors
) -> Iterator[tuple[list[int], list[str], list[str]]]:
    unread = Unread(path, "key")
    for number, row in json_rows(path, where, bad):
        with bad:
            unread.note(row.fields, (read.text, read.tag))
            words = _texts(row, read.text, "data.read.text")
            tags = _texts(row, read.tag, "data.read.tag")
            if len(words) != len(tags):
                raise DataError(
                    f"{row.place}: {plural(len(words), 'word')} ({read.text!r}) and "
                    f"{plural(len(tags), 'tag')} ({read.tag!r}): each word needs one tag"
                )
            yield [number] * len(words), words, tags
    unread.report()


def _texts(row: JsonRow, key: str, option: str) -> list[str]:
    """Returns the texts of a list, without blanks at their ends."""
    items, texts = row.fields.get(key), list[str]()
    if not isinstance(items, list) or not items:
        keys = ", ".join(map(repr, row.fields)) or "none"
        raise DataError(
            f"{row.place}: field {key!r} is not a list of texts (the fields are {keys}): name it "
            f"with {option}"
        )
    for i, item in enumerate(items, 1):
        name = f"{key}, item {i}"
        texts.append(JsonRow({name: item}, row.place).text(name, "").strip())
        if not texts[-1]:
            raise DataError(f"{row.place}: field {name!r} is empty: fill it in")
    return texts
