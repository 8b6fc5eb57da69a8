"""Summarization runs, from texts to ROUGE: ``seq2seq finetune summarize``."""

import functools

from transformer_jax.data.summaries import SummarySplits, load_summaries
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.evaluation.rouge import check_installed
from transformer_jax.runs.settings import batching_of, read_run
from transformer_jax.runs.sizing import from_task
from transformer_jax.runs.summarization_settings import SummarizationRun
from transformer_jax.runs.train import train as train_run
from transformer_jax.runs.translation import begin_with, started
from transformer_jax.tasks.summarization_task import summarization
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Task

__all__ = ["begin", "make_task", "open_run", "read", "train"]


def read(directory: RunDirectory) -> SummarizationRun:
    """The run of a directory.

    Raises:
        CheckpointError: ``config.json`` is damaged, or of another kind of run.
    """
    return read_run(SummarizationRun, directory, "the run of a summarizer")


def open_run(run: SummarizationRun) -> SummarySplits:
    """The texts and summaries of a run."""
    return load_summaries(run.data)


def begin(
    run: SummarizationRun, named: SummarizationRun
) -> tuple[SummarizationRun, RunDirectory, SummarySplits]:
    """Create a run directory; returns the run with all settings, its directory, and its texts.

    Raises:
        ConfigError: ROUGE cannot be measured, as its library is not installed.
    """
    check_installed()
    texts, directory = begin_with(run, named, open_run, _training_texts)
    return read(directory), directory, texts


def _training_texts(splits: SummarySplits) -> list[str]:
    pairs = splits.train.pairs(every=True)
    return [*dict.fromkeys(pairs.sources), *pairs.targets]


def make_task(
    run: SummarizationRun, directory: RunDirectory, tokenizer: Tokenizer, splits: SummarySplits
) -> Task:
    """The task of a run."""
    task = summarization(
        splits,
        run.model,
        tokenizer,
        batching=batching_of(run.training),
        label_smoothing=run.training.label_smoothing,
        read=run.data.read,
        evaluation=run.evaluation,
        cache=directory.path / "store",
    )
    return started(task, from_task(run, task), tokenizer)


def train(run: SummarizationRun, directory: RunDirectory, splits: SummarySplits) -> int:
    """Train a summarizer, and compare the best checkpoint with baselines on the test texts."""
    check_installed()
    return train_run(run, directory, functools.partial(make_task, splits=splits))
