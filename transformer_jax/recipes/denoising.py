"""Denoising pre-training of an encoder-decoder on any text: ``pretrain bart-mini``."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float64, Int

from transformer_jax.data.denoising import (
    DenoisingPlan,
    NoiseConfig,
    check_tokenizer,
    num_sentinels,
)
from transformer_jax.data.documents import TextData, TextOptions
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import PRESETS
from transformer_jax.recipes.recipe import Named, Prepared, Recipe
from transformer_jax.recipes.settings import Cached, RunConfig, TokenizerConfig
from transformer_jax.recipes.sizing import with_defaults, without_attention_dropout
from transformer_jax.recipes.texts import LengthBatches, TextEvaluation, open_texts_of, token_cache
from transformer_jax.training.settings import LoopConfig, OptimizerConfig, ScheduleConfig

if TYPE_CHECKING:
    from transformer_jax.data.documents import TextSplits
    from transformer_jax.data.loader import Batch
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.inference.facts import Facts
    from transformer_jax.recipes.explicit_settings import Given
    from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
    from transformer_jax.recipes.start import Start
    from transformer_jax.runs.run_directory import RunDirectory
    from transformer_jax.training.task import Task

__all__ = ["Denoising", "DenoisingRun"]

_COUNTED = 1_000_000  # target tokens to count for the trivial baseline


@dataclasses.dataclass(frozen=True)
class DenoisingRun(Cached, RunConfig):
    """One pre-training run of an encoder-decoder."""

    model: TransformerConfig = PRESETS["bart_base"]
    data: TextData = TextData(read=TextOptions(documents="blank"))
    noise: NoiseConfig = NoiseConfig()
    training: LengthBatches = LengthBatches()
    evaluation: TextEvaluation = TextEvaluation()

    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")


class Denoising(Recipe[DenoisingRun, "TextSplits"]):
    """An encoder-decoder that restores noised texts."""

    name = "denoising"
    title = "a denoising encoder-decoder"
    config = DenoisingRun
    family = "encoder-decoder"
    starts = ("encoder-decoder",)
    keeps_publication = True
    has_plan = True

    @functools.cached_property
    def runs(self) -> Named:
        """The named runs."""
        return with_defaults(_NAMED)

    def data(self, run: DenoisingRun) -> "TextSplits":
        """Returns the texts; evaluation texts are truncated as settings specify."""
        return open_texts_of(run)

    def prepare(
        self, run: DenoisingRun, start: "Start | None", given: "Given[DenoisingRun]"
    ) -> "Prepared[DenoisingRun, TextSplits]":
        """Returns a run whose tokenizer has the mask and the sentinels that the noise needs."""
        from transformer_jax.data.token_file import sample_texts
        from transformer_jax.recipes.checks import validated

        if start is not None:
            run = start.adapt(run, given)
        run = validated(run, start, given)
        data = self.data(run)

        def checked(run: DenoisingRun, tokenizer: "Tokenizer") -> DenoisingRun:
            check_tokenizer(tokenizer, run.noise, run.training.sequence_length)
            return run

        special = _special_tokens(run)
        return Prepared(
            run, data, lambda: sample_texts(data.train), special=special, with_tokenizer=checked
        )

    def task(
        self,
        run: DenoisingRun,
        directory: "RunDirectory",
        tokenizer: "Tokenizer",
        data: "TextSplits",
    ) -> "Task":
        """Returns the denoising task, which ends with a comparison with a trivial baseline."""
        from transformer_jax.recipes.tasks.denoising_task import denoising

        task = denoising(
            data,
            run.model,
            tokenizer,
            noise=run.noise,
            batching=run.training.batching,
            length=run.training.sequence_length,
            cache=token_cache(run, directory),
        )
        tested = lambda model, step: {"scores": score(run, directory, data, tokenizer, model)}
        return dataclasses.replace(task, test=tested)

    def plan_inputs(self, run: DenoisingRun, batch: "BatchShapes") -> "PlanInputs":
        """Returns what training and evaluation are made of."""
        from transformer_jax.recipes.plan_inputs import pair_inputs

        return pair_inputs(run, batch)

    def predictor(self, facts: "Facts") -> Any:
        """Returns a function from texts to texts."""
        from transformer_jax.inference.generation import TranslationPredictor
        from transformer_jax.inference.pretrained import Pretrained

        return TranslationPredictor(Pretrained.load(facts))


def _special_tokens(run: DenoisingRun) -> tuple[str, ...]:
    """Returns the usual special tokens, the mask and the sentinels of spans."""
    from transformer_jax.data.backends import SENTINEL, SPECIAL

    sentinels = num_sentinels(run.noise, run.training.sequence_length)
    masks = ("<mask>",) * run.noise.masks
    return (*SPECIAL, *masks, *map(SENTINEL.format, range(sentinels)))


def score(
    run: DenoisingRun,
    directory: "RunDirectory",
    texts: "TextSplits",
    tokenizer: "Tokenizer",
    model: Any,
) -> dict[str, dict[str, float]]:
    """Prints and returns the loss of a model on the test texts, or else on validation texts.

    The baseline ``unigram_loss`` is the loss under the token frequencies in training targets,
    without the source.
    """
    from transformer_jax.models.partition import merging
    from transformer_jax.parallel.placement import MeshProgram
    from transformer_jax.recipes.tasks.masked_lm_task import build_sentence_store
    from transformer_jax.training.objectives import sequence_to_sequence
    from transformer_jax.training.state import split
    from transformer_jax.training.step import add_sums, make_eval_step

    cache, tokenizer = token_cache(run, directory), tokenizer.allowing("unknown")
    plan_of = lambda text, shuffle: DenoisingPlan(
        build_sentence_store(text, tokenizer, cache, blanks=True), tokenizer, run.noise,
        run.training.batching, length=run.training.sequence_length, shuffle=shuffle,
    )  # fmt: skip
    logs = _unigram(plan_of(texts.train, True), run.model.vocab_size)
    graph, params = split(model)
    # Process 0 only: no collectives.
    sums = MeshProgram(make_eval_step(sequence_to_sequence(tokenizer.bos), merging(graph)))
    scores = {}
    for name, text in texts.scored.items():
        plan = plan_of(text, False)
        batches = [plan.make(plan.batch(step)) for step in range(plan.steps_per_epoch)]
        loss, tokens = add_sums(sums(params, {}, batch) for batch in batches)["loss"]
        guess = -sum(float(logs[_targets(batch)].sum()) for batch in batches)
        scores[name] = {
            "loss": loss / max(tokens, 1.0),
            "unigram_loss": guess / max(tokens, 1.0),
            "tokens": int(tokens),
        }
    print(_table(scores), flush=True)
    return scores


def _unigram(plan: DenoisingPlan, vocab: int) -> Float64[np.ndarray, " V"]:
    """Returns log-probabilities of tokens by their counts in targets, with add-one smoothing."""
    counts = np.zeros(vocab, np.int64)
    for step in range(plan.steps_per_epoch):
        counts += np.bincount(_targets(plan.make(plan.batch(step))), minlength=vocab)
        if counts.sum() > _COUNTED:
            break
    log_probs: np.ndarray = np.log((counts + 1) / (counts.sum() + vocab))
    return log_probs


def _targets(batch: "Batch") -> Int[np.ndarray, " tokens"]:
    """Returns the target tokens of a batch, without padding."""
    inside = np.arange(batch["target"].shape[1]) < batch["lengths"][:, None]
    tokens: np.ndarray = batch["target"][inside]
    return tokens


def _table(scores: dict[str, dict[str, float]]) -> str:
    """Returns a table with a row per text: the model and a trivial baseline."""
    from transformer_jax.core.text_tables import aligned

    rows = [["text", "loss", "perplexity", "unigram loss", "unigram perplexity"]]
    for name, row in scores.items():
        losses = (row["loss"], row["unigram_loss"])
        rows.append([name, *(cell for x in losses for cell in (f"{x:.3f}", f"{math.exp(x):.1f}"))])
    return aligned(rows)


_SPANS = NoiseConfig(sentence_permutation=0.0, text_infilling=0.0, span_corruption=0.15)


def _adamw(peak: float, warmup: int | None) -> OptimizerConfig:
    return OptimizerConfig(
        name="adamw",
        learning_rate=peak,
        beta2=0.98,
        eps=1e-6,
        weight_decay=0.01,
        schedule=ScheduleConfig("linear", warmup_steps=warmup),
    )


def _mini(model: TransformerConfig, noise: NoiseConfig) -> DenoisingRun:
    """Returns a run of a small model whose duration depends on the size of the text."""
    return DenoisingRun(
        model=model,
        tokenizer=TokenizerConfig(vocab_size=None),
        noise=noise,
        optimizer=_adamw(1e-3, None),
        training=LengthBatches(epochs=None),
        loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
    )


# Pre-norm does not need a long warmup, for which a run of minutes has no time.
_BART_MINI = TransformerConfig(
    d_model=256,
    encoder_layers=3,
    decoder_layers=3,
    positions=PositionConfig(max_length=512),
    attention=AttentionConfig(num_heads=8),
    feed_forward=FeedForwardConfig(d_ff=1024, activation="gelu"),
    norm=NormConfig(placement="pre"),
)
_T5_MINI = TransformerConfig(
    d_model=256,
    encoder_layers=3,
    decoder_layers=3,
    embedding=EmbeddingConfig(scale=1.0),
    positions=PositionConfig(kind="relative", max_length=512),
    attention=AttentionConfig(num_heads=8, bias=False, out_bias=False),
    scores=ScoreConfig(scale=1.0),
    feed_forward=FeedForwardConfig(d_ff=1024, bias=False),
    norm=NormConfig(kind="rms", placement="pre", eps=1e-6),
    # An untied head, as in T5 1.1: with a tied table, a small model learns more slowly.
    head=HeadConfig(tie_word_embeddings=False),
)


_NAMED: dict[str, tuple[str, Callable[[], DenoisingRun]]] = {
    "bart-mini": (
        "BART's noise on your own text, on a CPU: width 256, 3 + 3 layers, 7.6 M parameters.",
        lambda: _mini(_BART_MINI, NoiseConfig()),
    ),
    "t5-mini": (
        "T5's span corruption at the same size, with relative positions and RMS norms.",
        lambda: _mini(_T5_MINI, _SPANS),
    ),
    "bart-base": (
        "BART base (Lewis et al. 2020): 139 M parameters at 50,265 tokens.",
        lambda: DenoisingRun(
            model=without_attention_dropout(PRESETS["bart_base"]),
            tokenizer=TokenizerConfig(vocab_size=50_265),
            optimizer=_adamw(4e-4, 10_000),
            training=LengthBatches(steps=500_000, max_tokens=131_072, sequence_length=512),
            loop=LoopConfig(keep_last=5),
        ),
    ),
    "t5-small": (
        "T5 small (Raffel et al. 2020): 60 M parameters at 32,128 tokens.",
        lambda: DenoisingRun(
            model=without_attention_dropout(PRESETS["t5_small"]),
            tokenizer=TokenizerConfig(kind="unigram", vocab_size=32_128),
            noise=_SPANS,
            optimizer=OptimizerConfig(
                name="adafactor",
                learning_rate=1e-2,
                schedule=ScheduleConfig("inverse_sqrt", warmup_steps=10_000),
            ),
            training=LengthBatches(steps=524_288, max_tokens=65_536, sequence_length=512),
            loop=LoopConfig(keep_last=5),
        ),
    ),
}
