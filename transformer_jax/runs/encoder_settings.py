"""Settings of the runs of encoders, and the named runs."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from transformer_jax.config import TransformerConfig
from transformer_jax.config_fields import Amount, Configuration, Count, NotNegative, Range, Rate
from transformer_jax.data.documents import TextData, TextOptions
from transformer_jax.data.labeled import LabeledData
from transformer_jax.data.labeled_files import LabeledTask
from transformer_jax.model_presets import PRESETS, bert
from transformer_jax.parallel.mesh import DistributedConfig, MeshConfig
from transformer_jax.runs.settings import StartConfig, TokenizerConfig, read_run
from transformer_jax.runs.sizing import with_defaults, without_attention_dropout
from transformer_jax.tasks.masked_lm_task import MaskingConfig
from transformer_jax.training.loop import LoopConfig
from transformer_jax.training.lora import LoRAConfig
from transformer_jax.training.optimizers import OptimizerConfig
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.schedules import ScheduleConfig

__all__ = [
    "PRETRAIN_RUNS",
    "TASK_RUNS",
    "EncoderTraining",
    "FinetuneRun",
    "PretrainRun",
    "PretrainTraining",
    "TaskConfig",
    "read",
]


@dataclasses.dataclass(frozen=True)
class EncoderTraining(Configuration, group="training"):
    """Training settings: duration, batch size, seed."""

    # Passes over the training examples; None is as many as give 1000 steps, 10 to 50.
    epochs: Count | None = 3
    steps: Count | None = None  # the last step; None goes by epochs
    max_tokens: Count = 1024  # of a batch, padding included, over all devices
    num_buckets: Count = 6  # shapes of batches
    # Divides the rows of every batch: choose a multiple of the numbers of devices to come.
    required_batch_size_multiple: Count = 8
    # Padded lengths are multiples of it, or of 8 where they are below it; None is 4 (8 in
    # pre-training) on CPUs, 64 on GPUs and 128 on TPUs.
    pad_to_multiple_of: Count | None = None
    gradient_accumulation_steps: Count = 1  # parts that a batch is computed in, one after another
    ema_decay: Rate | None = None  # decay of the moving average of the parameters; None keeps none
    seed: Amount = 1  # of parameters, dropout, order and masks
    mode: Literal["jit", "pmap"] = "jit"  # how the step is compiled

    @property
    def row_unit(self) -> int:
        """The divisor of the rows of every batch."""
        return self.required_batch_size_multiple

    @property
    def label_smoothing(self) -> float:
        """0: the targets are not smoothed."""
        return 0.0


@dataclasses.dataclass(frozen=True)
class PretrainTraining(EncoderTraining):
    """Training settings, with the length of texts."""

    # Passes over the training text; None is as many as give 1000 steps, 10 to 50.
    epochs: Count | None = 10
    max_tokens: Count = 4096  # of a batch, padding included, over all devices
    num_buckets: Count = 4  # shapes of batches
    sequence_length: Count = 128  # most tokens of a text, with [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class PretrainEvaluation(Configuration, group="evaluation"):
    """Evaluation settings."""

    characters: Count = 1_000_000  # of validation and test texts, at most: their beginning


@dataclasses.dataclass(frozen=True)
class PretrainRun(StartConfig):
    """One pre-training run of an encoder."""

    model: TransformerConfig = PRESETS["bert_base"]
    data: TextData = TextData(read=TextOptions(documents="blank"))
    tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece")
    masking: MaskingConfig = MaskingConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: PretrainTraining = PretrainTraining()
    evaluation: PretrainEvaluation = PretrainEvaluation()
    loop: LoopConfig = LoopConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete a run that is there
    cache: str | None = None  # where tokenized text is kept, for several runs; None is the run

    parts: ClassVar[tuple[str, ...]] = ("encoder",)


@dataclasses.dataclass(frozen=True)
class TaskConfig(StartConfig, group="task"):
    """The task of labeled examples, and the initialization."""

    kind: LabeledTask = "classify"
    max_length: Annotated[int, Range(8)] = 128  # most tokens of an example, with [CLS] and [SEP]
    doc_stride: Count = 64  # qa: tokens that windows over a long context share
    labels: tuple[str, ...] = ()  # their names, in order; filled in from the training file
    # Of a decoder: the factor of the language-modelling loss beside that of the task; None is 0.5
    # (Radford et al. 2018), or 0 where the output layer is not the embedding table.
    lm_loss_weight: NotNegative | None = None

    prefix: ClassVar[str] = "task."
    parts: ClassVar[tuple[str, ...]] = ("encoder", "decoder")


@dataclasses.dataclass(frozen=True)
class FinetuneRun(Configuration):
    """One run of an encoder on labeled examples."""

    task: TaskConfig = TaskConfig()
    model: TransformerConfig = bert(128, 2, vocab_size=8000, max_length=512)
    data: LabeledData = LabeledData()
    tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece")
    lora: LoRAConfig = LoRAConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: EncoderTraining = EncoderTraining()
    loop: LoopConfig = LoopConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete a run that is there


def read(directory: RunDirectory) -> PretrainRun | FinetuneRun:
    """The run of a directory.

    Raises:
        CheckpointError: ``config.json`` is damaged, or of another kind of run.
    """
    kind: Any = FinetuneRun if "task" in directory.settings() else PretrainRun
    run: PretrainRun | FinetuneRun = read_run(kind, directory, "the run of an encoder")
    return run


def _adamw(peak: float, warmup: int | float | None, final: float = 0.0) -> OptimizerConfig:
    return OptimizerConfig(
        name="adamw",
        learning_rate=peak,
        beta2=0.98,
        eps=1e-6,
        weight_decay=0.01,
        schedule=ScheduleConfig("cosine", warmup_steps=warmup, final_fraction=final),
    )


def _muon(peak: float, warmup: int | None) -> OptimizerConfig:
    return OptimizerConfig(
        name="muon",
        learning_rate=peak,
        weight_decay=0.1,
        schedule=ScheduleConfig("cosine", warmup_steps=warmup, final_fraction=0.05),
    )


def _small(width: int, layers: int, length: int) -> TransformerConfig:
    """BERT with pre-norm and RoPE.

    In short runs these learn from neighboring words much earlier.
    """
    config = bert(width, layers, max_length=length)
    return dataclasses.replace(
        config,
        positions=dataclasses.replace(config.positions, kind="rope"),
        norm=dataclasses.replace(config.norm, placement="pre"),
    )


_PRETRAIN: dict[str, tuple[str, Any]] = {
    "python-docs": (
        "The documentation that comes with Python: minutes on a laptop, no data needed.",
        PretrainRun(
            model=_small(128, 2, length=128),
            data=TextData(corpus="python-library", read=TextOptions(documents="blank")),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=4000),
            optimizer=_muon(5e-3, 100),
            training=PretrainTraining(
                steps=2200, max_tokens=2048, sequence_length=64, num_buckets=2
            ),
            loop=LoopConfig(evaluate_every=500, checkpoint_every=1000),
            evaluation=PretrainEvaluation(characters=100_000),
        ),
    ),
    "small": (
        "BERT for your own text on a CPU: width 256, 4 layers, up to 5.5 M parameters.",
        PretrainRun(
            model=bert(256, 4),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=None),
            optimizer=dataclasses.replace(
                _adamw(1e-3, None), schedule=ScheduleConfig("linear", warmup_steps=None)
            ),
            training=PretrainTraining(epochs=None),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "modern": (
        "The same size with rotary positions and norms before sub-layers, which few steps suit.",
        PretrainRun(
            model=_small(256, 4, length=512),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=None),
            optimizer=_muon(8e-3, None),
            training=PretrainTraining(epochs=None),
            loop=LoopConfig(evaluate_every=None, checkpoint_every=None),
        ),
    ),
    "bert-base": (
        "BERT base (Devlin et al. 2019): 110 M parameters at 30,522 tokens.",
        PretrainRun(
            model=without_attention_dropout(PRESETS["bert_base"]),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=30_522),
            optimizer=_adamw(1e-4, 10_000),
            training=PretrainTraining(steps=1_000_000, max_tokens=131_072, sequence_length=512),
            loop=LoopConfig(keep_last=5),
        ),
    ),
    "bert-large": (
        "BERT large: 336 M parameters at 30,522 tokens.",
        PretrainRun(
            model=without_attention_dropout(PRESETS["bert_large"]),
            tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=30_522),
            optimizer=_adamw(1e-4, 10_000),
            training=PretrainTraining(steps=1_000_000, max_tokens=131_072, sequence_length=512),
            loop=LoopConfig(keep_last=5),
        ),
    ),
}


def _task(kind: LabeledTask, length: int = 128, **training: Any) -> FinetuneRun:
    return FinetuneRun(
        task=TaskConfig(kind=kind, max_length=length),
        tokenizer=TokenizerConfig(kind="wordpiece", vocab_size=None),
        optimizer=_adamw(3e-4, 0.06),
        training=EncoderTraining(**training),
        loop=LoopConfig(evaluate_every=0, checkpoint_every=0, keep_last=1),
    )


_TASKS: dict[str, tuple[str, Any]] = {
    "classify": ("Text classification: sentiment, topic, acceptability.", _task("classify")),
    "pair": ("Sentence-pair classification: paraphrase, entailment.", _task("pair")),
    "regress": ("Regression on a text, or on two with data.read.text_pair: similarity.",
                _task("regress")),
    "tag": ("Token classification: part-of-speech tags, named entities.", _task("tag")),
    "qa": ("Extractive question answering: the answer span in a paragraph, or none.",
             _task("qa", length=384, max_tokens=4096)),
}  # fmt: skip

PRETRAIN_RUNS = with_defaults(_PRETRAIN)
TASK_RUNS = with_defaults(_TASKS)
