"""The dense layer at the end of some sentence encoders, such as sentence-T5 and LaBSE."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Required, TypedDict

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import CheckpointError
from transformer_jax.core.numerics import all_finite
from transformer_jax.core.trees import Nested
from transformer_jax.interop.safetensors_header import FLOATS
from transformer_jax.interop.tensor_files import INDEX, WEIGHTS, inside, open_tensors

__all__ = [
    "Dense",
    "DenseRecord",
    "SentenceFields",
    "copy_dense",
    "dense_tensors",
    "digest",
    "normalized",
    "read_dense",
    "read_head",
    "trained_head",
    "write_dense",
]

_KERNEL, _BIAS = "linear.weight", "linear.bias"


class DenseRecord(TypedDict, total=False):
    """A dense layer in the record of a folder."""

    path: Required[str]  # the directory of its weights
    tanh: Required[bool]
    # By its configuration:
    bias: bool
    in_features: int
    out_features: int
    sha256: str  # the digest of its weights


class SentenceFields(TypedDict, total=False):
    """The settings of a sentence encoder, without those that are usual."""

    pool: str  # poolings to concatenate, joined by " and "; an unknown name is another module
    dense: DenseRecord  # after pooling
    normalize: bool  # whether vectors are normalized at the end
    length: int  # most tokens
    lowercase: bool
    prompts: dict[str, str]  # put before inputs, by name
    default_prompt: str  # its name
    excludes_prompt: bool  # whether tokens of the prompt are not pooled
    similarity: str  # if it is not the cosine
    refused: list[str]  # unsupported settings, in words


@dataclasses.dataclass(frozen=True)
class Dense:
    """``act(x W + b)`` on the vector of a text, where ``act`` is tanh or the identity."""

    kernel: Float[np.ndarray, "D F"]
    bias: Float[np.ndarray, " F"] | None
    tanh: bool

    def __call__(self, vectors: Float[np.ndarray, "rows D"]) -> Float[np.ndarray, "rows F"]:
        """Applies the layer to each row.

        Example:
            >>> Dense(np.array([[2.0], [1.0]]), np.array([1.0]), False)(np.array([[3.0, 4.0]]))
            array([[11.]])
        """
        mapped = vectors @ self.kernel
        mapped = mapped if self.bias is None else mapped + self.bias
        return np.tanh(mapped) if self.tanh else mapped


def normalized(vectors: Float[np.ndarray, "rows D"]) -> Float[np.ndarray, "rows D"]:
    """Divides each row by its norm, at least 1e-12.

    Example:
        >>> normalized(np.array([[3.0, 4.0], [0.0, 0.0]]))
        array([[0.6, 0.8],
               [0. , 0. ]])
    """
    size = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(size, 1e-12))


def read_head(
    folder: Path, sentence: SentenceFields, width: int
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Returns a sentence encoder's function of pooled vectors; None if there is none.

    Args:
        folder: A Hugging Face folder, or a run converted from one.
        sentence: The result of :func:`~transformer_jax.interop.sentence_encoders.sentence_fields`.
        width: D of the encoder; vectors of several poolings are wider.

    Raises:
        CheckpointError: Weights are missing, damaged or of the wrong shape.
    """
    pools = str(sentence.get("pool", "mean")).split(" and ")
    dense = None
    if "dense" in sentence:
        dense = read_dense(folder, sentence["dense"], width * len(pools))
    return _head(sentence, dense)


def trained_head(
    sentence: SentenceFields, params: Nested
) -> Callable[[np.ndarray], np.ndarray] | None:
    """Returns a trained sentence encoder's function of pooled vectors; None if there is none.

    Args:
        sentence: Its settings.
        params: The parameters of a :class:`.SentenceEncoder`.
    """
    dense = None
    if "dense" in sentence:
        layer = {name: np.asarray(array, np.float32) for name, array in params["dense"].items()}
        dense = Dense(layer["kernel"], layer.get("bias"), sentence["dense"]["tanh"])
    return _head(sentence, dense)


def _head(
    sentence: SentenceFields, dense: Dense | None
) -> Callable[[np.ndarray], np.ndarray] | None:
    if not sentence.get("normalize"):
        return dense
    return normalized if dense is None else lambda vectors: normalized(dense(vectors))


def read_dense(folder: Path, said: DenseRecord, width: int) -> Dense:
    """Reads the dense layer of a folder.

    Args:
        folder: A Hugging Face folder, or a run converted from one.
        said: The record of the layer.
        width: D of the input vectors.

    Raises:
        CheckpointError: The weights are missing, damaged or of the wrong shape.
    """
    tensors, path = dense_tensors(folder, said), said["path"]
    plain = {name: array.astype(np.float32) for name, array in tensors.items()}
    kernel, bias = plain[_KERNEL], plain.get(_BIAS)
    if kernel.ndim != 2 or kernel.shape[1] != width or (
        bias is not None and bias.shape != kernel.shape[:1]
    ):  # fmt: skip
        raise CheckpointError(
            f"{folder / path}: {_KERNEL} is {list(kernel.shape)}: wrong for vectors of size {width}"
        )
    described = said.get("out_features", len(kernel)), said.get("in_features", width)
    if described != kernel.shape or said.get("bias", bias is not None) != (bias is not None):
        raise CheckpointError(
            f"{folder / path}: its tensors are {_KERNEL} {list(kernel.shape)}"
            f"{'' if bias is None else f' and {_BIAS}'}, but config.json has "
            f"{list(described)}{' with' if said.get('bias') else ' without'} a bias"
        )
    return Dense(kernel.T, bias, said["tanh"])


def copy_dense(folder: Path, said: DenseRecord, output: Path, dtype: str | None = None) -> None:
    """Copies the dense layer from one folder to another, for :func:`read_dense`.

    Args:
        folder: A Hugging Face folder, or a run converted from one.
        said: See :func:`read_dense`.
        output: The other folder.
        dtype: Data type of the copied weights; None is unchanged.

    Raises:
        CheckpointError: The layer cannot be read or written.
    """
    write_dense(dense_tensors(folder, said), output / said["path"], dtype)


def write_dense(tensors: dict[str, np.ndarray], where: Path, dtype: str | None = None) -> None:
    """Writes the tensors of a dense layer into a folder, see :func:`copy_dense`."""
    if dtype is not None:
        import ml_dtypes

        kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        tensors = {name: array.astype(kind) for name, array in tensors.items()}
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{where}: cannot be written: {error.strerror}") from None
    from transformer_jax.interop.tensor_writer import write_tensors  # no use reads what it needs

    write_tensors(where, tensors)


def digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Returns the SHA-256 of tensors: names, types, shapes and bits, independent of the file.

    Example:
        >>> one = np.zeros(2, np.float32)
        >>> [digest({"a": one}) == digest({"a": b}) for b in (one.copy(), one.astype(float))]
        [True, False]
    """
    found = hashlib.sha256()
    for name, array in sorted(tensors.items()):
        found.update(f"{name} {array.dtype.name} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def dense_tensors(folder: Path, said: DenseRecord) -> dict[str, np.ndarray]:
    """Reads the weights of a folder's dense layer, as stored.

    Raises:
        CheckpointError: The weights are missing, damaged, have wrong types or names, or do not
            match the digest in ``said``.
    """
    path = said.get("path")
    if (
        not isinstance(path, str)
        or not isinstance(said.get("tanh"), bool)
        or os.path.isabs(path)
        or ".." in PurePosixPath(path).parts
    ):
        raise CheckpointError(
            f"{folder}: the description of its sentence encoder's dense module is missing: damaged?"
        )
    for name in (WEIGHTS, INDEX):
        if os.path.lexists(folder / path / name):
            inside(folder, os.path.join(path, name))
    found = open_tensors(folder / path)
    if not {_KERNEL} <= set(found.entries) <= {_KERNEL, _BIAS}:
        raise CheckpointError(
            f"{folder / path}: its tensors are {', '.join(found.entries)}: {_KERNEL} and, "
            f"optionally, {_BIAS} are needed"
        )
    for name, entry in found.entries.items():
        if entry.dtype not in FLOATS:
            raise CheckpointError(
                f"{folder / path}: the tensor {name} is {entry.dtype}: weights are "
                f"{', '.join(FLOATS)}"
            )
    tensors = {name: found.read(name) for name in found.entries}
    for name, array in tensors.items():
        if not all_finite(array):
            raise CheckpointError(
                f"{folder / path}: the tensor {name} has NaN or infinity: download it again"
            )
    if said.get("sha256") not in (None, digest(tensors)):
        raise CheckpointError(
            f"{folder / path}: differs from the converted weights: damaged, convert them again"
        )
    return tensors
