"""Settings that recipes share: each is a field here once, and recipes add their own."""

import dataclasses
from typing import Any, ClassVar, Literal

from transformer_jax.core.config_fields import Amount, Configuration, Count, Rate
from transformer_jax.core.errors import plural
from transformer_jax.data.plan import Batching
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.lora_config import LoRAConfig
from transformer_jax.parallel.settings import DistributedConfig, MeshConfig
from transformer_jax.runs.settings import StartConfig, TokenizerConfig
from transformer_jax.training.settings import LoopConfig, OptimizerConfig

__all__ = [
    "Adapted",
    "Cached",
    "RowBatches",
    "RunConfig",
    "TokenBatches",
    "Trained",
    "TrainingConfig",
]


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Configuration, group="training"):
    """Training settings: duration, seed."""

    # Passes over the training data; None is as many as give 1000 steps, 10 to 50.
    epochs: Count | None = 10
    steps: Count | None = None  # the last step; None goes by epochs
    gradient_accumulation_steps: Count = 1  # parts that a batch is computed in, one after another
    ema_decay: Rate | None = None  # decay of the moving average of the parameters; None keeps none
    seed: Amount = 1  # of parameters, dropout and order
    mode: Literal["jit", "pmap"] = "jit"  # how the step is compiled


@dataclasses.dataclass(frozen=True)
class TokenBatches(TrainingConfig):
    """Training settings: duration, batches of so many tokens, seed."""

    max_tokens: Count = 4096  # most tokens of a batch, padding included, over all devices
    num_buckets: Count = 6  # shapes of batches
    # Divides the rows of every batch: choose a multiple of the numbers of devices to come.
    required_batch_size_multiple: Count = 8
    # Padded lengths are multiples of it, or of 8 where they are below it; None is 4 (8 in
    # pre-training) on CPUs, 64 on GPUs and 128 on TPUs.
    pad_to_multiple_of: Count | None = None

    cpu_multiple: ClassVar[int] = 4  # of padded lengths, where none is given

    @property
    def row_unit(self) -> int:
        """The divisor of the rows of every batch."""
        return self.required_batch_size_multiple

    @property
    def batching(self) -> Batching:
        """Returns the rules by which texts become batches."""
        multiple = self.required_batch_size_multiple
        return Batching(
            self.max_tokens, self.num_buckets, multiple, self.seed, self.pad_to_multiple_of
        )

    @property
    def tokens(self) -> int:
        """Most tokens of a batch."""
        return self.max_tokens

    @property
    def size(self) -> str:
        """The size of a batch, for messages."""
        return f"at most {plural(self.max_tokens, 'token')}"


@dataclasses.dataclass(frozen=True)
class RowBatches(TrainingConfig):
    """Training settings: duration, batches of so many rows, seed."""

    batch_size: Count = 32  # of a batch, over all devices
    sequence_length: Count = 256  # tokens of a row

    @property
    def row_unit(self) -> int:
        """The divisor of the rows of every batch."""
        return self.batch_size

    @property
    def tokens(self) -> int:
        """Tokens of a batch."""
        return self.batch_size * self.sequence_length

    @property
    def size(self) -> str:
        """The size of a batch, for messages."""
        return f"{self.batch_size} x {plural(self.sequence_length, 'token')}"


@dataclasses.dataclass(frozen=True)
class Trained(Configuration):
    """The settings of a run with steps; recipes narrow ``model``, ``data`` and ``training``."""

    model: TransformerConfig = TransformerConfig()
    data: Any = None  # where examples come from
    tokenizer: TokenizerConfig = TokenizerConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    loop: LoopConfig = LoopConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete a run that is there

    recipe: ClassVar[str]  # the name under which config.json stores it


@dataclasses.dataclass(frozen=True)
class RunConfig(Trained, StartConfig):
    """The settings of a run with steps, and what it starts from."""


@dataclasses.dataclass(frozen=True)
class Adapted(Configuration):
    """A part of the settings of runs that may train adapters."""

    lora: LoRAConfig = LoRAConfig()


@dataclasses.dataclass(frozen=True)
class Cached(Configuration):
    """A part of the settings of runs on long texts."""

    cache: str | None = None  # where tokenized text is kept, for several runs; None is the run
