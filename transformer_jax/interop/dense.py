"""The linear map at the end of some sentence encoders, such as sentence-T5 and LaBSE."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.errors import CheckpointError
from transformer_jax.interop.tensor_files import WEIGHTS, inside, open_tensors, write_tensors

__all__ = ["Dense", "copy_dense", "read_dense"]

_KERNEL, _BIAS = "linear.weight", "linear.bias"


@dataclasses.dataclass(frozen=True)
class Dense:
    """``act(x W + b)`` of the vector of a text, with tanh or nothing for ``act``."""

    kernel: Float[np.ndarray, "D F"]
    bias: Float[np.ndarray, " F"] | None
    tanh: bool

    def __call__(self, vectors: Float[np.ndarray, "rows D"]) -> Float[np.ndarray, "rows F"]:
        """The map of each row.

        Example:
            >>> Dense(np.array([[2.0], [1.0]]), np.array([1.0]), False)(np.array([[3.0, 4.0]]))
            array([[11.]])
        """
        mapped = vectors @ self.kernel
        mapped = mapped if self.bias is None else mapped + self.bias
        return np.tanh(mapped) if self.tanh else mapped


def read_dense(folder: Path, said: Mapping[str, Any], width: int) -> Dense:
    """The map that a folder holds.

    Args:
        folder: A published folder, or a run made of one.
        said: ``path``, the directory with its weights, and ``tanh``.
        width: D, of the vectors that it reads.

    Raises:
        CheckpointError: Its weights are missing, damaged or of another shape.
    """
    path, tanh = said.get("path"), said.get("tanh")
    if not isinstance(path, str) or not isinstance(tanh, bool):
        raise CheckpointError(
            f"{folder}: the last map of its sentence encoder is not told: damaged?"
        )
    tensors = _tensors(folder, path)
    kernel, bias = tensors[_KERNEL], tensors.get(_BIAS)
    if kernel.ndim != 2 or kernel.shape[1] != width or (
        bias is not None and bias.shape != kernel.shape[:1]
    ):  # fmt: skip
        raise CheckpointError(
            f"{folder / path}: {_KERNEL} is {list(kernel.shape)}: vectors of {width} do not fit"
        )
    return Dense(kernel.T, bias, tanh)


def copy_dense(folder: Path, said: Mapping[str, Any], run: Path) -> None:
    """Writes the map of a published folder where :func:`read_dense` finds it in a run.

    Raises:
        CheckpointError: It cannot be read or written.
    """
    output = run / said["path"]
    tensors = _tensors(folder, said["path"])
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{output}: cannot be written: {error.strerror}") from None
    write_tensors(output, tensors)


def _tensors(folder: Path, path: str) -> dict[str, np.ndarray]:
    if os.path.lexists(folder / path / WEIGHTS):
        inside(folder, os.path.join(path, WEIGHTS))
    found = open_tensors(folder / path)
    if not {_KERNEL} <= set(found.entries) <= {_KERNEL, _BIAS}:
        raise CheckpointError(
            f"{folder / path}: its tensors are {', '.join(found.entries)}: {_KERNEL} and perhaps "
            f"{_BIAS} are needed"
        )
    return {name: found.read(name).astype(np.float32) for name in found.entries}
