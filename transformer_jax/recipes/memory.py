"""A lower bound of the memory of a run, checked before anything is read or computed."""

import os
from typing import Any

import jax

from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.models.costs import accounting
from transformer_jax.models.recurrent_config import ModelConfig
from transformer_jax.parallel.mesh import devices_of
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.recipes.settings import start_config

__all__ = ["check_room", "memory"]

_FLOAT = 4  # bytes


def memory(devices: list[Any]) -> int | None:
    """The bytes of all devices together; None if they do not report them.

    Those of a CPU share the memory of their machine.
    """
    if any(device.platform == "cpu" for device in devices):
        try:
            pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            return None
        return pages * len({device.process_index for device in devices})
    # A process knows its own devices only; remote devices count as equal.
    here = jax.process_index()
    own = next((device for device in devices if device.process_index == here), None)
    limit = None if own is None else (own.memory_stats() or {}).get("bytes_limit")
    return None if limit is None else limit * len(devices)


def check_room(run: Any) -> None:
    """Refuses a run whose parameters and gradients, or whose batches, exceed all memory.

    A run that passes may still be too large: this is a lower bound. Frozen parameters have no
    gradients.

    Raises:
        ConfigError: The memory is too small; the message has both sizes.
    """
    if not isinstance(run.model, ModelConfig):
        return  # an n-gram model
    limit = memory(devices_of(run.distributed))
    if limit is None:
        return
    count = accounting.count_parameters(run.model)
    adapters = getattr(run, "lora", None)
    frozen = start_config(run).freeze != "none" or (adapters is not None and adapters.rank > 0)
    _refuse(
        limit,
        (1 if frozen else 2) * count * _FLOAT,
        f"the model has {plural(count, 'parameter')}, which "
        f"{'alone' if frozen else 'with their gradients'} take",
        "lower model.d_model, the layers or the vocabulary",
    )
    training, tokens = run.training, get_recipe(run.recipe).batch_tokens(run)
    _refuse(
        limit,
        2 * tokens * run.model.d_model * _FLOAT // training.gradient_accumulation_steps,
        f"a batch of {plural(tokens, 'token')} takes, in one layer alone,",
        "lower training.max_tokens (batch_size, sequence_length), or raise "
        "training.gradient_accumulation_steps",
    )


def _refuse(limit: int, needed: int, what: str, advice: str) -> None:
    if needed > limit:
        raise ConfigError(
            f"{what} {needed / 2**30:,.0f} GiB, and the devices have {limit / 2**30:,.0f}: {advice}"
        )
