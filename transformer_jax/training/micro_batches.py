"""Gradients of a batch computed in micro-batches."""

import dataclasses
import functools
from collections.abc import Callable
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.models.partition import Merge

__all__ = [
    "Batch", "Compared", "Differentiated", "Objective", "OfBatch", "StepKey", "Sums", "accumulated",
    "cached", "checked", "summed",
]  # fmt: skip

Sums = dict[str, tuple[Array, Array]]  # by name: a sum and its weight

# Arrays, or dictionaries of arrays, with rows as first axis.
Batch = dict[str, PyTree]
StepKey = Key[Array, ""] | None  # None means no dropout
# (model, batch, key) -> sums; training minimizes "loss".
Objective = Callable[[PyTree, Batch, StepKey], Sums]

Result = TypeVar("Result")
# (params, frozen, batch, key) -> result
OfBatch = Callable[[PyTree, PyTree, Batch, StepKey], Result]
Differentiated = OfBatch[tuple[Sums, PyTree]]  # sums, and gradients of the summed loss


@dataclasses.dataclass(frozen=True)
class Compared:
    """An objective that embeds rows separately, and compares the vectors of all rows.

    Attributes:
        embed: ``(model, batch, key) -> arrays`` with rows as first axis.
        compare: ``(model, vectors, batch) -> sums`` with weights, as of any objective.
    """

    embed: Callable[[PyTree, Batch, StepKey], PyTree]
    compare: Callable[[PyTree, PyTree, Batch], Sums]

    whole_batch: ClassVar[bool] = True

    def __call__(self, model: PyTree, batch: Batch, key: StepKey = None) -> Sums:
        """Returns sums and weights of the batch."""
        return self.compare(model, self.embed(model, batch, key), batch)


def checked(sums: object) -> Sums:
    """Checks the result of an objective.

    Raises:
        ConfigError: The result is not a dictionary of sums with weights, or has no loss.
    """
    contract = 'an objective returns a dictionary {"loss": (sum, weight), name: (sum, weight), ...}'
    if not isinstance(sums, dict) or "loss" not in sums:
        raise ConfigError(
            f"{contract}; this one returned {type(sums).__name__}"
            + (f" of {', '.join(map(str, sums))}" if isinstance(sums, dict) else "")
        )
    for name, pair in sums.items():
        shapes = [jnp.shape(value) for value in pair] if isinstance(pair, tuple | list) else None
        if shapes != [(), ()]:
            raise ConfigError(
                f"{contract}; {name} is {_described(pair, shapes)} here: return two scalars, "
                f"the sum over the batch and the weight that divides it"
            )
    return sums


def _described(pair: PyTree, shapes: list[tuple[int, ...]] | None) -> str:
    if shapes is None:
        return f"one array of shape {list(jnp.shape(pair))}"
    ends = "" if len(shapes) == 1 else "s"
    said = ", ".join(str(list(shape)) for shape in shapes)
    return f"{plural(len(shapes), 'array')} of shape{ends} {said}"


def accumulated(differentiated: OfBatch[Result], parts: int) -> OfBatch[Result]:
    """Returns the same function, computed in micro-batches and summed.

    Args:
        differentiated: Sums of a batch, with or without gradients.
        parts: Number of micro-batches, a divisor of the rows.
    """
    if parts == 1:
        return differentiated

    def in_parts(params: PyTree, frozen: PyTree, batch: Batch, key: StepKey) -> Result:
        part = functools.partial(differentiated, params, frozen)

        def body(carry: Result, numbered: tuple[Array, Batch]) -> tuple[Result, None]:
            index, rows = numbered
            there = None if key is None else jax.random.fold_in(key, index)
            return jax.tree.map(jnp.add, carry, part(rows, there)), None

        dealt = jax.tree.map(lambda x: _deal(x, parts), batch)
        shapes = jax.eval_shape(part, jax.tree.map(lambda x: x[0], dealt), key)
        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        return jax.lax.scan(body, zeros, (jnp.arange(parts), dealt))[0]

    return in_parts


def summed(objective: Objective, merge: Merge, parts: int) -> OfBatch[Sums]:
    """Returns ``(params, frozen, batch, key) -> sums``, computed in micro-batches.

    Args:
        objective: The objective.
        merge: ``(trainable, frozen, key) -> model``.
        parts: Number of micro-batches, a divisor of the rows.
    """
    if not isinstance(objective, Compared) or parts == 1:
        plain: OfBatch[Sums] = lambda params, frozen, batch, key: checked(
            objective(merge(params, frozen, key), batch, key)
        )
        return accumulated(plain, parts)

    def compared(params: PyTree, frozen: PyTree, batch: Batch, key: StepKey) -> Sums:
        @jax.checkpoint
        def embed(numbered: tuple[Array, Batch]) -> PyTree:
            index, rows = numbered
            there = None if key is None else jax.random.fold_in(key, index)
            return objective.embed(merge(params, frozen, there), rows, there)

        dealt = jnp.arange(parts), jax.tree.map(lambda x: _deal(x, parts), batch)
        together = jax.tree.map(_gather, jax.lax.map(embed, dealt))
        return checked(objective.compare(merge(params, frozen, key), together, batch))

    return compared


def cached(objective: Compared, merge: Merge, parts: int) -> Differentiated:
    """Returns sums and gradients for rows that are embedded in parts and compared all at once.

    First the vectors of all rows are computed, then the gradients of the loss with respect to them,
    and then the gradients of the parameters, part by part: the result equals that of the full
    batch, with the activations of one part in memory. Dropout masks are the same in both
    passes.

    Source: Gao et al. 2021, https://arxiv.org/abs/2101.06983, section 3.2.

    Args:
        objective: The objective.
        merge: ``(trainable, frozen, key) -> model``.
        parts: Number of micro-batches, a divisor of the rows.
    """

    def differentiated(
        params: PyTree, frozen: PyTree, batch: Batch, key: StepKey
    ) -> tuple[Sums, PyTree]:
        dealt = jnp.arange(parts), jax.tree.map(lambda x: _deal(x, parts), batch)

        def embed(params: PyTree, numbered: tuple[Array, Batch]) -> PyTree:
            index, rows = numbered
            there = None if key is None else jax.random.fold_in(key, index)
            return objective.embed(merge(params, frozen, there), rows, there)

        def loss(params: PyTree, vectors: PyTree) -> tuple[Array, Sums]:
            together = jax.tree.map(_gather, vectors)
            sums = checked(objective.compare(merge(params, frozen, key), together, batch))
            return sums["loss"][0], sums

        def body(carry: PyTree, part: tuple[tuple[Array, Batch], PyTree]) -> tuple[PyTree, None]:
            numbered, by_vectors = part
            _, back = jax.vjp(lambda params: embed(params, numbered), params)
            return jax.tree.map(jnp.add, carry, back(by_vectors)[0]), None

        vectors = jax.lax.map(functools.partial(embed, params), dealt)
        both = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        (_, sums), (grads, by_vectors) = both(params, vectors)
        return sums, jax.lax.scan(body, grads, (dealt, by_vectors))[0]

    return differentiated


def _deal(x: Array | np.ndarray, parts: int) -> Array | np.ndarray:
    # Row r goes to part r % parts, so that every part has rows of every device and none moves.
    if x.shape[0] % parts:
        raise ConfigError(
            f"a batch of {plural(x.shape[0], 'row')} cannot be divided into {parts} micro-batches: "
            f"choose an accumulation that divides the rows"
        )
    return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)


def _gather(x: Array) -> Array:
    """Restores the original order of rows."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])
