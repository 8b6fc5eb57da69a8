"""A translation run from texts to scores: what ``experiments.seq2seq`` puts together."""

import dataclasses
import functools
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from experiments.settings import Run
from transformer_jax.config import TransformerConfig
from transformer_jax.data.loader import batches, make_batch
from transformer_jax.data.plan import BucketPlan
from transformer_jax.data.sources import Pairs, Splits, load_splits
from transformer_jax.data.store import PairStore, build_store
from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from transformer_jax.decoding.options import Search
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import CheckpointError, ConfigError, DataError
from transformer_jax.evaluation.bleu import Scores, translation_scores
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.parallel.mesh import barrier, is_main, local_rows, make_mesh, put_batch
from transformer_jax.parallel.sharding import row_multiple
from transformer_jax.training.checkpoint import Checkpointer
from transformer_jax.training.loop import Fitted, fit
from transformer_jax.training.metrics import read_metrics
from transformer_jax.training.objectives import translation
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.state import TrainState, abstract_state, create_state, digest
from transformer_jax.training.step import compile_eval, compile_step, make_eval_step, make_step
from transformer_jax.training.stored import load_params
from transformer_jax.visual.curves import training_curves

__all__ = ["begin", "score_pairs", "train"]


def say(text: str) -> None:
    """A line on standard error, from the first process alone."""
    if is_main():
        print(text, file=sys.stderr, flush=True)


def begin(run: Run, *, vocab_given: bool) -> tuple[Run, RunDirectory, Splits]:
    """A new run directory with all that the run is made of but its state.

    The model's vocabulary follows the tokenizer.

    Args:
        run: What is asked for.
        vocab_given: Whether the size of the model's vocabulary was asked for too.

    Returns:
        The run as it will be done, its directory, and its texts.
    """
    mesh = make_mesh(run.mesh)
    _check_lengths(run)
    splits = load_splits(run.data)
    assert run.output is not None
    if run.tokenizer.path is not None:
        tokenizer = load_tokenizer(run.tokenizer.path)
    elif is_main():
        tokenizer = _trained(run, splits.train)
    if is_main():
        if vocab_given and tokenizer.vocab_size != run.model.vocab:
            raise ConfigError(
                f"the tokenizer has {tokenizer.vocab_size} tokens, but model.vocab is "
                f"{run.model.vocab}: leave model.vocab out, and it follows the tokenizer"
            )
        directory = RunDirectory.create(run.output, overwrite=run.overwrite)
        tokenizer.save(directory.tokenizer)
        multiple = math.lcm(
            run.training.rows_multiple, row_multiple(mesh) * run.training.accumulation
        )
        run = dataclasses.replace(
            run,
            model=dataclasses.replace(run.model, vocab=tokenizer.vocab_size),
            training=dataclasses.replace(run.training, rows_multiple=multiple),
        )
        directory.write(directory.config, dataclasses.asdict(run))
    barrier("begun")
    assert run.output is not None
    directory = RunDirectory.open(run.output)
    return Run.read(directory), directory, splits


def _check_lengths(run: Run) -> None:
    if run.data.read.max_length > run.model.positions.max_length:
        raise ConfigError(
            f"data.read.max_length is {run.data.read.max_length}, but the model has positions for "
            f"{run.model.positions.max_length} tokens: lower the one or raise "
            f"model.positions.max_length"
        )


def _trained(run: Run, pairs: Pairs) -> Tokenizer:
    settings = run.tokenizer
    began = time.monotonic()
    texts = [*pairs.sources, *pairs.targets]
    tokenizer = train_tokenizer(settings.kind, texts, settings.vocab_size)
    took = time.monotonic() - began
    say(f"tokenizer: {settings.kind}, {tokenizer.vocab_size} tokens, learnt in {took:.1f} s")
    return tokenizer


class Job:
    """All the parts of a run, built from its settings alone."""

    def __init__(self, run: Run, directory: RunDirectory, splits: Splits):
        self.run, self.directory, self.splits = run, directory, splits
        self.mesh = make_mesh(run.mesh)
        self.tokenizer = load_tokenizer(directory.tokenizer)
        if self.tokenizer.vocab_size > run.model.vocab:
            raise CheckpointError(
                f"{directory.tokenizer}: has {self.tokenizer.vocab_size} tokens, but the model "
                f"{run.model.vocab}: it belongs to another run"
            )
        self.store = self._store(splits.train)
        training = run.training
        needed = row_multiple(self.mesh) * training.accumulation
        if training.rows_multiple % needed:
            raise ConfigError(
                f"this run has batches of a multiple of {training.rows_multiple} rows, which do "
                f"not divide by {needed} (mesh data x fsdp x accumulation): choose another mesh"
            )
        self.plan = self._plan(self.store, training.tokens, training.buckets)
        self.steps = training.steps or training.epochs * self.plan.steps_per_epoch
        self.make = functools.partial(_make, run.model, training.seed)
        self.tx = make_optimizer(run.optimizer, run.model.width, self.steps)
        self.average = training.average_decay is not None
        self.graph, self.shapes, self.shardings = abstract_state(
            self.make, self.tx, self.mesh, average=self.average
        )

    def _store(self, pairs: Pairs) -> PairStore:
        read = self.run.data.read
        store = build_store(
            pairs,
            self.tokenizer,
            max_length=read.max_length,
            over_long=read.over_long,
            cache=self.directory.path / "store",
        )
        counts = "".join(f", {n} {what}" for what, n in (pairs.counts | store.counts).items())
        say(f"{pairs.name}: {len(store)} pairs{counts}")
        if not len(store):
            raise DataError(f"{pairs.name}: no pair has at most {read.max_length} tokens a side")
        return store

    def _plan(self, store: PairStore, tokens: int, buckets: int, shuffle: bool = True):
        return BucketPlan(
            store.source_lengths,
            store.target_lengths,
            tokens=tokens,
            buckets=buckets,
            rows_multiple=self.run.training.rows_multiple,
            seed=self.run.training.seed,
            shuffle=shuffle,
        )

    def _put(self, store: PairStore, indices: np.ndarray, S: int, T: int) -> dict[str, jax.Array]:
        held = indices[local_rows(self.mesh, len(indices))]
        batch = make_batch(store, held, S, T, self.tokenizer.pad)
        return put_batch(batch, self.mesh, len(indices))

    def examples(self) -> list[dict[str, jax.Array]]:
        """A batch of padding for every shape of the plan."""
        empty = lambda rows: np.full(rows, -1)
        return [self._put(self.store, empty(rows), S, T) for rows, S, T in self.plan.shapes]

    def batches(self, start: int) -> Iterator[dict[str, jax.Array]]:
        """The batches after ``start`` steps, on the devices."""
        rows = functools.partial(local_rows, self.mesh)
        made = batches(self.store, self.plan, start=start, rows=rows, pad=self.tokenizer.pad)
        try:
            for step, batch in enumerate(made, start):
                yield put_batch(batch, self.mesh, len(self.plan.batch(step).indices))
        finally:
            made.close()  # type: ignore[attr-defined]

    def step(self) -> Any:
        """The compiled training step."""
        training = self.run.training
        raw = make_step(
            self.graph,
            self.tx,
            translation(self.tokenizer.bos, training.smoothing),
            accumulation=training.accumulation,
            average_decay=training.average_decay,
        )
        return compile_step(raw, self.mesh, self.shardings, training.mode)

    def checkpointer(self) -> Checkpointer:
        """Writes what a manifest needs to tell this run from others."""
        return Checkpointer(
            self.directory.checkpoints,
            keep_last=self.run.loop.keep_last,
            describe={
                "config": dataclasses.asdict(self.run),
                "tokenizer": self.tokenizer.sha256,
                "data": {
                    "fingerprint": self.plan.fingerprint,
                    "steps_per_epoch": self.plan.steps_per_epoch,
                },
                "key": {"seed": self.run.training.seed, "impl": _impl()},
            },
        )

    def state(self, checkpointer: Checkpointer, *, resume: bool) -> tuple[int, TrainState]:
        """What training begins with: the newest good checkpoint, or fresh parameters."""
        restored = checkpointer.restore(self.shapes) if resume else None
        if restored is None:
            return 0, create_state(self.make, self.tx, self.mesh, average=self.average)[1]
        said, path = restored.manifest, self.directory.path
        if said["data"]["fingerprint"] != self.plan.fingerprint:
            raise DataError(f"{path}: the training data are not those that the run began with")
        if said["tokenizer"] != self.tokenizer.sha256:
            raise CheckpointError(f"{path}: tokenizer.json is not the one the run began with")
        if said["key"]["impl"] != _impl():
            raise ConfigError(f"{path}: began with the random generator {said['key']['impl']}")
        say(f"going on after step {restored.step}")
        return restored.step, restored.state

    def evaluate(self) -> Any:
        """From a state to validation scores; None if there is nothing to validate on."""
        return _Validation(self) if self.splits.valid is not None else None

    def put_all(self, store: PairStore) -> Iterator[dict[str, jax.Array]]:
        """All examples once, in order of length."""
        tokens = max(self.run.training.tokens, _least(store, self.run.training.rows_multiple))
        plan = self._plan(store, tokens, 2, shuffle=False)
        for step in range(plan.steps_per_epoch):
            yield self._put(store, *plan.batch(step))


def _least(store: PairStore, rows: int) -> int:
    longest = max(int(store.source_lengths.max()), int(store.target_lengths.max()))
    return (longest + 4) * rows


def _impl() -> str:
    return str(jax.random.key_impl(jax.random.key(0)))


def _make(config: TransformerConfig, seed: int) -> EncoderDecoder:
    return EncoderDecoder(config, rngs=nnx.Rngs(seed))


class _Validation:
    """Loss per token without smoothing, and sacreBLEU of the first sentences."""

    def __init__(self, job: Job):
        assert job.splits.valid is not None
        self.job, self.pairs = job, job.splits.valid
        self.store = job._store(self.pairs)
        objective = translation(job.tokenizer.bos, 0.0)
        raw = make_eval_step(job.graph, objective)
        self.compiled = compile_eval(raw, job.mesh, job.shardings.params)
        count = job.run.evaluation.sentences
        self.sources, self.targets = self.pairs.sources[:count], self.pairs.targets[:count]
        self.translator: Translator | None = None

    def __call__(self, state: TrainState) -> dict[str, float]:
        params = state.params if state.average is None else state.average
        total = weight = 0.0
        for sums in [self.compiled(params, batch) for batch in self.job.put_all(self.store)]:
            total += float(sums["loss"])
            weight += float(sums["weight"])
        scores = {"valid_loss": total / max(weight, 1.0)}
        if self.sources:
            scores["sacrebleu"] = self._bleu(params)
        return scores

    def _bleu(self, params: Any) -> float:
        if jax.process_count() > 1:
            params = multihost_utils.process_allgather(params, tiled=True)
        bleu = 0.0
        if is_main():
            params = jax.device_put(jax.device_get(params), jax.local_devices()[0])
            if self.translator is None:
                self.translator = Translator(
                    (self.job.graph, params), self.job.tokenizer, search=Search(beams=1)
                )
            self.translator.params = params
            texts = [done.text for done in self.translator.translate(self.sources)]
            lowercase = self.job.run.data.read.lowercase
            bleu = translation_scores(texts, self.targets, lowercase=lowercase).bleu
        if jax.process_count() > 1:
            bleu = float(multihost_utils.broadcast_one_to_all(np.float64(bleu)))
        return bleu


def score_pairs(
    translator: Translator, sources: list[str], targets: list[str], *, lowercase: bool = False
) -> tuple[Scores, list[str]]:
    """Scores of the translations of ``sources``, and the translations."""
    texts = [done.text for done in translator.translate(sources)]
    return translation_scores(texts, targets, lowercase=lowercase), texts


def train(run: Run, directory: RunDirectory, splits: Splits, *, resume: bool) -> int:
    """Trains, scores the best checkpoint on the test sets, and writes what came of it."""
    began = time.monotonic()
    job = Job(run, directory, splits)
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(job.shapes.params))
    say(
        f"model: {size / 1e6:.2f} M parameters; {job.steps} steps of {run.training.tokens} tokens "
        f"a side, {job.plan.steps_per_epoch} an epoch, {len(job.plan.shapes)} shapes, "
        f"fill {job.plan.fill:.2f}; mesh {dict(job.mesh.shape)}"
    )
    checkpointer = job.checkpointer()
    try:
        start, state = job.state(checkpointer, resume=resume)
        fitted = fit(
            state,
            job.step(),
            job.batches,
            steps=job.steps,
            key=jax.random.key(run.training.seed),
            checkpointer=checkpointer,
            metrics=directory.metrics,
            config=run.loop,
            start=start,
            examples=job.examples(),
            evaluate=job.evaluate(),
            steps_per_epoch=job.plan.steps_per_epoch,
        )
    finally:
        checkpointer.close()
    sha256 = digest(fitted.state)
    if is_main():
        _finish(job, fitted, sha256, size, began)
    barrier("finished")
    return 0


def _finish(job: Job, fitted: Fitted, sha256: str, size: int, began: float) -> None:
    run, directory = job.run, job.directory
    training_curves(read_metrics(directory.metrics), directory.curves)
    if fitted.early:
        say(f"stopped early: no better {run.loop.best} for {run.loop.patience} evaluations")
    loaded = load_params(directory.path)
    params = jax.device_put(loaded.params, jax.local_devices()[0])
    search = Search(beams=run.evaluation.beams)
    translator = Translator((job.graph, params), job.tokenizer, search=search)
    tests = {}
    for name, pairs in job.splits.tests.items():
        lowercase = run.data.read.lowercase
        scores, _ = score_pairs(translator, pairs.sources, pairs.targets, lowercase=lowercase)
        tests[name] = scores.to_dict() | {"beams": search.beams}
        print(f"{name}: {scores}", flush=True)
    directory.write(
        directory.results,
        {
            "steps": fitted.step,
            "scored_step": loaded.step,
            "best": fitted.best._asdict() if fitted.best else None,
            "tests": tests,
            "parameters": size,
            "late_compiles": fitted.late_compiles,
            "seconds": round(time.monotonic() - began, 1),
            "state_sha256": sha256,
        },
    )
    print(f"run: {directory.path}", flush=True)
