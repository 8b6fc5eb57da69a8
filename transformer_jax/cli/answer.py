"""``transformer-jax answer``: where in a text the answer to a question stands."""

import dataclasses
import sys
from pathlib import Path

import tyro

from transformer_jax.cli.output import note
from transformer_jax.cli.run_command import RunCommand
from transformer_jax.errors import ConfigError, DataError, plural

__all__ = ["Answer"]

HEADER = ("question", "answer", "score", "start")
READ_AHEAD = 256


@dataclasses.dataclass(frozen=True)
class Answer(RunCommand):
    """Find answers to questions in a text with a fine-tuned encoder, as TSV."""

    run: tyro.conf.Positional[Path]
    """A run directory of the task span."""
    questions: tyro.conf.Positional[tuple[str, ...]] = ()
    """Questions; without any, lines of standard input."""
    context: Path | None = None
    """The text file that holds the answers."""
    best: int = 1
    """How many answers to each question, "no answer" among them."""
    longest: int = 30
    """Most tokens of an answer."""
    checkpoint: str = "best"
    """best, last, a step, or average:N for the mean of the last N."""

    def __call__(self) -> int:
        """A row for each answer, the best first.

        The score is how much likelier it is than there being no answer: the difference of logits.
        """
        if self.context is None:
            raise ConfigError("--context is missing: the text file that holds the answers")
        for flag in ("best", "longest"):
            if getattr(self, flag) < 1:
                raise ConfigError(f"--{flag} is {getattr(self, flag)}: at least 1")
        from transformer_jax.cli.encoders import file_lines, given_lines, windows, write
        from transformer_jax.predictors.encoders import load_task

        if str(self.context) == "-" and not self.questions:
            raise ConfigError("--context - is standard input: give the questions as arguments")
        text = "\n".join(file_lines(self.context, "--context"))
        if not text.strip():
            raise DataError(f"--context {self.context}: no text: it is empty")
        from transformer_jax.data.squad import lowered

        predictor, _, prepare = load_task(self.run, self.checkpoint, ("span",))
        read = lowered(text) if prepare("A") == "a" else text
        none = number = 0
        write(*HEADER)
        for window in windows(given_lines(self.questions), READ_AHEAD):
            asked = [prepare(question) for _, question in window]
            for name, question in zip(window, asked, strict=True):
                if not question:
                    raise DataError(f"{name[0]}: no question: it is empty")
            how = {"best": self.best, "longest": self.longest}
            for found in predictor.answers(asked, [read] * len(asked), **how):
                number += 1
                none += found[0].start < 0
                for one in found:
                    # As it is written in the file, whatever was lower-cased.
                    said = text[one.start : one.start + len(one.text)]
                    said = "(no answer)" if one.start < 0 else said
                    write(str(number), said, f"{one.score:.4f}", str(one.start))
            sys.stdout.buffer.flush()
        if none:
            of = "the question" if number == 1 else f"{none} of {plural(number, 'question')}"
            note(f"{of} {'has' if none == 1 else 'have'} no answer in this text, says the run")
        return 0
