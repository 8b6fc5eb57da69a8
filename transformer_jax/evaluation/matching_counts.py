"""A check that the numbers of predictions and references match."""

from collections.abc import Sized

from transformer_jax.core.errors import DataError, plural

__all__ = ["check_lengths"]


def check_lengths(predictions: Sized, references: Sized) -> None:
    """Refuses different numbers of predictions and references, and empty data.

    Raises:
        DataError: The numbers differ, or both are 0.

    Example:
        >>> check_lengths([1, 0], [1, 1])
    """
    if len(predictions) != len(references):
        raise DataError(
            f"{plural(len(predictions), 'prediction')} but {plural(len(references), 'reference')}: "
            f"give one of each per example, in the same order"
        )
    if not len(predictions):
        raise DataError("there is nothing to score: the data is empty")
