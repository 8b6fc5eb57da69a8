"""``transformer-jax classify``: a class, labels or a number for each text or pair."""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from transformer_jax.cli.output import check_file, note, note_unknown, wrote
from transformer_jax.cli.support.run_command import PictureFlags, PredictionCommand
from transformer_jax.core.config_fields import Flag, OutputPath, Range, Share
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.bad_rows import BadRowPolicy

if TYPE_CHECKING:
    from transformer_jax.data.unlabeled import TextTable
    from transformer_jax.inference.encoding.rewards import Rewarded, RewardRunner
    from transformer_jax.inference.facts import Facts

__all__ = ["Classify"]

TASKS = ("classify", "multi_label", "pair", "regress")
_THRESHOLD = 0.5
# Fields of preferences: a JSON object with one of them is not plain text.
_COMPLETION = frozenset(("prompt", "completion", "chosen", "rejected"))


@dataclasses.dataclass(frozen=True)
class Classify(PictureFlags, PredictionCommand):
    """Classify texts or pictures: one line with label and probability per text or picture.

    A multi-label model prints all labels above a threshold; a reward model prints the reward of
    each text, or of the last message of each conversation.
    """

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder: of the task classify, pair or regress, of an image
    classifier, or of a model of images and texts (then --labels is needed)."""
    texts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Texts; without any, the lines of standard input. A tab separates the two texts of a pair. For
    an image classifier: pictures, or folders of them. For a reward model, a text may be
    {"prompt": "...", "completion": "..."}, or a conversation that ends with an answer,
    {"messages": [...]}."""
    data: str | None = None
    """Table with the texts, instead of TEXT: CSV, TSV, JSONL or Parquet, with names of columns."""
    text: Annotated[str | None, Flag("data.read.text")] = None
    """Column or key of the first text in --data; None is that of the training file."""
    text_pair: Annotated[str | None, Flag("data.read.text-pair")] = None
    """Column or key of the second text in --data; None is that of the training file."""
    header: Annotated[bool | None, Flag("data.read.header")] = None
    """Names of columns in the first line of --data; None: if a column is given by name."""
    bad_rows: Annotated[BadRowPolicy | None, Flag("data.read.bad-rows")] = None
    """Rows of --data that cannot be read: refuse them, or skip and count them. None is the run's
    setting."""
    output: OutputPath | None = None
    """Output file, .csv, instead of printed lines: all columns of --data (or the texts), the
    prediction, and the probability of each class."""
    labels: tuple[str, ...] = ()
    """Labels to choose from, for a model of images and texts."""
    template: str | None = None
    """Template of the text of a label, with {} for the label; None is "a picture of a {}"."""
    all: bool = False
    """Print the probability of every class, after a header line."""
    threshold: Share | None = None
    """Minimum probability of a label, for multi-label models; None is 0.5. Labels are sorted, the
    most probable first; a text without any label has an empty line."""
    buffer_size: Annotated[int, Range(1, 10_000_000)] = 4096
    """Number of lines to read and sort by length at a time: more is faster; 1 at a terminal. A
    table, and the lines for --output, are read as a whole."""

    def __call__(self) -> int:
        """Classifies lines until the input ends, or the rows of a table."""
        self.check()
        from transformer_jax.cli.support.pictures import PICTURE_FAMILIES, classify_pictures
        from transformer_jax.core.task_progress import show_progress
        from transformer_jax.data.unlabeled import as_cell
        from transformer_jax.inference.pretrained import Pretrained, read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        if facts.kind in PICTURE_FAMILIES:
            self.refuse_table("pictures: give them or their folder")
            return classify_pictures(self, facts)
        self.refuse_skipping("texts")
        self.check_labels()
        from transformer_jax.cli.support.input_lines import write
        from transformer_jax.inference.encoders import check_task, task_runner
        from transformer_jax.inference.encoding.rewards import RewardRunner
        from transformer_jax.inference.encoding.task_runner import UnreadTextError

        kind, labels, length, _, pairs, _ = check_task(facts, *TASKS)
        self.check_task(kind)
        columns = ["predicted", *(f"probability of {one}" for one in labels if kind != "regress")]
        table = None if self.data is None else self.table(facts, pairs, columns)
        predictor = task_runner(Pretrained.load(facts))
        rewards = predictor if isinstance(predictor, RewardRunner) else None
        if self.all:
            write(*(() if kind == "multi_label" else ("label", "probability")), *labels)
        given, predicted = list[Sequence[object]](), list[list[object]]()
        for window in self.windows(table, rewards, pairs):
            sides = [list(texts) for texts in zip(*(row for _, row in window), strict=True)]
            work = f"classifying {plural(len(window), 'text')}"
            try:
                with contextlib.nullcontext() if self.output is None else show_progress(work):
                    tell = predictor.numbers if kind == "regress" else predictor.classes
                    rows = tell(*sides).reshape(len(window), -1)
            except UnreadTextError as error:
                raise DataError(error.about(window[error.index][0])) from None
            if self.output is not None:
                given += [texts for _, texts in window]
                predicted += [self.values(kind, labels, row) for row in rows]
                continue
            for row in rows:
                write(*self.cells(kind, labels, row))
            sys.stdout.buffer.flush()
        if self.output is not None:
            from transformer_jax.recipes.scored_texts import write_table

            names = ("text", "second")[: 1 + pairs] if table is None else table.columns
            cells = [[*map(as_cell, texts)] for texts in given] if table is None else table.rows
            every = ([*row, *more] for row, more in zip(cells, predicted, strict=True))
            write_table(self.output, [*names, *columns], every)
            wrote(self.output, what=plural(len(predicted), "row"))
        note_unknown(predictor.counts)
        if predictor.counts["cut"]:
            cut = plural(predictor.counts["cut"], "text")
            # How a downloaded classifier was truncated in training is unknown.
            known = "" if "published" in facts.record else ", as in training"
            lost = "" if rewards is None else " (the beginning of the prompt first)"
            note(f"{cut} truncated to {plural(length, 'token')}{lost}{known}")
        return 0

    def table(self, facts: "Facts", pairs: bool, columns: Sequence[str]) -> "TextTable":
        """Returns the table of ``--data``, read as the training file was.

        Args:
            facts: What is known of the run.
            pairs: Whether two texts are read.
            columns: The columns that ``--output`` adds.

        Raises:
            ConfigError: The run reads no tables of texts, or the table has one of ``columns``.
            DataError: The table cannot be read.
        """
        from transformer_jax.data.labeled_files import LabeledOptions
        from transformer_jax.data.unlabeled import read_text_table
        from transformer_jax.recipes.driver import settings_of
        from transformer_jax.recipes.read_flags import changed_options

        read = LabeledOptions()
        if "published" not in facts.record:
            read = settings_of(facts).data.read
        if not isinstance(read, LabeledOptions):
            self.refuse_table("preferences or conversations: give them as lines")
        found = read_text_table(str(self.data), changed_options(read, self), pairs)
        if twice := {*columns}.intersection(found.columns) if self.output else ():
            raise ConfigError(
                f"--data {self.data}: the column {min(twice)!r} is one that --output adds: rename "
                f"it, or leave it out"
            )
        return found

    def windows(
        self, table: "TextTable | None", rewards: "RewardRunner | None", pairs: bool
    ) -> Iterator[list[tuple[str, Sequence[object]]]]:
        """Yields lists of names for messages, each with its text or texts."""
        from transformer_jax.cli.support.input_lines import given_texts, windows

        if table is not None:
            yield list(zip(table.places, table.texts, strict=True))
            return
        lines = given_texts(self.texts)
        # With a file, nobody waits for the first line.
        for window in windows(lines, self.buffer_size) if self.output is None else [[*lines]]:
            if rewards is None:
                yield [(name, _sides(name, text, pairs)) for name, text in window]
            else:
                yield [(name, [_rewarded(self.run, rewards, name, text)]) for name, text in window]

    def cells(self, kind: str, labels: Sequence[str], row: Any) -> list[str]:
        """Returns the line of output for a text with the probabilities ``row``."""
        every = [f"{value:.4f}" for value in row]
        if kind == "regress" or (kind == "multi_label" and self.all):
            return every
        if kind != "multi_label":
            best = int(row.argmax())
            return [labels[best], every[best], *(every if self.all else [])]
        return [cell for i in self.above(row) for cell in (labels[i], every[i])]

    def values(self, kind: str, labels: Sequence[str], row: Any) -> list[object]:
        """Returns the cells of ``--output`` for a text: the prediction, and each probability."""
        if kind == "regress":
            return [float(row[0])]
        best = self.above(row) if kind == "multi_label" else [int(row.argmax())]
        return [", ".join(labels[i] for i in best), *map(float, row)]

    def above(self, row: Any) -> list[int]:
        """Returns the labels above the threshold, the most probable first."""
        least = _THRESHOLD if self.threshold is None else self.threshold
        return [i for i in sorted(range(len(row)), key=lambda i: -row[i]) if row[i] >= least]

    def check(self) -> None:
        """Refuses flags that exclude each other.

        Raises:
            ConfigError: It names the flag.
        """
        if self.threshold is not None and self.all:
            raise ConfigError("--all shows every label: leave --threshold out")
        if self.output is not None and self.all:
            raise ConfigError("--output has every probability: leave --all out")
        if self.data is not None and self.texts:
            raise ConfigError(f"--data {self.data}: leave the other texts out, or add them to it")
        for name in ("text", "text_pair", "header", "bad_rows"):
            if getattr(self, name) is not None and self.data is None:
                raise ConfigError(f"--data.read.{name.replace('_', '-')}: give --data too")
        check_file("--output", self.output, (".csv",))
        both = self.data or "", self.output or ""
        if all(map(os.path.exists, both)) and os.path.samefile(*both):
            raise ConfigError(f"--output {self.output}: this is --data: name another file")

    def refuse_table(self, why: str) -> None:
        """Refuses a table and a table of predictions.

        Args:
            why: What the run reads instead.

        Raises:
            ConfigError: One is given; it names the flag.
        """
        for name in ("data", "output"):
            if getattr(self, name) is not None:
                raise ConfigError(f"--{name} is for texts, and {self.run} reads {why}")

    def check_labels(self) -> None:
        """Refuses ``--labels`` for a model that has labels.

        Raises:
            ConfigError: It names the flag.
        """
        for name, usual in (("labels", ()), ("template", None)):
            if getattr(self, name) != usual:
                raise ConfigError(
                    f"--{name} is for models of images and texts, and {self.run} has its own "
                    f"labels: leave it out"
                )

    def check_task(self, kind: str) -> None:
        """Refuses flags for other tasks.

        Raises:
            ConfigError: It names the flag.
        """
        if kind == "regress" and self.all:
            raise ConfigError(f"--all is for classes, but {self.run} predicts numbers")
        if kind != "multi_label" and self.threshold is not None:
            raise ConfigError(
                f"--threshold is for multi-label models, but {self.run} predicts "
                f"{'a number' if kind == 'regress' else 'one class'}: leave it out"
            )


def _sides(name: str, text: str, pairs: bool) -> list[str]:
    """Returns the text of a line, or both texts of a pair."""
    if not pairs:
        return [text]
    sides = text.split("\t")
    if len(sides) != 2:
        raise DataError(f"{name}: {plural(len(sides) - 1, 'tab')}: this run reads pairs, two "
        f"texts with one "
                        f"tab between them")  # fmt: skip
    return sides


def _rewarded(run: Path, predictor: "RewardRunner", name: str, line: str) -> "Rewarded":
    """Returns the text of a line, or the conversation or prompt and completion of a JSON object.

    For a model that was trained on texts, objects without such fields are plain text.
    """
    from transformer_jax.data.conversations import check_answered

    if not line.lstrip().startswith("{"):
        return line
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        if predictor.chats is None:
            return line
        raise DataError(f"{name}: not JSON: {error}") from None
    if predictor.chats is None and "messages" not in row:
        return line if _COMPLETION.isdisjoint(row) else row
    if predictor.chats is None:
        raise DataError(
            f"{name}: a conversation, and {run} was trained on texts: give the text of a prompt "
            f"with its completion, or a model that was trained on conversations"
        )
    if "messages" not in row:
        raise DataError(
            f"{name}: no field 'messages': a conversation is "
            f'{{"messages": [{{"role": "user", "content": "..."}}, ...]}}'
        )
    try:
        return check_answered(row["messages"])
    except ConfigError as error:
        raise DataError(f"{name}: {error}") from None
