"""Opens tokenizers within limits, and turns crashes of the library into errors."""

import collections
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import tokenizers

from transformer_jax.core.errors import ConfigError, DataError, UserError
from transformer_jax.data.tokenizer_files import trial_process
from transformer_jax.data.tokenizer_files.limits import check_parts

__all__ = ["guarded", "open_backend", "try_parts"]

_UNUSABLE = "not a usable tokenizer.json"
_PROBE = "A probe, 1 2."
_within = collections.OrderedDict[bytes, None]()  # digests of files that were checked
_MOST_CHECKED = 32


def open_backend(text: str) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a ``tokenizer.json``, without truncation and padding.

    Limits on its parts are checked first; regular expressions of an unusual form are tried in
    another process.

    Args:
        text: The content of the file.

    Raises:
        DataError: The text is not a tokenizer's, or exceeds the limits; the message does not name
            the file.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    if digest not in _within:
        try:
            parts = check_parts(text)
            if parts.try_first:
                try_parts(parts.parts)
        except DataError as error:
            raise DataError(f"{_UNUSABLE}: {error}") from None
        _within[digest] = None
        if len(_within) > _MOST_CHECKED:
            _within.popitem(last=False)
    with guarded(_UNUSABLE):
        backend = tokenizers.Tokenizer.from_str(text)
        backend.no_truncation()
        backend.no_padding()
        # It may still fail at the first text, or name ids that it cannot convert back.
        backend.decode(backend.encode(_PROBE).ids)
    return backend


@contextlib.contextmanager
def guarded(failure: str = "the tokenizer fails on a text") -> Iterator[None]:
    """A context in which errors and crashes of the library are a DataError of one line.

    Args:
        failure: The beginning of its message.
    """
    try:
        yield
    except (UserError, TypeError):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{failure}: {reason}") from None


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
