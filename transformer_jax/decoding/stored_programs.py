"""Traced programs on disk, next to compiled ones: a later process neither traces nor compiles."""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import json
import logging
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from logging.handlers import BufferingHandler
from pathlib import Path

import flax
import jax
import jaxlib
import ml_dtypes
import numpy as np
from jax import export, stages
from jaxtyping import PyTree

from transformer_jax.core import runtime
from transformer_jax.core.output_files import draft_file
from transformer_jax.functional.kernels.choice import records_choices
from transformer_jax.functional.layers import ACTIVATIONS
from transformer_jax.functional.partitioning import current_mesh
from transformer_jax.functional.recurrent import CELLS

__all__ = ["stored"]

log = logging.getLogger(__name__)

_FORMAT = "transformer_jax program 1\n"
_LARGEST = 64 << 20  # bytes of a file
# Where the code and the classes of a program may come from: this package, whose source is part of
# the key, and others, whose versions are.
_PACKAGE = Path(runtime.__file__).parents[1]
_VERSIONS = {one.__name__: one.__version__ for one in (jax, jaxlib, flax, ml_dtypes, np)}
_KNOWN = {_PACKAGE.name, *_VERSIONS, "builtins", "collections", "functools", "types"}
_PLAIN = {type(None), bool, int, float, complex, str, bytes}


class _UndeterminedError(Exception):
    """A value whose text would not determine it."""


def stored(
    function: Callable[..., PyTree], *parts: object, returns: Sequence[type] = ()
) -> Callable[..., PyTree]:
    """Returns ``function``, which is read from disk where ``jax.jit`` would trace it.

    Tracing a translator of two layers takes Python half a second for each shape. The first process
    writes what it traced, as StableHLO (``jax.export``), into the folder of compiled programs;
    another one reads it, and finds its executable in JAX's cache. Both run the same program.

    The name of the file is a digest of all that the program depends on: ``parts``, static
    arguments, shapes and dtypes, the source of this package, versions of others, settings of JAX.
    With a part that these do not determine, such as a function or class of the user's, the function
    is traced. So is any function on several devices or an accelerator, without a cache, and in a
    process that is not the package's own command line: a program of the user's that calls commands
    may have replaced functions of the package.

    Args:
        function: Function of this package.
        *parts: All values but its arguments that it depends on.
        returns: The types in its result other than tuples, lists and dictionaries: named tuples,
            and dataclasses registered with JAX.
    """

    @functools.cache
    def described() -> str | None:
        with contextlib.suppress(_UndeterminedError):
            return _StaticText().of((getattr(function, "__func__", function), parts))
        return None

    @functools.wraps(function)
    def read_or_trace(*arguments: PyTree, **settings: PyTree) -> PyTree:
        folder = runtime.program_folder()
        if folder is None or not _is_one_cpu() or described() is None:
            return function(*arguments, **settings)
        leaves, tree = jax.tree.flatten((arguments, settings))
        arrays = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)}

        def flat(*values: PyTree) -> PyTree:
            filled = dict(zip(arrays, values, strict=True))
            every = [filled.get(i, leaf) for i, leaf in enumerate(leaves)]
            positional, named = jax.tree.unflatten(tree, every)
            return function(*positional, **named)

        types = [jax.typeof(array) for array in arrays.values()]
        static = [None if i in arrays else leaf for i, leaf in enumerate(leaves)]
        try:
            text = _StaticText().of((described(), _surroundings(), tree, static))
        except _UndeterminedError:
            return function(*arguments, **settings)
        text += "".join(f"{x.shape} {x.dtype} {x.weak_type}\n" for x in types)
        for kind in returns:
            _register(kind)
        return _program(folder, text, jax.jit(flat), types)(*arrays.values())

    return read_or_trace


def _program(
    folder: Path, text: str, jitted: stages.Wrapped, types: Sequence[jax.core.ShapedArray]
) -> Callable[..., PyTree]:
    """Returns the program of ``text`` from ``folder``, where it is written if it is not there."""
    path = folder / f"traced-{hashlib.sha256(text.encode()).hexdigest()}"
    content = _read(path, text)
    if content is None:
        content = _exported(jitted, types)
        with contextlib.suppress(OSError), draft_file(path) as draft:  # full, or read-only
            draft.write_bytes(_digest(text, content) + content)
    try:
        return _called(content) if content else jitted
    except Exception:  # whatever jax.export raises for a file of another's
        log.debug("%s cannot be read", path, exc_info=True)
        return jitted


def _read(path: Path, text: str) -> bytes | None:
    """Returns the content of a file that was written for ``text``; None for any other."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
                return None
            data = file.read(_LARGEST)
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    if data[:size] != _digest(text, data[size:]):
        return None
    with contextlib.suppress(OSError):  # the folder of another user
        os.utime(path)  # the programs that nobody uses are removed first
    return data[size:]


def _digest(text: str, content: bytes) -> bytes:
    return hashlib.sha256(f"{_FORMAT}{len(text)}\n{text}".encode() + content).digest()


def _exported(jitted: stages.Wrapped, types: Sequence[jax.core.ShapedArray]) -> bytes:
    """Returns a program as bytes, none if it cannot be a file or if its trace said something."""
    listener, package = BufferingHandler(sys.maxsize), logging.getLogger(_PACKAGE.name)
    listener.setLevel(logging.WARNING)
    package.addHandler(listener)
    try:
        jitted.trace(*types)  # kept by JAX; its errors are those of the function
    finally:
        package.removeHandler(listener)
    try:
        content = bytes(export.export(jitted)(*types).serialize())
    except (ValueError, NotImplementedError) as error:  # types or calls that have no form on disk
        log.debug("%s", error)
        return b""
    return b"" if listener.buffer or len(content) > _LARGEST // 2 else content


def _called(content: bytes) -> Callable[..., PyTree]:
    """Returns the function of an exported program."""
    program = export.deserialize(bytearray(content))
    if b"lapack" not in program.mlir_module_serialized:
        # For a program of the platform "cpu", JAX would import SciPy to find LAPACK: 0.1 s.
        program = dataclasses.replace(
            program, platforms=("any",),
            disabled_safety_checks=(export.DisabledSafetyCheck.platform(),),
        )  # fmt: skip
    return program.call


@functools.cache
def _register(kind: type) -> None:
    """Makes a type of results known to ``jax.export``."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, tuple):
        export.register_namedtuple_serialization(kind, serialized_name=name)
        return
    export.register_pytree_node_serialization(
        kind,
        serialized_name=name,
        serialize_auxdata=lambda static: json.dumps(static).encode(),
        deserialize_auxdata=lambda said: tuple(json.loads(said)),
    )


# --- What a program depends on --------------------------------------------------------------------


def _is_one_cpu() -> bool:
    devices = jax.devices()
    one = len(devices) == 1 and devices[0].platform == "cpu"
    return one and current_mesh() is None and not records_choices()


def _surroundings() -> str:
    """Returns what all programs of a process depend on: code, versions, settings of JAX.

    Raises:
        _UndeterminedError: A table of functions has one of the user's.
    """
    settings = {
        name: str(getattr(jax.config, name, value))
        for name, value in jax.config.values.items()
        if name != "jax_compilation_cache_dir"  # a copied folder serves as well
    }
    tables = _StaticText().of((ACTIVATIONS, CELLS))  # programs know their functions by name
    return f"{_source()} {sys.version} {_VERSIONS} {tables} {sorted(settings.items())}"


@functools.cache
def _source() -> str:
    """Returns the digest of the package's source."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE)} {len(data)}\n".encode() + data)
    return digest.hexdigest()


class _StaticText:
    """Texts of static values, from which equal programs follow."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[object, str]] = {}  # configurations occur in many modules

    def of(self, value: object) -> str:
        """Returns the text of a value.

        Raises:
            _UndeterminedError: It has parts that no text would determine.
        """
        if type(value) in _PLAIN:
            return repr(value)
        if id(value) not in self._of:
            self._of[id(value)] = value, self._made(value)
        return self._of[id(value)][1]

    def _made(self, value: object) -> str:
        if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
            return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
        if isinstance(value, np.dtype):
            return f"dtype {value}"
        if isinstance(value, type) or hasattr(value, "__qualname__"):
            return _name(value)
        kind = _name(type(value))
        if isinstance(value, enum.Enum):
            return f"{kind}.{value.name}"
        if isinstance(value, jax.tree_util.PyTreeDef):
            return f"{kind}({self.of(value.node_data())}, {self.of(value.children())})"
        if isinstance(value, functools.partial):
            return f"{kind}({self.of((value.func, value.args, value.keywords))})"
        if isinstance(value, Mapping):
            return f"{kind}({self.of(list(value.items()))})"
        if isinstance(value, list | tuple):
            return f"{kind}({', '.join(map(self.of, value))})"
        if isinstance(value, set | frozenset):
            return f"{kind}({', '.join(sorted(map(self.of, value)))})"
        if dataclasses.is_dataclass(value):
            fields = (getattr(value, field.name) for field in dataclasses.fields(value))
            return f"{kind}({', '.join(map(self.of, fields))})"
        raise _UndeterminedError(kind)


def _name(value: object) -> str:
    """Returns the name of a class or function by which others find it, too."""
    module, path = str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    same = found is value or value is type(None)  # which has no name in its module
    if not same or module.split(".")[0] not in _KNOWN:
        raise _UndeterminedError(f"{module}.{path}")
    return f"{module}.{path}"
