"""An encoder's pre-training, from texts to scores: what ``encoder_only pretrain`` does."""

import functools
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from transformer_jax.data.bert_pretraining import BertPretrainingPlan, PairBatch
from transformer_jax.data.documents import DocumentStream, TextSplits
from transformer_jax.data.masking import MLMMasking
from transformer_jax.data.sentences import SentenceStore, build_sentences
from transformer_jax.data.store import release_pages
from transformer_jax.data.token_file import sample_texts
from transformer_jax.data.tokenizer import BERT_SPECIAL, Tokenizer
from transformer_jax.errors import plural
from transformer_jax.models.heads import EncoderForMaskedLM
from transformer_jax.parallel.mesh import local_rows, shard_batch
from transformer_jax.predictors.runs import chosen_checkpoint
from transformer_jax.runs import checks, job
from transformer_jax.runs.encoder_settings import PretrainRun, read
from transformer_jax.runs.job import say
from transformer_jax.runs.language import open_run
from transformer_jax.runs.task_scores import aligned
from transformer_jax.training.activity import tracked
from transformer_jax.training.encoder_objectives import masked_words
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import make_eval_step
from transformer_jax.training.stored import load_params

__all__ = ["PretrainJob", "begin", "open_run", "score", "train"]


def begin(run: PretrainRun, named: PretrainRun) -> tuple[PretrainRun, RunDirectory, TextSplits]:
    """A new run directory; the run as it will be done, its directory, and its texts."""
    checks.check_best(run, ("valid_loss", "valid_masked_accuracy"))
    checks.check_steps(run)
    checks.check_length("training.length", run.training.length, run.model)
    texts = open_run(run)

    def learn() -> Tokenizer:
        return job.learn_tokenizer(run.tokenizer, sample_texts(texts.train), BERT_SPECIAL)

    directory = job.begin(
        run, learn, _settled, vocab_given=run.model.vocab_size != named.model.vocab_size
    )
    return read(directory), directory, texts  # type: ignore[return-value]


def _settled(run: PretrainRun, tokenizer: Tokenizer) -> PretrainRun:
    MLMMasking.of(tokenizer, whole_words=run.masking.whole_words)  # refused now, not when it trains
    settled: PretrainRun = checks.with_vocab(checks.with_rows(run), tokenizer)
    return settled


class PretrainJob(job.Job):
    """The parts of a pre-training run."""

    def __init__(self, run: PretrainRun, directory: RunDirectory, texts: TextSplits):
        self.texts = texts
        pairs = run.masking.pairs != "none"
        self.model = functools.partial(EncoderForMaskedLM, next_sentence=pairs)
        super().__init__(run, directory)

    def make_plan(self) -> BertPretrainingPlan:
        """Texts of similar lengths, redrawn every epoch."""
        self.store = self.encode(self.texts.train)
        return self.plan_for(self.store)

    def encode(self, texts: DocumentStream) -> SentenceStore:
        """The sentences of documents as ids, and a line about them."""
        began = time.monotonic()
        kept = job.cache_of(self.run, self.directory)
        store = build_sentences(texts, self.tokenizer, **kept)
        counts = dict(store.counts)
        counts.pop("bytes")
        said = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
        say(
            f"{texts.name}: {said}, {plural(len(store.ids), 'token')} "
            f"({time.monotonic() - began:.1f} s)"
        )
        return store

    def plan_for(self, store: SentenceStore, shuffle: bool = True) -> BertPretrainingPlan:
        """DocumentStream made of the sentences of ``store``."""
        training, masking, tokenizer = self.run.training, self.run.masking, self.tokenizer
        return BertPretrainingPlan(
            store,
            MLMMasking.of(tokenizer, whole_words=masking.whole_words, share=masking.share),
            (tokenizer.bos, tokenizer.eos, tokenizer.pad),
            length=training.length,
            tokens=training.tokens,
            pairing=masking.pairs,
            buckets=training.buckets,
            rows_multiple=training.rows_multiple,
            seed=training.seed,
            shuffle=shuffle,
        )

    def tokens(self) -> list[np.ndarray]:
        """The ids of the training text."""
        return [self.store.ids]

    def objective(self, smoothing: float) -> Any:
        """The cross-entropy of masked tokens and of sentence pairs."""
        del smoothing
        return masked_words()

    def judged(self) -> Any:
        """The same with accuracies."""
        return masked_words(accuracy=True)

    def examples(self, start: int = 0) -> list[job.Batch]:
        """A batch of padding for every shape of the plan, in the order of need."""
        empty = [PairBatch(np.full(rows, -1), T, 0) for rows, T, _ in self.plan.needed(start)]
        return [self._put(self.plan, batch) for batch in empty]

    def batches(self, start: int) -> Iterator[job.Batch]:
        """The batches after ``start`` steps, on the devices."""
        return self.stream(lambda batch: self._rows(self.plan, batch), start)

    def put_all(self, plan: BertPretrainingPlan) -> Iterator[job.Batch]:
        """All texts once, in order."""
        for step in tracked(range(plan.steps_per_epoch), "validation loss"):
            yield self._put(plan, plan.batch(step))

    def evaluate(self) -> Any:
        """From a state to validation scores; None if there is nothing to validate on."""
        if self.texts.valid is None:
            return None
        plan, sums = self.plan_for(self.encode(self.texts.valid), shuffle=False), self.judge()

        def scores(state: TrainState) -> dict[str, float]:
            params = state.params if state.average is None else state.average
            found = sums(params, self.put_all(plan))
            weight = max(found.pop("weight"), 1.0)
            return {f"valid_{name}": value / weight for name, value in found.items()}

        return scores

    def _rows(self, plan: BertPretrainingPlan, batch: PairBatch) -> dict[str, np.ndarray]:
        made = plan.make(batch.select(local_rows(self.mesh, len(batch.indices))))
        release_pages(self.store.ids)  # in time all of a long text would stay
        return made

    def _put(self, plan: BertPretrainingPlan, batch: PairBatch) -> job.Batch:
        return shard_batch(self._rows(plan, batch), self.mesh, len(batch.indices))


def train(run: PretrainRun, directory: RunDirectory, texts: TextSplits, *, resume: bool) -> int:
    """Trains, and shows the best checkpoint beside what anyone could guess."""
    parts = PretrainJob(run, directory, texts)
    job.introduce(parts)
    return job.train(parts, functools.partial(_finish, parts), resume=resume)


def _finish(parts: PretrainJob) -> dict[str, Any]:
    return {"scores": score(parts, "best")}


def score(parts: PretrainJob, checkpoint: str) -> dict[str, dict[str, float]]:
    """Prints and returns what a checkpoint makes of the test texts, or else of validation."""
    texts = dict(parts.texts.tests)
    if not texts and parts.texts.valid is not None:
        texts = {"valid": parts.texts.valid}
    which, average = chosen_checkpoint(checkpoint)
    params = load_params(parts.directory.path, which, average=average).params
    # Of several processes only the first is here, so nothing may go over the mesh.
    judge, params = jax.jit(make_eval_step(parts.graph, parts.judged())), jax.device_put(params)
    scores = {}
    for name, judged in texts.items():
        plan = parts.plan_for(parts.encode(judged), shuffle=False)
        made = (plan.make(plan.batch(step)) for step in range(plan.steps_per_epoch))
        found = job.added(judge(params, batch) for batch in made)
        weight = max(found.pop("weight"), 1.0)
        scores[name] = {what: value / weight for what, value in found.items()}
        guess = _guesses(parts.store.ids, plan, parts.run.model.vocab_size)
        scores[name] |= {"most_frequent_word": guess[0], "unigram_loss": guess[1]}
    print(_table(scores, parts.run.masking.pairs != "none"), flush=True)
    return scores


def _guesses(ids: np.ndarray, plan: BertPretrainingPlan, vocab: int) -> tuple[float, float]:
    """How often the most frequent token of training is the hidden one, and the loss of counts."""
    counts = np.zeros(vocab, np.int64)
    for start in range(0, len(ids), 1 << 24):
        counts += np.bincount(ids[start : start + (1 << 24)], minlength=vocab)
    first = int(np.argmax(counts))
    logs = np.log((counts + 1) / (counts.sum() + vocab))
    hits = loss = total = 0.0
    for step in range(plan.steps_per_epoch):
        made = plan.make(plan.batch(step))
        targets, weights = made["targets"], made["weights"]
        hits += float(((targets == first) * weights).sum())
        loss -= float((logs[targets] * weights).sum())
        total += float(weights.sum())
    return hits / max(total, 1.0), loss / max(total, 1.0)


def _table(scores: dict[str, dict[str, float]], pairs: bool) -> str:
    """A row for each text: this model beside a guess."""
    head = ["text", "MLM accuracy", "most frequent word", "perplexity", "of counts"]
    head += ["pairs right", "chance"] if pairs else []
    rows = [head]
    for name, said in scores.items():
        cells = [name, f"{said['masked_accuracy']:.1%}", f"{said['most_frequent_word']:.1%}"]
        cells += [f"{math.exp(said['masked_loss']):.1f}", f"{math.exp(said['unigram_loss']):.1f}"]
        rows.append([*cells, f"{said['pair_accuracy']:.1%}", "50.0%"] if pairs else cells)
    return aligned(rows)
