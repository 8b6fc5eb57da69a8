"""The flags of commands that score files of outputs, and lines of signatures."""

import dataclasses
from collections.abc import Iterable

from transformer_jax.cli.output import check_file
from transformer_jax.core.config_fields import Configuration, OutputPath
from transformer_jax.evaluation.output_scores import OutputTask
from transformer_jax.evaluation.word_splitting import Tokenize, check_tokenize

__all__ = ["OutputFlags", "signatures"]

_FRACTIONS = ("classify", "regress", "tag", "answer", "language")  # scores of four decimals


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputFlags(Configuration, group="--"):
    """The flags of commands that score files of outputs."""

    task: OutputTask | None = None
    """The task of the outputs, which chooses the metrics. None is the task of a predictions.csv, or
    translate."""
    tokenize: Tokenize | None = None
    """Word splitting of texts: sacreBLEU's tokenizer, part of its signature. None depends on the
    script of the references."""
    lowercase: bool = False
    """Ignore case in sacreBLEU, chrF and error rates, as stated in the signature."""
    json: OutputPath | None = None
    """Output file of all figures."""

    def check(self) -> None:
        """Refuses unusable flags before anything is read.

        Raises:
            ConfigError: The tokenizer is unavailable, or the file cannot be written.
        """
        check_file("--json", self.json, (".json",))
        if self.tokenize is not None:
            check_tokenize(self.tokenize, "--tokenize")

    def figures(self, task: OutputTask, value: float) -> str:
        """Formats a score: of texts from 0 to 100, of other tasks from 0 to 1."""
        return f"{value:.{4 if task in _FRACTIONS else 2}f}"


def signatures(rows: Iterable[tuple[str, str]]) -> str:
    """Formats the signature of each metric in a line."""
    return "\n".join(f"{name}: {signature}" for name, signature in rows)
