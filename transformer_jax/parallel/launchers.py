"""Detection of the launcher that started this process as one of several, by its variables."""

from collections.abc import Mapping
from typing import NamedTuple

from transformer_jax.core.errors import ConfigError

__all__ = ["ProcessLaunch", "find_launch"]

_JAX = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_LOCAL = "JAX_LOCAL_DEVICE_IDS"
_TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")
_ALONE = "or JAX_NUM_PROCESSES=1 for a separate run"


class ProcessLaunch(NamedTuple):
    """The place of a process among all processes of its run.

    Attributes:
        launcher: Name of the launcher, for messages.
        address: Address on which process 0 listens, as host:port; None lets JAX ask the launcher.
        num_processes: Number of processes; None lets JAX ask the launcher.
        process_id: Number of this process, from 0; None lets JAX ask the launcher.
        local_devices: Indices of this process's devices; None is all that JAX chooses.
        names: Sources of the address, the number and the process number, for messages.
        one_machine: Whether, according to the launcher, all processes are on this machine.
    """

    launcher: str
    address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_devices: tuple[int, ...] | None = None
    names: tuple[str, ...] = _JAX
    one_machine: bool = False


def find_launch(environ: Mapping[str, str]) -> ProcessLaunch | None:
    """Returns the place of this process among others, or None for a single process.

    Recognizes the variables ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and
    ``JAX_PROCESS_ID``, SLURM's ``srun``, Open MPI 4, torchrun and TPU pods, and with
    ``JAX_COORDINATOR_ADDRESS`` also Open MPI 5, MPICH and Intel MPI.

    Args:
        environ: Variables of the process, such as ``os.environ``.

    Raises:
        ConfigError: Some variables of a launcher of several processes are missing or invalid, so
            each process would train its own run.

    Example:
        >>> find_launch({"PMI_SIZE": "2", "PMI_RANK": "1", "JAX_COORDINATOR_ADDRESS": "a:1"})[1:4]
        ('a:1', 2, 1)
    """
    if environ.get("JAX_NUM_PROCESSES") == "1":
        return None
    if len(found := [name for name in _JAX if name in environ]) > (found == [_JAX[0]]):
        return _jax(environ)
    # An mpirun inside a SLURM job takes precedence over the job.
    for launch in (_open_mpi, _hydra, _slurm, _pmi, _torchrun, _tpu):
        if (made := launch(environ)) is not None:
            return made
    if found:
        return _jax(environ)
    if "JOB_COMPLETION_INDEX" in environ:
        raise ConfigError(
            f"JOB_COMPLETION_INDEX is set, as in an indexed job of Kubernetes, without "
            f"{', '.join(_JAX)}: set all three, {_ALONE}"
        )
    return None


def _jax(environ: Mapping[str, str]) -> ProcessLaunch:
    values = _all(environ, _JAX, "several processes need all three, a single one none")
    local = environ.get(_LOCAL, "")
    if not all(part.isdecimal() for part in local.split(",") if local):
        raise ConfigError(f"{_LOCAL} is {local!r}: numbers of devices are needed, such as 0,1")
    devices = tuple(int(part) for part in local.split(",")) if local else None
    size, rank = _numbers(environ, _JAX[1:])
    return ProcessLaunch("JAX_COORDINATOR_ADDRESS", values[0], size, rank, devices)


def _slurm(environ: Mapping[str, str]) -> ProcessLaunch | None:
    if "SLURM_STEP_NODELIST" not in environ or _size(environ, "SLURM_NTASKS") == 1:
        return None  # an sbatch script is one process, whatever it starts
    devices = environ.get("SLURM_GPUS_ON_NODE", "")
    alone = environ.get("SLURM_STEP_TASKS_PER_NODE", "").split("(")[0] == "1"
    # JAX would give the only task on a node just one of its GPUs.
    local = tuple(range(int(devices))) if alone and devices.isdecimal() else None
    return ProcessLaunch(
        "SLURM", local_devices=local, one_machine=environ.get("SLURM_STEP_NUM_NODES") == "1"
    )


def _open_mpi(environ: Mapping[str, str]) -> ProcessLaunch | None:
    if _size(environ, "OMPI_COMM_WORLD_SIZE") == 1:
        return None
    if "OMPI_MCA_orte_hnp_uri" in environ:  # JAX finds the others by it; absent in Open MPI 5
        return ProcessLaunch("Open MPI")
    names = (_JAX[0], "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
    local = ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
    return _addressed(environ, "Open MPI", names, *local)


def _hydra(environ: Mapping[str, str]) -> ProcessLaunch | None:
    return _pmi(environ) if "MPI_LOCALRANKID" in environ else None


def _pmi(environ: Mapping[str, str]) -> ProcessLaunch | None:
    if "PMI_SIZE" not in environ and "PMI_RANK" not in environ:
        return None
    if environ.get("PMI_SIZE") == "1":
        return None
    names = (_JAX[0], "PMI_SIZE", "PMI_RANK")
    return _addressed(environ, "PMI", names, "MPI_LOCALRANKID", "MPI_LOCALNRANKS")


def _addressed(
    environ: Mapping[str, str], launcher: str, names: tuple[str, ...], local: str, of: str
) -> ProcessLaunch:
    """From a launcher's size and rank, and an address given by the user."""
    address, *_ = _all(environ, names, f"set {_JAX[0]}=host:port, {_ALONE}")
    size, rank = _numbers(environ, names[1:])
    device, shared = _own_device(environ, local, of), environ.get(of) == str(size)
    return ProcessLaunch(launcher, address, size, rank, device, names, shared)


def _torchrun(environ: Mapping[str, str]) -> ProcessLaunch | None:
    if "WORLD_SIZE" not in environ and not {"RANK", "MASTER_ADDR"} <= set(environ):
        return None
    if environ.get("WORLD_SIZE") == "1":
        return None
    host, *_ = _all(environ, _TORCHRUN, f"torchrun sets all of them; set them, {_ALONE}")
    port, size, rank = _numbers(environ, _TORCHRUN[1:])
    # torchrun itself listens on its own port.
    address, devices = f"{host}:{port + 1}", _own_device(environ, "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    shared = environ.get("LOCAL_WORLD_SIZE") == str(size)
    return ProcessLaunch(
        "torchrun", address, size, rank, devices, ("MASTER_ADDR", *_TORCHRUN[2:]), shared
    )


def _own_device(environ: Mapping[str, str], rank: str, size: str) -> tuple[int, ...] | None:
    """Returns the device of one of several processes on a machine."""
    if environ.get(rank) is None or _size(environ, size) == 1:
        return None
    return (_number(environ, rank),)


def _tpu(environ: Mapping[str, str]) -> ProcessLaunch | None:
    hosts = environ.get("TPU_PROCESS_ADDRESSES", environ.get("TPU_WORKER_HOSTNAMES", ""))
    several = "," in hosts or "MEGASCALE_COORDINATOR_ADDRESS" in environ
    return ProcessLaunch("TPU") if several else None


def _all(environ: Mapping[str, str], names: tuple[str, ...], advice: str) -> list[str]:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        there = [name for name in names if environ.get(name)]
        raise ConfigError(f"{', '.join(there)} set without {', '.join(missing)}: {advice}")
    return [environ[name] for name in names]


def _numbers(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(_number(environ, name) for name in names)


def _size(environ: Mapping[str, str], name: str) -> int:
    return _number(environ, name) if environ.get(name) else 1


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ConfigError(f"{name} is {environ[name]!r}: a whole number is needed") from None
