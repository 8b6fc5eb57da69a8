r"""Train a language model from any text, align it, resume a run, compare models on a text.

    python -m experiments.decoder_only train python-docs
    python -m experiments.decoder_only train char-cpu --data.text shakespeare.txt
    python -m experiments.decoder_only train gpt2-small --data.text folder/ --mesh.fsdp 4
    python -m experiments.decoder_only train ngram --data.text shakespeare.txt --model.order 5
    python -m experiments.decoder_only instruct sft --init-from models/gpt2 --data.train chats.jsonl
    python -m experiments.decoder_only align dpo --init-from runs/char-cpu --data.train pairs.jsonl
    python -m experiments.decoder_only align grpo --init-from runs/char-cpu \
        --data.train prompts.jsonl --reward.file reward.py
    python -m experiments.decoder_only resume runs/char-cpu
    python -m experiments.decoder_only evaluate runs/char-cpu --text more.txt --compare runs/ngram

``COMMAND NAME --help`` lists every setting. A run on texts ends with perplexity and bits per
character on its test texts, with n-gram models as baselines, a run on conversations with an answer.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tyro

from transformer_jax.cli import training
from transformer_jax.cli.run_command import PredictionCommand
from transformer_jax.cli.run_flags import parse_flags
from transformer_jax.errors import ConfigError

__all__ = ["Evaluate", "main"]

PROGRAM = "python -m experiments.decoder_only"


@dataclasses.dataclass(frozen=True)
class Evaluate(PredictionCommand):
    """Compare language models on a text, or validate a run of instruct or align.

    Texts have loss, perplexity, bits per character and per byte; other runs have the metrics that
    training validates, on conversations, preferences or prompts.
    """

    run: tyro.conf.Positional[str]
    """Run directory of a neural or an n-gram model."""
    data: str | None = None
    """Of a run of instruct or align: JSONL file of conversations, pairs, labels or prompts; None is
    the validation data of the run."""
    reward_file: str | None = None
    """Of a run of ppo or grpo: a Python file with reward(prompt, completion) -> float; None is the
    reward that the run was trained with."""
    reward_run: str | None = None
    """Of a run of ppo or grpo: a reward model in its place."""
    text: str | None = None
    """A text file or folder; None is the test (or else validation) text of the run."""
    compare: tuple[str, ...] = ()
    """More runs to evaluate on the same text, each with its own tokenizer."""
    ngrams: tuple[int, ...] | None = None
    """Orders of the n-gram baselines on the run's training text; None is the run's setting."""
    checkpoint: str = "best"
    """best, last, a step, or average:N (the mean of the last N)."""
    output: str | None = None
    """JSON file for the results."""

    def refuse(self, learnt: str, names: tuple[str, ...], instead: str) -> None:
        """Refuses flags that are for runs on something else than ``learnt``.

        Raises:
            ConfigError: One is given.
        """
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        for name in names:
            if getattr(self, name) != usual[name]:
                raise ConfigError(
                    f"--{name.replace('_', '-')}: {self.run} was trained on {learnt}: give "
                    f"--{instead}, or leave it out"
                )


def evaluate(arguments: Sequence[str], program: str) -> int:
    """Prints a row for each model."""
    asked = parse_flags(Evaluate, program, arguments)
    from transformer_jax.predictors.runs import open_directory
    from transformer_jax.runs import language, tuned_evaluation

    with asked.loading():
        directory = open_directory(asked.run)
        if tuned_evaluation.is_tuned(directory):
            chats = "chat" in directory.read_config()
            learnt = "conversations" if chats else "preferences or prompts"
            asked.refuse(learnt, ("text", "compare", "ngrams"), "data")
            return tuned_evaluation.evaluate(asked, directory)
        asked.refuse("texts", ("data", "reward_file", "reward_run"), "text")
        return language.compare(asked)


def _runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.language_settings import RUNS

    return RUNS


def _instruct_runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.instruct_settings import RUNS

    return RUNS


def _align_runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.alignment_settings import ALIGN_RUNS

    return ALIGN_RUNS


def _part(run: Any) -> Any:
    """The module that trains a run of this type."""
    from transformer_jax.runs.instruct_settings import InstructRun

    if isinstance(run, InstructRun):
        from transformer_jax.runs import instruct

        return instruct
    if hasattr(run, "align"):
        from transformer_jax.runs import alignment

        return alignment
    from transformer_jax.runs import language

    return language


def _begin(run: Any, named: Any) -> tuple[Any, Any, Any]:
    return _part(run).begin(run, named)  # type: ignore[no-any-return]


def _read(directory: Any) -> tuple[Any, Any]:
    if "chat" in directory.read_config():
        from transformer_jax.runs import instruct_settings

        return instruct_settings.read(directory), lambda: None
    from transformer_jax.runs import alignment_settings, language_settings

    aligned = "align" in directory.read_config()
    run = (alignment_settings if aligned else language_settings).read(directory)
    return run, lambda: _part(run).open_run(run)


def _anew(run: Any) -> Any:
    """Without what texts begin with, which follows from them and their tokenizer."""
    from transformer_jax.runs.language_settings import LanguageRun

    return dataclasses.replace(run, first="auto") if type(run) is LanguageRun else run


def _train(run: Any, *parts: Any, **how: Any) -> int:
    return _part(run).train(run, *parts, **how)  # type: ignore[no-any-return]


FAMILY = training.TrainingProgram(
    PROGRAM,
    __doc__ or "",
    {"train": _runs, "instruct": _instruct_runs, "align": _align_runs},
    _begin,
    _read,
    _train,
    anew=_anew,
    others={"evaluate": evaluate},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of ``arguments``, or of the command line; returns its exit code."""
    return training.main(FAMILY, arguments)
