"""Learning-rate schedules as functions of the number of updates."""

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.errors import ConfigError, plural

__all__ = [
    "ScheduleConfig",
    "check_schedule",
    "check_warm_up",
    "constant",
    "cosine",
    "inverse_sqrt",
    "linear",
    "make_schedule",
    "noam",
    "warm_up_steps",
]


Kind = Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"]
Step = Int[Array, ""] | int
Rate = Float[Array, ""]

_TO_THE_END = ("cosine", "linear")  # decay over the whole run


@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate changes; all schedules rise in a straight line first."""

    kind: Kind = "noam"
    # Updates until the peak; below 1 a part of the run; None: a tenth of the run, at most 1000.
    warmup_steps: int | float | None = 4000
    final_fraction: float = 0.0  # cosine and linear: the rate at the end, as a part of the peak


def noam(step: Step, width: int, warm_up: int) -> Rate:
    """The rate of Vaswani et al. 2017: ``width^-½ · min(step^-½, step · warm_up^-1½)``.

    Args:
        step: The number of the update, from 1.
        width: Of the model.
        warm_up: Updates until the peak, ``(width · warm_up)^-½``.

    Example:
        >>> print(f"{noam(1, 512, 4000):.6e} {noam(4000, 512, 4000):.5e}")
        1.746928e-07 6.98771e-04
    """
    return inverse_sqrt(step, (width * warm_up) ** -0.5, warm_up)


def inverse_sqrt(step: Step, peak: float, warm_up: int) -> Rate:
    """``peak · min(step / warm_up, √(warm_up / step))``.

    Example:
        >>> [float(inverse_sqrt(step, 1.0, 4)) for step in (1, 2, 4, 16)]
        [0.25, 0.5, 1.0, 0.5]
    """
    n = jnp.asarray(step, jnp.float32)
    return peak * jnp.minimum(n / warm_up, jnp.sqrt(warm_up / n))


def cosine(step: Step, peak: float, warm_up: int, total: int, final: float = 0.0) -> Rate:
    """Up to ``peak`` in a line, then down half a cosine to ``final · peak`` at ``total``.

    Example:
        >>> [round(float(cosine(step, 1.0, 2, 10)), 3) for step in (1, 2, 6, 10, 11)]
        [0.5, 1.0, 0.5, 0.0, 0.0]
    """
    n = jnp.asarray(step, jnp.float32)
    done = jnp.clip((n - warm_up) / max(total - warm_up, 1), 0.0, 1.0)
    fall = final + (1.0 - final) * 0.5 * (1.0 + jnp.cos(jnp.pi * done))
    return peak * jnp.where(n < warm_up, n / max(warm_up, 1), fall)


def linear(step: Step, peak: float, warm_up: int, total: int, final: float = 0.0) -> Rate:
    """Up to ``peak`` in a line, then down in a line to ``final · peak`` at ``total``.

    Source: the schedule of BERT's pre-training and fine-tuning (Devlin et al. 2019, appendix A).

    Example:
        >>> [round(float(linear(step, 1.0, 2, 10)), 3) for step in (1, 2, 6, 10, 11)]
        [0.5, 1.0, 0.5, 0.0, 0.0]
    """
    n = jnp.asarray(step, jnp.float32)
    left = jnp.clip((total - n) / max(total - warm_up, 1), 0.0, 1.0)
    return peak * jnp.where(n < warm_up, n / max(warm_up, 1), final + (1.0 - final) * left)


def constant(step: Step, peak: float, warm_up: int) -> Rate:
    """Up to ``peak`` in a line, and there it stays.

    Example:
        >>> [float(constant(step, 1.0, 4)) for step in (1, 4, 400)]
        [0.25, 1.0, 1.0]
    """
    n = jnp.asarray(step, jnp.float32)
    return peak * jnp.minimum(n / max(warm_up, 1), 1.0)


def check_schedule(schedule: ScheduleConfig, peak: float | None) -> None:
    """Refuses a schedule that does not fit its peak, or has a value outside its range.

    Args:
        schedule: How the learning rate changes.
        peak: The highest rate; None is that of ``noam``.

    Raises:
        ConfigError: It names the setting, its value and what is allowed.
    """
    if schedule.kind not in (kinds := get_args(Kind)):
        raise ConfigError(
            f"optimizer.schedule.kind is {schedule.kind}: allowed are {', '.join(kinds)}"
        )
    if peak is None and schedule.kind != "noam":
        raise ConfigError(f"the {schedule.kind} schedule needs optimizer.learning_rate, its peak")
    if peak is not None and not (math.isfinite(peak) and peak >= 0.0):
        raise ConfigError(f"optimizer.learning_rate is {peak}: a number of 0 or more is allowed")
    warm_up, some = schedule.warmup_steps, schedule.kind in ("noam", "inverse_sqrt")
    warm_up = 1 if warm_up is None else warm_up
    if not warm_up >= 0 or (warm_up == 0 and some) or (warm_up > 1 and warm_up % 1 != 0):
        raise ConfigError(
            f"optimizer.schedule.warmup_steps is {warm_up}: a number of updates (noam and "
            f"inverse_sqrt need at least 1, others 0), or the part of the run that it takes, "
            f"below 1"
        )
    if schedule.final_fraction and schedule.kind not in _TO_THE_END:
        raise ConfigError(
            f"optimizer.schedule.final_fraction is for cosine and linear, not {schedule.kind}"
        )
    if not 0.0 <= schedule.final_fraction <= 1.0:
        raise ConfigError(
            f"optimizer.schedule.final_fraction is {schedule.final_fraction}: allowed are 0 to 1"
        )


def warm_up_steps(schedule: ScheduleConfig, total_steps: int) -> int:
    """Updates until the peak, of a run of ``total_steps``.

    Example:
        >>> [warm_up_steps(ScheduleConfig(warmup_steps=n), 500) for n in (100, 0.1, None)]
        [100, 50, 50]
    """
    warm_up = schedule.warmup_steps
    if warm_up is None:
        return max(1, min(1000, total_steps // 10))
    return max(1, round(warm_up * total_steps)) if 0 < warm_up < 1 else int(warm_up)


def check_warm_up(schedule: ScheduleConfig, total_steps: int) -> None:
    """Refuses a warm-up that is longer than the run of ``total_steps``.

    Where the rate falls to the end of the run, something of it must be left for that, but for a run
    of one step.

    Raises:
        ConfigError: It names both numbers.
    """
    given, warm_up = schedule.warmup_steps, warm_up_steps(schedule, total_steps)
    falls = schedule.kind in _TO_THE_END and total_steps > 1
    if warm_up > total_steps - falls:
        part = "" if given is None or given == warm_up else f" ({given:g} of the run)"
        raise ConfigError(
            f"optimizer.schedule.warmup_steps is {warm_up}{part}, but the run has "
            f"{plural(total_steps, 'step')}: "
            f"warm up in fewer (None is a tenth of the run), or train longer"
        )


def make_schedule(
    schedule: ScheduleConfig, peak: float | None, width: int, total_steps: int
) -> Callable[[Step], Rate]:
    """The learning rate as a function of how many updates were made before, from 0.

    Args:
        schedule: How the rate changes.
        peak: The highest rate; None is that of ``noam``.
        width: Of the model.
        total_steps: Of the run, at which cosine and linear schedules end.

    Raises:
        ConfigError: A rate that falls to the end of the run, and a warm-up as long as that.

    Example:
        >>> rate = make_schedule(ScheduleConfig(), None, width=512, total_steps=100_000)
        >>> print(f"{rate(0):.6e}")
        1.746928e-07
    """
    kind, warm_up = schedule.kind, warm_up_steps(schedule, total_steps)
    if peak is None:
        return lambda count: noam(count + 1, width, warm_up)
    if kind in _TO_THE_END:
        check_warm_up(schedule, total_steps)
        fall, final = cosine if kind == "cosine" else linear, schedule.final_fraction
        return lambda count: fall(count + 1, peak, warm_up, total_steps, final)
    shape = constant if kind == "constant" else inverse_sqrt
    return lambda count: shape(count + 1, peak, warm_up)
