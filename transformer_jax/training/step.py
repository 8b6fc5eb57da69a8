"""The optimizer step: a pure function ``(state, frozen, batch, key) -> (state, metrics)``."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import stages
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PyTree

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import Count, Rate
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.models.partition import Merge
from transformer_jax.parallel.sharding import batch_sharding, num_batch_shards, replicated
from transformer_jax.training.micro_batches import (
    Batch,
    Compared,
    Differentiated,
    Objective,
    OfBatch,
    StepKey,
    Sums,
    accumulated,
    cached,
    checked,
    summed,
)
from transformer_jax.training.optimizers import learning_rate
from transformer_jax.training.state import TrainState
from transformer_jax.training.updates import (
    check_average,
    evaluated_parameters,
    further_arguments,
    moving_average,
    optimizer_update,
)

__all__ = [
    "Batch", "MakeStep", "Objective", "Program", "Step", "Sums", "add_sums", "compile_eval",
    "compile_step", "make_eval_step", "make_step", "means",
]  # fmt: skip

Number = Array | float

# (state, frozen, batch, key) -> the new state, and metrics
Program = OfBatch[tuple[TrainState, dict[str, Array]]]


@runtime_checkable
class Step(Protocol):
    """A step, not compiled."""

    def __call__(
        self,
        state: TrainState,
        frozen: PyTree,
        batch: Batch,
        key: StepKey = None,
        *,
        axis_name: str | None = None,
        shardings: PyTree | None = None,
    ) -> tuple[TrainState, dict[str, Array]]:
        """Returns the new state and the metrics; sums are added over the devices of an axis."""


@runtime_checkable
class MakeStep(Protocol):
    """:func:`make_step`, or a replacement."""

    def __call__(
        self,
        objective: Objective,
        tx: optax.GradientTransformation,
        merge: Merge,
        *,
        accumulation: int = 1,
        ema_decay: float | None = None,
    ) -> Step:
        """Returns a step."""


AXIS = "devices"  # the axis that pmap reduces over


@checked_arguments
def make_step(
    objective: Objective,
    tx: optax.GradientTransformation,
    merge: Merge,
    *,
    accumulation: Count = 1,
    ema_decay: Rate | None = None,
    skip_nonfinite: bool = True,
) -> Step:
    """Returns an optimizer step, not compiled: ``(state, frozen, batch, key) -> (state, metrics)``.

    The loss and its gradient are ``Σ loss / Σ weight``, with sums over all micro-batches and
    devices and a single division, so neither depends on how a batch is split. The same holds for
    every other sum of the objective, each with its own weight.

    A step with a non-finite loss or gradient norm changes only the step counter: parameters,
    optimizer state and moving average are unchanged, bit for bit.

    ``key`` is folded with the step (and the micro-batch); None means no dropout. Metrics are
    scalars: the objective's sums divided by their weights, including ``loss``; ``weight``, the
    weight of the loss; ``grad_norm`` (before clipping); ``skipped`` (0 or 1); and ``learning_rate``
    if ``tx`` comes from ``make_optimizer``.

    Args:
        objective: ``(model, batch, key) -> {"loss": (sum, weight), name: (sum, weight), ...}``. The
            attribute ``whole_batch = True`` marks an objective that compares the rows of a batch.
        tx: The optimizer, including clipping; it updates only ``state.params``. It may need
            :func:`.further_arguments`.
        merge: ``(trainable, frozen, key) -> model``, such as ``merging(graph)``. Gradients are with
            respect to the first argument.
        accumulation: Number of micro-batches per batch, computed in sequence; rows of
            :class:`.Compared` objectives are compared all at once.
        ema_decay: Decay of the moving average of parameters in ``state.ema_params``.
        skip_nonfinite: Whether to skip non-finite updates.

    Raises:
        ArgumentError: An argument of another type, or out of range.
        ConfigError: ``accumulation`` is above 1 with another objective of whole batches; or, when
            traced, the rows cannot be divided into micro-batches, the objective has no loss, or
            pmap is used with an objective of whole batches.
    """
    _check_accumulation(objective, accumulation)

    def step(
        state: TrainState,
        frozen: PyTree,
        batch: Batch,
        key: StepKey = None,
        *,
        axis_name: str | None = None,
        shardings: PyTree | None = None,
    ) -> tuple[TrainState, dict[str, Array]]:
        _check_mode(objective, axis_name)
        check_average(state, ema_decay)
        if key is not None:
            key = jax.random.fold_in(key, state.step)
            if axis_name is not None:
                key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        add = lambda sums: sums if axis_name is None else jax.lax.psum(sums, axis_name)
        differentiate = _differentiated(objective, merge, accumulation, shardings)
        sums, grads = add(differentiate(state.params, frozen, batch, key))
        metrics = means(sums)
        weight = sums["loss"][1]
        inv_weight = _inverse(weight)
        one_device = shardings is None and axis_name is None
        loss, norm = metrics["loss"], _norm(grads, one_device) * inv_weight

        ok = jnp.isfinite(loss) & jnp.isfinite(norm) if skip_nonfinite else None
        # Line searches and sam alone call these two; for other optimizers they are never computed.
        sums_at = summed(objective, merge, accumulation)
        further = further_arguments(
            lambda params: means(add(sums_at(params, frozen, batch, key)))["loss"],
            lambda params: _scaled(add(differentiate(params, frozen, batch, key)[1]), inv_weight),
        )
        update = functools.partial(_updated, tx, ema_decay, further)
        new = _where(ok, update, one_device, state, grads, inv_weight, norm, loss)
        rate = learning_rate(new.opt_state)
        metrics |= {"weight": weight, "grad_norm": norm}
        metrics["skipped"] = jnp.int32(0) if ok is None else 1 - ok.astype(jnp.int32)
        if rate is not None:
            metrics["learning_rate"] = rate
        return new, metrics

    return step


def _check_accumulation(objective: Objective, accumulation: int) -> None:
    """Refuses micro-batches for objectives that compare all rows."""
    compared = isinstance(objective, Compared)
    if accumulation > 1 and getattr(objective, "whole_batch", False) and not compared:
        raise ConfigError(
            f"accumulation is {accumulation}, but the objective compares all rows of a batch with "
            f"each other: set it to 1"
        )


def _check_mode(objective: Objective, axis_name: str | None) -> None:
    """Refuses pmap for objectives of whole batches."""
    if axis_name is not None and getattr(objective, "whole_batch", False):
        raise ConfigError(
            "the objective compares all rows of a batch with each other, and pmap gives each "
            "device some of them: use jit"
        )


def means(sums: Mapping[str, tuple[Number, Number]]) -> dict[str, Array]:
    """Divides each sum by its weight; with weight 0, the sum is unchanged.

    Example:
        >>> means({"loss": (jnp.float32(6), jnp.float32(4)), "accuracy": (1.0, 2.0)})["accuracy"]
        Array(0.5, dtype=float32, weak_type=True)
    """
    return {name: total * _inverse(weight) for name, (total, weight) in sums.items()}


def add_sums(
    parts: Iterable[Mapping[str, tuple[Number, Number]]],
) -> dict[str, tuple[float, float]]:
    """Adds the sums and weights of several batches, in double precision.

    Example:
        >>> add_sums([{"loss": (1.0, 2.0)}, {"loss": (3.0, 4.0)}])
        {'loss': (4.0, 6.0)}
    """
    found: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (total, weight) in part.items():
            before = found.get(name, (0.0, 0.0))
            found[name] = (before[0] + float(total), before[1] + float(weight))
    return found


def _inverse(weight: Number) -> Array:
    return 1.0 / jnp.where(weight > 0, weight, 1.0)


def _updated(
    tx: optax.GradientTransformation,
    ema_decay: float | None,
    further: Mapping[str, PyTree],
    state: TrainState,
    grads: PyTree,
    inv_weight: Float[Array, ""],
    norm: Float[Array, ""],
    loss: Float[Array, ""],
) -> TrainState:
    """Returns the state after an update by ``inv_weight`` times ``grads``, of norm ``norm``."""
    grads = _scaled(grads, inv_weight)
    further = {"value": loss, "grad": grads, "norm": norm, **further}
    updates, opt_state = optimizer_update(tx, grads, state.opt_state, state.params, further)
    params = optax.apply_updates(state.params, updates)
    ema = None
    if ema_decay is not None:
        ema = moving_average(state.ema_params, params, state.step, ema_decay)
    elif state.ema_params is not None:
        ema = evaluated_parameters(opt_state, params)
    return TrainState(state.step + 1, params, opt_state, ema)


def _norm(grads: PyTree, one_device: bool) -> Float[Array, ""]:
    """Returns the norm over all gradients."""
    if not one_device:
        return optax.tree.norm(grads)
    return jax.lax.platform_dependent(grads, cuda=_norm_by_shape, default=optax.tree.norm)


def _norm_by_shape(grads: PyTree) -> Float[Array, ""]:
    # XLA:GPU makes one kernel of the sum over stacked tensors, but two for each tensor alone.
    groups: dict[tuple[tuple[int, ...], np.dtype], list[Array]] = {}
    for leaf in jax.tree.leaves(grads):
        groups.setdefault((leaf.shape, leaf.dtype), []).append(leaf)
    squares = (jnp.square(jnp.stack(group)).sum() for group in groups.values())
    return jnp.sqrt(sum(squares, jnp.float32(0)))


def _scaled(grads: PyTree, factor: Float[Array, ""]) -> PyTree:
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)


def _where(
    ok: Bool[Array, ""] | None,
    update: Callable[[TrainState, PyTree, Array, Array, Array], TrainState],
    one_device: bool,
    state: TrainState,
    *how: PyTree,
) -> TrainState:
    """Returns the updated state if ``ok``, else the same state with the step incremented."""
    if ok is None:
        return update(state, *how)

    def select(ok: Array, state: TrainState, *how: PyTree) -> TrainState:
        # Select instead of multiplying: 0 * NaN is NaN.
        kept = jax.tree.map(lambda a, b: jnp.where(ok, a, b), update(state, *how), state)
        return kept._replace(step=state.step + 1)

    def branch(ok: Array, state: TrainState, *how: PyTree) -> TrainState:
        skip = lambda state, *_: state._replace(step=state.step + 1)
        return jax.lax.cond(ok, update, skip, state, *how)

    if not one_device:
        return select(ok, state, *how)
    # With a select per element, XLA:CPU would copy the moments before updating them.
    return jax.lax.platform_dependent(ok, state, *how, cpu=branch, default=select)


def _differentiated(
    objective: Objective, merge: Merge, accumulation: int, shardings: PyTree | None
) -> Differentiated:
    """Returns the sums of an objective over a batch, in parts, and gradients of the loss."""
    if isinstance(objective, Compared) and accumulation > 1:
        return _placed(cached(objective, merge, accumulation), shardings)

    def loss(params: PyTree, frozen: PyTree, batch: Batch, key: StepKey) -> tuple[Array, Sums]:
        sums = checked(objective(merge(params, frozen, key), batch, key))
        return sums["loss"][0], sums

    def differentiated(
        params: PyTree, frozen: PyTree, batch: Batch, key: StepKey
    ) -> tuple[Sums, PyTree]:
        (_, sums), grads = jax.value_and_grad(loss, has_aux=True)(params, frozen, batch, key)
        return sums, grads

    return accumulated(_placed(differentiated, shardings), accumulation)


def _placed(differentiated: Differentiated, shardings: PyTree | None) -> Differentiated:
    """Shards the gradients like the parameters."""

    def placed(*arguments: PyTree) -> tuple[Sums, PyTree]:
        sums, grads = differentiated(*arguments)
        return sums, jax.lax.with_sharding_constraint(grads, shardings)

    return differentiated if shardings is None else placed


def compile_step(
    step: Step,
    mesh: Mesh,
    shardings: TrainState,
    mode: Literal["jit", "pmap"] = "jit",
    *,
    frozen: PyTree | None = None,
) -> Program:
    """Compiles ``step`` once per batch shape; the input state is donated.

    Args:
        step: Result of :func:`make_step`.
        mesh: Mesh of the state and the batches.
        shardings: Shardings of the state, fixed for inputs and outputs: otherwise the second call
            would have different (equivalent) shardings from the first, and compile again.
        mode: "jit" lets the compiler partition the step over the mesh. "pmap" runs the step on full
            copies of the state, each with a part of the rows, and sums by ``psum``; then dropout
            masks differ between devices.
        frozen: Shardings of the frozen parameters; None without any.

    Raises:
        ConfigError: "pmap" is used on a mesh with fsdp or tensor above 1 or in several processes;
            or, when called, the number of rows is not a multiple of the number of devices.
    """
    whole, frozen = replicated(mesh), {} if frozen is None else frozen
    if mode == "jit":
        of_params = shardings.params if mesh.size > 1 else None

        def on_all(*arguments: PyTree) -> tuple[TrainState, dict[str, Array]]:
            with on_mesh(mesh):
                return step(*arguments, shardings=of_params)

        return jax.jit(
            on_all,
            donate_argnums=0,
            in_shardings=(shardings, frozen, batch_sharding(mesh), whole),
            out_shardings=(shardings, whole),
        )
    if mode != "pmap":
        raise ConfigError(f"compile mode is {mode}: allowed are jit and pmap")
    if mesh.size != mesh.shape["data"] or jax.process_count() > 1:
        raise ConfigError(
            f"pmap copies the full state to each device of one process, but the mesh is "
            f"{dict(mesh.shape)} in {plural(jax.process_count(), 'process')}: use jit"
        )
    return _pmapped(step, mesh, shardings)


def _pmapped(step: Step, mesh: Mesh, shardings: TrainState) -> Program:
    mapped = jax.pmap(
        functools.partial(step, axis_name=AXIS),
        axis_name=AXIS,
        in_axes=(None, None, 0, None),
        out_axes=(None, None),
        devices=list(mesh.devices.flat),
    )

    def run(
        state: TrainState, frozen: PyTree, batch: Batch, key: StepKey = None
    ) -> tuple[TrainState, dict[str, Array]]:
        batch = jax.tree.map(lambda x: _by_device(x, num_batch_shards(mesh)), batch)
        state, metrics = mapped(state, frozen, batch, key)
        # The copies have pmap's own mesh; replacing it by ours moves no data.
        return jax.device_put(state, shardings), metrics

    return run


def _by_device(x: Array | np.ndarray, devices: int) -> Array | np.ndarray:
    if x.shape[0] % devices:
        raise ConfigError(
            f"a batch of {plural(x.shape[0], 'row')} does not divide by {plural(devices, 'device')}"
        )
    return x.reshape(devices, x.shape[0] // devices, *x.shape[1:])


def make_eval_step(objective: Objective, merge: Merge) -> Callable[[PyTree, PyTree, Batch], Sums]:
    """Returns ``evaluate(params, frozen, batch) -> Sums``: sums and weights without dropout.

    Add them over batches with :func:`add_sums`, then divide once.
    """

    def evaluate(params: PyTree, frozen: PyTree, batch: Batch) -> Sums:
        return checked(objective(merge(params, frozen, None), batch, None))

    return evaluate


def compile_eval(
    evaluate: Callable[[PyTree, PyTree, Batch], PyTree],
    mesh: Mesh,
    shardings: PyTree,
    *,
    frozen: PyTree | None = None,
) -> stages.Wrapped:
    """Compiles ``evaluate(params, frozen, batch)`` once per batch shape.

    Args:
        evaluate: Result of :func:`make_eval_step`, or another function of the same arguments.
        mesh: Mesh of the parameters and the batches.
        shardings: Shardings of the trainable parameters.
        frozen: Shardings of the frozen parameters; None without any.
    """
    parts = (shardings, {} if frozen is None else frozen)

    def on_all(*arguments: PyTree) -> PyTree:
        with on_mesh(mesh):
            return evaluate(*arguments)

    return jax.jit(
        on_all,
        in_shardings=(*parts, batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )
