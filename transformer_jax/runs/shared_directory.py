"""Checks that all processes of a run see the same run directory."""

import os
import socket
import time

from transformer_jax.core.errors import CheckpointError
from transformer_jax.parallel.mesh import broadcast_json
from transformer_jax.parallel.process_consistency import gather_json
from transformer_jax.runs.lock import held_token, lock_token

__all__ = ["check_shared"]

_SHOWN = 10.0  # seconds in which a new file becomes visible on other machines


def check_shared(path: str | os.PathLike[str]) -> None:
    """Refuses a run directory that is not shared by all processes of a run.

    Process 0 holds the lock, and all processes must read its token. All must call this.

    Raises:
        CheckpointError: Some processes see another directory or none; the message names them.
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
    """Returns whether the lock has this token, which a shared disk may show with a delay."""
    deadline = time.monotonic() + _SHOWN
    while lock_token(path) != token:
        if time.monotonic() > deadline:
            return False
        time.sleep(_SHOWN / 20)
    return True
