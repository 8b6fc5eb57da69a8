"""Settings of the training loop."""

import dataclasses

from transformer_jax.config_fields import Amount, Configuration, Count
from transformer_jax.errors import ConfigError

__all__ = ["LoopConfig", "profile_window"]


@dataclasses.dataclass(frozen=True)
class LoopConfig(Configuration, group="loop"):
    """Intervals of evaluations and checkpoints, and early stopping."""

    # Steps between evaluations; 0 is at the end only, None ten times in a run or every 1000 steps.
    evaluate_every: Amount | None = 1000
    # Steps between checkpoints; 0 is at the end only, None as often as evaluations.
    checkpoint_every: Amount | None = 1000
    keep_last: Count = 3  # newest checkpoints that are kept, beside the best
    # The metric of the best checkpoint; None is the first of the task.
    best_checkpoint_metric: str | None = None
    patience: Count | None = None  # evaluations without a new best before stopping; None is never
    max_nonfinite_steps: Count = 20  # consecutive non-finite steps before giving up
    tensorboard: bool = False  # also write TensorBoard files
    profile: str | None = None  # first and last step of a device profile, such as 10:15
    # Seconds after which a step that has not finished has the stacks of its threads written; 0 is
    # never.
    hang_seconds: Amount = 600

    def __post_init__(self) -> None:
        super().__post_init__()
        profile_window(self.profile)

    def for_steps(self, steps: int) -> "LoopConfig":
        """The configuration with numbers for intervals that are None, by the run's number of steps.

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
    """The steps of ``first:last``; empty for None.

    Raises:
        ConfigError: It is not two step numbers, the first from 1 on and not after the last.

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
