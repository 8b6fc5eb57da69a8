"""Joining the processes of a run, found by the variables of their launcher, in bounded time.

JAX alone would wait for minutes and then abort.
"""

import contextlib
import ipaddress
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

from transformer_jax.core.errors import ConfigError, UserError
from transformer_jax.parallel.settings import DistributedConfig

__all__ = [
    "ProcessLaunch",
    "bind_address",
    "check_port",
    "find_launch",
    "initialize",
    "is_loopback",
    "joining",
    "keep_collectives_local",
    "launcher_bind_address",
    "on_loopback",
    "wait_for_coordinator",
]

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


log = logging.getLogger(__name__)

_EVERY = 0.2  # seconds between attempts
_LOOPBACK = ("localhost", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback")


def _parts(address: str, name: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{name} is {address!r}: it must be host:port, such as node1:8476")
    host = host.strip("[]")
    with contextlib.suppress(OSError):  # short forms, such as 127.1
        host = socket.inet_ntoa(socket.inet_aton(host))
    return host, int(port)


def is_loopback(address: str, name: str) -> bool:
    """Returns whether an address is only of this machine, such as ``localhost:8476``.

    A name of the machine that ``/etc/hosts`` maps to 127.0.1.1 is not: other machines resolve it to
    another address.

    Raises:
        ConfigError: The address is not host:port.

    Example:
        >>> [is_loopback(a, "flag") for a in ("localhost:1", "127.0.1.1:1", "[::1]:1", "node1:1")]
        [True, True, True, False]
    """
    host, _ = _parts(address, name)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        host = re.sub(r"\.localdomain[46]?$", "", host.lower().rstrip("."))
        return host in _LOOPBACK or host.endswith(".localhost")


def on_loopback(address: str, name: str) -> str:
    """Returns a loopback address with the port of another address.

    Raises:
        ConfigError: The address is not host:port.

    Example:
        >>> on_loopback("node1:8476", "flag"), on_loopback("[::1]:8476", "flag")
        ('127.0.0.1:8476', '[::1]:8476')
    """
    return address if is_loopback(address, name) else f"127.0.0.1:{_parts(address, name)[1]}"


def bind_address(address: str, name: str, *, one_machine: bool = False) -> str:
    """Returns the address on which process 0 listens, so that others can connect to ``address``.

    It is loopback for a loopback address, and otherwise the interface that the address names. JAX's
    coordinator has no authentication, so it should not listen elsewhere. If the address is not one
    of this machine, such as that of a Kubernetes service, it listens on all interfaces, with a
    warning.

    Args:
        address: The address for the other processes, as host:port.
        name: The flag or variable that gave the address, for messages.
        one_machine: Whether the others are on this machine, so that a name that ``/etc/hosts`` maps
            to loopback reaches process 0.

    Raises:
        ConfigError: The address is not host:port.

    Example:
        >>> bind_address("localhost:8476", "flag"), bind_address("[::1]:8476", "flag")
        ('127.0.0.1:8476', '[::1]:8476')
    """
    host, port = _parts(address, name)
    if is_loopback(address, name):
        if ":" in host:
            return f"[{host}]:{port}"
        return f"{host if host[0].isdecimal() else '127.0.0.1'}:{port}"
    found = _resolved(host)
    if found and all(_is_interface(one, loopback=one_machine) for one in found):
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    log.warning(
        "process 0 listens on port %d of all interfaces, as %s names no interface of this machine: "
        "set JAX_COORDINATOR_BIND_ADDRESS to the interface of a trusted network",
        *(port, host),
    )
    return f"[::]:{port}"


def launcher_bind_address(seconds: int, *, one_machine: bool = False) -> str | None:
    """Returns the address on which process 0 listens if JAX gets its address from the launcher.

    None leaves it to JAX, if the launcher is unknown or does not give enough information.

    Args:
        seconds: The longest wait for the launcher.
        one_machine: Whether, according to the launcher, all processes are on this machine.
    """
    from jax._src.clusters import ClusterEnv

    for kind in ClusterEnv._cluster_types:
        try:
            if not kind.opt_in_only_method and kind.is_env_present():
                if kind.get_process_id() != 0:
                    return None
                address = kind.get_coordinator_address(seconds, None)
                return bind_address(address, kind.name, one_machine=one_machine)
        except Exception:  # JAX itself asks again, and reports what is missing
            return None
    return None


def keep_collectives_local() -> None:
    """Makes collectives between processes on the CPU listen on loopback.

    Otherwise Gloo listens on the interface that the machine's name resolves to.
    """
    import jax
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax

    if jax.config.jax_cpu_collectives_implementation != "gloo":  # type: ignore[attr-defined]
        return

    def client() -> object:
        collectives = _jax.make_gloo_tcp_collectives(
            distributed_client=distributed.global_state.client, hostname="127.0.0.1"
        )
        return xla_bridge.make_cpu_client(collectives)

    xla_bridge.register_backend_factory("cpu", client, priority=0, fail_quietly=False)


def _resolved(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(one[4][0]).partition("%")[0] for one in found}


def _is_interface(host: str, *, loopback: bool) -> bool:
    """Returns whether an IP address belongs to an interface of this machine, or to loopback."""
    address = ipaddress.ip_address(host)
    allowed = loopback or not address.is_loopback
    return allowed and not address.is_unspecified and _is_own(host)


def _is_own(host: str) -> bool:
    """Returns whether an IP address belongs to this machine."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.bind((host, 0))
    except OSError:
        return False
    return True


def check_port(address: str, bind: str, name: str) -> None:
    """Refuses an address whose port another program uses; called by process 0.

    Args:
        address: The address for the other processes, as host:port.
        bind: The address on which process 0 will listen, see :func:`bind_address`.
        name: The flag or variable that gave the address, for the message.

    Raises:
        ConfigError: The port is not free.
    """
    host, port = _parts(bind, name)
    everywhere = host == "::"
    family = socket.AF_INET6 if ":" in host and not everywhere else socket.AF_INET
    try:
        with socket.socket(family) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("" if everywhere else host, port))
    except OSError as error:
        raise ConfigError(
            f"process 0 cannot listen at {address}: {(error.strerror or 'no').lower()}: choose "
            f"another port in {name}"
        ) from None


def wait_for_coordinator(address: str, name: str, seconds: float | int) -> None:
    """Waits until process 0 listens.

    Args:
        address: Its address, as host:port.
        name: The flag or variable that gave the address, for the message.
        seconds: The longest wait.

    Raises:
        ConfigError: The address is invalid, or nobody listens in time.
    """
    host, port = _parts(address, name)
    deadline, problem = time.monotonic() + seconds, "no answer"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), timeout=left):
                return
        except OSError as error:
            # A name may not resolve yet, if names are created with the machines.
            problem = (error.strerror or str(error) or "no answer").lower()
        time.sleep(min(_EVERY, max(0.0, left)))
    raise ConfigError(
        f"process 0 does not answer at {address} within {seconds:g} s ({problem}): start it, or "
        f"correct {name}"
    )


@contextlib.contextmanager
def joining(said: str, seconds: float | int) -> Iterator[None]:
    """Context manager: ends this process with exit code 2 if it takes too long.

    JAX joins processes in one call that cannot be interrupted and that aborts with a core dump on a
    timeout. So after ``seconds``, a thread prints the error and ends the process.

    Args:
        said: The error, as one line.
        seconds: The time limit.
    """

    def end() -> None:
        print(f"error: {said}", file=sys.stderr, flush=True)
        os._exit(UserError.exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def initialize(config: DistributedConfig = DistributedConfig()) -> bool:
    """Joins this process to the others of its run, before any device is used; False if alone.

    Settings come from flags, or else from the launcher (:func:`find_launch`). A single
    process does nothing.

    Raises:
        ConfigError: Some of the flags (or launcher variables) without the others, or out of range;
            or process 0 does not answer in time. If other processes do not join in time, the
            process ends with one line and exit code 2.
    """
    flags = {
        "distributed.coordinator_address": config.coordinator_address,
        "distributed.num_processes": config.num_processes,
        "distributed.process_id": config.process_id,
    }
    launch: ProcessLaunch | None
    if all(value is None for value in flags.values()):
        launch = find_launch(os.environ)
        if launch is None:
            return False
        if launch.address is not None:
            _check_processes(dict(zip(launch.names, launch[1:4], strict=True)))
    else:
        _check_processes(flags)
        address, number, process = flags.values()
        launch = ProcessLaunch(
            "flags", cast(str, address), cast(int, number), cast(int, process), names=tuple(flags)
        )
    if launch.num_processes == 1:
        return False
    number, local = config.num_local_devices, launch.local_devices
    if number is not None:
        if local is not None and len(local) == 1:
            raise ConfigError(
                f"distributed.num_local_devices is {number}: {launch.launcher} gives each process "
                f"of a machine one device: leave it out"
            )
        local = tuple(range(number))
    _join(launch, local, config)
    return True


def _join(launch: ProcessLaunch, local: tuple[int, ...] | None, config: DistributedConfig) -> None:
    """Joins the other processes, or reports which of them is missing."""
    import jax

    seconds, address, name = config.initialization_timeout_seconds, launch.address, launch.names[0]
    began = time.monotonic()
    bind = None  # leaves it to JAX
    if address is not None and launch.one_machine:
        address = on_loopback(address, name)
    if launch.one_machine or (address is not None and is_loopback(address, name)):
        keep_collectives_local()
    if "JAX_COORDINATOR_BIND_ADDRESS" not in os.environ:
        if address is None:
            bind = launcher_bind_address(seconds, one_machine=launch.one_machine)
        elif launch.process_id == 0:
            bind = bind_address(address, name)
    if address is not None and launch.process_id == 0:
        check_port(address, bind or os.environ["JAX_COORDINATOR_BIND_ADDRESS"], name)
    elif address is not None:
        wait_for_coordinator(address, name, seconds)
    many = "the processes" if address is None else f"the {launch.num_processes} processes"
    where = launch.launcher if address is None else f"{address} ({name})"
    said = (
        f"not all of {many} joined process 0 by {where} within {seconds} s: start them all, with "
        f"the same address, or wait longer with --distributed.initialization-timeout-seconds"
    )
    with joining(said, max(1.0, seconds - (time.monotonic() - began))):
        jax.distributed.initialize(
            address,
            launch.num_processes,
            launch.process_id,
            local_device_ids=None if local is None else list(local),
            heartbeat_timeout_seconds=config.heartbeat_timeout_seconds,
            initialization_timeout=seconds + 60,  # later than our own timeout
            # None detects the launcher.
            cluster_detection_method=None if address is None else "deactivate",
            coordinator_bind_address=bind,
        )


def _check_processes(values: Mapping[str, Any]) -> None:
    missing = [name for name, value in values.items() if value is None]
    if missing:
        present = [name for name, value in values.items() if value is not None]
        raise ConfigError(
            f"{', '.join(present)} given without {', '.join(missing)}: several processes need all "
            f"three, a single one none"
        )
    (_, address), (many, processes), (which, process) = values.items()
    if ":" not in address:
        raise ConfigError(f"the coordinator is {address!r}: it must be host:port")
    if processes < 1 or not 0 <= process < processes:
        raise ConfigError(
            f"{which} is {process} of {many} {processes}: allowed are 0 to {max(processes - 1, 0)}"
        )
