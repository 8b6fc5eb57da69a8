"""Files with which clusters start a command: SLURM, Kubernetes, TPU VMs and SkyPilot."""

import dataclasses
import math
import os
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel.device_catalog import DEVICES

__all__ = ["KINDS", "Cluster", "count_devices", "render"]

PORT = 8476  # of process 0
MOUNT = "/shared"  # mount point of the shared disk on machines created for a run
_TIME = re.compile(r"(?:\d+-)?\d+:\d{2}:\d{2}|\d+", re.ASCII)
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_TPU_HOST = 4  # chips per machine in a slice of several machines
_TPU_ALONE = 8  # largest number of chips of a single machine, for v5e and v6e
# Google Cloud's names: accelerator type, cores per chip, machine version, node label.
_GCLOUD = {
    "v4": ("v4", 2, "tpu-ubuntu2204-base", "tpu-v4-podslice"),
    "v5e": ("v5litepod", 1, "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice"),
    "v5p": ("v5p", 2, "v2-alpha-tpuv5", "tpu-v5p-slice"),
    "v6e": ("v6e", 1, "v2-alpha-tpuv6e", "tpu-v6e-slice"),
}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The cluster that a command runs on.

    Attributes:
        plan: Devices of each machine, such as ``h200:8``, or a complete TPU slice, such as
            ``v5e:4x4``; ``cpu`` is a machine without accelerators.
        nodes: Number of machines; None is that of the TPU slice, else 1.
        name: Name of the job.
        time: Time limit, in SLURM's format.
        warning: Seconds before the time limit at which the run is told to save.
        restarts: Number of restarts after a crash.
        tasks: Processes per machine.
        options: Options of a single kind of cluster, by flag: ``partition``, ``image`` and so on.
    """

    plan: str
    nodes: int | None = None
    name: str = "transformer-jax"
    time: str = "24:00:00"
    warning: int = 300
    restarts: int = 3
    tasks: int = 1
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Machines:
    """The machines of a plan."""

    device: str  # such as h200; cpu
    platform: str
    nodes: int
    devices: int  # devices per machine
    topology: str  # of a TPU slice


def render(kind: str, command: list[str], cluster: Cluster) -> str:
    """Returns the complete file with which a cluster starts ``command``.

    Args:
        kind: One of ``KINDS``.
        command: The program and its arguments; it appears once, quoted for a shell.
        cluster: The cluster.

    Raises:
        ConfigError: The devices or another value are unknown to the cluster, or missing.

    Example:
        >>> text = render("slurm", ["train", "x y"], Cluster("h200:8", 2))
        >>> "--gpus-per-node=h200:8" in text, "train 'x y'" in text
        (True, True)
    """
    if kind not in KINDS:
        raise ConfigError(f"--render {kind}: there are {', '.join(KINDS)}")
    allowed, fields = KINDS[kind]
    for name in cluster.options:
        if name not in allowed:
            takes = ", ".join(f"--{one}" for one in allowed)
            raise ConfigError(f"--{name} does not go with --render {kind}, which takes {takes}")
    missing = [name for name, needed in allowed.items() if needed and not cluster.options.get(name)]
    if missing:
        wanted = "; ".join(f"--{name} {allowed[name]}" for name in missing)
        raise ConfigError(f"--render {kind} also needs {wanted}")
    _check(cluster)
    for word in command:
        _check_line("the command after --", word)
    values = fields(cluster, _machines(cluster)) | {
        "name": cluster.name,
        "restarts": str(cluster.restarts),
        "warning": str(cluster.warning),
        "command": shlex.join(command),
        "port": str(PORT),
        "shared": MOUNT,
    }
    name = _TEMPLATES[kind]
    text = (resources.files("transformer_jax.parallel.launch") / "templates" / name).read_text(
        "utf-8"
    )
    lines = re.sub(r"(?<!\$)\{(\w+)\}", lambda found: values[found[1]], text).split("\n")
    return "\n".join(line for line in lines if line) + "\n"


def count_devices(cluster: Cluster) -> int:
    """Returns the number of devices of all machines; on a CPU, one for each process.

    Raises:
        ConfigError: There is no such device, or the number of machines does not match.

    Example:
        >>> count_devices(Cluster("h200:8", 2)), count_devices(Cluster("v5e:4x4"))
        (16, 16)
    """
    machines = _machines(cluster)
    return machines.nodes * (machines.devices or cluster.tasks)


def _check(cluster: Cluster) -> None:
    if not _NAME.fullmatch(cluster.name):
        raise ConfigError(
            f"--name {cluster.name!r}: lower-case letters, digits and - are allowed, at most 40, "
            f"with a letter first"
        )
    if not _TIME.fullmatch(cluster.time):
        raise ConfigError(
            f"--time {cluster.time!r}: hours:minutes:seconds, days-hours:minutes:seconds or minutes"
        )
    if 2 * cluster.warning > _seconds(cluster.time):
        raise ConfigError(
            f"--warning is {cluster.warning}: at most half of --time {cluster.time}, in seconds"
        )
    for flag, value in cluster.options.items():
        if not re.fullmatch(r"[\w./:@+=,\[\]-]+", value, re.ASCII):
            raise ConfigError(f"--{flag} {value!r}: contains characters that are not allowed in it")
    if cluster.nodes is not None and not 1 <= cluster.nodes <= 100_000:
        raise ConfigError(f"--nodes is {cluster.nodes}: allowed are 1 to 100,000")
    if not 1 <= cluster.warning <= 86_400:
        raise ConfigError(f"--warning is {cluster.warning}: allowed are 1 to 86,400 seconds")


def _check_line(what: str, text: str) -> None:
    """Refuses text that does not fit in one line of a UTF-8 file.

    Raises:
        ConfigError: It contains a control character, a Unicode line end, or bytes that are not
            UTF-8.
    """
    kinds = {unicodedata.category(letter) for letter in text}
    if kinds & {"Cc", "Zl", "Zp", "Cs"}:
        raise ConfigError(
            f"{what} holds a line end, a control character or bytes that are not UTF-8, which no "
            f"file of a cluster can: {text!r}"
        )


def _here() -> tuple[str, str]:
    """The current folder and the folder of Python's programs, as a script names them.

    Raises:
        ConfigError: A script cannot name one of them.
    """
    folder, programs = os.getcwd(), str(Path(sys.executable).parent)
    _check_line("the name of this folder", folder)
    _check_line("the name of Python's folder", programs)
    return shlex.quote(folder), shlex.quote(programs)


def _seconds(time: str) -> int:
    """A time limit as SLURM writes it, in seconds.

    Example:
        >>> _seconds("10"), _seconds("1-02:00:00"), _seconds("00:30:05")
        (600, 93600, 1805)
    """
    if time.isdecimal():
        return 60 * int(time)
    days, _, clock = time.rpartition("-")
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    return ((24 * int(days or 0) + hours) * 60 + minutes) * 60 + seconds


def _machines(cluster: Cluster) -> _Machines:
    """Returns the machines of a plan.

    Raises:
        ConfigError: There is no such device, or the number of machines does not match.
    """
    device, _, size = cluster.plan.partition(":")
    found = DEVICES.get(device)
    if cluster.plan == "cpu":
        return _Machines("cpu", "cpu", cluster.nodes or 1, 0, "")
    if found is None:
        raise ConfigError(
            f"--plan {cluster.plan}: there are cpu, {', '.join(f'{one}:N' for one in DEVICES)}, "
            f"where N is the GPUs of a machine or the shape of a TPU slice, such as v5e:4x4"
        )
    if found.platform == "gpu":
        nodes, each = _gpus(cluster, device, size)
        return _Machines(device, "gpu", nodes, each, "")
    if not re.fullmatch(r"\d+(x\d+){1,2}", size):
        raise ConfigError(
            f"--plan {cluster.plan}: the shape of a slice is needed, such as {device}:4x4"
        )
    chips = math.prod(int(part) for part in size.split("x"))
    alone = chips <= (_TPU_ALONE if device in ("v5e", "v6e") else _TPU_HOST)
    nodes = 1 if alone else chips // _TPU_HOST
    if cluster.nodes not in (None, nodes):
        raise ConfigError(
            f"--nodes is {cluster.nodes}: the slice {cluster.plan} has {nodes}; leave --nodes out"
        )
    return _Machines(device, "tpu", nodes, chips // nodes, size)


def _gpus(cluster: Cluster, device: str, size: str) -> tuple[int, int]:
    """The machines of a GPU plan, ``8`` or ``2x8``, and the number of GPUs of each."""
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)", size)
    nodes, each = match.groups() if match else (None, "0")
    if not 1 <= int(each) <= 16 or nodes == "0":
        raise ConfigError(
            f"--plan {cluster.plan}: {device}:1 to {device}:16, on each machine, or {device}:2x8 "
            f"for two machines"
        )
    if nodes is not None and cluster.nodes not in (None, int(nodes)):
        raise ConfigError(
            f"--nodes is {cluster.nodes}: {cluster.plan} is {nodes} machines; leave --nodes out"
        )
    return int(nodes or cluster.nodes or 1), int(each)


def _slurm(cluster: Cluster, machines: _Machines) -> dict[str, str]:
    if machines.platform == "tpu":
        raise ConfigError(f"--plan {cluster.plan}: SLURM has no TPUs here; see tpu-vm and jobset")
    if cluster.tasks not in (1, machines.devices or cluster.tasks):
        raise ConfigError(
            f"--tasks-per-node is {cluster.tasks}: 1, or {machines.devices} for one of each GPU"
        )
    lines = [f"#SBATCH --gpus-per-node={machines.device}:{machines.devices}"] * (
        machines.devices > 0
    )
    # With several tasks, all see all GPUs, and each uses the one with its own number.
    lines += [f"#SBATCH --{flag}={value}" for flag, value in sorted(cluster.options.items())]
    folder, programs = _here()
    return {
        "nodes": str(machines.nodes),
        "tasks": str(cluster.tasks),
        "resources": "\n".join([*lines, "#SBATCH --exclusive", "#SBATCH --mem=0"]),
        "time": cluster.time,
        "folder": folder,
        "bin": programs,
        "platform": "cpu" if machines.platform == "cpu" else "cuda",
    }


def _google(cluster: Cluster, machines: _Machines) -> dict[str, str]:
    """A slice, by Google Cloud's names."""
    if machines.platform != "tpu":
        raise ConfigError(f"--plan {cluster.plan}: tpu-vm needs a TPU slice, such as v5e:4x4")
    prefix, cores, version, _ = _GCLOUD[machines.device]
    given = cluster.options
    if machines.nodes > 1 and "nfs" not in given:
        raise ConfigError(
            f"--plan {cluster.plan}: its {machines.nodes} machines need a disk that they share: "
            f"--nfs SERVER:/PATH, such as a Filestore"
        )
    mount = "mkdir -p runs"
    if "nfs" in given:
        mount = (
            f"sudo apt-get -qq install -y nfs-common && sudo mkdir -p {MOUNT} && (mountpoint -q "
            f"{MOUNT} || sudo mount -t nfs {given['nfs']} {MOUNT}) && cd {MOUNT}"
        )
    return {
        "type": f"{prefix}-{machines.devices * machines.nodes * cores}",
        "version": version,
        "zone": given["zone"],
        "mount": mount,
        "install": shlex.quote(given.get("install", _INSTALL["tpu"])),
    }


def _jobset(cluster: Cluster, machines: _Machines) -> dict[str, str]:
    given, lines = cluster.options, []
    selector = []
    if machines.platform == "tpu":
        lines = [f"google.com/tpu: {machines.devices}"]
        selector = [
            "nodeSelector:",
            f"  cloud.google.com/gke-tpu-accelerator: {_GCLOUD[machines.device][3]}",
            f"  cloud.google.com/gke-tpu-topology: {machines.topology}",
        ]
    elif machines.devices:
        lines = [f"nvidia.com/gpu: {machines.devices}"]
    limits = ["resources:", "  limits:", *(f"    {line}" for line in lines)] if lines else []
    return {
        "nodes": str(machines.nodes),
        "image": given["image"],
        "claim": given["volume-claim"],
        "selector": "\n".join(" " * 14 + line for line in selector),
        "limits": "\n".join(" " * 18 + line for line in limits),
        "grace": str(cluster.warning),
        "platform": {"gpu": "cuda"}.get(machines.platform, machines.platform),
    }


def _skypilot(cluster: Cluster, machines: _Machines) -> dict[str, str]:
    if machines.platform == "tpu":
        raise ConfigError(f"--plan {cluster.plan}: see tpu-vm and jobset for TPUs")
    lines = [f"  accelerators: {machines.device.upper()}:{machines.devices}"] * (
        machines.devices > 0
    )
    return {
        "nodes": str(machines.nodes),
        "accelerators": "\n".join(lines),
        "bucket": cluster.options["bucket"],
        "install": shlex.quote(cluster.options.get("install", _INSTALL[machines.platform])),
        "platform": "cpu" if machines.platform == "cpu" else "cuda",
    }


_INSTALL = {"tpu": "transformer_jax[tpu]", "gpu": "transformer_jax[cuda]", "cpu": "transformer_jax"}
_Fields = Callable[[Cluster, _Machines], dict[str, str]]
# Per kind of file: its own flags, with an example if required; and its fields.
KINDS: dict[str, tuple[dict[str, str], _Fields]] = {
    "slurm": ({"partition": "", "account": "", "qos": "", "constraint": ""}, _slurm),
    "jobset": (
        {"image": "registry.example/image:tag", "volume-claim": "CLAIM, which all pods mount"},
        _jobset,
    ),
    "tpu-vm": ({"zone": "us-central1-a", "nfs": "", "install": ""}, _google),
    "skypilot": (
        {"bucket": "gs://BUCKET or s3://BUCKET, for run directories", "install": ""},
        _skypilot,
    ),
}
_TEMPLATES = {
    "slurm": "slurm.sh",
    "jobset": "jobset.yaml",
    "tpu-vm": "tpu-vm.sh",
    "skypilot": "skypilot.yaml",
}
