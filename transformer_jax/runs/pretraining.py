"""Pre-training of an encoder, from texts to metrics: ``encoder_only pretrain``."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from transformer_jax.data.bert_pretraining import BertPretrainingPlan
from transformer_jax.data.documents import TextSplits
from transformer_jax.data.masking import MLMMasking
from transformer_jax.data.token_file import sample_texts
from transformer_jax.data.tokenizer import BERT_SPECIAL, Tokenizer
from transformer_jax.parallel.inference import MeshProgram
from transformer_jax.predictors.runs import ENCODERS
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.begin import token_cache
from transformer_jax.runs.encoder_settings import PretrainRun, read
from transformer_jax.runs.freezing import check_layers, initial_of, partition_for
from transformer_jax.runs.initial import load_pretrained
from transformer_jax.runs.language import open_run
from transformer_jax.runs.settings import batching_of
from transformer_jax.runs.train import train as train_run
from transformer_jax.tasks.masked_lm_task import build_sentence_store, masked_lm, pretraining_plan
from transformer_jax.tasks.scores import aligned
from transformer_jax.training.objectives import masked_lm as masked_lm_objective
from transformer_jax.training.partition import merging
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.state import split
from transformer_jax.training.step import add_sums, make_eval_step
from transformer_jax.training.task import Task

__all__ = ["begin", "make_task", "open_run", "score", "train"]


def begin(run: PretrainRun, named: PretrainRun) -> tuple[PretrainRun, RunDirectory, TextSplits]:
    """Create a run directory; returns the run with all settings, its directory, and its texts."""
    start = None
    if run.init_from is not None:
        start = load_pretrained(run.init_from)
        run = start.settings(run, named)
        check_layers(run, start)
    given = start is None and run.model.vocab_size != named.model.vocab_size
    run = checks.checked(run, named)
    texts = open_run(run)

    def learn() -> Tokenizer:
        if start is not None:
            return start.tokenizer
        return beginning.learn_tokenizer(run, sample_texts(texts.train), BERT_SPECIAL)

    directory = beginning.begin(run, learn, _resolved, vocab_given=given)
    return read(directory), directory, texts  # type: ignore[return-value]


def _resolved(run: PretrainRun, tokenizer: Tokenizer) -> PretrainRun:
    # Refused now, not when it trains.
    MLMMasking.of(tokenizer, whole_word_mask=run.masking.whole_word_mask)
    sized = checks.with_vocab if run.init_from is None else checks.with_rows_for
    resolved: PretrainRun = sized(checks.with_rows(run), tokenizer)
    return resolved


def make_task(
    run: PretrainRun, directory: RunDirectory, tokenizer: Tokenizer, texts: TextSplits
) -> Task:
    """The task of a run."""
    task = masked_lm(
        texts,
        run.model,
        tokenizer,
        masking=run.masking,
        batching=batching_of(run.training),
        length=run.training.sequence_length,
        cache=token_cache(run, directory),
    )
    tested = lambda model, step: {"scores": score(run, directory, texts, tokenizer, model)}
    return dataclasses.replace(
        task,
        test=tested,
        partition=partition_for(run, tokenizer),
        initial=initial_of(run, ENCODERS, tokenizer) or task.initial,
        settings=run,
    )


def train(run: PretrainRun, directory: RunDirectory, texts: TextSplits) -> int:
    """Train, and compare the best checkpoint with trivial baselines."""
    return train_run(run, directory, functools.partial(make_task, texts=texts))


def score(
    run: PretrainRun, directory: RunDirectory, texts: TextSplits, tokenizer: Tokenizer, model: Any
) -> dict[str, dict[str, float]]:
    """Print and return the metrics of a model on the test texts, or else on validation texts."""
    cache = token_cache(run, directory)
    trained = build_sentence_store(texts.train, tokenizer, cache)
    graph, params = split(model)
    pairs = run.masking.sentence_objective
    objective = masked_lm_objective(accuracy=True, sentence_objective=pairs)
    # Process 0 only: no collectives.
    sums = MeshProgram(make_eval_step(objective, merging(graph)))
    scores = {}
    for name, text in texts.scored.items():
        plan = pretraining_plan(
            build_sentence_store(text, tokenizer, cache), tokenizer, masking=run.masking,
            batching=batching_of(run.training), length=run.training.sequence_length, shuffle=False,
        )  # fmt: skip
        made = (plan.make(plan.batch(step)) for step in range(plan.steps_per_epoch))
        total = add_sums(sums(params, {}, batch) for batch in made)
        scores[name] = {what: value / max(weight, 1.0) for what, (value, weight) in total.items()}
        guess = _guesses(trained.ids, plan, run.model.vocab_size)
        scores[name] |= {"most_frequent_word": guess[0], "unigram_loss": guess[1]}
    print(_table(scores, pairs), flush=True)
    return scores


def _guesses(ids: np.ndarray, plan: BertPretrainingPlan, vocab: int) -> tuple[float, float]:
    """MLM accuracy of the most frequent training token, and the loss of a unigram model."""
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


def _table(scores: dict[str, dict[str, float]], pairs: str) -> str:
    """A row for each text: this model beside trivial baselines."""
    head = ["text", "MLM accuracy", "most frequent word", "perplexity", "unigram perplexity"]
    with_pairs = pairs != "none"
    head += [f"{pairs.upper()} accuracy", "chance"] if with_pairs else []
    rows = [head]
    for name, said in scores.items():
        cells = [name, f"{said['mlm_accuracy']:.1%}", f"{said['most_frequent_word']:.1%}"]
        cells += [f"{math.exp(said['mlm_loss']):.1f}", f"{math.exp(said['unigram_loss']):.1f}"]
        rows.append([*cells, f"{said[f'{pairs}_accuracy']:.1%}", "50.0%"] if with_pairs else cells)
    return aligned(rows)
