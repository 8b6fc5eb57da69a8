"""Settings of the runs of instruction tuning, and the named runs."""

import dataclasses
from typing import Annotated, Any, Literal

from transformer_jax.chat.store import TooLong
from transformer_jax.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.config_fields import Amount, Configuration, Count, Range
from transformer_jax.data.preparation import TextNormalization
from transformer_jax.model_presets import PRESETS
from transformer_jax.runs.language_settings import LanguageRun, LanguageTraining
from transformer_jax.runs.settings import TokenizerConfig, read_run
from transformer_jax.runs.sizing import with_defaults
from transformer_jax.training.loop import LoopConfig
from transformer_jax.training.optimizers import OptimizerConfig
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.schedules import ScheduleConfig

__all__ = ["RUNS", "ChatConfig", "ChatData", "InstructRun", "read"]


@dataclasses.dataclass(frozen=True)
class ChatOptions(Configuration, group="data.read"):
    """How conversations are read."""

    lowercase: bool = False  # lower-case every message
    normalization: TextNormalization = "nfc"  # composed characters (NFC), or none: text as it is


@dataclasses.dataclass(frozen=True)
class ChatData(Configuration, group="data"):
    """Where conversations come from."""

    train: str | None = None  # a file of JSON lines with "messages" (.gz is unpacked)
    valid: str | None = None  # likewise; None holds out some of train
    # Share of train that is held out, 0 to 0.5.
    validation_size: Annotated[float, Range(0, 0.5)] = 0.05
    # Conversations longer than a row: without their first tokens, left out, or refused.
    too_long: TooLong = "truncate"
    read: ChatOptions = ChatOptions()


@dataclasses.dataclass(frozen=True)
class ChatConfig(Configuration, group="chat"):
    """How conversations are written."""

    # A built-in chat template (chatml, llama-3, ...), a file or a folder; None is that of
    # init_from.
    template: str | None = None


@dataclasses.dataclass(frozen=True)
class InstructTraining(LanguageTraining):
    """Training settings: duration, batch size, seed."""

    epochs: Count | None = 3  # passes over the conversations
    layout: Literal["packed"] = "packed"  # conversations are packed, and do not see each other


@dataclasses.dataclass(frozen=True)
class InstructEvaluation(Configuration, group="evaluation"):
    """Settings of the evaluation at the end of a run."""

    sample: Amount = 100  # tokens of an answer that is shown in the end; 0 is none


@dataclasses.dataclass(frozen=True)
class InstructRun(LanguageRun):
    """One instruction-tuning run of a decoder."""

    data: ChatData = ChatData()  # type: ignore[assignment]
    chat: ChatConfig = ChatConfig()
    training: InstructTraining = InstructTraining()
    evaluation: InstructEvaluation = InstructEvaluation()  # type: ignore[assignment]
    first: Literal["bos"] = "bos"  # what texts begin with that are no conversations


def read(directory: RunDirectory) -> InstructRun:
    """The run of a directory.

    Raises:
        CheckpointError: ``config.json`` is damaged, or of another kind of run.
    """
    return read_run(InstructRun, directory, "a run of instruction tuning")


def _adamw(peak: float) -> OptimizerConfig:
    return OptimizerConfig(
        name="adamw",
        learning_rate=peak,
        beta2=0.99,
        weight_decay=0.01,
        schedule=ScheduleConfig("cosine", warmup_steps=None, final_fraction=0.1),
    )


_SMALL = TransformerConfig(
    d_model=128,
    encoder_layers=0,
    decoder_layers=4,
    embedding=EmbeddingConfig(scale=1.0),
    positions=PositionConfig(kind="rope", max_length=256),
    attention=AttentionConfig(num_heads=4, bias=False, out_bias=False),
    feed_forward=FeedForwardConfig(d_ff=384, activation="silu", gated=True, bias=False),
    norm=NormConfig(kind="rms", placement="pre"),
)

_NAMED: dict[str, tuple[str, InstructRun]] = {
    "sft": (
        "Supervised fine-tuning of a language model (--init-from), rows of 1024 tokens.",
        InstructRun(
            model=PRESETS["llama_style"],
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=32_000),
            optimizer=_adamw(2e-5),
            training=InstructTraining(batch_size=32, sequence_length=1024),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "sft-cpu": (
        "The same on a CPU, rows of 256 tokens; without --init-from a small model from scratch.",
        InstructRun(
            model=_SMALL,
            tokenizer=TokenizerConfig(kind="bpe", vocab_size=None),
            optimizer=_adamw(5e-4),
            training=InstructTraining(batch_size=8, sequence_length=256),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
}

RUNS: dict[str, tuple[str, Any]] = with_defaults(_NAMED)
