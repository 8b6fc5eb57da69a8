"""Words with tags from files: CoNLL-U, columns, JSONL."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.labeled_files import (
    LabeledOptions,
    is_number,
    labeled_format,
    prepare_label,
)
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.tables import parse_object, text_field
from transformer_jax.data.text import read_lines

__all__ = ["Tagged", "read_tagged"]

_COLUMNS = {"form": 1, "upos": 3, "xpos": 4}  # CoNLL-U columns, from 0


@dataclasses.dataclass(frozen=True)
class Tagged:
    """Sentences as lists of words, with a tag per word."""

    name: str
    words: list[list[str]]
    tags: list[list[str]]
    lines: list[int] = dataclasses.field(default_factory=list)  # first line of each sentence

    def __len__(self) -> int:
        return len(self.words)


def read_tagged(
    path: str, read: LabeledOptions = LabeledOptions(), where: str = "data.train"
) -> Tagged:
    """Reads the words and tags of a file in CoNLL-U, in columns, or in JSONL.

    In CoNLL-U, comments, multi-word ranges (``1-2``) and empty nodes (``1.1``) are skipped. In
    columns, each line has a word and its tag, separated by blanks or tabs, and an empty line ends a
    sentence (Tjong Kim Sang and De Meulder 2003); lines that begin with -DOCSTART- are skipped. In
    JSONL, ``read.text`` is the key of a list of words and ``read.tag`` of a list of as many tags.

    Raises:
        ConfigError: The column of tags is unknown.
        DataError: A word has no tag, there are more tags than words, or there are no sentences. The
            message has ``path:line``.
    """
    kind = labeled_format(path, "tag", read.format, where)
    if kind == "jsonl":
        rows = _word_lists(path, read, where)
    else:
        rows = _sentences((_conllu if kind == "conllu" else _columns)(path, read, where))
    lines, words, tags = [], [], []
    prepare = Preparation.of(read)
    for line, sentence, row in rows:
        lines.append(line)
        words.append([prepare.line(word) for word in sentence])
        tags.append([prepare_label(tag, prepare) for tag in row])
    if not words:
        raise DataError(f"{path}: no sentences: it is empty")
    return Tagged(path, words, tags, lines)


def _sentences(
    rows: Iterable[tuple[int, tuple[str, str] | None]],
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Groups numbered words with tags into sentences, each of which ends before a None."""
    begin = 0
    words: list[str] = []
    tags: list[str] = []
    for number, row in itertools.chain(rows, [(0, None)]):
        if row is None:
            if words:
                yield begin, words, tags
            words, tags = [], []
            continue
        begin = begin if words else number
        words.append(row[0])
        tags.append(row[1])


def _conllu(
    path: str, read: LabeledOptions, where: str
) -> Iterator[tuple[int, tuple[str, str] | None]]:
    """Yields the line of each word with the word and its tag; None at an empty line."""
    if read.tag not in ("upos", "xpos"):
        raise ConfigError(f"data.read.tag {read.tag}: CoNLL-U has upos and xpos")
    form, tag = _COLUMNS["form"], _COLUMNS[read.tag]
    count = 0  # words of the sentence so far
    for number, line in enumerate(read_lines(path, where), 1):
        if not line or line.isspace():
            count = 0
            yield number, None
            continue
        if line.startswith("#"):
            continue
        cells = line.split("\t")
        if len(cells) != 10:
            raise DataError(
                f"{path}:{number}: {plural(len(cells), 'column')}, but CoNLL-U has 10, separated "
                f"by tabs: if the lines are words with their tags, give data.read.format columns"
            )
        if "-" in cells[0] or "." in cells[0]:
            continue
        count += 1
        if cells[0] != str(count):
            raise DataError(
                f"{path}:{number}: the word has number {cells[0]!r}, but {count} is needed: words "
                f"count from 1, and an empty line ends a sentence"
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
    path: str, read: LabeledOptions, where: str
) -> Iterator[tuple[int, tuple[str, str] | None]]:
    """Yields as :func:`_conllu`; a line that begins with -DOCSTART- ends a sentence, too."""
    column = int(read.tag) if is_number(read.tag) else 0
    place = -1 if read.tag == LabeledOptions.tag else max(column - 1, 0)
    if place == 0:
        raise ConfigError(
            f"data.read.tag {read.tag}: columns have numbers, and words are in the first: give a "
            f"number from 2, or leave it out for the last column"
        )
    for number, line in enumerate(read_lines(path, where), 1):
        cells = line.split()
        if not cells or cells[0] == "-DOCSTART-":
            yield number, None
        elif len(cells) < max(2, place + 1):
            raise DataError(
                f"{path}:{number}: {plural(len(cells), 'column')}, and the tag is in column "
                f"{max(2, place + 1)}: correct the line, or name another by data.read.tag"
            )
        else:
            yield number, (cells[0], cells[place])


def _word_lists(
    path: str, read: LabeledOptions, where: str
) -> Iterator[tuple[int, list[str], list[str]]]:
    for number, line in enumerate(read_lines(path, where), 1):
        if not line:
            continue
        row = parse_object(line, path, number)
        lists = []
        for option, key in (("text", read.text), ("tag", read.tag)):
            found = row.get(key)
            if not isinstance(found, list) or not found:
                keys = ", ".join(map(repr, row)) or "none"
                raise DataError(
                    f"{path}:{number}: field {key!r} is not a list of texts (the fields are "
                    f"{keys}): name it with data.read.{option}"
                )
            for i, item in enumerate(found, 1):
                name = f"{key}, item {i}"
                if not text_field({name: item}, name, path, number, "").strip():
                    raise DataError(f"{path}:{number}: field {name!r} is empty: fill it in")
            lists.append([item.strip() for item in found])
        words, tags = lists
        if len(words) != len(tags):
            raise DataError(
                f"{path}:{number}: {plural(len(words), 'word')} ({read.text!r}) and "
                f"{plural(len(tags), 'tag')} "
                f"({read.tag!r}): each word needs one tag"
            )
        yield number, words, tags
