"""Layers on single vectors, as in the papers: linear maps, norms, activations, dropout, gathering.

Linear maps, norms and GELUs have a backward pass of their own, next to them, so they support
reverse mode only. Some products have another form on XLA:CPU: see :mod:`.kernels.products`. Each
function equals the formula of its docstring, and its gradient the formula's, in float64 to 1e-12.
"""

import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.kernels.products import (
    Saved,
    apart,
    as_row,
    inverse_rms,
    kernel_gradient,
    matmul_transposed,
    mean_of_rows,
    rounded_matmul,
    side_by_side,
    split_columns,
    sum_rows,
    widen,
)
from transformer_jax.functional.partitioning import (
    Axes,
    constrain,
    current_mesh,
    unshard_fsdp,
    unshard_fsdp_again,
)

__all__ = [
    "ACTIVATIONS",
    "Dropout",
    "dropout",
    "dropout_mask",
    "gather_positions",
    "gelu",
    "gelu_tanh",
    "layer_norm",
    "linear",
    "linear_maps",
    "linear_transposed",
    "quick_gelu",
    "relu",
    "rms_norm",
    "silu",
    "soft_cap",
    "soft_cap_slope",
    "tanh",
    "with_stored_gradient",
]

# --- linear maps ---------------------------------------------------------------------------------


@real_arguments
def linear(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "D F"],
    bias: Float[Array, " F"] | None = None,
    axes: Axes | None = None,
) -> Float[Array, "*rows F"]:
    """Applies the same affine map to every position: ``x W + b``.

    The parameters are cast to the dtype of ``x``; products of bfloat16 numbers are summed in
    float32 before they are rounded. Each gradient has its parameter's dtype. Reverse mode only.

    Vaswani et al. 2017, section 3.3: ``FFN(x) = max(0, x W1 + b1) W2 + b2`` is two of these.

    Args:
        x: Rows to map.
        kernel: ``W``.
        bias: ``b``, if there is one.
        axes: Logical axes of the kernel. On a mesh, a kernel that is split over ``fsdp`` is
            gathered for the product, in the dtype of ``x``, and again for the backward pass.

    Example:
        >>> x = jnp.array([[1.0, 2.0]])
        >>> linear(x, jnp.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]), jnp.array([0.0, 0.0, 10.0]))
        Array([[ 1.,  2., 13.]], dtype=float32)
    """
    return _linear(x, kernel, bias, axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _linear(x: Array, kernel: Array, bias: Array | None, axes: Axes | None) -> Array:
    y = rounded_matmul(x, unshard_fsdp(kernel, axes, x.dtype), ((x.ndim - 1,), (0,)))
    return y if bias is None else y + as_row(bias, y)


def _linear_forward(
    x: Array, kernel: Array, bias: Array | None, axes: Axes | None
) -> tuple[Array, Saved]:
    return _linear(x, kernel, bias, axes), (x, kernel, bias)


def _linear_backward(
    axes: Axes | None, saved: Saved, g: Array
) -> tuple[Array, Array, Array | None]:
    x, stored, bias = saved
    kernel, g = unshard_fsdp_again(stored, axes, x.dtype, g)
    dx = rounded_matmul(g, kernel, ((g.ndim - 1,), (1,)))
    dkernel = lax.platform_dependent(x, g, cpu=_gradient_of_rows, default=_gradient_of_axes)
    if axes is not None:
        dkernel = constrain(dkernel, axes)
    return dx, dkernel.astype(stored.dtype), None if bias is None else sum_rows(g, bias.dtype)


def _gradient_of_rows(x: Array, g: Array) -> Array:
    return kernel_gradient(*(a.reshape(-1, a.shape[-1]) for a in (x, g)))


def _gradient_of_axes(x: Array, g: Array) -> Array:
    # Rows keep their axes, which are sharded: merging them could move data between devices.
    rows = tuple(range(x.ndim - 1))
    return widen(lax.dot_general(x, g, ((rows, rows), ((), ()))))


_linear.defvjp(_linear_forward, _linear_backward)


Arrays = tuple[Array, ...]
Biases = tuple[Array | None, ...]
Maps = Callable[[Array, Arrays, Biases], Arrays]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def linear_maps(
    x: Float[Array, "B T D"],
    kernels: tuple[Float[Array, "D _"], ...],
    biases: tuple[Float[Array, " _"] | None, ...],
    axes: Axes | None = None,
    groups: int = 1,
) -> tuple[Float[Array, "B T _"], ...]:
    """Applies several affine maps to the same positions: :func:`linear` of each.

    They are one product with the kernels side by side, or with each of their equal ``groups``. On
    TPUs they are one product each, which writes its result in the layout that attention reads,
    while parts of a result are copied first. So they are on one of NVIDIA's GPUs, unless biases are
    added, since parts of a sum are copied for nothing, and parts of a product are not. The backward
    pass is that of the one product. ``axes`` are the logical axes of each kernel.

    Example:
        >>> x, eye = jnp.ones((1, 2, 3)), jnp.eye(3)
        >>> [y.shape for y in linear_maps(x, (eye, eye[:, :2]), (None, None))]
        [(1, 2, 3), (1, 2, 2)]
    """
    tpu, cuda, default = _forms(axes, groups)
    if current_mesh() is not None or any(bias is not None for bias in biases):
        cuda = default
    return lax.platform_dependent(x, kernels, biases, tpu=tpu, cuda=cuda, default=default)


@functools.lru_cache
def _forms(axes: Axes | None, groups: int) -> tuple[Maps, Maps, Maps]:
    """The forms for TPUs, for NVIDIA's GPUs and for others, each the same object in every layer."""
    each, in_turn = (functools.partial(f, axes=axes) for f in (_maps_apart, _maps_one_by_one))
    return each, in_turn, functools.partial(_maps_as_one, axes=axes, groups=groups)


def _maps_as_one(
    x: Array, kernels: Arrays, biases: Biases, axes: Axes | None, groups: int
) -> Arrays:
    widths, bias = [kernel.shape[1] for kernel in kernels], None
    if any(one is not None for one in biases):
        pairs = zip(widths, biases, strict=True)
        every = [jnp.zeros(width, x.dtype) if one is None else one for width, one in pairs]
        bias = side_by_side(every, groups)
    y = _linear(x, side_by_side([*kernels], groups), bias, axes)
    if groups > 1:
        return tuple(apart(y, widths, groups))
    return split_columns(y, tuple(itertools.accumulate(widths[:-1])))


def _maps_apart(x: Array, kernels: Arrays, biases: Biases, axes: Axes | None) -> Arrays:
    pairs = zip(kernels, biases, strict=True)
    return tuple(_linear(x, kernel, bias, axes) for kernel, bias in pairs)


def _maps_one_by_one(x: Array, kernels: Arrays, biases: Biases, axes: Axes | None) -> Arrays:
    found = []
    for kernel, bias in zip(kernels, biases, strict=True):
        found.append(_linear(x, kernel, bias, axes))
        x = lax.optimization_barrier(x)  # XLA:GPU would merge products that share an operand
    return tuple(found)


def _maps_forward(
    x: Array, kernels: Arrays, biases: Biases, axes: Axes | None, groups: int
) -> tuple[Arrays, Saved]:
    return linear_maps(x, kernels, biases, axes, groups), (x, kernels, biases)


def _maps_backward(axes: Axes | None, groups: int, saved: Saved, g: Arrays) -> Saved:
    return jax.vjp(_forms(axes, groups)[2], *saved)[1](g)


linear_maps.defvjp(_maps_forward, _maps_backward)


@real_arguments
def linear_transposed(
    x: Float[Array, "*rows D"],
    kernel: Float[Array, "F D"],
    bias: Float[Array, " F"] | None = None,
    axes: Axes | None = None,
) -> Float[Array, "*rows F"]:
    """Computes :func:`linear` with a transposed kernel: ``x Wᵀ + b``.

    Fastest for few rows when weights are read from memory, since the weights of each output are
    contiguous. Not the same as ``linear(x, kernel.T)``, with which GPT-2 small takes four times as
    long for a single row on XLA:CPU. ``axes`` are the logical axes of the kernel.

    Example:
        >>> linear_transposed(jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0], [1.0, 1.0]]))
        Array([[1., 3.]], dtype=float32)
    """
    y = matmul_transposed(x, unshard_fsdp(kernel, axes, x.dtype))
    if bias is None or y.dtype == x.dtype:
        return y.astype(x.dtype) if bias is None else y + as_row(bias, y)
    # XLA:GPU adds a bias in the kernel of the product, if the sum is made before it is rounded.
    narrow = as_row(bias, x)
    return lax.platform_dependent(y, bias, narrow, cuda=_rounded_sum, default=_sum_of_rounded)


def _rounded_sum(y: Array, bias: Array, narrow: Array) -> Array:
    return (y + as_row(bias, y)).astype(narrow.dtype)


def _sum_of_rounded(y: Array, bias: Array, narrow: Array) -> Array:
    return y.astype(narrow.dtype) + narrow


# --- norms ---------------------------------------------------------------------------------------

# The backward passes normalize x again, which is cheaper than saving the result.


@real_arguments
def layer_norm(
    x: Float[Array, "*rows D"],
    gain: Float[Array, " D"],
    bias: Float[Array, " D"] | None,
    eps: float,
) -> Float[Array, "*rows D"]:
    """Layer normalization, ``(x − μ) / √(σ² + ε) · gain + bias``, of each row.

    ``σ²`` is the population variance (divided by ``D``). Statistics are float32 whatever the
    dtype of ``x``, which is also the dtype of the result. With ``eps=0`` a constant row gives NaN.
    Reverse mode only.

    Ba et al. 2016, https://arxiv.org/abs/1607.06450.

    Example:
        >>> layer_norm(jnp.array([[5.0, 9.0]]), jnp.ones(2), jnp.zeros(2), eps=0.0)
        Array([[-1.,  1.]], dtype=float32)
    """
    return _layer_norm(x, gain, bias, eps)


def _standard(x: Array, eps: float | Array) -> tuple[Array, tuple[Array, Array], Array]:
    """Rows with mean 0 and variance 1, their means, and the factors that scaled them.

    The rounded mean of equal values differs from them, and the difference, divided by ``√ε``, would
    be of order 1 for rows of 12345.6. So the mean of the difference is subtracted too.
    """
    x = widen(x)
    mean = mean_of_rows(x)
    rest = mean_of_rows(x - mean)
    centred = (x - mean) - rest
    scale = inverse_rms(centred, eps)
    return centred * scale, (mean, rest), scale


def _scaled(n: Array, gain: Array, bias: Array | None, dtype: DTypeLike) -> Array:
    y = n * as_row(gain, n)
    return (y if bias is None else y + as_row(bias, n)).astype(dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(x: Array, gain: Array, bias: Array | None, eps: float) -> Array:
    return _scaled(_standard(x, eps)[0], gain, bias, x.dtype)


def _layer_forward(x: Array, gain: Array, bias: Array | None, eps: float) -> tuple[Array, Saved]:
    n, *statistics = _standard(x, eps)
    return _scaled(n, gain, bias, x.dtype), (x, statistics, gain, bias)


def _layer_backward(eps: float, saved: Saved, g: Array) -> tuple[Array, Array, Array | None]:
    x, statistics, gain, bias = saved
    given, plain = (x, statistics, gain, widen(g)), functools.partial(_layer_gradients, eps=eps)
    if x.dtype == jnp.bfloat16:
        by_sums = functools.partial(_layer_gradients_by_sums, eps=eps)
        dx, dgain = lax.platform_dependent(*given, cuda=by_sums, default=plain)
    else:
        dx, dgain = plain(*given)
    dbias = None if bias is None else sum_rows(g, bias.dtype)
    return dx.astype(x.dtype), dgain.astype(gain.dtype), dbias


def _layer_gradients(
    x: Array, statistics: Saved, gain: Array, g: Array, eps: float | Array
) -> tuple[Array, Array]:
    (mean, rest), scale = statistics
    n = ((widen(x) - mean) - rest) * scale
    return _layer_slope(n, scale, g * as_row(gain, n)), sum_rows(g * n)


def _layer_slope(n: Array, scale: Array, h: Array) -> Array:
    return scale * (h - mean_of_rows(h) - n * mean_of_rows(h * n))


def _layer_gradients_by_sums(
    x: Array, statistics: Saved, gain: Array, g: Array, eps: float | Array
) -> tuple[Array, Array]:
    """The same, where each kernel of XLA:GPU reads ``x`` and ``g`` and writes only its result.

    One kernel normalizes a row again and computes its ``dx``; a barrier keeps it from waiting for
    statistics. Those for ``dgain`` are sums of ``x`` and ``x²`` that the kernel that made ``x``
    adds up: their difference loses ``μ² / σ²`` rounding errors of float32, in bfloat16 rows at most
    as much as the rounding of the rows. In a row that is constant but for its rounding nothing of
    the difference may be left; so its numbers are kept within the ``√D`` of any normalized row.
    """
    n, _, scale = _standard(lax.optimization_barrier(x), eps)
    dx = _layer_slope(n, scale, g * as_row(gain, n))
    x, D = widen(x), x.shape[-1]
    sums = x.sum(-1, keepdims=True), jnp.square(x).sum(-1, keepdims=True)
    mean, square = (one / D for one in lax.optimization_barrier(sums))
    scale = lax.rsqrt(jnp.maximum(square - jnp.square(mean), 0) + eps)
    return dx, sum_rows(g * jnp.clip((x - mean) * scale, -math.sqrt(D), math.sqrt(D)))


_layer_norm.defvjp(_layer_forward, _layer_backward)


@real_arguments
def rms_norm(
    x: Float[Array, "*rows D"], gain: Float[Array, " D"], eps: float
) -> Float[Array, "*rows D"]:
    """Root-mean-square normalization, ``x / √(mean(x²) + ε) · gain``, of each row.

    Nothing is subtracted. Statistics are float32 whatever the dtype of ``x``, which is also the
    dtype of the result. Reverse mode only.

    Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467.

    Example:
        >>> rms_norm(jnp.array([[2.0, -2.0]]), jnp.array([1.0, 3.0]), eps=0.0)
        Array([[ 1., -3.]], dtype=float32)
    """
    return _rms_norm(x, gain, eps)


def _unit(x: Array, eps: float | Array) -> tuple[Array, Array]:
    """Rows with root mean square 1, and the factors that scaled them."""
    x = widen(x)
    scale = inverse_rms(x, eps)
    return x * scale, scale


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _rms_norm(x: Array, gain: Array, eps: float) -> Array:
    return _scaled(_unit(x, eps)[0], gain, None, x.dtype)


def _rms_forward(x: Array, gain: Array, eps: float) -> tuple[Array, Saved]:
    n, scale = _unit(x, eps)
    return _scaled(n, gain, None, x.dtype), (x, scale, gain)


def _rms_backward(eps: float, saved: Saved, g: Array) -> tuple[Array, Array]:
    x, scale, gain = saved
    by_sums, plain = (
        functools.partial(f, eps=eps) for f in (_rms_gradients_by_sums, _rms_gradients)
    )
    dx, dgain = lax.platform_dependent(x, scale, gain, widen(g), cuda=by_sums, default=plain)
    return dx.astype(x.dtype), dgain.astype(gain.dtype)


def _rms_gradients(
    x: Array, scale: Array, gain: Array, g: Array, eps: float | Array
) -> tuple[Array, Array]:
    n = widen(x) * scale
    return _rms_slope(n, scale, g * as_row(gain, n)), sum_rows(g * n)


def _rms_slope(n: Array, scale: Array, h: Array) -> Array:
    return scale * (h - n * mean_of_rows(h * n))


def _rms_gradients_by_sums(
    x: Array, scale: Array, gain: Array, g: Array, eps: float | Array
) -> tuple[Array, Array]:
    """The same in other kernels: see :func:`_layer_gradients_by_sums`."""
    n, scale = _unit(lax.optimization_barrier(x), eps)
    dx = _rms_slope(n, scale, g * as_row(gain, n))
    square = lax.optimization_barrier(jnp.square(widen(x)).sum(-1, keepdims=True)) / x.shape[-1]
    return dx, sum_rows(g * (widen(x) * lax.rsqrt(square + eps)))


_rms_norm.defvjp(_rms_forward, _rms_backward)


@jax.custom_vjp
def with_stored_gradient(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns ``x``, the input of a norm whose gradient is read more than once.

    XLA:GPU would compute the gradient of the norm for each reader, or store it in float32 as well.

    Example:
        >>> with_stored_gradient(jnp.ones(2))
        Array([1., 1.], dtype=float32)
    """
    return x


def _stored_forward(x: Array) -> tuple[Array, None]:
    return x, None


def _stored_backward(_: None, g: Array) -> tuple[Array]:
    return (lax.platform_dependent(g, cuda=lax.optimization_barrier, default=_same),)


def _same(g: Array) -> Array:
    return g


with_stored_gradient.defvjp(_stored_forward, _stored_backward)


# --- activations ---------------------------------------------------------------------------------


@real_arguments
def relu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``max(x, 0)``, with gradient 0 at 0.

    Nair and Hinton 2010.

    Example:
        >>> relu(jnp.array([-1.0, 2.0]))
        Array([0., 2.], dtype=float32)
    """
    return jax.nn.relu(x)


@real_arguments
def silu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x · sigmoid(x)``, also called swish.

    Elfwing et al. 2017, https://arxiv.org/abs/1702.03118.

    Example:
        >>> f"{silu(jnp.float32(1.0)):.4f}"
        '0.7311'
    """
    return jax.nn.silu(x)


@real_arguments
def quick_gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x · sigmoid(1.702 x)``, the sigmoid approximation of :func:`gelu`.

    Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.

    Example:
        >>> f"{quick_gelu(jnp.float32(1.0)):.4f}"
        '0.8458'
    """
    return x * jax.nn.sigmoid(1.702 * x)


@real_arguments
def tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``tanh(x)``.

    Example:
        >>> f"{tanh(jnp.float32(1.0)):.4f}"
        '0.7616'
    """
    return jnp.tanh(x)


@real_arguments
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x Φ(x)``, where ``Φ`` is the standard normal distribution, by the error function.

    Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.

    Example:
        >>> f"{gelu(jnp.float32(1.0)):.4f}"
        '0.8413'
    """
    return _gelu(x)


@jax.custom_vjp
def _gelu(x: Array) -> Array:
    wide = widen(x)
    return (wide * _normal(wide)).astype(x.dtype)


def _gelu_forward(x: Array) -> tuple[Array, Array]:
    # The slope is saved instead of x: it shares terms with the value.
    wide = widen(x)
    p = _normal(wide)
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    return _with_slope(x, wide * p, p + wide * density)


def _normal(x: Array) -> Array:
    return 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))


def _with_slope(x: Array, y: Array, slope: Array) -> tuple[Array, Array]:
    """Returns both in the dtype of ``x``; the barrier keeps XLA:CPU from delaying the slope."""
    both = y.astype(x.dtype), slope.astype(x.dtype)
    return lax.platform_dependent(*both, cpu=_barrier, default=_pair)


def _barrier(y: Array, slope: Array) -> tuple[Array, Array]:
    return lax.optimization_barrier((y, slope))


def _pair(y: Array, slope: Array) -> tuple[Array, Array]:
    return y, slope


def _gelu_backward(slope: Array, g: Array) -> tuple[Array]:
    return (g * slope,)


_gelu.defvjp(_gelu_forward, _gelu_backward)


@real_arguments
def gelu_tanh(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))``, the tanh approximation of :func:`gelu`.

    Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415; the GELU of GPT-2.

    Example:
        >>> f"{gelu_tanh(jnp.float32(1.0)):.4f}"
        '0.8412'
    """
    return _gelu_tanh(x)


CUBIC = 0.044715
_FLAT = 1e6  # squares of values at which the tanh is 1 in every dtype
_SLOPE = math.sqrt(2 / math.pi)


@jax.custom_vjp
def _gelu_tanh(x: Array) -> Array:
    wide = widen(x)
    return (wide * _near_normal(wide)[0]).astype(x.dtype)


def _gelu_tanh_forward(x: Array) -> tuple[Array, Array]:
    wide = widen(x)
    p, flat = _near_normal(wide)
    both = _with_slope(x, wide * p, p + wide * flat * _curve(wide))
    return lax.platform_dependent(x, *both, cuda=_with_input, default=_with_saved)


def _near_normal(x: Array) -> tuple[Array, Array]:
    """An approximation of ``Φ`` by a tanh, and the slope of that tanh."""
    t = jnp.tanh(_SLOPE * (x + CUBIC * x * x * x))
    return 0.5 * (1 + t), 1 - t * t


def _curve(x: Array) -> Array:
    # The tanh is flat long before the square of x overflows; 0 times infinity would be NaN.
    return 0.5 * _SLOPE * (1 + 3 * CUBIC * jnp.minimum(x * x, _FLAT))


def _with_input(x: Array, y: Array, slope: Array) -> tuple[Array, Array]:
    return y, x


def _with_saved(x: Array, y: Array, slope: Array) -> tuple[Array, Array]:
    return y, slope


def _gelu_tanh_backward(saved: Array, g: Array) -> tuple[Array]:
    return (lax.platform_dependent(saved, g, cuda=_slope_again, default=_slope_saved),)


def _slope_again(x: Array, g: Array) -> Array:
    # By the sigmoid of twice the argument of the tanh: XLA:GPU would store a tanh in float32 that
    # both passes need.
    wide = widen(x)
    double = 2 * _SLOPE * (wide + CUBIC * wide * wide * wide)
    p, rest = jax.nn.sigmoid(double), jax.nn.sigmoid(-double)
    return g * (p + 4 * wide * p * rest * _curve(wide)).astype(x.dtype)


def _slope_saved(slope: Array, g: Array) -> Array:
    return g * slope


_gelu_tanh.defvjp(_gelu_tanh_forward, _gelu_tanh_backward)


@real_arguments
def soft_cap(x: Float[Array, "*shape"], bound: float | None) -> Float[Array, "*shape"]:
    """Bounds values smoothly to ``±c``: ``c tanh(x / c)``; None is no bound.

    Gemma Team 2024, https://arxiv.org/abs/2408.00118, section 2.

    Example:
        >>> soft_cap(jnp.array([0.0, 100.0]), 5.0)
        Array([0., 5.], dtype=float32)
    """
    return x if bound is None else bound * jnp.tanh(x / bound)


@real_arguments
def soft_cap_slope(
    y: Float[Array, "*shape"], bound: float | None
) -> Float[Array, "*shape"] | float:
    """The derivative of :func:`soft_cap` at the point where its value is ``y``: ``1 − (y / c)²``.

    Example:
        >>> soft_cap_slope(jnp.array([0.0, 5.0]), 5.0)
        Array([1., 0.], dtype=float32)
    """
    return 1.0 if bound is None else 1.0 - jnp.square(y / bound)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
    "quick_gelu": quick_gelu,
    "tanh": tanh,
}

# --- dropout -------------------------------------------------------------------------------------

# The fraction to set to zero, and a random key; without a key nothing is dropped.
Dropout = tuple[float, Key[Array, ""] | None]


@real_arguments
def dropout(
    x: Float[Array, "*shape"], rate: float, key: Key[Array, ""] | None
) -> Float[Array, "*shape"]:
    """Sets a fraction ``rate`` of ``x`` to 0 and scales the rest to the same mean.

    Without a key, or at rate 0, it returns ``x`` itself.

    Srivastava et al. 2014, https://jmlr.org/papers/v15/srivastava14a.html.

    Raises:
        ArgumentError: ``rate`` is not in ``[0, 1)``.

    Example:
        >>> dropout(jnp.ones(3), 0.1, None)
        Array([1., 1., 1.], dtype=float32)
        >>> dropout(jnp.ones(8), 0.5, jax.random.key(0)).max()
        Array(2., dtype=float32)
    """
    keep = None if key is None or rate == 0 else dropout_mask(key, x.shape, rate)
    return x if keep is None else jnp.where(keep, x / (1 - rate), 0)


def dropout_mask(key: Key[Array, ""], shape: tuple[int, ...], rate: float) -> Bool[Array, "..."]:
    """True with probability ``1 − rate`` (to within 2⁻³²), independently at each position.

    Each position is hashed with 64 random bits of the key; drawing a random number for each from
    ``jax.random`` takes 20 times as long on CPU. The mask depends only on the key and the
    position, so it is the same on any number of devices and on every platform. The hash mixes
    well, but it is not a cryptographic generator: use it for dropout, not for sampling.

    Raises:
        ArgumentError: ``rate`` is not in ``[0, 1)``.

    Example:
        >>> dropout_mask(jax.random.key(0), (1000, 100), 0.25).mean().round(2)
        Array(0.75, dtype=float32)
    """
    if not 0 <= rate < 1:
        raise ArgumentError(f"dropout rate is {rate}; it must be at least 0 and below 1")
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    shape, whole = (shape or (1,)), shape
    row = jnp.zeros((*shape[:-1], 1), jnp.uint32)
    for axis, size in enumerate(shape[:-1]):
        row = row * jnp.uint32(size) + lax.broadcasted_iota(jnp.uint32, row.shape, axis)
    # Two hashes per row: where one of them collides with another row's, the other one does not.
    row = _mix(row + first)
    other = _mix(row ^ second)
    column = lax.broadcasted_iota(jnp.uint32, (1,) * (len(shape) - 1) + shape[-1:], len(shape) - 1)
    number = _mix(_mix(row + column * jnp.uint32(0x9E3779B9)) ^ other)
    return (number >= jnp.uint32(min(round(rate * 2**32), 2**32 - 1))).reshape(whole)


def _mix(h: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """A 32-bit hash in which each input bit flips each output bit half the time.

    Wellons' ``lowbias32``, https://nullprogram.com/blog/2018/07/31/.
    """
    h = (h ^ (h >> 16)) * jnp.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * jnp.uint32(0x846CA68B)
    return h ^ (h >> 16)


@real_arguments
def gather_positions(
    hidden: Float[Array, "B T D"], positions: Int[Array, "B P"]
) -> Float[Array, "B P D"]:
    """The vectors at given positions of each row: ``hidden[b, positions[b]]``.

    Example:
        >>> gather_positions(jnp.arange(6.0).reshape(1, 3, 2), jnp.array([[2, 0]]))[0]
        Array([[4., 5.],
               [0., 1.]], dtype=float32)
    """
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)
