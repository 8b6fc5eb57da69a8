"""Several processes of one command on this machine: starting, watching, stopping, restarting."""

import contextlib
import dataclasses
import datetime
import os
import queue
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

from transformer_jax.core.errors import RESTART, ConfigError, plural

__all__ = ["Processes", "child_environment", "supervise"]

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# User errors, which a restart does not fix; see transformer_jax.core.errors.
_FINAL = (2, 3, 4, 5)
_LAST_LINES = 10  # of a failed process whose output is not shown
_LONGEST_PAUSE = 30.0  # seconds before a restart
_DEVICE_FLAG = "--xla_force_host_platform_device_count="


@dataclasses.dataclass(frozen=True)
class Processes:
    """The number of processes, and how they are watched.

    Attributes:
        number: Number of processes.
        devices: Devices per process; on a CPU, this many are emulated.
        cpu: Whether they run on the CPU, even if the machine has accelerators.
        restarts: Number of restarts of all processes after one has failed.
        grace: Seconds between the end of one process and SIGKILL for the others.
        all_output: Whether to show the output of all processes, instead of only process 0.
        logs: Folder for one file per process: ``rank0.log`` and so on.
    """

    number: int = 1
    devices: int = 1
    cpu: bool = False
    restarts: int = 0
    grace: float | int = 30.0
    all_output: bool = False
    logs: Path = Path("launch-logs")


def child_environment(
    environ: Mapping[str, str], processes: Processes, rank: int, port: int
) -> dict[str, str]:
    """Returns a process's variables, with which :func:`.find_launch` joins it to others.

    Args:
        environ: Variables of the launcher.
        processes: The processes.
        rank: Number of this process, from 0.
        port: Port on which process 0 listens.

    Example:
        >>> made = child_environment({"HOME": "/root"}, Processes(2), 1, 7777)
        >>> made["JAX_COORDINATOR_ADDRESS"], made["JAX_PROCESS_ID"], made["JAX_LOCAL_DEVICE_IDS"]
        ('127.0.0.1:7777', '1', '1')
    """
    made = {name: value for name, value in environ.items() if name != "JAX_LOCAL_DEVICE_IDS"}
    flags = [
        flag for flag in made.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICE_FLAG)
    ]
    first, count = rank * processes.devices, processes.devices
    made |= {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "JAX_NUM_PROCESSES": str(processes.number),
        "JAX_PROCESS_ID": str(rank),
        "PYTHONUNBUFFERED": "1",
        # The processes are on one machine, so NCCL needs no other interface.
        "NCCL_SOCKET_IFNAME": environ.get("NCCL_SOCKET_IFNAME", "lo"),
        # Read only by the CPU platform.
        "XLA_FLAGS": " ".join([*flags, f"{_DEVICE_FLAG}{count}"]),
    }
    if processes.cpu:
        made["JAX_PLATFORMS"] = "cpu"
    elif processes.number > 1:
        made["JAX_LOCAL_DEVICE_IDS"] = ",".join(str(first + i) for i in range(count))
    return made


def supervise(
    command: Sequence[str],
    processes: Processes,
    *,
    again: Sequence[str] | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    pause: float | int = 1.0,
) -> int:
    """Runs a command as several processes to its end; returns its exit code.

    The code is 0 if all processes end with 0, otherwise that of the first that failed, or 128 +
    signal if a signal ended it. All restart after exit code 75 (:data:`.errors.RESTART`), and after
    a crash up to ``processes.restarts`` times; codes 2 to 5, which are user errors, are final.
    SIGINT, SIGTERM and SIGUSR1 are passed on to all processes, and nothing restarts after them.

    Args:
        command: The program and its arguments.
        processes: Their number, and how they are watched.
        again: The command of restarts; None is ``command``.
        say: Function called with lines about the processes.
        pause: Seconds before the first restart; doubled for each further one.

    Raises:
        ConfigError: The program or the log folder cannot be used.
    """
    try:
        processes.logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"--log-dir {processes.logs}: cannot be written: {error.strerror}"
        ) from None
    left, restarted = processes.restarts, 0
    with _Forwarding(say) as forwarding:
        while True:
            code = _Attempt(again if restarted and again else command, processes, say).run(
                forwarding
            )
            if code == 0 or forwarding.received or code in _FINAL:
                return code
            if code != RESTART:
                if not left:
                    return code
                left -= 1
            restarted += 1
            wait = min(_LONGEST_PAUSE, pause * 2 ** min(restarted - 1, 10))
            said = "asked to be restarted" if code == RESTART else f"failed with exit code {code}"
            say(f"launch: {said}; start {restarted + 1} in {wait:.0f} s")
            if forwarding.stop.wait(wait):
                return code


class _Forwarding:
    """Passes signals of the launcher on to the processes of the current attempt."""

    def __init__(self, say: Callable[[str], None]):
        self.received: list[int] = []
        self.stop = threading.Event()
        self.to: list[subprocess.Popen[bytes]] = []
        self._say = say

    def __enter__(self) -> "_Forwarding":
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in _FORWARDED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.received.append(number)
        self.stop.set()
        for child in self.to:
            # Without poll(): a thread may hold its lock while it waits for the child.
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, number)


class _Attempt:
    """One start of all processes."""

    def __init__(self, command: Sequence[str], processes: Processes, say: Callable[[str], None]):
        self.command, self.processes, self.say = list(command), processes, say
        self.children: list[subprocess.Popen[bytes]] = []
        self.readers: list[threading.Thread] = []
        self.last: list[deque[str]] = []  # last lines of each process
        self.ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    def run(self, forwarding: _Forwarding) -> int:
        """Starts the processes and waits until all have ended; returns the exit code."""
        try:
            port = _free_port()
            for rank in range(self.processes.number):
                self._start(rank, port)
                forwarding.to = list(self.children)
            # Processes started after a signal have not received it.
            for number in forwarding.received:
                self._signal(number)
            return self._wait(forwarding)
        finally:
            forwarding.to = []
            self._kill()
            for reader in self.readers:
                reader.join(5)

    def _start(self, rank: int, port: int) -> None:
        environ = child_environment(os.environ, self.processes, rank, port)
        try:
            child = subprocess.Popen(
                self.command,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C reaches it once, through the launcher
            )
        except OSError as error:
            raise ConfigError(
                f"{self.command[0]}: cannot be started: {error.strerror}: after -- comes a program "
                f"or a command of transformer-jax, such as train"
            ) from None
        self.children.append(child)
        self.last.append(deque(maxlen=_LAST_LINES))
        reader = threading.Thread(target=self._read, args=(rank, child), daemon=True)
        reader.start()
        self.readers.append(reader)
        waiter = lambda: self.ended.put((rank, child.wait()))
        threading.Thread(target=waiter, daemon=True).start()

    def _read(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        """Copies the output of a process to its file, and shows it."""
        shown, shown_command = self._shown(rank), shlex.join(self.command)
        assert child.stdout is not None
        with child.stdout, self.log_of(rank).open("ab") as log:
            log.write(f"--- {datetime.datetime.now():%Y-%m-%d %H:%M:%S} {shown_command}\n".encode())
            for line in child.stdout:
                log.write(line)
                log.flush()
                text = line.decode("utf-8", "replace").rstrip("\r\n")
                self.last[rank].append(text)
                if shown:
                    print(f"[{rank}] {text}", flush=True)

    def log_of(self, rank: int) -> Path:
        """Returns the file with the output of a process."""
        return self.processes.logs / f"rank{rank}.log"

    def _shown(self, rank: int) -> bool:
        return rank == 0 or self.processes.all_output

    def _wait(self, forwarding: _Forwarding) -> int:
        first, deadline, running = None, None, len(self.children)
        while running:
            # After a third signal, waiting is limited as after a failure.
            if deadline is None and len(forwarding.received) > 2:
                deadline = time.monotonic() + self.processes.grace
            try:
                rank, code = self.ended.get(timeout=_seconds_to(deadline))
            except queue.Empty:
                if deadline is not None and time.monotonic() >= deadline:
                    self.say(
                        f"launch: {plural(running, 'process', 'processes')} did not end: SIGKILL"
                    )
                    self._kill()
                    deadline = None
                continue
            running -= 1
            if code and first is None:
                first = code
                deadline = time.monotonic() + self.processes.grace
                self._tell(rank, code)
                # Processes that stop by a signal, or to be restarted, do so at a common step.
                if code != RESTART and not forwarding.received:
                    self._signal(signal.SIGTERM)
        return 0 if first is None else first if first > 0 else 128 - first

    def _tell(self, rank: int, code: int) -> None:
        """Reports that a process failed, with its last lines if they were not shown."""
        self.readers[rank].join(2)
        said = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        self.say(f"launch: process {rank} ended with {said}; its output is in {self.log_of(rank)}")
        if not self._shown(rank):
            for line in list(self.last[rank]):
                self.say(f"[{rank}] {line}")

    def _signal(self, number: int) -> None:
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                if child.returncode is None:
                    os.kill(child.pid, number)

    def _kill(self) -> None:
        """Kills the remaining processes, and those that they started."""
        for child in self.children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def _seconds_to(deadline: float | None) -> float:
    # Signals are handled between two waits at the latest.
    return 1.0 if deadline is None else min(1.0, max(0.0, deadline - time.monotonic()))


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
