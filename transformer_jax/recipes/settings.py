"""Settings that recipes share: each is a field here once, and recipes add their own."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal

from transformer_jax.core.config_fields import Amount, Configuration, Count, Flag, Rate
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.data.plan import Batching
from transformer_jax.data.tokenizer_kind import TokenizerKind
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.lora_config import LoRAConfig
from transformer_jax.parallel.settings import DistributedConfig, MeshConfig
from transformer_jax.training.settings import LoopConfig, OptimizerConfig

__all__ = [
    "Adapted",
    "Cached",
    "ExampleBatches",
    "RowBatches",
    "RunConfig",
    "StartConfig",
    "TokenBatches",
    "TokenizerConfig",
    "Trained",
    "TrainingConfig",
    "start_config",
]


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Configuration, group="tokenizer"):
    """Tokenizer settings; source and target share one vocabulary."""

    # The units of text: byte pairs merged, WordPiece by frequency or by likelihood gain, Unigram,
    # words, single bytes or characters.
    kind: TokenizerKind = "bpe"
    # At most so many tokens are learnt; None follows from the size of the text, up to 8000.
    vocab_size: Count | None = 8000
    path: str | None = None  # a tokenizer.json to load instead of learning one
    add_tokens: tuple[str, ...] = ()  # words that become one token each, wherever text has them
    # Tokens that no text becomes, such as the roles of a chat: '<|im_start|>' '<|im_end|>'.
    add_special_tokens: tuple[str, ...] = ()
    allow_unknown: bool = False  # train on data more than half of whose tokens are unknown
    allow_lossy: bool = False  # train on targets more than half of which are decoded otherwise

    def __post_init__(self) -> None:
        super().__post_init__()
        added = [*self.add_tokens, *self.add_special_tokens]
        for token in added:
            if not token.strip() or added.count(token) > 1:
                why = "appears twice" if token.strip() else "is blank"
                raise ConfigError(f"tokenizer.add_tokens: {token!r} {why}: give each token once")

    @property
    def learnt(self) -> "TokenizerConfig":
        """The settings without those about added tokens and about what is allowed."""
        return dataclasses.replace(
            self, add_tokens=(), add_special_tokens=(), allow_unknown=False, allow_lossy=False
        )


@dataclasses.dataclass(frozen=True)
class StartConfig(Configuration, group=""):
    """The starting model of a run, and its parameters that are trained or drawn anew."""

    # A run of this package or a Hugging Face folder to start from: its parameters, its sizes and
    # its tokenizer; None starts from nothing.
    init_from: Annotated[str | None, Flag("init-from")] = None
    # What is not trained: none, embeddings, encoder, decoder, or N: the embeddings and the first
    # N layers.
    freeze: Annotated[str, Flag("freeze")] = "none"
    # Tokens whose rows are trained although their table is frozen, by freeze or beside adapters;
    # those that the run adds are among them.
    trainable_tokens: Annotated[tuple[str, ...], Flag("trainable-tokens")] = ()
    # Added tokens whose rows start as those of other tokens, NEW=OLD, not near the mean of all: a
    # new language from a relative, xxx_Latn=deu_Latn.
    tokens_like: Annotated[tuple[str, ...], Flag("tokens-like")] = ()
    reinit_last: Annotated[Amount, Flag("reinit-last")] = 0  # top layers to reinitialize
    # Reinitialize the output layer, or the head of labels.
    reinit_head: Annotated[bool, Flag("reinit-head")] = False

    # What messages put before the names of these settings, and the parts that freeze may name.
    prefix: ClassVar[str] = ""
    parts: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        named = ("none", "embeddings", *self.parts)
        if self.freeze not in named and not self.freeze.isdecimal():
            raise ConfigError(
                f"{self.prefix}freeze is {self.freeze}: allowed are {', '.join(named)}, or the "
                f"number of layers to freeze together with the embeddings"
            )
        given = {
            "freeze": self.freeze != "none",
            "trainable_tokens": self.trainable_tokens,
            "tokens_like": self.tokens_like,
            "reinit_last": self.reinit_last,
            "reinit_head": self.reinit_head,
        }
        if not self.has_start and any(given.values()):
            first = next(name for name, asked in given.items() if asked)
            raise ConfigError(
                f"{self.prefix}{first} is given without {self.prefix}init_from: nothing is learnt "
                f"yet"
            )

    @property
    def has_start(self) -> bool:
        """Returns whether some parameters come from another model."""
        return self.init_from is not None


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
class ExampleBatches(TrainingConfig):
    """Training settings: duration, batches of so many examples, seed."""

    batch_size: Count = 32  # of a batch, over all devices

    @property
    def row_unit(self) -> int:
        """The divisor of the rows of every batch."""
        return self.batch_size

    @property
    def size(self) -> str:
        """The size of a batch, for messages."""
        return plural(self.batch_size, "example")


@dataclasses.dataclass(frozen=True)
class RowBatches(ExampleBatches):
    """Training settings: duration, batches of so many rows, seed."""

    sequence_length: Count = 256  # tokens of a row

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

    recipe: ClassVar[str]  # the name of the recipe whose settings these are; it is stored


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

    # Where tokenized text or decoded pictures are kept, for several runs; None is the run.
    cache: str | None = None


def start_config(run: Any) -> StartConfig:
    """Returns the settings of a run about its start; n-gram models have no start."""
    for own in (getattr(run, "task", None), run):
        if isinstance(own, StartConfig):
            return own
    return StartConfig()
