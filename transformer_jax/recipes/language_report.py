"""Comparison of language models on the same texts: loss, perplexity, bits."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from transformer_jax.core.errors import plural
from transformer_jax.data.store import TokenStore
from transformer_jax.data.token_file import TextStore
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.decoding.ngram import NgramLanguageModel
from transformer_jax.decoding.requests import perplexity
from transformer_jax.models.ngram import AddK, KneserNey, NgramModel
from transformer_jax.recipes.language_model import LanguageEvaluation
from transformer_jax.recipes.ngram import NgramConfig

__all__ = ["DocumentScorer", "Report", "TextMetrics", "baselines", "evaluate_texts", "train_ngram"]


@runtime_checkable
class DocumentScorer(Protocol):
    """A model that scores tokenized documents."""

    def document_log_probs(self, store: TokenStore) -> np.ndarray:
        """The log-probability of every token, conditional on those before it in its document."""


@dataclasses.dataclass(frozen=True)
class TextMetrics:
    """Loss of a text under a model."""

    nats: float  # of the whole text; end tokens of documents count
    tokens: int
    characters: int
    bytes: int

    @property
    def loss(self) -> float:
        """Cross-entropy in nats per token."""
        return self.nats / max(self.tokens, 1)

    def to_dict(self) -> dict[str, float]:
        """All metrics by name."""
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
    """Metrics of each text under a model."""
    out = {}
    for name, store in stores.items():
        nats = -float(np.sum(model.document_log_probs(store), dtype=np.float64))
        counts = store.counts
        out[name] = TextMetrics(nats, len(store.ids), counts["characters"], counts["bytes"])
    return out


def train_ngram(
    store: TokenStore, tokenizer: Tokenizer, config: NgramConfig, limit: int | None = None
) -> NgramLanguageModel:
    """The n-gram model of a text, or of its first ``limit`` tokens."""
    ids, offsets = store.ids, store.offsets
    if limit is not None and limit < len(ids):
        ends = offsets[offsets < limit]
        ids, offsets = ids[:limit], np.append(ends, limit)
    model = NgramModel.train(
        ids,
        offsets,
        order=config.order,
        vocab_size=tokenizer.vocab_size,
        smoothing=KneserNey() if config.smoothing == "kneser-ney" else AddK(config.k),
        excluded={tokenizer.pad, tokenizer.bos} - {tokenizer.eos},
    )
    return NgramLanguageModel(model, tokenizer)


def baselines(
    store: TextStore, tokenizer: Tokenizer, evaluation: LanguageEvaluation
) -> Iterator[tuple[str, NgramLanguageModel]]:
    """The n-gram baselines of every neural model, over the same tokens."""
    for order in evaluation.ngram_orders:
        config = NgramConfig(order=order, smoothing="add-k" if order == 1 else "kneser-ney")
        name = "unigram, add-1" if order == 1 else f"{order}-gram, Kneser-Ney"
        limit = evaluation.ngram_tokens
        name += f", of {plural(limit, 'token')}" if limit < len(store.ids) else ""
        yield name, train_ngram(store, tokenizer, config, limit)


class Report:
    """A row for each model, on each text."""

    def __init__(self, name: str):
        self.name = name
        self.rows: list[tuple[str, str, TextMetrics]] = []

    def add(self, model: str, found: Mapping[str, TextMetrics]) -> None:
        """Adds the metrics of a model on each text."""
        self.rows += [(model, text, worth) for text, worth in found.items()]

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The metrics by text, then by model."""
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
        widths = [max(len(row[i]) for row in table) for i in range(len(head))]
        lines = []
        for row in table:
            words = [cell.ljust(width) for cell, width in zip(row[:2], widths[:2], strict=True)]
            rest = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
            lines.append("  ".join([*words, *rest]).rstrip())
        return "\n".join(lines)
