"""Attention masks: causality, windows, lengths and segments, in symbolic form.

Kernels read the structure; only a kernel that needs the boolean array builds it.
True means visible (the opposite of PyTorch's ``key_padding_mask``).
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer, PyTree, Shaped

from transformer_jax.core.arguments import check_values
from transformer_jax.core.config_fields import Range
from transformer_jax.core.errors import ArgumentError
from transformer_jax.core.trees import Child
from transformer_jax.functional.array_arguments import check_mask

__all__ = [
    "Mask",
    "as_mask",
    "causal",
    "dense_mask",
    "length_mask",
    "padding_mask",
    "segment_mask",
    "sliding_window_mask",
]

# The types of the fields of a mask that users make.
_FIELDS = {
    "causal": bool,
    "window": Annotated[int, Range(1)] | None,
    "kv_lengths": Integer[Array, " B"] | Integer[np.ndarray, " B"] | None,
    "q_lengths": Integer[Array, " B"] | Integer[np.ndarray, " B"] | None,
    "q_segments": Integer[Array, "B T"] | Integer[np.ndarray, "B T"] | None,
    "kv_segments": Integer[Array, "B S"] | Integer[np.ndarray, "B S"] | None,
    "offset": int | Integer[Array, ""] | Integer[np.ndarray, ""],
}
# Causal, window, and an offset that is known.
Static = tuple[bool, int | None, int | None]
_STATIC = ("causal", "window")
_ARRAYS = ("kv_lengths", "q_lengths", "q_segments", "kv_segments", "dense")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mask:
    """Attention mask, the logical AND of its fields; a pytree, so it passes through ``jax.jit``.

    Query ``t`` has position ``t + offset`` and key ``s`` position ``s``. An ``int`` offset stays
    static under ``jax.jit`` and ``jax.checkpoint``, so kernels can skip causally masked blocks; an
    array is traced, as in decoding.

    Raises:
        ArgumentError: A field of another type, such as a float array as ``dense``.

    Attributes:
        causal: Only keys at or before the query's own position are visible.
        window: Only keys fewer than this many positions away are visible, on either side.
        kv_lengths: Number of visible keys in each row, counted from the first.
        q_lengths: Index in each row from which queries are fully masked.
        q_segments: Segment of each query in packed rows, which sees only keys of its own segment.
            Segment 0 is padding, which is fully masked and invisible.
        kv_segments: Segment of each key; given together with ``q_segments``.
        dense: Any other mask, as an array that broadcasts to ``[B N T S]``.
        offset: Position of the first query.

    Example:
        >>> mask = causal() & length_mask(jnp.array([2]))
        >>> mask.array(3, 3)[0, 0].astype(int)
        Array([[1, 0, 0],
               [1, 1, 0],
               [1, 1, 0]], dtype=int32)
    """

    causal: bool = False
    window: int | None = None
    kv_lengths: Child[Array] | None = None
    q_lengths: Child[Array] | None = None
    q_segments: Child[Array] | None = None
    kv_segments: Child[Array] | None = None
    dense: Child[Array] | None = None
    offset: Child[int | Array] = 0

    def __post_init__(self) -> None:
        check_values("Mask: ", _FIELDS, {name: getattr(self, name) for name in _FIELDS})
        if self.dense is not None:
            check_mask(self.dense, "Mask: dense")
        if (self.q_segments is None) != (self.kv_segments is None):
            raise ArgumentError("Mask: q_segments and kv_segments are given together, or neither")

    @staticmethod
    def padding(which: Int[Array, " B"] | Bool[Array, "B S"]) -> "Mask":
        """Padding mask: the first ``which`` keys of each row are visible, or those that are True.

        Example:
            >>> Mask.padding(jnp.array([2])).array(1, 3)[0, 0].astype(int)
            Array([[1, 1, 0]], dtype=int32)
        """
        return padding_mask(which)

    @property
    def positional(self) -> bool:
        """Returns whether the mask depends on positions, and therefore on ``offset``."""
        return self.causal or self.window is not None

    def __and__(self, other: "Mask | Shaped[Array, '...']") -> "Mask":
        """The mask that allows only what both masks allow.

        Raises:
            ArgumentError: The windows have different offsets, which no single mask can express.
        """
        other = as_mask(other) or Mask()
        window, offset = _both_positions(self, other)
        q_segments, kv_segments = self.q_segments, self.kv_segments
        dense = _both(self.dense, other.dense, jnp.logical_and)
        if q_segments is None:
            q_segments, kv_segments = other.q_segments, other.kv_segments
        elif other.q_segments is not None and other.kv_segments is not None:
            # Two packings at once: one of them has to become an array.
            dense = _both(
                dense, _same_segment(other.q_segments, other.kv_segments), jnp.logical_and
            )
        return Mask(
            causal=self.causal or other.causal,
            window=window,
            kv_lengths=_both(self.kv_lengths, other.kv_lengths, jnp.minimum),
            q_lengths=_both(self.q_lengths, other.q_lengths, jnp.minimum),
            q_segments=q_segments,
            kv_segments=kv_segments,
            dense=dense,
            offset=offset,
        )

    def array(self, T: int, S: int) -> Bool[Array, "#B #N {T} {S}"] | None:
        """The mask as an array, or None if everything is visible."""
        found = self.block(0, T, 0, S)
        if found is None:
            return None
        return jnp.broadcast_to(found, (*found.shape[:2], T, S))

    def any_visible(self, T: int, S: int) -> Bool[Array, "#B #N {T} 1"] | None:
        """Queries that see any key, or None if all do."""
        arrays = (self.kv_lengths, self.q_lengths, self.q_segments, self.dense)
        if isinstance(self.offset, int) and all(one is None for one in arrays):
            first = self.causal and self.window is None and S > 0 <= self.offset
            if first or 0 <= self.offset <= S - T:
                return None
        found = self.array(T, S)
        return None if found is None else found.any(-1, keepdims=True)

    def block(
        self, t0: int | Int[Array, ""], t: int, s0: int | Int[Array, ""], s: int
    ) -> Bool[Array, "#B #N #t #s"] | None:
        """Queries ``t0 .. t0 + t`` against keys ``s0 .. s0 + s``; the starts may be traced.

        Blocks must lie inside the arrays that the mask holds (see :meth:`padded`).
        Dimensions that do not matter have size 1; None means that everything is visible.
        """
        rows = jnp.arange(t, dtype=jnp.int32)[:, None] + t0
        cols = jnp.arange(s, dtype=jnp.int32)[None, :] + s0
        parts: list[Array] = []
        if self.positional:
            ahead = cols - (rows + self.offset)
            if self.causal:
                parts.append((ahead <= 0)[None, None])
            if self.window is not None:
                parts.append((jnp.abs(ahead) < self.window)[None, None])
        if self.kv_lengths is not None:
            parts.append(cols[None, None] < self.kv_lengths[:, None, None, None])
        if self.q_lengths is not None:
            parts.append(rows[None, None] < self.q_lengths[:, None, None, None])
        if self.q_segments is not None and self.kv_segments is not None:
            q, kv = _cut(self.q_segments, 1, t0, t), _cut(self.kv_segments, 1, s0, s)
            parts.append(_same_segment(q, kv))
        if self.dense is not None:
            parts.append(_cut(_cut(self.dense, 2, t0, t), 3, s0, s))
        allowed = None
        for part in parts:
            allowed = _both(allowed, part, jnp.logical_and)
        return allowed

    def skip_queries(self, skip: int) -> "Mask":
        """The same mask for the queries from ``skip`` on.

        Example:
            >>> causal().skip_queries(2).array(1, 4)[0, 0].astype(int)
            Array([[1, 1, 1, 0]], dtype=int32)
        """
        return self._of_queries(
            skip, lambda x, axis: jax.lax.slice_in_dim(x, skip, None, axis=axis)
        )

    def part_of_queries(self, start: int | Int[Array, ""], size: int) -> "Mask":
        """The same mask for the ``size`` queries from ``start`` on, which may be traced.

        Example:
            >>> causal().part_of_queries(jnp.int32(1), 1).array(1, 3)[0, 0].astype(int)
            Array([[1, 1, 0]], dtype=int32)
        """
        cut = lambda x, axis: jax.lax.dynamic_slice_in_dim(x, start, size, axis)
        return self._of_queries(start, cut)

    def _of_queries(
        self, start: int | Int[Array, ""], cut: Callable[[Array, int], Array]
    ) -> "Mask":
        """The mask of the queries from ``start`` on; ``cut`` slices an axis of an array."""
        dense, ends, segments = self.dense, self.q_lengths, self.q_segments
        return dataclasses.replace(
            self,
            q_lengths=None if ends is None else jnp.maximum(ends - start, 0),
            q_segments=None if segments is None else cut(segments, 1),
            dense=dense if dense is None or dense.shape[2] == 1 else cut(dense, 2),
            offset=self.offset + start if self.positional else self.offset,
        )

    def padded(self, T: int, S: int, more_T: int, more_S: int) -> "Mask":
        """The same mask for ``more_T`` more queries and ``more_S`` more keys, which are masked.

        The keys visible to the added queries are unspecified.
        """
        if more_T == 0 and more_S == 0:
            return self
        ends = self.kv_lengths
        if more_S:
            ends = jnp.full((1,), S, jnp.int32) if ends is None else jnp.minimum(ends, S)
        dense = self.dense
        if dense is not None:
            after = [
                0 if size == 1 else more
                for size, more in zip(dense.shape, (0, 0, more_T, more_S), strict=True)
            ]
            dense = jnp.pad(dense, [(0, more) for more in after])
        q_segments, kv_segments = self.q_segments, self.kv_segments
        if q_segments is not None and kv_segments is not None:
            q_segments = jnp.pad(q_segments, ((0, 0), (0, more_T)))
            kv_segments = jnp.pad(kv_segments, ((0, 0), (0, more_S)))
        return dataclasses.replace(
            self, kv_lengths=ends, dense=dense, q_segments=q_segments, kv_segments=kv_segments
        )


def as_mask(mask: Mask | Shaped[Array, "..."] | None, where: str = "a mask") -> Mask | None:
    """Returns a mask unchanged, or makes one from a boolean array that broadcasts to ``[B N T S]``.

    Args:
        mask: True where a query sees a key; None is everywhere.
        where: Name of the argument, for messages.

    Raises:
        ArgumentError: An array of the wrong dtype or rank.

    Example:
        >>> as_mask(jnp.ones((1, 1, 2, 2), bool)).dense.shape
        (1, 1, 2, 2)
    """
    if mask is None or isinstance(mask, Mask):
        return mask
    check_mask(mask, where)
    return Mask(dense=mask)


def causal(offset: int | Int[Array, ""] = 0) -> Mask:
    """Each query sees keys up to and including its own position, ``s <= t + offset``.

    If a query did not see itself, the first row would be fully masked. Vaswani et al. 2017,
    section 3.2.3.

    Example:
        >>> causal().array(2, 3)[0, 0].astype(int)
        Array([[1, 0, 0],
               [1, 1, 0]], dtype=int32)
        >>> causal(offset=1).array(1, 3)[0, 0].astype(int)
        Array([[1, 1, 0]], dtype=int32)
    """
    return Mask(causal=True, offset=offset)


def length_mask(kv: Int[Array, " B"] | None, q: Int[Array, " B"] | None = None) -> Mask:
    """Each query sees the first ``kv`` keys; queries from ``q`` on are fully masked.

    Example:
        >>> length_mask(jnp.array([1]), jnp.array([2])).array(3, 2)[0, 0].astype(int)
        Array([[1, 0],
               [1, 0],
               [0, 0]], dtype=int32)
    """
    return Mask(kv_lengths=kv, q_lengths=q)


def padding_mask(which: Int[Array, " B"] | Bool[Array, "B S"]) -> Mask:
    """Queries see all keys but padding: the first ``which`` of each row, or those that are True.

    Example:
        >>> padding_mask(jnp.array([[False, True]])).array(1, 2)[0, 0].astype(int)
        Array([[0, 1]], dtype=int32)
    """
    kinds = Integer[Array, " B"] | Integer[np.ndarray, " B"]
    kinds |= Bool[Array, "B S"] | Bool[np.ndarray, "B S"]
    check_values("padding_mask: ", {"which": kinds}, {"which": which})
    return length_mask(which) if which.ndim == 1 else dense_mask(which[:, None, None])


def segment_mask(q: Int[Array, "B T"], kv: Int[Array, "B S"]) -> Mask:
    """In packed rows, a query sees keys of its own segment; segment 0 is padding.

    Example:
        >>> ids = jnp.array([[1, 1, 2, 0]])
        >>> segment_mask(ids, ids).array(4, 4)[0, 0].astype(int)
        Array([[1, 1, 0, 0],
               [1, 1, 0, 0],
               [0, 0, 1, 0],
               [0, 0, 0, 0]], dtype=int32)
    """
    return Mask(q_segments=q, kv_segments=kv)


def sliding_window_mask(size: int, offset: int | Int[Array, ""] = 0) -> Mask:
    """Each query sees keys fewer than ``size`` positions away on either side.

    Beltagy et al. 2020, arXiv:2004.05150.

    Example:
        >>> sliding_window_mask(2).array(3, 3)[0, 0].astype(int)
        Array([[1, 1, 0],
               [1, 1, 1],
               [0, 1, 1]], dtype=int32)
    """
    return Mask(window=size, offset=offset)


def dense_mask(array: Bool[Array, "#B #N #T #S"]) -> Mask:
    """An arbitrary mask, as an array that broadcasts to ``[B N T S]``.

    Example:
        >>> dense_mask(jnp.eye(2, dtype=bool)[None, None]).array(2, 2)[0, 0].astype(int)
        Array([[1, 0],
               [0, 1]], dtype=int32)
    """
    return as_mask(array, "dense_mask") or Mask()


def _both(
    a: Array | None, b: Array | None, combine: Callable[[Array, Array], Array]
) -> Array | None:
    if a is None or b is None:
        return b if a is None else a
    return combine(a, b)


def _both_positions(a: Mask, b: Mask) -> tuple[int | None, int | Array]:
    """Returns the window and the offset of ``a & b``."""
    sizes = [m.window for m in (a, b) if m.window is not None]
    size = min(sizes) if sizes else None
    if not (a.positional and b.positional):
        return size, a.offset if a.positional else b.offset
    known = isinstance(a.offset, int) and isinstance(b.offset, int)
    if a.offset is b.offset or (known and a.offset == b.offset):
        return size, a.offset
    if sizes:
        raise ArgumentError(
            f"masks with windows at two offsets, {a.offset} and {b.offset}, cannot be combined: "
            "give both the same offset, or one of them as a dense mask"
        )
    # Two causal masks: the stricter one.
    return None, min(a.offset, b.offset) if known else jnp.minimum(a.offset, b.offset)


def _same_segment(q: Array, kv: Array) -> Array:
    return ((q[:, :, None] == kv[:, None, :]) & (q != 0)[:, :, None])[:, None]


def _cut(x: Array, axis: int, start: int | Array, size: int) -> Array:
    """``size`` entries of an axis from ``start``; all of it if it broadcasts."""
    if x.shape[axis] == 1 or (isinstance(start, int) and start == 0 and x.shape[axis] == size):
        return x
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _flatten(mask: Mask) -> tuple[list[tuple[jax.tree_util.GetAttrKey, PyTree]], Static]:
    key = jax.tree_util.GetAttrKey
    # A Python int is part of the structure, an array is a leaf.
    fixed = mask.offset if isinstance(mask.offset, int) else None
    leaves = [(key(name), getattr(mask, name)) for name in _ARRAYS]
    leaves.append((key("offset"), mask.offset if fixed is None else None))
    return leaves, (*(getattr(mask, name) for name in _STATIC), fixed)


def _unflatten(static: Static, leaves: Iterable[PyTree]) -> Mask:
    names = (*_STATIC, *_ARRAYS, "offset")
    *flags, fixed = static
    *arrays, offset = leaves
    values = (*flags, *arrays, offset if fixed is None else fixed)
    mask = object.__new__(Mask)  # without checks, since leaves may be placeholders
    for name, value in zip(names, values, strict=True):
        object.__setattr__(mask, name, value)
    return mask


jax.tree_util.register_pytree_with_keys(Mask, _flatten, _unflatten)
