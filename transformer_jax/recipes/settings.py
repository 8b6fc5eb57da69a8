"""Settings shared by recipes, each declared once; recipes add their own."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from transformer_jax.core.config_fields import Amount, Configuration, Count, Flag, Rate
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.data.plan import Batching
from transformer_jax.data.tokenizer_kind import Permission, TokenizerKind, VocabSize
from transformer_jax.models.config import LoRAConfig, TransformerConfig
from transformer_jax.parallel.settings import DistributedConfig, MeshConfig
from transformer_jax.training.settings import LoopConfig, OptimizerConfig

__all__ = [
    "Adapted",
    "AnyRun",
    "Cached",
    "ExampleBatches",
    "RowBatches",
    "Run",
    "RunConfig",
    "RunSettings",
    "SharedRowBatches",
    "StartConfig",
    "TokenBatches",
    "TokenizerConfig",
    "Trained",
    "TrainingConfig",
    "start_config",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Configuration, group="tokenizer"):
    """Tokenizer settings; source and target share one vocabulary."""

    # Kind of tokenizer: byte-pair encoding, WordPiece by frequency or by likelihood gain, Unigram,
    # words, single bytes or characters.
    kind: TokenizerKind = "bpe"
    # Maximum size of the vocabulary in tokens; None is chosen by the size of the text, up to 8000.
    vocab_size: VocabSize | None = 8000
    path: str | None = None  # a tokenizer.json to load instead of training one
    add_tokens: tuple[str, ...] = ()  # words that become single tokens wherever they occur in text
    # Tokens that text is never encoded to, such as roles of a chat: '<|im_start|>' '<|im_end|>'.
    add_special_tokens: tuple[str, ...] = ()
    # Characters and subwords to learn from the training text, in addition to those of the start or
    # of path (for byte-pair encodings and unigram vocabularies). With named pairs, only languages
    # that the start lacks are read.
    extend_by: Amount = 0
    allow_unknown: bool = False  # allow data with more than half of the text unknown
    allow_lossy: bool = False  # allow targets of which more than half do not survive decoding

    def __post_init__(self) -> None:
        super().__post_init__()
        added = [*self.add_tokens, *self.add_special_tokens]
        for token in added:
            if not token.strip() or added.count(token) > 1:
                why = "appears twice" if token.strip() else "is blank"
                raise ConfigError(f"tokenizer.add_tokens: {token!r} {why}: give each token once")

    @property
    def learnt(self) -> "TokenizerConfig":
        """Returns the settings of training a tokenizer: without added tokens and permissions."""
        plain = dataclasses.replace(self, add_tokens=(), add_special_tokens=(), extend_by=0)
        return dataclasses.replace(plain, allow_unknown=False, allow_lossy=False)

    @property
    def allowed(self) -> tuple[Permission, ...]:
        """Returns what data sets may have, see :meth:`.Tokenizer.allowing`."""
        given: dict[Permission, bool] = {"unknown": self.allow_unknown, "lossy": self.allow_lossy}
        return tuple(name for name, allowed in given.items() if allowed)


@dataclasses.dataclass(frozen=True)
class StartConfig(Configuration, group=""):
    """The starting model of a run, and the parameters to freeze or reinitialize."""

    # Run directory or Hugging Face folder to start from, with its parameters, sizes and tokenizer;
    # None starts from scratch.
    init_from: Annotated[str | None, Flag("init-from")] = None
    # Parameters to freeze: none, embeddings, encoder, decoder, or N for the embeddings and the
    # first N layers.
    freeze: Annotated[str, Flag("freeze")] = "none"
    # Tokens whose embeddings are trained although their table is frozen, by freeze or because of
    # adapters. Tokens added by the run are included.
    trainable_tokens: Annotated[tuple[str, ...], Flag("trainable-tokens")] = ()
    # Added tokens whose embeddings start as copies of other tokens, NEW=OLD, instead of near the
    # mean: a new language from a related one, xxx_Latn=deu_Latn.
    tokens_like: Annotated[tuple[str, ...], Flag("tokens-like")] = ()
    reinit_last: Annotated[Amount, Flag("reinit-last")] = 0  # top layers to reinitialize
    # Reinitialize the output layer or the classification head.
    reinit_head: Annotated[bool, Flag("reinit-head")] = False

    # Prefix of the names of these settings in messages, and the parts that freeze may name.
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
                f"{self.prefix}{first} is given without {self.prefix}init_from: nothing is trained "
                f"yet"
            )

    @property
    def has_start(self) -> bool:
        """Returns whether some parameters come from another model."""
        return self.init_from is not None


@dataclasses.dataclass(frozen=True)
class TrainingConfig(Configuration, group="training"):
    """Training settings: duration, seed."""

    # Passes over the training data; None is about 1000 steps, in 10 to 50 epochs.
    epochs: Count | None = 10
    steps: Count | None = None  # number of steps; None is set by epochs
    gradient_accumulation_steps: Count = 1  # micro-batches per step, computed in sequence
    ema_decay: Rate | None = None  # decay of the moving average of parameters; None is no average
    seed: Amount = 1  # seed of initialization, dropout and data order
    mode: Literal["jit", "pmap"] = "jit"  # transformation that compiles the step

    @property
    def row_unit(self) -> int:
        """Returns the divisor of the rows of every batch."""
        raise NotImplementedError

    @property
    def size(self) -> str:
        """Returns the size of a batch, for messages."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class TokenBatches(TrainingConfig):
    """Training settings: duration, tokens per batch, seed."""

    max_tokens: Count = 4096  # maximum number of tokens per batch, with padding, over all devices
    num_buckets: Count = 6  # number of bucket shapes
    # The number of rows of every batch is a multiple of this: choose a multiple of the numbers of
    # devices that may be used later.
    required_batch_size_multiple: Count = 8
    # Padded lengths are multiples of this, or multiples of 8 if shorter; None is 4 (8 in
    # pre-training) on CPUs, 64 on GPUs and 128 on TPUs.
    pad_to_multiple_of: Count | None = None

    cpu_multiple: ClassVar[int] = 4  # default multiple of padded lengths

    @property
    def row_unit(self) -> int:
        """Returns the divisor of the rows of every batch."""
        return self.required_batch_size_multiple

    @property
    def batching(self) -> Batching:
        """Returns the batching rules."""
        multiple = self.required_batch_size_multiple
        return Batching(
            self.max_tokens, self.num_buckets, multiple, self.seed, self.pad_to_multiple_of
        )

    @property
    def tokens(self) -> int:
        """Returns the maximum number of tokens per batch."""
        return self.max_tokens

    @property
    def size(self) -> str:
        """Returns the size of a batch, for messages."""
        return f"at most {plural(self.max_tokens, 'token')}"


@dataclasses.dataclass(frozen=True)
class ExampleBatches(TrainingConfig):
    """Training settings: duration, examples per batch, seed."""

    batch_size: Count = 32  # examples per batch, over all devices

    @property
    def row_unit(self) -> int:
        """Returns the divisor of the rows of every batch."""
        return self.batch_size

    @property
    def size(self) -> str:
        """Returns the size of a batch, for messages."""
        return plural(self.batch_size, "example")


@dataclasses.dataclass(frozen=True)
class SharedRowBatches(ExampleBatches):
    """Training settings: duration, examples per batch, seed.

    A row of a batch holds several examples; there are as many rows as devices and micro-batches
    need.
    """

    epochs: Count | None = 1  # passes over the examples

    @property
    def row_unit(self) -> int:
        """Returns the divisor of the rows of every batch that is known without a mesh."""
        return 1


@dataclasses.dataclass(frozen=True)
class RowBatches(ExampleBatches):
    """Training settings: duration, rows per batch, seed."""

    sequence_length: Count = 256  # tokens per row

    @property
    def tokens(self) -> int:
        """Returns the number of tokens per batch."""
        return self.batch_size * self.sequence_length

    @property
    def size(self) -> str:
        """Returns the size of a batch, for messages."""
        return f"{self.batch_size} x {plural(self.sequence_length, 'token')}"


@runtime_checkable
class RunSettings(Protocol):
    """The settings of a run of any kind, also of one that is not trained in steps."""

    recipe: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def model(self) -> Any:
        """The configuration of the model."""

    @property
    def data(self) -> Any:
        """The source of the examples."""

    @property
    def tokenizer(self) -> Any:
        """A :class:`TokenizerConfig`; None if the run reads no text."""

    @property
    def distributed(self) -> DistributedConfig:
        """Settings of the processes."""

    @property
    def output(self) -> str | None:
        """The run directory."""

    @property
    def overwrite(self) -> bool:
        """Returns whether to delete an existing run."""


AnyRun = TypeVar("AnyRun", bound=RunSettings)


@dataclasses.dataclass(frozen=True)
class Trained(Configuration):
    """The settings of a run in steps; recipes narrow ``model``, ``data`` and ``training``."""

    model: TransformerConfig = TransformerConfig()
    data: Any = None  # source of the examples
    tokenizer: TokenizerConfig = TokenizerConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    loop: LoopConfig = LoopConfig()
    mesh: MeshConfig = MeshConfig()
    distributed: DistributedConfig = DistributedConfig()
    output: str | None = None  # the run directory; None is runs/NAME
    overwrite: bool = False  # delete an existing run

    recipe: ClassVar[str]  # name of the recipe of these settings, stored in config.json

    @property
    def length_limit(self) -> tuple[str, int]:
        """Returns the setting that limits the tokens of a text, and its value.

        This is ``training.sequence_length`` if the batches have it; otherwise only the positions of
        the model limit a text.
        """
        if (length := getattr(self.training, "sequence_length", None)) is not None:
            return "training.sequence_length", length
        return "model.positions.max_length", self.model.max_length

    @property
    def batch_tokens(self) -> int:
        """Returns the maximum number of tokens per batch."""
        assert isinstance(self.training, TokenBatches | RowBatches)
        return self.training.tokens

    @property
    def planned_tokenizer(self) -> TokenizerConfig:
        """Returns the settings of the tokenizer with the tokens that the run will add to it."""
        return self.tokenizer

    def with_derived(self: "Run", learned: Any) -> "Run":
        """Returns the run with values for settings that are None, which its task derived from data.

        Args:
            learned: The settings of the task.
        """
        own, derived = (getattr(one, "evaluation", None) for one in (self, learned))
        if own is None or derived is None or type(own) is not type(derived):
            return self
        values = {
            field.name: getattr(derived, field.name)
            for field in dataclasses.fields(own)
            if getattr(own, field.name) is None
        }
        changed: Any = {"evaluation": dataclasses.replace(own, **values)}
        return dataclasses.replace(self, **changed)

    def without_derived(self: "Run") -> "Run":
        """Returns the run without settings that were derived from its data, for other data."""
        return self


Run = TypeVar("Run", bound=Trained)


@dataclasses.dataclass(frozen=True)
class RunConfig(Trained, StartConfig):
    """The settings of a run in steps that may start from another model."""


@dataclasses.dataclass(frozen=True)
class Adapted(Configuration):
    """Mixin of settings for runs that may train adapters."""

    lora: LoRAConfig = LoRAConfig()


@dataclasses.dataclass(frozen=True)
class Cached(Configuration):
    """Mixin of settings for runs with a cache."""

    # Shared folder for tokenized text or decoded pictures; None is the run directory.
    cache: str | None = None


def start_config(run: RunSettings) -> StartConfig:
    """Returns the settings of a run's start; n-gram models have no start."""
    for own in (getattr(run, "task", None), run):
        if isinstance(own, StartConfig):
            return own
    return StartConfig()
