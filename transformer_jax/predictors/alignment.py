"""Settings in ``config.json`` of runs on preferences or rewards."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.training.run_directory import RunDirectory

__all__ = ["aligned_method", "has_ends"]


def aligned_method(run: "RunDirectory") -> Any:
    """The method, such as ``dpo`` or ``reward``; None of other runs.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    align = run.read_config().get("align")
    return align.get("method") if isinstance(align, dict) else None


def has_ends(run: "RunDirectory") -> bool:
    """Returns whether the texts of a decoder end with the end token; completions always do.

    Raises:
        CheckpointError: ``config.json`` is damaged.
    """
    return run.read_config().get("first") != "newline" or aligned_method(run) is not None
