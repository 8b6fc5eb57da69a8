"""Object stores that the settings of a run may name: those of its user.

A run directory may come from someone else. A command that reads its data again, such as ``resume``
and ``evaluate``, would then ask object stores that this person chose, with the user's credentials.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from transformer_jax.core.errors import ConfigError, pasted
from transformer_jax.core.storage.urls import BACKENDS, storage_folder, with_urls

__all__ = ["ALLOWED", "buckets", "check_buckets", "remember_buckets"]

ALLOWED = "TRANSFORMER_JAX_BUCKETS"
_BUCKET = re.compile(rf"\b({'|'.join(BACKENDS)}):/+([^/,\s]+)")
# Fields of settings that come from data or from other models, and name no files.
_NO_PLACES = ("labels", "special", "published")
_MOST = 1 << 20  # bytes of the file of known buckets
_now: set[str] = set()  # named in this process


def buckets(settings: object) -> Iterator[str]:
    """Yields the buckets that settings name, in nested dictionaries, lists and texts.

    Example:
        >>> list(buckets({"data": {"pairs": ["de-en=s3://ours/a.de,s3://ours/a.en"]}}))
        ['s3://ours', 's3://ours']
        >>> list(buckets({"task": {"labels": ["s3://ours"]}}))
        []
    """
    if isinstance(settings, str):
        yield from (f"{scheme}://{bucket}" for scheme, bucket in _BUCKET.findall(settings))
    elif isinstance(settings, Mapping):
        for name, value in settings.items():
            if name not in _NO_PLACES:
                yield from buckets(value)
    elif isinstance(settings, list | tuple):
        for value in settings:
            yield from buckets(value)


def remember_buckets(settings: object) -> None:
    """Keeps the buckets that a user's command names, for later commands on this machine.

    Args:
        settings: The settings of the command.
    """
    if not (new := {*buckets(settings)} - _known()):
        return
    _now.update(new)
    with contextlib.suppress(OSError):  # without a file, this process alone knows
        path = _file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{one}\n" for one in sorted(new)))


def check_buckets(settings: object, file: Path) -> None:
    """Refuses settings from a file that name a bucket which no command of the user named.

    Known are buckets that a command on this machine named, the bucket of the file itself, which
    the command names, and those in ``TRANSFORMER_JAX_BUCKETS``.

    Args:
        settings: The settings.
        file: The file of the settings, or the local copy of one on an object store.

    Raises:
        ConfigError: The message has what allows the bucket.
    """
    named = {*buckets(settings)}
    allowed = {*buckets(os.environ.get(ALLOWED, ""))}
    unknown = sorted(named - allowed - {*buckets(with_urls(str(file)))} - _known())
    if unknown:
        which = ",".join(unknown)
        raise ConfigError(
            f"{with_urls(str(file))}: names {which}, which no command on this machine has named: "
            f"if the run is yours or you trust it, give the command again after "
            f"{pasted('export', f'{ALLOWED}={which}')}"
        )
    remember_buckets([*(named & allowed)])


def _known() -> set[str]:
    try:
        with _file().open(encoding="utf-8", errors="replace") as file:
            return _now | {*file.read(_MOST).split()}
    except OSError:
        return set(_now)


def _file() -> Path:
    return storage_folder() / "buckets"
