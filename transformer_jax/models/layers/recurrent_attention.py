"""Attention scores as modules with parameters, by name."""

import jax
from flax import nnx
from jaxtyping import Array, Float

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.alignment_scores import (
    additive_scores,
    general_scores,
    location_scores,
    projected_additive_scores,
)
from transformer_jax.functional.scores import ScaledDot, Score, dot, scaled_dot
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import initial
from transformer_jax.models.recurrent_config import ScoreName

__all__ = [
    "AdditiveScore",
    "GeneralScore",
    "LocationScore",
    "make_score",
    "projected_keys",
    "score_of_projected",
]

_AXES = ("embed", None)


class GeneralScore(Module):
    """The score ``q W kᵀ``; see :func:`.general_scores`."""

    def __init__(self, query_size: int, key_size: int, *, rngs: nnx.Rngs):
        self.kernel = _kernel(query_size, key_size, rngs)

    def __call__(
        self, q: Float[Array, "B N T H"], k: Float[Array, "B N S J"]
    ) -> Float[Array, "B N T S"]:
        """Returns the scores."""
        return general_scores(q, k, self.kernel[...].astype(q.dtype))

    def projected(self, k: Float[Array, "B N S J"]) -> Float[Array, "B N S H"]:
        """Returns ``k Wᵀ``, whose dot products with queries are the scores."""
        return k @ self.kernel[...].astype(k.dtype).T

    def of_projected(
        self, q: Float[Array, "B N T H"], k: Float[Array, "B N S H"]
    ) -> Float[Array, "B N T S"]:
        """Returns the scores of :meth:`projected` keys."""
        return dot(q, k)


class AdditiveScore(Module):
    """The score ``vᵀ tanh(W_q q + W_k k)``; see :func:`.additive_scores`."""

    def __init__(self, query_size: int, key_size: int, size: int, *, rngs: nnx.Rngs):
        self.query = _kernel(query_size, size, rngs)
        self.key = _kernel(key_size, size, rngs)
        vector = initial(jax.nn.initializers.normal(size**-0.5), rngs, (size,))
        self.vector = nnx.Param(vector, axes=(None,))

    def __call__(
        self, q: Float[Array, "B N T H"], k: Float[Array, "B N S J"]
    ) -> Float[Array, "B N T S"]:
        """Returns the scores."""
        learned = (one[...].astype(q.dtype) for one in (self.query, self.key, self.vector))
        return additive_scores(q, k, *learned)

    def projected(self, k: Float[Array, "B N S J"]) -> Float[Array, "B N S A"]:
        """Returns ``W_k k``."""
        return k @ self.key[...].astype(k.dtype)

    def of_projected(
        self, q: Float[Array, "B N T H"], k: Float[Array, "B N S A"]
    ) -> Float[Array, "B N T S"]:
        """Returns the scores of :meth:`projected` keys."""
        query, vector = (one[...].astype(q.dtype) for one in (self.query, self.vector))
        return projected_additive_scores(q @ query, k, vector)


class LocationScore(Module):
    """The score ``W q`` of each source position; see :func:`.location_scores`."""

    def __init__(self, query_size: int, places: int, *, rngs: nnx.Rngs):
        self.kernel = _kernel(query_size, places, rngs)

    def __call__(
        self, q: Float[Array, "B N T H"], k: Float[Array, "B N S J"]
    ) -> Float[Array, "B N T S"]:
        """Returns the scores.

        Raises:
            ArgumentError: There are more keys than ``places``.
        """
        return location_scores(q, k, self.kernel[...].astype(q.dtype))


def make_score(
    name: ScoreName, query_size: int, key_size: int, *, places: int = 256, rngs: nnx.Rngs
) -> Score:
    """Makes a score by name: a function of queries and keys, or a module with parameters.

    Args:
        name: One of ``dot``, ``scaled_dot``, ``general``, ``concat`` (additive) and ``location``.
        query_size: Size of a query.
        key_size: Size of a key.
        places: Largest number of keys for ``location``.
        rngs: Random streams of the parameters.

    Raises:
        ConfigError: An unknown name, or different sizes for a dot product.

    Example:
        >>> make_score("dot", 4, 4, rngs=nnx.Rngs(0)) is dot
        True
    """
    products: dict[str, ScaledDot] = {"dot": dot, "scaled_dot": scaled_dot}
    learned = {
        "general": lambda: GeneralScore(query_size, key_size, rngs=rngs),
        "concat": lambda: AdditiveScore(query_size, key_size, query_size, rngs=rngs),
        "location": lambda: LocationScore(query_size, places, rngs=rngs),
    }
    if name in learned:
        return learned[name]()
    if name not in products:
        raise ConfigError(f"score {name}: there are {', '.join((*products, *learned))}")
    if query_size != key_size:
        raise ConfigError(
            f"score {name}: queries have size {query_size} and keys {key_size}: choose equal "
            f"sizes, or the score general or concat"
        )
    return products[name]


def projected_keys(score: Score, k: Float[Array, "B N S J"]) -> Float[Array, "B N S _"]:
    """The part of a score that depends only on the keys, computed once for all queries.

    ``score(q, k)`` is ``score_of_projected(score)(q, projected_keys(score, k))``, up to rounding.

    Args:
        score: A score from :func:`make_score`.
        k: Keys.

    Example:
        >>> q, k = jax.numpy.ones((1, 1, 1, 2)), jax.numpy.ones((1, 1, 3, 4))
        >>> score = make_score("general", 2, 4, rngs=nnx.Rngs(0))
        >>> projected = projected_keys(score, k)
        >>> found = score_of_projected(score)(q, projected)
        >>> projected.shape, bool(jax.numpy.allclose(found, score(q, k), atol=1e-6))
        ((1, 1, 3, 2), True)
    """
    return score.projected(k) if hasattr(score, "projected") else k


def score_of_projected(score: Score) -> Score:
    """The score as a function of queries and :func:`projected_keys`.

    Example:
        >>> score_of_projected(dot) is dot
        True
    """
    found: Score = getattr(score, "of_projected", score)
    return found


def _kernel(inputs: int, outputs: int, rngs: nnx.Rngs) -> nnx.Param[Array]:
    kernel = initial(jax.nn.initializers.glorot_uniform(), rngs, (inputs, outputs))
    return nnx.Param(kernel, axes=_AXES)
