"""Small random inputs for the laws, hidden states by layer, and sums of objectives."""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.models.config import ImageConfig

__all__ = ["Layers", "Texts", "lengths_of", "named_sums", "random_images", "random_texts", "spread"]

Number = TypeVar("Number", Array, float)

ROWS, LENGTH, SHORTEST = 4, 12, 4


class Texts(NamedTuple):
    """A batch of texts, every second of which ends in padding.

    Attributes:
        tokens: ``[B T]``.
        real: True at tokens, False at padding.
    """

    tokens: Int[np.ndarray, "B T"]
    real: Bool[np.ndarray, "B T"]


def random_texts(vocab_size: int, max_length: int, seed: int = 0) -> Texts:
    """Returns four texts of 12 tokens, or of the model's largest length if shorter.

    Raises:
        ConfigError: The model has fewer positions than the laws need.

    Example:
        >>> random_texts(1000, 512).real.sum(1)
        array([12,  7, 12,  7])
    """
    if max_length < SHORTEST:
        raise ConfigError(
            f"the model reads texts of at most {plural(max_length, 'token')}: doctor needs at "
            f"least {SHORTEST}"
        )
    T = min(LENGTH, max_length)
    tokens = np.random.default_rng(seed).integers(0, vocab_size, (ROWS, T)).astype(np.int32)
    tokens[0, :2] = (0, 1)[: min(2, T)]  # at least two different tokens
    lengths = np.array([T, max(1, 7 * T // 12)] * (ROWS // 2))
    return Texts(tokens, np.arange(T)[None] < lengths[:, None])


def random_images(image: ImageConfig) -> Float[np.ndarray, "B height width channels"]:
    """Returns four images of the size that a model reads.

    Example:
        >>> random_images(ImageConfig(8, 4)).shape
        (4, 8, 8, 3)
    """
    shape = ROWS, image.image_size, image.image_size, image.num_channels
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def lengths_of(real: Bool[Array, "B T"]) -> Int[Array, " B"]:
    """Returns the number of real positions of each row.

    Example:
        >>> lengths_of(jnp.array([[True, True, False]])).tolist()
        [2]
    """
    return jnp.sum(real, axis=1, dtype=jnp.int32)


def spread(scores: Float[Array, "B *T V"], T: int) -> Float[Array, "B {T} V"]:
    """Returns a row's scores repeated at each position, where laws of padding look for them.

    Example:
        >>> spread(jnp.ones((2, 3)), 5).shape, spread(jnp.ones((2, 5, 3)), 5).shape
        ((2, 5, 3), (2, 5, 3))
    """
    if scores.ndim == 3:
        return scores
    return jnp.broadcast_to(scores[:, None], (len(scores), T, scores.shape[-1]))


def named_sums(sums: Mapping[str, tuple[Number, Number]]) -> dict[str, Number]:
    """Returns the sums and weights of an objective by name.

    Example:
        >>> named_sums({"loss": (6.0, 3.0)})
        {'loss sum': 6.0, 'loss weight': 3.0}
    """
    parts = ("sum", "weight")
    return {
        f"{name} {part}": value
        for name, pair in sums.items()
        for part, value in zip(parts, pair, strict=True)
    }


class Layers:
    """Hidden states by layer: a callback for ``on_hidden``.

    Args:
        side: Part of the model, which prefixes the names of its layers.

    Attributes:
        states: The states by name.

    Example:
        >>> layers = Layers("encoder")
        >>> layers(jnp.zeros(2)), layers(jnp.ones(2))
        (None, None)
        >>> list(layers.states)
        ['encoder embeddings', 'encoder layer 1']
    """

    def __init__(self, side: str = ""):
        self.states: dict[str, Array] = {}
        self._side = f"{side} " if side else ""

    def __call__(self, hidden: Array) -> None:
        """Stores the states of the next layer."""
        n = len(self.states)
        self.states[f"{self._side}layer {n}" if n else f"{self._side}embeddings"] = hidden
