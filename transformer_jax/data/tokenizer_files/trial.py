"""Parts of a tokenizer tried in another process, with limits on its time and memory."""

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.tokenizer_files import trial_process

__all__ = ["try_parts"]

# In addition to processor time, which the system limits: a process may have to wait.
_PATIENCE = 60.0
# Environment variables to keep: the locations of libraries.
_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@functools.lru_cache(maxsize=64)
def try_parts(parts: str) -> None:
    """Applies the parts of a tokenizer to short texts that make expressions backtrack.

    Args:
        parts: The values of ``normalizer``, ``pre_tokenizer`` and ``decoder``, as JSON.

    Raises:
        DataError: The parts fail, or exceed the limits; the message does not name the file.
        ConfigError: The process cannot be started.
    """
    spec = importlib.util.find_spec("tokenizers")
    folder = str(Path(str(spec and spec.origin)).resolve().parents[1])
    environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", trial_process.__file__, folder],
            input=parts.encode(),
            capture_output=True,
            cwd="/",
            env=environment | {"TOKENIZERS_PARALLELISM": "false"},
            timeout=_PATIENCE,
            start_new_session=True,
            check=False,
        )
    except OSError as error:
        raise ConfigError(
            f"tokenizers are tried in a separate process, which cannot be started with "
            f"{sys.executable or 'no Python'}: {error.strerror or error}"
        ) from None
    except subprocess.TimeoutExpired:
        raise DataError(_TIME) from None
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise DataError(_TIME)
    try:
        reason = json.loads(done.stdout)["reason"]
    except ValueError:  # ended by the system, or by a library without memory
        raise DataError("its regular expressions need too much memory for a short text") from None
    if reason is not None and "retry-limit" in reason:
        raise DataError(_TIME)
    if reason is not None:
        raise DataError(f"it fails on a short text: {reason}")


_TIME = "its regular expressions take too long for a short text, since they try the same many times"
