"""Sentence pairs from a built-in corpus, aligned files, tables or TFDS."""

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from transformer_jax.core.config_fields import Amount, Configuration, Count, Range, Share
from transformer_jax.core.errors import ConfigError
from transformer_jax.data import aligned, tables
from transformer_jax.data.bad_rows import BadRows
from transformer_jax.data.data_sets import splits_of
from transformer_jax.data.languages import Direction
from transformer_jax.data.pair_files import (
    is_table,
    named_files,
    one_or_several,
    read_named,
    read_pair_file,
    read_table,
)
from transformer_jax.data.pairs import (
    Grouping,
    Pairs,
    collect,
    describe_held,
    describe_overlap,
    hold_out,
)
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.splits import DataSplits, refuse_several

__all__ = [
    "Files",
    "LanguageSettings",
    "PairData",
    "Pairs",
    "ReadOptions",
    "Splits",
    "load_splits",
    "parallel_texts",
    "read_pair_file",
    "read_pairs",
    "with_languages",
]


@dataclasses.dataclass(frozen=True)
class Files:
    """Pairs in text files: two aligned files, or one with both sides."""

    source: str | None = None  # text file, one sentence per line (.gz is unpacked)
    target: str | None = None  # its translations, line by line
    # Instead: one file with both sides, .tsv, .csv, .jsonl (.gz), .parquet; or de-en=FILE per pair.
    pairs: str | tuple[str, ...] | None = None


@dataclasses.dataclass(frozen=True)
class ReadOptions(ReadSettings):
    """Options for reading pairs."""

    # JSONL keys, names of columns (source target); TFDS, corpus: languages.
    fields: tuple[str, str] | None = None
    columns: tuple[Count, Count] | None = None  # numbers, from 1; None: 1 2 if there are two
    # Of a file of pairs; auto: by its extension.
    format: Literal["auto", "tsv", "csv", "jsonl"] = "auto"
    max_length: Annotated[int, Range(2)] = 256  # longest sentence in tokens, with its end token
    too_long: Literal["drop", "truncate"] = "drop"  # longer sentences (always counted)
    validation_size: Amount = 1000  # pairs held out of training without data.valid; at most 1/10
    grouped_by: Grouping = "both"  # sides whose equal sentences are not split from training
    corpus_size: Count = 20_000  # number of training pairs of phrasebook
    corpus_overlap: Share = 0.0  # fraction of babel's meanings that all its language pairs share
    # Prefix of every source, such as T5's 'translate English to German: '.
    source_prefix: str = ""


@dataclasses.dataclass(frozen=True)
class LanguageSettings(Configuration, group="data.languages"):
    """Options for several language pairs."""

    # Position of the tag of the target language: first in the source, the first token of the
    # target, or no tag. None is the same as in init_from, or source.
    tags: Literal["source", "target", "none"] | None = None
    # Language pairs of n sentences are sampled in proportion to n^(1/T), each sentence at least
    # once per epoch: 1 keeps their sizes; larger values make them more equal.
    temperature: Annotated[float, Range(1)] = 5.0
    # The same for the texts that the tokenizer is trained on.
    tokenizer_temperature: Annotated[float, Range(1)] = 5.0
    # Fraction of each language's training sentences that the model also learns to copy, which helps
    # some models in directions without training text.
    autoencoding: Share = 0.0


@dataclasses.dataclass(frozen=True)
class PairData(Configuration, group="data"):
    """The source of sentence pairs; set one of corpus, source and target, pairs, tfds."""

    # Built-in and generated: phrasebook is Portuguese-English; babel has the artificial languages
    # a, b, c and d, and pairs gives the number of pairs of each direction, a-b=10000 b-a=10000 ...
    corpus: Literal["phrasebook", "babel"] | None = None
    source: str | None = None  # training text, one sentence per line (.gz is unpacked)
    target: str | None = None  # its translations, line by line
    # One file with both sides, .tsv, .csv, .jsonl (.gz) or .parquet. For several language pairs,
    # de-en=FILE en-cs=FILE ..., with two aligned files as de-en=FILE,FILE; or a .json table of
    # them.
    pairs: str | tuple[str, ...] | None = None
    tfds: str | None = None  # a TensorFlow Datasets name, e.g. ted_hrlr_translate/pt_to_en
    tfds_dir: str | None = None  # its folder; None is TFDS_DATA_DIR or ~/tensorflow_datasets
    valid: Files = Files()  # validation pairs; without them, a part of training is held out
    test: Files = Files()  # test pairs
    languages: LanguageSettings = LanguageSettings()
    read: ReadOptions = ReadOptions()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pairs", one_or_several(self.pairs, "data.pairs"))
        for split in ("valid", "test"):
            files = getattr(self, split)
            pairs = one_or_several(files.pairs, f"data.{split}.pairs")
            object.__setattr__(self, split, dataclasses.replace(files, pairs=pairs))
        check(self)

    @property
    def several(self) -> bool:
        """Returns whether the language pairs are named."""
        return isinstance(self.pairs, tuple)


@dataclasses.dataclass(frozen=True)
class Splits(DataSplits[Pairs]):
    """All pairs of a run.

    Named language pairs have directions; each direction is a separate test set.
    """

    languages: LanguageSettings = LanguageSettings()  # for pairs of several directions


def check(data: PairData) -> None:
    """Refuses several sources of data, or only one side.

    Raises:
        ConfigError: The settings are invalid; the message names them.
    """
    files = Files(data.source, data.target, data.pairs)
    ways = [name for name in ("corpus", "tfds") if getattr(data, name) is not None]
    ways += [name for name in ("source", "target", "pairs") if getattr(files, name) is not None]
    if data.corpus == "babel":
        _babel_counts(data)
        ways.remove("pairs")
    elif data.read.corpus_overlap:
        raise ConfigError("data.read.corpus_overlap is for data.corpus babel: leave it out")
    refuse_several(data, *(ways if ways != ["source", "target"] else ()))
    for where, group in (("data", files), ("data.valid", data.valid), ("data.test", data.test)):
        _check_files(group, where)
    _check_names(data)
    read = data.read
    if read.columns is not None and read.columns[0] == read.columns[1]:
        raise ConfigError(
            f"data.read.columns {read.columns[0]} {read.columns[1]}: two different numbers from 1"
        )


def _check_names(data: PairData) -> None:
    """Refuses a mixture of named and unnamed files."""
    if is_table(data.pairs):
        return  # the table is read when the run begins
    for where in ("valid", "test"):
        files = getattr(data, where)
        if files == Files() or isinstance(files.pairs, tuple) == data.several:
            continue
        wanted = "names of pairs, de-en=FILE" if data.several else "no names, as training has none"
        raise ConfigError(f"data.{where}: its files need {wanted}")
    if not data.several and data.languages != LanguageSettings():
        raise ConfigError(
            "data.languages is for several pairs of languages: give --data.pairs de-en=FILE ..., "
            "or leave it out"
        )


def _check_files(files: Files, where: str) -> None:
    if (files.source is None) != (files.target is None):
        missing = "source" if files.source is None else "target"
        raise ConfigError(f"{where}.{missing} is missing: aligned text needs source and target")
    if files.source is not None and files.pairs is not None:
        raise ConfigError(f"{where}.pairs is given together with {where}.source: keep one of them")


def with_languages(data: PairData) -> PairData:
    """Returns the settings with the languages of the training file, if it names them.

    Validation and test files may list the languages of their translations in a different order, so
    the order of the training file is kept in ``read.fields``. A table of named pairs is replaced by
    its pairs.

    Raises:
        ConfigError: A name of a pair is malformed or repeated.
        DataError: The file cannot be read, or its first line does not have two languages.
    """
    if is_table(data.pairs):
        return _with_table(data)
    if not isinstance(data.pairs, str) or data.read.fields is not None:
        return data
    if tables.table_format(data.pairs, data.read.format, "data.pairs") != "jsonl":
        return data
    fields = tables.translation_languages(data.pairs, "data.pairs")
    return dataclasses.replace(data, read=dataclasses.replace(data.read, fields=fields))


def _with_table(data: PairData) -> PairData:
    """Returns the settings with the pairs of a table; each split may be given only once."""
    assert isinstance(data.pairs, str)
    table = read_table(data.pairs, "data.pairs")
    changes: dict[str, Any] = {"pairs": table.get("train", ())}
    for split in ("valid", "test"):
        if split in table:
            if getattr(data, split) != Files():
                raise ConfigError(f"data.{split} is given, and in {data.pairs} too: leave one out")
            changes[split] = Files(pairs=table[split])
    return dataclasses.replace(data, **changes)


def load_splits(data: PairData) -> Splits:
    """Loads training, validation and test pairs.

    Validation pairs come from ``data.valid``, or from the data set's own validation split, or are
    held out from training, chosen by a hash of the sentences, independent of the order of lines.
    Pairs that share a sentence stay together. Warnings report how many sentences of given files are
    also in the training data, and of held-out pairs where this is unavoidable.

    Raises:
        ConfigError: The settings name no data.
        DataError: A file cannot be read, or no training pairs are left.
    """
    data = _with_folder(with_languages(data))
    if data.corpus is not None:
        splits = _babel(data) if data.corpus == "babel" else _phrasebook(data.read)
    elif data.tfds is not None:
        splits = _tfds(data)
    elif data.source is not None or data.pairs is not None:
        train = read_pairs(Files(data.source, data.target, data.pairs), data.read, "data")
        splits = Splits(train, None, {})
    else:
        raise ConfigError(
            "no training data: give data.source and data.target, data.pairs, data.tfds, or "
            "data.corpus"
        )
    train, valid, tests, lines = splits.train, splits.valid, dict(splits.tests), tuple[str, ...]()
    if data.valid != Files():
        valid = read_pairs(data.valid, data.read, "data.valid", every=True)
    elif valid is None:
        train, valid = hold_out(train, data.read.validation_size, data.read.grouped_by)
        lines = describe_held(train, valid) if data.read.grouped_by == "both" else ()
    given = [] if data.valid == Files() or valid is None else [valid]
    if data.test != Files():
        test = read_pairs(data.test, data.read, "data.test", every=True)
        parts = {f"test {way}": part for way, part in test.by_direction().items()}
        tests |= parts or {"test": test}
        given += parts.values() or [test]
    overlaps = lines + tuple(describe_overlap(train, pairs) for pairs in given)
    train = train.with_copies(data.languages.autoencoding)
    return Splits(train, valid, tests, overlaps, data.languages)


def _with_folder(data: PairData) -> PairData:
    """Returns the settings with the splits of a data set's folder that are not given."""
    found = splits_of(data.pairs) if isinstance(data.pairs, str) else {}
    held = {role: Files(pairs=path) for role, path in found.items()}
    return dataclasses.replace(
        data,
        valid=data.valid if data.valid != Files() else held.get("valid", Files()),
        test=data.test if data.test != Files() else held.get("test", Files()),
    )


def read_pairs(
    files: Files | tables.RowSource,
    read: ReadOptions = ReadOptions(),
    where: str = "data",
    *,
    every: bool = False,
) -> Pairs:
    """Reads the pairs of two aligned files, or of one TSV, CSV or JSONL file.

    Sentences are stripped of blanks; pairs with an empty side are dropped and counted.

    Args:
        files: The files; or objects in Python, such as a ``datasets.Dataset``.
        read: Columns, keys and format of a file of pairs, and lower-casing.
        where: Name of the setting with ``files``, for messages.
        every: Whether to keep pairs with an empty side, as for data to score.

    Raises:
        DataError: A file cannot be read; two files have different numbers of lines; no pair is
            left.

    Example:
        >>> read_pairs([{"translation": {"en": "one", "fr": "un"}}]).targets
        ['un']
    """
    if not isinstance(files, Files):
        bad = BadRows(tables.source_name(files), read.bad_rows)
        given = bad.reported(tables.read_jsonl(files, read.fields, where, rows=bad))
        return collect(given, bad.name, Preparation.of(read), every=every)
    _check_files(files, where)
    if isinstance(files.pairs, tuple):
        named = named_files(files.pairs, f"{where}.pairs")
        return read_named(named, read, f"{where}.pairs", every=every)
    if files.source is not None and files.target is not None:
        both = f"{where}.source", f"{where}.target"
        rows: Iterable[tuple[str, str]] = aligned.read_aligned(files.source, files.target, both)
        name = f"{files.source} {files.target}"
    elif files.pairs is not None:
        rows = read_pair_file(files.pairs, read, f"{where}.pairs")
        name = files.pairs
    else:
        raise ConfigError(f"{where}: give {where}.source and {where}.target, or {where}.pairs")
    return collect(rows, name, Preparation.of(read), every=every)


def parallel_texts(data: PairData) -> dict[str, list[str]]:
    """Returns test sentences in all languages of a built-in corpus, translated line by line.

    There are none if the languages have no common test sentences.
    """
    from transformer_jax.data.corpora.babel import parallel_sentences

    return parallel_sentences() if data.corpus == "babel" else {}


def _babel(data: PairData) -> Splits:
    from transformer_jax.data.corpora.babel import babel_pairs

    return Splits(*babel_pairs(_babel_counts(data), data.read.corpus_overlap))


def _babel_counts(data: PairData) -> dict[Direction, int]:
    from transformer_jax.data.corpora.babel import training_counts

    if not isinstance(data.pairs, tuple):
        raise ConfigError(
            "data.corpus babel needs data.pairs, the number of pairs of each direction, such as "
            "a-b=10000 b-a=10000"
        )
    return training_counts(named_files(data.pairs, "data.pairs"))


def _phrasebook(read: ReadOptions) -> Splits:
    from transformer_jax.data.corpora import phrasebook

    fields = read.fields or ("pt", "en")
    if sorted(fields) != ["en", "pt"]:
        raise ConfigError(f"data.read.fields {' '.join(fields)}: phrasebook has pt and en")
    flip = fields == ("en", "pt")

    def make(split: phrasebook.Split, count: int) -> Pairs:
        rows = phrasebook.generate(split, count, 0)
        if flip:
            rows = [(target, source) for source, target in rows]
        return collect(rows, f"phrasebook {split}", Preparation.of(read))

    return Splits(
        make("train", read.corpus_size),
        make("valid", 500),
        {"test": make("test", 1000), "test_unseen": make("test_unseen", 1000)},
    )


def _tfds(data: PairData) -> Splits:
    from transformer_jax.data import tfds

    assert data.tfds is not None
    reader = tfds.open_translation(data.tfds, data.tfds_dir, data.read.fields)

    def make(split: str) -> Pairs:
        scored = split != "train"
        name = f"{data.tfds} {split}"
        return collect(reader.rows(split), name, Preparation.of(data.read), every=scored)

    validation = reader.validation()
    tests = {"test": make("test")} if "test" in reader.splits else {}
    return Splits(make("train"), make(validation) if validation else None, tests)
