"""``transformer-jax classify``: the class, or the number, of each text or pair of texts."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import tyro

from transformer_jax.errors import ConfigError, DataError

__all__ = ["Classify"]

TASKS = ("classify", "pair", "regress")


@dataclasses.dataclass(frozen=True)
class Classify:
    """Label texts with a fine-tuned encoder: a line with label and probability for each."""

    run: tyro.conf.Positional[Path]
    """A run directory of the task classify, pair or regress."""
    texts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Texts; without any, lines of standard input. A tab parts the two texts of a pair."""
    all: bool = False
    """The probability of every class, below a line with their names."""
    read_ahead: int = 4096
    """Lines read before the first is labelled: more is faster. 1 at a terminal."""
    checkpoint: str = "best"
    """best, last, a step, or average:N for the mean of the last N."""

    def __call__(self) -> int:
        """Reads, labels and writes until the input ends."""
        if self.read_ahead < 1:
            raise ConfigError(f"--read-ahead {self.read_ahead}: at least 1")
        from transformer_jax.cli.encoders import given_lines, load_task, windows, write
        from transformer_jax.training.run_directory import RunDirectory

        predictor, task, prepare = load_task(self.run, self.checkpoint, TASKS)
        number, labels = task["kind"] == "regress", task.get("labels", [])
        if number and self.all:
            raise ConfigError(f"--all is for classes, and {self.run} tells numbers")
        read = RunDirectory.open(self.run).read_config().get("data", {}).get("read", {})
        pairs = task["kind"] == "pair" or (number and bool(read.get("pair", False)))
        if self.all:
            write("label", "probability", *labels)
        for window in windows(given_lines(self.texts), self.read_ahead):
            sides = [_sides(name, text, pairs) for name, text in window]
            given: list[Any] = [[prepare(row[0]) for row in sides]]
            given.append([prepare(row[1]) for row in sides] if pairs else None)
            if number:
                for value in predictor.numbers(*given):
                    write(f"{value:.4f}")
            else:
                for row in predictor.classes(*given):
                    best = int(row.argmax())
                    every = [f"{share:.4f}" for share in row] if self.all else []
                    write(labels[best], f"{row[best]:.4f}", *every)
            sys.stdout.buffer.flush()
        if predictor.cut:
            print(
                f"note: {predictor.cut:,} texts were cut to {task['length']} tokens, as in "
                f"training",
                file=sys.stderr,
            )
        return 0


def _sides(name: str, text: str, pairs: bool) -> list[str]:
    """The one or two texts of a line."""
    if not pairs:
        return [text]
    sides = text.split("\t")
    if len(sides) != 2:
        raise DataError(f"{name}: {len(sides) - 1} tabs: this run reads pairs, two texts with one "
                        f"tab between them")  # fmt: skip
    return sides
