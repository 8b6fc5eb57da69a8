"""Instruction tuning: a decoder, and the cross-entropy of the answers in conversations."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jaxtyping import Int

from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.chat.conversation_store import ChatPlan, ChatStore, chat_rows
from transformer_jax.data.language_model_plans import RowBatch
from transformer_jax.data.store import release_pages
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.recipes.tasks.batching import has_dropout
from transformer_jax.recipes.tasks.fit import Side, describe_unknown
from transformer_jax.recipes.tasks.language_model_task import LanguageModelSettings, Rows
from transformer_jax.training import objectives
from transformer_jax.training.task import Data, Task
from transformer_jax.word_vectors.initialization import initial_embeddings

__all__ = ["Chosen", "instruction_tuning", "log_chats"]

# Conversations of a store, by their indices.
Chosen = tuple[ChatStore, Int[np.ndarray, " _"]]


def instruction_tuning(
    train: Chosen,
    valid: Chosen | None,
    config: TransformerConfig,
    tokenizer: Tokenizer,
    *,
    rows: Rows,
) -> Task:
    """Returns the task of predicting answers, given the preceding messages, by a decoder.

    Validation measures ``valid_loss``, per token of the answers.

    Args:
        train: Conversations for training.
        valid: Conversations for validation, or None.
        config: Configuration of the model.
        tokenizer: Tokenizer of the conversations.
        rows: Packing of conversations into rows and batches.
    """
    plan_of = lambda chosen, shuffle: ChatPlan(
        *chosen, length=rows.sequence_length, rows=rows.batch_size, seed=rows.seed, shuffle=shuffle
    )
    data = lambda chosen, plan: Data.of(
        plan, _batches(chosen[0], rows, tokenizer), [chosen[0].ids, chosen[0].answers, chosen[1]]
    )
    plan, held = plan_of(train, True), {}
    if valid is not None and len(valid[1]):
        held["valid"] = data(valid, plan_of(valid, False))
    return Task(
        model=lambda rngs: Decoder(config, rngs=rngs),
        train=data(train, plan),
        objective=objectives.language_model(),
        valid=held,
        flops=lambda batch: training_flops(config, *batch["tokens"].shape),
        counts="answer tokens",
        regularization=("dropout",) * has_dropout(config),
        tokenizer=tokenizer,
        initial=initial_embeddings(config, tokenizer),
        settings=LanguageModelSettings(config, "bos"),
    )


def _batches(
    store: ChatStore, rows: Rows, tokenizer: Tokenizer
) -> Callable[[RowBatch], dict[str, Any]]:
    def make(items: RowBatch) -> dict[str, Any]:
        made = chat_rows(store, items, rows.sequence_length, tokenizer.pad)
        release_pages(store.ids)  # else all of a long file would stay in memory
        release_pages(store.answers)
        return made

    return make


def log_chats(
    name: str, store: ChatStore, texts: Iterable[str], tokenizer: Tokenizer, began: float
) -> None:
    """Logs a summary line about the conversations of a file.

    Args:
        name: The file.
        store: The conversations of the file.
        texts: The contents of the messages.
        tokenizer: The tokenizer of the run.
        began: When reading began, by ``time.monotonic``.
    """
    counts = store.counts
    rest = "".join(
        f", {counts[what]:,} {what}" for what in ("truncated", "skipped") if counts[what]
    )
    if empty := counts.get("empty"):  # arrays of earlier versions do not count them
        rest += f", {plural(empty, 'answer')} without text"
    if bad := counts.get("bad"):
        rest += f", {plural(bad, 'bad row')} left out"
    unknown = describe_unknown(name, Side("", texts, tokenizer, store.ids))
    log(
        f"{name}: {plural(len(store), 'conversation')}, {plural(len(store.ids), 'token')}, "
        f"{counts['answers']:,} of them of answers{rest}{unknown} "
        f"({time.monotonic() - began:.1f} s)"
    )
