"""``transformer-jax classify``: a class, labels or a number for each text or pair."""

import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from transformer_jax.cli.output import note, note_unknown
from transformer_jax.cli.support.run_command import PictureFlags, PredictionCommand
from transformer_jax.core.config_fields import Range, Share
from transformer_jax.core.errors import ConfigError, DataError, plural

if TYPE_CHECKING:
    from transformer_jax.inference.encoding.rewards import Rewarded, RewardRunner

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
    """Number of lines to read and sort by length at a time: more is faster; 1 at a terminal."""

    def __call__(self) -> int:
        """Classifies lines until the input ends."""
        self.check()
        from transformer_jax.cli.support.pictures import PICTURE_FAMILIES, classify_pictures
        from transformer_jax.inference.pretrained import Pretrained, read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        if facts.kind in PICTURE_FAMILIES:
            return classify_pictures(self, facts)
        self.refuse_skipping("texts")
        self.check_labels()
        from transformer_jax.cli.support.input_lines import given_texts, windows, write
        from transformer_jax.inference.encoders import check_task, task_runner
        from transformer_jax.inference.encoding.rewards import RewardRunner
        from transformer_jax.inference.encoding.task_runner import UnreadTextError

        kind, labels, length, _, pairs, _ = check_task(facts, *TASKS)
        self.check_task(kind)
        predictor = task_runner(Pretrained.load(facts))
        if self.all:
            write(*(() if kind == "multi_label" else ("label", "probability")), *labels)
        for window in windows(given_texts(self.texts), self.buffer_size):
            given: list[Any]
            if isinstance(predictor, RewardRunner):
                read = functools.partial(_rewarded, self.run, predictor)
                given = [[read(name, text) for name, text in window]]
            else:
                sides = [_sides(name, text, pairs) for name, text in window]
                given = [[row[i] for row in sides] for i in range(1 + pairs)]
            try:
                tell = predictor.numbers if kind == "regress" else predictor.classes
                rows = tell(*given).reshape(len(window), -1)
            except UnreadTextError as error:
                raise DataError(error.about(window[error.index][0])) from None
            for row in rows:
                write(*self.cells(kind, labels, row))
            sys.stdout.buffer.flush()
        note_unknown(predictor.counts)
        if predictor.counts["cut"]:
            cut = plural(predictor.counts["cut"], "text")
            # How a downloaded classifier was truncated in training is unknown.
            known = "" if "published" in facts.record else ", as in training"
            lost = (
                " (the beginning of the prompt first)"
                if isinstance(predictor, RewardRunner)
                else ""
            )
            note(f"{cut} truncated to {plural(length, 'token')}{lost}{known}")
        return 0

    def cells(self, kind: str, labels: Sequence[str], row: Any) -> list[str]:
        """Returns the line of output for a text with the probabilities ``row``."""
        every = [f"{value:.4f}" for value in row]
        if kind == "regress" or (kind == "multi_label" and self.all):
            return every
        if kind != "multi_label":
            best = int(row.argmax())
            return [labels[best], every[best], *(every if self.all else [])]
        least = _THRESHOLD if self.threshold is None else self.threshold
        order = sorted(range(len(row)), key=lambda i: -row[i])
        return [cell for i in order if row[i] >= least for cell in (labels[i], every[i])]

    def check(self) -> None:
        """Refuses flags that exclude each other.

        Raises:
            ConfigError: It names the flag.
        """
        if self.threshold is not None and self.all:
            raise ConfigError("--all shows every label: leave --threshold out")

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
