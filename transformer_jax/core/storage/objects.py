"""The objects of a bucket with a common prefix; they can be replaced, but not renamed."""

import contextlib
import errno
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.core.json_types import Json
from transformer_jax.core.output_files import draft_path, remove_dead_drafts

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Objects", "Stored"]

_SMALL = 64 << 20  # bytes that are read into memory before they are written
# Bounded waits: a wrong endpoint is reported within half a minute.
_OPTIONS: dict[str, dict[str, Json]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 5,
            "read_timeout": 60,
            "retries": {"max_attempts": 3, "mode": "standard"},
        }
    },
}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws",
    "gs": "gcloud auth application-default login",
}


class Stored(NamedTuple):
    """A listed object."""

    size: int
    tag: str  # changes with the content
    written: datetime | None


@functools.cache
def _file_system(scheme: str, process: int) -> "AbstractFileSystem":
    # Connections are not shared with forked processes.
    del process
    import fsspec

    options = _OPTIONS.get(scheme, {})
    return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **options)


class Objects:
    """The objects whose names begin with the prefix of a URL.

    Every method raises OSError, whose ``strerror`` is one line with the problem and the remedy.

    Args:
        url: Such as ``s3://bucket/run``.
    """

    def __init__(self, url: str):
        self.url = url
        self.scheme, _, self._root = url.partition("://")

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @property
    def _files(self) -> "AbstractFileSystem":
        return _file_system(self.scheme, os.getpid())

    def list(self) -> dict[str, Stored]:
        """Returns all objects by their names without the prefix; empty if there are none.

        Objects whose names end in a slash, which some consoles use for folders, are left out.
        """
        try:
            with self._explained():
                found = self._files.find(self._root, detail=True)
        except FileNotFoundError:  # some stores raise this for a missing bucket
            self.check_bucket()
            return {}
        return {
            path.lstrip("/")[len(self._root) + 1 :]: _stored(info)
            for path, info in found.items()
            if path.lstrip("/").startswith(f"{self._root}/") and not path.endswith("/")
        }

    def check_bucket(self) -> None:
        """Refuses a bucket that is missing or cannot be read."""
        bucket = self._root.partition("/")[0]
        with self._explained():
            if not self._files.exists(bucket):
                raise FileNotFoundError(errno.ENOENT, f"there is no bucket {bucket}")

    def info(self, name: str = "") -> Stored | None:
        """Returns the listing of an object; None if it is missing."""
        try:
            with self._explained():
                found = self._files.info(self._at(name))
        except FileNotFoundError:
            return None
        return _stored(found) if found.get("type") == "file" else None

    def read(self, name: str) -> bytes:
        """Returns the content of an object."""
        with self._explained():
            content: bytes = self._files.cat_file(self._at(name))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Replaces an object atomically: readers find the old content or the new."""
        with self._written():
            self._files.pipe_file(self._at(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes an object unless it exists; returns whether this call wrote it."""
        try:
            with self._written():
                self._files.pipe_file(self._at(name), content, mode="create")
        except FileExistsError:
            return False
        return True

    def upload(self, path: Path, name: str) -> None:
        """Replaces an object by a file, which may grow meanwhile."""
        if path.stat().st_size <= _SMALL:
            self.write(name, path.read_bytes())
            return
        with self._written():
            self._files.put_file(str(path), self._at(name))

    def download(self, name: str, path: Path) -> None:
        """Replaces a file by an object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_dead_drafts(path.parent, path.name)
        draft = draft_path(path)
        try:
            with self._explained():
                self._files.get_file(self._at(name), str(draft))
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects in the given order; missing ones are skipped."""
        for name in names:
            self.remove_one(name)

    def remove_one(self, name: str) -> None:
        """Removes an object, if it is there."""
        with contextlib.suppress(FileNotFoundError), self._explained():
            self._files.rm_file(self._at(name))

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        try:
            with self._explained():
                yield
        except FileNotFoundError:  # some stores raise this for a missing bucket
            self.check_bucket()
            raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self._reason(error) from None

    def _reason(self, error: Exception) -> OSError:
        """Turns an error of a library into one that a user can act on."""
        kind, said = type(error).__name__, " ".join(str(error).split())
        bucket = self._root.partition("/")[0]
        if isinstance(error, FileExistsError):
            return FileExistsError(errno.EEXIST, "there is such an object")
        if "bucket does not exist" in said or "no bucket" in said or "NoSuchBucket" in said:
            what = f"there is no bucket {bucket}: create it, or check its name"
            return OSError(errno.ENXIO, what)
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, "there is no such object")
        if isinstance(error, PermissionError) or "credential" in (kind + said).lower():
            what = f"no permission for the bucket {bucket}: check {_CREDENTIALS.get(self.scheme)}"
            return PermissionError(errno.EACCES, what)
        if isinstance(error, ConnectionError | TimeoutError) or any(
            word in kind for word in ("Connect", "Timeout")
        ):
            return OSError(
                errno.EHOSTUNREACH,
                "the object store does not answer: check the network"
                + (" and AWS_ENDPOINT_URL" if self.scheme == "s3" else ""),
            )
        return OSError(getattr(error, "errno", None) or errno.EIO, f"{kind}: {said[:200]}")


def _stored(info: Mapping[str, Any]) -> Stored:
    written = info.get("LastModified") or info.get("mtime") or info.get("created")
    tag = info.get("ETag") or info.get("etag") or str(written)
    return Stored(int(info["size"]), str(tag), written if isinstance(written, datetime) else None)
