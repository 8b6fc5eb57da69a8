"""Settings of the runs of language models, and the named runs."""

import dataclasses
from typing import Any, ClassVar, Literal

from transformer_jax.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.config_fields import Amount, Configuration, Count, NotNegative, Rate
from transformer_jax.data.documents import TextData
from transformer_jax.errors import ConfigError
from transformer_jax.model_presets import PRESETS
from transformer_jax.parallel.mesh import DistributedConfig, MeshConfig
from transformer_jax.runs.settings import StartConfig, TokenizerConfig, read_run
from transformer_jax.runs.sizing import with_defaults, without_attention_dropout
from transformer_jax.training.loop import LoopConfig
from transformer_jax.training.lora import LoRAConfig
from transformer_jax.training.optimizers import OptimizerConfig
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.schedules import ScheduleConfig

__all__ = [
    "RUNS",
    "LanguageEvaluation",
    "LanguageRun",
    "LanguageTraining",
    "NgramConfig",
    "NgramRun",
    "read",
]


@dataclasses.dataclass(frozen=True)
class LanguageTraining(Configuration, group="training"):
    """Training settings: duration, batch size, seed."""

    # Passes over the training text; None is as many as give 1000 steps, 10 to 50.
    epochs: Count | None = 10
    steps: Count | None = None  # the last step; None goes by epochs
    batch_size: Count = 32  # of a batch, over all devices
    sequence_length: Count = 256  # tokens of a row
    # Documents apart, or one stream cut anywhere.
    layout: Literal["packed", "contiguous"] = "packed"
    gradient_accumulation_steps: Count = 1  # parts that a batch is computed in, one after another
    ema_decay: Rate | None = None  # decay of the moving average of the parameters; None keeps none
    seed: Amount = 1  # of parameters, dropout and order
    mode: Literal["jit", "pmap"] = "jit"  # how the step is compiled

    @property
    def row_unit(self) -> int:
        """The divisor of the rows of every batch."""
        return self.batch_size

    @property
    def label_smoothing(self) -> float:
        """0: the targets are not smoothed."""
        return 0.0


@dataclasses.dataclass(frozen=True)
class LanguageEvaluation(Configuration, group="evaluation"):
    """Settings of the evaluation at the end of a run."""

    ngram_orders: tuple[Count, ...] = (1, 5)  # orders of the n-gram baselines; empty is none
    ngram_tokens: Count = 4_000_000  # training tokens, at most, that these are counted from
    sample: Amount = 200  # tokens that the model writes in the end; 0 is none
    characters: Count = 5_000_000  # of validation and test texts, at most: their beginning


@dataclasses.dataclass(frozen=True)
class LanguageRun(StartConfig):
    """One training run of a decoder."""

    model: TransformerConfig = PRESETS["gpt2_small"]
    data: TextData = TextData()
    tokenizer: TokenizerConfig = TokenizerConfig()
    lora: LoRAConfig = LoRAConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: LanguageTraining = LanguageTraining()
    loop: LoopConfig = LoopConfig()
    evaluation: LanguageEvaluation = LanguageEvaluation()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete a run that is there
    cache: str | None = None  # where tokenized text is kept, for several runs; None is the run
    # What a text begins with: BOS; the end of the text before it; or, of a single text, a line end.
    first: Literal["auto", "bos", "eos", "newline"] = "auto"

    parts: ClassVar[tuple[str, ...]] = ("decoder",)


@dataclasses.dataclass(frozen=True)
class NgramConfig(Configuration, group="model"):
    """An n-gram model."""

    kind: Literal["ngram"] = "ngram"
    order: Count = 5  # 1 is a bag of words
    smoothing: Literal["kneser-ney", "add-k"] = "kneser-ney"
    k: NotNegative = 1.0  # of add-k


@dataclasses.dataclass(frozen=True)
class NgramRun(Configuration):
    """One n-gram model."""

    model: NgramConfig = NgramConfig()
    data: TextData = TextData()
    tokenizer: TokenizerConfig = TokenizerConfig()
    evaluation: LanguageEvaluation = LanguageEvaluation(ngram_orders=())
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete a run that is there
    cache: str | None = None  # where tokenized text is kept, for several runs; None is the run


def read(directory: RunDirectory) -> "LanguageRun | NgramRun":
    """The run of a directory.

    Raises:
        CheckpointError: ``config.json`` is damaged, or of another kind of run.
    """
    fields = directory.settings()
    if "chat" in fields:
        raise ConfigError(
            f"{directory.path}: trained on conversations, whose loss is in its metrics.jsonl: this "
            f"command compares models of texts"
        )
    model = fields.get("model")
    counted = isinstance(model, dict) and model.get("kind") == "ngram"
    kind: Any = NgramRun if counted else LanguageRun
    run: LanguageRun | NgramRun = read_run(kind, directory, "the run of a language model")
    return run


def _adamw(
    peak: float, warmup: int | None, beta2: float = 0.99, final: float = 0.1
) -> OptimizerConfig:
    return OptimizerConfig(
        name="adamw",
        learning_rate=peak,
        beta2=beta2,
        weight_decay=0.1,
        schedule=ScheduleConfig("cosine", warmup_steps=warmup, final_fraction=final),
    )


def _narrow(
    width: int, layers: int, heads: int, context: int, dropout: float = 0.0
) -> TransformerConfig:
    """A small decoder of the modern kind."""
    return TransformerConfig(
        d_model=width,
        encoder_layers=0,
        decoder_layers=layers,
        embedding=EmbeddingConfig(scale=1.0, dropout=dropout),
        positions=PositionConfig(kind="rope", max_length=context),
        attention=AttentionConfig(num_heads=heads, bias=False, out_bias=False),
        feed_forward=FeedForwardConfig(d_ff=3 * width, activation="silu", gated=True, bias=False),
        norm=NormConfig(kind="rms", placement="pre", residual_dropout=dropout),
    )


def _sized(config: TransformerConfig, **sizes: Any) -> TransformerConfig:
    """A preset at another size."""
    attention = dataclasses.replace(config.attention, num_heads=sizes["heads"], dropout=0.0)
    hidden = dataclasses.replace(config.feed_forward, d_ff=4 * sizes["width"])
    return dataclasses.replace(
        config,
        d_model=sizes["width"],
        decoder_layers=sizes["layers"],
        embedding=dataclasses.replace(config.embedding, dropout=0.0),
        positions=dataclasses.replace(config.positions, max_length=sizes["context"]),
        attention=attention,
        feed_forward=hidden,
        norm=dataclasses.replace(config.norm, residual_dropout=0.0),
    )


def _before(mixer: MixerConfig, layers: int, width: int = 256) -> LanguageRun:
    """A language model without attention."""
    return LanguageRun(
        model=TransformerConfig(
            d_model=width,
            encoder_layers=0,
            decoder_layers=layers,
            positions=PositionConfig(kind="none", max_length=1024),
            mixer=mixer,
            feed_forward=FeedForwardConfig(d_ff=0),
            norm=NormConfig(placement="pre"),
        ),
        tokenizer=TokenizerConfig(kind="bpe", vocab_size=8000),
        optimizer=_adamw(2e-3, None),
        training=LanguageTraining(epochs=None, batch_size=32, sequence_length=256),
        loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
    )


_CHARACTERS = TokenizerConfig(kind="characters", vocab_size=10_000)

_NAMED: dict[str, tuple[str, Any]] = {
    "python-docs": (
        "The reference topics that come with Python: minutes on a laptop, no data needed.",
        LanguageRun(
            # A text this small is memorized in a minute: dropout and a moving average of the
            # parameters reduce overfitting.
            model=_narrow(width=128, layers=4, heads=4, context=256, dropout=0.15),
            data=TextData(corpus="python-docs"),
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=1000),
            optimizer=OptimizerConfig(
                name="muon",
                learning_rate=2e-2,
                weight_decay=0.1,
                schedule=ScheduleConfig("cosine", warmup_steps=30, final_fraction=0.05),
            ),
            training=LanguageTraining(steps=700, batch_size=8, sequence_length=256, ema_decay=0.99),
            loop=LoopConfig(evaluate_every=175, checkpoint_every=350),
        ),
    ),
    "in-context": (
        "Rules shown by examples: learns in minutes on a laptop to learn from its prompt.",
        LanguageRun(
            model=_narrow(width=96, layers=3, heads=4, context=128),
            data=TextData(corpus="in-context"),
            tokenizer=_CHARACTERS,
            optimizer=_adamw(4e-3, 100),
            # A row holds one document, and a prompt may be longer.
            training=LanguageTraining(steps=4000, batch_size=32, sequence_length=62),
            loop=LoopConfig(evaluate_every=500, checkpoint_every=500),
        ),
    ),
    "char-cpu": (
        "nanoGPT's character model as it trains on a CPU: 4 layers, width 128, context 64.",
        LanguageRun(
            model=_sized(PRESETS["nanogpt_char"], width=128, layers=4, heads=4, context=64),
            tokenizer=_CHARACTERS,
            optimizer=_adamw(1e-3, 100),
            training=LanguageTraining(
                steps=2000, batch_size=12, sequence_length=64, layout="contiguous"
            ),
            loop=LoopConfig(evaluate_every=250, checkpoint_every=1000),
        ),
    ),
    "char": (
        "nanoGPT's character model for a GPU: 6 layers, width 384, context 256.",
        LanguageRun(
            model=without_attention_dropout(PRESETS["nanogpt_char"]),
            tokenizer=_CHARACTERS,
            optimizer=_adamw(1e-3, 100),
            training=LanguageTraining(
                steps=5000, batch_size=64, sequence_length=256, layout="contiguous"
            ),
            loop=LoopConfig(evaluate_every=250, checkpoint_every=1000),
        ),
    ),
    "gpt2-small": (
        "GPT-2 small, 124 M parameters at 50,257 tokens, on text of your own.",
        LanguageRun(
            model=without_attention_dropout(PRESETS["gpt2_small"]),
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=50_257),
            optimizer=_adamw(6e-4, 2000, beta2=0.95),
            training=LanguageTraining(steps=600_000, batch_size=512, sequence_length=1024),
            loop=LoopConfig(keep_last=5),
        ),
    ),
    "modern": (
        "A decoder in the style of Llama: RoPE, RMSNorm, SwiGLU, GQA.",
        LanguageRun(
            model=PRESETS["llama_style"],
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=32_000),
            optimizer=_adamw(6e-4, None, beta2=0.95),
            training=LanguageTraining(epochs=None, batch_size=128, sequence_length=2048),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None, keep_last=5),
        ),
    ),
    "lstm": (
        "An LSTM language model, 2 layers of 256, on text of your own: what came before.",
        _before(MixerConfig("recurrent", cell="lstm"), layers=2),
    ),
    "gated-conv": (
        "Gated convolutions in the manner of Dauphin et al. 2017, 6 layers of 256, on your text.",
        _before(MixerConfig("convolution", kernel_size=4), layers=6),
    ),
    "ngram": (
        "An n-gram language model of any order, the baseline of every neural model.",
        NgramRun(),
    ),
}

RUNS: dict[str, tuple[str, Any]] = with_defaults(_NAMED)
