"""A language model's run from texts to scores: what ``experiments.decoder_only`` puts together."""

import dataclasses
import functools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.documents import (
    DocumentStream,
    TextChunk,
    TextSplits,
    open_texts,
    read_texts,
)
from transformer_jax.data.language_model_plans import (
    ContiguousPlan,
    PackingPlan,
    RowBatch,
    make_rows,
)
from transformer_jax.data.store import release_pages
from transformer_jax.data.token_file import TextStore, build_tokens, sample_texts
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.requests import GenerationRequest, LanguageModel
from transformer_jax.errors import ConfigError, plural
from transformer_jax.models.decoder import Decoder
from transformer_jax.parallel.mesh import is_main_process, local_rows, shard_batch
from transformer_jax.predictors.runs import load_language, open_directory
from transformer_jax.runs import checks, job
from transformer_jax.runs.job import say
from transformer_jax.runs.language_report import Report, baselines, counted_model, judge
from transformer_jax.runs.language_settings import LanguageRun, NgramRun, read
from transformer_jax.training import manifest
from transformer_jax.training.activity import tracked
from transformer_jax.training.objectives import language_model
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.state import TrainState

__all__ = ["begin", "compare", "count", "open_run", "train"]


def begin(
    run: LanguageRun | NgramRun, named: LanguageRun | NgramRun
) -> tuple[LanguageRun | NgramRun, RunDirectory, TextSplits]:
    """A new run directory; the run as it will be done, its directory, and its texts."""
    vocab_given = False
    if isinstance(run, LanguageRun) and isinstance(named, LanguageRun):
        vocab_given = run.model.vocab_size != named.model.vocab_size
        checks.check_best(run, ("valid_loss",))
        checks.check_rows(run)
        checks.check_steps(run)
        checks.check_length("training.length", run.training.length, run.model)
    texts = open_run(run)
    learn = lambda: job.learn_tokenizer(run.tokenizer, sample_texts(texts.train))
    settle = functools.partial(_settled, texts)
    directory = job.begin(run, learn, settle, vocab_given=vocab_given)
    return read(directory), directory, texts


def _settled(texts: TextSplits, run: Any, tokenizer: Tokenizer) -> Any:
    """The run with the token that its texts begin with."""
    if isinstance(run, NgramRun):
        return run
    run = checks.with_vocab(run, tokenizer)
    if run.first != "auto":
        return run
    if run.training.layout == "packed":
        first = "bos"
    elif _several(texts.train):
        first = "eos"
    else:
        first = "newline" if len(tokenizer.encode_batch(["\n"])[0]) == 1 else "eos"
    return dataclasses.replace(run, first=first)


def _several(texts: DocumentStream) -> bool:
    """Whether there is more than one document."""
    ended = False
    for piece in texts:
        if ended:
            return True
        ended = piece.last
    return False


def open_run(run: Any) -> TextSplits:
    """The texts of a run, of those that models are judged by as much as its settings say."""
    texts, limit = open_texts(run.data), run.evaluation.characters
    valid = None if texts.valid is None else _beginning(texts.valid, limit)
    tests = {name: _beginning(test, limit) for name, test in texts.tests.items()}
    return TextSplits(texts.train, valid, tests)


def _beginning(texts: DocumentStream, characters: int) -> DocumentStream:
    """The documents up to a number of characters."""

    def pieces() -> Iterator[TextChunk]:
        left, begun = characters, False
        for text, last in texts:
            if len(text) > left:
                say(f"{texts.name}: only the first {plural(characters, 'character')} are judged")
                if left or begun:
                    yield TextChunk(text[:left], True)
                return
            left, begun = left - len(text), not last
            yield TextChunk(text, last)

    identity = f"{texts.identity} beginning={characters}"
    return DocumentStream(texts.name, identity, pieces, counts=texts.counts)


def store_of(
    run: Any, directory: RunDirectory, tokenizer: Tokenizer, texts: DocumentStream
) -> TextStore:
    """A run's texts as ids, and a line about them."""
    began = time.monotonic()
    # A single text without end is read as nanoGPT reads it: nothing is added.
    ends = getattr(run, "first", "bos") != "newline"
    store = build_tokens(texts, tokenizer, **job.cache_of(run, directory), ends=ends)
    counts = dict(store.counts)
    documents, characters = counts.pop("documents"), counts.pop("characters")
    counts.pop("bytes")
    rest = "".join(f", {n} {what}" for what, n in counts.items() if n)
    say(
        f"{texts.name}: {plural(documents, 'document')}, {plural(characters, 'character')}, "
        f"{plural(len(store.ids), 'token')}{rest} ({time.monotonic() - began:.1f} s)"
    )
    return store


class LanguageJob(job.Job):
    """The parts of a language model's run."""

    model = Decoder

    def __init__(self, run: LanguageRun, directory: RunDirectory, texts: TextSplits):
        self.texts = texts
        super().__init__(run, directory)

    def make_plan(self) -> ContiguousPlan | PackingPlan:
        """Packed documents, or blocks of one stream."""
        self.store = self.encode(self.texts.train)
        return self.plan_for(self.store)

    def encode(self, texts: DocumentStream) -> TextStore:
        """Documents as ids, and a line about them."""
        return store_of(self.run, self.directory, self.tokenizer, texts)

    def plan_for(self, store: TextStore, shuffle: bool = True) -> ContiguousPlan | PackingPlan:
        """Rows of the documents of ``store``."""
        training = self.run.training
        how = {"length": training.length, "rows": training.rows, "seed": training.seed}
        if training.layout == "blocks":
            return ContiguousPlan(len(store.ids), **how, shuffle=shuffle)
        return PackingPlan(store.lengths, **how, shuffle=shuffle)

    def tokens(self) -> list[np.ndarray]:
        """The ids of the training text."""
        return [self.store.ids]

    def objective(self, smoothing: float) -> Any:
        """The cross-entropy of each token given those before it."""
        return language_model(smoothing)

    def examples(self, start: int = 0) -> list[job.Batch]:
        """A batch of every shape of the plan, which is one."""
        del start
        return [self._put(self.store, self.plan.batch(0))]

    def batches(self, start: int) -> Iterator[job.Batch]:
        """The batches after ``start`` steps, on the devices."""
        return self.stream(functools.partial(self._rows, self.store), start)

    def put_all(self, store: TextStore) -> Iterator[job.Batch]:
        """All tokens once, in order."""
        plan = self.plan_for(store, shuffle=False)
        for step in tracked(range(plan.steps_per_epoch), "validation loss"):
            yield self._put(store, plan.batch(step))

    def evaluate(self) -> Any:
        """From a state to validation scores; None if there is nothing to validate on."""
        if self.texts.valid is None:
            return None
        store, sums = self.encode(self.texts.valid), self.judge()

        def scores(state: TrainState) -> dict[str, float]:
            params = state.params if state.average is None else state.average
            found = sums(params, self.put_all(store))
            loss = found["loss"] / max(found["weight"], 1.0)
            bits = loss * len(store.ids) / math.log(2) / max(store.counts["characters"], 1)
            return {"valid_loss": loss, "valid_bits_per_character": bits}

        return scores

    def _rows(self, store: TextStore, batch: RowBatch) -> dict[str, np.ndarray]:
        held = batch.select(local_rows(self.mesh, len(batch.indices)))
        special = self.tokenizer
        made = make_rows(store, held, self.run.training.length, special.bos, special.pad)
        release_pages(store.ids)  # in time all of a long text would stay
        return made

    def _put(self, store: TextStore, batch: RowBatch) -> job.Batch:
        return shard_batch(self._rows(store, batch), self.mesh, len(batch.indices))


def train(
    run: LanguageRun | NgramRun, directory: RunDirectory, texts: TextSplits, *, resume: bool
) -> int:
    """Trains, scores the best checkpoint beside counted models, and writes what came of it."""
    if isinstance(run, NgramRun):
        return count(run, directory, texts)
    parts = LanguageJob(run, directory, texts)
    say(
        f"model: {parts.parameters / 1e6:.2f} M parameters; {plural(parts.steps, 'step')} of "
        f"{run.training.rows} x {plural(run.training.length, 'token')}, "
        f"{parts.plan.steps_per_epoch}/epoch, {parts.plan.non_padding_fraction:.0%} non-padding; "
        f"mesh {dict(parts.mesh.shape)}"
    )
    return job.train(parts, functools.partial(_finish, parts), resume=resume)


def _finish(parts: LanguageJob) -> dict[str, Any]:
    run, directory = parts.run, parts.directory
    model = load_language(directory.path)
    stores = {name: parts.encode(texts) for name, texts in _judged(parts.texts).items()}
    report = Report(run.output or "")
    report.add("this model", judge(model, stores))
    for name, counted in baselines(parts.store, parts.tokenizer, run.evaluation):
        report.add(name, judge(counted, stores))
    print(report, flush=True)
    _write_sample(model, run)
    return {"scores": report.to_dict()}


def _write_sample(model: LanguageModel, run: LanguageRun | NgramRun) -> None:
    if run.evaluation.sample:
        request = GenerationRequest("", tokens=run.evaluation.sample, temperature=0.8, top_p=0.95)
        [[sample]] = model.generate([request])
        print(f"\nsample:\n{sample.text}\n", flush=True)


def _judged(texts: TextSplits) -> dict[str, DocumentStream]:
    """The texts that models are compared on: tests, or else those of validation."""
    valid = {} if texts.valid is None else {"valid": texts.valid}
    return dict(texts.tests) or valid


def count(run: NgramRun, directory: RunDirectory, texts: TextSplits) -> int:
    """Counts an n-gram model, scores it, and writes what came of it."""
    if not is_main_process():
        return 0

    began = time.monotonic()
    tokenizer = directory.load_tokenizer()
    store = store_of(run, directory, tokenizer, texts.train)
    model = counted_model(store, tokenizer, run.model)
    model.model.save(directory.path / "ngram.npz")
    seal = {"schema": manifest.SCHEMA, "config": directory.read_config()}
    manifest.rewrite(directory.path, seal | {"tokenizer": tokenizer.sha256})
    stores = {
        name: store_of(run, directory, tokenizer, found) for name, found in _judged(texts).items()
    }
    report = Report(run.output or "")
    report.add(f"{run.model.order}-gram, {run.model.smoothing}", judge(model, stores))
    for name, other in baselines(store, tokenizer, run.evaluation):
        report.add(name, judge(other, stores))
    print(report, flush=True)
    _write_sample(model, run)
    seconds = round(time.monotonic() - began, 1)
    directory.write(directory.results, {"scores": report.to_dict(), "seconds": seconds})
    print(f"run: {directory.path}", flush=True)
    return 0


def compare(asked: Any) -> int:
    """Prints what runs, and models counted from the first one's text, make of a text."""
    first = open_directory(asked.run)
    run = read(first)
    texts = open_run(run) if asked.text is None or asked.ngrams != () else None
    if asked.text is not None:
        judged = {"text": read_texts(asked.text, run.data.read, "--text")}
    else:
        assert texts is not None
        judged = _judged(texts)
        if not judged:
            raise ConfigError(f"{asked.run}: has no test or validation text: give --text")
    report = Report(asked.run)
    for path in (asked.run, *asked.beside):
        directory = open_directory(path)
        checkpoint = asked.checkpoint if path == asked.run else "best"
        model = load_language(directory.path, checkpoint)
        settings = read(directory)
        report.add(path, judge(model, _stores(settings, directory, judged)))
    orders = run.evaluation.ngrams if asked.ngrams is None else asked.ngrams
    if orders and texts is not None:
        tokenizer = first.load_tokenizer()
        stores = _stores(run, first, judged)
        evaluation = dataclasses.replace(run.evaluation, ngrams=orders)
        store = store_of(run, first, tokenizer, texts.train)
        for name, counted in baselines(store, tokenizer, evaluation):
            report.add(name, judge(counted, stores))
    print(report, flush=True)
    if asked.output is not None:
        try:
            Path(asked.output).write_text(json.dumps(report.to_dict(), indent=1) + "\n", "utf-8")
        except OSError as error:
            raise ConfigError(
                f"--output {asked.output}: cannot be written: {error.strerror}"
            ) from None
    return 0


def _stores(
    run: Any, directory: RunDirectory, texts: dict[str, DocumentStream]
) -> dict[str, TextStore]:
    tokenizer = directory.load_tokenizer()
    return {name: store_of(run, directory, tokenizer, found) for name, found in texts.items()}
