"""Settings of adapters, and the maps that they change by default. Needs no JAX."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from transformer_jax.core.config_fields import Amount, Configuration, Positive, Rate
from transformer_jax.core.errors import ConfigError

__all__ = ["TARGETS", "LoRAConfig"]

_ATTENTION = tuple(
    f"{kind}_attention/{name}"
    for kind in ("self", "cross")
    for name in ("query", "key", "value", "out")
)
_MLP = ("feed_forward/up", "feed_forward/gate", "feed_forward/down")

# Sets of linear maps, by name.
TARGETS: Mapping[str, tuple[str, ...]] = {
    "attention": _ATTENTION,
    "mlp": _MLP,
    "all-linear": (*_ATTENTION, *_MLP),
}


@dataclasses.dataclass(frozen=True)
class LoRAConfig(Configuration, group="lora"):
    """LoRA adapters: the model is frozen, and low-rank changes of some maps are trained."""

    rank: Amount = 0  # rank of the adapters, such as 8; 0 trains the model itself
    # Adapters are multiplied by alpha / rank, or by alpha / sqrt(rank) with rslora.
    alpha: Positive = 16.0
    dropout: Rate = 0.0  # dropout rate of the adapters' inputs
    # attention, mlp, all-linear, or names of linear maps such as query or feed_forward/up
    targets: tuple[str, ...] = ("attention",)
    # rslora scales by 1 / sqrt(rank), dora trains magnitudes too
    variant: Literal["lora", "rslora", "dora"] = "lora"
    base_dtype: Literal["float32", "bfloat16"] = "float32"  # dtype of the frozen matrices

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets:
            raise ConfigError(f"lora.targets is empty: give {', '.join(TARGETS)} or names of maps")

    @property
    def narrows(self) -> bool:
        """Returns whether the base at step 0 has a different dtype than the given model."""
        return self.rank > 0 and self.base_dtype != "float32"

    @property
    def scale(self) -> float:
        """The factor of the adapters' products."""
        from transformer_jax.functional.low_rank import lora_scale  # imports JAX

        return lora_scale(self.rank, self.alpha, self.variant)
