r"""Pre-train an encoder on any text, fine-tune it on labeled examples, resume a run.

    python -m experiments.encoder_only pretrain python-docs
    python -m experiments.encoder_only pretrain small --data.text corpus.txt
    python -m experiments.encoder_only finetune classify --task.init-from runs/small \
        --data.train reviews.tsv
    python -m experiments.encoder_only finetune tag --data.train train.conllu
    python -m experiments.encoder_only resume runs/small
    python -m experiments.encoder_only evaluate runs/classify --data more.tsv
    python -m experiments.encoder_only glue SST-2=runs/classify MRPC=runs/pair

``pretrain NAME --help`` and ``finetune TASK --help`` list every setting. Pre-training ends with
MLM and sentence-pair accuracy beside trivial baselines; fine-tuning with the scores of
its task on validation and test examples.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tyro

from transformer_jax.cli import training
from transformer_jax.cli.run_command import PredictionCommand
from transformer_jax.cli.run_flags import parse_flags

__all__ = ["Evaluate", "main"]

PROGRAM = "python -m experiments.encoder_only"


@dataclasses.dataclass(frozen=True)
class Evaluate(PredictionCommand):
    """Evaluate a run: MLM and sentence pairs of a text, or the task of a labeled file."""

    run: tyro.conf.Positional[str]
    """The run directory."""
    data: str | None = None
    """A text file or folder, or a labeled file; None is the test (or else validation) data."""
    checkpoint: str = "best"
    """best, last, a step, or average:N (the mean of the last N)."""
    output: str | None = None
    """JSON file for the results."""


def evaluate(arguments: Sequence[str], program: str) -> int:
    """Prints a row for each text or file."""
    asked = parse_flags(Evaluate, program, arguments)
    from transformer_jax.runs import encoder_evaluation

    with asked.loading():
        return encoder_evaluation.evaluate(asked)


@dataclasses.dataclass(frozen=True)
class Glue:
    """Print GLUE's table, with the scores of runs as a row."""

    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """COLUMN=RUN, such as SST-2=runs/sst."""


def glue(arguments: Sequence[str], program: str) -> int:
    """Prints the published rows and that of the runs."""
    asked = parse_flags(Glue, program, arguments)
    from transformer_jax.runs import glue_table

    print(glue_table.glue(asked.runs))
    return 0


def _pretrain_runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.encoder_settings import PRETRAIN_RUNS

    return PRETRAIN_RUNS


def _task_runs() -> dict[str, tuple[str, Any]]:
    from transformer_jax.runs.encoder_settings import TASK_RUNS

    return TASK_RUNS


def _part(run: Any) -> Any:
    """The module that trains a run of this type."""
    from transformer_jax.runs.encoder_settings import PretrainRun

    if isinstance(run, PretrainRun):
        from transformer_jax.runs import pretraining

        return pretraining
    from transformer_jax.runs import finetuning

    return finetuning


def _begin(run: Any, named: Any) -> tuple[Any, Any, Any]:
    return _part(run).begin(run, named)


def _read(directory: Any) -> tuple[Any, Any]:
    from transformer_jax.runs.encoder_settings import read

    run = read(directory)
    return run, lambda: _part(run).open_run(run)


def _anew(run: Any) -> Any:
    """Without labels, which come from the training file."""
    if not hasattr(run, "task"):
        return run
    return dataclasses.replace(run, task=dataclasses.replace(run.task, labels=()))


def _train(run: Any, *parts: Any, **how: Any) -> int:
    return _part(run).train(run, *parts, **how)


FAMILY = training.TrainingProgram(
    PROGRAM,
    __doc__ or "",
    {"pretrain": _pretrain_runs, "finetune": _task_runs},
    _begin,
    _read,
    _train,
    anew=_anew,
    others={"evaluate": evaluate, "glue": glue},
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of ``arguments``, or of the command line; returns its exit code."""
    return training.main(FAMILY, arguments)
