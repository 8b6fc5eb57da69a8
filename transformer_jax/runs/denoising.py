"""Denoising pre-training, from texts to metrics: ``seq2seq pretrain``."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

from transformer_jax.data.backends import SENTINEL, SPECIAL
from transformer_jax.data.denoising import DenoisingPlan, check_tokenizer, num_sentinels
from transformer_jax.data.documents import TextSplits
from transformer_jax.data.loader import Batch
from transformer_jax.data.token_file import sample_texts
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.parallel.inference import MeshProgram
from transformer_jax.runs import begin as beginning
from transformer_jax.runs import checks
from transformer_jax.runs.begin import no_record, token_cache
from transformer_jax.runs.denoising_settings import DenoisingRun
from transformer_jax.runs.freezing import check_layers, initial_of, partition_for
from transformer_jax.runs.initial import load_pretrained
from transformer_jax.runs.language import open_run
from transformer_jax.runs.settings import batching_of, read_run
from transformer_jax.runs.train import train as train_run
from transformer_jax.tasks.denoising_task import denoising
from transformer_jax.tasks.masked_lm_task import build_sentence_store
from transformer_jax.tasks.scores import aligned
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.partition import merging
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.state import split
from transformer_jax.training.step import add_sums, make_eval_step
from transformer_jax.training.task import Task

__all__ = ["begin", "make_task", "open_run", "read", "score", "train"]

_FAMILIES = ("encoder-decoder",)  # that denoising can start from

_COUNTED = 1_000_000  # target tokens that the trivial baseline is counted on


def read(directory: RunDirectory) -> DenoisingRun:
    """The run of a directory.

    Raises:
        CheckpointError: ``config.json`` is damaged, or of another kind of run.
    """
    return read_run(DenoisingRun, directory, "a denoising run")


def begin(run: DenoisingRun, named: DenoisingRun) -> tuple[DenoisingRun, RunDirectory, TextSplits]:
    """Create a run directory; returns the run with all settings, its directory, and its texts."""
    start, given = None, run.model.vocab_size != named.model.vocab_size
    if run.init_from is not None:
        start, given = load_pretrained(run.init_from, _FAMILIES), False
        run = start.settings(run, named)
        check_layers(run, start)
    run = checks.checked(run, named)
    texts = open_run(run)
    sentinels = num_sentinels(run.noise, run.training.sequence_length)
    special = (*SPECIAL, *("<mask>",) * run.noise.masks, *map(SENTINEL.format, range(sentinels)))

    def learn() -> Tokenizer:
        if start is not None:
            return start.tokenizer
        return beginning.learn_tokenizer(run, sample_texts(texts.train), special)

    kept = no_record if start is None else start.published
    directory = beginning.begin(run, learn, _resolved, vocab_given=given, published=kept)
    return read(directory), directory, texts


def _resolved(run: DenoisingRun, tokenizer: Tokenizer) -> DenoisingRun:
    # Refused now, not when it trains.
    check_tokenizer(tokenizer, run.noise, run.training.sequence_length)
    sized = checks.with_vocab if run.init_from is None else checks.with_rows_for
    resolved: DenoisingRun = sized(checks.with_rows(run), tokenizer)
    return resolved


def make_task(
    run: DenoisingRun, directory: RunDirectory, tokenizer: Tokenizer, texts: TextSplits
) -> Task:
    """The task of a run."""
    task = denoising(
        texts,
        run.model,
        tokenizer,
        noise=run.noise,
        batching=batching_of(run.training),
        length=run.training.sequence_length,
        cache=token_cache(run, directory),
    )
    tested = lambda model, step: {"scores": score(run, directory, texts, tokenizer, model)}
    return dataclasses.replace(
        task,
        test=tested,
        partition=partition_for(run, tokenizer),
        initial=initial_of(run, _FAMILIES, tokenizer) or task.initial,
        settings=run,
    )


def train(run: DenoisingRun, directory: RunDirectory, texts: TextSplits) -> int:
    """Train, and compare the best checkpoint with a trivial baseline."""
    return train_run(run, directory, functools.partial(make_task, texts=texts))


def score(
    run: DenoisingRun, directory: RunDirectory, texts: TextSplits, tokenizer: Tokenizer, model: Any
) -> dict[str, dict[str, float]]:
    """Print and return the loss of a model on the test texts, or else on validation texts.

    Beside it is ``unigram_loss``, that of the frequencies of tokens in targets of training, which
    needs no source.
    """
    cache = token_cache(run, directory)
    plan_of = lambda text, shuffle: DenoisingPlan(
        build_sentence_store(text, tokenizer, cache, blanks=True), tokenizer, run.noise,
        batching_of(run.training), length=run.training.sequence_length, shuffle=shuffle,
    )  # fmt: skip
    logs = _unigram(plan_of(texts.train, True), run.model.vocab_size)
    graph, params = split(model)
    # Process 0 only: no collectives.
    sums = MeshProgram(make_eval_step(sequence_to_sequence(tokenizer.bos), merging(graph)))
    scores = {}
    for name, text in texts.scored.items():
        plan = plan_of(text, False)
        made = [plan.make(plan.batch(step)) for step in range(plan.steps_per_epoch)]
        loss, tokens = add_sums(sums(params, {}, batch) for batch in made)["loss"]
        guess = -sum(float(logs[_targets(batch)].sum()) for batch in made)
        scores[name] = {
            "loss": loss / max(tokens, 1.0),
            "unigram_loss": guess / max(tokens, 1.0),
            "tokens": int(tokens),
        }
    print(_table(scores), flush=True)
    return scores


def _unigram(plan: DenoisingPlan, vocab: int) -> Float64[np.ndarray, " V"]:
    """Log-probabilities of tokens by their counts in targets, each plus one."""
    counts = np.zeros(vocab, np.int64)
    for step in range(plan.steps_per_epoch):
        counts += np.bincount(_targets(plan.make(plan.batch(step))), minlength=vocab)
        if counts.sum() > _COUNTED:
            break
    return np.log((counts + 1) / (counts.sum() + vocab))


def _targets(batch: Batch) -> Int[np.ndarray, " tokens"]:
    """The target tokens of a batch, without padding."""
    inside = np.arange(batch["target"].shape[1]) < batch["lengths"][:, None]
    tokens: np.ndarray = batch["target"][inside]
    return tokens


def _table(scores: dict[str, dict[str, float]]) -> str:
    """A row for each text: this model beside a trivial baseline."""
    rows = [["text", "loss", "perplexity", "unigram loss", "unigram perplexity"]]
    for name, said in scores.items():
        losses = (said["loss"], said["unigram_loss"])
        rows.append([name, *(cell for x in losses for cell in (f"{x:.3f}", f"{math.exp(x):.1f}"))])
    return aligned(rows)
