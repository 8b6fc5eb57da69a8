"""Language modeling: a decoder, and the cross-entropy of every next token in documents."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from transformer_jax.core.arguments import check_values, checked_arguments
from transformer_jax.core.config_fields import Amount, Configuration, Count
from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.document_stream import DocumentStream, TextChunk
from transformer_jax.data.documents import TextSplits
from transformer_jax.data.language_model_plans import (
    ContiguousPlan,
    PackingPlan,
    RowBatch,
    make_rows,
)
from transformer_jax.data.store import release_pages
from transformer_jax.data.token_file import TextStore, build_tokens
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.protocol import Scorer
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.recipes.tasks.batching import TokenCache, has_dropout
from transformer_jax.recipes.tasks.fit import Side, describe_unknown
from transformer_jax.training import objectives
from transformer_jax.training.step import Objective, Sums
from transformer_jax.training.task import Data, Task
from transformer_jax.word_vectors.initialization import initial_embeddings

__all__ = ["Rows", "as_documents", "build_text_store", "language_model"]


@dataclasses.dataclass(frozen=True)
class LanguageModelSettings(Configuration, group=""):
    """The settings of a decoder, and the first token of texts."""

    model: TransformerConfig
    first: Literal["bos", "eos", "newline"]  # first token of every text

    recipe: ClassVar[str] = "language_model"


@dataclasses.dataclass(frozen=True)
class Rows(Configuration, group="training"):
    """Rows of equal length for the tokens of documents."""

    batch_size: Count = 32  # rows per batch, over all devices
    sequence_length: Count = 256  # tokens per row
    # Rows of separate documents, or of one continuous stream.
    layout: Literal["packed", "contiguous"] = "packed"
    seed: Amount = 1  # seed of the order

    def plan(self, store: TextStore, *, shuffle: bool = True) -> ContiguousPlan | PackingPlan:
        """Returns the plan of batches of the documents of ``store``."""
        how = {"length": self.sequence_length, "rows": self.batch_size, "seed": self.seed}
        if self.layout == "contiguous":
            return ContiguousPlan(len(store.ids), **how, shuffle=shuffle)
        return PackingPlan(store.lengths, **how, shuffle=shuffle)


@checked_arguments
def language_model(
    data: TextSplits | Sequence[str],
    config: TransformerConfig,
    tokenizer: Tokenizer,
    *,
    rows: Rows = Rows(),
    ends: bool = True,
    cache: TokenCache = TokenCache(),
) -> Task:
    """Returns the task of next-token prediction by a decoder.

    Validation measures ``valid_loss`` and ``valid_bits_per_character``.

    Args:
        data: Documents for training, validation and tests; a list of texts is for training only.
        config: Configuration of the model.
        tokenizer: Tokenizer of the documents.
        rows: Division of tokens into rows and batches.
        ends: Whether every document ends with the end token.
        cache: Folder for token ids.
    """
    splits = data if isinstance(data, TextSplits) else TextSplits(as_documents(data), None, {})
    store = build_text_store(splits.train, tokenizer, cache, ends=ends)
    batches = lambda store, plan: Data.of(plan, _batches(store, rows, tokenizer), [store.ids])
    valid, evaluated = {}, None
    if splits.valid is not None:
        held = build_text_store(splits.valid, tokenizer, cache, ends=ends)
        valid["valid"] = batches(held, rows.plan(held, shuffle=False))
        characters = max(held.counts["characters"], 1)
        evaluated = _with_bits(len(held.ids) / math.log(2) / characters)
    return Task(
        model=lambda rngs: Decoder(config, rngs=rngs),
        train=batches(store, rows.plan(store)),
        objective=objectives.language_model(),
        valid=valid,
        eval_objective=evaluated,
        flops=lambda batch: training_flops(config, *batch["tokens"].shape),
        regularization=("dropout",) * has_dropout(config),
        tokenizer=tokenizer,
        initial=initial_embeddings(config, tokenizer),
        settings=LanguageModelSettings(config, _first(rows, ends)),
    )


def _first(rows: Rows, ends: bool) -> Literal["bos", "eos", "newline"]:
    """Returns the id of the first token of texts."""
    if rows.layout == "packed":
        return "bos"
    return "eos" if ends else "newline"


def _batches(
    store: TextStore, rows: Rows, tokenizer: Tokenizer
) -> Callable[[RowBatch], dict[str, Any]]:
    def make(items: RowBatch) -> dict[str, Any]:
        made = make_rows(store, items, rows.sequence_length, tokenizer.bos, tokenizer.pad)
        release_pages(store.ids)  # else all of a long text would stay in memory
        return made

    return make


def _with_bits(bits_per_nat: float) -> Objective:
    """Returns the objective with bits per character, by the ratio to nats per token."""
    objective = objectives.language_model()

    def with_bits(model: Scorer, batch: dict[str, Any], key: Any = None) -> Sums:
        sums = objective(model, batch, key)
        total, weight = sums["loss"]
        return sums | {"bits_per_character": (total * bits_per_nat, weight)}

    return with_bits


def as_documents(texts: Sequence[str]) -> DocumentStream:
    """Returns texts as documents.

    Raises:
        ArgumentError: One of them is no text.
    """
    import hashlib

    for i, text in enumerate(texts):
        check_values("texts: ", {f"text {i}": str}, {f"text {i}": text})
    digest = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
    chunks = lambda: (TextChunk(text, True) for text in texts)
    return DocumentStream("texts", digest, chunks)


def build_text_store(
    texts: DocumentStream, tokenizer: Tokenizer, cache: TokenCache, *, ends: bool = True
) -> TextStore:
    """Tokenizes documents; returns the tokens and a summary line."""
    began = time.monotonic()
    store = build_tokens(texts, tokenizer, **cache._asdict(), ends=ends)
    counts = dict(store.counts)
    documents, characters = counts.pop("documents"), counts.pop("characters")
    counts.pop("bytes")
    rest = "".join(f", {n} {what}" for what, n in counts.items() if n)
    unknown = describe_unknown(
        texts.name, Side("", (chunk.text for chunk in texts), tokenizer, store.ids)
    )
    log(
        f"{texts.name}: {plural(documents, 'document')}, {plural(characters, 'character')}, "
        f"{plural(len(store.ids), 'token')}{rest}{unknown} ({time.monotonic() - began:.1f} s)"
    )
    return store
