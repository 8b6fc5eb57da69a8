"""Documents from text files and folders, JSONL, TFDS or a built-in corpus."""

import dataclasses
import hashlib
import importlib
import os
import pathlib
import platform
from collections.abc import Iterator
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Configuration, Count, Range
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.task_progress import log
from transformer_jax.data import tfds
from transformer_jax.data.bad_rows import BadRows, Unread, log_unread
from transformer_jax.data.data_sets import is_data_set, missing_splits, table_files
from transformer_jax.data.document_stream import (
    DocumentStream,
    TextChunk,
    ValidationSplit,
    read_blocks,
)
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.splits import DataSplits, refuse_several
from transformer_jax.data.tables import (
    RowSource,
    TableFormat,
    first_cells,
    json_rows,
    object_rows,
    source_name,
    table_format,
)
from transformer_jax.data.text import local_data, read_lines, refuse_pipe

__all__ = [
    "DocumentStream",
    "TextChunk",
    "TextData",
    "TextOptions",
    "TextSplits",
    "file_identity",
    "open_texts",
    "read_texts",
]

_ENDINGS = (".txt", ".txt.gz", ".md")
_WITH_CELLS = ("csv", "tsv")


@dataclasses.dataclass(frozen=True)
class TextOptions(ReadSettings):
    """Options of reading documents."""

    documents: Literal["file", "blank", "line"] = "file"  # a file, a blank-line block, or a line
    field: str = "text"  # the JSONL key or TFDS feature that holds the text
    # Fraction of training held out if no validation text is given, 0 to 0.5.
    validation_size: Annotated[float, Range(0, 0.5)] = 0.1
    corpus_size: Count = 20_000  # number of documents of the corpus in-context


@dataclasses.dataclass(frozen=True)
class TextData(Configuration, group="data"):
    """The source of documents; set one of corpus, text, jsonl, tfds."""

    corpus: Literal["python-docs", "python-library", "in-context"] | None = None  # built-in
    text: str | None = None  # a text file (.gz is unpacked), or a folder of .txt, .txt.gz, .md
    jsonl: str | None = None  # a file with a JSON object per line (.gz too), .parquet, .csv, .tsv
    tfds: str | None = None  # a TensorFlow Datasets name, e.g. lm1b
    tfds_dir: str | None = None  # its folder; None is TFDS_DATA_DIR or ~/tensorflow_datasets
    valid: str | None = None  # validation text: a file, a folder, or a table, as for jsonl
    test: str | None = None  # test text: a file, a folder, or a table, as for jsonl
    read: TextOptions = TextOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)


@dataclasses.dataclass(frozen=True)
class TextSplits(DataSplits[DocumentStream]):
    """All documents of a run."""

    @property
    def scored(self) -> dict[str, DocumentStream]:
        """Returns the texts for scoring a finished run, by name: test texts, or validation text."""
        if self.tests or self.valid is None:
            return dict(self.tests)
        return {"valid": self.valid}


def check(data: TextData) -> None:
    """Refuses several sources of data, and settings out of range.

    Raises:
        ConfigError: The settings are invalid; the message names them.
    """
    refuse_several(data, "corpus", "text", "jsonl", "tfds")
    if not data.read.field:
        raise ConfigError("data.read.field is empty: name the field that holds the text")


def open_texts(data: TextData) -> TextSplits:
    """Opens training, validation and test documents; nothing is read yet.

    Validation text comes from ``data.valid``, or from the validation split of the corpus or data
    set, or is held out from training (``ValidationSplit``).

    Raises:
        ConfigError: The settings name no data.
        DataError: A file is missing or empty. Errors in its content are raised on reading.
    """
    data = dataclasses.replace(data, **missing_splits(data, "jsonl"))
    if data.corpus is not None:
        splits = _corpus(data.corpus, data.read)
    elif data.tfds is not None:
        splits = _tfds(data.tfds, data.tfds_dir, data.read)
    elif data.text is not None:
        splits = TextSplits(_text(data.text, data.read, "data.text"), None, {})
    elif data.jsonl is not None:
        splits = TextSplits(_jsonl(data.jsonl, data.read, "data.jsonl"), None, {})
    else:
        raise ConfigError(
            "no training data: give data.text, data.jsonl, data.tfds or data.corpus python-docs"
        )
    train, valid, tests = splits.train, splits.valid, dict(splits.tests)
    if data.valid is not None:
        valid = _read_beside(data, data.valid, "data.valid")
    elif valid is None and data.read.validation_size > 0:
        parts = ValidationSplit(train, data.read.validation_size)
        train, valid = parts.train, parts.valid
    if data.test is not None:
        tests["test"] = _read_beside(data, data.test, "data.test")
    return TextSplits(train, valid, tests)


def _read_beside(data: TextData, path: str, where: str) -> DocumentStream:
    """Returns validation or test documents; CSV and TSV are read as the training texts are."""
    if _format(path) in _WITH_CELLS:
        if data.jsonl is not None:
            return _jsonl(path, data.read, where)
        if data.text is not None and _format(data.text) in _WITH_CELLS:
            return _text(path, data.read, where)
    return read_texts(path, data.read, where)


def read_texts(
    source: RowSource, read: TextOptions = TextOptions(), where: str = "data.text"
) -> DocumentStream:
    """Returns the documents of a text file or folder, or of a table of objects, by the extension.

    CSV and TSV are tables if the first line has ``read.field``, and otherwise texts.

    Args:
        source: The file or folder; or objects in Python, such as a ``datasets.Dataset``.
        read: How to split a text file into documents, the key of objects, and lower-casing.
        where: Name of the setting with the path, for messages.

    Raises:
        DataError: It is missing or empty.

    Example:
        >>> [chunk.text for chunk in read_texts([{"text": "one"}, {"text": "two"}])]
        ['one', 'two']
    """
    if not isinstance(source, str | os.PathLike):
        hint = "name it with data.read.field"
        texts = [row.text(read.field, hint) for _, row in json_rows(source)]
        return _listed(texts, source_name(source), read)
    path = os.fspath(source)
    format = _format(path)
    table = format is not None
    if format == "csv" or format == "tsv":
        try:
            names = first_cells(local_data(path, where), format, where)
        except DataError:  # of a text that begins with a quote
            names = []
        table = read.field in map(str.strip, names)
    return (_jsonl if table else _text)(path, read, where)


def _format(path: str) -> TableFormat | None:
    """Returns the format of a table by its name; None of a text or a folder of texts."""
    if os.path.isdir(path) and not is_data_set(path):
        return None
    try:
        return table_format(path)
    except ConfigError:
        return None


def _text(path: str, read: TextOptions, where: str) -> DocumentStream:
    root = local_data(path, where)
    files = [root]
    if is_data_set(root):
        raise DataError(f"{where} {path}: the folder of a data set: give it as data.jsonl")
    if root.is_file() and (root.suffix.lower() == ".json" or _format(path) is not None):
        hint = "texts in a column are read if data.read.field names it"
        if where == "data.text":
            hint = "give it as data.jsonl to read the texts in it"
        log(
            f"warning: {where} {path}: a table that is read as text, with its keys and quotes: "
            f"{hint}"
        )
    if os.path.isdir(root):
        files, others = [], list[str]()
        for file in sorted(root.rglob("*"), key=pathlib.Path.as_posix):
            inner = file.relative_to(root)
            if file.name.lower().endswith(_ENDINGS) and file.is_file():
                files.append(file)
            elif file.is_file() and not any(part.startswith(".") for part in inner.parts):
                others.append(str(inner))
        log_unread(path, others)
        if not files:
            raise DataError(f"{where} {path}: no {', '.join(_ENDINGS)} file in this folder")
    reader = {"file": _whole, "blank": _paragraphs, "line": _lines}[read.documents]

    def chunks() -> Iterator[TextChunk]:
        for file in files:
            yield from reader(file, where)

    identity = file_identity(files, where, read.documents, *_identity(read))
    return DocumentStream(path, identity, chunks, Preparation.of(read))


def _jsonl(path: str, read: TextOptions, where: str) -> DocumentStream:
    skips = ["skip"] * (read.bad_rows == "skip")
    files = [local_data(file, where) for file in table_files(path, where)]
    identity = file_identity(files, where, "jsonl", read.field, *_identity(read), *skips)
    unread, counts = Unread(path, "key"), dict[str, int]()

    def rows(bad: BadRows) -> Iterator[TextChunk]:
        for _, row in object_rows(path, where, bad):
            with bad:
                text = ""
                if row is not None:
                    unread.note(row.fields, (read.field,))
                    text = row.text(read.field, "name it with data.read.field")
                yield TextChunk(text, True)
        unread.report()
        counts.update({"bad": bad.count} if bad.count else {})

    def chunks() -> Iterator[TextChunk]:
        bad = BadRows(path, read.bad_rows)
        return bad.checked(rows(bad))

    return DocumentStream(path, identity, chunks, Preparation.of(read), counts)


def _whole(path: pathlib.Path, where: str) -> Iterator[TextChunk]:
    for block in read_blocks(path, where):
        yield TextChunk(block, False)
    yield TextChunk("", True)


def _lines(path: pathlib.Path, where: str) -> Iterator[TextChunk]:
    for line in read_lines(path, where):
        yield TextChunk(line, True)


def _paragraphs(path: pathlib.Path, where: str) -> Iterator[TextChunk]:
    """The documents between blank lines, without the last line end of each."""
    begun = False
    for line in read_lines(path, where):
        if line and not line.isspace():
            yield TextChunk(f"\n{line}" if begun else line, False)
            begun = True
        elif begun:
            yield TextChunk("", True)
            begun = False
    if begun:
        yield TextChunk("", True)


def file_identity(files: list[pathlib.Path], where: str, *options: object) -> str:
    """The identity, by size and times, of files that are too large to hash.

    The time of the last change of a file's entry is one of them, since others can be set at will.
    """
    seen = []
    for file in files:
        try:
            said = file.stat()
        except FileNotFoundError:
            raise DataError(
                f"{where} {file}: no such file (looked from {pathlib.Path.cwd()})"
            ) from None
        except OSError as error:
            raise DataError(f"{where} {file}: cannot be read: {error.strerror or error}") from None
        if file.is_dir():
            raise DataError(f"{where} {file}: this is a folder; a file is needed")
        refuse_pipe(file, where)
        seen.append((str(file.resolve()), said.st_size, said.st_mtime_ns, said.st_ctime_ns))
    if not any(size for _, size, *_ in seen):
        raise DataError(f"{where} {files[0]}: no text: it is empty")
    return hashlib.sha256(repr((seen, options)).encode()).hexdigest()


def _identity(read: TextOptions) -> list[object]:
    """The preparation options for a checksum; earlier versions did not normalize."""
    return [read.lowercase, *[read.normalization] * (read.normalization != "none")]


def _listed(documents: list[str], name: str, read: TextOptions) -> DocumentStream:
    digest = hashlib.sha256("\0".join(documents).encode()).hexdigest()
    lowercase, *more = _identity(read)
    version = platform.python_version()
    identity = " ".join(
        [name, f"lowercase={lowercase}", f"python={version}", digest, *map(str, more)]
    )
    chunks = lambda: (TextChunk(text, True) for text in documents)
    return DocumentStream(name, identity, chunks, Preparation.of(read))


def _corpus(name: str, read: TextOptions) -> TextSplits:
    module = importlib.import_module(f"transformer_jax.data.corpora.{name.replace('-', '_')}")
    sizes = {"train": read.corpus_size, "valid": 500, "test": 1000}

    def make(split: str) -> DocumentStream:
        settings = (sizes[split], 0) if name == "in-context" else ()
        return _listed(module.generate(split, *settings), f"{name} {split}", read)

    return TextSplits(make("train"), make("valid"), {"test": make("test")})


def _tfds(name: str, folder: str | None, read: TextOptions) -> TextSplits:
    reader = tfds.open_text(name, folder, read.field)
    validation = reader.validation()
    files = sorted(file for file in reader.folder.iterdir() if file.is_file())

    def make(split: str) -> DocumentStream:
        identity = file_identity(files, "data.tfds", split, read.field, *_identity(read))
        return DocumentStream(
            f"{name} {split}",
            identity,
            lambda: (TextChunk(text, True) for text in reader.rows(split)),
            Preparation.of(read),
        )

    tests = {"test": make("test")} if "test" in reader.splits else {}
    return TextSplits(make("train"), make(validation) if validation else None, tests)
