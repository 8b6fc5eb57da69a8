"""The lock of a run on an object store: an object that is created once and renewed.

Working copies are locked within a machine (``lock.py``); this lock is between machines. It is
created only if it does not exist, which object stores do atomically. If the writer has not renewed
it for minutes, by the clock of the store, the run is taken over.
"""

import json
import os
import time

from transformer_jax.core.errors import CheckpointError, command
from transformer_jax.core.json_types import Json
from transformer_jax.core.processes import process_alive, this_process
from transformer_jax.core.storage.objects import Objects
from transformer_jax.core.storage.urls import url_of_folder

__all__ = ["Lease", "NoLease", "lease_of"]

_NAME = "lock.json"
_STALE = 180.0  # seconds without a renewal
_SETTLE = 2.0  # seconds to wait for a concurrent takeover to show


class NoLease:
    """The lease of a local folder, which needs only its lock."""

    def take(self, token: str) -> None:
        """Does nothing."""

    def check_free(self) -> None:
        """Does nothing: the folder's lock is sufficient."""

    def renew(self, token: str) -> None:
        """Does nothing."""

    def check(self, token: str) -> None:
        """Does nothing: the lease cannot be lost."""

    def release(self, token: str) -> None:
        """Does nothing."""


class Lease(NoLease):
    """The right to write below a URL.

    Args:
        url: The URL of the run.
        stale: Seconds without renewal after which a writer on another machine counts as dead.
    """

    def __init__(self, url: str, stale: float = _STALE):
        self.url, self._stale, self._objects = url, stale, Objects(url)

    def take(self, token: str) -> None:
        """Takes the lease, even from a dead writer.

        Raises:
            CheckpointError: Another writer holds the lease; the message names it.
            OSError: The store cannot be written; ``strerror`` is the reason.
        """
        for _ in range(3):
            if self._objects.create(_NAME, _content(token)):
                return
            found = self._read()
            if found is None:
                continue
            self._refuse_living(found)
            # If two processes do this at once, the later one has the lease; the other one notices
            # here.
            self._objects.write(_NAME, _content(token))
            time.sleep(_SETTLE)
            if (self._read() or {}).get("token") == token:
                return
        raise CheckpointError(f"{self.url}: another process has just started to write there")

    def check_free(self) -> None:
        """Refuses to write if another process has the lease; a missing lease is allowed.

        Raises:
            CheckpointError: Another writer holds the lease, or it cannot be read.
        """
        try:
            if (found := self._read()) is not None:
                self._refuse_living(found)
        except OSError as error:
            raise CheckpointError(f"{self.url}: cannot be read: {error.strerror}") from None

    def _refuse_living(self, found: dict[str, Json]) -> None:
        alive = process_alive(found)
        if alive or (alive is None and self._silent() < self._stale):
            raise CheckpointError(
                f"{self.url}: in use by process {found.get('pid')} on {found.get('host')} "
                f"since {found.get('since')}: wait until it ends, or stop it first (if it "
                f"has ended, try again in {round(self._stale)} s)"
            )

    def _silent(self) -> float:
        """Returns the seconds since the renewal, by the clock of the store."""
        probe = f".{_NAME}.probe"
        held = self._objects.info(_NAME)
        self._objects.write(probe, b"now")
        now = self._objects.info(probe)
        self._objects.remove([probe])
        if held is None or now is None or held.written is None or now.written is None:
            return 0.0
        return (now.written - held.written).total_seconds()

    def renew(self, token: str) -> None:
        """Renews the lease, if this process holds it.

        Raises:
            OSError: The store cannot be written.
        """
        if (self._read() or {}).get("token") == token:
            self._objects.write(_NAME, _content(token))

    def check(self, token: str) -> None:
        """Refuses to write if another process has taken the lease.

        Raises:
            CheckpointError: The lease was lost, or cannot be read.
        """
        try:
            found = self._read() or {}
        except OSError as error:
            raise CheckpointError(f"{self.url}: cannot be read: {error.strerror}") from None
        if found.get("token") != token:
            raise CheckpointError(
                f"{self.url}: no longer locked by this process: another one took it over, or "
                f"{_NAME} was deleted; so this process no longer writes to it: continue with "
                f"{command('resume', self.url)}"
            )

    def release(self, token: str) -> None:
        """Removes the lease, if this process holds it.

        Raises:
            OSError: The store cannot be written.
        """
        if (self._read() or {}).get("token") == token:
            self._objects.remove([_NAME])

    def _read(self) -> dict[str, Json] | None:
        try:
            found = json.loads(self._objects.read(_NAME))
        except FileNotFoundError:
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


def _content(token: str) -> bytes:
    return json.dumps(this_process() | {"token": token}).encode()


def lease_of(folder: str | os.PathLike[str]) -> NoLease:
    """Returns the lease of the run with this working copy; a dummy for other folders."""
    url = url_of_folder(folder)
    return NoLease() if url is None else Lease(url)
