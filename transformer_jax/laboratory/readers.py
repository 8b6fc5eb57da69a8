"""Models that read a text and answer once at its end: recurrent ones, and one with attention.

All have an embedding, one layer and an output. They differ only in the layer: a recurrent layer, or
a block of causal self-attention and feed-forward network with sinusoidal positions.
"""

import functools
from collections.abc import Callable, Iterable
from typing import TypeVar

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer_jax.core.errors import ConfigError
from transformer_jax.laboratory.settings import ReaderName
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.layers.basic import Embed, Linear
from transformer_jax.models.layers.recurrent_layers import Recurrent
from transformer_jax.models.transformer.layers import Stack

__all__ = ["Reader", "nearest_size", "nearest_sizes", "num_parameters"]

Name = TypeVar("Name", bound=str)

HEADS = 4  # of the attention model
_LARGEST = 4_096  # values in a state


class Reader(nnx.Module):
    """Maps a text to scores of the answers at its end.

    Args:
        kind: The layer: a recurrent cell, or attention.
        size: Size of embeddings and states.
        vocab_size: Number of symbols in texts.
        classes: Number of answers.
        length: Length of the longest text.
        rngs: Random streams of the parameters.
    """

    def __init__(
        self,
        kind: ReaderName,
        size: int,
        *,
        vocab_size: int,
        classes: int,
        length: int,
        rngs: nnx.Rngs,
    ):
        self.embedding = Embed(vocab_size, size, scale=1.0, rngs=rngs)
        if kind == "attention":
            config = _config(size, vocab_size, length)
            self.layers: Stack | Recurrent = Stack(config, 1, decoder=True, cross=False, rngs=rngs)
        else:
            self.layers = Recurrent(size, size, kind, rngs=rngs)
        self.output = Linear(size, classes, ("embed", None), rngs=rngs)

    def __call__(self, tokens: Int[Array, "B T"]) -> Float[Array, "B C"]:
        """Returns the scores of the answers."""
        return self.output(self.last_state(self.embedding(tokens)))

    def last_state(self, x: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        """Returns the state at the last position, from embedded symbols."""
        states = self.layers(x) if isinstance(self.layers, Stack) else self.layers(x)[0]
        return states[:, -1]


def _config(size: int, vocab_size: int, length: int) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=vocab_size,
        d_model=size,
        encoder_layers=0,
        decoder_layers=1,
        embedding=EmbeddingConfig(scale=1.0, dropout=0.0),
        positions=PositionConfig(max_length=length),
        attention=AttentionConfig(num_heads=HEADS),
        feed_forward=FeedForwardConfig(d_ff=4 * size),
        norm=NormConfig(placement="pre", residual_dropout=0.0),
    )


def num_parameters(make: Callable[[], nnx.Module]) -> int:
    """Counts the trained parameters without creating them.

    Example:
        >>> num_parameters(lambda: Linear(3, 2, (None, None), rngs=nnx.Rngs(0)))
        8
    """
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(nnx.eval_shape(make))))


def nearest_size(make: Callable[[int], nnx.Module], parameters: int, multiple: int = HEADS) -> int:
    """Returns the size whose model has the number of parameters closest to ``parameters``.

    Args:
        make: Function from a size to a model that grows with it.
        parameters: The target number.
        multiple: Sizes are multiples of this.

    Raises:
        ConfigError: Even the smallest model has more than twice as many, or the largest too few.

    Example:
        >>> nearest_size(lambda D: Linear(D, D, (None, None), rngs=nnx.Rngs(0)), 1000, 4)
        32
    """
    number = lambda blocks: num_parameters(lambda: make(blocks * multiple))
    low, high = 1, _LARGEST // multiple
    if number(low) > 2 * parameters or number(high) < parameters:
        raise ConfigError(
            f"--parameters is {parameters:,}: from {number(low):,} to {number(high):,} is possible"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if number(middle) <= parameters else (low, middle)
    nearer = min((low, high), key=lambda blocks: abs(number(blocks) - parameters))
    return nearer * multiple


def nearest_sizes(
    names: Iterable[Name],
    make: Callable[[Name, int], nnx.Module],
    parameters: int,
    multiple: int = HEADS,
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the :func:`nearest_size` of several models, with their numbers of parameters.

    Args:
        names: Names of the models.
        make: Function from a name and a size to a model.
        parameters: The target number.
        multiple: Sizes are multiples of this.

    Raises:
        ConfigError: No size of a model has nearly this many.
    """
    sizes: dict[str, int] = {}
    count: dict[str, int] = {}
    for name in names:
        sizes[name] = nearest_size(functools.partial(make, name), parameters, multiple)
        count[name] = num_parameters(functools.partial(make, name, sizes[name]))
    return sizes, count
