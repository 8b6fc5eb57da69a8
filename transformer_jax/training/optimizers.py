"""Optimizers and learning-rate schedules by name."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jaxtyping import Array, Float, Int, PyTree

from transformer_jax.core.errors import ConfigError
from transformer_jax.models.layers.parameters import (
    Parameters,
    is_matrix,
    is_projection,
    layer_depths,
    map_parameters,
)
from transformer_jax.training.settings import (
    FALLING,
    OPTIMIZER_DEFAULTS,
    OptimizerConfig,
    ScheduleConfig,
    check_warmup,
    num_warmup_steps,
)

__all__ = [
    "constant",
    "cosine",
    "inverse_sqrt",
    "learning_rate",
    "linear",
    "make_optimizer",
    "make_schedule",
    "noam",
    "scale_by_layer",
    "weight_decay_mask",
]


Count = Int[Array, ""] | int


LearningRate = Float[Array, ""]


def noam(step: Count, d_model: int, warmup: int) -> LearningRate:
    """Schedule of Vaswani et al. 2017: ``d_model^-½ · min(step^-½, step · warmup^-1½)``.

    Args:
        step: Number of the update, from 1.
        d_model: Model dimension.
        warmup: Warmup updates; the peak is ``(d_model · warmup)^-½``.

    Example:
        >>> print(f"{noam(1, 512, 4000):.6e} {noam(4000, 512, 4000):.5e}")
        1.746928e-07 6.98771e-04
    """
    return inverse_sqrt(step, (d_model * warmup) ** -0.5, warmup)


def inverse_sqrt(step: Count, peak: float, warmup: int) -> LearningRate:
    """Inverse square root: ``peak · min(step / warmup, √(warmup / step))``.

    Example:
        >>> [float(inverse_sqrt(step, 1.0, 4)) for step in (1, 2, 4, 16)]
        [0.25, 0.5, 1.0, 0.5]
    """
    n = jnp.asarray(step, jnp.float32)
    return peak * jnp.minimum(n / warmup, jnp.sqrt(warmup / n))


def cosine(
    step: Count, peak: float, warmup: int, total: int, final_fraction: float = 0.0
) -> LearningRate:
    """Linear warmup to ``peak``, then half a cosine to ``final_fraction · peak`` at ``total``.

    Example:
        >>> [round(float(cosine(step, 1.0, 2, 10)), 3) for step in (1, 2, 6, 10, 11)]
        [0.5, 1.0, 0.5, 0.0, 0.0]
    """
    n = jnp.asarray(step, jnp.float32)
    done = jnp.clip((n - warmup) / max(total - warmup, 1), 0.0, 1.0)
    fall = final_fraction + (1.0 - final_fraction) * 0.5 * (1.0 + jnp.cos(jnp.pi * done))
    return peak * jnp.where(n < warmup, n / max(warmup, 1), fall)


def linear(
    step: Count, peak: float, warmup: int, total: int, final_fraction: float = 0.0
) -> LearningRate:
    """Linear warmup to ``peak``, then linear decay to ``final_fraction · peak`` at ``total``.

    Source: the schedule of BERT's pre-training and fine-tuning (Devlin et al. 2019, appendix A).

    Example:
        >>> [round(float(linear(step, 1.0, 2, 10)), 3) for step in (1, 2, 6, 10, 11)]
        [0.5, 1.0, 0.5, 0.0, 0.0]
    """
    n = jnp.asarray(step, jnp.float32)
    left = jnp.clip((total - n) / max(total - warmup, 1), 0.0, 1.0)
    return peak * jnp.where(
        n < warmup, n / max(warmup, 1), final_fraction + (1.0 - final_fraction) * left
    )


def constant(step: Count, peak: float, warmup: int) -> LearningRate:
    """Linear warmup to ``peak``, then constant.

    Example:
        >>> [float(constant(step, 1.0, 4)) for step in (1, 4, 400)]
        [0.25, 1.0, 1.0]
    """
    n = jnp.asarray(step, jnp.float32)
    return peak * jnp.minimum(n / max(warmup, 1), 1.0)


def make_schedule(
    schedule: ScheduleConfig, peak: float | None, d_model: int, total_steps: int
) -> Callable[[Count], LearningRate]:
    """Returns the learning rate as a function of the number of previous updates.

    Args:
        schedule: Learning-rate schedule.
        peak: Peak learning rate; None is the peak of ``noam``.
        d_model: Model dimension.
        total_steps: Number of updates of the run, at which cosine and linear schedules end.

    Raises:
        ConfigError: The warmup of a cosine or linear schedule is as long as the run.

    Example:
        >>> rate = make_schedule(ScheduleConfig(), None, d_model=512, total_steps=100_000)
        >>> print(f"{rate(0):.6e}")
        1.746928e-07
    """
    kind, warmup = schedule.kind, num_warmup_steps(schedule, total_steps)
    if peak is None:
        return lambda count: noam(count + 1, d_model, warmup)
    if kind in FALLING:
        check_warmup(schedule, total_steps)
        fall, final = cosine if kind == "cosine" else linear, schedule.final_fraction
        return lambda count: fall(count + 1, peak, warmup, total_steps, final)
    shape = constant if kind == "constant" else inverse_sqrt
    return lambda count: shape(count + 1, peak, warmup)


def _clip(longest: float) -> optax.GradientTransformationExtraArgs:
    """Clips the global gradient norm to ``longest``; the caller may know the norm."""

    def update(
        updates: PyTree,
        state: optax.EmptyState,
        params: PyTree = None,
        *,
        norm: Array | None = None,
        **_: object,
    ) -> tuple[PyTree, optax.EmptyState]:
        norm = optax.tree.norm(updates) if norm is None else norm
        factor = jnp.where(norm < longest, 1.0, longest / norm)
        return jax.tree.map(lambda u: u * factor.astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def _scale_by_adam(beta1: float, beta2: float, eps: float) -> optax.GradientTransformation:
    """``optax.scale_by_adam``, with one division per element instead of three."""

    def update(
        updates: PyTree, state: optax.ScaleByAdamState, params: PyTree = None
    ) -> tuple[PyTree, optax.ScaleByAdamState]:
        count = optax.safe_increment(state.count)
        first = 1.0 / (1.0 - beta1**count)
        second = jax.lax.rsqrt(1.0 - beta2**count)
        mu = jax.tree.map(lambda g, m: (1 - beta1) * g + beta1 * m, updates, state.mu)
        nu = jax.tree.map(lambda g, v: (1 - beta2) * (g * g) + beta2 * v, updates, state.nu)

        def direction(m: Array, v: Array) -> Array:
            return m * first.astype(m.dtype) / (jnp.sqrt(v) * second.astype(v.dtype) + eps)

        return jax.tree.map(direction, mu, nu), optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(optax.scale_by_adam(beta1, beta2, eps).init, update)


def _scale_by_muon(
    beta1: float, beta2: float, eps: float, params: Parameters
) -> optax.GradientTransformation:
    """Muon for projections and Adam for all other parameters, with steps of similar size.

    Muon makes all singular values of a kernel's momentum equal (Jordan et al. 2024); with the
    factor ``0.2 √max(rows, columns)``, its elements are as large as Adam's, so that one learning
    rate suits both (Liu et al. 2025, arXiv:2502.16982).
    """
    labels = map_parameters(lambda p: "kernels" if is_projection(p) else "others", params)

    def axes(params: PyTree) -> PyTree:
        # The last two axes: in a scanned stack, layers are the first axis.
        of = lambda p: optax.contrib.MuonDimensionNumbers(p.ndim - 2, p.ndim - 1)
        return jax.tree.map(of, params)

    def lengthen(
        updates: PyTree, state: optax.EmptyState, params: PyTree = None
    ) -> tuple[PyTree, optax.EmptyState]:
        return jax.tree.map(lambda u: 0.2 * max(u.shape[-2:]) ** 0.5 * u, updates), state

    longer = optax.GradientTransformation(lambda params: optax.EmptyState(), lengthen)
    muon = optax.contrib.scale_by_muon(beta=beta1, weight_dimension_numbers=axes)
    return optax.partition(
        {"kernels": optax.chain(muon, longer), "others": _scale_by_adam(0.9, beta2, eps)}, labels
    )


class LearningRateState(NamedTuple):
    """The number of updates, and the last learning rate."""

    count: Int[Array, ""]  # type: ignore[assignment]  # stored by this name
    learning_rate: Float[Array, ""]


def _scale_by_rate(schedule: Callable[[Count], LearningRate]) -> optax.GradientTransformation:
    def init(params: PyTree) -> LearningRateState:
        return LearningRateState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32))

    def update(
        updates: PyTree, state: LearningRateState, params: PyTree = None
    ) -> tuple[PyTree, LearningRateState]:
        rate = jnp.asarray(schedule(state.count), jnp.float32)
        updates = jax.tree.map(lambda u: -rate.astype(u.dtype) * u, updates)
        return updates, LearningRateState(state.count + 1, rate)

    return optax.GradientTransformation(init, update)


def learning_rate(opt_state: PyTree) -> LearningRate | None:
    """Returns the last learning rate; None if the optimizer is not from :func:`make_optimizer`.

    Example:
        >>> from transformer_jax.training.settings import ScheduleConfig
        >>> tx = make_optimizer(OptimizerConfig("sgd", 0.1, ScheduleConfig("constant", 0)), 8, 10)
        >>> params = {"kernel": jnp.ones((2, 2))}
        >>> _, state = tx.update(params, tx.init(params), params)
        >>> print(learning_rate(state))
        0.1
    """
    is_rate = lambda node: isinstance(node, LearningRateState)
    found = [node for node in jax.tree.leaves(opt_state, is_leaf=is_rate) if is_rate(node)]
    return found[0].learning_rate if found else None


def weight_decay_mask(params: Parameters) -> PyTree:
    """Marks the parameters with weight decay: matrices, not gains and biases.

    This depends on declared axes, not on the rank: in a scanned stack, a bias has rank 2.

    Args:
        params: The parameters with their declarations, real or abstract.

    Example:
        >>> from flax import nnx
        >>> kernel = nnx.Param(jnp.zeros((2, 2)), axes=("embed", "mlp"))
        >>> weight_decay_mask({"kernel": kernel, "bias": nnx.Param(jnp.zeros(2), axes=("mlp",))})
        {'bias': False, 'kernel': True}
    """
    return map_parameters(is_matrix, params)


def make_optimizer(
    config: OptimizerConfig, width: int, total_steps: int, params: Parameters | None = None
) -> optax.GradientTransformation:
    """Chains clipping, the optimizer, decoupled weight decay and the schedule.

    Adafactor (Shazeer and Stern 2018) runs with its factored second moment and update clipping,
    without momentum and without scaling by parameter size, so learning rates are comparable with
    Adam's.

    Args:
        config: The optimizer and its settings.
        width: Model dimension, for the Noam schedule.
        total_steps: Number of updates of the run, for the schedule.
        params: The parameters with their declarations, real or abstract. Weight decay, layer-wise
            decay and Muon need them; otherwise they may be None.

    Raises:
        ConfigError: The warmup of a decaying schedule is as long as the run, or required parameters
            are missing.
    """
    if params is None and (config.weight_decay or config.layer_decay != 1 or config.name == "muon"):
        raise ConfigError(
            "weight_decay, layer_decay and muon read what parameters declare: "
            "make_optimizer(..., params=parameters(model))"
        )
    declared = params or {}
    values = OPTIMIZER_DEFAULTS[config.name] | {
        name: getattr(config, name)
        for name in OPTIMIZER_DEFAULTS[config.name]
        if getattr(config, name) is not None
    }
    parts = []
    if config.max_grad_norm is not None:
        parts.append(_clip(config.max_grad_norm))
    if config.name in ("adam", "adamw"):
        parts.append(_scale_by_adam(values["beta1"], values["beta2"], values["eps"]))
    elif config.name == "muon":
        parts.append(_scale_by_muon(values["beta1"], values["beta2"], values["eps"], declared))
    elif config.name == "lion":
        parts.append(optax.scale_by_lion(values["beta1"], values["beta2"]))
    elif config.name == "sgd":
        parts.append(optax.trace(values["beta1"]))
    else:
        parts.append(optax.scale_by_factored_rms(decay_rate=values["beta2"], epsilon=values["eps"]))
        parts.append(optax.clip_by_block_rms(1.0))
    if config.weight_decay:
        parts.append(optax.add_decayed_weights(config.weight_decay, weight_decay_mask(declared)))
    rate = make_schedule(config.schedule, config.learning_rate, width, total_steps)
    parts.append(_scale_by_rate(rate))
    if config.layer_decay != 1.0:
        parts.append(scale_by_layer(config.layer_decay, declared))
    return optax.chain(*parts)


def scale_by_layer(decay: float, params: Parameters) -> optax.GradientTransformation:
    """Multiplies updates by ``decay ** n`` for ``n`` layers above (Howard and Ruder 2018).

    Args:
        decay: The factor between a layer and the layer below.
        params: The parameters with their declared depths.
    """
    depths = layer_depths(params)
    top = max(np.max(depth) for depth in jax.tree.leaves(depths))

    def scaled(depth: np.ndarray | int, update: PyTree) -> PyTree:
        if isinstance(update, optax.MaskedNode):
            return update
        return update * jnp.asarray(decay ** (top - depth), update.dtype)

    def update(
        updates: PyTree, state: optax.EmptyState, params: PyTree = None
    ) -> tuple[PyTree, optax.EmptyState]:
        return jax.tree.map(scaled, depths, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
