"""What predictors take: one text or many, and a warning where not all of them is read."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator

from transformer_jax.errors import plural, were

__all__ = ["listed", "truncation"]


def listed(texts: str | Iterable[str]) -> list[str]:
    """The texts as a list: a string is one text.

    Example:
        >>> listed("ab"), listed(["ab", "c"])
        (['ab'], ['ab', 'c'])
    """
    return [texts] if isinstance(texts, str) else list(texts)


@contextlib.contextmanager
def truncation(count: Callable[[], int]) -> Iterator[None]:
    """Warns afterwards if texts were longer than the model reads.

    Args:
        count: How many there were so far.
    """
    before = count()
    yield
    if new := count() - before:
        said = f"{plural(new, 'text')} {were(new)} longer than the model reads, and truncated"
        warnings.warn(said, stacklevel=4)
