"""Settings of translation runs, and the named runs."""

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
from transformer_jax.config_dict import from_dict
from transformer_jax.config_fields import Amount, Configuration, Count, Rate
from transformer_jax.data.sources import PairData, ReadOptions
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.model_presets import PRESETS
from transformer_jax.parallel.mesh import DistributedConfig, MeshConfig
from transformer_jax.recurrent_config import AlignmentConfig, RecurrentConfig
from transformer_jax.runs.settings import StartConfig, TokenizerConfig
from transformer_jax.runs.sizing import with_defaults
from transformer_jax.tasks.settings import EvaluationConfig
from transformer_jax.training.loop import LoopConfig
from transformer_jax.training.lora import LoRAConfig
from transformer_jax.training.optimizers import OptimizerConfig
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.schedules import ScheduleConfig

__all__ = ["RUNS", "RecurrentRun", "Run", "TrainingConfig", "read_as"]


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Configuration, group="training"):
    """Training settings: duration, batch size, seed."""

    # Passes over the training pairs; None is as many as give 1000 steps, 10 to 50.
    epochs: Count | None = 10
    steps: Count | None = None  # the last step; None goes by epochs
    max_tokens: Count = 4096  # most tokens of a side of a batch, padding included, over all devices
    num_buckets: Count = 6  # shapes of batches
    # Divides the rows of every batch: choose a multiple of the numbers of devices to come.
    required_batch_size_multiple: Count = 8
    # Padded lengths are multiples of it, or of 8 where they are below it; None is 4 (8 in
    # pre-training) on CPUs, 64 on GPUs and 128 on TPUs.
    pad_to_multiple_of: Count | None = None
    gradient_accumulation_steps: Count = 1  # parts that a batch is computed in, one after another
    label_smoothing: Rate = 0.1  # probability spread over the vocabulary
    ema_decay: Rate | None = None  # decay of the moving average of the parameters; None keeps none
    seed: Amount = 1  # of parameters, dropout and order
    mode: Literal["jit", "pmap"] = "jit"  # how the step is compiled

    @property
    def row_unit(self) -> int:
        """The divisor of the rows of every batch."""
        return self.required_batch_size_multiple


@dataclasses.dataclass(frozen=True)
class Run(StartConfig):
    """One training run."""

    model: TransformerConfig = PRESETS["vaswani_base"]
    data: PairData = PairData()
    tokenizer: TokenizerConfig = TokenizerConfig()
    lora: LoRAConfig = LoRAConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    loop: LoopConfig = LoopConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete a run that is there

    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")

    @staticmethod
    def read(directory: RunDirectory) -> "Run":
        """The run of a directory.

        Raises:
            CheckpointError: ``config.json`` is damaged, or of another kind of run.
        """
        return read_as(directory, Run, RecurrentRun)


def read_as(directory: RunDirectory, plain: type, recurrent: type) -> Any:
    """The run of a directory, with a Transformer or with recurrent layers.

    Args:
        directory: The run directory.
        plain: Type of a run with a Transformer.
        recurrent: Type of a run with recurrent layers.

    Raises:
        CheckpointError: ``config.json`` is damaged, or of another kind of run.
    """
    fields = directory.settings()
    model = fields.get("model")
    is_recurrent = isinstance(model, dict) and model.get("kind") == "recurrent"
    try:
        run = from_dict(recurrent if is_recurrent else plain, fields)
    except (ConfigError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{directory.config}: {error}: not the run of an encoder-decoder, or of another version"
        ) from None
    return dataclasses.replace(run, output=str(directory.path))


@dataclasses.dataclass(frozen=True)
class RecurrentRun(Run):
    """One training run of a recurrent translator."""

    model: RecurrentConfig = RecurrentConfig()  # type: ignore[assignment]


def _recurrent(**model: Any) -> RecurrentRun:
    """A small recurrent translator."""
    return RecurrentRun(
        model=RecurrentConfig(**model),
        tokenizer=TokenizerConfig(vocab_size=None),
        optimizer=OptimizerConfig(
            learning_rate=2e-3, schedule=ScheduleConfig("cosine", warmup_steps=None)
        ),
        training=TrainingConfig(epochs=None),
        loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
    )


def _small(
    width: int, layers: int, heads: int, hidden: int, dropout: float = 0.1
) -> TransformerConfig:
    # Pre-norm needs no long warmup, which a run of minutes has no time for.
    return TransformerConfig(
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        embedding=EmbeddingConfig(dropout=dropout),
        positions=PositionConfig(max_length=512),
        attention=AttentionConfig(num_heads=heads),
        feed_forward=FeedForwardConfig(d_ff=hidden),
        norm=NormConfig(placement="pre", residual_dropout=dropout),
    )


def _convolutional(width: int, layers: int, dropout: float = 0.1) -> TransformerConfig:
    """Blocks of a gated convolution and, in the decoder, attention with one head."""
    return TransformerConfig(
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        embedding=EmbeddingConfig(dropout=dropout),
        positions=PositionConfig(kind="learned", max_length=512),
        attention=AttentionConfig(num_heads=1),
        mixer=MixerConfig("convolution", kernel_size=3),
        feed_forward=FeedForwardConfig(d_ff=0),
        norm=NormConfig(placement="pre", residual_dropout=dropout),
    )


_NAMED: dict[str, tuple[str, Run]] = {
    "phrasebook": (
        "The built-in Portuguese-English corpus: minutes on a laptop.",
        Run(
            # No dropout: the corpus can have any size, so that no pair is repeated often enough to
            # be memorized.
            model=_small(128, 2, 4, 512, dropout=0.0),
            data=PairData(corpus="phrasebook", read=ReadOptions(max_length=64, corpus_size=60_000)),
            tokenizer=TokenizerConfig(vocab_size=3000),
            optimizer=OptimizerConfig(
                learning_rate=3e-3, schedule=ScheduleConfig("cosine", warmup_steps=200)
            ),
            training=TrainingConfig(steps=700, max_tokens=2048, num_buckets=3, label_smoothing=0.0),
            loop=LoopConfig(evaluate_every=350, checkpoint_every=350),
            evaluation=EvaluationConfig(sentences=100, num_beams=1),
        ),
    ),
    "small": (
        "Your own pairs on a CPU or a small GPU: width 256, 3 + 3 layers, up to 7.6 M parameters.",
        Run(
            model=_small(256, 3, 8, 1024),
            tokenizer=TokenizerConfig(vocab_size=None),
            optimizer=OptimizerConfig(
                learning_rate=1e-3, schedule=ScheduleConfig("inverse_sqrt", warmup_steps=None)
            ),
            training=TrainingConfig(epochs=None),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "tiny": (
        "Some ten thousand pairs, such as Multi30k: width 128, 4 + 4 layers, strong dropout.",
        Run(
            # The Transformer-Tiny that Wu et al. 2021 train on Multi30k.
            model=_small(128, 4, 4, 256, dropout=0.3),
            tokenizer=TokenizerConfig(vocab_size=None),
            optimizer=OptimizerConfig(
                learning_rate=5e-3, schedule=ScheduleConfig("cosine", warmup_steps=None)
            ),
            training=TrainingConfig(epochs=60, ema_decay=0.998),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "base": (
        "Vaswani et al. 2017, base: 63 M parameters at 37,000 tokens.",
        Run(
            model=PRESETS["vaswani_base"],
            tokenizer=TokenizerConfig(vocab_size=37_000),
            training=TrainingConfig(steps=100_000, max_tokens=25_000),
            loop=LoopConfig(keep_last=5),
        ),
    ),
    "big": (
        "Vaswani et al. 2017, big: 214 M parameters at 37,000 tokens.",
        Run(
            model=PRESETS["vaswani_big"],
            tokenizer=TokenizerConfig(vocab_size=37_000),
            training=TrainingConfig(steps=300_000, max_tokens=25_000),
            loop=LoopConfig(keep_last=20),
        ),
    ),
    "convs2s": (
        "Gated convolutions in the manner of Gehring et al. 2017: width 256, 4 + 4 layers.",
        Run(
            model=_convolutional(256, 4),
            tokenizer=TokenizerConfig(vocab_size=None),
            optimizer=OptimizerConfig(
                learning_rate=1e-3, schedule=ScheduleConfig("inverse_sqrt", warmup_steps=None)
            ),
            training=TrainingConfig(epochs=None),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "cho": (
        "Cho et al. 2014: a GRU encoder whose last state is all that the decoder reads.",
        _recurrent(cell="gru", bidirectional=False, attention=AlignmentConfig("none", "previous")),
    ),
    "sutskever": (
        "Sutskever et al. 2014: LSTMs on reversed sources, without attention.",
        _recurrent(
            num_layers=2,
            bidirectional=False,
            reverse_source=True,
            attention=AlignmentConfig("none"),
        ),
    ),
    "bahdanau": (
        "Bahdanau et al. 2015: GRUs in both directions, additive attention of the state before.",
        _recurrent(cell="gru", attention=AlignmentConfig("concat", "previous")),
    ),
    "luong": (
        "Luong et al. 2015: LSTMs, attention of the current state (general), input feeding.",
        _recurrent(attention=AlignmentConfig("general", input_feeding=True)),
    ),
}

RUNS: dict[str, tuple[str, Run]] = with_defaults(_NAMED)
