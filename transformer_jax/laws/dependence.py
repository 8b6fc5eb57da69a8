"""Laws of dependence: each position reads exactly the positions that it may read."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Shaped

from transformer_jax.core.errors import ArgumentError
from transformer_jax.laws.changes import other_values
from transformer_jax.laws.finding import Finding, Place, errors, finding, law, worst

__all__ = ["causality", "causality_by_gradient", "visibility"]

# Outputs [B T ...] from inputs [B T ...]: logits from tokens, or hidden states from vectors.
ByPosition = Callable[[Shaped[np.ndarray, "B T *F"]], Shaped[np.ndarray, "B T *G"]]


@law("Each position reads itself and no later position.")
def causality(
    outputs: ByPosition, tokens: Shaped[Array | np.ndarray, "B T *F"], *, tolerance: float = 0.0
) -> Finding:
    """Checks causality by changing one position at a time.

    For callables of any library; :func:`causality_by_gradient` needs JAX, but only one call.

    Args:
        outputs: Maps tokens, or features, to one output per position, such as logits.
        tokens: Any input with at least two different values.
        tolerance: Largest change of an earlier output.

    Example:
        >>> tokens = np.arange(8).reshape(2, 4)
        >>> causality(lambda tokens: np.cumsum(tokens, axis=1), tokens).holds
        True
        >>> causality(lambda tokens: tokens + np.roll(tokens, -1, axis=1), tokens).where
        'row 0: position 0 reads position 1'
    """
    tokens = np.asarray(tokens)
    _check_positions(tokens)
    before, reads = outputs(tokens), []
    for s in range(tokens.shape[1]):
        changed = tokens.copy()
        changed[:, s] = other_values(tokens, tokens[:, s])
        change = errors(np.asarray(outputs(changed)), np.asarray(before))
        reads.append(change.reshape(*change.shape[:2], -1).max(-1))
    place = _unlike(np.stack(reads, axis=-1), *_causal(len(tokens), len(reads)))
    return finding("causality", place, tolerance)


@law("Each position reads itself and no later position, by gradient.")
def causality_by_gradient(
    outputs: Callable[[Float[Array, "B T D"]], Float[Array, "B T *F"]],
    vectors: Float[Array | np.ndarray, "B T D"],
    *,
    tolerance: float = 0.0,
) -> Finding:
    """Checks that gradients of outputs with respect to later inputs are zero.

    They must be exactly zero, because a masked weight is: a small gradient is a path to the future.
    Each output must depend on the input at its own position.

    Args:
        outputs: Maps vectors, such as embeddings, to one output per position; differentiable by
            JAX.
        vectors: Inputs. Rows must not read each other: see :func:`batch_mates`.
        tolerance: Largest gradient of an earlier output.

    Example:
        >>> vectors = np.ones((1, 3, 2), np.float32)
        >>> causality_by_gradient(lambda x: jnp.cumsum(x, axis=1), vectors).holds
        True
        >>> causality_by_gradient(lambda x: x + x.mean(1, keepdims=True), vectors).where
        'row 0: position 0 reads position 1'
    """
    B, T, _ = vectors.shape
    _check_positions(vectors)
    place = _unlike(_gradients(outputs, vectors), *_causal(B, T))
    return finding("causality_by_gradient", place, tolerance)


@law("Each position reads all positions visible to it, and no other, by gradient.")
def visibility(
    outputs: Callable[[Float[Array, "B T D"]], Float[Array, "B T *F"]],
    vectors: Float[Array | np.ndarray, "B T D"],
    visible: Bool[Array | np.ndarray, "B T T"],
    *,
    tolerance: float = 0.0,
) -> Finding:
    """Checks for which inputs each output has a gradient.

    Args:
        outputs: Maps vectors, such as embeddings, to one output per position; differentiable by
            JAX.
        vectors: Inputs. Rows must not read each other: see :func:`batch_mates`.
        visible: True where the output at a position (second axis) reads an input (last axis). A
            position at which it is False everywhere, such as padding, may read anything.
        tolerance: Largest gradient for an invisible input.

    Example:
        >>> x, visible = np.ones((1, 3, 2), np.float32), np.ones((1, 3, 3), bool)
        >>> visibility(lambda x: x + x.mean(1, keepdims=True), x, visible).holds
        True
        >>> visibility(lambda x: jnp.cumsum(x, axis=1), x, visible).where
        'row 0: position 0 does not read position 1'
    """
    visible = np.asarray(visible)
    B, T, _ = vectors.shape
    if visible.shape != (B, T, T):
        raise ArgumentError(f"laws: visible has shape {list(visible.shape)}: {[B, T, T]} is needed")
    if not visible.any():
        raise ArgumentError("laws: visible is False everywhere: there is nothing to compare")
    reads = np.where(visible.any(-1, keepdims=True), _gradients(outputs, vectors), 0)
    place = _unlike(reads, visible, visible)
    return finding("visibility", place, tolerance)


def _check_positions(inputs: Shaped[Array | np.ndarray, "B T *F"]) -> None:
    """Refuses inputs without a later position, which every model leaves unread."""
    if not inputs.shape[0] or inputs.shape[1] < 2:
        raise ArgumentError(
            f"laws: the inputs have shape {list(inputs.shape)}, without a later position to read: "
            f"give a row of two positions or more"
        )


def _gradients(
    outputs: Callable[..., PyTree], vectors: Float[Array | np.ndarray, "B T D"]
) -> Float[np.ndarray, "B T T"]:
    """Largest gradient of the output at each position with respect to the input at each other."""

    def totals(vectors: Array) -> Array:
        found = outputs(vectors)
        # Random weights: after a norm, the plain sum is the same for all vectors.
        weights = np.random.default_rng(0).standard_normal(found.shape[2:]).astype(np.float32)
        weighted: Array = found * weights[None, None]
        return weighted.reshape(*found.shape[:2], -1).sum((0, 2))

    slopes = jax.jit(jax.jacrev(totals))(jnp.asarray(vectors))  # [T B T D]
    return np.asarray(np.abs(np.asarray(slopes)).max(-1).swapaxes(0, 1))


def _causal(B: int, T: int) -> tuple[Bool[np.ndarray, "{B} {T} {T}"], ...]:
    """Masks of the positions that each position may read, and must read."""
    return tuple(np.broadcast_to(one, (B, T, T)) for one in (np.tri(T) > 0, np.eye(T) > 0))


def _unlike(
    reads: Float[np.ndarray, "B T S"],
    visible: Bool[np.ndarray, "B T S"],
    required: Bool[np.ndarray, "B T S"],
) -> Place:
    """The largest effect of an invisible input, or an input without a required effect."""
    words = "row {}: position {} reads position {}", "row {}: position {} does not read position {}"
    hidden = np.where(visible, 0, np.where(np.isnan(reads), math.inf, reads))
    missing = np.where(required & (reads == 0), math.inf, 0)
    places = []
    for table, text in zip((hidden, missing), words, strict=True):
        index = np.unravel_index(int(np.argmax(table)), table.shape)
        places.append((float(table[index]), text.format(*index)))
    return worst(*places)
