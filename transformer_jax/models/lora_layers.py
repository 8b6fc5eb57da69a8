"""Adapters: linear maps with a low-rank change, and frozen tables with trained rows."""

from collections.abc import Mapping
from typing import TypeAlias, TypeGuard, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from transformer_jax.functional.layers import dropout, linear
from transformer_jax.functional.low_rank import column_gain
from transformer_jax.functional.sparse_table_gradient import put_rows
from transformer_jax.models.layers.basic import Linear, LinearTransposed, TrainedRows
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import logical_axes

__all__ = [
    "LEAVES",
    "LoRALinear",
    "SelectedLoRA",
    "adapter_parameters",
    "choose_rows",
    "init_adapter",
    "row_parameter",
    "with_trained_rows",
]

# The parameters of an adapter, stored next to the kernel that they change.
LEAVES = ("lora_a", "lora_b", "lora_magnitude")

LinearMap: TypeAlias = Linear | LinearTransposed
Model = TypeVar("Model", bound=nnx.Module)


def init_adapter(
    kernel: nnx.Param[Array], rank: int, dora: bool, rngs: nnx.Rngs
) -> dict[str, nnx.Param[Array]]:
    """The parameters of a new adapter for a kernel, or for the kernels of stacked layers.

    ``A`` is uniform within ``±1/√D``, as in the authors' implementation; ``B`` and DoRA's change of
    magnitude are zeros, so a new adapter changes nothing. All are float32 and have the depth and
    the axes of the kernel.

    Args:
        kernel: ``[D F]``, or ``[L D F]``.
        rank: Number of columns of ``A``.
        dora: Whether magnitudes are trained.
        rngs: Random streams for ``A``.

    Example:
        >>> kernel = nnx.Param(jnp.zeros((6, 4)), axes=("embed", "heads"))
        >>> {name: p.shape for name, p in init_adapter(kernel, 2, True, nnx.Rngs(0)).items()}
        {'lora_a': (6, 2), 'lora_b': (2, 4), 'lora_magnitude': (4,)}
    """
    *layers, D, F = kernel.shape
    a = jax.random.uniform(rngs.params(), (*layers, D, rank), minval=-1.0, maxval=1.0) * D**-0.5
    b = jnp.zeros((*layers, rank, F))
    return adapter_parameters(kernel, a, b, jnp.zeros((*layers, F)) if dora else None)


def adapter_parameters(
    kernel: nnx.Variable[Array], a: Array, b: Array, magnitude: Array | None
) -> dict[str, nnx.Param[Array]]:
    """Makes parameters from the arrays of an adapter, with the depth and axes of their kernel.

    Example:
        >>> kernel = nnx.Param(jnp.zeros((6, 4)), axes=("embed", "heads"))
        >>> made = adapter_parameters(kernel, jnp.ones((6, 2)), jnp.zeros((2, 4)), None)
        >>> made["lora_b"].get_metadata("axes")
        (None, 'heads')
    """
    *layers, rows, columns = kernel.get_metadata("axes")
    depth = kernel.get_metadata("depth", None)
    beside = {} if depth is None else {"depth": depth}
    axes = (*layers, rows, None), (*layers, None, columns), (*layers, columns)
    return {
        name: nnx.Param(value, axes=along, **beside)
        for name, value, along in zip(LEAVES, (a, b, magnitude), axes, strict=True)
        if value is not None
    }


class LoRALinear(Module):
    """``x W + b + s drop(x) A B``: a linear map plus its adapter.

    With magnitudes (DoRA), ``x (W + s A B)`` is multiplied by :func:`.column_gain`, one factor per
    output. The other variants never form the product ``A B``. Hu et al. 2021; Liu et al. 2024. In
    bfloat16, the products are bfloat16 like those of the map; gains are float32.

    Args:
        base: The map, ``Linear`` or ``LinearTransposed``.
        adapter: Its ``lora_a``, ``lora_b`` and optionally ``lora_magnitude``, from
            :func:`adapter_parameters`.
        scale: ``s``.
        rate: Dropout rate of the adapter's input.
        key: Random key of dropout, one per stacked layer; None is no dropout.
    """

    def __init__(
        self,
        base: LinearMap,
        adapter: dict[str, nnx.Param[Array]],
        scale: float,
        rate: float,
        key: Key[Array, "*layers"] | None = None,
    ):
        self.base, self.scale, self.rate = base, scale, rate
        self.lora_a, self.lora_b = adapter["lora_a"], adapter["lora_b"]
        self.lora_magnitude = adapter.get("lora_magnitude")
        self.key = nnx.data(key)

    @property
    def plain(self) -> Linear | None:
        """The map without its adapter: see :attr:`.Linear.plain`."""
        return getattr(self.base, "plain", None)

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows F"]:
        """Maps each row of ``x``."""
        return self.adapted(x, self.base(x))

    def adapted(
        self, x: Float[Array, "*rows D"], y: Float[Array, "*rows F"]
    ) -> Float[Array, "*rows F"]:
        """Applies the adapter's change to ``y``, the output of the map for ``x``."""
        low = linear(
            dropout(x, self.rate, self.key), self.lora_a[...], None, logical_axes(self.lora_a)
        )
        change = self.scale * linear(low, self.lora_b[...], None, logical_axes(self.lora_b))
        if self.lora_magnitude is None:
            return y + change
        plain = y if self.base.bias is None else y - _row(self.base.bias[...], y)
        gain = self._gain()
        # With a gain of 1 this is the output of the map, bit for bit.
        return y + _row(gain - 1, y) * plain + _row(gain, y) * change

    def _gain(self) -> Float[Array, " F"]:
        kernel = self.base.kernel[...]
        kernel = kernel.T if isinstance(self.base, LinearTransposed) else kernel
        assert self.lora_magnitude is not None
        a, b, magnitude = (p[...] for p in (self.lora_a, self.lora_b, self.lora_magnitude))
        return column_gain(kernel, a, b, self.scale, magnitude)

    @staticmethod
    def fits(module: nnx.Module) -> TypeGuard[LinearMap]:
        """Returns whether an adapter can be put on a module."""
        return type(module) is Linear or isinstance(module, LinearTransposed)


class SelectedLoRA(Module):
    """A linear map that applies one of several adapters to each row of a batch.

    ``x W + b + x A_i B_i``, and with DoRA plus ``(g_i - 1) x W``, where ``i`` is the index of the
    row's adapter. The products of index 0 are zeros: the map alone. For decoding: scales and gains
    are included in ``B`` and ``g``.

    Args:
        base: The map.
        a: ``[K D R]``, for K adapters.
        b: ``[K R F]``.
        gain: ``[K F]``; None if no adapter has magnitudes.
    """

    def __init__(self, base: LinearMap, a: Array, b: Array, gain: Array | None):
        self.base = base
        rows, columns = logical_axes(base.kernel) or (None, None)
        if isinstance(base, LinearTransposed):
            rows, columns = columns, rows
        self.lora_a = nnx.Param(a, axes=(None, rows, None))
        self.lora_b = nnx.Param(b, axes=(None, None, columns))
        self.gain = None if gain is None else nnx.Param(gain, axes=(None, columns))
        self.adapter_rows = nnx.Param(jnp.zeros(1, jnp.int32), axes=(None,))

    def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T F"]:
        """Maps each row; ``adapter_rows`` holds the index of each row's adapter."""
        y, rows = self.base(x), self.adapter_rows[...]
        a, b = (jnp.take(p[...], rows, axis=0) for p in (self.lora_a, self.lora_b))
        low = jnp.einsum("btd,bdr->btr", x, a.astype(x.dtype))
        change = jnp.einsum("btr,brf->btf", low, b.astype(x.dtype))
        if self.gain is None:
            return y + change
        plain = y if self.base.bias is None else y - _row(self.base.bias[...], y)
        gain = jnp.take(self.gain[...], rows, axis=0).astype(y.dtype)
        return y + (gain - 1)[:, None] * plain + change


def _row(values: Float[Array, " F"], y: Float[Array, "*rows F"]) -> Array:
    return values.astype(y.dtype).reshape((1,) * (y.ndim - 1) + values.shape)


def choose_rows(params: PyTree, numbers: Array | np.ndarray) -> PyTree:
    """Assigns adapters to the rows of a model with :class:`SelectedLoRA`.

    Example:
        >>> params = {"query": {"adapter_rows": jnp.zeros(1, jnp.int32), "lora_a": 1.0}}
        >>> choose_rows(params, jnp.array([2, 0]))
        {'query': {'adapter_rows': Array([2, 0], dtype=int32), 'lora_a': 1.0}}
    """
    last = lambda path: getattr(path[-1], "key", None)
    choose = lambda path, leaf: numbers if last(path) == "adapter_rows" else leaf
    return jax.tree_util.tree_map_with_path(choose, params)


def row_parameter(param: nnx.Param[Array], value: Array | np.ndarray) -> nnx.Param[Array]:
    """A parameter for a few rows of a table or bias, with its depth and axes.

    Example:
        >>> table = nnx.Param(jnp.zeros((5, 2)), axes=("vocab", "embed"), depth=0)
        >>> row_parameter(table, table[...][3:]).get_metadata("axes")
        ('trained_row', 'embed')
    """
    depth = param.get_metadata("depth", None)
    beside = {} if depth is None else {"depth": depth}
    array = cast(Array, value)  # an array of NumPy stays one
    return nnx.Param(array, axes=("trained_row", *param.get_metadata("axes")[1:]), **beside)


def with_trained_rows(model: Model, rows: Mapping[str, Array], ids: tuple[int, ...]) -> Model:
    """Returns the model with trained ``rows`` in its tables; ``model`` does not change.

    It computes exactly what the model with these rows put into its tables computes, bit for bit.
    For embeddings and output layers, gradients cost only as much as the rows; for other tables
    and biases, as much as the complete table.

    Args:
        model: A module.
        rows: Rows by the path of a table or bias, one for each of ``ids``.
        ids: Tokens.
    """
    model = nnx.merge(*nnx.split(model))
    for path, value in rows.items():
        *parents, leaf = path.split("/")
        owner: nnx.Module = model
        for name in parents:
            owner = owner[int(name)] if isinstance(owner, nnx.List) else getattr(owner, name)
        param = getattr(owner, leaf)
        whole = put_rows(param[...], value, ids)
        if leaf == "table" and hasattr(owner, "trained"):
            whole = jax.lax.stop_gradient(whole)
            owner.trained = nnx.data(TrainedRows(row_parameter(param, value), ids))
        setattr(owner, leaf, param.replace(whole))
    return model
