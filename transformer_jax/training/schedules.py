"""Learning-rate schedules: functions from the number of the update to the learning rate."""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.config_fields import Configuration, NotNegative, Share
from transformer_jax.errors import ConfigError, plural

__all__ = [
    "ScheduleConfig",
    "check_schedule",
    "check_warmup",
    "constant",
    "cosine",
    "inverse_sqrt",
    "linear",
    "make_schedule",
    "noam",
    "num_warmup_steps",
]


Kind = Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"]
Count = Int[Array, ""] | int
LearningRate = Float[Array, ""]

_TO_THE_END = ("cosine", "linear")  # decay over the whole run


@dataclasses.dataclass(frozen=True)
class ScheduleConfig(Configuration, group="optimizer.schedule"):
    """Learning-rate schedule; all kinds begin with a linear warmup."""

    kind: Kind = "noam"  # what follows warmup
    # Warmup updates; below 1 a fraction of the run; None is a tenth of the run, at most 1000.
    warmup_steps: int | NotNegative | None = 4000
    final_fraction: Share = 0.0  # cosine and linear: the last rate divided by the peak


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


def check_schedule(schedule: ScheduleConfig, peak: float | None) -> None:
    """Check that the values of a schedule and its peak go together.

    Args:
        schedule: Learning-rate schedule.
        peak: Highest learning rate; None is that of ``noam``.

    Raises:
        ConfigError: A value is out of range; the message names the setting.
    """
    if peak is None and schedule.kind != "noam":
        raise ConfigError(f"the {schedule.kind} schedule needs optimizer.learning_rate, its peak")
    if peak is not None and not (math.isfinite(peak) and peak >= 0.0):
        raise ConfigError(f"optimizer.learning_rate is {peak}: must be a number of 0 or more")
    warmup, some = schedule.warmup_steps, schedule.kind in ("noam", "inverse_sqrt")
    warmup = 1 if warmup is None else warmup
    if not warmup >= 0 or (warmup == 0 and some) or (warmup > 1 and warmup % 1 != 0):
        raise ConfigError(
            f"optimizer.schedule.warmup_steps is {warmup}: must be a number of updates (at least "
            f"1 for noam and inverse_sqrt, 0 for others), or a fraction of the run below 1"
        )
    if schedule.final_fraction and schedule.kind not in _TO_THE_END:
        raise ConfigError(
            f"optimizer.schedule.final_fraction is for cosine and linear, not {schedule.kind}"
        )


def num_warmup_steps(schedule: ScheduleConfig, total_steps: int) -> int:
    """Number of warmup updates in a run of ``total_steps``.

    Example:
        >>> [num_warmup_steps(ScheduleConfig(warmup_steps=n), 500) for n in (100, 0.1, None)]
        [100, 50, 50]
    """
    warmup = schedule.warmup_steps
    if warmup is None:
        return max(1, min(1000, total_steps // 10))
    return max(1, round(warmup * total_steps)) if 0 < warmup < 1 else int(warmup)


def check_warmup(schedule: ScheduleConfig, total_steps: int) -> None:
    """Check that the warmup fits into a run of ``total_steps``.

    Cosine and linear schedules need at least one update after it, except in a run of one step.

    Raises:
        ConfigError: The warmup is too long; the message names both numbers.
    """
    given, warmup = schedule.warmup_steps, num_warmup_steps(schedule, total_steps)
    falls = schedule.kind in _TO_THE_END and total_steps > 1
    if warmup > total_steps - falls:
        part = "" if given is None or given == warmup else f" ({given:g} of the run)"
        raise ConfigError(
            f"optimizer.schedule.warmup_steps is {warmup}{part}, but the run has "
            f"{plural(total_steps, 'step')}: "
            f"lower it (None is a tenth of the run), or train longer"
        )


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
    if kind in _TO_THE_END:
        check_warmup(schedule, total_steps)
        fall, final = cosine if kind == "cosine" else linear, schedule.final_fraction
        return lambda count: fall(count + 1, peak, warmup, total_steps, final)
    shape = constant if kind == "constant" else inverse_sqrt
    return lambda count: shape(count + 1, peak, warmup)
