"""Devices to compile or plan for, which need not be present."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

import jax
from jax.experimental import topologies

from transformer_jax.core.errors import ConfigError, install

__all__ = [
    "DEVICES", "DeviceType", "Target", "Utilization", "assumed_utilization", "compile_only",
    "find_target", "plan_target",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DeviceType:
    """The properties of a kind of device.

    Attributes:
        platform: ``gpu`` or ``tpu``.
        memory: Bytes of memory that its driver or compiler makes available to programs.
        flops: Dense bfloat16 operations per second.
        bandwidth: Bytes per second from and to its memory.
        kinds: Values of ``device_kind`` in JAX.
    """

    platform: str
    memory: int
    flops: float
    bandwidth: float
    kinds: tuple[str, ...]


_GB, _GIB, _T = 10**9, 2**30, 1e12

# Speeds are from NVIDIA's data sheets (dense figures, half of those with sparsity) and Cloud TPU's
# system architecture pages; memory is as reported by CUDA and by libtpu's compiler, which is less
# than in the data sheets.
DEVICES: dict[str, DeviceType] = {
    "a100": DeviceType("gpu", 85 * _GB, 312 * _T, 2.04 * _T, ("NVIDIA A100-SXM4-80GB",)),
    "h100": DeviceType("gpu", 85 * _GB, 989 * _T, 3.35 * _T, ("NVIDIA H100 80GB HBM3",)),
    "h200": DeviceType("gpu", 150 * _GB, 989 * _T, 4.8 * _T, ("NVIDIA H200",)),
    "v4": DeviceType("tpu", int(30.75 * _GIB), 275 * _T, 1.2 * _T, ("TPU v4",)),
    "v5e": DeviceType("tpu", int(15.75 * _GIB), 197 * _T, 0.82 * _T, ("TPU v5 lite", "TPU v5e")),
    "v5p": DeviceType("tpu", int(95.74 * _GIB), 459 * _T, 2.77 * _T, ("TPU v5", "TPU v5p")),
    "v6e": DeviceType("tpu", int(31.25 * _GIB), 918 * _T, 1.64 * _T, ("TPU v6 lite", "TPU v6e")),
}


class Utilization(NamedTuple):
    """The fraction of the peak that training of a model reached on an H200."""

    fraction: float
    model: str


# By width: the steps of train_h200_py3.12.json and language_train_h200_py3.12.json in
# benchmarks/results, of which the first took 22 and 24 %, the second 39 and 40. Dubey et al. 2024,
# table 4, have 0.38 to 0.43 on up to 16,384 H100s, Chowdhery et al. 2022, table 3, 0.46 on 6,144
# TPUs v4.
_UTILIZATION = {512: Utilization(0.23, "Transformer-base"), 768: Utilization(0.4, "GPT-2 small")}


def assumed_utilization(width: int) -> Utilization:
    """Returns the utilization of the widest measured model that is not wider; else the smallest.

    Example:
        >>> [assumed_utilization(width).fraction for width in (128, 767, 1024)]
        [0.23, 0.23, 0.4]
    """
    known = [one for least, one in _UTILIZATION.items() if least <= width]
    return known[-1] if known else _UTILIZATION[min(_UTILIZATION)]


_GPU, _TPU = re.compile(r"(\w+):(\d+(?:x\d+)?)"), re.compile(r"(\w+):(\d+(?:x\d+)+)")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)(GB|GiB)(?::(\d+))?")
_UNITS = {"GB": _GB, "GiB": _GIB}
_ALLOWED = (
    "h200:8 (GPUs), h200:2x8 (two machines of eight), a TPU slice such as v5e:2x4, v5e:4x4, "
    "v5p:2x2x2 or v6e:4x4, or the memory of a device, such as 80GiB or 80GiB:8"
)
_DESCRIBED = ("h200",)  # GPUs with a description for the compiler, targets/NAME.txtpb
# TPU slices whose chips form a plane; the others are cuboids.
_PLANES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")

_CAPABILITIES = {"a100": "8.0"}


class _Described(NamedTuple):
    platform: str
    compute_capability: str | None
    device_kind: str


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for, or to estimate memory for.

    Attributes:
        name: The given name, such as ``v5e:2x4``.
        type: Properties of each device.
        devices: Devices in JAX's form: they can be compiled for, not run on. Empty if there is no
            compiler for them.
        number: Number of devices.
        why: Reason why there is no compiler; empty if there is one.
    """

    name: str
    type: DeviceType
    devices: tuple[jax.Device, ...]
    number: int = 0
    why: str = ""

    def __post_init__(self) -> None:
        if self.devices:
            object.__setattr__(self, "number", len(self.devices))

    @property
    def compiles(self) -> bool:
        """Returns whether programs can be compiled for it."""
        return bool(self.devices)

    @property
    def device(self) -> "jax.Device | _Described":
        """One of the devices: an object with its platform, capability and kind."""
        if self.devices:
            return self.devices[0]
        gpu = self.type.platform == "gpu"
        return _Described(
            self.type.platform,
            _CAPABILITIES.get(self.name.partition(":")[0], "9.0") if gpu else None,
            next(iter(self.type.kinds), ""),
        )

    @property
    def usable(self) -> int:
        """Bytes available to programs: JAX reserves a part of a GPU's memory when it starts.

        ``XLA_PYTHON_CLIENT_MEM_FRACTION`` is that part, by default 0.75. A target given as a memory
        size has all of it available.
        """
        if self.type.platform != "gpu" or not self.type.kinds:
            return self.type.memory
        given = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.75")
        try:
            part = float(given)
        except ValueError:
            part = 0.0
        if not 0 < part <= 1:
            raise ConfigError(
                f"XLA_PYTHON_CLIENT_MEM_FRACTION is {given!r}: a number above 0 and up to 1 is "
                f"needed"
            )
        return int(part * self.type.memory)

    @property
    def lowering(self) -> str:
        """The platform that JAX lowers programs to."""
        return "cuda" if self.type.platform == "gpu" else "tpu"


def find_target(name: str) -> Target:
    """Returns the devices for a name: ``h200:8``, ``h200:2x8`` on two machines, or ``v5e:4x4``.

    Needs the compilers of the platform, ``pip install transformer_jax[aot]``, but no device.

    Raises:
        ConfigError: An unknown name, a slice that does not exist, or no compiler for it.
    """
    kind, size, device = _named(name)
    if device.platform == "gpu" and kind not in _DESCRIBED:
        raise ConfigError(_undescribed(kind))
    if missing := _missing_compiler(device.platform):
        raise ConfigError(f"target {name}: {missing}")
    try:
        with _quiet():
            return Target(name, device, tuple(_topology(kind, size, device.platform).devices))
    except Exception as error:
        raise ConfigError(f"target {name}: {error}") from None


def plan_target(name: str) -> Target:
    """Returns the devices to plan for; without a compiler, their memory is only estimated.

    Args:
        name: As for :func:`find_target`, or the memory available to programs on each device, with
            the number of devices if it is not 1: ``80GiB``, ``80GiB:8``. Such a device is a GPU
            with only its memory known.

    Raises:
        ConfigError: An unknown name, a malformed size, or a slice that does not exist.

    Example:
        >>> plan_target("80GiB:8").number, plan_target("80GiB").usable == 80 * 2**30
        (8, True)
    """
    if name[:1].isdecimal():
        return _sized(name)
    kind, size, device = _named(name)
    why = _undescribed(kind) if device.platform == "gpu" and kind not in _DESCRIBED else None
    why = why or _missing_compiler(device.platform)
    if why is None:
        return find_target(name)
    return Target(name, device, (), math.prod(map(int, size.split("x"))), why)


def _sized(name: str) -> Target:
    match = _MEMORY.fullmatch(name)
    size, unit, number = match.groups() if match else ("0", "GB", None)
    memory, devices = int(float(size) * _UNITS[unit]), int(number or 1)
    if not memory or not devices:
        raise ConfigError(
            f"--plan {name}: this is not the memory of a device: write 80GiB, 141GB, or 80GiB:8 "
            f"for eight devices"
        )
    device = DeviceType("gpu", memory, 0.0, 0.0, ())
    return Target(name, device, (), devices, "a memory size has no compiler")


def _named(name: str) -> tuple[str, str, DeviceType]:
    """Returns the kind of devices, their number or shape, and the properties of each."""
    kind, _, size = name.partition(":")
    device = DEVICES.get(kind)
    pattern = _TPU if device is not None and device.platform == "tpu" else _GPU
    if device is None or not pattern.fullmatch(name) or not all(map(int, size.split("x"))):
        raise ConfigError(f"there is no target {name!r}: allowed are {_ALLOWED}")
    if device.platform == "tpu":
        _check_slice(name, kind, size)
        return kind, size, device
    return kind, str(math.prod(map(int, size.split("x")))), device


def _check_slice(name: str, kind: str, size: str) -> None:
    if kind in ("v5e", "v6e"):
        there, known = size in _PLANES, ", ".join(_PLANES)
    else:
        sizes = [int(side) for side in size.split("x")]
        there = size in ("1x1x1", "2x2x1") or (
            len(sizes) == 3 and all(side == 2 or side % 4 == 0 for side in sizes)
        )
        known = "1x1x1, 2x2x1, and three sides that are 2 or multiples of 4, such as 2x2x4"
    if not there:
        raise ConfigError(f"target {name}: there is no such slice of {kind}: there are {known}")


def _undescribed(kind: str) -> str:
    return f"the compiler has no description of {kind}: among GPUs it has {', '.join(_DESCRIBED)}"


def _missing_compiler(platform: str) -> str | None:
    package = {"gpu": "jax_plugins.xla_cuda13", "tpu": "libtpu"}[platform]
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        found = None
    if found is not None:
        return None
    return f"the {platform.upper()} compiler is not installed: {install('aot')}"


def _topology(kind: str, size: str, platform: str) -> topologies.TopologyDescription:
    if platform == "tpu":
        # Without it, libtpu looks for the metadata server of a cloud machine, for minutes.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        # Allows two plans at a time: compiling alone locks no device.
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        how: dict[str, list[int] | str] = {}
        if math.prod(map(int, size.split("x"))) == 1:
            how["chips_per_host_bounds"] = [1, 1, 1]  # otherwise a machine has four
        if kind == "v4":
            how["chip_config_name"] = "megacore"  # both cores of a chip are one device
        return topologies.get_topology_desc(platform="tpu", topology_name=f"{kind}:{size}", **how)
    described = resources.files("transformer_jax.parallel") / "targets" / f"{kind}.txtpb"
    shape = f"1x1x{size}"
    return topologies.get_topology_desc(
        platform="cuda", topology_name=shape, topology=shape, target_config=described.read_text()
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context manager: hides what the compilers' libraries write to the terminal on loading."""
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
    """Context manager: programs can be lowered for a target without its libraries.

    JAX asks the machine for cuDNN's version before it lowers cuDNN's attention: here it gets the
    version in the target's description.
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
