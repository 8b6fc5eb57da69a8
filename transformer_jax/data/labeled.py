"""Labeled examples for fine-tuning, from files or TFDS."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from transformer_jax.core.config_fields import Configuration
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data import tfds
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.classes import class_numbers, sort_classes, spelling
from transformer_jax.data.data_sets import missing_splits
from transformer_jax.data.labeled_files import (
    LabeledFormat,
    LabeledOptions,
    LabeledTask,
    Sentences,
    Tagged,
    collect_sentences,
    has_second,
    labeled_format,
    read_sentences,
    read_tagged,
)
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.splits import HELD_OUT, DataSplits, held_by_hash, refuse_several
from transformer_jax.data.squad import Questions, SquadAnswer, read_question_rows, read_questions
from transformer_jax.data.tables import RowSource
from transformer_jax.data.tag_schemes import marks_entities, scheme_of

__all__ = [
    "Labeled",
    "LabeledData",
    "LabeledFormat",
    "LabeledOptions",
    "LabeledSplits",
    "LabeledTask",
    "Questions",
    "Sentences",
    "SquadAnswer",
    "Tagged",
    "in_scheme_of",
    "label_indices",
    "label_names",
    "numbered_labels",
    "open_labeled",
    "overlap",
    "place_of",
    "read_labeled",
    "select",
]

Labeled = Sentences | Tagged | Questions
_WITHHELD = {"", "-1", "-1.0"}  # labels of test data that are kept secret
Place: TypeAlias = tuple[int, int]  # index of an example, and of a word in it


@dataclasses.dataclass(frozen=True)
class LabeledData(Configuration, group="data"):
    """The source of labeled examples; set train or tfds."""

    # Training file: .tsv, .csv, .jsonl, .parquet, .conllu, .conll or .json (SQuAD); .gz too.
    train: str | None = None
    valid: str | None = None  # validation file; without it, a part of training is held out
    test: str | None = None  # test file
    tfds: str | None = None  # a TensorFlow Datasets name, e.g. glue/sst2
    tfds_dir: str | None = None  # its folder; None is TFDS_DATA_DIR or ~/tensorflow_datasets
    read: LabeledOptions = LabeledOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)


@dataclasses.dataclass(frozen=True)
class LabeledSplits(DataSplits[Any]):
    """All examples of a run: :data:`Labeled` of one kind."""


def check(data: LabeledData) -> None:
    """Refuses several sources of data, and settings out of range.

    Raises:
        ConfigError: The settings are invalid; the message names them.
    """
    refuse_several(data, "train", "tfds")
    for name in ("text", "text_pair", "label", "tag"):
        if not getattr(data.read, name):
            raise ConfigError(f"data.read.{name} is empty: name the column or field that holds it")


def open_labeled(data: LabeledData, task: LabeledTask) -> LabeledSplits:
    """Loads training, validation and test examples.

    Validation examples come from ``data.valid``, or from the data set's own validation split, or
    are held out from training, chosen by a hash of the text, independent of the order of lines. All
    examples of one text (first sentence, paragraph) stay together.

    Raises:
        ConfigError: The settings name no data, or its format does not suit the task.
        DataError: A file cannot be read.
    """
    read, given = data.read, data
    has_second(task, read)
    data = dataclasses.replace(data, **missing_splits(data))
    if data.tfds is not None:
        splits = _tfds(data.tfds, data.tfds_dir, task, read)
    elif data.train is not None:
        splits = LabeledSplits(read_labeled(data.train, task, read, "data.train"), None, {})
    else:
        raise ConfigError(f"no training data for the task {task}: give data.train or data.tfds")
    train, valid, tests = splits.train, splits.valid, dict(splits.tests)
    if data.valid is not None:
        valid = read_labeled(data.valid, task, read, "data.valid")
    elif valid is None and read.validation_size > 0:
        train, valid = _hold_out(train, read.validation_size)
    if data.test is not None:
        test = read_labeled(data.test, task, read, "data.test")
        if given.test is None and {label for _, label in numbered_labels(test)} <= _WITHHELD:
            log(f"{test.name}: the labels are withheld: the split is left out")
            data = dataclasses.replace(data, test=None)
        else:
            tests["test"] = test
    if isinstance(train, Tagged) and (scheme := scheme_of(train.tags)) is not None:
        valid = valid and valid.in_scheme(scheme)
        tests = {split: part.in_scheme(scheme) for split, part in tests.items()}
    held = [valid] * (data.valid is not None) + [tests.get("test")] * (data.test is not None)
    overlaps = tuple(overlap(train, part) for part in held if part is not None)
    return LabeledSplits(train, valid, tests, overlaps)


def read_labeled(
    path: RowSource,
    task: LabeledTask,
    read: LabeledOptions = LabeledOptions(),
    where: str = "data.train",
) -> Labeled:
    """Reads the examples of one file, or of objects in Python.

    Args:
        path: The file; or objects, such as a ``datasets.Dataset``.
        task: The task.
        read: Format, and columns or keys.
        where: Name of the setting with ``path``, for messages.

    Raises:
        ConfigError: The format of the file does not suit the task.
        DataError: The file cannot be read; the message has ``path:line``, or names the question.

    Example:
        >>> read_labeled([{"sentence": "Good.", "label": "yes"}], "classify").texts
        ['Good.']
    """
    if task == "qa":
        rows = labeled_format(path, task, read.format, where) == "jsonl"
        reader = read_question_rows if rows else read_questions
        return reader(path, Preparation.of(read), where, read.bad_rows)
    if task == "tag":
        return read_tagged(path, read, where)
    return read_sentences(path, task, read, where)


def in_scheme_of(part: Labeled, labels: Sequence[str]) -> Labeled:
    """Returns words with their entities marked as by the tags of a model; a line says so.

    Tags with B and I alone may be of IOB1 or IOB2, so files in these two are left as they are.

    Example:
        >>> part = Tagged("gold", [["Ada", "Lovelace"]], [["B-PER", "E-PER"]])
        >>> in_scheme_of(part, ("B-PER", "I-PER", "O")).tags
        [['B-PER', 'I-PER']]
    """
    letters = {label[:1] for label in labels}
    if not isinstance(part, Tagged) or not marks_entities(labels):
        return part
    if letters & {*"LU"}:
        return part.in_scheme("bilou")
    if letters & {*"ES"}:
        return part.in_scheme("bioes")
    if "B" in letters and scheme_of(part.tags) in ("iob1", "iob2"):
        return part
    return part.in_scheme("iob2" if "B" in letters else "iob1")


def label_names(splits: LabeledSplits, task: LabeledTask) -> tuple[str, ...]:
    """Returns the classes or tags of the training examples: sorted, numbers by value.

    Regression and answers have none.

    Raises:
        DataError: There is only one class, or a validation or test example has an unknown one.

    Example:
        >>> train = Sentences("example", ["a", "b", "c"], None, ["10", "9", "10"])
        >>> label_names(LabeledSplits(train, None, {}), "classify")
        ('9', '10')
    """
    if task in ("regress", "qa"):
        return ()
    what = "tag" if task == "tag" else "class"
    found = {label for _, label in numbered_labels(splits.train)}
    if len(found) < 2:
        option = "tag" if task == "tag" else "label"
        raise DataError(
            f"{splits.train.name}: all examples have the {what} {found.pop()!r}: at least two "
            f"are needed; is data.read.{option} the right column?"
        )
    names = sort_classes(found)
    for part in (splits.valid, *splits.tests.values()):
        for place, label in numbered_labels(part) if part is not None else ():
            if label not in found:
                assert part is not None
                raise DataError(_unseen(part, place, what, label, names))
    return names


def place_of(part: Labeled, place: Place) -> str:
    """Returns the file and line of a label, for messages."""
    (i, word), file = place, part.name.removesuffix(HELD_OUT)
    if isinstance(part, Questions) or not part.lines:
        return f"{file}: example {i + 1}"
    return f"{file}:{part.lines[i][word] if isinstance(part, Tagged) else part.lines[i]}"


def _unseen(part: Labeled, at: Place, what: str, label: str, names: tuple[str, ...]) -> str:
    file, place = part.name.removesuffix(HELD_OUT), place_of(part, at)
    do = "correct the label, or add such examples to the training file"
    if twins := [repr(name) for name in names if spelling(name) == spelling(label)]:
        do = f"{' and '.join(twins)} differs only in case or blanks: correct the label"
    elif file != part.name:
        do = "it was held out, so add more such examples, give data.valid, or set " \
             "data.read.validation_size to 0"  # fmt: skip
    return f"{place}: the {what} {label!r} does not occur in training ({_shown(names)}): {do}"


def label_indices(part: Labeled, names: Sequence[str]) -> list[int]:
    """Returns the index of the label of each example, or of the tag of each word.

    Raises:
        DataError: A label is not one of ``names``; the message has its file and line.

    Example:
        >>> label_indices(Sentences("example", ["a", "b"], None, ["yes", "no"]), ("no", "yes"))
        [1, 0]
    """
    numbers = class_numbers(names)
    for place, label in numbered_labels(part):
        if label not in numbers:
            what = "tag" if isinstance(part, Tagged) else "class"
            raise DataError(
                f"{place_of(part, place)}: the {what} {label!r} is not one of the run "
                f"({_shown(names)}): have the data changed since the run began? Restore "
                f"them, or begin a new run"
            )
    return [numbers[label] for _, label in numbered_labels(part)]


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")


def numbered_labels(part: Labeled) -> list[tuple[Place, str]]:
    """The labels of examples, each with the index of its example and of its word."""
    if isinstance(part, Sentences):
        return [((i, 0), label) for i, label in enumerate(part.labels)]
    if isinstance(part, Tagged):
        return [((i, k), tag) for i, tags in enumerate(part.tags) for k, tag in enumerate(tags)]
    return []


def overlap(train: Labeled, held: Labeled) -> str:
    """Returns a line about the texts of ``held`` that also occur in the training examples."""
    known, texts = set(_texts(train)), _texts(held)
    shared = sum(text in known for text in texts)
    return f"{held.name}: {shared:,} of {plural(len(texts), 'text')} are also in the training data"


def _texts(part: Labeled) -> list[str]:
    """The text of each example, by which splits are kept disjoint."""
    if isinstance(part, Sentences):
        seconds = part.text_pairs or [""] * len(part)
        return ["\t".join(both) for both in zip(part.texts, seconds, strict=True)]
    if isinstance(part, Tagged):
        return ["\t".join(words) for words in part.words]
    return part.contexts


def _hold_out(whole: Labeled, share: float) -> tuple[Labeled, Labeled]:
    """Splits examples into training and validation, about ``share`` of the texts."""
    texts = whole.texts if isinstance(whole, Sentences) else _texts(whole)
    alone = f"{whole.name}: all {len(texts)} examples have one text"
    held = held_by_hash([text.encode() for text in texts], share, alone)
    return select(whole, [not chosen for chosen in held], ""), select(whole, held, HELD_OUT)


Part = TypeVar("Part", bound=Labeled)


def select(whole: Part, keep: Sequence[bool], mark: str) -> Part:
    """Selects the examples to keep, in every list of the same length.

    Args:
        whole: All examples.
        keep: Whether to keep each.
        mark: The end of their name.
    """
    changes: dict[str, Any] = {"name": whole.name + mark}
    for field in dataclasses.fields(whole):
        items = getattr(whole, field.name)
        if isinstance(items, list) and items:
            changes[field.name] = [item for item, kept in zip(items, keep, strict=True) if kept]
    return dataclasses.replace(whole, **changes)


def _tfds(name: str, folder: str | None, task: LabeledTask, read: LabeledOptions) -> LabeledSplits:
    if task in ("tag", "qa"):
        raise ConfigError(f"data.tfds has sentences with labels, not for the task {task}: give "
                          f"data.train, a file")  # fmt: skip
    second = has_second(task, read)
    texts = (read.text, read.text_pair) if second else (read.text,)
    reader = tfds.open_labeled(name, folder, texts, read.label, numbers=task == "regress")
    validation = reader.validation(("validation", "valid", "dev", "val", "validation_matched"))

    def make(split: str) -> Sentences | None:
        """Reads a split; None if its labels are withheld (-1)."""
        rows = list(enumerate(reader.rows(split)))
        if {row[-1] for _, row in rows} <= _WITHHELD:
            return None
        bad = BadRows(f"{name} {split}", read.bad_rows, "example")
        return collect_sentences(rows, bad, task, second, Preparation.of(read))

    train = make("train")
    if train is None:
        raise DataError(f"{name} train: no example has a label")
    tests = {
        split: part
        for split in reader.splits
        if split.startswith(("test", "validation_")) and split != validation
        if (part := make(split)) is not None
    }
    return LabeledSplits(train, make(validation) if validation else None, tests)
