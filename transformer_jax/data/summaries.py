"""Texts and their summaries, from tables."""

import dataclasses
from typing import Annotated

from transformer_jax.core.config_fields import Amount, Configuration, Range
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.bad_rows import BadRows, Unread
from transformer_jax.data.data_sets import missing_splits
from transformer_jax.data.pairs import (
    Grouping,
    Pairs,
    choose_held,
    describe_held,
    describe_overlap,
    warn_none_held,
)
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.sentences import sentences
from transformer_jax.data.splits import HELD_OUT, DataSplits
from transformer_jax.data.tables import chosen_columns, json_rows

__all__ = [
    "Summaries",
    "SummaryData",
    "SummaryOptions",
    "SummarySplits",
    "load_summaries",
    "read_summaries",
]


@dataclasses.dataclass(frozen=True)
class SummaryOptions(ReadSettings):
    """Options for reading texts and summaries."""

    fields: tuple[str, str] = ("source", "target")  # JSONL keys, each of a text or a list of texts
    # Largest number of tokens of a text and of a summary; longer ones are truncated.
    max_length: Annotated[int, Range(2)] = 512
    validation_size: Amount = 1000  # texts held out of training if none are given; at most 1/10
    grouped_by: Grouping = "both"  # sides whose equal sentences are not split from training
    source_prefix: str = ""  # prefix of every text, such as 'summarize: '


@dataclasses.dataclass(frozen=True)
class SummaryData(Configuration, group="data"):
    """The source of texts and summaries: .jsonl, .csv or .parquet files (.gz is unpacked)."""

    train: str | None = None  # texts to train on
    valid: str | None = None  # validation texts; without them, a part of training is held out
    test: str | None = None  # test texts
    read: SummaryOptions = SummaryOptions()


@dataclasses.dataclass(frozen=True)
class Summaries:
    """Texts with one or more summaries each.

    Attributes:
        parts: The sentences of each text.
        references: The summaries of each; none for a text that is only to be summarized.
        name: Name of the source, for messages.
        source_prefix: Prefix of every text.
        empty: Number of texts dropped because they, or all their summaries, were empty.
    """

    parts: list[list[str]]
    references: list[list[str]]
    name: str
    empty: int = 0
    source_prefix: str = ""

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def sources(self) -> list[str]:
        """The texts as the model reads them, each on one line; an empty one stays empty."""
        return [self.source_prefix + " ".join(parts) if parts else "" for parts in self.parts]

    @property
    def with_references(self) -> list[int]:
        """The indices of the texts that have a summary."""
        return [i for i, references in enumerate(self.references) if references]

    def pairs(self, *, every: bool = False) -> Pairs:
        """Returns the texts with their first summary, or with every one, for training.

        A text without any has an empty one.
        """
        rows = [
            (source, reference)
            for source, references in zip(self.sources, self.references, strict=True)
            for reference in (references or [""])[: None if every else 1]
        ]
        counts = {"empty": self.empty} if self.empty else {}
        return Pairs([source for source, _ in rows], [one for _, one in rows], self.name, counts)

    def select(self, rows: list[int], name: str) -> "Summaries":
        """Selects texts."""
        references = [self.references[i] for i in rows]
        parts = [self.parts[i] for i in rows]
        return Summaries(parts, references, name, source_prefix=self.source_prefix)


@dataclasses.dataclass(frozen=True)
class SummarySplits(DataSplits[Summaries]):
    """All texts of a run, with their summaries."""


def load_summaries(data: SummaryData) -> SummarySplits:
    """Loads training, validation and test texts.

    Without ``data.valid``, a part of training is held out, chosen by a hash of the texts and
    summaries; items that share one stay together.

    Raises:
        ConfigError: The settings name no data.
        DataError: A file cannot be read, or holds no summaries.
    """
    if data.train is None:
        raise ConfigError("no training data: give data.train, a JSONL file")
    data = dataclasses.replace(data, **missing_splits(data))
    train, valid = read_summaries(data.train or "", data.read, "data.train"), None
    lines: tuple[str, ...] = ()
    if data.valid is not None:
        valid = read_summaries(data.valid, data.read, "data.valid", every=True)
    else:
        first = [references[0] for references in train.references]
        targets = first if data.read.grouped_by == "both" else None
        inside = choose_held(train.sources, targets, data.read.validation_size)
        if not any(inside):
            warn_none_held(train.name, data.read.validation_size)
        else:
            rows = range(len(train))
            valid = train.select([i for i in rows if inside[i]], train.name + HELD_OUT)
            kept = train.select([i for i in rows if not inside[i]], train.name)
            train = dataclasses.replace(kept, empty=train.empty)
        if valid is not None and targets is not None:
            lines = describe_held(train.pairs(), valid.pairs())
    tests = {}
    if data.test is not None:
        tests["test"] = read_summaries(data.test, data.read, "data.test", every=True)
    given = [valid] * (data.valid is not None) + list(tests.values())
    trained = train.pairs(every=True)
    overlaps = lines + tuple(
        describe_overlap(trained, one.pairs(every=True)) for one in given if one
    )
    return SummarySplits(train, valid, tests, overlaps)


# Usual names of the keys of public data sets, for those that are not there.
_USUAL = {
    "source": ("article", "document", "dialogue", "text", "maintext", "report", "input"),
    "target": ("highlights", "summary", "abstract", "headline", "output"),
}


def read_summaries(
    path: str,
    read: SummaryOptions = SummaryOptions(),
    where: str = "data.train",
    *,
    every: bool = False,
) -> Summaries:
    """Reads the texts and summaries of a table of objects (:func:`.object_rows`).

    A text given as a list is already split into sentences; otherwise
    :func:`transformer_jax.data.sentences.sentences` splits it. A list of summaries is several
    references. Every sequence of blanks and line ends becomes one blank.

    Args:
        path: The file.
        read: Keys, lower-casing, and prefix.
        where: Name of the setting with ``path``, for messages.
        every: Whether to keep empty texts and texts with empty summaries, as for data to score.

    Raises:
        DataError: The file cannot be read, a line is not a JSON object or lacks a field, or no
            text has a summary.
    """
    prepare = Preparation.of(read)
    clean = lambda text: prepare.line(" ".join(text.split()))
    hint = "name the two with data.read.fields"
    texts, summaries, empty = list[list[str]](), list[list[str]](), 0
    bad, unread, fields = BadRows(path, read.bad_rows), Unread(path, "key"), read.fields
    for _, row in json_rows(path, where, bad):
        with bad:
            if not (texts or empty) and fields == SummaryOptions.fields:
                chosen = chosen_columns([*row.fields], _USUAL, path)
                fields = chosen.get("source", "source"), chosen.get("target", "target")
            source, target = (row.texts(key, hint) for key in fields)
            unread.note(row.fields, fields)
            one = source if len(source) > 1 else [one for text in source for one in sentences(text)]
            parts = [text for text in map(clean, one) if text]
            references = [text for text in map(clean, target) if text]
            empty += not (parts and references)
            if every or (parts and references):
                texts.append(parts)
                summaries.append(references)
    bad.report(len(texts) + empty)
    unread.report()
    if len(texts) <= empty * every:
        why = f"all {empty} of its lines have an empty side" if empty else "it is empty"
        raise DataError(f"{path}: no summaries: {why}")
    return Summaries(texts, summaries, path, 0 if every else empty, read.source_prefix)
