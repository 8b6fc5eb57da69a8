"""Which backward passes are written by hand, decided once for all functions."""

import jax


def own_backward() -> bool:
    """Whether to use the backward passes written for XLA:CPU.

    XLA:CPU is slow at sums over rows (the gradients of a bias or a norm's gain), which run at the
    speed of a matrix product once written as one. Other platforms reduce well by themselves.

    Example:
        >>> own_backward() == (jax.default_backend() == "cpu")
        True
    """
    return jax.default_backend() == "cpu"
