"""Translation runs: start, task and training."""

import dataclasses
import functools

from transformer_jax.data.sources import Splits, load_splits
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import ConfigError
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.initial import Initial, load_pretrained
from transformer_jax.runs.settings import batching_of
from transformer_jax.runs.train import train as train_run
from transformer_jax.runs.translation_settings import RecurrentRun, Run
from transformer_jax.tasks.translation_task import translation
from transformer_jax.training.activity import log
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.task import Task

__all__ = ["begin", "make_task", "train"]


def begin(run: Run, named: Run) -> tuple[Run, RunDirectory, Splits]:
    """Create a run directory; returns the run with all settings, its directory, and its texts."""
    given = run.model.vocab_size != named.model.vocab_size
    if run.init_from is not None and isinstance(run, RecurrentRun):
        raise ConfigError("init_from: a recurrent translator starts from no encoder: leave it out")
    start = None if run.init_from is None else load_pretrained(run.init_from)
    if start is not None:
        run = _from(run, named, start)
    run = checks.checked(run, named)
    splits = load_splits(run.data)
    pairs = splits.train

    def learn() -> Tokenizer:
        if start is not None:
            return start.directory.load_tokenizer()
        return beginning.learn_tokenizer(run.tokenizer, [*pairs.sources, *pairs.targets])

    directory = beginning.begin(run, learn, _resolved, vocab_given=given)
    return Run.read(directory), directory, splits


def _from(run: Run, named: Run, start: Initial) -> Run:
    """The run with the encoder that it starts from, and a decoder of the same kind."""
    if run.tokenizer != named.tokenizer:
        raise ConfigError(
            "tokenizer: a run with init_from reads text as that run does: leave it out"
        )
    plain = dataclasses.replace(start.model.head, mlm_transform=False, pooler=False)
    both = dataclasses.replace(start.model, decoder_layers=run.model.decoder_layers, head=plain)
    usual = dataclasses.replace(named.model, decoder_layers=run.model.decoder_layers)
    model = dataclasses.replace(start, model=both).changed(run.model, usual)
    # The dtype is that of this machine, not of the other run.
    compute = dataclasses.replace(model.compute, dtype=run.model.compute.dtype)
    model = dataclasses.replace(model, compute=compute)
    read = dataclasses.replace(run.data.read, lowercase=start.lowercase or run.data.read.lowercase)
    if start.lowercase:
        log(f"{run.init_from} reads lower-cased text, and so does this run")
    return dataclasses.replace(run, model=model, data=dataclasses.replace(run.data, read=read))


def _resolved(run: Run, tokenizer: Tokenizer) -> Run:
    resolved: Run = checks.with_vocab(checks.with_rows(run), tokenizer)
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
    initial = None
    if run.init_from is not None:
        initial = lambda params: load_pretrained(run.init_from).given(params)
    return dataclasses.replace(task, initial=initial, settings=run)


def train(run: Run, directory: RunDirectory, splits: Splits) -> int:
    """Train a translator, score the best checkpoint on the test sets, and write results."""
    return train_run(run, directory, functools.partial(make_task, splits=splits))
