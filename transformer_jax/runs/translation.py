"""Translation runs: start, task and training."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from transformer_jax.config import TransformerConfig
from transformer_jax.data.sources import Splits, load_splits, with_languages
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.predictors.runs import ENCODERS
from transformer_jax.recurrent_config import ModelConfig
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.freezing import check_layers, initial_of, partition_for
from transformer_jax.runs.initial import Initial, load_pretrained
from transformer_jax.runs.settings import batching_of
from transformer_jax.runs.sizing import from_task
from transformer_jax.runs.train import train as train_run
from transformer_jax.runs.translation_settings import RecurrentRun, Run
from transformer_jax.tasks.translation_task import translation
from transformer_jax.training.activity import log
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Task

__all__ = ["begin", "begin_with", "make_task", "open_run", "read", "started", "train"]

Texts = TypeVar("Texts")

read = Run.read


def begin(run: Run, named: Run) -> tuple[Run, RunDirectory, Splits]:
    """Create a run directory; returns the run with all settings, its directory, and its texts."""
    run = dataclasses.replace(run, data=with_languages(run.data))
    splits, directory = begin_with(
        run, named, open_run, lambda found: [*found.train.sources, *found.train.targets]
    )
    return Run.read(directory), directory, splits


def begin_with(
    run: Run,
    named: Run,
    open_texts: Callable[[Any], Texts],
    training_texts: Callable[[Texts], list[str]],
) -> tuple[Texts, RunDirectory]:
    """Create the run directory of any pairs of texts; returns what was read, and the directory.

    Args:
        run: The settings.
        named: The settings before flags changed them.
        open_texts: Reads the texts of a run.
        training_texts: Those that a tokenizer is trained on.
    """
    start: Initial | None = None
    published: Callable[[Run], dict[str, Any] | None] = beginning.no_record
    if run.init_from is not None:
        start = load_pretrained(run.init_from, _families(run))
        run = start.settings(run, named, _base(run, start))
        check_layers(run, start)
        if start.family == "encoder-decoder":
            published = start.published
            _note_prefix(run, start)
    given = start is None and run.model.vocab_size != named.model.vocab_size
    run = checks.checked(run, named)
    texts = open_texts(run)

    def learn() -> Tokenizer:
        if start is not None:
            return start.tokenizer
        prefix = [run.data.read.source_prefix] * bool(run.data.read.source_prefix)
        return beginning.learn_tokenizer(run, [*training_texts(texts), *prefix])

    directory = beginning.begin(run, learn, _resolved, vocab_given=given, published=published)
    return texts, directory


def _note_prefix(run: Run, start: Initial) -> None:
    """A line about the prefixes that the tasks of a published model have, if the run has none."""
    published = start.directory.read_config().get("published") or {}
    tasks = (published.get("fields") or {}).get("task_specific_params")
    named = {
        str(task["prefix"]): str(name)
        for name, task in (tasks if isinstance(tasks, dict) else {}).items()
        if isinstance(task, dict) and task.get("prefix")
    }
    if named and not run.data.read.source_prefix:
        log(
            f"{run.init_from}: each of its tasks has a prefix of sources: give "
            f"--data.read.source-prefix, such as "
            f"{', '.join(f'{prefix!r} ({name})' for prefix, name in named.items())}"
        )


def open_run(run: Run) -> Splits:
    """The sentence pairs of a run."""
    return load_splits(run.data)


def _families(run: Run) -> tuple[str, ...]:
    """The families that a translator can start from."""
    return ("recurrent",) if isinstance(run, RecurrentRun) else ("encoder-decoder", *ENCODERS)


def _base(run: Run, start: Initial) -> ModelConfig:
    """The model of the start; an encoder gets a decoder of the same kind."""
    whole = start.family not in ENCODERS
    log(
        f"{run.init_from} is {start.name}: "
        + ("all of it is loaded" if whole else "the encoder is loaded, and the decoder is new")
    )
    if whole or not isinstance(start.model, TransformerConfig):
        return start.model
    plain = dataclasses.replace(start.model.head, mlm_transform=False, pooler=False)
    layers = run.model.decoder_layers
    return dataclasses.replace(start.model, decoder_layers=layers, head=plain)


def _resolved(run: Run, tokenizer: Tokenizer) -> Run:
    sized = checks.with_vocab if run.init_from is None else checks.with_rows_for
    resolved: Run = sized(checks.with_rows(run), tokenizer)
    return resolved


def make_task(run: Run, directory: RunDirectory, tokenizer: Tokenizer, splits: Splits) -> Task:
    """The task of a run."""
    task = translation(
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


def started(task: Task, run: Run, tokenizer: Tokenizer) -> Task:
    """The task with the settings of a run, what it starts from and what of it is trained."""
    initial = initial_of(run, _families(run), tokenizer)
    if initial is None:
        return dataclasses.replace(task, settings=run)
    partition = partition_for(run, tokenizer)
    return dataclasses.replace(task, partition=partition, initial=initial, settings=run)


def train(run: Run, directory: RunDirectory, splits: Splits) -> int:
    """Train a translator, score the best checkpoint on the test sets, and write results."""
    return train_run(run, directory, functools.partial(make_task, splits=splits))
