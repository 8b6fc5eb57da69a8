"""Names of tensors that a model had while it was wrapped for training."""

import re
from collections.abc import Iterable

__all__ = ["unwrapped_names"]

# Components that torch.compile, FSDP and activation checkpointing put into names, wherever the
# wrapped module is, and the first component of a model in DataParallel, DDP or DeepSpeed.
_WRAPPERS = re.compile(
    r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
)
_FIRST = re.compile(r"^(base_model\.model\.)?(?:module\.)+")


def unwrapped_names(names: Iterable[str]) -> dict[str, str]:
    """Returns the names in a file by the names without wrappers, in the same order.

    A model that was saved while compiled or distributed has them (transformers#28041).

    Raises:
        ValueError: Two names differ only in their wrappers.

    Example:
        >>> unwrapped_names(["module._orig_mod.bert.pooler.dense.bias"])
        {'bert.pooler.dense.bias': 'module._orig_mod.bert.pooler.dense.bias'}
        >>> unwrapped_names(["model.layers._orig_mod.0.norm.weight", "lm_head.weight"])
        {'model.layers.0.norm.weight': 'model.layers._orig_mod.0.norm.weight', ...}
    """
    found: dict[str, str] = {}
    for name in names:
        plain = _FIRST.sub(r"\1", _WRAPPERS.sub("", name)) or name
        if plain in found:
            raise ValueError(
                f"the tensors {found[plain][:80]!r} and {name[:80]!r} are one without the "
                f"prefixes of a wrapped model"
            )
        found[plain] = name
    return found
