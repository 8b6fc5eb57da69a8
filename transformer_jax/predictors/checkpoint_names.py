"""Names of checkpoints in flags."""

from typing import Literal

from transformer_jax.errors import ConfigError

__all__ = ["chosen_checkpoint", "of_training"]


def chosen_checkpoint(text: str) -> tuple[int | Literal["best", "last"], int]:
    """The checkpoint that a name stands for, and the number of checkpoints to average.

    Raises:
        ConfigError: The name is none of ``best``, ``last``, a step, ``average:N``.

    Example:
        >>> chosen_checkpoint("best"), chosen_checkpoint("1200"), chosen_checkpoint("average:5")
        (('best', 1), (1200, 1), ('last', 5))
    """
    kind, _, number = text.partition(":")
    if text == "best":
        return "best", 1
    if text == "last":
        return "last", 1
    if text.isdecimal():
        return int(text), 1
    if kind == "average" and number.isdecimal() and int(number):
        return "last", int(number)
    raise ConfigError(
        f"checkpoint {text}: must be best, last, a step (1200) or average:N, the mean of the last N"
    )


def of_training(name: str) -> bool:
    """Returns whether a file of a run is needed to resume it, and not to use it."""
    parts = name.split("/")
    return len(parts) > 3 and parts[0] == "checkpoints" and parts[2] == "optimizer"
