"""Process settings for JAX: the C library's allocator, and the cache of compiled programs.

Import this, and call :func:`retain_freed_memory`, before anything that allocates much, and before
JAX: on CPU a training step is up to 1.3 times as fast. ``TRANSFORMER_JAX_ALLOCATOR=0`` leaves the
allocator unchanged.
"""

import contextlib
import ctypes
import gc
import glob
import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "admit_own_code",
    "enable_compilation_cache",
    "multiplies_bfloat16",
    "prepare_process",
    "program_folder",
    "remove_unreadable",
    "retain_freed_memory",
    "run_package_alone",
    "uncollected",
]


_programs: Path | None = None  # folder of traced programs
_package_alone = False


def prepare_process() -> None:
    """Sets the allocator and the caches of a command, before it computes."""
    global _programs
    retain_freed_memory()
    _programs = enable_compilation_cache() or _programs


def program_folder() -> Path | None:
    """Returns the folder of traced programs, which is the folder of compiled ones.

    None if there is none, and where code of the user may have changed what a program of the package
    computes: everywhere but after :func:`run_package_alone`.
    """
    return _programs if _package_alone else None


def run_package_alone() -> None:
    """Notes that this process runs no code but the package's: it is its command line."""
    global _package_alone
    _package_alone = True


def admit_own_code() -> None:
    """Notes that this process runs code of the user, too."""
    global _package_alone
    _package_alone = False


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Context manager: the garbage collector waits.

    For work whose objects live on, such as imports and models: the collector would look through
    all of them many times, for a tenth of the time of loading a small model.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# From glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def retain_freed_memory() -> bool:
    """Makes glibc keep freed memory: no separate mappings, no trimming, one arena.

    Otherwise XLA's large buffers are returned to the kernel at every step and faulted in again.
    Returns whether it worked; on anything but Linux with glibc, nothing happens.
    """
    if os.environ.get("TRANSFORMER_JAX_ALLOCATOR", "1") == "0" or sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1))
    done = [mallopt(option, value) == 1 for option, value in settings]
    return all(done)


_MOST = 512 << 20  # bytes on disk


def enable_compilation_cache() -> Path | None:
    """Makes JAX, imported or not, keep compiled programs on disk; returns the folder.

    Commands do this by themselves; a program that imports the package decides for itself, since the
    cache holds for all of its programs. Those compiled in under 0.2 s are not kept.

    The folder is ``TRANSFORMER_JAX_CACHE``, else ``~/.cache/transformer_jax``. Each kind of
    processor has its own subfolder, because programs are compiled for one. The oldest programs are
    removed if all together exceed 512 MB. Returns None, and does nothing, if the variable is
    ``off``, if JAX already has a cache, or if the folder cannot be written.
    """
    chosen = os.environ.get("TRANSFORMER_JAX_CACHE", "")
    jax = sys.modules.get("jax")
    configured = jax is not None and jax.config.jax_compilation_cache_dir is not None
    if chosen == "off" or configured or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    folder = Path(chosen) if chosen else Path(home) / "transformer_jax"
    folder = folder / f"xla-{_processor()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _prune(folder)
    except OSError:
        return None  # without a cache, only starts take longer
    # Processes started from here inherit the environment.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    least = os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
    if jax is not None:
        from jax.experimental.compilation_cache import compilation_cache

        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", float(least))
        compilation_cache.reset_cache()  # JAX decides at its first compilation whether it has one
    return folder


_UNREADABLE = re.compile(r"Error reading persistent compilation cache entry for '([^']+)'")


def remove_unreadable(warning: str) -> str:
    """Removes compiled programs of the name that a warning of JAX says it could not read.

    JAX keeps the file, and would warn again at each start; it names the program, of which there may
    be several, but not the file.

    Returns:
        A sentence about what was removed; empty for other warnings, and for a cache that is not of
        :func:`enable_compilation_cache`.
    """
    found = _UNREADABLE.match(warning)
    if found is None or _programs is None:
        return ""
    for path in _programs.glob(f"{glob.escape(found[1])}-*-cache"):
        with contextlib.suppress(OSError):  # another process was first
            path.unlink()
    return f"; programs of this name are removed from {_programs}, and compiled again"


def multiplies_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Returns whether the processor multiplies bfloat16 matrices; None if unknown.

    This needs Intel's AMX (``amx_bf16``). Vector instructions alone (``avx512_bf16``) do not count:
    training in bfloat16 is slower with them than in float32.

    Args:
        cpuinfo: File with the processor's features on Linux.
    """
    with contextlib.suppress(OSError):
        flags = [line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")]
        return "amx_bf16" in flags[0].split() if flags else None
    return None


def _processor() -> str:
    """A short name for the capabilities of this machine's processor."""
    told = platform.machine() + platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        kinds = ("model name", "flags", "Features")
        told += "".join(sorted({line for line in lines if line.startswith(kinds)}))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _prune(folder: Path) -> None:
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process was first
            found += [(path.stat(), path)] if path.is_file() else []
    size = sum(said.st_size for said, _ in found)
    for said, path in sorted(found, key=lambda pair: pair[0].st_mtime):
        if size <= _MOST:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            size -= said.st_size
