"""Settings of denoising pre-training of encoder-decoders, and the named runs."""

import dataclasses
from typing import ClassVar

from transformer_jax.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.data.denoising import NoiseConfig
from transformer_jax.data.documents import TextData, TextOptions
from transformer_jax.model_presets import PRESETS
from transformer_jax.parallel.mesh import DistributedConfig, MeshConfig
from transformer_jax.runs.encoder_settings import PretrainEvaluation, PretrainTraining
from transformer_jax.runs.settings import StartConfig, TokenizerConfig
from transformer_jax.runs.sizing import with_defaults, without_attention_dropout
from transformer_jax.training.loop import LoopConfig
from transformer_jax.training.optimizers import OptimizerConfig
from transformer_jax.training.schedules import ScheduleConfig

__all__ = ["RUNS", "DenoisingRun"]


@dataclasses.dataclass(frozen=True)
class DenoisingRun(StartConfig):
    """One pre-training run of an encoder-decoder."""

    model: TransformerConfig = PRESETS["bart_base"]
    data: TextData = TextData(read=TextOptions(documents="blank"))
    tokenizer: TokenizerConfig = TokenizerConfig()
    noise: NoiseConfig = NoiseConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: PretrainTraining = PretrainTraining()
    evaluation: PretrainEvaluation = PretrainEvaluation()
    loop: LoopConfig = LoopConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete a run that is there
    cache: str | None = None  # where tokenized text is kept, for several runs; None is the run

    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")


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
    """A run of a small model whose length follows from the size of the text."""
    return DenoisingRun(
        model=model,
        tokenizer=TokenizerConfig(vocab_size=None),
        noise=noise,
        optimizer=_adamw(1e-3, None),
        training=PretrainTraining(epochs=None),
        loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
    )


# Pre-norm needs no long warmup, which a run of minutes has no time for.
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
    # A head of its own, as T5 1.1 has: with the table of embeddings a small model learns late.
    head=HeadConfig(tie_word_embeddings=False),
)

_NAMED: dict[str, tuple[str, DenoisingRun]] = {
    "bart-mini": (
        "BART's noise on your own text, on a CPU: width 256, 3 + 3 layers, 7.6 M parameters.",
        _mini(_BART_MINI, NoiseConfig()),
    ),
    "t5-mini": (
        "T5's span corruption at the same size, with relative positions and RMS norms.",
        _mini(_T5_MINI, _SPANS),
    ),
    "bart-base": (
        "BART base (Lewis et al. 2020): 139 M parameters at 50,265 tokens.",
        DenoisingRun(
            model=without_attention_dropout(PRESETS["bart_base"]),
            tokenizer=TokenizerConfig(vocab_size=50_265),
            optimizer=_adamw(4e-4, 10_000),
            training=PretrainTraining(steps=500_000, max_tokens=131_072, sequence_length=512),
            loop=LoopConfig(keep_last=5),
        ),
    ),
    "t5-small": (
        "T5 small (Raffel et al. 2020): 60 M parameters at 32,128 tokens.",
        DenoisingRun(
            model=without_attention_dropout(PRESETS["t5_small"]),
            tokenizer=TokenizerConfig(kind="unigram", vocab_size=32_128),
            noise=_SPANS,
            optimizer=OptimizerConfig(
                name="adafactor",
                learning_rate=1e-2,
                schedule=ScheduleConfig("inverse_sqrt", warmup_steps=10_000),
            ),
            training=PretrainTraining(steps=524_288, max_tokens=65_536, sequence_length=512),
            loop=LoopConfig(keep_last=5),
        ),
    ),
}

RUNS = with_defaults(_NAMED)
