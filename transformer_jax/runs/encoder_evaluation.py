"""Evaluation of a trained encoder: ``encoder_only evaluate``."""

from typing import Any

from flax import nnx

from transformer_jax.data.documents import TextSplits, read_texts
from transformer_jax.data.labeled import read_labeled
from transformer_jax.errors import ConfigError
from transformer_jax.predictors.runs import FINE_TUNED, load, open_directory
from transformer_jax.runs import finetuning, pretraining
from transformer_jax.runs.encoder_settings import PretrainRun, read
from transformer_jax.tasks.fit import allowing
from transformer_jax.tasks.labeled import log_texts
from transformer_jax.tasks.scores import measure, table, write_scores
from transformer_jax.training.run_directory import RunDirectory

__all__ = ["evaluate"]


@allowing(unknown=True)
def evaluate(asked: Any) -> int:
    """Print the metrics of a run on its test data or a file; optionally write them as JSON."""
    directory = open_directory(asked.run)
    run = read(directory)
    if isinstance(run, PretrainRun):
        scores = _masked_tokens(run, directory, asked)
    else:
        scores = _task(run, directory, asked)
    write_scores(asked.output, scores)
    return 0


def _masked_tokens(run: PretrainRun, directory: RunDirectory, asked: Any) -> dict[str, Any]:
    texts = pretraining.open_run(run)
    if asked.data is not None:
        parts = read_texts(asked.data, run.data.read, "--data")
        texts = TextSplits(texts.train, None, {"text": parts})
    model, tokenizer = load(directory.path, asked.checkpoint, kind="encoder")
    return pretraining.score(run, directory, texts, tokenizer, nnx.merge(*model))


def _task(run: Any, directory: RunDirectory, asked: Any) -> dict[str, Any]:
    kind = run.task.kind
    if asked.data is not None:
        parts = {"data": read_labeled(asked.data, kind, run.data.read, "--data")}
    else:
        splits = finetuning.open_run(run)
        parts = splits.tests or ({} if splits.valid is None else {"valid": splits.valid})
    if not parts:
        raise ConfigError(f"{asked.run}: has no test or validation examples: give --data")
    model, tokenizer = load(directory.path, asked.checkpoint, kind=FINE_TUNED)
    for part in parts.values():
        log_texts(part, tokenizer)
    predictor = finetuning.predictor(model, tokenizer, run)
    scores = {name: measure(predictor, kind, run.task.labels, part) for name, part in parts.items()}
    print(table(scores), flush=True)
    return scores
