"""Evaluation of language models and n-gram models on texts: one row per model."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.core.text_tables import aligned
from transformer_jax.data.document_stream import DocumentStream
from transformer_jax.data.documents import TextSplits, read_texts
from transformer_jax.data.store import TokenStore
from transformer_jax.data.token_file import TextStore
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_kind import Permission
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.ngram import NgramLanguageModel
from transformer_jax.decoding.requests import GenerationRequest, LanguageModel, perplexity
from transformer_jax.inference.facts import Facts
from transformer_jax.inference.pretrained import Pretrained, facts_of, read_facts
from transformer_jax.models.ngram import AddK, KneserNey, NgramModel
from transformer_jax.recipes.driver import settings_of
from transformer_jax.recipes.read_flags import with_read_flags
from transformer_jax.recipes.tasks.language_model_task import build_text_store
from transformer_jax.recipes.tasks.scores import write_scores
from transformer_jax.recipes.texts import LanguageEvaluation, WithCache, open_texts_of, token_cache
from transformer_jax.runs.run_directory import RunDirectory

__all__ = [
    "DocumentScorer",
    "MetricsTable",
    "TextMetrics",
    "baselines",
    "build_stores",
    "compare_models",
    "evaluate_texts",
    "score_language_model",
    "train_ngram",
    "write_sample",
]


@runtime_checkable
class ScoredRun(WithCache, Protocol):
    """The settings of the run of a language model, neural or of n-grams."""

    @property
    def ends(self) -> bool:
        """Returns whether texts end with the end token."""

    @property
    def output(self) -> str | None:
        """The run directory."""

    @property
    def evaluation(self) -> LanguageEvaluation:
        """Settings of the evaluation."""


@runtime_checkable
class DocumentScorer(Protocol):
    """A model that scores tokenized documents."""

    def document_log_probs(self, store: TokenStore) -> np.ndarray:
        """Returns the log-probability of every token given the preceding tokens of its document."""


@dataclasses.dataclass(frozen=True)
class TextMetrics:
    """Loss of a text under a model."""

    nats: float  # total of the text; end tokens of documents count
    tokens: int
    characters: int
    bytes: int

    @property
    def loss(self) -> float:
        """Cross-entropy in nats per token."""
        return self.nats / max(self.tokens, 1)

    def to_dict(self) -> dict[str, float]:
        """Returns all metrics by name."""
        bits = self.nats / math.log(2)
        return {
            "loss": self.loss,
            "perplexity": perplexity(-self.nats, self.tokens),
            "bits_per_character": bits / max(self.characters, 1),
            "bits_per_byte": bits / max(self.bytes, 1),
            "tokens": self.tokens,
        }


def evaluate_texts(
    model: DocumentScorer, stores: Mapping[str, TextStore]
) -> dict[str, TextMetrics]:
    """Returns the metrics of each text under a model."""
    out = {}
    for name, store in stores.items():
        nats = -float(np.sum(model.document_log_probs(store), dtype=np.float64))
        counts = store.counts
        out[name] = TextMetrics(nats, len(store.ids), counts["characters"], counts["bytes"])
    return out


def train_ngram(
    store: TokenStore,
    tokenizer: Tokenizer,
    order: int,
    smoothing: AddK | KneserNey,
    limit: int | None = None,
) -> NgramLanguageModel:
    """Returns the n-gram model of a text, or of its first ``limit`` tokens."""
    ids, offsets = store.ids, store.offsets
    if limit is not None and limit < len(ids):
        ends = offsets[offsets < limit]
        ids, offsets = ids[:limit], np.append(ends, limit)
    model = NgramModel.train(
        ids,
        offsets,
        order=order,
        vocab_size=tokenizer.vocab_size,
        smoothing=smoothing,
        excluded={tokenizer.pad, tokenizer.bos} - {tokenizer.eos},
    )
    return NgramLanguageModel(model, tokenizer)


def baselines(
    store: TextStore, tokenizer: Tokenizer, orders: Sequence[int], limit: int
) -> Iterator[tuple[str, NgramLanguageModel]]:
    """Yields n-gram baselines over the same tokens as a neural model.

    Args:
        store: The training text.
        tokenizer: The tokenizer of the text.
        orders: Orders of the models.
        limit: Maximum number of tokens to count.
    """
    for order in orders:
        smoothing = AddK(1.0) if order == 1 else KneserNey()
        name = "unigram, add-1" if order == 1 else f"{order}-gram, Kneser-Ney"
        name += f", of {plural(limit, 'token')}" if limit < len(store.ids) else ""
        yield name, train_ngram(store, tokenizer, order, smoothing, limit)


class MetricsTable:
    """A table of metrics: one row per model and text."""

    def __init__(self, name: str):
        self.name = name
        self.rows: list[tuple[str, str, TextMetrics]] = []

    def add(self, model: str, found: Mapping[str, TextMetrics]) -> None:
        """Adds the metrics of a model on each text."""
        self.rows += [(model, text, worth) for text, worth in found.items()]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Returns the metrics by text, then by model."""
        out: dict[str, dict[str, Any]] = {}
        for model, text, worth in self.rows:
            out.setdefault(text, {})[model] = worth.to_dict()
        return out

    def __str__(self) -> str:
        head = ("text", "model", "loss", "perplexity", "bits/character", "bits/byte")
        table: list[tuple[str, ...]] = [head]
        for model, text, worth in self.rows:
            said = worth.to_dict()
            numbers = (said[name] for name in ("loss", "perplexity"))
            bits = (said[name] for name in ("bits_per_character", "bits_per_byte"))
            cells = [*(f"{v:.4f}" for v in numbers), *(f"{v:.4f}" for v in bits)]
            table.append((text, model, *cells))
        return aligned(table, left=2)


def build_stores(
    run: ScoredRun,
    directory: RunDirectory,
    texts: Mapping[str, DocumentStream],
    allowed: Sequence[Permission] = ("unknown",),
) -> dict[str, TextStore]:
    """Returns texts as token ids, by name, and logs a summary line about each.

    Texts to score may be unknown: they must not lose a trained model.
    """
    tokenizer, cache = directory.load_tokenizer().allowing(*allowed), token_cache(run, directory)
    return {
        name: build_text_store(text, tokenizer, cache, ends=run.ends)
        for name, text in texts.items()
    }


def score_language_model(
    run: ScoredRun,
    directory: RunDirectory,
    tokenizer: Tokenizer,
    texts: TextSplits,
    model: Any,
    step: int,
) -> dict[str, Any]:
    """Prints and returns the metrics of a trained model and of n-gram models; prints a sample."""
    del step
    start = facts_of(directory).text_start(tokenizer)
    language = DecoderLanguageModel(model, tokenizer, start=start, ends=run.ends)
    stores = build_stores(run, directory, texts.scored)
    report = MetricsTable(run.output or "")
    report.add("this model", evaluate_texts(language, stores))
    trained = build_stores(run, directory, {"train": texts.train})["train"]
    limits = run.evaluation.ngram_orders, run.evaluation.ngram_tokens
    for name, counted in baselines(trained, tokenizer, *limits):
        report.add(name, evaluate_texts(counted, stores))
    print(report, flush=True)
    write_sample(language, run)
    return {"scores": report.to_dict()}


def write_sample(model: LanguageModel, run: ScoredRun) -> None:
    """Prints a text sampled from a model, if the run's settings request one."""
    if tokens := run.evaluation.sample:
        request = GenerationRequest("", max_new_tokens=tokens, temperature=0.8, top_p=0.95)
        [[sample]] = model.generate([request])
        print(f"\nsample:\n{sample.text}\n", flush=True)


def compare_models(request: Any, facts: Facts) -> int:
    """Prints the metrics of runs, and of n-gram models of the first run's training text, on a text.

    Raises:
        ConfigError: There is no text to evaluate on or to count n-grams of, or a run is of
            another kind.
    """
    run, directory = with_read_flags(settings_of(facts), request), facts.reader
    orders = run.evaluation.ngram_orders if request.ngrams is None else request.ngrams
    texts = None
    if directory.begun_by_program():
        _check_texts_given(request)
        log(f"{request.run}: config.json names no training text, so there are no n-gram models")
    elif request.text is None or orders:
        texts = open_texts_of(run)
    if request.text is not None:
        chosen = {"text": read_texts(request.text, run.data.read, "--text")}
    else:
        assert texts is not None
        chosen = texts.scored
        if not chosen:
            raise ConfigError(f"{request.run}: has no test or validation text: give --text")
    report = MetricsTable(request.run)
    for path in (request.run, *request.compare):
        other = facts if path == request.run else read_facts(path, opening=facts.opening)
        model: Any = Pretrained.load(other, "decoder", "ngram").language()
        stores = build_stores(_read_texts_run(other), other.reader, chosen)
        report.add(path, evaluate_texts(model, stores))
    if orders and texts is not None:
        stores = build_stores(run, directory, chosen)
        limit = run.evaluation.ngram_tokens
        trained = build_stores(run, directory, {"train": texts.train})["train"]
        for name, counted in baselines(trained, facts.tokenizer, orders, limit):
            report.add(name, evaluate_texts(counted, stores))
    print(report, flush=True)
    write_scores(request.output, report.to_dict())
    return 0


def _check_texts_given(request: Any) -> None:
    """Refuses what needs the texts of a run whose ``config.json`` names none."""
    why = f"{request.run}: config.json names no texts"
    if request.text is None:
        raise ConfigError(f"{why}: give --text")
    if request.ngrams:
        raise ConfigError(f"{why}, and --ngrams counts training text: leave it out")


def _read_texts_run(facts: Facts) -> Any:
    """Returns the settings of a run that was trained on texts.

    Raises:
        ConfigError: The run is of another kind.
    """
    run = settings_of(facts)
    if not hasattr(run, "ends"):
        raise ConfigError(
            f"{facts.source}: was not trained on texts: only models of texts can be compared"
        )
    return run
