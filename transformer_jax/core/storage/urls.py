"""URLs of object stores, and the local folders of their copies."""

import importlib.util
import os
import re
from pathlib import Path
from typing import NamedTuple

from transformer_jax.core.errors import ConfigError, install

__all__ = [
    "BACKENDS",
    "FOLDER",
    "Backend",
    "draft_place",
    "is_url",
    "read_copy",
    "storage_folder",
    "url_of",
    "url_of_folder",
    "with_urls",
    "working_copy",
]

FOLDER = "TRANSFORMER_JAX_STORAGE"


class Backend(NamedTuple):
    """The package that accesses an object store, and the extra that installs it."""

    package: str
    extra: str


BACKENDS = {"s3": Backend("s3fs", "s3"), "gs": Backend("gcsfs", "gcs")}
# As a path, s3://bucket/run is s3:/bucket/run.
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/+(.*)", re.DOTALL)
_OF_PATHS = re.compile(rf"\b({'|'.join(BACKENDS)}):/(?!/)")
_WORKING, _READ, _DRAFTS = "runs", "read", "drafts"


def is_url(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is a URL, of any scheme.

    Example:
        >>> is_url("s3://bucket/run"), is_url("https://host/a.png"), is_url("C:/a.png")
        (True, True, False)
    """
    return _URL.fullmatch(os.fspath(path)) is not None


def url_of(path: str | os.PathLike[str]) -> str | None:
    """Returns the URL that a path represents; None for a local path.

    Raises:
        ConfigError: Its scheme is unknown, it has no bucket, or the package for it is missing.

    Example:
        >>> url_of("runs/base") is None
        True
        >>> url_of("hdfs://node/run")
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: hdfs://node/run: hdfs:// is not supported: ...
    """
    found = _URL.fullmatch(os.fspath(path))
    if found is None:
        return None
    scheme, rest = found.groups()
    parts = [part for part in rest.split("/") if part]
    url = f"{scheme}://{'/'.join(parts)}"
    if scheme not in BACKENDS:
        known = " or ".join(f"{name}://BUCKET/NAME" for name in BACKENDS)
        raise ConfigError(
            f"{url}: {scheme}:// is not supported: give a local path, one where the storage is "
            f"mounted, {known}"
        )
    if len(parts) < 2 or {".", ".."} & set(parts):
        raise ConfigError(f"{url}: a bucket and a name are needed: {scheme}://BUCKET/NAME")
    backend = BACKENDS[scheme]
    if importlib.util.find_spec(backend.package) is None:
        raise ConfigError(
            f"{url}: {scheme}:// needs the package {backend.package}: {install(backend.extra)}"
        )
    return url


def storage_folder() -> Path:
    """Returns the folder of local copies.

    It is ``TRANSFORMER_JAX_STORAGE``, or a folder in ``~/.cache``.
    """
    given = os.environ.get(FOLDER)
    return (
        Path(os.path.abspath(given))
        if given
        else Path.home() / ".cache" / "transformer_jax" / "storage"
    )


def _folder(kind: str, url: str) -> Path:
    scheme, _, rest = url.partition("://")
    return storage_folder() / kind / scheme / rest


def working_copy(path: str | os.PathLike[str]) -> Path:
    """Returns the local folder in which a run is written; a local path is returned unchanged.

    Raises:
        ConfigError: As for :func:`url_of`.
    """
    url = url_of(path)
    return Path(path) if url is None else _folder(_WORKING, url)


def read_copy(url: str) -> Path:
    """Returns the local path for downloads from a URL."""
    return _folder(_READ, url)


def draft_place(folder: Path) -> Path:
    """Returns the folder next to which drafts of a run are made; they are not published.

    Args:
        folder: The run directory on this machine.
    """
    try:
        inside = folder.relative_to(os.path.realpath(storage_folder() / _WORKING))
    except ValueError:
        return folder
    return storage_folder() / _DRAFTS / inside


def url_of_folder(folder: str | os.PathLike[str]) -> str | None:
    """Returns the URL of the working copy that a folder is or is inside of; otherwise None."""
    root = storage_folder() / _WORKING
    try:
        parts = Path(os.path.abspath(folder)).relative_to(root).parts
    except ValueError:
        return None
    return f"{parts[0]}://{'/'.join(parts[1:])}" if len(parts) > 2 else None


def with_urls(text: str) -> str:
    """Returns a message with local copies, and URLs mangled as paths, replaced by their URLs.

    Example:
        >>> with_urls("s3:/bucket/run: no such run directory")
        's3://bucket/run: no such run directory'
    """
    for kind in (_WORKING, _READ):
        for scheme in BACKENDS:
            text = text.replace(f"{storage_folder() / kind / scheme}{os.sep}", f"{scheme}://")
    return _OF_PATHS.sub(r"\1://", text)
