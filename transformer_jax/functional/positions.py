"""Positional encodings: sinusoids, rotary embeddings (RoPE), and biases that depend on distance."""

import math
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float64, Int

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments

__all__ = [
    "Layout",
    "alibi_bias",
    "alibi_slopes",
    "apply_rotary_embedding",
    "dynamic_base",
    "relative_position_bucket",
    "rotary_frequencies",
    "sinusoidal",
    "sinusoidal_2d",
    "sinusoidal_float64",
    "yarn_frequencies",
]

Layout = Literal["interleaved", "halves", "fairseq"]
# Llama 3.1: factor, low and high frequency factor, and the original training length.
RotaryScaling = tuple[float, float, float, int]


def sinusoidal(
    length: int, width: int, layout: Layout = "interleaved", start: int = 0, base: float = 10_000.0
) -> Float[Array, "{length} {width}"]:
    """Sinusoidal position encodings: ``sin(t / base^(2i/D))`` and the same with ``cos``.

    Angles are computed in float64, since in float32 they are meaningless long before position
    100,000; ``fairseq`` uses float32, as its models were trained with it. An odd width ends with
    the sine of a pair, or with a zero in ``fairseq``.

    Vaswani et al. 2017, section 3.5; Bishop and Bishop 2024, equation 12.25.

    Args:
        length: Number of positions.
        width: D.
        layout: ``interleaved`` puts pair ``i`` in columns ``2i`` and ``2i + 1`` (the paper);
            ``halves`` puts all sines before all cosines (Marian); so does ``fairseq``, whose
            exponents ``i / (D/2 - 1)`` reach ``base`` itself (tensor2tensor, M2M100).
        start: The first position.
        base: The wavelengths go from ``2π`` to ``2π · base``.

    Example:
        >>> sinusoidal(2, 4).round(3)
        Array([[0.   , 1.   , 0.   , 1.   ],
               [0.841, 0.54 , 0.01 , 1.   ]], dtype=float32)
        >>> sinusoidal(2, 4, "halves")[1].round(3)
        Array([0.841, 0.01 , 0.54 , 1.   ], dtype=float32)
    """
    if layout == "fairseq":
        return jnp.asarray(_fairseq_sinusoids(length, width, start, base))
    if layout not in ("interleaved", "halves"):
        raise ArgumentError(
            f"layout is {layout!r}: allowed are 'interleaved', 'halves' and 'fairseq'"
        )
    return jnp.asarray(sinusoidal_float64(length, width, layout, start, base), jnp.float32)


def sinusoidal_float64(
    length: int,
    width: int,
    layout: Literal["interleaved", "halves"] = "interleaved",
    start: int = 0,
    base: float = 10_000.0,
) -> Float64[np.ndarray, "{length} {width}"]:
    """Returns the table of :func:`sinusoidal` before it is rounded to float32.

    Args:
        length: Number of positions.
        width: D.
        layout: ``interleaved`` or ``halves``.
        start: The first position.
        base: The wavelengths go from ``2π`` to ``2π · base``.

    Raises:
        ArgumentError: Another layout.

    Example:
        >>> table = sinusoidal_float64(100, 8)
        >>> bool(np.ptp((table[:-5] * table[5:]).sum(1)) < 4e-15)  # by the distance alone
        True
    """
    if layout not in ("interleaved", "halves"):
        raise ArgumentError(f"layout is {layout!r}: allowed are 'interleaved' and 'halves'")
    angles = np.arange(start, start + length)[:, None] / base ** (np.arange(0, width, 2) / width)
    sines, cosines = np.sin(angles), np.cos(angles)[:, : width // 2]
    if layout == "halves":
        return np.concatenate([sines, cosines], axis=1)
    table = np.empty((length, width))
    table[:, 0::2], table[:, 1::2] = sines, cosines
    return table


def _fairseq_sinusoids(length: int, width: int, start: int, base: float) -> np.ndarray:
    """Returns sinusoids as fairseq computes them, each step rounded to float32."""
    half = width // 2
    step = np.float32(-math.log(base) / max(half - 1, 1))
    frequencies = np.exp((np.arange(half, dtype=np.float32) * step).astype(np.float64))
    places = np.arange(start, start + length, dtype=np.float32)
    angles = places[:, None] * frequencies.astype(np.float32)
    parts = [np.sin(angles), np.cos(angles), np.zeros((length, width % 2), np.float32)]
    return np.concatenate(parts, axis=1)


def sinusoidal_2d(
    rows: int, columns: int, width: int, base: float = 10_000.0
) -> Float[Array, "{rows*columns} {width}"]:
    """Encodings of grid positions, row by row: half of the width for the column, half for the row.

    Each half is :func:`sinusoidal` in the layout ``fairseq``: sines, then cosines.

    Chen et al. 2021 (An Empirical Study of Training Self-Supervised Vision Transformers), section
    5; Beyer et al. 2022 (Better plain ViT baselines for ImageNet-1k), section 2.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        width: D, a multiple of 4.
        base: The wavelengths go from ``2π`` to ``2π · base``.

    Raises:
        ArgumentError: The width is not a multiple of 4.

    Example:
        >>> sinusoidal_2d(2, 2, 4).round(3)
        Array([[0.   , 1.   , 0.   , 1.   ],
               [0.841, 0.54 , 0.   , 1.   ],
               [0.   , 1.   , 0.841, 0.54 ],
               [0.841, 0.54 , 0.841, 0.54 ]], dtype=float32)
    """
    if width % 4:
        raise ArgumentError(f"width is {width}: it must be a multiple of 4")
    across, down = (_fairseq_sinusoids(n, width // 2, 0, base) for n in (columns, rows))
    return jnp.asarray(np.concatenate([np.tile(across, (rows, 1)), down.repeat(columns, 0)], 1))


def rotary_frequencies(
    size: int,
    base: float = 10_000.0,
    scaling: RotaryScaling | None = None,
    interpolation: float = 1.0,
) -> Float[np.ndarray, " {size//2}"]:
    """Radians per position of each pair of a rotary head, ``base^(-2i/H)``.

    With ``scaling``, as in Llama 3.1, wavelengths longer than ``old length / low`` are stretched by
    ``factor``, wavelengths shorter than ``old length / high`` do not change, and those between are
    blended. ``interpolation`` stretches all of them by its value, so that texts longer than in
    training by this factor stay within the angles seen there (Chen et al. 2023, arXiv:2306.15595).

    Example:
        >>> rotary_frequencies(4)
        array([1.  , 0.01])
        >>> rotary_frequencies(4, interpolation=2.0)
        array([0.5  , 0.005])
    """
    frequencies = base ** (-np.arange(0, size, 2) / size) / interpolation
    if scaling is None:
        return frequencies
    factor, low, high, old_length = scaling
    turns = old_length * frequencies / (2 * np.pi)  # within the original length
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return frequencies * (keep + (1 - keep) / factor)


def yarn_frequencies(
    size: int,
    base: float,
    factor: float,
    fast: float,
    slow: float,
    old_length: int,
    whole: bool = True,
) -> Float[np.ndarray, " {size//2}"]:
    """Radians per position, as YaRN stretches them for texts longer by ``factor``.

    Pairs that turn more than ``fast`` times within ``old_length`` positions do not change, pairs
    that turn less than ``slow`` times are stretched, and those between are blended by index. Peng
    et al. 2023, section 3.2, arXiv:2309.00071.

    Args:
        size: H, or the number of its rotary dimensions.
        base: Base of the unscaled frequencies, ``base^(-2i/H)``.
        factor: Ratio of the longest text to the longest training text.
        fast: Turns above which a pair does not change (32 in the paper).
        slow: Turns below which a pair is stretched (1 in the paper).
        old_length: Length of the longest training text.
        whole: Whether to round the ends of the blend to whole pairs.

    Example:
        >>> yarn_frequencies(8, 100.0, 4.0, 32.0, 1.0, 1024).round(3)
        array([1.   , 0.316, 0.081, 0.02 ])
    """
    # The index, as a fraction, of the pair that turns this many times within the old length.
    pair = lambda turns: size * math.log(old_length / (turns * 2 * math.pi)) / (2 * math.log(base))
    low, high = pair(fast), pair(slow)
    if whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low if high != low else 1e-3
    stretched = np.clip((np.arange(size // 2) - low) / width, 0.0, 1.0)
    return rotary_frequencies(size, base) * (1 - stretched + stretched / factor)


def dynamic_base(size: int, base: float, factor: float, old_length: int, length: int) -> float:
    """The base of a rotary head for texts of ``length``, under dynamic NTK scaling.

    ``base · (factor · length / old_length - (factor - 1))^(H / (H - 2))`` beyond the training
    length, and ``base`` up to it. Source: bloc97 and emozilla 2023, as in transformers.

    Raises:
        ArgumentError: There are fewer than 4 rotary dimensions, so the exponent is undefined.

    Example:
        >>> dynamic_base(64, 10_000.0, 2.0, 1024, 1000)
        10000.0
        >>> round(dynamic_base(64, 10_000.0, 2.0, 1024, 2048))
        31082
    """
    if size < 4:
        raise ArgumentError(f"dynamic scaling needs at least 4 rotary dimensions, not {size}")
    longer = max(length, old_length) / old_length
    return base * (factor * longer - (factor - 1)) ** (size / (size - 2))


@real_arguments
def apply_rotary_embedding(
    x: Float[Array, "B T N H"],
    positions: Int[Array, "#B T"],
    frequencies: Float[np.ndarray, " pairs"] | None = None,
    attention_factor: float = 1.0,
) -> Float[Array, "B T N H"]:
    """Rotary position embedding: rotates pairs of channels, so ``q · k`` depends only on ``t - s``.

    Pairs are ``(x[i], x[i + P])`` in the first ``2P`` dimensions, the convention of GPT-NeoX and of
    Hugging Face; the remaining dimensions do not change. Norms change only by
    ``attention_factor``. Su et al. 2021, arXiv:2104.09864.

    Args:
        x: Heads of queries or keys.
        positions: Position of each token.
        frequencies: Radians per position of each of P pairs; None is :func:`rotary_frequencies` for
            all pairs.
        attention_factor: Scale of the rotated channels (YaRN).

    Raises:
        ArgumentError: An odd head size, which has no pairs, or more pairs than fit in a head.

    Example:
        >>> x = jnp.array([1.0, 0.0])[None, None, None]
        >>> apply_rotary_embedding(x, jnp.array([[1]]))[0, 0, 0].round(4)
        Array([0.5403, 0.8415], dtype=float32)
    """
    H = x.shape[-1]
    if frequencies is None:
        if H % 2:
            raise ArgumentError(f"rotary positions need an even head size, not H = {H}")
        frequencies = rotary_frequencies(H)
    pairs = len(frequencies)
    if 2 * pairs > H:
        raise ArgumentError(f"{pairs} rotary frequencies: a head of size {H} has at most {H // 2}")
    turns = jnp.asarray(frequencies, jnp.float32)[None, None, None]
    angles = positions.astype(jnp.float32)[:, :, None, None] * turns
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if attention_factor != 1.0:
        cos, sin = cos * attention_factor, sin * attention_factor
    a, b, rest = jnp.split(x.astype(jnp.float32), (pairs, 2 * pairs), axis=-1)
    rotated = [a * cos - b * sin, b * cos + a * sin]
    if 2 * pairs < H:
        rotated.append(rest)
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def alibi_slopes(heads: int) -> Float[np.ndarray, " {heads}"]:
    """Returns the slope of each head: ``2^(-8n/N)`` for ``n = 1 .. N``.

    If the number of heads is not a power of two, the slopes of the next smaller power come first,
    then every other slope of the next larger, as in the authors' code. Press et al. 2021,
    arXiv:2108.12409.

    Example:
        >>> alibi_slopes(4)
        array([0.25      , 0.0625    , 0.015625  , 0.00390625])
        >>> alibi_slopes(3)
        array([0.0625    , 0.00390625, 0.25      ])
    """
    power = 2 ** int(math.log2(heads))
    slopes = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    extra = 2.0 ** (-4.0 / power * np.arange(1, 2 * (heads - power), 2))
    return np.concatenate([slopes, extra])


def alibi_bias(
    T: int, S: int, heads: int, offset: int | Int[Array, ""] = 0
) -> Float[Array, "1 {heads} {T} {S}"]:
    """The attention bias that falls linearly with distance, ``-slope · |t + offset - s|``.

    Press et al. 2021, arXiv:2108.12409.

    Example:
        >>> alibi_bias(2, 2, 1)[0, 0]
        Array([[-0.        , -0.00390625],
               [-0.00390625, -0.        ]], dtype=float32)
    """
    slopes = jnp.asarray(alibi_slopes(heads), jnp.float32)[None, :, None, None]
    return -slopes * jnp.abs(_distances(T, S, offset))[None, None].astype(jnp.float32)


def relative_position_bucket(
    T: int,
    S: int,
    bidirectional: bool = True,
    buckets: int = 32,
    max_distance: int = 128,
    offset: int | Int[Array, ""] = 0,
) -> Int[Array, "{T} {S}"]:
    """Returns the bucket of the distance from each query to each key.

    Half of a direction's buckets hold one distance each; the rest grow geometrically up to
    ``max_distance``, and all larger distances share the last. If ``bidirectional``, keys ahead use
    the upper half of the buckets; otherwise they share bucket 0 with the query's own position.

    Raffel et al. 2020 (T5), section 2.1. The edges are computed on the host, so a traced ``offset``
    falls into the same buckets as a static one.

    Raises:
        ArgumentError: Too few buckets to halve, or ``max_distance`` is too small for the exact
            ones.

    Example:
        >>> relative_position_bucket(1, 6, bidirectional=False, buckets=4, max_distance=8, offset=5)
        Array([[3, 3, 2, 2, 1, 0]], dtype=int32)
    """
    exact = buckets // (4 if bidirectional else 2)
    if exact < 1 or max_distance <= exact:
        raise ArgumentError(
            f"{buckets} buckets up to distance {max_distance}: at least 4 are needed (2 in one "
            f"direction), and a distance above {exact}, since smaller ones have their own"
        )
    ahead = _distances(T, S, offset)
    upper = jnp.zeros_like(ahead)
    if bidirectional:
        buckets //= 2
        upper = jnp.where(ahead > 0, buckets, 0)
        distance = jnp.abs(ahead)
    else:
        distance = jnp.maximum(-ahead, 0)
    table = jnp.asarray(_bucket_of_distance(buckets, max_distance))
    return upper + table[jnp.minimum(distance, max_distance)]


def _bucket_of_distance(buckets: int, max_distance: int) -> Int[np.ndarray, " distances"]:
    """The bucket of each distance ``0 .. max_distance``; larger ones share the last."""
    exact = buckets // 2
    distance = np.arange(max_distance + 1)
    # In float32, in T5's order of operations: published weights were trained with its rounding.
    far = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    far = far / np.float32(math.log(max_distance / exact)) * np.float32(buckets - exact)
    far = np.minimum(exact + far.astype(np.int32), buckets - 1)
    return np.where(distance < exact, distance, far).astype(np.int32)


def _distances(T: int, S: int, offset: int | Array) -> Int[Array, "{T} {S}"]:
    """``s - (t + offset)``."""
    queries = jnp.arange(T, dtype=jnp.int32)[:, None] + offset
    return jnp.arange(S, dtype=jnp.int32)[None, :] - queries
