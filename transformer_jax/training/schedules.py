"""Learning-rate schedules: functions from the number of the update to the learning rate."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.training.settings import (
    FALLING,
    ScheduleConfig,
    check_warmup,
    num_warmup_steps,
)

__all__ = [
    "constant",
    "cosine",
    "inverse_sqrt",
    "linear",
    "make_schedule",
    "noam",
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
    """The learning rate as a function of the number of previous updates, from 0.

    Args:
        schedule: Learning-rate schedule.
        peak: Highest learning rate; None is that of ``noam``.
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
