"""Random keys by purpose, so that no two purposes share a stream."""

from typing import Literal

import jax
from jaxtyping import Array, Integer, Key

__all__ = ["SCHEME", "Purpose", "key_for", "training_key"]

Purpose = Literal["initialization", "dropout", "sampling", "partition"]

# The name in manifests of this way of deriving keys. Earlier manifests have none.
SCHEME = "by purpose"

# Numbers are never reused, so that a run keeps its keys.
_NUMBERS: dict[Purpose, int] = {"initialization": 1, "dropout": 2, "sampling": 3, "partition": 4}


def key_for(seed: int | Integer[Array, ""], purpose: Purpose) -> Key[Array, ""]:
    """The root of all randomness for a purpose: ``fold_in(key(seed), number of the purpose)``.

    The order of training data does not use it: it follows from hashes of indices (``plan.py``).

    Example:
        >>> bool((key_for(0, "dropout") == key_for(0, "initialization")).all())
        False
        >>> bool((key_for(0, "dropout") == key_for(0, "dropout")).all())
        True
    """
    return jax.random.fold_in(jax.random.key(seed), _NUMBERS[purpose])


def training_key(seed: int, scheme: str | None = SCHEME) -> Key[Array, ""]:
    """The root key of a run's dropout.

    Args:
        seed: Seed of the run.
        scheme: The way of deriving keys, from the run's manifests. None is earlier code, which drew
            parameters and dropout from one stream: such a run continues as it began.

    Example:
        >>> bool((training_key(3, None) == jax.random.key(3)).all())
        True
    """
    return jax.random.key(seed) if scheme is None else key_for(seed, "dropout")
