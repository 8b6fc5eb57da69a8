"""``transformer-jax word-vectors``: trains word vectors with word2vec, or resumes training."""

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from transformer_jax.cli import commands
from transformer_jax.cli.output import say, wrote
from transformer_jax.cli.process import guarded, run_and_leave, terminated
from transformer_jax.cli.run_flags import near, parse_flags
from transformer_jax.core.config_fields import Configuration, OutputPath
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.runtime import prepare_process
from transformer_jax.word_vectors.settings import TextConfig, Word2VecConfig

if TYPE_CHECKING:
    from transformer_jax.word_vectors.corpus import Corpus
    from transformer_jax.word_vectors.word2vec_training import EpochReport

__all__ = ["PROGRAM", "Resume", "Train", "main", "run", "run_as_program"]

PROGRAM = f"{commands.PROGRAM} word-vectors"
HELP = f"""Train word vectors with word2vec (skip-gram or CBOW).

  {PROGRAM} train TEXT --output DIR
  {PROGRAM} resume DIR

DIR/vectors.bin is what transformer-jax analogy and most-similar read. All flags: train --help."""
_EVERY = 8.0  # seconds between lines of progress


@dataclasses.dataclass(frozen=True)
class Train(Configuration, group="--"):
    """Train word vectors on text files."""

    texts: tyro.conf.Positional[tuple[Path, ...]]
    """Text files in UTF-8, .gz allowed; a sentence or paragraph per line."""
    output: OutputPath = Path("runs/word-vectors")
    """Folder to write vectors.bin and config.json to."""
    overwrite: bool = False
    """Replace word vectors in the folder."""
    text: TextConfig = dataclasses.field(default_factory=TextConfig)
    training: Word2VecConfig = dataclasses.field(default_factory=Word2VecConfig)

    def __call__(self) -> int:
        """Trains, and prints progress on standard error."""
        say("train: starting")
        from transformer_jax.word_vectors.run import train_word_vectors

        made = train_word_vectors(
            self.texts,
            self.output,
            text=self.text,
            training=self.training,
            overwrite=self.overwrite,
            report=_Progress(),
        )
        return _done(self.output, made)


@dataclasses.dataclass(frozen=True)
class Resume(Configuration, group="--"):
    """Resume the training of word vectors after the last complete epoch."""

    output: tyro.conf.Positional[Path]
    """Folder of the training; the texts are read again."""

    def __call__(self) -> int:
        """Trains the remaining epochs, if there are any."""
        say("resume: starting")
        from transformer_jax.word_vectors.formats import VECTORS
        from transformer_jax.word_vectors.run import resume_word_vectors

        ended = (self.output / VECTORS).exists()
        made = resume_word_vectors(self.output, report=_Progress())
        if ended:
            say(f"{self.output}: all epochs are done")
            return 0
        return _done(self.output, made)


COMMANDS: dict[str, Any] = {"train": Train, "resume": Resume}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command of ``arguments``, or of the command line; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return guarded(lambda: run(commands.import_modules(given)))


def run_as_program() -> None:
    """Runs the command line and exits with its code."""
    run_and_leave(main)


def run(given: Sequence[str]) -> int:
    """Runs the command of ``given``; returns its exit code."""
    with terminated("stopped by a signal: resume continues after the last complete epoch"):
        return _run(given)


def _run(given: Sequence[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print(f"{HELP}\n\n{commands.NOTE}.")
        return 0
    if given[0] not in COMMANDS:
        raise ConfigError(f"unknown command {given[0]}: {near(given[0], COMMANDS, PROGRAM)}")
    command = parse_flags(COMMANDS[given[0]], f"{PROGRAM} {given[0]}", given[1:])
    _one_thread()
    prepare_process()
    code: int = command()
    return code


def _one_thread() -> None:
    """Limits XLA to one thread on a CPU, if JAX is not imported yet.

    The operations of a block are too small to divide: with two threads, training has 0.6 of the
    speed. NumPy draws the next blocks in a separate thread.
    """
    if "jax" not in sys.modules:
        os.environ.setdefault("PJRT_NPROC", "1")


def _done(output: Path, made: Any) -> int:
    from transformer_jax.word_vectors.formats import VECTORS

    wrote(output / VECTORS, what=f"{len(made):,} words × {made.size:,}")
    return 0


class _Progress:
    """Prints a line of progress every few seconds."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None  # time, progress
        self._shown = 0.0

    def __call__(self, report: "EpochReport", corpus: "Corpus") -> None:
        from transformer_jax.core.task_progress import duration

        now = time.monotonic()
        if self._began is None:
            self._began = now, report.progress
            say(f"{corpus.total:,} words, vocabulary of {len(corpus.words):,}")
        elif now - self._shown < _EVERY and report.progress < 1:
            return
        self._shown = now
        spent, done = now - self._began[0], report.progress - self._began[1]
        parts = [f"{report.progress:.1%}", f"loss {report.loss:.4f}"]
        if spent and done:
            words = corpus.total * report.epochs
            parts.append(f"{words * done / spent:,.0f} words/s")
        parts.append(f"lr {report.learning_rate:.3g}")
        if spent and done:
            parts.append(f"ETA {duration(spent / done * (1 - report.progress))}")
        say("  ".join(parts))
