"""``transformer-jax answer``: extractive question answering."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import tyro

from transformer_jax.cli.output import note, note_unknown
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import Count, Range
from transformer_jax.core.errors import ConfigError, DataError, plural

__all__ = ["Answer"]

HEADER = ("question", "answer", "score", "start")
READ_AHEAD = 256


@dataclasses.dataclass(frozen=True)
class Answer(PredictionCommand):
    """Extract answers to questions from a text with a fine-tuned encoder, as TSV."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of the task qa."""
    questions: tyro.conf.Positional[tuple[str, ...]] = ()
    """Questions; without any, the lines of standard input."""
    context: Path | None = None
    """Text file with the answers."""
    top: Count = 1
    """Number of answers per question, including "no answer"."""
    max_answer_len: Annotated[int, Range(1, 100_000)] = 30
    """Maximum length of an answer in tokens."""

    def __call__(self) -> int:
        """Prints one row per answer, the best first.

        The score is the logit of the span minus that of "no answer".
        """
        if self.context is None:
            raise ConfigError("--context is missing: the text file that holds the answers")
        from transformer_jax.cli.support.input_lines import file_lines, given_texts, windows, write
        from transformer_jax.inference.encoders import check_question, check_task, task_runner

        if str(self.context) == "-" and not self.questions:
            raise ConfigError("--context - is standard input: give the questions as arguments")
        text = "\n".join(file_lines(self.context, "--context"))
        if not text.strip():
            raise DataError(f"--context {self.context}: no text: it is empty")
        from transformer_jax.inference.pretrained import Pretrained, read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        check_task(facts, "qa")
        predictor = task_runner(Pretrained.load(facts))
        none = number = 0
        write(*HEADER)
        for window in windows(given_texts(self.questions), READ_AHEAD):
            for name, question in window:
                check_question(facts.preparation, question, name)
            asked = [question for _, question in window]
            how = {"best": self.top, "longest": self.max_answer_len}
            for found in predictor.answers(asked, [text] * len(asked), **how):
                number += 1
                none += found[0].start < 0
                for answer in found:
                    said = "(no answer)" if answer.start < 0 else answer.text
                    write(str(number), said, f"{answer.score:.4f}", str(answer.start))
            sys.stdout.buffer.flush()
        note_unknown(predictor.counts)
        if cut := predictor.counts["cut"]:
            note(f"{plural(cut, 'question')} truncated to leave room for the text")
        if none:
            of = "the question" if number == 1 else f"{none} of {plural(number, 'question')}"
            note(f"{of} {'has' if none == 1 else 'have'} no answer in this text")
        return 0
