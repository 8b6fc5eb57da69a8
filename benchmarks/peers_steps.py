"""Training steps of torch's cases: forward, backward, clipping and AdamW on batches in turn.

Runs in the peers' Python.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.worker import DEVICE

__all__ = ["training_steps"]


def training_steps(
    parameters: Sequence[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[..., torch.Tensor],
    batches: Sequence[Any],
    dtype: str = "float32",
) -> tuple[Callable[[int], float], dict[str, int]]:
    """Returns a function that takes a number of steps, and facts of the model.

    Args:
        parameters: Parameters of the model.
        optimizer: Optimizer of the parameters.
        loss_of: Function from the tensors of a batch to the loss.
        batches: Batches to use in turn; the first one compiles.
        dtype: bfloat16 uses autocast.
    """
    parameters, state = list(parameters), {"at": 0}

    def step() -> torch.Tensor:
        batch = batches[state["at"] % len(batches)]
        state["at"] += 1
        with torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == "bfloat16"):
            loss = loss_of(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    step()

    def run(times: int) -> float:
        for _ in range(times):
            loss = step()
        return float(loss.detach())

    return run, {"parameters": sum(p.numel() for p in parameters)}
