"""Logits processors and sampling for text generation.

A forbidden token has logit −∞, so its probability is 0. Processors keep at least one token,
except :func:`suppress_tokens` and :func:`no_repeat_ngram`, which may forbid all of them.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Key

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.array_arguments import real_arguments
from transformer_jax.functional.partitioning import axis_size, current_mesh, partition_spec

# One value for all rows, or one for each row.
Each = Float[Array, ""] | Float[Array, " B"] | float
EachInt = Int[Array, ""] | Int[Array, " B"] | int

GROUP = 64  # neighbours in the vocabulary that are reduced together


def argmax(x: Float[Array, "*rows V"] | Int[Array, "*rows V"]) -> Int[Array, "*rows"]:
    """Index of the first maximum of each row, exactly as :func:`jax.numpy.argmax`.

    Uses ``max`` and a comparison, which XLA:CPU runs many times faster than its argmax; on NVIDIA's
    GPUs, a single pass over ``x``.

    Example:
        >>> argmax(jnp.array([[1.0, 3.0, 3.0]]))
        Array([1], dtype=int32)
    """
    cuda = _argmax if axis_size("tensor") > 1 else _argmax_in_one_pass
    return lax.platform_dependent(x, cuda=cuda, default=_argmax)


def _argmax_in_one_pass(x: Array) -> Array:
    return lax.argmax(x, x.ndim - 1, jnp.int32)


def _argmax(x: Array) -> Array:
    places = lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    here = (x == x.max(-1, keepdims=True)) | (x != x)
    return jnp.where(here, places, x.shape[-1]).min(-1)


@real_arguments
def top_k_two_stage(
    x: Float[Array, "*rows V"], k: int, group: int = GROUP
) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """The ``k`` largest of each row, descending, with indices: a faster :func:`jax.lax.top_k`.

    Selects the ``k`` groups of ``group`` neighbours with the largest maxima, then the ``k`` largest
    values within them. Equal values are in the order of their indices, as in ``lax.top_k``: for
    each group that is left out, ``k`` groups have a maximum that is larger, or equal and earlier.

    On a mesh whose ``tensor`` axis divides the vocabulary, each device selects from its own part,
    and only the selected values are gathered.

    Example:
        >>> top_k_two_stage(jnp.array([0.0, 5.0, 1.0, 5.0, 2.0]), 3, group=2)
        (Array([5., 5., 2.], dtype=float32), Array([1, 3, 4], dtype=int32))
    """
    V = x.shape[-1]
    if (parts := axis_size("tensor")) > 1 and V % parts == 0:
        return _top_k_of_parts(x, k, group)
    if -(-V // group) <= k:
        return top_k_of_rows(x, k)
    cut = _grouped(x, group)
    return _top_k_of_groups(cut, cut.max(-1), k)


def _top_k_of_groups(cut: Array, tops: Array, k: int) -> tuple[Array, Array]:
    """Returns the ``k`` largest of each row, given its groups and their maxima."""
    best = top_k_of_rows(tops, k)[1]
    # Keys of 32 bits are sorted together with places.
    cuda = _best_of_groups_in_one_sort if cut.dtype == jnp.float32 else _best_of_groups
    return lax.platform_dependent(cut, best, cuda=cuda, default=_best_of_groups)


def _best_of_groups(cut: Array, best: Array) -> tuple[Array, Array]:
    """Returns the largest values of groups, as many as there are groups, with their indices."""
    *rows, k = best.shape
    group = cut.shape[-1]
    # In ascending order, so that equal candidates stay in index order.
    best = jnp.sort(best, axis=-1)
    candidates = jnp.take_along_axis(cut, best[..., None], axis=-2)
    values, at = top_k_of_rows(candidates.reshape(*rows, k * group), k)
    return values, jnp.take_along_axis(best, at // group, axis=-1) * group + at % group


def _best_of_groups_in_one_sort(cut: Array, best: Array) -> tuple[Array, Array]:
    *rows, k = best.shape
    group = cut.shape[-1]
    candidates = jnp.take_along_axis(cut, best[..., None], axis=-2)
    within = lax.broadcasted_iota(best.dtype, candidates.shape, candidates.ndim - 1)
    places = best[..., None] * group + within
    order = ~_signed_order(lax.bitcast_convert_type(candidates, jnp.int32))
    flat = (part.reshape(*rows, k * group) for part in (order, places))
    order, places = (part[..., :k] for part in lax.sort(tuple(flat), num_keys=2))
    return lax.bitcast_convert_type(_signed_order(~order), cut.dtype), places


def _signed_order(bits: Array) -> Array:
    """Maps the bits of floats to integers in the same order, and back."""
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


@real_arguments
def top_k_of_rows(
    x: Float[Array, "*rows V"], k: int
) -> tuple[Float[Array, "*rows k"], Int[Array, "*rows k"]]:
    """Computes :func:`jax.lax.top_k`; on a mesh, each device has its own rows.

    Example:
        >>> top_k_of_rows(jnp.array([0.0, 5.0, 1.0]), 2)
        (Array([5., 1.], dtype=float32), Array([1, 2], dtype=int32))
    """

    def part(x: Array) -> tuple[Array, Array]:
        values, places = lax.top_k(x, k)
        return values, places

    # XLA:CPU would gather all rows first.
    mesh, rows = current_mesh(), _rows_spec(x)
    if mesh is None:
        return part(x)
    return jax.shard_map(part, in_specs=rows, out_specs=rows, check_vma=False)(x)


def _rows_spec(x: Array) -> P:
    """The layout of the rows of logits on the current mesh."""
    mesh = current_mesh()
    if mesh is None:
        return P()
    return partition_spec(("batch", *[None] * (x.ndim - 2))[: x.ndim - 1], x.shape[:-1], mesh.shape)


def _top_k_of_parts(x: Array, k: int, group: int) -> tuple[Array, Array]:
    rows = _rows_spec(x)

    def part(x: Array) -> tuple[Array, Array]:
        values, places = top_k_two_stage(x, min(k, x.shape[-1]), group)
        places = places + lax.axis_index("tensor") * x.shape[-1]
        gather = lambda a: lax.all_gather(a, "tensor", axis=a.ndim - 1, tiled=True)
        # Parts are concatenated in index order, so equal values stay in it.
        values, best = lax.top_k(gather(values), k)
        return values, jnp.take_along_axis(gather(places), best, axis=-1)

    found = jax.shard_map(part, in_specs=P(*rows, "tensor"), out_specs=P(*rows), check_vma=False)
    return found(x)


@real_arguments
def take_logit(
    logits: Float[Array, "*rows V"], token: Int[Array, "*rows"] | int
) -> Float[Array, "*rows"]:
    """The logit of one token per row, or of the same token in all rows.

    Example:
        >>> take_logit(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0]))
        Array([2., 3.], dtype=float32)
    """
    if axis_size("tensor") > 1:
        # A sum over the vocabulary leaves its parts on their devices.
        ids = jnp.broadcast_to(jnp.asarray(token, jnp.int32), logits.shape[:-1])
        here = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == ids[..., None]
        return jnp.where(here, logits, 0).sum(-1)
    if isinstance(token, int):
        return logits[..., token]
    return jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]


@real_arguments
def normalizer(
    logits: Float[Array, "*rows V"],
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """``max x`` and ``log Σ exp(x - max x)``, which together are ``log Σ exp x``.

    A log-probability is ``(x - first) - second``. Adding the two first would round like large
    logits do, by 5e-4 at 1e4, and the difference from ``x`` with it. Where a logit is NaN or
    +infinite, or all are -infinite, both are NaN, or the second is.

    Example:
        >>> peak, rest = normalizer(jnp.array([1e4, 1e4]))
        >>> f"{peak:.0f} {rest:.4f}"
        '10000 0.6931'
    """
    # Groups would move a vocabulary that is split over devices.
    cuda = _normalizer if axis_size("tensor") > 1 else _normalizer_in_one_pass
    return lax.platform_dependent(logits, cuda=cuda, default=_normalizer)


def _normalizer(x: Array) -> tuple[Array, Array]:
    peak = x.max(-1)
    return peak, jnp.log(jnp.exp(x - peak[..., None]).sum(-1))


def _normalizer_in_one_pass(x: Array) -> tuple[Array, Array]:
    """The same by groups, those of :func:`top_k_two_stage`: XLA:GPU reads ``x`` once for both."""
    cut = _grouped(x, GROUP)
    return _normalizer_of_groups(*_sum_exponentials(cut, jnp.ones_like(cut)))


def _normalizer_of_groups(tops: Array, sums: Array) -> tuple[Array, Array]:
    peak, total = _sum_exponentials(tops, sums)
    return peak, jnp.where(jnp.isfinite(peak), jnp.log(total), jnp.nan)


def _sum_exponentials(tops: Array, sums: Array) -> tuple[Array, Array]:
    """Returns the maximum of a row of maxima, and the sum of exponentials relative to it."""
    starts = jnp.array(-jnp.inf, tops.dtype), jnp.array(0, sums.dtype)
    return lax.reduce((tops, sums), starts, _merge_sums, (tops.ndim - 1,))


def _merge_sums(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, Array]:
    high = jnp.maximum(a[0], b[0])
    # The difference of equal infinite maxima would not be a number.
    part = lambda top, total: jnp.where(top == high, total, total * jnp.exp(top - high))
    return high, part(*a[:2]) + part(*b[:2])


@real_arguments
def normalizer_and_top_k(
    logits: Float[Array, "*rows V"], allowed: Float[Array, "*rows V"], k: int
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """:func:`normalizer` of ``logits``, and :func:`top_k_two_stage` of ``allowed``.

    On NVIDIA's GPUs, a single pass reads both: ``allowed`` are logits of which some are masked.

    Example:
        >>> x = jnp.array([1e4, 1e4, 0.0])
        >>> (peak, rest), (best, places) = normalizer_and_top_k(x, x.at[0].set(-jnp.inf), 1)
        >>> f"{peak:.0f} {rest:.4f} {best[0]:.0f} {places[0]}"
        '10000 0.6931 10000 1'
    """
    if axis_size("tensor") > 1 or -(-logits.shape[-1] // GROUP) <= k:
        return normalizer(logits), top_k_two_stage(allowed, k)
    *both, tops = lax.platform_dependent(
        logits, allowed, cuda=_both_in_one_pass, default=_normalizer_and_tops
    )
    return tuple(both), _top_k_of_groups(_grouped(allowed, GROUP), tops, k)


def _normalizer_and_tops(logits: Array, allowed: Array) -> tuple[Array, Array, Array]:
    return *_normalizer(logits), _grouped(allowed, GROUP).max(-1)


def _both_in_one_pass(logits: Array, allowed: Array) -> tuple[Array, Array, Array]:
    x, y = _grouped(logits, GROUP), _grouped(allowed, GROUP)
    low, zero = jnp.array(-jnp.inf, x.dtype), jnp.array(0, x.dtype)
    merge = lambda a, b: (*_merge_sums(a, b), jnp.maximum(a[2], b[2]))
    tops, sums, best = lax.reduce((x, jnp.ones_like(x), y), (low, zero, low), merge, (x.ndim - 1,))
    return *_normalizer_of_groups(tops, sums), best


def _grouped(x: Array, group: int) -> Array:
    """Returns rows in groups of neighbours, the last one filled up with ``-inf``."""
    *rows, V = x.shape
    groups = -(-V // group)
    pad = [(0, 0)] * len(rows) + [(0, groups * group - V)]
    return jnp.pad(x, pad, constant_values=-jnp.inf).reshape(*rows, groups, group)


@real_arguments
def sample(logits: Float[Array, "B V"], key: Key[Array, ""] | Key[Array, " B"]) -> Int[Array, " B"]:
    """One token per row, sampled from ``softmax(logits)``.

    With one key per row, the sample of a row does not depend on the other rows.

    Source: the Gumbel-max trick; Maddison et al. 2014, https://arxiv.org/abs/1411.0030.

    Example:
        >>> sample(jnp.array([[0.0, -jnp.inf]]), jax.random.key(0))
        Array([0], dtype=int32)
    """
    if key.ndim:
        noise = jax.vmap(lambda k: jax.random.gumbel(k, logits.shape[1:], logits.dtype))(key)
    else:
        noise = jax.random.gumbel(key, logits.shape, logits.dtype)
    return argmax(logits + noise)


@real_arguments
def temperature(logits: Float[Array, "B V"], t: Each) -> Float[Array, "B V"]:
    """``logits / t``; ``t = 0`` (below 1e-20) is greedy: only the first maximum stays.

    Ackley et al. 1985, the temperature of a Boltzmann machine.

    Example:
        >>> temperature(jnp.array([[1.0, 2.0]]), 0.5)
        Array([[2., 4.]], dtype=float32)
        >>> temperature(jnp.array([[1.0, 2.0]]), 0.0)
        Array([[-inf,   2.]], dtype=float32)
    """
    t = _column(t, logits)
    zero = t < 1e-20
    greedy = _only(logits, _is(argmax(logits), logits))
    return jnp.where(zero, greedy, logits / jnp.where(zero, 1, t))


@real_arguments
def top_k(logits: Float[Array, "B V"], k: EachInt) -> Float[Array, "B V"]:
    """Top-k: keeps the ``k`` largest logits of each row; of equal ones, the first.

    ``k`` is clipped to 1 .. ``V``. Fan et al. 2018, https://arxiv.org/abs/1805.04833.

    Example:
        >>> top_k(jnp.array([[1.0, 2.0, 3.0]]), 2)
        Array([[-inf,   2.,   3.]], dtype=float32)
    """
    V = logits.shape[1]
    if isinstance(k, int):
        places = top_k_two_stage(logits, min(max(k, 1), V))[1]
        return _only(logits, _present(logits, places, jnp.ones_like(places, bool)))
    order, k = _order(logits), jnp.clip(k, 1, V).reshape(-1, 1)
    least = _bisect(lambda limit: (order >= limit).sum(-1, keepdims=True) >= k, len(logits))
    return _only(logits, _first(order, least, k - (order > least).sum(-1, keepdims=True)))


@real_arguments
def top_p(logits: Float[Array, "B V"], p: Each) -> Float[Array, "B V"]:
    """Top-p (nucleus): keeps the fewest most probable tokens whose probabilities sum to ``p``.

    The token that crosses ``p`` is kept, so at least one is; ``p = 1`` forbids nothing. A sum
    within one part in a million of ``p`` counts as reaching it, to allow for rounding. Of equal
    tokens the first are kept. Holtzman et al. 2019, https://arxiv.org/abs/1904.09751.

    Example:
        >>> top_p(jnp.log(jnp.array([[0.5, 0.25, 0.15, 0.1]])), 0.7) > -jnp.inf
        Array([[ True,  True, False, False]], dtype=bool)
    """
    p = jnp.asarray(p, jnp.float32).reshape(-1, 1)
    order, likely = _order(logits), jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
    mass = lambda here: jnp.where(here, likely, 0).sum(-1, keepdims=True)
    # At least a little is required: p = 0 would be reached by no token at all.
    enough = jnp.maximum(p * (1 - 1e-6), jnp.finfo(jnp.float32).tiny)
    least = _bisect(lambda limit: mass(order >= limit) >= enough, len(logits))
    each = jnp.where(order == least, likely, 0).max(-1, keepdims=True)
    room = jnp.ceil((enough - mass(order > least)) / jnp.where(each > 0, each, 1))
    return _only(logits, _first(order, least, jnp.maximum(room, 1)) | (p >= 1))


@real_arguments
def min_p(logits: Float[Array, "B V"], p: Each) -> Float[Array, "B V"]:
    """Min-p: keeps tokens with at least ``p`` times the highest probability of the row.

    Source: Nguyen et al. 2024, https://arxiv.org/abs/2407.01082.

    Example:
        >>> min_p(jnp.log(jnp.array([[0.6, 0.3, 0.1]])), 0.4) > -jnp.inf
        Array([[ True,  True, False]], dtype=bool)
    """
    p = jnp.clip(_column(p, logits), 0, 1)
    return _only(logits, logits >= logits.max(-1, keepdims=True) + jnp.log(p))


@real_arguments
def repetition_penalty(
    logits: Float[Array, "B V"],
    tokens: Int[Array, "B T"],
    valid: Bool[Array, "B T"] | Int[Array, " B"],
    penalty: Each,
) -> Float[Array, "B V"]:
    """Divides positive logits of earlier ``tokens`` by ``penalty``, and multiplies negative ones.

    Source: Keskar et al. 2019, https://arxiv.org/abs/1909.05858, with the sign handled as in
    Hugging Face ``transformers``.

    Args:
        logits: Logits of the next token.
        tokens: Tokens of the prompt and the text so far.
        valid: Which of ``tokens`` count, or how many in each row.
        penalty: Above 1 makes ``tokens`` less probable.

    Example:
        >>> seen, lengths = jnp.array([[0, 1, 2]]), jnp.array([2])
        >>> repetition_penalty(jnp.array([[2.0, -2.0, 2.0]]), seen, lengths, 2.0)
        Array([[ 1., -4.,  2.]], dtype=float32)
    """
    if valid.ndim == 1:
        valid = jnp.arange(tokens.shape[1])[None] < valid[:, None]
    penalty = _column(penalty, logits)
    changed = jnp.where(logits > 0, logits / penalty, logits * penalty)
    return jnp.where(_present(logits, tokens, valid), changed, logits)


@real_arguments
def no_repeat_ngram(
    logits: Float[Array, "B V"], tokens: Int[Array, "B T"], length: EachInt, n: int
) -> Float[Array, "B V"]:
    """Forbids tokens that would repeat an n-gram of ``tokens[:length]``.

    Source: Paulus et al. 2017, https://arxiv.org/abs/1705.04304.

    Raises:
        ArgumentError: ``n`` is below 1.

    Example:
        >>> seen = jnp.array([[3, 1, 2, 3, 0]])  # 3 was followed by 1
        >>> no_repeat_ngram(jnp.zeros((1, 5)), seen, 4, 2)
        Array([[  0., -inf,   0.,   0.,   0.]], dtype=float32)
    """
    if n < 1:
        raise ArgumentError(f"n is {n}; an n-gram has at least 1 token")
    B, T = tokens.shape
    if n > T:
        return logits
    length = jnp.broadcast_to(jnp.asarray(length, jnp.int32).reshape(-1, 1), (B, 1))
    ends = jnp.arange(n - 1, T)[None]
    same = ends < length
    for back in range(1, n):
        last = jnp.take_along_axis(tokens, jnp.clip(length - back, 0, T - 1), axis=1)
        same = same & (tokens[:, n - 1 - back : T - back] == last)
    return jnp.where(_present(logits, tokens[:, n - 1 :], same), -jnp.inf, logits)


@real_arguments
def suppress_tokens(
    logits: Float[Array, "B V"], ids: Int[Array, " n"] | Int[Array, "B n"]
) -> Float[Array, "B V"]:
    """Forbids the tokens ``ids``, for all rows or per row; negative ids are skipped.

    Example:
        >>> suppress_tokens(jnp.zeros((1, 3)), jnp.array([1, -1]))
        Array([[  0., -inf,   0.]], dtype=float32)
    """
    ids = jnp.broadcast_to(ids if ids.ndim == 2 else ids[None], (len(logits), ids.shape[-1]))
    return jnp.where(_present(logits, ids, ids >= 0), -jnp.inf, logits)


@real_arguments
def force_token(logits: Float[Array, "B V"], id: EachInt) -> Float[Array, "B V"]:
    """Forces the token ``id`` by giving it logit 0; rows with a negative ``id`` do not change.

    Example:
        >>> force_token(jnp.zeros((2, 3)), jnp.array([1, -1]))
        Array([[-inf,   0., -inf],
               [  0.,   0.,   0.]], dtype=float32)
    """
    wanted = jnp.broadcast_to(jnp.asarray(id, jnp.int32).reshape(-1), logits.shape[:1])
    forced = jnp.where(_is(wanted, logits), 0.0, -jnp.inf).astype(logits.dtype)
    return jnp.where(wanted[:, None] < 0, logits, forced)


def _column(value: Each, logits: Array) -> Array:
    """One value per row, or one for all rows, shaped to broadcast against ``[B V]``."""
    return jnp.asarray(value, logits.dtype).reshape(-1, 1)


def _only(logits: Array, keep: Array) -> Array:
    return jnp.where(keep, logits, -jnp.inf)


def _is(ids: Array, logits: Array) -> Array:
    return lax.broadcasted_iota(jnp.int32, logits.shape, 1) == ids[:, None]


def _order(logits: Array) -> Array:
    """Integers in the order of the logits (rounded to float32), equal for equal logits."""
    x = logits.astype(jnp.float32)
    return _signed_order(lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32))


def _bisect(enough: Callable[[Array], Array], rows: int) -> Array:
    """Returns the greatest limit per row that lets enough entries through, by bisection.

    On XLA:CPU, sorting a vocabulary takes many times as long as these 32 passes over it.
    """

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)  # the mean of both, without overflow
        fine = enough(middle)
        return jnp.where(fine, middle, low), jnp.where(fine, high, middle)

    ends = jnp.iinfo(jnp.int32)
    bounds = tuple(jnp.full((rows, 1), end, jnp.int32) for end in (ends.min, ends.max))
    return lax.fori_loop(0, 32, halve, bounds)[0]


def _first(order: Array, least: Array, room: Array) -> Array:
    """Selects the entries above ``least``, and the first ``room`` that equal it, in each row."""
    equal = order == least
    crowded = (equal.sum(-1, keepdims=True) > room).any()
    early = lambda equal: equal & (jnp.cumsum(equal, axis=-1) <= room)
    return (order > least) | lax.cond(crowded, early, lambda equal: equal, equal)


def _present(logits: Array, ids: Array, valid: Array) -> Array:
    """Marks the tokens of the vocabulary that are among the valid ``ids`` of their row."""
    V = logits.shape[1]
    rows = lax.broadcasted_iota(jnp.int32, ids.shape, 0)
    found = jnp.zeros(logits.shape, bool)
    return found.at[rows, jnp.where(valid, ids, V)].set(True, mode="drop")
