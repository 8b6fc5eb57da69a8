"""Adapters without their base: their parts, and checks of the base that they belong to."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, PyTree

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.core.numerics import all_finite
from transformer_jax.core.trees import Nested, flatten_dict, unflatten_dict
from transformer_jax.functional.low_rank import column_gain
from transformer_jax.models.layers.surgery import replaced
from transformer_jax.models.lora import merged, not_finite, split_adapters
from transformer_jax.models.lora_layers import LEAVES, LoRALinear, SelectedLoRA
from transformer_jax.models.prepare import separate_blocks
from transformer_jax.models.trainable_tokens import put_in, split_rows
from transformer_jax.models.transformer.layers import Stack
from transformer_jax.runs.checkpoint_reader import load_parts
from transformer_jax.training.state import digest

__all__ = [
    "Adapter",
    "AdapterOrigin",
    "check_base",
    "is_adapter_run",
    "merge_adapter",
    "of_run",
    "with_choice",
]

Model = TypeVar("Model", bound=nnx.Module)


class AdapterOrigin(TypedDict, total=False):
    """The origin of an adapter."""

    variant: str  # lora, dora or rslora
    names: Mapping[str, str]  # the dtypes of the frozen parameters, by name
    peft: Mapping[str, Json]  # the fields of adapter_config.json
    task_type: str | None  # of PEFT
    dropout: float


@dataclasses.dataclass(frozen=True)
class Adapter:
    """An adapter of linear maps of a base.

    Attributes:
        params: ``lora_a``, ``lora_b`` and optionally ``lora_magnitude``, by path of the map.
        scales: The factor of the product of A and B, by path of the map.
        itself: Parameters that were trained directly, such as a head, by name.
        base: Checksum of the frozen parameters, if known.
        origin: Further information.
        rows: Trained rows of ``tokens``, by the name of the table or bias.
        tokens: Ids of tokens with trained rows.
    """

    params: Mapping[str, Mapping[str, np.ndarray]]
    scales: Mapping[str, float]
    itself: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    base: str | None = None
    origin: AdapterOrigin = dataclasses.field(default_factory=AdapterOrigin)
    rows: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    tokens: tuple[int, ...] = ()

    def trainable(self) -> Nested:
        """Returns the trainable parameters without token rows, as nested dictionaries."""
        leaves = {
            f"{name}/{leaf}": array
            for name, own in self.params.items()
            for leaf, array in own.items()
        }
        return unflatten_dict({**leaves, **self.itself})

    def unstacked(self) -> "Adapter":
        """Returns the adapter with separate layers instead of a scanned stack.

        Example:
            >>> one = {"lora_a": np.zeros((3, 4, 2)), "lora_b": np.zeros((3, 2, 4))}
            >>> adapter = Adapter({"decoder/blocks/up": one}, {"decoder/blocks/up": 2.0})
            >>> sorted(adapter.unstacked().params)
            ['decoder/blocks/0/up', 'decoder/blocks/1/up', 'decoder/blocks/2/up']
        """
        params: dict[str, Mapping[str, np.ndarray]] = {}
        scales: dict[str, float] = {}
        for name, own in self.params.items():
            layers: dict[str, Mapping[str, np.ndarray]] = {name: own}
            if own["lora_a"].ndim > 2:
                layers = {
                    name.replace("/blocks/", f"/blocks/{i}/", 1): {
                        leaf: array[i] for leaf, array in own.items()
                    }
                    for i in range(len(own["lora_a"]))
                }
            params |= layers
            scales |= dict.fromkeys(layers, self.scales[name])
        return dataclasses.replace(self, params=params, scales=scales)


def is_adapter_run(path: str | os.PathLike[str]) -> bool:
    """Returns whether a run directory has adapters and a frozen base."""
    from transformer_jax.runs.config_guard import latest_manifest

    how = (latest_manifest(Path(path)) or {}).get("merge")
    how = how.get("policy", how) if isinstance(how, dict) else how
    return isinstance(how, dict) and "lora" in how


def of_run(
    path: str | os.PathLike[str], which: int | Literal["best", "last"] = "best", average: int = 1
) -> tuple[Adapter, Nested]:
    """Loads the adapter of a run, and its frozen parameters.

    Raises:
        CheckpointError: The checkpoint does not exist, is damaged, or has no adapters.
    """
    loaded = load_parts(path, which, average=average)
    how = loaded.manifest.get("merge")
    if not isinstance(how, dict) or "lora" not in how:
        raise CheckpointError(f"{path}: its checkpoints have no adapters")
    frozen = dict(loaded.frozen)
    trained, rows = split_rows(loaded.params, frozen)
    params, itself = split_adapters(trained)
    origin: AdapterOrigin = {
        "variant": how["lora"].get("variant", "lora"),
        "names": {name: str(leaf.dtype) for name, leaf in flatten_dict(frozen).items()},
    }
    scales = dict.fromkeys(params, how["lora"]["scale"])
    base = loaded.manifest.get("frozen") or digest(frozen)  # not recorded for a policy
    tokens = tuple(how.get("tokens", ()))
    return Adapter(params, scales, itself, base, origin, rows, tokens), frozen


def check_base(adapter: Adapter, params: PyTree, what: str, base: str) -> None:
    """Refuses a base other than the one that an adapter was trained on.

    Args:
        adapter: The adapter.
        params: The parameters of the base, with the adapter's layout of layers.
        what: Path of the adapter, for the message.
        base: Path of the base.

    Raises:
        CheckpointError: A map of the adapter is missing in the base or has another shape, or the
            checksum of the base differs.
    """
    leaves = flatten_dict(params)
    for name, own in adapter.params.items():
        kernel = leaves.get(f"{name}/kernel")
        shape = (*own["lora_a"].shape[:-1], own["lora_b"].shape[-1])
        if kernel is None or tuple(kernel.shape) != shape:
            there = "is missing" if kernel is None else f"is {list(kernel.shape)}"
            raise CheckpointError(
                f"{what}: was trained on another base: {name} is {list(shape)} there, and {there} "
                f"in {base}"
            )
    names = adapter.origin.get("names")
    if adapter.base is None or not names:
        return
    missing = sorted(set(names) - set(leaves))
    same = not missing and adapter.base == digest(
        {name: np.asarray(leaves[name]).astype(_dtype(names[name])) for name in names}
    )
    if not same:
        raise CheckpointError(
            f"{what}: was trained on a different base from {base}: their checksums differ"
        )


def _dtype(name: str) -> np.dtype:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def merge_adapter(adapter: Adapter, params: PyTree) -> Nested:
    """Returns the parameters of a plain model equivalent to the base with its adapter.

    Args:
        adapter: The adapter.
        params: The parameters of the base.
    """
    whole = put_in(params, adapter.rows, adapter.tokens)
    return merged(adapter.trainable(), whole, adapter.scales)


def with_choice(model: Model, adapters: Sequence[Adapter]) -> Model:
    """Returns the model with several adapters, chosen by each row of a batch.

    Number 0 is the plain model; the first adapter is number 1. Stacked layers become separate.

    Args:
        model: A model for decoding.
        adapters: Adapters of the model's linear maps.

    Raises:
        CheckpointError: A scaled adapter is beyond the range of float32.
        ConfigError: An adapter has no matching linear map.
    """
    unstack = lambda path, module: separate_blocks(module) if isinstance(module, Stack) else None
    model, adapters = replaced(model, unstack), [adapter.unstacked() for adapter in adapters]
    names = {name for adapter in adapters for name in adapter.params}

    def chosen(path: str, module: nnx.Module) -> SelectedLoRA | None:
        if path not in names or not LoRALinear.fits(module):
            return None
        names.remove(path)
        return SelectedLoRA(
            module,
            *_stacked(
                module.kernel[...],
                [(adapter.params.get(path), adapter.scales.get(path, 1.0)) for adapter in adapters],
                path,
            ),
        )

    made = replaced(model, chosen)
    if names:
        raise ConfigError(f"{sorted(names)[0]}: not a linear map that an adapter can change")
    return made


def _stacked(
    kernel: Array, adapters: Sequence[tuple[Mapping[str, np.ndarray] | None, float]], name: str
) -> tuple[Array, Array, Array | None]:
    """Stacks A, B and gains of several adapters of a kernel, after zeros for no adapter."""
    (D, F), own = kernel.shape, [one for one, _ in adapters if one is not None]
    rank = max(one["lora_a"].shape[1] for one in own)
    a = np.zeros((1 + len(adapters), D, rank), np.float32)
    b = np.zeros((1 + len(adapters), rank, F), np.float32)
    gain = np.ones((1 + len(adapters), F), np.float32)
    for i, (one, scale) in enumerate(adapters, 1):
        if one is None:
            continue
        r = one["lora_a"].shape[1]
        with np.errstate(over="ignore"):  # refused below
            a[i, :, :r], b[i, :r] = one["lora_a"], scale * one["lora_b"]
        if "lora_magnitude" in one:
            A, B, magnitude = (jnp.asarray(one[leaf]) for leaf in LEAVES)
            gain[i] = column_gain(kernel, A, B, scale, magnitude)
            b[i] *= gain[i]
        if not (all_finite(b[i]) and all_finite(gain[i])):
            raise CheckpointError(not_finite(name))
    magnitudes = any("lora_magnitude" in one for one in own)
    return jnp.asarray(a), jnp.asarray(b), jnp.asarray(gain) if magnitudes else None
