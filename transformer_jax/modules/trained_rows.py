"""Tables of tokens of which a few rows are trained (row B39)."""

from collections.abc import Mapping
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.trained_rows import put_rows, replace_taken

__all__ = ["TrainedRows", "output_table", "row_parameter", "with_trained_rows"]


class TrainedRows(nnx.Module):
    """Rows of a table that are trained, while the table is a constant.

    Attributes:
        rows: ``[A D]``.
        ids: The tokens that they are of.
    """

    def __init__(self, rows: nnx.Param, ids: tuple[int, ...]):
        self.rows, self.ids = rows, ids

    def replace(
        self, found: Float[Array, "*where D"], indices: Int[Array, "*where"], size: int, dtype: Any
    ) -> Float[Array, "*where D"]:
        """What a table of ``size`` rows has at ``indices``, with these rows among them."""
        return replace_taken(found, self.rows[...], indices, self.ids, size, dtype)


def output_table(
    source: Any, bias: Any = None, scale: float = 1.0, softcap: float | None = None
) -> OutputTable:
    """The map to logits by the table of a module, some of whose rows may be trained alone.

    Args:
        source: A module with a ``table`` and ``trained``, its :class:`TrainedRows` or None.
        bias: As those of :class:`OutputTable`.
        scale: Likewise.
        softcap: Likewise.
    """
    trained = source.trained
    rows, ids = (None, ()) if trained is None else (trained.rows[...], trained.ids)
    return OutputTable(source.table[...], bias, scale, softcap, rows, ids)


def row_parameter(param: nnx.Param, value: Any) -> nnx.Param:
    """Rows of a table, or of a bias, with its depth and the axes of a few of its rows.

    Example:
        >>> table = nnx.Param(jax.numpy.zeros((5, 2)), axes=("vocab", "embed"), depth=0)
        >>> row_parameter(table, table[...][3:]).get_metadata("axes")
        ('trained_row', 'embed')
    """
    depth = param.get_metadata("depth", None)
    beside = {} if depth is None else {"depth": depth}
    return nnx.Param(value, axes=("trained_row", *param.get_metadata("axes")[1:]), **beside)


def with_trained_rows(model: Any, rows: Mapping[str, Any], ids: tuple[int, ...]) -> Any:
    """The model with ``rows`` in its tables; the model that is given does not change.

    It computes what the model with these rows in its tables computes, bit for bit. Gradients of
    rows of embeddings and output layers take what few rows take. Of other tables, and of biases,
    they take what those of the whole would.

    Args:
        model: A module.
        rows: By the path of a table or bias, one row for each of ``ids``.
        ids: Tokens.
    """
    model = nnx.merge(*nnx.split(model))
    for path, value in rows.items():
        *parents, leaf = path.split("/")
        owner = model
        for name in parents:
            owner = owner[int(name)] if name.isdecimal() else getattr(owner, name)
        param = getattr(owner, leaf)
        whole = put_rows(param[...], value, ids)
        if leaf == "table" and hasattr(owner, "trained"):
            whole = jax.lax.stop_gradient(whole)
            owner.trained = nnx.data(TrainedRows(row_parameter(param, value), ids))
        setattr(owner, leaf, param.replace(whole))
    return model
