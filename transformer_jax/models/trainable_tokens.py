"""Training of a few rows of frozen tables: a partition, and the merge into plain tables.

Like ``trainable_token_indices`` in Hugging Face's PEFT: tokens that a run adds to a vocabulary are
trained together with adapters, and all other rows are frozen.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Key, PyTree

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import Nested, flatten_dict, path_name, unflatten_dict
from transformer_jax.models.lora_layers import row_parameter, with_trained_rows
from transformer_jax.models.partition import Graph, Partition, overlay

__all__ = ["put_in", "split_rows", "trainable_tokens"]

_ROWS = "_rows"  # suffix of a table's name for its trained rows


def trainable_tokens(partition: Partition, ids: Sequence[int]) -> Partition:
    """Extends a partition by the rows of some tokens in the tables that it freezes.

    The rows are next to their table: ``embedding/table_rows`` ``[A D]``, and for a separate output
    layer ``head/table_rows`` and ``head/bias_rows``. They start as in the table, so at step 0 the
    model computes exactly what the frozen one computes, bit for bit.

    Args:
        partition: All other training, such as adapters; its model is one module.
        ids: Tokens; without any, the partition does not change.

    Raises:
        ConfigError: A token is given twice; or, when split, no frozen parameter has one row per
            token, or one has too few rows.

    Source: Hugging Face PEFT, ``trainable_token_indices`` of ``LoraConfig``.
    """
    tokens = tuple(map(int, ids))
    if not tokens:
        return partition
    if len(set(tokens)) < len(tokens):
        raise ConfigError("trainable tokens: an id is given twice")

    def split(params: PyTree, rngs: nnx.Rngs) -> tuple[PyTree, PyTree]:
        trainable, frozen = partition.split(params, rngs)
        kept, rows = _by_name(frozen), {}
        for name, param in _by_name(params).items():
            if name in kept and param.get_metadata("axes", (None,))[0] == "vocab":
                _check_ids(tokens, name, len(param.get_value()))
                # From the original parameter: a frozen one may be stored in half precision.
                rows[name + _ROWS] = row_parameter(param, param.get_value()[np.array(tokens)])
        if not rows:
            raise ConfigError(
                "trainable tokens: no table of tokens is frozen: all rows are trained anyway"
            )
        return overlay(trainable, unflatten_dict(rows)), frozen

    def merge(
        graph: Graph, trainable: PyTree, frozen: PyTree, key: Key[Array, ""] | None = None
    ) -> PyTree:
        rest, rows = split_rows(trainable, frozen)
        return with_trained_rows(partition.merge(graph, rest, frozen, key), rows, tokens)

    stored = partition.stored
    if stored is not None:
        stored = {**(stored if isinstance(stored, Mapping) else {}), "tokens": list(tokens)}
    return Partition(split, merge, stored)


def _by_name(params: PyTree) -> dict[str, nnx.Param[Array]]:
    is_param = lambda node: isinstance(node, nnx.Variable)
    found = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_param)
    return {path_name(path): param for path, param in found}


def _check_ids(ids: tuple[int, ...], name: str, size: int) -> None:
    strange = [one for one in ids if not 0 <= one < size]
    if strange:
        raise ConfigError(
            f"trainable tokens: {name} has no row {strange[0]}: allowed are 0 to {size - 1}"
        )


def split_rows(trainable: PyTree, frozen: PyTree) -> tuple[Nested, dict[str, PyTree]]:
    """Splits trained token rows, by the name of their table, from all other trained parameters.

    Example:
        >>> split_rows({"head": {"bias_rows": 1}, "up": {"lora_a": 2}}, {"head": {"bias": 3}})
        ({'up': {'lora_a': 2}}, {'head/bias': 1})
    """
    tables = {name + _ROWS: name for name in flatten_dict(frozen)}
    leaves = flatten_dict(trainable)
    rest = {name: leaf for name, leaf in leaves.items() if name not in tables}
    return unflatten_dict(rest), {tables[name]: leaves[name] for name in leaves.keys() & tables}


def put_in(params: Nested, rows: Mapping[str, Array | np.ndarray], ids: Sequence[int]) -> Nested:
    """Puts rows of tokens into their tables, in NumPy; the dtypes of tables do not change.

    Example:
        >>> put_in({"head": {"bias": np.zeros(3)}}, {"head/bias": np.ones(1)}, [2])
        {'head': {'bias': array([0., 0., 1.])}}
    """
    leaves = flatten_dict(params)
    for name, value in rows.items():
        whole = np.array(leaves[name])
        whole[np.array(ids)] = np.asarray(value).astype(whole.dtype)
        leaves[name] = whole
    return unflatten_dict(leaves)
