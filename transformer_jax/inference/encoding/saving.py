"""Writes vectors to a file incrementally: ``.npz`` or ``.safetensors``."""

import contextlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.output_files import Destination, draft_path

__all__ = ["ENDINGS", "VectorFile"]

ENDINGS = (".npz", ".safetensors")
_HEADER = 1024  # bytes reserved for the header of a .safetensors file
_CHUNK = 1 << 24
_DTYPES = {"float32": "F32", "int32": "I32", "int64": "I64"}


class VectorFile:
    """A file of arrays, one of which grows and is never completely in memory.

    The file is written under a temporary name, and renamed only if everything succeeded. Links are
    followed.

    Args:
        path: The file; its suffix selects the format.

    Raises:
        ConfigError: The suffix is unknown, the path is not a regular file, or it cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "two.npz"
        >>> with VectorFile(path) as file:
        ...     file.add(np.zeros((2, 3), np.float32))
        ...     file.add(np.ones((1, 3), np.float32))
        >>> np.load(path)["vectors"].sum(1)
        array([0., 0., 3.], dtype=float32)
    """

    def __init__(self, path: Path):
        if path.suffix not in ENDINGS:
            raise ConfigError(f"--output {path}: the name ends in {' or '.join(ENDINGS)}")
        self.path = path
        self.rows = 0
        self.shape: tuple[int, ...] = (0,)  # shape of a row
        self.others: dict[str, np.ndarray] = {}
        self._to = Destination(path)
        if self._to.draft is None:  # the header is written last
            raise ConfigError(f"--output {path}: this is not a regular file: name another")
        self._draft = self._to.draft
        self._reserved = _HEADER if path.suffix == ".safetensors" else 0

    def __enter__(self) -> "VectorFile":
        try:
            self._file = self._to.open("w+b")
            self._file.write(b" " * self._reserved)
        except OSError as error:
            raise self._refused(error) from None
        return self

    def add(self, vectors: np.ndarray) -> None:
        """Appends rows of ``vectors``, all of one shape."""
        self.shape = vectors.shape[1:]
        self.rows += len(vectors)
        try:
            self._file.write(np.ascontiguousarray(vectors, "<f4").data)
        except OSError as error:
            raise self._refused(error) from None

    def __exit__(self, kind: Any, *error: object) -> None:
        try:
            if kind is None:
                self._finish()
        except OSError as problem:
            raise self._refused(problem) from None
        finally:
            with contextlib.suppress(OSError):  # on a full disk; the file is removed anyway
                self._file.close()
            self._draft.unlink(missing_ok=True)

    def _refused(self, error: OSError) -> ConfigError:
        return ConfigError(f"--output {self.path}: cannot be written: {error.strerror or error}")

    def _finish(self) -> None:
        if self.path.suffix == ".safetensors":
            self._head()
            self._file.close()
            self._to.publish()
            return
        packed = draft_path(self._to.path)
        try:
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
                self._pack(archive)
            self._to.keep_mode(packed)
            self._to.publish(packed)
        finally:
            packed.unlink(missing_ok=True)

    def _head(self) -> None:
        """Writes the other arrays, and the header with all offsets at the beginning."""
        at = self._file.tell() - self._reserved
        table = {"vectors": _entry("float32", (self.rows, *self.shape), 0, at)}
        for name, array in self.others.items():
            self._file.write(np.ascontiguousarray(array).data)
            table[name] = _entry(array.dtype.name, array.shape, at, at + array.nbytes)
            at += array.nbytes
        header = json.dumps(table).encode().ljust(self._reserved - 8)
        self._file.seek(0)
        self._file.write(len(header).to_bytes(8, "little") + header)

    def _pack(self, archive: zipfile.ZipFile) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, *self.shape)}
        with _member(archive, "vectors") as member:
            begin = io.BytesIO()
            np.lib.format.write_array_header_2_0(begin, header)
            member.write(begin.getvalue())
            for chunk in _chunks(self._file):
                member.write(chunk)
        for name, array in self.others.items():
            with _member(archive, name) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def _member(archive: zipfile.ZipFile, name: str) -> Any:
    # A fixed time, so that equal vectors give equal files.
    return archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True)


def _entry(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [begin, end]}


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while chunk := file.read(_CHUNK):
        yield chunk
