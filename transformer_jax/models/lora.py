"""Training of adapters: partition, settings, and merged weights (Hu et al. 2021)."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Key, PyTree

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.numerics import all_finite
from transformer_jax.core.trees import Nested, flatten_dict, path_name, unflatten_dict
from transformer_jax.functional.low_rank import low_rank_kernel
from transformer_jax.models.config import TARGETS, LoRAConfig
from transformer_jax.models.layers.parameters import LAYERS, is_matrix
from transformer_jax.models.layers.surgery import replaced
from transformer_jax.models.lora_layers import LEAVES, LoRALinear, adapter_parameters, init_adapter
from transformer_jax.models.partition import Graph, Partition, overlay, where

__all__ = ["find_targets", "lora", "merged", "not_finite", "split_adapters", "with_adapters"]

Model = TypeVar("Model", bound=nnx.Module)


def find_targets(params: PyTree, targets: tuple[str, ...]) -> list[str]:
    """Paths of the linear maps with these names, or with the names in these sets.

    A name matches the end of a path, at a ``/``: ``query``, ``self_attention/query``,
    ``blocks/0/self_attention/query``.

    Args:
        params: Parameters of the model with their declarations, real or abstract.
        targets: Names and sets of :data:`TARGETS`.

    Raises:
        ConfigError: One of them matches nothing.

    Example:
        >>> kernel = nnx.Param(jnp.zeros((2, 2)), axes=("embed", "mlp"))
        >>> params = {"feed_forward": {"up": {"kernel": kernel}, "down": {"kernel": kernel}}}
        >>> find_targets(params, ("up",)), find_targets(params, ("mlp",))
        (['feed_forward/up'], ['feed_forward/down', 'feed_forward/up'])
    """
    maps = sorted(
        name.removesuffix("/kernel") for name, param in _leaves(params) if _is_map(name, param)
    )
    found: set[str] = set()
    for target in targets:
        ends = tuple(f"/{name}" for name in TARGETS.get(target, (target.strip("/"),)))
        matched = {name for name in maps if f"/{name}".endswith(ends)}
        if not matched:
            known = dict.fromkeys(name.rpartition("/")[2] for name in maps)
            raise ConfigError(
                f"lora.targets is {target}: the model has no linear map of that name; there are "
                f"{', '.join(known)}, and the sets {', '.join(TARGETS)}"
            )
        found |= matched
    return sorted(found)


def _leaves(params: PyTree) -> list[tuple[str, nnx.Param[Array]]]:
    is_param = lambda node: isinstance(node, nnx.Variable)
    found = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_param)
    return [(path_name(path), param) for path, param in found]


def _is_map(name: str, param: nnx.Param[Array]) -> bool:
    axes = param.get_metadata("axes", ())
    return name.endswith("/kernel") and sum(axis != LAYERS for axis in axes) == 2


def lora(config: LoRAConfig, trained: Callable[[str], bool] = lambda path: False) -> Partition:
    """Trains adapters of linear maps and freezes all other parameters.

    The adapters' parameters are next to the kernels: ``.../query/lora_a``. ``B`` starts at 0, so
    at step 0 the model computes exactly what the base computes, bit for bit.

    Args:
        config: The adapters.
        trained: Whether to train a parameter, given its path, directly; for example a new head's.

    Raises:
        ConfigError: ``config.rank`` is 0; or, when split, a target matches no linear map, or the
            rank exceeds the rows or columns of one.

    Source: Hu et al. 2021, arXiv:2106.09685.
    """
    if config.rank < 1:
        raise ConfigError("lora.rank is 0: adapters need a rank of 1 or more")
    whole = where(trained)

    def split(params: PyTree, rngs: nnx.Rngs) -> tuple[PyTree, PyTree]:
        itself, frozen = whole.split(params, rngs)
        known = dict(_leaves(params))
        adapters: dict[str, nnx.Param[Array]] = {}
        for name in find_targets(params, config.targets):
            if trained(f"{name}/kernel"):
                continue
            kernel = known[f"{name}/kernel"]
            _check_rank(config.rank, name, kernel.shape[-2:])
            made = init_adapter(kernel, config.rank, config.variant == "dora", rngs)
            adapters |= {f"{name}/{leaf}": param for leaf, param in made.items()}
        return overlay(itself, unflatten_dict(adapters)), _cast(frozen, config.base_dtype)

    def merge(
        graph: Graph, trainable: PyTree, frozen: PyTree, key: Key[Array, ""] | None = None
    ) -> nnx.Module:
        adapters, itself = split_adapters(trainable)
        model = nnx.merge(graph, overlay(frozen, unflatten_dict(itself)))
        return with_adapters(model, adapters, config.scale, config.dropout, key)

    how = {"scale": config.scale, "variant": config.variant}
    return Partition(split, merge, {"lora": how})


def _check_rank(rank: int, name: str, shape: tuple[int, ...]) -> None:
    if rank > min(shape):
        raise ConfigError(
            f"lora.rank is {rank}: {name} is {shape[0]} x {shape[1]}, so that at most "
            f"{min(shape)} makes sense"
        )


def _cast(frozen: PyTree, dtype: str) -> PyTree:
    if dtype == "float32":
        return frozen

    def cast(param: nnx.Param[Array]) -> nnx.Variable[Array]:
        value = param.get_value()
        return param.replace(value.astype(jnp.dtype(dtype))) if is_matrix(param) else param

    return jax.tree.map(cast, frozen, is_leaf=lambda node: isinstance(node, nnx.Variable))


def split_adapters(trainable: PyTree) -> tuple[dict[str, dict[str, PyTree]], dict[str, PyTree]]:
    """Splits adapters, by the path of their map, from directly trained parameters, by name.

    Example:
        >>> split_adapters({"up": {"lora_a": 1, "lora_b": 2}, "labels": {"bias": 3}})
        ({'up': {'lora_a': 1, 'lora_b': 2}}, {'labels/bias': 3})
    """
    adapters: dict[str, dict[str, PyTree]] = {}
    itself = {}
    for name, value in flatten_dict(trainable).items():
        where_, _, leaf = name.rpartition("/")
        if leaf in LEAVES:
            adapters.setdefault(where_, {})[leaf] = value
        else:
            itself[name] = value
    return adapters, itself


def with_adapters(
    model: Model,
    adapters: Mapping[str, Mapping[str, Array]],
    scale: float | Mapping[str, float],
    dropout_rate: float = 0.0,
    key: Key[Array, ""] | None = None,
) -> Model:
    """Returns the model with adapters on some of its linear maps; ``model`` does not change.

    Args:
        model: A module.
        adapters: ``lora_a``, ``lora_b`` and optionally ``lora_magnitude``, by path of the map.
        scale: Factor of the adapters' products, for all or by path of the map.
        dropout_rate: Dropout rate of their inputs.
        key: Random key of dropout; None is no dropout.

    Raises:
        ConfigError: There is no linear map at a path.
    """
    left = dict.fromkeys(sorted(adapters))
    numbers = {name: i for i, name in enumerate(left)}

    def adapted(path: str, module: nnx.Module) -> LoRALinear | None:
        if path not in adapters or not LoRALinear.fits(module):
            return None
        del left[path]
        one = adapters[path]
        arrays = (one["lora_a"], one["lora_b"], one.get("lora_magnitude"))
        keys = None
        if key is not None and dropout_rate:
            here = jax.random.fold_in(key, numbers[path])
            layers = one["lora_a"].shape[:-2]
            keys = jax.random.split(here, layers) if layers else here
        params = adapter_parameters(module.kernel, *arrays)
        return LoRALinear(module, params, _scale_of(scale, path), dropout_rate, keys)

    made = replaced(model, adapted)
    if left:
        raise ConfigError(
            f"lora.targets: {next(iter(left))} is not a linear map that an adapter can be put on"
        )
    return made


def merged(params: PyTree, frozen: PyTree, scale: float | Mapping[str, float]) -> Nested:
    """Returns parameters of a plain model equivalent to the frozen one with its adapters.

    Kernels with adapters are float32, even if the frozen ones are bfloat16.

    Args:
        params: The trained parameters: adapters, and directly trained ones.
        frozen: The other parameters.
        scale: Factor of the adapters' products, for all or by path of the map.

    Raises:
        CheckpointError: A merged kernel is not finite.

    Example:
        >>> adapter = {"lora_a": np.ones((2, 1)), "lora_b": np.ones((1, 2))}
        >>> merged({"up": adapter}, {"up": {"kernel": np.eye(2), "bias": np.zeros(2)}}, 0.5)["up"]
        {'bias': array([0., 0.]), 'kernel': array([[1.5, 0.5],
               [0.5, 1.5]], dtype=float32)}
    """
    adapters, itself = split_adapters(params)
    leaves = flatten_dict(frozen) | itself
    for name, adapter in adapters.items():
        kernel = leaves[f"{name}/kernel"]
        arrays = [np.asarray(adapter[leaf], np.float32) for leaf in LEAVES if leaf in adapter]
        whole, own = np.asarray(kernel, np.float32), _scale_of(scale, name)
        changed = _merged_kernel(whole, arrays, own)
        if not all_finite(changed):
            raise CheckpointError(not_finite(name))
        leaves[f"{name}/kernel"] = changed
    return unflatten_dict(leaves)


def not_finite(name: str) -> str:
    """Returns the message about an adapter that overflows, given the path of its map or table."""
    return (
        f"{name}: its adapter makes weights beyond the range of float32: it is damaged, or its "
        f"alpha is far too large"
    )


def _merged_kernel(kernel: np.ndarray, arrays: list[np.ndarray], scale: float) -> np.ndarray:
    """Merges the adapters of one layer, or of stacked ones."""
    if kernel.ndim > 2:
        layers = zip(kernel, *arrays, strict=True)
        return np.stack([_merged_kernel(k, list(rest), scale) for k, *rest in layers])
    a, b, *magnitude = map(jnp.asarray, arrays)
    return np.asarray(low_rank_kernel(jnp.asarray(kernel), a, b, scale, *magnitude))


def _scale_of(scale: float | Mapping[str, float], name: str) -> float:
    return scale[name] if isinstance(scale, Mapping) else scale
