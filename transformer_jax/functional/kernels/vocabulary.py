"""Output tables on a mesh: storage, use on a device, and the device's share of the logits."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int

from transformer_jax.functional.reduce_scatter import LANES, reduce_scatter

__all__ = ["PADDING", "TABLE_AXES", "TableParts", "VocabularySplit"]

TABLE_AXES = ("vocab", "embed")  # of every output table
PADDING = -1e9  # logit of a token that does not exist


class VocabularySplit(NamedTuple):
    """A split inside ``jax.shard_map``: each device has the logits of a part of the vocabulary.

    Attributes:
        over: The mesh axis over which the parts, all of equal size, are spread.
        size: Tokens in the vocabulary; further logits are padding.
    """

    over: str
    size: int

    def columns(self, z: Array) -> Int[Array, "*rows V"]:
        """The token of each logit of this device."""
        columns = lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1)
        return columns + lax.axis_index(self.over) * z.shape[-1]

    def masked(self, z: Array) -> Array:
        """Returns logits whose padding has probability 0."""
        padded = self.size < z.shape[-1] * lax.axis_size(self.over)
        return jnp.where(self.columns(z) < self.size, z, PADDING) if padded else z

    def sum(self, z: Array) -> Array:
        """Returns the sum over the vocabulary, on all devices."""
        return lax.psum(
            jnp.where(self.columns(z) < self.size, z, 0).sum(-1, keepdims=True), self.over
        )


class TableParts(NamedTuple):
    """An output table on a mesh, as stored and as used by a device inside ``shard_map``.

    A device uses all columns, and only its own rows if there is a tensor axis. A vocabulary that
    the tensor axis does not divide is stored by columns and padded for use.
    """

    stored: P
    size: int  # rows of the complete table
    tensor: int  # devices along the tensor axis
    over: tuple[str, ...]  # mesh axes whose devices have different rows of the batch or positions

    @property
    def padded(self) -> int:
        """Rows on all devices, including padding."""
        part = -(-self.size // self.tensor)
        return self.tensor * (-(-part // LANES) * LANES if part > LANES else part)

    @property
    def by_columns(self) -> bool:
        """Returns whether the tensor axis splits the stored columns."""
        return self.stored[1] == ("tensor", "fsdp") or self.stored[1] == "tensor"

    @property
    def fsdp(self) -> bool:
        """Returns whether ``fsdp`` splits the stored columns."""
        return self.stored[1] in ("fsdp", ("tensor", "fsdp"))

    @property
    def split(self) -> VocabularySplit | None:
        """The split of the vocabulary in use."""
        by_rows = self.stored[0] is not None
        return VocabularySplit("tensor", self.size) if by_rows or self.by_columns else None

    def use(self, table: Array) -> Array:
        """Gathers the rows that this device uses from the stored parts."""
        if self.fsdp:
            table = lax.all_gather(table, "fsdp", axis=1, tiled=True)
        if self.by_columns:
            table = jnp.pad(table, ((0, self.padded - self.size), (0, 0)))
            table = lax.all_to_all(table, "tensor", 0, 1, tiled=True)
        return table

    def store(self, gradient: Array) -> Array:
        """Sums gradients of the used rows, ``[D V]``, into the gradient of the stored part."""
        if self.by_columns:
            gradient = lax.all_to_all(gradient, "tensor", 0, 1, tiled=True)[:, : self.size]
        if self.fsdp:
            gradient = reduce_scatter(gradient, "fsdp", 0)
        return lax.psum(
            gradient, [axis for axis in self.over if not (self.fsdp and axis == "fsdp")]
        )

    def use_bias(self, bias: Array) -> Array:
        """The part of the bias that this device uses."""
        if not self.by_columns:
            return bias
        part = self.padded // self.tensor
        bias = jnp.pad(bias, (0, self.padded - self.size))
        return lax.dynamic_slice_in_dim(bias, lax.axis_index("tensor") * part, part)

    def store_bias(self, gradient: Array) -> Array:
        """Returns the gradient of the stored part of the bias from that of the used part."""
        gradient = lax.psum(gradient, self.over)
        if not self.by_columns:
            return gradient
        return lax.all_gather(gradient, "tensor", tiled=True)[: self.size]
