"""Denoising: pre-training of an encoder-decoder that restores texts (BART, T5)."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Count
from transformer_jax.data.denoising import DenoisingPlan, NoiseConfig, NoisyBatch
from transformer_jax.data.documents import TextSplits
from transformer_jax.data.plan import Batching
from transformer_jax.data.sentences import SentenceStore
from transformer_jax.data.store import release_pages
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.models.build import make_model
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.recipes.tasks.batching import TokenCache, has_dropout
from transformer_jax.recipes.tasks.language_model_task import as_documents
from transformer_jax.recipes.tasks.masked_lm_task import build_sentence_store
from transformer_jax.recipes.tasks.settings import TrainingLength
from transformer_jax.training import objectives
from transformer_jax.training.task import Data, Task
from transformer_jax.word_vectors.initialization import initial_embeddings

__all__ = ["denoising"]


@dataclasses.dataclass(frozen=True)
class DenoisingSettings:
    """The settings of an encoder-decoder that restores texts."""

    model: TransformerConfig
    noise: NoiseConfig
    training: TrainingLength

    recipe: ClassVar[str] = "denoising"


@checked_arguments
def denoising(
    data: TextSplits | Sequence[str],
    config: TransformerConfig,
    tokenizer: Tokenizer,
    *,
    noise: NoiseConfig = NoiseConfig(),
    batching: Batching = Batching(num_buckets=4),
    length: Count = 128,
    cache: TokenCache = TokenCache(),
) -> Task:
    """Returns the task of restoring noised text, as in BART or T5, by an encoder-decoder.

    The objective is the same as for translation. Validation measures ``valid_loss`` with fixed
    noise.

    Args:
        data: Documents for training, validation and tests; a list of texts is for training only.
        config: Configuration of the model.
        tokenizer: Tokenizer of the documents, with the mask token or the sentinels that the noise
            needs.
        noise: Settings of the noise.
        batching: Batching of texts.
        length: Maximum length of a source and of a target in tokens, including special tokens.
        cache: Folder for token ids.

    Raises:
        ConfigError: The tokenizer lacks tokens that the noise needs, or the length is too small.
    """
    splits = data if isinstance(data, TextSplits) else TextSplits(as_documents(data), None, {})
    plan_of = lambda store, shuffle: DenoisingPlan(
        store, tokenizer, noise, batching, length=length, shuffle=shuffle
    )
    store = build_sentence_store(splits.train, tokenizer, cache, blanks=True)
    plan, valid = plan_of(store, True), {}
    if splits.valid is not None:
        rest = build_sentence_store(splits.valid, tokenizer, cache, blanks=True)
        held = plan_of(rest, False)
        valid["valid"] = Data.of(held, held.make, [rest.ids])
    return Task(
        model=lambda rngs: make_model("encoder-decoder", config, rngs=rngs),
        train=Data.of(plan, _batches(plan, store), [store.ids]),
        objective=objectives.sequence_to_sequence(tokenizer.bos),
        valid=valid,
        flops=lambda batch: training_flops(
            config, *batch["inputs"]["source"].shape, batch["target"].shape[1]
        ),
        regularization=("dropout",) * has_dropout(config),
        tokenizer=tokenizer,
        initial=initial_embeddings(config, tokenizer),
        settings=DenoisingSettings(config, noise, TrainingLength(length)),
    )


def _batches(plan: DenoisingPlan, store: SentenceStore) -> Callable[[NoisyBatch], dict[str, Any]]:
    def make(items: NoisyBatch) -> dict[str, Any]:
        made = plan.make(items)
        release_pages(store.ids)  # else all of a long text would stay in memory
        return made

    return make
