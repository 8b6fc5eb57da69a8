"""Devices that need not be there: what programs are compiled for, and what each device has."""

import contextlib
import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

from jax.experimental import topologies

from transformer_jax.errors import ConfigError

__all__ = ["DEVICES", "DeviceType", "Target", "compile_only", "find_target"]


@dataclasses.dataclass(frozen=True)
class DeviceType:
    """What a device has, as its maker says it.

    Attributes:
        platform: ``gpu`` or ``tpu``.
        memory: Bytes of its memory.
        flops: Products and sums of bfloat16 numbers a second, dense.
        bandwidth: Bytes a second from and to its memory.
        kinds: Values of ``device_kind`` by which JAX names it.
    """

    platform: str
    memory: int
    flops: float
    bandwidth: float
    kinds: tuple[str, ...]


_GB, _T = 10**9, 1e12

# Sources: the data sheets of NVIDIA (dense figures, half of those with sparsity) and the system
# architecture pages of Cloud TPU.
DEVICES: dict[str, DeviceType] = {
    "a100": DeviceType("gpu", 80 * _GB, 312 * _T, 2.04 * _T, ("NVIDIA A100-SXM4-80GB",)),
    "h100": DeviceType("gpu", 80 * _GB, 989 * _T, 3.35 * _T, ("NVIDIA H100 80GB HBM3",)),
    "h200": DeviceType("gpu", 141 * _GB, 989 * _T, 4.8 * _T, ("NVIDIA H200",)),
    "v4": DeviceType("tpu", 32 * 2**30, 275 * _T, 1.2 * _T, ("TPU v4",)),
    "v5e": DeviceType("tpu", 16 * 2**30, 197 * _T, 0.82 * _T, ("TPU v5 lite", "TPU v5e")),
    "v5p": DeviceType("tpu", 95 * 2**30, 459 * _T, 2.77 * _T, ("TPU v5", "TPU v5p")),
    "v6e": DeviceType("tpu", 32 * 2**30, 918 * _T, 1.64 * _T, ("TPU v6 lite", "TPU v6e")),
}

_GPU, _TPU = re.compile(r"(\w+):(\d+)"), re.compile(r"(\w+):(\d+(?:x\d+)+)")
_DESCRIBED = ("h200",)  # GPUs with a description for the compiler, targets/NAME.txtpb


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for.

    Attributes:
        name: As it was given, such as ``v5e:2x4``.
        type: What each device has.
        devices: As JAX describes them: they can be compiled for, not run on.
    """

    name: str
    type: DeviceType
    devices: tuple[Any, ...]

    @property
    def usable(self) -> int:
        """Bytes that programs can use: JAX takes a part of a GPU's memory when it starts.

        ``XLA_PYTHON_CLIENT_MEM_FRACTION`` is that part, 0.75 if it is not set.
        """
        if self.type.platform != "gpu":
            return self.type.memory
        part = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")
        try:
            return int(float(part) * self.type.memory)
        except ValueError:
            raise ConfigError(
                f"XLA_PYTHON_CLIENT_MEM_FRACTION is {part!r}: a number from 0 to 1 is needed"
            ) from None

    @property
    def lowering(self) -> str:
        """The platform that JAX lowers programs to."""
        return "cuda" if self.type.platform == "gpu" else "tpu"


def find_target(name: str) -> Target:
    """The devices of a name: ``h200:8``, or a TPU slice such as ``v5e:4x4``.

    Needs the compilers of the platform, ``pip install transformer_jax[aot]``; no device.

    Raises:
        ConfigError: An unknown name, a slice that does not exist, or no compiler for it.
    """
    kind, _, size = name.partition(":")
    allowed = "h200:8 (GPUs), or a TPU slice such as v5e:2x4, v5e:4x4, v5p:2x2x2, v6e:4x4"
    device = DEVICES.get(kind)
    pattern = _TPU if device is not None and device.platform == "tpu" else _GPU
    if device is None or not pattern.fullmatch(name) or not all(map(int, size.split("x"))):
        raise ConfigError(f"there is no target {name!r}: allowed are {allowed}")
    if device.platform == "gpu" and kind not in _DESCRIBED:
        raise ConfigError(
            f"the compiler has no description of {kind}: of GPUs there is {', '.join(_DESCRIBED)}"
        )
    _check_compiler(name, device.platform)
    try:
        with _quiet():
            return Target(name, device, tuple(_topology(kind, size, device.platform).devices))
    except Exception as error:
        raise ConfigError(f"target {name}: {error}") from None


def _check_compiler(name: str, platform: str) -> None:
    package = {"gpu": "jax_plugins.xla_cuda13", "tpu": "libtpu"}[platform]
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(
            f"target {name}: the {platform.upper()} compiler is not installed: "
            "pip install 'transformer_jax[aot]'"
        )


def _topology(kind: str, size: str, platform: str) -> Any:
    if platform == "tpu":
        # Without it libtpu looks for the metadata server of a cloud machine, for minutes.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        return topologies.get_topology_desc(platform="tpu", topology_name=f"{kind}:{size}")
    described = resources.files("transformer_jax.parallel") / "targets" / f"{kind}.txtpb"
    shape = f"1x1x{size}"
    return topologies.get_topology_desc(
        platform="cuda",
        topology_name=shape,
        topology=shape,
        target_config=described.read_text(),
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the compilers' libraries write to the terminal as they are loaded."""
    with open(os.devnull, "w") as nothing, _stderr_to(nothing.fileno()):
        yield


@contextlib.contextmanager
def _stderr_to(file: int) -> Iterator[None]:
    kept = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def compile_only(target: Target) -> Iterator[None]:
    """Inside, programs can be lowered for a target whose libraries are not on this machine.

    JAX asks the machine for cuDNN's version before it lowers cuDNN's attention: inside, it is the
    version that the target's description names.
    """
    if target.type.platform != "gpu":
        yield
        return
    from jax._src.cudnn import fused_attention_stablehlo as fused

    answers = {
        "check_cudnn_version": 91900,
        "check_compute_capability": True,
        "is_cuda_compute_capability_equal": False,
    }
    kept = {name: getattr(fused, name) for name in answers}
    try:
        for name, answer in answers.items():
            setattr(fused, name, lambda *_, answer=answer: answer)
        yield
    finally:
        for name, function in kept.items():
            setattr(fused, name, function)
