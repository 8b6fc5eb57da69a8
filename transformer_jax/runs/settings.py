"""Settings that the runs of all families share."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from transformer_jax.core.config_fields import Amount, Configuration, Count, Flag
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.preparation import TextNormalization

__all__ = [
    "StartConfig",
    "TokenizerConfig",
    "settings_given",
    "start_config",
    "was_given",
    "with_normalization",
]

Kind = TypeVar("Kind", bound=Any)


@dataclasses.dataclass(frozen=True)
class TokenizerConfig(Configuration, group="tokenizer"):
    """Tokenizer settings; source and target share one vocabulary."""

    kind: Literal["bpe", "wordpiece", "unigram", "bytes", "characters"] = "bpe"
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
            "reinit_last": self.reinit_last,
            "reinit_head": self.reinit_head,
        }
        if self.init_from is None and any(given.values()):
            first = next(name for name, asked in given.items() if asked)
            raise ConfigError(
                f"{self.prefix}{first} is given without {self.prefix}init_from: nothing is learnt "
                f"yet"
            )


# Settings that a command gave, even if they equal the named run's.
_given: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "given", default=frozenset()
)


@contextlib.contextmanager
def settings_given(names: frozenset[str]) -> Iterator[None]:
    """Context of a command that gave these settings: they are kept by :func:`was_given`."""
    token = _given.set(names)
    try:
        yield
    finally:
        _given.reset(token)


def was_given(name: str) -> bool:
    """Returns whether the command gave a setting, such as ``model.norm.residual_dropout``.

    Example:
        >>> with settings_given(frozenset({"model.d_model"})):
        ...     was_given("model.d_model"), was_given("model.head.bias")
        (True, False)
    """
    return name in _given.get()


def with_normalization(run: Kind, own: TextNormalization) -> Kind:
    """Returns the run with text as its tokenizer normalizes it.

    Args:
        run: The settings of a run whose tokenizer is there already.
        own: The normalization of that tokenizer.

    Raises:
        ConfigError: The command gave another one.
    """
    read = run.data.read
    if was_given("data.read.normalization") and read.normalization != own:
        raise ConfigError(
            f"data.read.normalization is {read.normalization}, but the tokenizer that the run is "
            f"given has {own}: leave it out"
        )
    data = dataclasses.replace(run.data, read=dataclasses.replace(read, normalization=own))
    made: Kind = dataclasses.replace(run, data=data)
    return made


def start_config(run: Any) -> StartConfig:
    """Returns the settings of a run about its start; n-gram models have no start."""
    own = getattr(run, "task", run)
    return own if isinstance(own, StartConfig) else StartConfig()
