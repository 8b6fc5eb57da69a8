"""Fine-tuning of an encoder on labeled examples: ``encoder_only finetune``."""

import dataclasses
import functools
from typing import Any

from transformer_jax.data.labeled import (
    Labeled,
    LabeledSplits,
    Questions,
    Tagged,
    label_names,
    open_labeled,
)
from transformer_jax.data.tokenizer import BERT_SPECIAL, Tokenizer
from transformer_jax.encoding.predictor import Predictor
from transformer_jax.errors import ConfigError, plural
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.encoder_settings import FinetuneRun, read
from transformer_jax.runs.initial import Initial, load_pretrained
from transformer_jax.runs.settings import batching_of
from transformer_jax.runs.train import train as train_run
from transformer_jax.tasks.labeled import labeled
from transformer_jax.training.partition import EVERYTHING, Partition, where
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Task

__all__ = ["begin", "make_task", "open_run", "partition_of", "predictor", "train"]


def begin(run: FinetuneRun, named: FinetuneRun) -> tuple[FinetuneRun, RunDirectory, LabeledSplits]:
    """Create a run directory; returns the run with all settings, its directory and examples."""
    if run.task.labels:
        raise ConfigError("task.labels are read from the training file: leave them out")
    start = None if run.task.init_from is None else load_pretrained(run.task.init_from)
    if start is not None:
        run = _from(run, named, start)
    run = checks.checked(run, named)
    _check_layers(run)
    splits = open_run(run)
    labels = label_names(splits, run.task.kind)
    if isinstance(splits.train, Questions):
        labels = ("answer",) if all(splits.train.answers) else ("answer", "none")

    def learn() -> Tokenizer:
        if start is not None:
            return start.directory.load_tokenizer()
        return beginning.learn_tokenizer(run.tokenizer, _texts(splits.train), BERT_SPECIAL)

    def resolve(run: FinetuneRun, tokenizer: Tokenizer) -> FinetuneRun:
        run = checks.with_rows(run)
        task = dataclasses.replace(run.task, labels=labels)
        resolved: FinetuneRun = dataclasses.replace(run, task=task)
        return resolved if start is not None else checks.with_vocab(resolved, tokenizer)

    given = start is None and run.model.vocab_size != named.model.vocab_size
    directory = beginning.begin(run, learn, resolve, vocab_given=given)
    return read(directory), directory, splits  # type: ignore[return-value]


def open_run(run: FinetuneRun) -> LabeledSplits:
    """The examples of a run."""
    return open_labeled(run.data, run.task.kind)


def _from(run: FinetuneRun, named: FinetuneRun, start: Initial) -> FinetuneRun:
    """The run with the model that it starts from, but for settings that were given."""
    if run.tokenizer != named.tokenizer:
        raise ConfigError(
            "tokenizer: a run with task.init_from reads text as that run does: leave it out"
        )
    model = start.changed(run.model, named.model)
    # The dtype is that of this machine, not of the other run.
    compute = dataclasses.replace(model.compute, dtype=run.model.compute.dtype)
    model = dataclasses.replace(model, compute=compute)
    data = dataclasses.replace(
        run.data, read=dataclasses.replace(run.data.read, lowercase=start.lowercase)
    )
    if run.data.read.lowercase and not start.lowercase:
        raise ConfigError(
            f"data.read.lowercase: {run.task.init_from} was trained on text with capitals: leave "
            f"it out"
        )
    return dataclasses.replace(run, model=model, data=data)


def _check_layers(run: FinetuneRun) -> None:
    layers, freeze = run.model.encoder_layers, run.task.freeze
    if run.task.reinit_last > layers:
        raise ConfigError(
            f"task.reinit_last is {run.task.reinit_last}: there are {plural(layers, 'layer')}"
        )
    if freeze.isdecimal() and int(freeze) > layers:
        raise ConfigError(f"task.freeze is {freeze}: there are {plural(layers, 'layer')}")
    kept = layers if freeze == "encoder" else int(freeze) if freeze.isdecimal() else 0
    if kept + run.task.reinit_last > layers:
        raise ConfigError(
            f"task.freeze is {freeze} and task.reinit_last {run.task.reinit_last}: layers drawn "
            f"anew would never be trained"
        )


def partition_of(freeze: str) -> Partition:
    """The partition of a run: all parameters, or those that are not frozen, are trainable.

    Example:
        >>> from flax import nnx
        >>> params = {"embedding": {"table": 1}, "labels": {"kernel": 2}}
        >>> partition_of("embeddings").split(params, nnx.Rngs(0))
        ({'labels': {'kernel': 2}}, {'embedding': {'table': 1}})
    """
    if freeze == "none":
        return EVERYTHING
    if freeze == "encoder":
        return where(lambda path: path.startswith("labels/"))
    layers = 0 if freeze == "embeddings" else int(freeze)
    entrance = ("positions", "segments", "embedding_norm", "projection")
    tables = ("embedding/", *(f"encoder/{part}/" for part in entrance))

    def trained(path: str) -> bool:
        parts = path.split("/")
        if parts[:2] == ["encoder", "blocks"]:
            if not parts[2].isdecimal():
                raise ConfigError(
                    "task.freeze: the layers of a scanned stack cannot be frozen one by one: set "
                    "model.compute.scan_layers to False"
                )
            return int(parts[2]) >= layers
        return not path.startswith(tables)

    return where(trained)


def _texts(part: Labeled) -> list[str]:
    """All text of the examples, to train a tokenizer."""
    if isinstance(part, Tagged):
        return [" ".join(words) for words in part.words]
    if isinstance(part, Questions):
        return [*part.questions, *dict.fromkeys(part.contexts)]
    return [*part.texts, *(part.text_pairs or ())]


def make_task(
    run: FinetuneRun, directory: RunDirectory, tokenizer: Tokenizer, splits: LabeledSplits
) -> Task:
    """The task of a run."""
    del directory
    settings = run.task
    task = labeled(
        splits,
        run.model,
        tokenizer,
        kind=settings.kind,
        labels=settings.labels,
        length=settings.max_length,
        stride=settings.doc_stride,
        batching=batching_of(run.training),
    )
    return dataclasses.replace(
        task,
        partition=partition_of(settings.freeze),
        initial=None if settings.init_from is None else functools.partial(_initial, run),
        settings=run,
    )


def _initial(run: FinetuneRun, params: Any) -> Any:
    """Parameters of the run that this one starts from, and drawn ones where it has none."""
    task, layers = run.task, run.model.encoder_layers
    fresh = [f"encoder/blocks/{i}/" for i in range(layers - task.reinit_last, layers)]
    fresh += ["pooler/"] if task.reinit_last else []
    assert task.init_from is not None
    return load_pretrained(task.init_from).given(params, lambda name: name.startswith(tuple(fresh)))


def predictor(model: tuple[Any, Any], tokenizer: Tokenizer, run: FinetuneRun) -> Predictor:
    """The predictor of labels of texts with a model of the run."""
    task = run.task
    return Predictor(
        model,
        tokenizer,
        kind=task.kind,
        labels=task.labels,
        length=task.max_length,
        stride=task.doc_stride,
    )


def train(run: FinetuneRun, directory: RunDirectory, splits: LabeledSplits) -> int:
    """Train, and score the best checkpoint on validation and test examples."""
    return train_run(run, directory, functools.partial(make_task, splits=splits))
