"""Speech runs: start, task and training."""

import dataclasses
import functools

from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import ConfigError
from transformer_jax.parallel.mesh import is_main_process, sync_global_devices
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.settings import batching_of
from transformer_jax.runs.sizing import from_task
from transformer_jax.runs.speech_settings import SpeechRun
from transformer_jax.runs.train import train as train_run
from transformer_jax.speech.features import Normalization
from transformer_jax.speech.recordings import (
    SpeechData,
    SpeechSplits,
    build_features,
    load_recordings,
)
from transformer_jax.tasks.settings import SpeechDataSettings
from transformer_jax.tasks.speech_task import speech_recognition
from transformer_jax.training.activity import working
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.sealed import sealed
from transformer_jax.training.task import Task

__all__ = ["begin", "make_task", "open_run", "read", "train", "without_normalization"]


read = SpeechRun.read


def open_run(run: SpeechRun) -> SpeechSplits:
    """The recordings of a run."""
    return load_recordings(run.data)


def begin(run: SpeechRun, named: SpeechRun) -> tuple[SpeechRun, RunDirectory, SpeechSplits]:
    """Create a run directory; returns the run with all settings, its directory, and recordings."""
    if run.init_from is not None:
        raise ConfigError("init_from: a speech recognizer starts from no encoder: leave it out")
    vocab_given = run.model.vocab_size != named.model.vocab_size
    checked = checks.checked(run, named)
    assert isinstance(checked, SpeechRun)
    splits = open_run(checked)
    run = _with_features(checked, named, splits)
    learn = lambda: beginning.learn_tokenizer(run, splits.train.texts)
    directory = beginning.begin(run, learn, _resolved, vocab_given=vocab_given)
    return SpeechRun.read(directory), directory, splits


def _with_features(run: SpeechRun, named: SpeechRun, splits: SpeechSplits) -> SpeechRun:
    """The run with a model of as many features as the first recording has.

    Raises:
        ConfigError: The user set another number, or a normalization of another number.
        DataError: The recording cannot be read.
    """
    with working("reading the first recording"):
        width = splits.train.read(0, run.data.audio)[0].shape[1]
    asked, usual = run.model.features.num_features, named.model.features.num_features
    if asked not in (usual, width):
        raise ConfigError(
            f"model.features.num_features is {asked}, but {splits.train.paths[0]} has frames of "
            f"{width}: leave it out, and it follows the recordings"
        )
    known = len(run.data.normalization.mean)
    if known not in (0, width):
        raise ConfigError(
            f"data.normalization.mean has {known} numbers, but {splits.train.paths[0]} has frames "
            f"of {width}: leave it out, and it follows the recordings"
        )
    features = dataclasses.replace(run.model.features, num_features=width)
    return dataclasses.replace(run, model=dataclasses.replace(run.model, features=features))


def _resolved(run: SpeechRun, tokenizer: Tokenizer) -> SpeechRun:
    resolved = checks.with_vocab(checks.with_rows(run), tokenizer)
    assert isinstance(resolved, SpeechRun)
    return resolved


def without_normalization(run: SpeechRun) -> SpeechRun:
    """The run without what was computed from its recordings, for others."""
    data = dataclasses.replace(run.data, normalization=Normalization())
    return dataclasses.replace(run, data=data)


def make_task(
    run: SpeechRun, directory: RunDirectory, tokenizer: Tokenizer, splits: SpeechSplits
) -> Task:
    """The task of a run whose normalization is known."""
    data: SpeechData = run.data
    task = speech_recognition(
        splits,
        run.model,
        tokenizer,
        settings=SpeechDataSettings(data.read, data.audio, data.normalization),
        batching=batching_of(run.training),
        label_smoothing=run.training.label_smoothing,
        evaluation=run.evaluation,
        cache=directory.path / "store",
    )
    return dataclasses.replace(task, settings=from_task(run, task))


def train(run: SpeechRun, directory: RunDirectory, splits: SpeechSplits) -> int:
    """Train a recognizer, score the best checkpoint on the test sets, and write results."""
    run = _normalized(run, directory, splits)
    return train_run(run, directory, functools.partial(make_task, splits=splits))


def _normalized(run: SpeechRun, directory: RunDirectory, splits: SpeechSplits) -> SpeechRun:
    """The run with the normalization of its training recordings, which ``config.json`` then has.

    It comes before any checkpoint; a run that was trained keeps what it has.
    """
    if run.data.normalization.mean:
        return run
    width = run.model.features.num_features
    features = build_features(splits.train, run.data.audio, width, directory.path / "store")
    with working("computing the mean of features"):
        data = dataclasses.replace(run.data, normalization=features.normalization())
    if is_main_process() and sealed(directory.path) is None:
        kept = dataclasses.replace(SpeechRun.read(directory), data=data)
        directory.write(directory.config, dataclasses.asdict(kept))
    sync_global_devices("normalized")
    return dataclasses.replace(run, data=data)
