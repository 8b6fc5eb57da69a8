"""Which backward passes are written by hand, decided once for all functions."""

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Shaped

# Part of jit's cache key: what is traced within it is never used outside, nor the other way round.
_PORTABLE = jax.make_user_context(default_value=False)


@contextlib.contextmanager
def any_platform() -> Iterator[None]:
    """Within it, nothing that is traced depends on the platform that it is traced on."""
    with _PORTABLE(True):
        yield


def own_backward() -> bool:
    """Whether to use the backward passes written for XLA:CPU.

    XLA:CPU is slow at sums over rows (the gradients of a bias or a norm's gain), which run at the
    speed of a matrix product once written as one. Other platforms reduce well by themselves.

    Example:
        >>> own_backward() == (jax.default_backend() == "cpu")
        True
    """
    return not _PORTABLE.value and jax.default_backend() == "cpu"


def narrow_on_cpu(x: Shaped[Array, "..."]) -> bool:
    """Whether ``x`` is bfloat16 and its products are XLA:CPU's, which :func:`by_rows` speeds up.

    Example:
        >>> narrow_on_cpu(jnp.ones(3)), narrow_on_cpu(jnp.ones(3, jnp.bfloat16)) == own_backward()
        (False, True)
    """
    return x.dtype == jnp.bfloat16 and own_backward()


def by_rows(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """``x``, with its last axis in one piece in memory.

    XLA folds a transposition into the product that follows, and XLA:CPU has no product of
    bfloat16 numbers for most of what comes of that: it widens both operands to float32, which
    takes four times as long where the processor multiplies bfloat16.

    Example:
        >>> by_rows(jnp.ones((2, 3)).T).shape
        (3, 2)
    """
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
