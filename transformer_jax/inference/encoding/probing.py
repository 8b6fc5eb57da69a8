"""Probes layers: a linear classifier of a task's labels on the vectors of each layer."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

__all__ = ["ProbeResult", "majority", "probe", "probe_layers"]

_PENALTY = 1e-3  # L2 penalty: half of it times the squared norm of the weights
_STEPS, _RATE = 300, 0.1  # of Adam; the final loss is within 1e-3 of the minimum


class ProbeResult(NamedTuple):
    """A kind of vectors, and the held-out accuracy of a linear classifier on them."""

    name: str
    accuracy: float


def probe(
    train: Float[np.ndarray, "n D"],
    labels: Int[np.ndarray, " n"],
    valid: Float[np.ndarray, "m D"],
    answers: Int[np.ndarray, " m"],
) -> float:
    """Returns the accuracy of multinomial logistic regression on frozen vectors.

    Each component is standardized by its mean and deviation over the training vectors. Adam uses
    full batches and starts from zeros, so the result is deterministic.

    Args:
        train: Training vectors.
        labels: Classes of the training vectors, from 0.
        valid: Held-out vectors.
        answers: Classes of the held-out vectors; -1 is a class without training examples.

    Example:
        >>> x = np.array([[-2.0], [-1.0], [1.0], [2.0]], np.float32)
        >>> probe(x, np.array([0, 0, 1, 1]), x * 3, np.array([0, 0, 1, -1]))
        0.75
    """
    # In float64, the mean of equal float32 values is exact, and their deviation 0.
    mean, spread = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64)
    spread = np.where(spread > 0, spread, 1.0)
    standard = lambda x: jnp.asarray((x - mean) / spread, jnp.float32)
    classes = int(labels.max()) + 1
    weights, bias = _fitted(standard(train), jnp.asarray(labels), classes)
    told = np.asarray((standard(valid) @ weights + bias[None]).argmax(-1))
    return float((told == answers).mean())


@jax.jit(static_argnums=2)
def _fitted(
    x: Float[Array, "n D"], labels: Int[Array, " n"], classes: int
) -> tuple[Float[Array, "D C"], Float[Array, " C"]]:
    """Returns weights and bias with the minimal penalized loss."""

    def loss(params: tuple[Array, Array]) -> Array:
        weights, bias = params
        scores = x @ weights + bias[None]
        each = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
        return each.mean() + _PENALTY / 2 * (weights**2).sum()

    tx = optax.adam(optax.cosine_decay_schedule(_RATE, _STEPS))

    def step(_, carry):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    start = jnp.zeros((x.shape[1], classes)), jnp.zeros(classes)
    return jax.lax.fori_loop(0, _STEPS, step, (start, tx.init(start)))[0]


def majority(labels: Int[np.ndarray, " n"], answers: Int[np.ndarray, " m"]) -> tuple[int, float]:
    """Returns the most frequent training class, and its fraction of the answers.

    Example:
        >>> majority(np.array([0, 1, 1]), np.array([1, 0, -1, 1]))
        (1, 0.5)
    """
    first = int(np.argmax(np.bincount(labels)))
    return first, float((answers == first).mean())


def probe_layers(
    train: Float[np.ndarray, "n layers D"],
    labels: Int[np.ndarray, " n"],
    valid: Float[np.ndarray, "m layers D"],
    answers: Int[np.ndarray, " m"],
) -> list[ProbeResult]:
    """Probes each layer, from the embeddings, and combinations of the last four.

    Source: Devlin et al. 2019, table 7.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.normal(size=(60, 3, 2)).astype(np.float32), np.arange(60) % 2
        >>> x[:, 2, 0] += 9 * y  # only the last layer knows
        >>> found = probe_layers(x[:40], y[:40], x[40:], y[40:])
        >>> [row.name for row in found]
        ['layer 0 (embeddings)', 'layer 1', 'layer 2', 'sum of last 2', 'last 2 concatenated']
        >>> found[2].accuracy
        1.0
    """
    layers = train.shape[1]
    last = min(4, layers - 1)
    names = ["layer 0 (embeddings)", *(f"layer {i}" for i in range(1, layers))]
    kinds: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        name: functools.partial(np.take, indices=i, axis=1) for i, name in enumerate(names)
    }
    kinds[f"sum of last {last}"] = lambda x: x[:, -last:].sum(1)
    kinds[f"last {last} concatenated"] = lambda x: x[:, -last:].reshape(len(x), -1)
    return [
        ProbeResult(name, probe(of(train), labels, of(valid), answers))
        for name, of in kinds.items()
    ]
