"""The cache of token ids, and the dropout rates of a model."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformer_jax.models.recurrent_config import ModelConfig

__all__ = ["TokenCache", "dropout_rates", "has_dropout", "without_dropout"]

Config = TypeVar("Config", bound=ModelConfig)


class TokenCache(NamedTuple):
    """A folder of memory-mapped token ids."""

    cache: Path | None = None  # None keeps them in memory
    writes: bool = True  # whether to write missing files


def has_dropout(config: ModelConfig) -> bool:
    """Returns whether training a model uses dropout.

    Example:
        >>> from transformer_jax.models.recurrent_config import RecurrentConfig
        >>> has_dropout(RecurrentConfig(dropout=0.0)), has_dropout(RecurrentConfig(dropout=0.1))
        (False, True)
    """
    return any(dropout_rates(config).values())


def dropout_rates(config: ModelConfig) -> dict[str, float]:
    """Returns the dropout rates of a model by setting, such as ``norm.residual_dropout``.

    Example:
        >>> from transformer_jax.models.recurrent_config import RecurrentConfig
        >>> dropout_rates(RecurrentConfig(dropout=0.1))
        {'dropout': 0.1}
    """
    return dict(_rates(config, ""))


def _rates(config: Any, prefix: str) -> Iterator[tuple[str, float]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _rates(value, f"{prefix}{field.name}.")
        elif _is_rate(field.name):
            yield f"{prefix}{field.name}", value


def _is_rate(name: str) -> bool:
    return name.split("_")[-1] == "dropout"


def without_dropout(config: Config) -> Config:
    """Returns the model with all dropout rates 0.

    Example:
        >>> from transformer_jax.models.recurrent_config import RecurrentConfig
        >>> has_dropout(without_dropout(RecurrentConfig(dropout=0.1)))
        False
    """

    def plain(config: Any) -> Any:
        values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        changed = {
            name: plain(value) if dataclasses.is_dataclass(value) else 0.0
            for name, value in values.items()
            if dataclasses.is_dataclass(value) or _is_rate(name)
        }
        return dataclasses.replace(config, **changed)

    without: Config = plain(config)
    return without
