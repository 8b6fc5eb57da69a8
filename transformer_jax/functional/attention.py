"""Scaled dot-product attention: one door, many kernels behind it."""

from jaxtyping import Array, Float, Key

from transformer_jax.functional import kernels
from transformer_jax.functional.kernels import xla
from transformer_jax.functional.masks import Mask

__all__ = ["attend", "attend_heads_first", "attention_weights", "dot_product_self_attention"]


def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K U"],
    mask: Mask | None = None,
    *,
    bias: Float[Array, "#B #N #T S"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    implementation: str = "auto",
    dropout_rate: float = 0.0,
    key: Key[Array, ""] | None = None,
) -> Float[Array, "B T N U"]:
    """What each query reads: values mixed by ``softmax(q kᵀ / √H + bias)``.

    A query that may look nowhere gets zeros and sends no gradient, whatever the kernel. Scores
    and sums are float32 whatever the inputs. All kernels have a reverse-mode gradient; ``xla`` has
    any, but of bfloat16 on CPU.

    Vaswani et al. 2017, 3.2.1; rows L8, U5, B9. Bishop's algorithm 1 is what :func:`.xla.weights`
    and a product with ``v`` do.

    Args:
        q: Queries, ``N`` heads.
        k: Keys, ``K`` heads, each shared by ``N / K`` query heads.
        v: Values, of a size of their own.
        mask: Where queries may look; None is everywhere.
        bias: Added to the scaled scores, e.g. of relative positions.
        scale: Multiplies ``q kᵀ``; None is ``1 / √H``, which keeps the scores' variance (row B8).
        softcap: Bends scores to within ``±softcap`` by a tanh, before bias and mask.
        implementation: ``xla``, ``chunked``, ``cudnn``, ``splash``, or ``auto`` for the fastest
            known; one that cannot take a case leaves it to ``xla`` and says so once.
        dropout_rate: Of the weights; they are dropped if and only if a ``key`` is given.
        key: For dropout, which only ``xla`` has.

    Raises:
        ValueError: Shapes that do not fit, or no such implementation.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.eye(2)[None, :, None]
        >>> attend(x, x, x, scale=1.0)[0, :, 0]
        Array([[0.7310586 , 0.26894143],
               [0.26894143, 0.7310586 ]], dtype=float32)
    """
    y = attend_heads_first(
        q.swapaxes(1, 2),
        k.swapaxes(1, 2),
        v.swapaxes(1, 2),
        mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        implementation=implementation,
        dropout_rate=dropout_rate,
        key=key,
    )
    return y.swapaxes(1, 2)


def attend_heads_first(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S H"],
    v: Float[Array, "B K S U"],
    mask: Mask | None = None,
    *,
    bias: Float[Array, "#B #N #T S"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    implementation: str = "auto",
    dropout_rate: float = 0.0,
    key: Key[Array, ""] | None = None,
) -> Float[Array, "B N T U"]:
    """The same as :func:`attend` with heads before positions, the layout of caches.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.eye(2)[None, None]
        >>> attend_heads_first(x, x, x, scale=1.0)[0, 0]
        Array([[0.7310586 , 0.26894143],
               [0.26894143, 0.7310586 ]], dtype=float32)
    """
    check_shapes(q.shape, k.shape, v.shape)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    if key is not None and dropout_rate > 0.0:
        return xla.run(q, k, v, mask, bias, scale, softcap, dropout_rate, key)
    kernel = kernels.select_kernel(implementation, q, k, v, mask, bias, softcap)
    return kernel.run(q, k, v, mask, bias, scale, softcap)


def attention_weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    mask: Mask | None = None,
    *,
    bias: Float[Array, "#B #N #T S"] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Float[Array, "B N T S"]:
    """How much each query reads from each key: exactly what :func:`attend` mixes by.

    Rows sum to one over ``S``, or to zero where nothing is visible (rows B4, B28), in float32.

    Example:
        >>> import jax.numpy as jnp
        >>> q = k = jnp.zeros((1, 2, 1, 4))
        >>> attention_weights(q, k)[0, 0]
        Array([[0.5, 0.5],
               [0.5, 0.5]], dtype=float32)
    """
    q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    check_shapes(q.shape, k.shape, k.shape)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    allowed = None if mask is None else mask.array(q.shape[2], k.shape[2])
    return xla.weights(q, k, allowed, bias, scale, softcap)


def dot_product_self_attention(x: Float[Array, "T D"]) -> Float[Array, "T D"]:
    """Attention without parameters: ``softmax(X Xᵀ) X`` (row B5).

    Example:
        >>> import jax.numpy as jnp
        >>> dot_product_self_attention(jnp.eye(2))
        Array([[0.7310586 , 0.26894143],
               [0.26894143, 0.7310586 ]], dtype=float32)
    """
    x = x[None, None]
    return attend_heads_first(x, x, x, scale=1.0)[0, 0]


def check_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    """Refuses heads-first shapes that do not fit, naming the dimension (row L9).

    Raises:
        ValueError: Says which.

    Example:
        >>> check_shapes((1, 8, 5, 64), (1, 8, 5, 32), (1, 8, 5, 32))
        Traceback (most recent call last):
        ...
        ValueError: queries and keys need one head size H: queries have 64, keys 32
    """
    (B, N, _, H), (_, K, S, _) = q, k
    if k[3] != H:
        raise ValueError(f"queries and keys need one head size H: queries have {H}, keys {k[3]}")
    if not B == k[0] == v[0]:
        raise ValueError(
            f"queries, keys and values need one batch B: they have {B}, {k[0]} and {v[0]}"
        )
    if v[2] != S:
        raise ValueError(f"keys and values need one length S: keys have {S}, values {v[2]}")
    if v[1] != K:
        raise ValueError(f"keys and values need as many heads K: keys have {K}, values {v[1]}")
    if N % K:
        raise ValueError(f"query heads N need to be a multiple of key heads K: {N} is not of {K}")
