"""Texts for sentence encoders: pairs with scores, or anchors with positives and negatives."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Configuration, Range
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.task_progress import log
from transformer_jax.data.bad_rows import BadRows, Unread
from transformer_jax.data.data_sets import missing_splits
from transformer_jax.data.labeled import LabeledSplits, overlap, read_labeled, select
from transformer_jax.data.labeled_files import (
    LabeledFormat,
    LabeledOptions,
    Sentences,
    Wanted,
    has_label,
    is_number,
    labeled_format,
    table_cells,
)
from transformer_jax.data.pairs import choose_held, warn_none_held
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.splits import HELD_OUT
from transformer_jax.data.tables import (
    CellFormat,
    RowSource,
    chosen_columns,
    first_cells,
    first_object,
    json_rows,
    source_name,
)

__all__ = [
    "Rankings",
    "SimilarityData",
    "SimilarityOptions",
    "SimilarityTask",
    "has_scores",
    "open_similarities",
    "read_compared",
]

SimilarityTask = Literal["scores", "ranking"]

# Usual names of columns and keys, for those that are not given.
_USUAL = {
    "text": ("anchor", "query", "question", "sentence1", "sentence_a", "premise", "title",
             "question1", "sent1"),
    "text_pair": ("positive", "pos", "answer", "document", "passage", "response", "sentence2",
                  "sentence_b", "hypothesis", "question2", "sent2", "abstract", "text_pair"),
}  # fmt: skip
_NEGATIVE = re.compile(r"(hard_)?neg(ative)?s?(_?\d+)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class SimilarityOptions(ReadSettings):
    """Options for reading texts that are compared."""

    text: str = "text"  # column, by name or number from 1, or JSONL key, of the first text
    text_pair: str = "second"  # the same for the second text, or the positive
    label: str = "label"  # the same for the score of a pair
    # The same for hard negatives; a JSONL key may hold a list. None are those called negative,
    # neg, negative_1 and so on.
    negatives: tuple[str, ...] = ()
    header: bool | None = None  # a table has a line of names; None: if a column is given by name
    format: LabeledFormat = "auto"  # tsv, csv or jsonl; auto is by the extension
    # Fraction of training held out if no validation file is given, 0 to 0.5; of pairs without
    # scores at most 0.1.
    validation_size: Annotated[float, Range(0, 0.5)] = 0.1

    @property
    def labeled(self) -> LabeledOptions:
        """Returns the options of pairs with scores."""
        names = {field.name for field in dataclasses.fields(LabeledOptions)}
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        return LabeledOptions(pair=True, **{k: v for k, v in own.items() if k in names})


@dataclasses.dataclass(frozen=True)
class SimilarityData(Configuration, group="data"):
    """The source of texts that are compared; set train."""

    # Training file (.tsv, .csv, .jsonl, .parquet; .gz too) of pairs with scores, or of anchors with
    # a positive and, optionally, hard negatives.
    train: str | None = None
    valid: str | None = None  # validation file; without it, a part of training is held out
    test: str | None = None  # test file
    read: SimilarityOptions = SimilarityOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("text", "text_pair", "label"):
            if not getattr(self.read, name):
                raise ConfigError(
                    f"data.read.{name} is empty: name the column or field that holds it"
                )


@dataclasses.dataclass(frozen=True)
class Rankings(Sentences):
    """Anchors (``texts``), positives (``text_pairs``), and hard negatives of each; no labels."""

    negatives: list[list[str]] = dataclasses.field(default_factory=list)


def has_scores(data: SimilarityData) -> bool:
    """Returns whether the training file has a column or key of scores.

    Raises:
        ConfigError: There is no training file.
        DataError: It cannot be read.
    """
    path, read = _train(data), data.read
    kind = labeled_format(path, "pair", read.format, "data.train")
    if kind == "jsonl":
        return has_label(first_object(path, "data.train"), read.label)
    if is_number(read.text) or read.header is False:
        return is_number(read.label)
    cells = first_cells(path, "csv" if kind == "csv" else "tsv", "data.train")
    return is_number(read.label) or has_label(cells, read.label)


def open_similarities(data: SimilarityData, task: SimilarityTask) -> LabeledSplits:
    """Loads training, validation and test examples.

    Without ``data.valid``, examples are held out from training: of pairs with scores, those with
    the same first text stay together; of others, those that share a text.

    Raises:
        ConfigError: The settings name no data.
        DataError: A file cannot be read.
    """
    from transformer_jax.data.labeled import LabeledData, open_labeled

    read, path = data.read, _train(data)
    if task == "scores":
        if read.negatives:
            raise ConfigError("data.read.negatives: pairs with scores have no negatives")
        labeled = LabeledData(path, data.valid, data.test, read=read.labeled)
        return open_labeled(labeled, "regress")
    data = dataclasses.replace(data, **missing_splits(data))
    train = read_rankings(path, read, "data.train")
    tests = {}
    if data.test is not None:
        tests["test"] = read_rankings(data.test, read, "data.test")
    overlaps = [overlap(train, part) for part in tests.values()]
    if data.valid is not None:
        valid: Rankings | None = read_rankings(data.valid, read, "data.valid")
        assert valid is not None
        overlaps.insert(0, overlap(train, valid))
        return LabeledSplits(train, valid, tests, tuple(overlaps))
    assert train.text_pairs is not None
    count = round(read.validation_size * len(train))
    held = choose_held(train.texts, train.text_pairs, count)
    if not any(held):
        warn_none_held(train.name, count)
        return LabeledSplits(train, None, tests, tuple(overlaps))
    rest = select(train, [not one for one in held], "")
    return LabeledSplits(rest, select(train, held, HELD_OUT), tests, tuple(overlaps))


def read_compared(
    path: RowSource,
    task: SimilarityTask,
    read: SimilarityOptions = SimilarityOptions(),
    where: str = "data.train",
) -> Sentences:
    """Reads the examples of one file, or of objects in Python, see :func:`open_similarities`."""
    if task == "ranking":
        return read_rankings(path, read, where)
    found = read_labeled(path, "regress", read.labeled, where)
    assert isinstance(found, Sentences)
    return found


def read_rankings(
    path: RowSource, read: SimilarityOptions = SimilarityOptions(), where: str = "data.train"
) -> Rankings:
    """Reads anchors with positives and hard negatives. Empty lines are skipped.

    A JSONL key may hold a list of positives, each of which is an example, or of negatives. Columns
    and keys that are not given are chosen by their usual names, and a line says so.

    Raises:
        ConfigError: A column is unknown.
        DataError: A text is empty, or both an anchor's positive and negative; or there are no
            examples.

    Example:
        >>> read_rankings([{"query": "Who?", "pos": ["Ada.", "Ada Lovelace."]}]).text_pairs
        ['Ada.', 'Ada Lovelace.']
    """
    kind, name = labeled_format(path, "pair", read.format, where), source_name(path)
    bad, prepare = BadRows(name, read.bad_rows), Preparation.of(read)
    if kind == "jsonl":
        rows = _json(path, read, where, bad)
    else:
        rows = _table(name, "csv" if kind == "csv" else "tsv", read, where, bad)
    found = Rankings(name, [], [], [], [], [])
    assert found.text_pairs is not None
    for line, anchor, positives, negatives in rows:
        with bad:
            texts = [prepare.line(anchor), *map(prepare.line, positives)]
            if not positives or not all(texts):
                raise DataError(
                    f"{name}:{line}: the {'text' if not texts[0] else 'text_pair'} is empty: fill "
                    f"it in, or remove the line"
                )
            # A table has as many cells in every row.
            others = [text for text in map(prepare.line, negatives) if text]
            if both := {*others} & {*texts}:
                raise DataError(
                    f"{name}:{line}: {min(both)[:40]!r} is a negative and the anchor or its "
                    f"positive: remove one"
                )
            for positive in texts[1:]:
                found.texts.append(texts[0])
                found.text_pairs.append(positive)
                found.negatives.append(others)
                found.lines.append(line)
    bad.report(len(found))
    if not len(found):
        raise DataError(f"{name}: no examples: it is empty, or has only a header")
    return found


_Row = tuple[int, str, list[str], list[str]]  # line, anchor, positives, negatives


def _named(names: Sequence[str], read: SimilarityOptions, path: str) -> tuple[str, str, list[str]]:
    """Returns the columns or keys of anchor, positive and negatives; says which were chosen."""
    usual = {
        column: _USUAL[option]
        for option, column in (("text", read.text), ("text_pair", read.text_pair))
        if column == getattr(SimilarityOptions, option)
    }
    chosen = chosen_columns(names, usual, path)
    first, second = (chosen.get(name, name) for name in (read.text, read.text_pair))
    negatives = list(read.negatives)
    if not negatives:
        negatives = [name.strip() for name in names if _NEGATIVE.fullmatch(name.strip())]
        if negatives:
            log(f"{path}: hard negatives are {', '.join(map(repr, negatives))}")
    return first, second, negatives


def _table(
    path: str, kind: CellFormat, read: SimilarityOptions, where: str, bad: BadRows
) -> Iterator[_Row]:
    first, second, others = read.text, read.text_pair, list(read.negatives)
    if not (is_number(first) or read.header is False):
        header = first_cells(path, kind, where)
        first, second, others = _named(header, read, path)
    fields = [("text", first), ("text_pair", second)]
    wanted = Wanted((*fields, *(("negatives", other) for other in others)), {}, "")
    for line, cells in table_cells(path, kind, wanted, read.header, where, bad):
        yield line, cells[0], [cells[1]], cells[2:]


def _json(path: RowSource, read: SimilarityOptions, where: str, bad: BadRows) -> Iterator[_Row]:
    name = source_name(path)
    first, second, others = _named([*first_object(path, where)], read, name)
    unread = Unread(name, "key")
    for line, row in json_rows(path, where, bad):
        with bad:
            unread.note(row.fields, (first, second, *others))
            anchor = row.text(first, "name it with data.read.text")
            positives = row.texts(second, "name it with data.read.text-pair")
            hint = "name it with data.read.negatives"
            negatives = itertools.chain.from_iterable(row.texts(one, hint) for one in others)
            yield line, anchor, positives, [*negatives]
    unread.report()


def _train(data: SimilarityData) -> str:
    if data.train is None:
        raise ConfigError(
            "no training data: give data.train, a .tsv, .csv or .jsonl file of pairs of texts with "
            "scores, or of pairs that belong together"
        )
    return data.train
