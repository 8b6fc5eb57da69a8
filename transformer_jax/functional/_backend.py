"""Which backward passes are written by hand, decided once for all functions."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax

_PORTABLE = contextvars.ContextVar("portable", default=False)


@contextlib.contextmanager
def any_platform() -> Iterator[None]:
    """Within it, nothing that is traced depends on the platform that it is traced on."""
    token = _PORTABLE.set(True)
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def own_backward() -> bool:
    """Whether to use the backward passes written for XLA:CPU.

    XLA:CPU is slow at sums over rows (the gradients of a bias or a norm's gain), which run at the
    speed of a matrix product once written as one. Other platforms reduce well by themselves.

    Example:
        >>> own_backward() == (jax.default_backend() == "cpu")
        True
    """
    return not _PORTABLE.get() and jax.default_backend() == "cpu"
