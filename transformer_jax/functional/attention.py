"""Attention: one function, with any score and mask, computed by one of several kernels."""

from collections.abc import Callable

from jaxtyping import Array, Bool, Float

from transformer_jax.core.arguments import check_values
from transformer_jax.core.config_fields import Rate
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional import layers
from transformer_jax.functional.array_arguments import check_bias_dtype, real_arguments
from transformer_jax.functional.kernels import choice
from transformer_jax.functional.layers import Dropout
from transformer_jax.functional.masks import Mask, as_mask
from transformer_jax.functional.scores import ALL_KEYS, ScaledDot, Score, Scores, mix, scaled_dot

__all__ = ["attend", "attend_heads_first", "attention_weights", "dot_product_self_attention"]

_OPTIONS = {"score": Callable[..., Array], "implementation": str}


@real_arguments
def attend(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K J"],
    v: Float[Array, "B S K U"],
    mask: Mask | Bool[Array, "..."] | None = None,
    *,
    bias: Float[Array, "#B #N #T S"] | None = None,
    score: Score = scaled_dot,
    implementation: str = "auto",
    dropout: Dropout | None = None,
) -> Float[Array, "B T N U"]:
    """Attention, ``mix(masked_softmax(score(q, k) + bias, mask), v)``.

    The default score is scaled dot-product attention, ``softmax(q kᵀ / √H + bias) v``. Fully
    masked rows give zeros and pass no gradient, on every kernel. Scores and sums are float32. All
    kernels support reverse mode; ``xla`` every mode, except in bfloat16.

    Vaswani et al. 2017, section 3.2.1; Bishop and Bishop 2024, algorithm 12.1.

    Args:
        q: Queries, ``N`` heads.
        k: Keys, ``K`` heads, each shared by ``N / K`` query heads (Ainslie et al. 2023).
        v: Values, of any size.
        mask: Which keys each query sees: a :class:`.Mask`, or a boolean array that broadcasts to
            ``[B N T S]``; None is all.
        bias: Added to the scores, e.g. of relative positions.
        score: Function of queries ``[B N T H]`` and keys ``[B N S J]``; one with parameters is a
            closure. A :class:`.ScaledDot` has a scale and a soft cap.
        implementation: ``xla``, ``chunked`` (memory linear in lengths), ``cudnn``, ``splash``,
            ``ring`` (keys go round the ``context`` axis of a mesh), or ``auto``, which chooses
            between the first two by length. A case that a kernel does not support runs on ``xla``,
            which is logged once. Fused kernels compute dot products only.
        dropout: Fraction of the weights to set to zero, and a random key; without a key nothing is
            dropped. Only ``xla`` supports it.

    Raises:
        ArgumentError: The shapes do not fit, or the implementation is unknown or does not compute
            the score.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.eye(2)[None, :, None]
        >>> attend(x, x, x, score=ScaledDot(scale=1.0))[0, :, 0]
        Array([[0.7310586 , 0.26894143],
               [0.26894143, 0.7310586 ]], dtype=float32)

        Algorithm 12.1, from tokens ``X`` and three matrices:

        >>> X, Wq, Wk, Wv = jax.random.normal(jax.random.key(0), (4, 6, 6))
        >>> Q = X @ Wq
        >>> K = X @ Wk
        >>> V = X @ Wv
        >>> Y = jax.nn.softmax(Q @ K.T / jnp.sqrt(K.shape[1])) @ V
        >>> one_head = [array[None, :, None] for array in (Q, K, V)]
        >>> jnp.allclose(attend(*one_head)[0, :, 0], Y, atol=1e-6)
        Array(True, dtype=bool)
    """
    check_values("attend: ", _OPTIONS, {"score": score, "implementation": implementation})
    y = attend_heads_first(
        q.swapaxes(1, 2),
        k.swapaxes(1, 2),
        v.swapaxes(1, 2),
        Scores(as_mask(mask, "attend: mask"), bias, score),
        implementation=implementation,
        dropout=dropout,
    )
    return y.swapaxes(1, 2)


@real_arguments
def attend_heads_first(
    q: Float[Array, "B N T H"],
    k: Float[Array, "B K S J"],
    v: Float[Array, "B K S U"],
    scores: Scores = ALL_KEYS,
    *,
    implementation: str = "auto",
    dropout: Dropout | None = None,
) -> Float[Array, "B N T U"]:
    """Computes :func:`attend` with heads before positions, the layout of caches.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.eye(2)[None, None]
        >>> attend_heads_first(x, x, x, Scores(score=ScaledDot(scale=1.0)))[0, 0]
        Array([[0.7310586 , 0.26894143],
               [0.26894143, 0.7310586 ]], dtype=float32)
    """
    check_shapes("attend", q.shape, k.shape, v.shape, isinstance(scores.score, ScaledDot))
    check_bias("attend", q.shape, k.shape, scores.bias)
    rate, key = _dropout_of(dropout)
    if not isinstance(scores.score, ScaledDot):
        if implementation not in ("auto", "xla"):
            raise ArgumentError(
                f"attend: implementation {implementation} computes dot products only: use auto or "
                f"xla with {getattr(scores.score, '__name__', scores.score)!r}"
            )
        q, k, v = choice.divide_queries(q, k, v)
        w = layers.dropout(scores.weights(q, k), rate, key)
        return mix(w.astype(v.dtype), v).astype(q.dtype)
    if key is not None and rate > 0.0:
        kernel = choice.with_dropout(implementation, (rate, key))
    else:
        kernel = choice.select_kernel(implementation, q, k, v, scores)
    return choice.run_kernel(kernel, q, k, v, scores)


@real_arguments
def attention_weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K J"],
    mask: Mask | Bool[Array, "..."] | None = None,
    *,
    bias: Float[Array, "#B #N #T S"] | None = None,
    score: Score = scaled_dot,
) -> Float[Array, "B N T S"]:
    """Returns the weight of each key for each query: exactly the weights that :func:`attend` uses.

    Rows sum to one over ``S``, or to zero if fully masked, in float32.

    Example:
        >>> import jax.numpy as jnp
        >>> q = k = jnp.zeros((1, 2, 1, 4))
        >>> attention_weights(q, k)[0, 0]
        Array([[0.5, 0.5],
               [0.5, 0.5]], dtype=float32)
    """
    check_values("attention_weights: ", _OPTIONS, {"score": score})
    q, k = q.swapaxes(1, 2), k.swapaxes(1, 2)
    check_shapes("attention_weights", q.shape, k.shape, k.shape, isinstance(score, ScaledDot))
    check_bias("attention_weights", q.shape, k.shape, bias)
    return Scores(as_mask(mask, "attention_weights: mask"), bias, score).weights(q, k)


@real_arguments
def dot_product_self_attention(x: Float[Array, "T D"]) -> Float[Array, "T D"]:
    """Attention without parameters: ``softmax(X Xᵀ) X``.

    Bishop and Bishop 2024, section 12.1.3.

    Example:
        >>> import jax.numpy as jnp
        >>> dot_product_self_attention(jnp.eye(2))
        Array([[0.7310586 , 0.26894143],
               [0.26894143, 0.7310586 ]], dtype=float32)
    """
    x = x[None, None]
    return attend_heads_first(x, x, x, Scores(score=ScaledDot(scale=1.0)))[0, 0]


def _dropout_of(dropout: object) -> Dropout:
    """Returns the rate and the key of dropout; no dropout for None.

    Raises:
        ArgumentError: It is something else.
    """
    if dropout is None:
        return 0.0, None
    if not isinstance(dropout, tuple) or len(dropout) != 2:
        raise ArgumentError(
            f"attend: dropout is {dropout!r:.60}: a rate and a key, (0.1, jax.random.key(0)), or "
            f"None is needed"
        )
    check_values("attend: dropout: ", {"rate": Rate}, {"rate": dropout[0]})
    return dropout


def check_shapes(
    where: str,
    q: tuple[int, ...],
    k: tuple[int, ...],
    v: tuple[int, ...],
    one_head_size: bool = True,
) -> None:
    """Refuses heads-first shapes that do not fit, naming the dimension.

    Args:
        where: Name of the called function.
        q: ``(B, N, T, H)``.
        k: ``(B, K, S, J)``.
        v: ``(B, K, S, U)``.
        one_head_size: Whether ``J`` must be ``H``.

    Raises:
        ArgumentError: A size does not fit.

    Example:
        >>> check_shapes("attend", (1, 8, 5, 64), (1, 8, 5, 32), (1, 8, 5, 32))
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ArgumentError: attend: k has head size 32, q has 64
    """
    (B, N, _, H), (_, K, S, J) = q, k
    for wrong, problem in (
        (one_head_size and J != H, f"k has head size {J}, q has {H}"),
        (not B == k[0] == v[0], f"q, k and v have batch sizes {B}, {k[0]} and {v[0]}"),
        (v[2] != S, f"v has length {v[2]}, k has {S}"),
        (v[1] != K, f"v has {v[1]} heads, k has {K}"),
        (N % K, f"q has {N} heads, not a multiple of the {K} of k"),
    ):
        if wrong:
            raise ArgumentError(f"{where}: {problem}")


def check_bias(where: str, q: tuple[int, ...], k: tuple[int, ...], bias: Array | None) -> None:
    """Refuses a bias that does not broadcast to the scores, naming the dimension.

    Args:
        where: Name of the called function.
        q: ``(B, N, T, H)``.
        k: ``(B, K, S, J)``.
        bias: The bias, or None.

    Raises:
        ArgumentError: A size does not fit, or it holds True and False.
    """
    if bias is None:
        return
    check_bias_dtype(bias, f"{where}: bias")
    sizes = (*q[:3], k[2])
    for axis, have, wanted in zip("BNTS", bias.shape, sizes, strict=True):
        allowed = (wanted,) if axis == "S" else (1, wanted)
        if have not in allowed:
            raise ArgumentError(
                f"{where}: bias has {axis} = {have}: {' or '.join(map(str, allowed))} is needed, "
                f"to fit scores [B N T S] = {sizes}"
            )
