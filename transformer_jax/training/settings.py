"""Settings of training: the loop, optimizers and schedules. Does not need JAX."""

import dataclasses
import math
from typing import Annotated, Literal

from transformer_jax.core.arguments import checked_arguments
from transformer_jax.core.config_fields import (
    Amount,
    Configuration,
    Count,
    NotNegative,
    Positive,
    Range,
    Rate,
    Share,
)
from transformer_jax.core.errors import ConfigError, plural

__all__ = [
    "FALLING",
    "OPTIMIZER_DEFAULTS",
    "LoopConfig",
    "OnPolicy",
    "OptimizerConfig",
    "ScheduleConfig",
    "adamw",
    "check_warmup",
    "num_warmup_steps",
    "profile_window",
]

# The settings of each optimizer, with defaults.
OPTIMIZER_DEFAULTS: dict[str, dict[str, float]] = {
    "adam": {"beta1": 0.9, "beta2": 0.98, "eps": 1e-9},
    "adamw": {"beta1": 0.9, "beta2": 0.98, "eps": 1e-9},
    "adafactor": {"beta2": 0.8, "eps": 1e-30},
    "lion": {"beta1": 0.9, "beta2": 0.99},
    "muon": {"beta1": 0.95, "beta2": 0.99, "eps": 1e-9},
    "sgd": {"beta1": 0.9},
}
FALLING = ("cosine", "linear")  # schedules that decay until the end of the run


@dataclasses.dataclass(frozen=True)
class LoopConfig(Configuration, group="loop"):
    """Intervals of evaluations and checkpoints, and early stopping."""

    # Steps between evaluations; 0 is only at the end, None is ten times per run, at most every 1000
    # steps.
    evaluate_every: Amount | None = 1000
    # Steps between checkpoints; 0 is only at the end, None is as often as evaluations.
    checkpoint_every: Amount | None = 1000
    keep_last: Count = 3  # number of newest checkpoints to keep, besides the best
    # Metric that selects the best checkpoint; None is the first metric of the task.
    best_checkpoint_metric: str | None = None
    patience: Count | None = None  # evaluations without improvement before stopping; None is never
    max_nonfinite_steps: Count = 20  # consecutive non-finite steps before an error
    tensorboard: bool = False  # also write TensorBoard files
    profile: str | None = None  # first and last step of a device profile, such as 10:15
    # Seconds after which the stacks of all threads are written if a step has not finished; 0 is
    # never.
    hang_seconds: Amount = 600

    def __post_init__(self) -> None:
        super().__post_init__()
        profile_window(self.profile)

    def for_steps(self, steps: int) -> "LoopConfig":
        """Returns the configuration with intervals that are None set by the number of steps.

        Example:
            >>> LoopConfig(evaluate_every=None, checkpoint_every=None).for_steps(650).evaluate_every
            65
        """
        every = self.evaluate_every
        if every is None:
            every = max(1, min(1000, steps // 10))
        saves = self.checkpoint_every
        return dataclasses.replace(
            self, evaluate_every=every, checkpoint_every=every if saves is None else saves
        )


def profile_window(setting: str | None) -> range:
    """Parses ``first:last`` to a range of steps; empty for None.

    Raises:
        ConfigError: The value is not two step numbers, from 1, in increasing order.

    Example:
        >>> profile_window("10:12"), profile_window(None)
        (range(10, 13), range(0, 0))
    """
    if setting is None:
        return range(0)
    first, colon, last = setting.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last)):
        raise ConfigError(
            f"loop.profile is {setting!r}: give the first and the last step, such as 10:15"
        )
    return range(int(first), int(last) + 1)


@dataclasses.dataclass(frozen=True)
class ScheduleConfig(Configuration, group="optimizer.schedule"):
    """Learning-rate schedule; all kinds start with a linear warmup."""

    # the schedule after warmup
    kind: Literal["noam", "inverse_sqrt", "cosine", "linear", "constant"] = "noam"
    # Number of warmup updates, or a fraction of the run if below 1; None is a tenth of the run, at
    # most 1000 updates.
    warmup_steps: Amount | NotNegative | None = 4000
    final_fraction: Share = 0.0  # cosine and linear: final learning rate divided by the peak


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Configuration, group="optimizer"):
    """The optimizer; defaults as in Vaswani et al. 2017, with clipping."""

    # adamw, lion and muon decouple weight_decay from the gradient.
    name: Literal["adam", "adamw", "adafactor", "lion", "muon", "sgd"] = "adam"
    # Peak learning rate; None (noam only) is (d_model * warmup) ** -0.5.
    learning_rate: NotNegative | None = None
    schedule: ScheduleConfig = ScheduleConfig()
    beta1: Rate | None = None  # momentum; None: adam(w), lion, sgd 0.9, muon 0.95
    beta2: Rate | None = None  # None: adam(w) 0.98, lion, muon 0.99, adafactor 0.8 (an exponent)
    eps: Rate | None = None  # None: adam(w), muon 1e-9, adafactor 1e-30
    # Decoupled weight decay, times the learning rate, of kernels and tables but not of vectors.
    weight_decay: NotNegative = 0.0
    # Maximum global norm of the gradient; None is no limit.
    max_grad_norm: Annotated[float, Range(above=0, most=math.inf)] | None = 1.0
    # Factor of the learning rate of each layer, relative to the layer above.
    layer_decay: Annotated[float, Range(above=0, most=1)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)


def _check(config: OptimizerConfig) -> None:
    name = config.name
    for field in ("beta1", "beta2", "eps"):
        if getattr(config, field) is not None and field not in OPTIMIZER_DEFAULTS[name]:
            raise ConfigError(f"optimizer.{field} is given, but {name} has none: leave it out")
    if name == "adam" and config.weight_decay:
        raise ConfigError("optimizer.weight_decay with adam: choose adamw")
    _check_schedule(config.schedule, config.learning_rate)


def _check_schedule(schedule: ScheduleConfig, peak: float | None) -> None:
    """Checks the values of a schedule and its peak.

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
    if schedule.final_fraction and schedule.kind not in FALLING:
        raise ConfigError(
            f"optimizer.schedule.final_fraction is for cosine and linear, not {schedule.kind}"
        )


@checked_arguments
def adamw(
    learning_rate: float,
    *,
    weight_decay: float = 0.01,
    schedule: ScheduleConfig = ScheduleConfig("linear", None),
) -> OptimizerConfig:
    """Returns AdamW, by default with linear warmup and decay (Loshchilov and Hutter 2019).

    Args:
        learning_rate: Peak learning rate.
        weight_decay: Decoupled weight decay, of kernels and tables but not of vectors.
        schedule: Learning-rate schedule.

    Raises:
        ConfigError: A value is out of range.

    Example:
        >>> adamw(3e-4).schedule.kind
        'linear'
    """
    return OptimizerConfig(
        "adamw", learning_rate=learning_rate, weight_decay=weight_decay, schedule=schedule
    )


def num_warmup_steps(schedule: ScheduleConfig, total_steps: int) -> int:
    """Returns the number of warmup updates in a run of ``total_steps``.

    Example:
        >>> [num_warmup_steps(ScheduleConfig(warmup_steps=n), 500) for n in (100, 0.1, None)]
        [100, 50, 50]
    """
    warmup = schedule.warmup_steps
    if warmup is None:
        return max(1, min(1000, total_steps // 10))
    return max(1, round(warmup * total_steps)) if 0 < warmup < 1 else int(warmup)


def check_warmup(schedule: ScheduleConfig, total_steps: int) -> None:
    """Checks that the warmup fits into a run of ``total_steps``.

    Cosine and linear schedules need at least one update after it, except in a run of one step.

    Raises:
        ConfigError: The warmup is too long; the message names both numbers.
    """
    given, warmup = schedule.warmup_steps, num_warmup_steps(schedule, total_steps)
    falls = schedule.kind in FALLING and total_steps > 1
    if warmup > total_steps - falls:
        part = "" if given is None or given == warmup else f" ({given:g} of the run)"
        raise ConfigError(
            f"optimizer.schedule.warmup_steps is {warmup}{part}, but the run has "
            f"{plural(total_steps, 'step')}: lower it (None is a tenth of the run), or train longer"
        )


@dataclasses.dataclass(frozen=True)
class OnPolicy(Configuration, group="align"):
    """Settings of on-policy learning."""

    method: Literal["ppo", "grpo"] = "grpo"  # with a value head, or without
    length: Count = 32  # maximum tokens of a completion, with its end token
    group_size: Count = 4  # completions per prompt
    clip: Positive = 0.2  # maximum relative change of a token's probability per batch
    value_weight: NotNegative = 0.5  # weight of the loss of PPO's value head
    value_clip: Positive = 0.2  # maximum change of a value per batch
    discount: Share = 1.0  # discount of later rewards
    gae_decay: Share = 0.95  # lambda of generalized advantage estimation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "grpo" and self.group_size < 2:
            raise ConfigError(f"align.group_size is {self.group_size}: at least 2 with grpo")
