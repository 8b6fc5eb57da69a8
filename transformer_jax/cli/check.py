"""``transformer-jax check``: exercises, checked by laws and by the numbers of slides."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from transformer_jax.cli.output import check_file as check_output
from transformer_jax.cli.output import columns
from transformer_jax.core.config_fields import Configuration, OutputPath, Range
from transformer_jax.core.errors import ConfigError, DataError, NumericsError, command, plural

if TYPE_CHECKING:
    from transformer_jax.exercises.trial import Trial

__all__ = ["CheckExercises"]

_PRINTED = 10  # lines of what the file printed: a print in a function is called for all inputs


@dataclasses.dataclass(frozen=True)
class CheckExercises(Configuration, group="--"):
    """Check functions that you wrote yourself; exit code 5 if one is not right yet.

    check lists the exercises, check --blank attention prints one to fill in, check attention my.py
    checks the function attention of my.py, and check --all my.py all functions. A line says which
    law is broken, where, and the likely cause. The file runs in a process with limits of time,
    memory and output, without further protection.
    """

    words: tyro.conf.Positional[tuple[str, ...]] = ()
    """The exercise and the file; with --all the file alone, with --blank exercises, or all."""
    all: bool = False
    """Check every function that the file has."""
    blank: bool = False
    """Print exercises to fill in."""
    hint: Annotated[int, Range(0, 3)] = 0
    """Also print this many hints, from a nudge to nearly all, for a function that is not right."""
    run: Path | None = None
    """With --all, a run of train phrasebook: once the twelve functions of a Transformer are right,
    they translate with its parameters, and draw their attention."""
    output: OutputPath = Path("attention.html")
    """With --run, the HTML file of the attention."""
    json: bool = False
    """Print one JSON object for each function."""
    seconds: Annotated[int, Range(1, 3600)] = 120
    """Most seconds of processor time."""

    def __call__(self) -> int:
        """Prints a line per function.

        Raises:
            NumericsError: A function is not right.
        """
        from transformer_jax.exercises.checking import blank, find_exercise
        from transformer_jax.exercises.table import EXERCISES, TRANSFORMER
        from transformer_jax.lectures import read_ledger

        if self.blank:
            names = list(EXERCISES) if self.words == ("all",) else list(self.words)
            if not names:
                raise ConfigError("--blank: name exercises, such as attention, or all")
            print(blank(*names), end="")
            return 0
        if not self.words:
            lines = []
            for name in EXERCISES:
                rows = [row.name for row in read_ledger().values() if row.exercise == name]
                part = "Transformer" if name in TRANSFORMER else ""
                lines.append((name, f"{', '.join(rows):<8}  {part:<11}  {_title(name)}"))
            print(columns(lines))
            print(f"{command('check', '--blank', 'attention')} prints one to fill in")
            return 0
        expected = 1 if self.all else 2
        if len(self.words) != expected:
            form = "--all FILE" if self.all else "EXERCISE FILE, or --all FILE"
            raise ConfigError(f"check {' '.join(self.words)}: {form} is needed")
        if self.run is not None:
            if not self.all:
                raise ConfigError(f"--run {self.run}: needs --all, the functions of a Transformer")
            check_output("--output", self.output, (".html",))
        if not self.all:
            find_exercise(self.words[0])
        trial = self.tried(Path(self.words[-1]), list(EXERCISES) if self.all else [self.words[0]])
        wrong = [verdict.exercise for verdict in trial.verdicts if not verdict.holds]
        if wrong:
            raise NumericsError(f"{self.words[-1]}: not right yet: {', '.join(wrong)}")
        return 0

    def tried(self, file: Path, names: list[str]) -> "Trial":
        """Checks the file, and prints what was found.

        Raises:
            DataError: There is no such file, or it has none of the functions.
        """
        from transformer_jax.exercises.table import EXERCISES
        from transformer_jax.exercises.trial import check_file, defined

        if file.is_dir():
            raise DataError(f"{file}: a folder: name a file of Python in it")
        if not file.is_file():
            raise DataError(
                f"{file}: no such file: {command('check', '--blank', 'all')} prints one to fill in"
            )
        if self.all:
            names = [name for name in names if name in defined(file)]
            if not names:
                raise DataError(f"{file}: none of the functions that {command('check')} lists")
        page = None if self.run is None else self.output
        trial = check_file(file, names, seconds=self.seconds, run=self.run, page=page)
        printed = trial.printed.splitlines()
        for line in printed[:_PRINTED]:
            print(f"  printed: {line:.100}", file=sys.stderr)
        if len(printed) > _PRINTED:
            print(f"  printed: and {plural(len(printed) - _PRINTED, 'more line')}", file=sys.stderr)
        for verdict in trial.verdicts:
            print(json.dumps(dataclasses.asdict(verdict)) if self.json else verdict)
            if not verdict.holds and not self.json:
                for hint in EXERCISES[verdict.exercise].hints[: self.hint]:
                    print(f"  hint: {hint}")
        if self.json:
            for source, text, loss in trial.translations:
                print(json.dumps({"source": source, "translation": text, "loss": loss}))
            return trial
        right = sum(verdict.holds for verdict in trial.verdicts)
        if len(names) > 1:
            print(f"{right} of {plural(len(names), 'function')} right")
        for source, text, loss in trial.translations:
            print(f"{source}  ->  {text}  ({loss:.3f} nats a token)")
        print(*trial.notes, sep="\n", end="\n" if trial.notes else "")
        return trial


def _title(name: str) -> str:
    """The first sentence of an exercise."""
    from transformer_jax.exercises import blanks

    return str(getattr(blanks, name).__doc__).partition("\n")[0].rstrip(".")
