"""Training states as named arrays, as checkpoints hold them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.errors import CheckpointError
from transformer_jax.training import trees

__all__ = ["check_fit", "device_count", "items_of", "state_of", "tree_of"]


def items_of(state: Any) -> dict[str, dict[str, Any]]:
    """Returns a state as Orbax items of named leaves.

    Parameters are an item, so that they can be read alone.
    """
    items = {
        "params": trees.flatten_dict(state.params),
        "optimizer": trees.flatten_dict({"step": state.step, "state": state.opt_state}),
    }
    if state.ema_params is not None:
        items["ema_params"] = trees.flatten_dict(state.ema_params)
    return items


def state_of(template: Any, items: Mapping[str, Mapping[str, Any]]) -> Any:
    """Returns ``template`` with the leaves of Orbax items."""
    rest = trees.with_leaves(
        {"step": template.step, "state": template.opt_state}, items["optimizer"]
    )
    ema = template.ema_params
    return template._replace(
        step=rest["step"],
        params=trees.with_leaves(template.params, items["params"]),
        opt_state=rest["state"],
        ema_params=None if ema is None else trees.with_leaves(ema, items["ema_params"]),
    )


def device_count(leaf: Any) -> int:
    """Returns the number of devices that hold a leaf."""
    return len(leaf.sharding.device_set) if isinstance(leaf, jax.Array) else 1


def tree_of(items: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns shape and type of every leaf, as a manifest holds them."""
    return {
        f"{item}/{name}": {"shape": list(leaf.shape), "dtype": str(np.dtype(leaf.dtype))}
        for item, leaves in items.items()
        for name, leaf in leaves.items()
    }


def check_fit(path: Path, fields: Mapping[str, Any], items: Mapping[str, Any]) -> None:
    """Refuses a checkpoint whose leaves are not those of ``items``.

    Args:
        path: The checkpoint, for the message.
        fields: Its manifest.
        items: The state to restore, as :func:`items_of` returns it.

    Raises:
        CheckpointError: A leaf is missing, is unexpected, or has another shape or type.
    """
    stored = fields["tree"]
    wanted = tree_of(items)
    for name, leaf in wanted.items():
        if name not in stored:
            raise CheckpointError(
                f"{path}: has no {name}: it was written with another model or optimizer"
            )
        if stored[name] != leaf:
            was = f"{stored[name]['dtype']}{stored[name]['shape']}"
            raise CheckpointError(
                f"{path}: {name} is {was}, but this model has {leaf['dtype']}{leaf['shape']}"
            )
    extra = [name for name in stored if name.split("/")[0] in items and name not in wanted]
    if extra:
        raise CheckpointError(
            f"{path}: unexpected {extra[0]}: saved with another model or optimizer"
        )
