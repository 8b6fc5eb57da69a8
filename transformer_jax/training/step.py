"""The optimizer step as a pure function ``(state, batch, key) -> (state, metrics)``."""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from transformer_jax.errors import ConfigError, plural
from transformer_jax.parallel.sharding import (
    batch_sharding,
    num_batch_shards,
    path_name,
    replicated,
    unshard_fsdp,
)
from transformer_jax.training.optimizers import learning_rate
from transformer_jax.training.state import TrainState

__all__ = ["Batch", "Objective", "compile_eval", "compile_step", "make_eval_step", "make_step"]

Batch = dict[str, Any]

# (model, batch, key) -> (sum of the loss, weight it sums over, further sums by name).
Objective = Callable[..., tuple[Array, Array, dict[str, Array]]]

Step = Callable[..., tuple[TrainState, dict[str, Array]]]

AXIS = "devices"  # the axis that pmap reduces over


def make_step(
    graph: Any,
    tx: optax.GradientTransformation,
    objective: Objective,
    *,
    accumulation: int = 1,
    average_decay: float | None = None,
    skip_nonfinite: bool = True,
    frozen: Callable[[str], bool] | None = None,
) -> Step:
    """One optimizer step, not compiled: ``step(state, batch, key) -> (state, metrics)``.

    The loss and its gradient are ``Σ loss / Σ weight``, both sums over all micro-batches and all
    devices and divided once, so neither changes with how a batch is cut up.

    A step whose loss or gradient norm is not finite changes nothing but the step counter: the
    next batch is another one, the parameters, optimizer state and average are the same bits.

    ``key`` is folded with the step (and the micro-batch); None is without dropout. Metrics are
    scalars: ``loss``, ``weight``, ``grad_norm`` (before clipping), ``skipped`` (0 or 1),
    ``learning_rate`` where ``tx`` comes from ``make_optimizer``, and the objective's further sums
    divided by the weight.

    Args:
        graph: The model's static graph.
        tx: The optimizer, clipping included.
        objective: ``(model, batch, key) -> (sum, weight, sums)``.
        accumulation: Micro-batches that a batch's rows are dealt to, one after another in memory.
        average_decay: Of the running average of parameters, which ``state.average`` then holds.
        skip_nonfinite: Whether non-finite steps are left out.
        frozen: Which parameters, by path, have no gradient; ``tx`` must leave them alone too.

    Raises:
        ConfigError: ``accumulation`` below 1, a decay outside [0, 1), or, when traced, rows that
            do not divide into the micro-batches.
    """
    if accumulation < 1:
        raise ConfigError(f"accumulation is {accumulation}: it must be at least 1")
    if average_decay is not None and not 0.0 <= average_decay < 1.0:
        raise ConfigError(
            f"average_decay is {average_decay}: allowed are 0 up to, not including, 1"
        )

    def step(
        state: TrainState,
        batch: Batch,
        key: Key[Array, ""] | None = None,
        *,
        axis_name: str | None = None,
        shardings: PyTree | None = None,
    ) -> tuple[TrainState, dict[str, Array]]:
        if (average_decay is None) != (state.average is None):
            raise ConfigError(
                "average_decay and state.average go together: "
                "create the state with average=True if and only if average_decay is given"
            )
        if key is not None:
            key = jax.random.fold_in(key, state.step)
            if axis_name is not None:
                key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
        scored = _scored(graph, objective, shardings, frozen)
        sums = _gradients(scored, state.params, batch, key, accumulation)
        if axis_name is not None:
            sums = jax.lax.psum(sums, axis_name)
        total, weight, extra, grads = sums
        share = 1.0 / jnp.where(weight > 0, weight, 1.0)
        loss, norm = total * share, optax.tree.norm(grads) * share

        ok = jnp.isfinite(loss) & jnp.isfinite(norm) if skip_nonfinite else None
        alone = shardings is None and axis_name is None
        update = functools.partial(_updated, tx, average_decay)
        new = _where(ok, update, alone, state, grads, share, norm)
        rate = learning_rate(new.opt_state)
        metrics = {name: value * share for name, value in extra.items()}
        metrics |= {"loss": loss, "weight": weight, "grad_norm": norm}
        metrics["skipped"] = jnp.int32(0) if ok is None else 1 - ok.astype(jnp.int32)
        if rate is not None:
            metrics["learning_rate"] = rate
        return new, metrics

    return step


def _updated(
    tx: optax.GradientTransformation,
    average_decay: float | None,
    state: TrainState,
    grads: PyTree,
    share: Float[Array, ""],
    norm: Float[Array, ""],
) -> TrainState:
    """The state after a step along ``share`` times ``grads``, which is ``norm`` long."""
    grads = jax.tree.map(lambda g: g * share.astype(g.dtype), grads)
    tell = optax.with_extra_args_support(tx).update
    updates, opt_state = tell(grads, state.opt_state, state.params, norm=norm)
    params = optax.apply_updates(state.params, updates)
    average = None
    if average_decay is not None:
        average = _average(state.average, params, state.step, average_decay)
    return TrainState(state.step + 1, params, opt_state, average)


def _where(
    ok: Bool[Array, ""] | None,
    update: Callable[..., TrainState],
    alone: bool,
    state: TrainState,
    *how: PyTree,
) -> TrainState:
    """The updated state if ``ok``, else the same with the next step."""
    if ok is None:
        return update(state, *how)

    def select(ok, state, *how):
        # Selected, never multiplied: 0 * NaN is NaN.
        kept = jax.tree.map(lambda a, b: jnp.where(ok, a, b), update(state, *how), state)
        return kept._replace(step=state.step + 1)

    def branch(ok, state, *how):
        skip = lambda state, *_: state._replace(step=state.step + 1)
        return jax.lax.cond(ok, update, skip, state, *how)

    if not alone:
        return select(ok, state, *how)
    # Selected element by element, XLA:CPU would copy the moments before it updates them.
    return jax.lax.platform_dependent(ok, state, *how, cpu=branch, default=select)


def _scored(
    graph: Any,
    objective: Objective,
    shardings: PyTree | None,
    frozen: Callable[[str], bool] | None,
) -> Callable[..., Any]:
    """A batch's ``((loss, (weight, further sums)), gradients of the loss)``, all of them sums."""

    def sums(params: PyTree, batch: Batch, key: Key[Array, ""] | None):
        if shardings is not None:
            # Without this the compiler is free to spread activations as the parameters are, and
            # moves them back and forth.
            params = jax.lax.with_sharding_constraint(params, unshard_fsdp(shardings))
        if frozen is not None:
            params = jax.tree_util.tree_map_with_path(
                lambda path, p: jax.lax.stop_gradient(p) if frozen(path_name(path)) else p, params
            )
        total, weight, extra = objective(nnx.merge(graph, params), batch, key)
        return total, (weight, extra)

    def scored(params: PyTree, batch: Batch, key: Key[Array, ""] | None):
        out, grads = jax.value_and_grad(sums, has_aux=True)(params, batch, key)
        if shardings is not None:
            grads = jax.lax.with_sharding_constraint(grads, shardings)
        return out, grads

    return scored


def _gradients(
    scored: Callable[..., Any],
    params: PyTree,
    batch: Batch,
    key: Key[Array, ""] | None,
    accumulation: int,
) -> tuple[Array, Array, dict[str, Array], PyTree]:
    """Sums over the batch: ``(loss, weight, further sums, gradients of the loss)``."""

    def part(batch: Batch, key: Key[Array, ""] | None):
        (total, (weight, extra)), grads = scored(params, batch, key)
        return total, weight, extra, grads

    if accumulation == 1:
        return part(batch, key)

    def body(carry, numbered):
        index, rows = numbered
        there = None if key is None else jax.random.fold_in(key, index)
        return jax.tree.map(jnp.add, carry, part(rows, there)), None

    parts = jax.tree.map(lambda x: _deal(x, accumulation), batch)
    shapes = jax.eval_shape(part, jax.tree.map(lambda x: x[0], parts), key)
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(body, zeros, (jnp.arange(accumulation), parts))[0]


def _deal(x: Any, parts: int) -> Any:
    # Row r goes to part r % parts, so that every part has rows of every device and none moves.
    if x.shape[0] % parts:
        raise ConfigError(
            f"a batch of {plural(x.shape[0], 'row')} does not divide into {parts} micro-batches: "
            f"choose an accumulation that divides the rows"
        )
    return x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)


def _average(average: PyTree, params: PyTree, step: Int[Array, ""], decay: float) -> PyTree:
    # Starts at the first parameters and forgets them fast: after n steps the decay is at most
    # (1 + n) / (10 + n), so no correction of a bias is needed at any step.
    keep = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
    return jax.tree.map(lambda a, p: a + (1.0 - keep).astype(p.dtype) * (p - a), average, params)


def compile_step(
    step: Step, mesh: Mesh, shardings: TrainState, mode: Literal["jit", "pmap"] = "jit"
) -> Any:
    """``step`` compiled once for each batch shape; the state passed in is used up.

    Args:
        step: What :func:`make_step` made.
        mesh: Where the state and the batches live.
        shardings: Of the state, pinned on the way in and out: left open, the second call would
            find other (equal) shardings than the first and compile again.
        mode: "jit" lets the compiler spread the step over the mesh. "pmap" runs the same step on
            whole copies of the state, each with its part of the rows, and adds up by ``psum``;
            dropout then draws other masks on each device.

    Raises:
        ConfigError: "pmap" on a mesh with fsdp or tensor above 1, or in several processes; or,
            when called, with rows that the devices do not divide.
    """
    whole = replicated(mesh)
    if mode == "jit":
        return jax.jit(
            functools.partial(step, shardings=shardings.params if mesh.size > 1 else None),
            donate_argnums=0,
            in_shardings=(shardings, batch_sharding(mesh), whole),
            out_shardings=(shardings, whole),
        )
    if mode != "pmap":
        raise ConfigError(f"compile mode is {mode}: allowed are jit and pmap")
    if mesh.size != mesh.shape["data"] or jax.process_count() > 1:
        raise ConfigError(
            f"pmap copies the whole state to each device of one process, but the mesh is "
            f"{dict(mesh.shape)} in {plural(jax.process_count(), 'process')}: use jit"
        )
    return _pmapped(step, mesh, shardings)


def _pmapped(step: Step, mesh: Mesh, shardings: TrainState) -> Any:
    mapped = jax.pmap(
        functools.partial(step, axis_name=AXIS),
        axis_name=AXIS,
        in_axes=(None, 0, None),
        out_axes=(None, None),
        devices=list(mesh.devices.flat),
    )

    def run(state: TrainState, batch: Batch, key: Key[Array, ""] | None = None):
        batch = jax.tree.map(lambda x: _by_device(x, num_batch_shards(mesh)), batch)
        state, metrics = mapped(state, batch, key)
        # The copies carry pmap's own mesh; naming ours instead moves nothing.
        return jax.device_put(state, shardings), metrics

    return run


def _by_device(x: Any, devices: int) -> Any:
    if x.shape[0] % devices:
        raise ConfigError(
            f"a batch of {plural(x.shape[0], 'row')} does not divide by {plural(devices, 'device')}"
        )
    return x.reshape(devices, x.shape[0] // devices, *x.shape[1:])


def make_eval_step(graph: Any, objective: Objective) -> Callable[..., dict[str, Array]]:
    """Sums over a batch, without dropout: ``evaluate(params, batch) -> sums``.

    ``sums`` holds ``loss``, ``weight`` and the objective's further sums; add them over batches
    and divide once.
    """

    def evaluate(
        params: PyTree, batch: Batch, *, shardings: PyTree | None = None
    ) -> dict[str, Float[Array, ""]]:
        if shardings is not None:
            params = jax.lax.with_sharding_constraint(params, unshard_fsdp(shardings))
        total, weight, extra = objective(nnx.merge(graph, params), batch, None)
        return extra | {"loss": total, "weight": weight}

    return evaluate


def compile_eval(evaluate: Callable[..., dict[str, Array]], mesh: Mesh, shardings: PyTree) -> Any:
    """``evaluate(params, batch)`` compiled once for each batch shape.

    Args:
        evaluate: What :func:`make_eval_step` made.
        mesh: Where the parameters and the batches live.
        shardings: Of the parameters.
    """
    return jax.jit(
        functools.partial(evaluate, shardings=shardings),
        in_shardings=(shardings, batch_sharding(mesh)),
        out_shardings=replicated(mesh),
    )
