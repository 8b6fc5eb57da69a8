"""Masked-language modeling: pre-training of an encoder, with an objective on sentence pairs."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Count
from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.bert_pretraining import (
    BertPretrainingPlan,
    MaskingConfig,
    PackedPretrainingPlan,
)
from transformer_jax.data.document_stream import DocumentStream
from transformer_jax.data.documents import TextSplits
from transformer_jax.data.masking import MLMMasking
from transformer_jax.data.plan import Batching
from transformer_jax.data.sentences import SentenceStore, build_sentences
from transformer_jax.data.store import release_pages
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.heads import EncoderForMaskedLM
from transformer_jax.recipes.tasks.batching import TokenCache, has_dropout
from transformer_jax.recipes.tasks.fit import Side, describe_unknown
from transformer_jax.recipes.tasks.language_model_task import as_documents
from transformer_jax.recipes.tasks.settings import TrainingLength
from transformer_jax.runs.checkpoint_score import Metric
from transformer_jax.training import objectives
from transformer_jax.training.step import Batch
from transformer_jax.training.task import Data, Task
from transformer_jax.word_vectors.initialization import initial_embeddings

__all__ = ["Layout", "build_sentence_store", "masked_lm", "pretraining_plan"]

Layout = Literal["padded", "packed"]


@dataclasses.dataclass(frozen=True)
class SentenceObjectiveSettings:
    """The sentence-pair objective, which has a head."""

    sentence_objective: str


@dataclasses.dataclass(frozen=True)
class MaskedLMSettings:
    """The settings of a pre-trained encoder."""

    model: TransformerConfig
    masking: SentenceObjectiveSettings
    training: TrainingLength

    recipe: ClassVar[str] = "masked_lm"


@checked_arguments
def masked_lm(
    data: TextSplits | Sequence[str],
    config: TransformerConfig,
    tokenizer: Tokenizer,
    *,
    masking: MaskingConfig = MaskingConfig(),
    batching: Batching = Batching(num_buckets=4),
    length: Count = 128,
    layout: Layout = "padded",
    cache: TokenCache = TokenCache(),
) -> Task:
    """Returns the task of BERT: masked tokens, and sentence pairs (Devlin et al. 2019).

    Validation measures losses and accuracies of both, with fixed masks.

    Args:
        data: Documents for training, validation and tests; a list of texts is for training only.
        config: Configuration of the model.
        tokenizer: Tokenizer of the documents, with a mask token.
        masking: Settings of masking, and the sentence-pair objective.
        batching: Batching of texts.
        length: Maximum length of a text in tokens, including special tokens.
        layout: ``padded``: a text in each row, in batches of similar lengths; ``packed``: several
            in each row of ``length`` tokens, which do not attend to each other (without pairs).
        cache: Folder for token ids.
    """
    splits = data if isinstance(data, TextSplits) else TextSplits(as_documents(data), None, {})
    plan_of = lambda store, shuffle: pretraining_plan(
        store,
        tokenizer,
        masking=masking,
        batching=batching,
        length=length,
        layout=layout,
        shuffle=shuffle,
    )
    store = build_sentence_store(splits.train, tokenizer, cache)
    plan, valid = plan_of(store, True), {}
    if splits.valid is not None:
        rest = build_sentence_store(splits.valid, tokenizer, cache)
        held = plan_of(rest, False)
        valid["valid"] = Data.of(held, held.make, [rest.ids])
    pairs = masking.sentence_objective
    return Task(
        model=lambda rngs: EncoderForMaskedLM(config, next_sentence=pairs != "none", rngs=rngs),
        train=Data.of(plan, _batches(plan, store), [store.ids]),
        objective=objectives.masked_lm(sentence_objective=pairs),
        valid=valid,
        metrics=(Metric("valid_loss", "lower"), Metric("valid_mlm_accuracy", "higher")),
        eval_objective=objectives.masked_lm(accuracy=True, sentence_objective=pairs),
        flops=lambda batch: training_flops(config, *batch["tokens"].shape),
        counts="masked tokens",
        regularization=("dropout",) * has_dropout(config),
        tokenizer=tokenizer,
        initial=initial_embeddings(config, tokenizer),
        settings=MaskedLMSettings(
            config, SentenceObjectiveSettings(masking.sentence_objective), TrainingLength(length)
        ),
    )


def _batches(
    plan: BertPretrainingPlan | PackedPretrainingPlan, store: SentenceStore
) -> Callable[[Any], Batch]:
    def make(items: Any) -> Batch:
        made = plan.make(items)
        release_pages(store.ids)  # else all of a long text would stay in memory
        return made

    return make


def pretraining_plan(
    store: SentenceStore,
    tokenizer: Tokenizer,
    *,
    masking: MaskingConfig,
    batching: Batching,
    length: int,
    layout: Layout,
    shuffle: bool,
) -> BertPretrainingPlan | PackedPretrainingPlan:
    """Returns the plan of masked texts from the sentences of ``store``."""
    plan = BertPretrainingPlan(
        store,
        MLMMasking.of(
            tokenizer,
            whole_word_mask=masking.whole_word_mask,
            mlm_probability=masking.mlm_probability,
            mask_replace_prob=masking.mask_replace_prob,
            random_replace_prob=masking.random_replace_prob,
        ),
        (tokenizer.bos, tokenizer.eos, tokenizer.pad),
        batching,
        length=length,
        sentence_objective=masking.sentence_objective,
        shuffle=shuffle,
    )
    if layout == "padded":
        return plan
    return PackedPretrainingPlan(plan, batching, length=length, shuffle=shuffle)


def build_sentence_store(
    texts: DocumentStream, tokenizer: Tokenizer, cache: TokenCache, *, blanks: bool = False
) -> SentenceStore:
    """Tokenizes the sentences of documents; returns the ids and a summary line."""
    began = time.monotonic()
    store = build_sentences(texts, tokenizer, blanks=blanks, **cache._asdict())
    counts = dict(store.counts)
    counts.pop("bytes")
    parts = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
    unknown = describe_unknown(
        texts.name, Side("", (chunk.text for chunk in texts), tokenizer, store.ids)
    )
    log(
        f"{texts.name}: {parts}, {plural(len(store.ids), 'token')}{unknown} "
        f"({time.monotonic() - began:.1f} s)"
    )
    return store
