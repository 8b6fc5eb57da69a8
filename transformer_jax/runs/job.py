"""What the training runs of all families share, from settings to a trained state."""

import abc
import collections
import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from transformer_jax.compilation_cache import multiplies_bfloat16
from transformer_jax.config_dict import from_dict
from transformer_jax.data.loader import prefetched
from transformer_jax.data.store import release_pages
from transformer_jax.data.tokenizer import (
    SPECIAL,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
)
from transformer_jax.errors import CheckpointError, ConfigError, DataError, plural
from transformer_jax.keys import SCHEME, key_for, training_key
from transformer_jax.modules.parameters import parameters
from transformer_jax.parallel.mesh import is_main_process, shard_batch, sync_global_devices
from transformer_jax.predictors.runs import open_directory
from transformer_jax.runs.checks import check_rows, mesh_of
from transformer_jax.runs.sizing import from_size, said_of, vocabulary_for
from transformer_jax.training.activity import said, working
from transformer_jax.training.checkpoint import Checkpointer
from transformer_jax.training.compilation import PreparedStep
from transformer_jax.training.lock import check_lock
from transformer_jax.training.loop import fit
from transformer_jax.training.metrics import read_metrics
from transformer_jax.training.optimizers import check_warm_up, make_optimizer
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.sealed import sealed
from transformer_jax.training.state import TrainState, abstract_state, create_state, digest
from transformer_jax.training.step import compile_eval, compile_step, make_eval_step, make_step
from transformer_jax.visual.curves import training_curves

__all__ = [
    "Job",
    "added",
    "begin",
    "cache_of",
    "introduce",
    "learn_tokenizer",
    "say",
    "train",
]

Batch = dict[str, jax.Array]

_HASHED = 1 << 24  # ids at a time


def say(text: str) -> None:
    """A line on standard error, from the first process alone."""
    if is_main_process():
        print(text, file=sys.stderr, flush=True)
        said()


def learn_tokenizer(
    settings: Any, texts: Iterable[str], special: tuple[str, ...] = SPECIAL
) -> Tokenizer:
    """A tokenizer trained on ``texts`` as a run's settings say, and a line about it."""
    began, size, why = time.monotonic(), settings.vocab_size, ""
    with working("learning the tokenizer"):
        if size is None:
            texts = list(texts)
            size = vocabulary_for(texts, settings.kind)
            why = f" (tokenizer.vocab_size {size} follows from the size of the text)"
        tokenizer = train_tokenizer(settings.kind, texts, size, special=special)
    took = time.monotonic() - began
    say(
        f"tokenizer: {settings.kind}, {plural(tokenizer.vocab_size, 'token')}{why}, learnt in "
        f"{took:.1f} s"
    )
    return tokenizer


def begin(
    run: Any,
    learn: Callable[[], Tokenizer],
    settle: Callable[[Any, Tokenizer], Any],
    *,
    vocab_given: bool,
) -> RunDirectory:
    """A new run directory with all that the run is made of but its state.

    ``config.json`` holds the run as it will be done.

    Args:
        run: What is asked for.
        learn: Trains the tokenizer, if the run does not name one.
        settle: The run with what only the tokenizer and the texts tell, such as the size of the
            model's vocabulary.
        vocab_given: Whether the size of the model's vocabulary was asked for too.

    Raises:
        ConfigError: The tokenizer and the model that was asked for do not fit together.
    """
    assert run.output is not None
    if run.tokenizer.path is not None:
        tokenizer = load_tokenizer(run.tokenizer.path)
    elif is_main_process():
        tokenizer = learn()
    if is_main_process():
        if vocab_given and run.model.vocab_size != tokenizer.vocab_size:
            raise ConfigError(
                f"the tokenizer has {plural(tokenizer.vocab_size, 'token')}, but "
                f"model.vocab_size is {run.model.vocab_size}: leave model.vocab_size "
                f"out, and it follows the tokenizer"
            )
        run = settle(run, tokenizer)
        if run.tokenizer.vocab_size is None:
            size = dataclasses.replace(run.tokenizer, vocab_size=tokenizer.vocab_size)
            run = dataclasses.replace(run, tokenizer=size)
        directory = RunDirectory.create(run.output, overwrite=run.overwrite)
        # In this order: what was killed in between is known as a run in which nothing was begun.
        directory.write(directory.config, dataclasses.asdict(run))
        tokenizer.save(directory.tokenizer)
    sync_global_devices("begun")
    return open_directory(run.output)


class Job(abc.ABC):
    """All the parts of a run, built from its settings and its texts alone.

    A family says which model, plan, batches and objective; the rest is the same for all.
    """

    model: Any  # the class of the model: model(config, rngs=...)
    frozen: Callable[[str], bool] | None = None  # which parameters, by path, stay as they are

    def __init__(self, run: Any, directory: RunDirectory):
        self.run, self.directory = run, directory
        self.mesh = mesh_of(run)
        self.tokenizer = directory.load_tokenizer()
        if self.tokenizer.vocab_size > run.model.vocab_size:
            raise CheckpointError(
                f"{directory.tokenizer}: has {plural(self.tokenizer.vocab_size, 'token')}, but "
                f"the model "
                f"{run.model.vocab_size}: it belongs to another run"
            )
        check_rows(run)
        with working("reading and tokenizing the training data"):
            self.plan = self.make_plan()
        self.run = run = self._sized()
        said = sealed(directory.path)
        training = run.training
        self.fingerprint = _fingerprint(self.plan.fingerprint, self.tokens())
        self.steps = training.steps or training.epochs * self.plan.steps_per_epoch
        if said is None:  # earlier code began runs whose warm-up is longer, and they go on
            check_warm_up(run.optimizer.schedule, self.steps)
        self.make = functools.partial(_make, self.model, run.model, training.seed)
        declared = parameters(nnx.eval_shape(self.make))
        self.tx = make_optimizer(
            run.optimizer, run.model.d_model, self.steps, self.frozen, declared
        )
        self.average = training.average_decay is not None
        # A run that earlier code began goes on with its keys.
        self.scheme = SCHEME if said is None else said.get("key", {}).get("scheme")
        self.graph, self.shapes, self.shardings = abstract_state(
            self.make, self.tx, self.mesh, average=self.average
        )

    def _sized(self) -> Any:
        """The run with what follows from the size of its data."""
        run = from_size(self.run, self.plan.steps_per_epoch)
        if run != self.run:
            say(f"from the size of the data: {said_of(self.run, run)}")
        return run

    def keep_size(self) -> None:
        """Writes to ``config.json`` what follows from the size of the data, before any checkpoint.

        What the flags of this start say is no part of it.
        """
        if is_main_process() and sealed(self.directory.path) is None:
            kept = from_dict(type(self.run), self.directory.read_config())
            sized = from_size(kept, self.plan.steps_per_epoch)
            if sized != kept:
                self.directory.write(self.directory.config, dataclasses.asdict(sized))
        sync_global_devices("sized")

    @abc.abstractmethod
    def make_plan(self) -> Any:
        """Which examples make up each batch of training."""

    @abc.abstractmethod
    def tokens(self) -> Iterable[np.ndarray]:
        """All that is trained on, to tell it from other text of the same lengths."""

    @abc.abstractmethod
    def objective(self, smoothing: float) -> Any:
        """What is minimised."""

    def initial(self) -> Any:
        """The parameters that training begins with; None is what the model draws."""
        return None

    @abc.abstractmethod
    def examples(self, start: int = 0) -> list[Batch]:
        """A batch of padding for every shape of the plan, in the order of need after ``start``."""

    def stream(self, make: Callable[[Any], dict[str, np.ndarray]], start: int) -> Iterator[Batch]:
        """The batches after ``start`` steps, on the devices.

        Args:
            make: From what the plan says of a batch to the rows of it that this process holds.
            start: Steps that are done.
        """
        # The plan is asked by the background thread alone: it may be in the next epoch already, and
        # whoever asks for another epoch than the one before has all of it built anew.
        made = prefetched(self.plan, lambda part: (len(part.indices), make(part)), start=start)
        try:
            for rows, batch in made:
                yield shard_batch(batch, self.mesh, rows)
        finally:
            made.close()  # type: ignore[attr-defined]

    @abc.abstractmethod
    def batches(self, start: int) -> Iterator[Batch]:
        """The batches after ``start`` steps, on the devices."""

    @abc.abstractmethod
    def evaluate(self) -> Callable[[TrainState], dict[str, float]] | None:
        """From a state to validation scores; None if there is nothing to validate on."""

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.shapes.params))

    def step(self) -> Any:
        """The compiled training step."""
        training = self.run.training
        raw = make_step(
            self.graph,
            self.tx,
            self.objective(training.smoothing),
            accumulation=training.accumulation,
            average_decay=training.average_decay,
            frozen=self.frozen,
        )
        return compile_step(raw, self.mesh, self.shardings, training.mode)

    def judged(self) -> Any:
        """The objective that models are judged by."""
        return self.objective(0.0)

    def judge(self) -> Callable[[Any, Iterable[Batch]], dict[str, float]]:
        """From parameters and batches to the sums of what is judged: loss, weight and others."""
        raw = make_eval_step(self.graph, self.judged())
        compiled = compile_eval(raw, self.mesh, self.shardings.params)

        def sums(params: Any, batches: Iterable[Batch]) -> dict[str, float]:
            return added([compiled(params, batch) for batch in batches])

        return sums

    def checkpointer(self) -> Checkpointer:
        """Writes what a manifest needs to tell this run from others."""
        return Checkpointer(
            self.directory.checkpoints,
            keep_last=self.run.loop.keep_last,
            describe={
                "config": self.directory.read_config(),
                "tokenizer": self.tokenizer.sha256,
                "data": {
                    "fingerprint": self.fingerprint,
                    "steps_per_epoch": self.plan.steps_per_epoch,
                },
                "key": {
                    "seed": self.run.training.seed,
                    "impl": _impl(),
                    **({} if self.scheme is None else {"scheme": self.scheme}),
                },
            },
        )

    def restored(self, checkpointer: Checkpointer) -> tuple[int, TrainState] | None:
        """The step and the state of the newest good checkpoint; None if there is none yet."""
        restored = checkpointer.restore(self.shapes)
        if restored is None:
            return None
        said, path = restored.manifest, self.directory.path
        if said["data"]["fingerprint"] != self.fingerprint:
            raise DataError(f"{path}: the training data are not those that the run began with")
        if said["tokenizer"] != self.tokenizer.sha256:
            raise CheckpointError(f"{path}: tokenizer.json is not the one the run began with")
        if said["key"]["impl"] != _impl():
            raise ConfigError(f"{path}: began with the random generator {said['key']['impl']}")
        for problem in restored.left:
            say(f"not used, as it is damaged: {problem}")
        older = ", the newest good checkpoint" if restored.left else ""
        say(f"resumed from step {restored.step}{older}")
        return restored.step, restored.state

    def fresh(self) -> TrainState:
        """What training begins with where there is no checkpoint."""
        made = create_state(
            self.make, self.tx, self.mesh, average=self.average, params=self.initial()
        )
        return made[1]


def cache_of(run: Any, directory: RunDirectory) -> dict[str, Any]:
    """Where the ids of a run's texts are kept, as arguments of what makes or reads them.

    In the run, unless it has a cache. What a run that is only to be read does not have is kept in
    memory.
    """
    if run.cache is not None:
        return {"cache": Path(run.cache)}
    store = directory.path / "store"
    there = store.exists()
    writes = os.access(store if there else directory.path, os.W_OK)
    return {"cache": store if there or writes else None, "writes": writes}


def advise(run: Any, platform: str, fast: bool | None) -> None:
    """Says so if a run computes in bfloat16 on a CPU without units for it.

    Args:
        run: The settings of the run.
        platform: Of the devices.
        fast: Whether the CPU multiplies bfloat16 matrices; None is not known.
    """
    if run.model.compute.dtype == "bfloat16" and platform == "cpu" and fast is False:
        say(
            "warning: this CPU has no amx_bf16, so bfloat16 trains more slowly than float32: "
            "leave out --model.compute.dtype bfloat16"
        )


def introduce(job: Job) -> None:
    """A line about the model and the batches of a run with a budget of tokens."""
    say(
        f"model: {job.parameters / 1e6:.2f} M parameters; {plural(job.steps, 'step')}, "
        f"{job.plan.steps_per_epoch}/epoch, at most {plural(job.run.training.tokens, 'token')} a "
        f"batch, {plural(len(job.plan.shapes), 'bucket shape')}, "
        f"{job.plan.non_padding_fraction:.0%} non-padding; mesh {dict(job.mesh.shape)}"
    )


def loss_labels(job: Job) -> tuple[str, str]:
    """What the training loss and the validation loss are called: they differ in how they are taken.

    Validation has no dropout and no label smoothing.
    """
    smoothing, dropout = job.run.training.smoothing, _drops(job.run.model)
    of = [f"label smoothing {smoothing:g}"] * bool(smoothing) + ["dropout"] * dropout
    return (
        f"training, with {' and '.join(of)}" if of else "training",
        "validation, without" if of else "validation",
    )


def _drops(model: Any) -> bool:
    return any(
        rate > 0
        for rate in (
            model.embedding.dropout,
            model.attention.dropout,
            model.feed_forward.activation_dropout,
            model.norm.residual_dropout,
        )
    )


def added(sums: Iterable[dict[str, jax.Array]]) -> dict[str, float]:
    """Sums of batches as one."""
    total: collections.Counter[str] = collections.Counter()
    for one in sums:
        total.update({name: float(value) for name, value in one.items()})
    return dict(total)


def train(job: Job, finish: Callable[[], dict[str, Any]], *, resume: bool) -> int:
    """Trains, and writes what came of it.

    Args:
        job: The run.
        finish: What else there is to say of the trained model; called in the first process.
        resume: Whether to go on from a checkpoint.
    """
    began, run, directory = time.monotonic(), job.run, job.directory
    advise(run, job.mesh.devices.flat[0].platform, multiplies_bfloat16())
    job.keep_size()
    train_loss, valid_loss = loss_labels(job)
    if train_loss != "training":
        say(f"loss: {train_loss}; valid_loss: {valid_loss}: the two are not to be compared")
    key, closing = training_key(run.training.seed, job.scheme), contextlib.closing
    with closing(job.checkpointer()) as checkpointer, closing(PreparedStep(job.step())) as step:
        with working("preparing the first step"):
            found = job.restored(checkpointer) if resume else None
            start = 0 if found is None else found[0]
            examples = job.examples(start) if start < job.steps else []
            # It compiles while parameters are drawn.
            step.prepare(job.shapes, examples, key)
            state = job.fresh() if found is None else found[1]
        fitted = fit(
            state,
            step,
            job.batches,
            steps=job.steps,
            key=key,
            checkpointer=checkpointer,
            metrics=directory.metrics,
            config=run.loop,
            start=start,
            examples=examples,
            evaluate=job.evaluate(),
            steps_per_epoch=job.plan.steps_per_epoch,
        )
    sha256 = digest(fitted.state)
    if is_main_process():
        check_lock(directory.path)
        how = loss_labels(job)
        training_curves(read_metrics(directory.metrics), directory.curves, labels=how)
        if fitted.early:
            say(
                f"stopped early: no better {run.loop.best} for "
                f"{plural(run.loop.patience, 'evaluation')}"
            )
        results = {
            "steps": fitted.step,
            "best": fitted.best._asdict() if fitted.best else None,
            **_finished(finish),
            "parameters": job.parameters,
            "late_compiles": fitted.late_compiles,
            "seconds": round(time.monotonic() - began, 1),
            "state_sha256": sha256,
        }
        directory.write(directory.results, results)
        print(f"run: {directory.path}", flush=True)
    sync_global_devices("finished")
    return 0


def _finished(finish: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    with working("evaluating the best checkpoint"):
        return finish()


def _fingerprint(plan: str, tokens: Iterable[np.ndarray]) -> str:
    found = hashlib.sha256(plan.encode())
    for ids in tokens:
        for start in range(0, len(ids), _HASHED):
            found.update(np.ascontiguousarray(ids[start : start + _HASHED]).data)
            release_pages(ids)
    return found.hexdigest()[:16]


def _impl() -> str:
    return str(jax.random.key_impl(jax.random.key(0)))


def _make(model: Any, config: Any, seed: int) -> Any:
    return model(config, rngs=nnx.Rngs(key_for(seed, "initialization")))
