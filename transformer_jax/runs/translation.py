"""A translation run from texts to scores: what ``experiments.seq2seq`` puts together."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from transformer_jax.data.loader import make_batch
from transformer_jax.data.plan import BatchPlan, BucketPlan
from transformer_jax.data.sources import Pairs, Splits, load_splits
from transformer_jax.data.store import PairStore, build_store
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.options import BeamSearchConfig
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError, DataError, plural
from transformer_jax.evaluation.bleu import Scores, translation_scores
from transformer_jax.models.encoder_decoder import TransformerEncoderDecoder
from transformer_jax.parallel.mesh import is_main_process, local_rows, shard_batch
from transformer_jax.runs import checks, job
from transformer_jax.runs.initial import Initial, starting_point
from transformer_jax.runs.job import say
from transformer_jax.runs.translation_settings import Run
from transformer_jax.training.activity import tracked, working
from transformer_jax.training.objectives import translation
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.state import TrainState, split
from transformer_jax.training.stored import load_params

__all__ = ["begin", "score_pairs", "train"]

_WIDEST = 160  # characters of a sentence that are shown


def begin(run: Run, named: Run) -> tuple[Run, RunDirectory, Splits]:
    """A new run directory; the run as it will be done, its directory, and its texts."""
    given = run.model.vocab_size != named.model.vocab_size
    start = None if run.init is None else starting_point(run.init)
    if start is not None:
        run = _from(run, named, start)
    checks.check_length("data.read.max_length", run.data.read.max_length, run.model)
    checks.check_best(run, ("valid_loss", "sacrebleu"))
    checks.check_steps(run)
    splits = load_splits(run.data)
    pairs = splits.train

    def learn() -> Tokenizer:
        if start is not None:
            return start.directory.load_tokenizer()
        return job.learn_tokenizer(run.tokenizer, [*pairs.sources, *pairs.targets])

    directory = job.begin(run, learn, _settled, vocab_given=given)
    return Run.read(directory), directory, splits


def _from(run: Run, named: Run, start: Initial) -> Run:
    """The run with the encoder that it starts from, and a decoder of the same kind."""
    if run.tokenizer != named.tokenizer:
        raise ConfigError("tokenizer: a run with init reads text as that run does: leave it out")
    plain = dataclasses.replace(start.model.head, mlm_transform=False, pooler=False)
    both = dataclasses.replace(start.model, decoder_layers=run.model.decoder_layers, head=plain)
    usual = dataclasses.replace(named.model, decoder_layers=run.model.decoder_layers)
    model = dataclasses.replace(start, model=both).changed(run.model, usual)
    read = dataclasses.replace(run.data.read, lowercase=start.lowercase or run.data.read.lowercase)
    if start.lowercase:
        say(f"{run.init} reads lower-cased text, and so does this run")
    return dataclasses.replace(run, model=model, data=dataclasses.replace(run.data, read=read))


def _settled(run: Run, tokenizer: Tokenizer) -> Run:
    settled: Run = checks.with_vocab(checks.with_rows(run), tokenizer)
    return settled


class TranslationJob(job.Job):
    """The parts of a translation run."""

    model = TransformerEncoderDecoder

    def __init__(self, run: Run, directory: RunDirectory, splits: Splits):
        self.splits = splits
        super().__init__(run, directory)

    def make_plan(self) -> BucketPlan:
        """Sentences of like length, in a few shapes."""
        self.store = self.encode(self.splits.train)
        return self.plan_for(self.store, self.run.training.tokens, self.run.training.buckets)

    def encode(self, pairs: Pairs) -> PairStore:
        """Sentence pairs as ids, and a line about them."""
        read = self.run.data.read
        store = build_store(
            pairs,
            self.tokenizer,
            max_length=read.max_length,
            over_long=read.over_long,
            cache=self.directory.path / "store",
        )
        counts = "".join(f", {n} {what}" for what, n in (pairs.counts | store.counts).items())
        say(f"{pairs.name}: {plural(len(store), 'pair')}{counts}")
        if not len(store):
            raise DataError(
                f"{pairs.name}: no pair has at most {plural(read.max_length, 'token')} a side"
            )
        return store

    def plan_for(self, store: PairStore, tokens: int, buckets: int, shuffle: bool = True):
        """Batches of the pairs of ``store``."""
        return BucketPlan(
            store.source_lengths,
            store.target_lengths,
            tokens=tokens,
            buckets=buckets,
            rows_multiple=self.run.training.rows_multiple,
            seed=self.run.training.seed,
            shuffle=shuffle,
        )

    def tokens(self) -> list[np.ndarray]:
        """The ids of both sides."""
        return [self.store.source.ids, self.store.target.ids]

    def objective(self, smoothing: float) -> Any:
        """The cross-entropy of the target given the source."""
        return translation(self.tokenizer.bos, smoothing)

    def initial(self) -> Any:
        """Those of the encoder that this run starts from, and fresh ones where it has none."""
        if self.run.init is None:
            return None
        return starting_point(self.run.init).given(split(self.make())[1])

    def examples(self, start: int = 0) -> list[job.Batch]:
        """A batch of padding for every shape of the plan, in the order of need."""
        empty = lambda rows: np.full(rows, -1)
        shapes = [BatchPlan(empty(rows), S, T) for rows, S, T in self.plan.needed(start)]
        return [self._put(self.store, shape) for shape in shapes]

    def batches(self, start: int) -> Iterator[job.Batch]:
        """The batches after ``start`` steps, on the devices."""
        return self.stream(functools.partial(self._rows, self.store), start)

    def put_all(self, store: PairStore) -> Iterator[job.Batch]:
        """All examples once, in order of length."""
        tokens = max(self.run.training.tokens, _least(store, self.run.training.rows_multiple))
        plan = self.plan_for(store, tokens, 2, shuffle=False)
        for step in tracked(range(plan.steps_per_epoch), "validation loss"):
            yield self._put(store, plan.batch(step))

    def evaluate(self) -> Any:
        """From a state to validation scores; None if there is nothing to validate on."""
        return _Validation(self) if self.splits.valid is not None else None

    def _rows(self, store: PairStore, batch: BatchPlan) -> dict[str, np.ndarray]:
        held = batch.indices[local_rows(self.mesh, len(batch.indices))]
        return make_batch(store, held, batch.S, batch.T, self.tokenizer.pad)

    def _put(self, store: PairStore, batch: BatchPlan) -> job.Batch:
        return shard_batch(self._rows(store, batch), self.mesh, len(batch.indices))


def _least(store: PairStore, rows: int) -> int:
    longest = max(int(store.source_lengths.max()), int(store.target_lengths.max()))
    return (longest + 4) * rows


class _Validation:
    """Loss per token without smoothing, and sacreBLEU of the first sentences."""

    def __init__(self, job: TranslationJob):
        assert job.splits.valid is not None
        self.job, self.pairs = job, job.splits.valid
        self.store, self.judge = job.encode(self.pairs), job.judge()
        count = job.run.evaluation.sentences
        self.sources, self.targets = self.pairs.sources[:count], self.pairs.targets[:count]
        self.translator: Translator | None = None

    def __call__(self, state: TrainState) -> dict[str, float]:
        params = state.params if state.average is None else state.average
        found = self.judge(params, self.job.put_all(self.store))
        scores = {"valid_loss": found["loss"] / max(found["weight"], 1.0)}
        if self.sources:
            scores["sacrebleu"] = self._bleu(params)
        return scores

    def _bleu(self, params: Any) -> float:
        if jax.process_count() > 1:
            params = multihost_utils.process_allgather(params, tiled=True)
        bleu = 0.0
        if is_main_process():
            params = jax.device_put(jax.device_get(params), jax.local_devices()[0])
            if self.translator is None:
                self.translator = Translator(
                    (self.job.graph, params),
                    self.job.tokenizer,
                    search=BeamSearchConfig(num_beams=1),
                )
            self.translator.params = params
            with working(f"translating {plural(len(self.sources), 'validation sentence')}"):
                texts = [done.text for done in self.translator.translate(self.sources)]
            self._show(texts)
            lowercase = self.job.run.data.read.lowercase
            bleu = translation_scores(texts, self.targets, lowercase=lowercase).bleu
        if jax.process_count() > 1:
            bleu = float(multihost_utils.broadcast_one_to_all(np.float64(bleu)))
        return bleu

    def _show(self, texts: list[str]) -> None:
        """The first translations beside their sources and references."""
        for i in range(min(self.job.run.evaluation.shown, len(texts))):
            for what, text in (
                ("source", self.sources[i]),
                ("reference", self.targets[i]),
                ("hypothesis", texts[i]),
            ):
                say(f"  {what:<10}  {text if len(text) <= _WIDEST else text[:_WIDEST] + ' …'}")


def score_pairs(
    translator: Translator, sources: list[str], targets: list[str], *, lowercase: bool = False
) -> tuple[Scores, list[str]]:
    """Scores of the translations of ``sources``, and the translations."""
    texts = [done.text for done in translator.translate(sources)]
    return translation_scores(texts, targets, lowercase=lowercase), texts


def train(run: Run, directory: RunDirectory, splits: Splits, *, resume: bool) -> int:
    """Trains, scores the best checkpoint on the test sets, and writes what came of it."""
    parts = TranslationJob(run, directory, splits)
    plan = parts.plan
    say(
        f"model: {parts.parameters / 1e6:.2f} M parameters; {plural(parts.steps, 'step')}, "
        f"{plan.steps_per_epoch}/epoch, at most {plural(run.training.tokens, 'token')} a side of a "
        f"batch, {plural(len(plan.shapes), 'bucket shape')}, "
        f"{plan.non_padding_fraction:.0%} non-padding; "
        f"mesh {dict(parts.mesh.shape)}"
    )
    return job.train(parts, functools.partial(_finish, parts), resume=resume)


def _finish(parts: TranslationJob) -> dict[str, Any]:
    run, loaded = parts.run, load_params(parts.directory.path)
    params = jax.device_put(loaded.params, jax.local_devices()[0])
    search = BeamSearchConfig(num_beams=run.evaluation.beams)
    translator = Translator((parts.graph, params), parts.tokenizer, search=search)
    tests = {}
    for name, pairs in parts.splits.tests.items():
        lowercase = run.data.read.lowercase
        scores, _ = score_pairs(translator, pairs.sources, pairs.targets, lowercase=lowercase)
        tests[name] = scores.to_dict() | {"beams": search.num_beams}
        print(f"{name}: {scores}", flush=True)
    return {"scored_step": loaded.step, "tests": tests}
