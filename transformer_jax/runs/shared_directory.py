"""Checks that all processes of a run see the same run directory."""

import os
import socket
import time

from transformer_jax.core.errors import CheckpointError
from transformer_jax.parallel.agreement import gather_json
from transformer_jax.parallel.mesh import broadcast_json
from transformer_jax.runs.lock import held_token, lock_token

__all__ = ["check_shared"]

_SHOWN = 10.0  # seconds after which a new file is seen from other machines


def check_shared(path: str | os.PathLike[str]) -> None:
    """Refuses a run directory that is not the same for every process of a run.

    Process 0 holds its lock; all must read the token of that lock. They call this together.

    Raises:
        CheckpointError: It names the processes that see another directory, or none.
    """
    token = broadcast_json(held_token(path))
    answers = gather_json([socket.gethostname(), token is None or _reads(path, token)])
    blind = [f"{number} on {host}" for number, (host, sees) in enumerate(answers) if not sees]
    if blind:
        raise CheckpointError(
            f"{path}: process 0 on {answers[0][0]} writes there, but process {', '.join(blind)} "
            f"does not see it: a run of several machines needs an --output on a shared disk"
        )


def _reads(path: str | os.PathLike[str], token: str) -> bool:
    """Returns whether the lock has this token; a shared disk may show it with a delay."""
    deadline = time.monotonic() + _SHOWN
    while lock_token(path) != token:
        if time.monotonic() > deadline:
            return False
        time.sleep(_SHOWN / 20)
    return True
