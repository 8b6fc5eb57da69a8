"""Fine-tuning of an encoder on labeled examples: ``encoder_only finetune``."""

import dataclasses
import functools
from typing import Any

from transformer_jax.config import TransformerConfig
from transformer_jax.data.examples import DECODER_TOKENS, decoder_template
from transformer_jax.data.labeled import (
    Labeled,
    LabeledSplits,
    Questions,
    Tagged,
    label_names,
    open_labeled,
)
from transformer_jax.data.tokenizer import BERT_SPECIAL, Tokenizer
from transformer_jax.encoding.task_runner import TaskRunner
from transformer_jax.errors import ConfigError, plural
from transformer_jax.predictors.runs import ENCODERS, FINE_TUNED, task_of
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.encoder_settings import FinetuneRun, read
from transformer_jax.runs.freezing import check_layers, initial_of, partition_for
from transformer_jax.runs.initial import Initial, load_pretrained
from transformer_jax.runs.settings import batching_of
from transformer_jax.runs.train import train as train_run
from transformer_jax.tasks.labeled import labeled
from transformer_jax.training.objectives import with_language_model
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Task

__all__ = ["begin", "make_task", "open_run", "predictor", "train"]

_FAMILIES = (*ENCODERS, "decoder", "decoder-task")  # that a run can start from


def begin(run: FinetuneRun, named: FinetuneRun) -> tuple[FinetuneRun, RunDirectory, LabeledSplits]:
    """Create a run directory; returns the run with all settings, its directory and examples."""
    if run.task.labels:
        raise ConfigError("task.labels are read from the training file: leave them out")
    start = None
    if run.task.init_from is not None:
        start = load_pretrained(run.task.init_from, _FAMILIES)
        run = start.settings(run, named, _base(start))
        if start.model.decoder_layers:
            run = _for_decoder(run, start)
    elif run.model.decoder_layers:
        raise ConfigError(
            f"model.decoder_layers is {run.model.decoder_layers}: a decoder that classifies starts "
            f"from a language model: give --task.init-from, or leave the decoder out"
        )
    if run.task.lm_loss_weight is not None and not run.model.decoder_layers:
        raise ConfigError(
            "task.lm_loss_weight is for decoders, and this is an encoder: leave it out"
        )
    run = checks.checked(run, named)
    if start is not None:
        check_layers(run, start)
    splits = open_run(run)
    labels = label_names(splits, run.task.kind)
    if isinstance(splits.train, Questions):
        labels = ("answer",) if all(splits.train.answers) else ("answer", "none")

    if start is not None:
        _check_labels(run, start, len(labels))

    def learn() -> Tokenizer:
        if start is not None:
            return start.tokenizer
        return beginning.learn_tokenizer(run, _texts(splits.train), BERT_SPECIAL)

    def resolve(run: FinetuneRun, tokenizer: Tokenizer) -> FinetuneRun:
        run = checks.with_rows(run)
        task = dataclasses.replace(run.task, labels=labels)
        resolved: FinetuneRun = dataclasses.replace(run, task=task)
        sized = checks.with_vocab if start is None else checks.with_rows_for
        return sized(resolved, tokenizer)

    given = start is None and run.model.vocab_size != named.model.vocab_size
    directory = beginning.begin(run, learn, resolve, vocab_given=given)
    return read(directory), directory, splits  # type: ignore[return-value]


def _base(start: Initial) -> TransformerConfig:
    """The model of a start; that of a decoder without its language-modelling head."""
    if not start.model.decoder_layers:
        return start.model
    head = dataclasses.replace(start.model.head, tie_word_embeddings=True, bias=False)
    return dataclasses.replace(start.model, head=head)


def _for_decoder(run: FinetuneRun, start: Initial) -> FinetuneRun:
    """The run with the special tokens and the loss of a decoder (Radford et al. 2018; row H24)."""
    task = run.task
    if task.kind not in ("classify", "pair", "regress"):
        raise ConfigError(
            f"task.kind is {task.kind}: a decoder sees nothing behind a word: start from an encoder"
        )
    tied = start.model.head.tie_word_embeddings and not start.model.head.bias
    weight = task.lm_loss_weight
    if weight and not tied:
        raise ConfigError(
            f"task.lm_loss_weight is {weight}: a classifier keeps no output layer, and that of "
            f"{task.init_from} is not its embedding table: leave it out"
        )
    if weight is None:
        # A classifier has no output layer that would tell; the run that made it knew.
        before = task_of(start.directory) if start.family in FINE_TUNED else {}
        weight = before.get("lm_loss_weight", 0.5) if tied else 0.0
    added = dict.fromkeys((*run.tokenizer.add_special_tokens, *DECODER_TOKENS))
    return dataclasses.replace(
        run,
        task=dataclasses.replace(task, lm_loss_weight=weight),
        tokenizer=dataclasses.replace(run.tokenizer, add_special_tokens=tuple(added)),
    )


def _check_labels(run: FinetuneRun, start: Initial, labels: int) -> None:
    """Refuses the head of a fine-tuned start for another number of labels."""

    def outputs(kind: str, labels: int) -> int:
        return {"regress": 1, "qa": 2}.get(kind, labels)

    if start.family not in FINE_TUNED or run.task.reinit_head:
        return
    task = task_of(start.directory)
    there = outputs(task["kind"], len(task.get("labels", [])))
    here = outputs(run.task.kind, labels)
    if there != here:
        raise ConfigError(
            f"task.init_from: {run.task.init_from} has a head of {plural(there, 'output')}, and "
            f"this run needs {here}: add --task.reinit-head"
        )


def open_run(run: FinetuneRun) -> LabeledSplits:
    """The examples of a run."""
    return open_labeled(run.data, run.task.kind)


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
    if weight := settings.lm_loss_weight:
        task = dataclasses.replace(
            task,
            objective=with_language_model(weight, regress=settings.kind == "regress"),
            regularization=(f"{weight:g} x language modelling", *task.regularization),
        )
    return dataclasses.replace(
        task,
        partition=partition_for(run, tokenizer),
        initial=initial_of(run, _FAMILIES, tokenizer) or task.initial,
        settings=run,
    )


def predictor(model: tuple[Any, Any], tokenizer: Tokenizer, run: FinetuneRun) -> TaskRunner:
    """The predictor of labels of texts with a model of the run."""
    task = run.task
    return TaskRunner(
        model,
        tokenizer,
        kind=task.kind,
        labels=task.labels,
        length=task.max_length,
        stride=task.doc_stride,
        template=decoder_template(tokenizer) if run.model.decoder_layers else None,
    )


def train(run: FinetuneRun, directory: RunDirectory, splits: LabeledSplits) -> int:
    """Train, and score the best checkpoint on validation and test examples."""
    return train_run(run, directory, functools.partial(make_task, splits=splits))
