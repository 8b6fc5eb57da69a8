"""Processes on one machine listen on loopback alone; others on the interface that is named."""

import ipaddress
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel import coordinator
from transformer_jax.parallel.coordinator import (
    bind_address,
    check_port,
    find_launch,
    launcher_bind_address,
    on_loopback,
)
from transformer_jax.parallel.launch.supervisor import Processes, child_environment

ROOT = Path(__file__).parents[3]
# Every socket of the process that listens, by the tables of the kernel.
PROGRAM = """
import json, os, re
from transformer_jax.parallel.coordinator import initialize
from transformer_jax.parallel.mesh import sync_global_devices
assert initialize()
import jax
assert jax.device_count() == 2
sync_global_devices("all listen")
own = set()
for name in os.listdir("/proc/self/fd"):
    try:
        own.add(os.readlink(f"/proc/self/fd/{name}"))
    except OSError:
        pass
found = []
for table in ("tcp", "tcp6", "udp", "udp6"):
    for line in open(f"/proc/net/{table}").read().splitlines()[1:]:
        fields = line.split()
        waits = fields[3] == ("0A" if table.startswith("tcp") else "07")
        if waits and f"socket:[{fields[9]}]" in own:
            found.append(fields[1].rpartition(":")[0])
print("LISTENS", json.dumps(found), flush=True)
sync_global_devices("all have looked")
"""


def address_of(shown):
    """An IP address of the kernel's tables: words of four bytes, each in the machine's order."""
    words = [bytes.fromhex(shown[i : i + 8])[::-1] for i in range(0, len(shown), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs the tables of Linux")
def test_a_rehearsal_listens_on_loopback_alone(tmp_path):
    command = [sys.executable, "-m", "transformer_jax.cli.main", "launch", "--rehearse", "2"]
    command += ["--all-output", "--log-dir", str(tmp_path), "--", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split("LISTENS ")[1] for line in done.stdout.splitlines() if "LISTENS" in line]
    found = [json.loads(line) for line in lines]
    assert sorted(map(len, found)) == [1, 2]  # sums in each process, and the coordinator
    assert all(address_of(one).is_loopback for both in found for one in both)


@pytest.fixture
def names(monkeypatch):
    """Names with their addresses; this machine has 192.0.2.7, 2001:db8::7 and loopback."""
    known = {"node1": ["192.0.2.7"], "both": ["192.0.2.7", "2001:db8::7"],
             "debian": ["127.0.1.1"], "service": ["198.51.100.1"]}  # fmt: skip

    def resolve(host, *_, **__):
        if host not in known and not host[0].isdecimal():
            raise socket.gaierror(-2, "Name or service not known")
        return [(0, 0, 0, "", (one, 0)) for one in known.get(host, [host])]

    own = {"192.0.2.7", "2001:db8::7", "127.0.1.1", "0.0.0.0", "::"}
    monkeypatch.setattr(coordinator.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(coordinator, "_is_own", own.__contains__)


@pytest.mark.parametrize(
    ("address", "bind"),
    [
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("127.0.0.2:7", "127.0.0.2:7"),
        ("localhost:7", "127.0.0.1:7"),
        ("LOCALHOST.:7", "127.0.0.1:7"),
        ("127.1:7", "127.0.0.1:7"),
        ("localhost.localdomain:7", "127.0.0.1:7"),
        ("node.localhost:7", "127.0.0.1:7"),
        ("[::1]:7", "[::1]:7"),
        ("node1:7", "node1:7"),
        ("192.0.2.7:7", "192.0.2.7:7"),
        ("both:7", "both:7"),
    ],
)
def test_the_coordinator_listens_where_its_address_says(names, caplog, address, bind):
    assert bind_address(address, "flag") == bind
    assert not caplog.records


@pytest.mark.parametrize("address", ["debian:7", "service:7", "unknown:7", "0.0.0.0:7", "[::]:7"])
def test_it_listens_everywhere_only_where_nothing_else_reaches_it(names, caplog, address):
    assert bind_address(address, "flag") == "[::]:7"
    assert "port 7 of all interfaces" in caplog.text
    assert "JAX_COORDINATOR_BIND_ADDRESS" in caplog.text


def test_a_name_that_hosts_maps_to_loopback_reaches_processes_of_one_machine(names, caplog):
    assert bind_address("debian:7", "flag", one_machine=True) == "debian:7"
    assert bind_address("node1:7", "flag", one_machine=True) == "node1:7"
    assert on_loopback("debian:7", "flag") == "127.0.0.1:7"
    assert not caplog.records
    assert bind_address("service:7", "flag", one_machine=True) == "[::]:7"


@pytest.mark.parametrize(
    ("variables", "local", "processes"),
    [
        ({"MASTER_ADDR": "debian", "MASTER_PORT": "7", "RANK": "0"},
         "LOCAL_WORLD_SIZE", "WORLD_SIZE"),
        ({"JAX_COORDINATOR_ADDRESS": "debian:7", "OMPI_COMM_WORLD_RANK": "0"},
         "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
        ({"JAX_COORDINATOR_ADDRESS": "debian:7", "PMI_RANK": "0"}, "MPI_LOCALNRANKS", "PMI_SIZE"),
    ],
)  # fmt: skip
def test_launchers_say_whether_all_processes_are_on_this_machine(variables, local, processes):
    for count, shared in (("4", True), ("2", False)):
        launch = find_launch({**variables, processes: "4", local: count})
        assert launch.one_machine == shared
    assert not find_launch({**variables, processes: "4"}).one_machine


def test_a_port_is_free_or_not_on_its_own_interface():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check_port(f"127.0.0.2:{port}", f"127.0.0.2:{port}", "flag")
        for bind in (f"127.0.0.1:{port}", f"[::]:{port}"):
            with pytest.raises(ConfigError, match=r"cannot listen at 127\.0\.0\.1"):
                check_port(f"127.0.0.1:{port}", bind, "flag")


def test_slurm_s_address_is_bound_too(monkeypatch, names):
    job = {"SLURM_JOB_ID": "5", "SLURM_STEP_NODELIST": "node1", "SLURM_NTASKS": "2",
           "SLURM_LOCALID": "0", "SLURM_PROCID": "0"}  # fmt: skip
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert launcher_bind_address(1) == "node1:61445"
    monkeypatch.setenv("SLURM_STEP_NODELIST", "debian")
    assert launcher_bind_address(1) == "[::]:61445"
    assert launcher_bind_address(1, one_machine=True) == "debian:61445"
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert launcher_bind_address(1) is None
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("SLURM_PROCID", "0")
    assert launcher_bind_address(1) is None  # JAX says what is missing


def test_gpus_of_one_machine_talk_over_loopback_unless_told_otherwise():
    assert child_environment({}, Processes(2), 0, 7)["NCCL_SOCKET_IFNAME"] == "lo"
    given = {"NCCL_SOCKET_IFNAME": "eth1"}
    assert child_environment(given, Processes(2), 0, 7)["NCCL_SOCKET_IFNAME"] == "eth1"
