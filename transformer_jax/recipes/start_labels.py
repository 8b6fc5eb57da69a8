"""The order of labels in a run that starts from a model with a head of labels."""

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.core.task_progress import log

__all__ = ["as_in_start"]

_SHOWN = 5  # labels in a message


def as_in_start(
    start: str, there: tuple[str, ...], labels: tuple[str, ...], flag: str
) -> tuple[str, ...]:
    """Returns the labels in the order of the start's head, so that each keeps its own row.

    New labels fill the rows of labels that the run does not have; a line in the log names them.

    Args:
        start: The start, for messages.
        there: The labels of its head; none if it has no head.
        labels: The labels of the run.
        flag: The flag that reinitializes the head.

    Raises:
        ConfigError: The head has a different number of labels.

    Example:
        >>> as_in_start("runs/a", ("no", "yes"), ("yes", "no"), "--reinit-head")
        ('no', 'yes')
    """
    if not there:
        return labels
    if len(there) != len(labels):
        raise ConfigError(
            f"init_from: {start} has a head of {plural(len(there), 'label')}, and this run needs "
            f"{len(labels)}: add {flag}"
        )
    others = (label for label in labels if label not in there)
    ordered = tuple(label if label in labels else next(others) for label in there)
    renamed = [f"{new} from {old}" for new, old in zip(ordered, there, strict=True) if new != old]
    if renamed:
        more = ", ..." if len(renamed) > _SHOWN else ""
        log(
            f"rows of the head that start from other labels of {start}: "
            f"{', '.join(renamed[:_SHOWN])}{more}; {flag} reinitializes the head"
        )
    return ordered
