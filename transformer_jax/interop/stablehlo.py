"""Models as StableHLO, which runs without their code, on any platform and for any batch size.

``jax.export`` writes it. StableHLO guarantees that it can be read by versions of the next six
months, https://docs.jax.dev/en/latest/export/export.html. Reading it here needs JAX, but no code of
models.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import export
from jaxtyping import PyTree

from transformer_jax.core.errors import CheckpointError, ConfigError, DataError, install
from transformer_jax.data.files import read_file

if TYPE_CHECKING:
    from transformer_jax.data.tokenizer import Tokenizer
    from transformer_jax.interop.exported_functions import Function
    from transformer_jax.interop.family import Model

__all__ = ["Portable", "check_stablehlo", "load_stablehlo", "write_stablehlo"]

_FORMAT = "transformer-jax stablehlo 1"
_MANIFEST, _WEIGHTS = "manifest.json", "model.safetensors"
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_OLD_LIMIT = "B >= 2"  # for decoding, in folders exported before programs supported one row


def write_stablehlo(
    output: Path,
    model: "Model",
    params: PyTree,
    tokenizer: "Tokenizer",
    *,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
    length: int | None = None,
) -> str:
    """Writes a model as StableHLO with its weights; returns a summary line.

    ``forward.stablehlo`` is the forward pass, and ``translate.stablehlo`` or ``generate.stablehlo``
    is greedy decoding as one program. ``manifest.json`` has the inputs and outputs of each;
    :func:`load_stablehlo` reads them.

    Args:
        output: The folder.
        model: The model.
        params: The parameters of the model.
        tokenizer: The tokenizer, whose special tokens begin and end generated texts.
        platforms: Platforms to run on: cpu, cuda, rocm, tpu.
        length: Maximum number of generated tokens; None is 128, or fewer with fewer positions.

    Raises:
        ConfigError: The required package is missing, or the platform or length is invalid.
        CheckpointError: The folder cannot be written.
    """
    check_stablehlo(model, length, platforms)
    from safetensors.numpy import save

    from transformer_jax.core.trees import flatten_dict
    from transformer_jax.interop.exported_functions import functions

    weights = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
    shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in weights.items()}
    parts = functions(model, tokenizer, length)
    exported = {name: _exported(part, shapes, platforms) for name, part in parts.items()}
    special = {role: getattr(tokenizer, role) for role in ("pad", "bos", "eos", "unk", "mask")}
    manifest = {
        "format": _FORMAT,
        "kind": model.kind,
        "jax": jax.__version__,
        "platforms": list(platforms),
        "weights": _WEIGHTS,
        "special": {role: id for role, id in special.items() if id is not None},
        "end_tokens": list(tokenizer.end_tokens),
        "functions": {name: _described(parts[name], made) for name, made in exported.items()},
    }
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, made in exported.items():
            (output / f"{name}.stablehlo").write_bytes(made.serialize())
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (output / _MANIFEST).write_text(text, encoding="utf-8")
        (output / _WEIGHTS).write_bytes(save(weights))
    except OSError as error:
        raise CheckpointError(f"{output}: cannot be written: {error.strerror}") from None
    tokenizer.save(output / "tokenizer.json")
    return f"stablehlo: {', '.join(parts)} for {', '.join(platforms)}, of jax {jax.__version__}"


def check_stablehlo(
    model: "Model", length: int | None = None, platforms: Sequence[str] = _PLATFORMS
) -> None:
    """Refuses models that :func:`write_stablehlo` would refuse, before parameters are loaded.

    Raises:
        ConfigError: The required package is missing, or the platform or length is invalid.
    """
    if model.kind in ("image", "captioner"):
        raise ConfigError("--format stablehlo is for models of texts, not images: use hf")
    unknown = [name for name in platforms if name not in _PLATFORMS]
    if unknown or not platforms:
        raise ConfigError(f"platform {unknown}: allowed are {', '.join(_PLATFORMS)}")
    if length is not None and model.kind not in ("decoder", "encoder-decoder"):
        raise ConfigError("an encoder or classifier does not generate texts: leave --length out")
    # A prompt takes at least two positions, and the last generated token takes none.
    most = model.config.positions.max_length - (model.kind == "decoder")
    if length is not None and not 1 <= length <= most:
        raise ConfigError(f"--length {length}: allowed are 1 to {most}, by the model's positions")
    _needs_flatbuffers()


def _exported(part: "Function", shapes: Mapping[str, Any], platforms: Sequence[str]) -> Any:
    letters = {size for shape, _ in part.inputs.values() for size in shape if isinstance(size, str)}
    open_sizes: dict[Any, Any] = {}
    if letters:
        names = ", ".join(sorted(letters))
        found = export.symbolic_shape(names, constraints=part.limits)
        open_sizes = dict(zip(sorted(letters), found, strict=True))
    specs = [
        jax.ShapeDtypeStruct(tuple(open_sizes.get(size, size) for size in shape), np.dtype(dtype))
        for shape, dtype in part.inputs.values()
    ]
    from transformer_jax.interop.exported_functions import portable

    with portable():
        return export.export(jax.jit(part.call), platforms=platforms)(dict(shapes), *specs)


def _described(part: "Function", made: Any) -> dict[str, Any]:
    """Describes the inputs and outputs of a function, for the manifest."""
    outputs = jax.tree.unflatten(made.out_tree, made.out_avals)
    said = lambda aval: {
        "shape": [size if isinstance(size, int) else str(size) for size in aval.shape],
        "dtype": str(aval.dtype),
    }
    inputs = {n: {"shape": list(s), "dtype": dtype} for n, (s, dtype) in part.inputs.items()}
    return {
        "calling_convention": made.calling_convention_version,
        "inputs": inputs,
        "limits": list(part.limits),
        "outputs": {name: said(aval) for name, aval in outputs.items()},
    }


class Portable:
    """A program of :func:`write_stablehlo`, called by the names in its manifest.

    Attributes:
        manifest: The inputs and outputs of each function.
        weights: The parameters by name.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any], weights: Mapping[str, Any]):
        self.manifest, self.weights = manifest, dict(weights)
        self._calls = {name: _deserialized(folder, name) for name in manifest["functions"]}

    def forward(self, **arrays: Any) -> dict[str, jax.Array]:
        """Computes the forward pass of a batch."""
        return self.call("forward", **arrays)

    def translate(self, **arrays: Any) -> dict[str, jax.Array]:
        """Returns the greedy translations of a batch, each of at most ``limits`` tokens."""
        return self.call("translate", **arrays)

    def generate(self, **arrays: Any) -> dict[str, jax.Array]:
        """Returns the greedy continuations of prompts, which end in the last column.

        ``starts`` is the first column of each prompt.
        """
        tokens = np.asarray(arrays.get("tokens", ()), np.int32)
        if tokens.ndim == 2 and tokens.shape[1] == 1 and "starts" in arrays:
            pad = np.pad(tokens, ((0, 0), (1, 0)))
            arrays = arrays | {"tokens": pad, "starts": np.asarray(arrays["starts"]) + 1}
        return self.call("generate", **arrays)

    def call(self, function: str, **arrays: Any) -> dict[str, jax.Array]:
        """Calls a function of the manifest, and returns its outputs by name.

        Raises:
            ConfigError: The function is unknown.
            DataError: Arrays are unexpected, or have wrong shapes.
        """
        if function not in self._calls:
            known = ", ".join(self._calls)
            raise ConfigError(f"there is no function {function}: the model has {known}")
        said = self.manifest["functions"][function]
        inputs = said["inputs"]
        if inputs.keys() != arrays.keys():
            raise DataError(f"{function} takes {', '.join(inputs)}, not {', '.join(arrays)}")
        given = {name: np.asarray(arrays[name], one["dtype"]) for name, one in inputs.items()}
        alone = _OLD_LIMIT in said["limits"] and all(
            array.shape[:1] == (1,) for array in given.values()
        )
        if alone:  # such programs need two rows: repeat the only one
            given = {name: np.repeat(array, 2, axis=0) for name, array in given.items()}
        _check_sizes(function, said, {name: array.shape for name, array in given.items()})
        found: dict[str, jax.Array] = self._calls[function](self.weights, *given.values())
        return {name: array[:1] for name, array in found.items()} if alone else found


def _check_sizes(
    function: str, said: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuses arrays whose shapes do not match the manifest.

    Raises:
        DataError: An array does not match; the message names the first.
    """
    known: dict[str, int] = {}
    for name, shape in shapes.items():
        wanted = said["inputs"][name]["shape"]
        fits = len(shape) == len(wanted) and all(
            size == (known.setdefault(want, size) if isinstance(want, str) else want)
            for size, want in zip(shape, wanted, strict=True)
        )
        if not fits:
            where = f" with {', '.join(f'{x} = {n}' for x, n in known.items())}" if known else ""
            raise DataError(f"{function}: {name} is {list(shape)}: must be {wanted}{where}")
    for limit in said["limits"]:
        letter, relation, number = limit.split()
        size = known[letter]
        if not (size >= int(number) if relation == ">=" else size <= int(number)):
            raise DataError(f"{function}: {letter} is {size}: allowed is {limit}")


def load_stablehlo(folder: str | os.PathLike[str]) -> Portable:
    """Loads the functions in a folder of :func:`write_stablehlo`.

    Raises:
        CheckpointError: The folder does not exist, or is damaged.
        ConfigError: The required package is missing.
    """
    _needs_flatbuffers()
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = Path(folder)
    try:
        manifest = json.loads(read_file(path / _MANIFEST).decode("utf-8"))
        weights = load_file(path / _WEIGHTS)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, SafetensorError):
        raise CheckpointError(f"{path}: damaged: its manifest or its weights") from None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise CheckpointError(f"{path / _MANIFEST}: not of the format {_FORMAT!r}")
    return Portable(path, manifest, jax.device_put(weights))


def _deserialized(folder: Path, name: str) -> Callable[..., Any]:
    path = folder / f"{name}.stablehlo"
    try:
        return jax.jit(export.deserialize(bytearray(read_file(path))).call)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception as error:  # any error of its parser
        said = str(error).splitlines()[:1] or [type(error).__name__]
        raise CheckpointError(f"{path}: damaged, or of another jax version: {said[0]}") from None


def _needs_flatbuffers() -> None:
    try:
        import flatbuffers  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"--format stablehlo needs a package that is not installed: {install('export')}"
        ) from None
