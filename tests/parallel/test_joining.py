"""Processes that cannot work as one are told why, in one line and in bounded time."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel.coordinator import wait_for_coordinator
from transformer_jax.parallel.process_consistency import check_same, first_difference, gather_json

ROOT = Path(__file__).parents[2]


@pytest.fixture
def port():
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_coordinator_that_does_not_answer_is_named_in_time(port):
    began = time.monotonic()
    with pytest.raises(ConfigError) as error:
        wait_for_coordinator(f"127.0.0.1:{port}", "JAX_COORDINATOR_ADDRESS", 0.5)
    assert 0.4 < time.monotonic() - began < 5
    assert f"127.0.0.1:{port} within 0.5 s (connection refused)" in str(error.value)
    assert "JAX_COORDINATOR_ADDRESS" in str(error.value)


def test_a_coordinator_may_come_later(port):
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        later = threading.Timer(0.5, listening.listen)
        later.start()
        wait_for_coordinator(f"127.0.0.1:{port}", "flag", 20)
        later.join()
        listening.close()


@pytest.mark.parametrize("address", ["node1", "node1:", ":80", "a:port", "a:0", "a:99999"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(ConfigError, match=r"flag is .*: it must be host:port"):
        wait_for_coordinator(address, "flag", 1)


JOIN = (
    "import jax; jax.config.update('jax_platforms', 'cpu')\n"
    "from transformer_jax.cli.process import guarded, leave\n"
    "from transformer_jax.parallel.coordinator import initialize\n"
    "from transformer_jax.parallel.settings import DistributedConfig\n"
    "import sys; address, rank = sys.argv[1:]\n"
    "config = DistributedConfig(address, 2, int(rank), initialization_timeout_seconds=2)\n"
    "leave(guarded(lambda: initialize(config)))"
)


@pytest.mark.parametrize(
    ("rank", "said"),
    [("0", "not all of the 2 processes joined process 0 by"), ("1", "does not answer")],
)
def test_a_missing_process_ends_the_other_with_one_line(port, rank, said):
    environ = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", JOIN, f"127.0.0.1:{port}", rank],
        env=environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert time.monotonic() - began < 30
    assert done.returncode == 2, done.stderr
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert len(errors) == 1
    assert said in errors[0]
    assert f"127.0.0.1:{port}" in errors[0]
    assert "distributed.coordinator_address" in errors[0]
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_one_line(port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        environ = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        done = subprocess.run(
            [sys.executable, "-c", JOIN, f"127.0.0.1:{port}", "0"],
            env=environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2, done.stderr
    said = f"error: process 0 cannot listen at 127.0.0.1:{port}: address already in use: choose"
    assert said in done.stderr


def test_processes_that_differ_are_told_in_what(monkeypatch):
    from transformer_jax.parallel import process_consistency

    assert gather_json({"a": 1}) == [{"a": 1}]
    check_same({"a": 1}, "advice")  # alone
    other = {"steps": 10}
    monkeypatch.setattr(
        process_consistency, "gather_json", lambda own: [own, ["node2", dict(other)]]
    )
    check_same({"steps": 10}, "advice")
    other["steps"] = 20
    with pytest.raises(ConfigError, match=r"steps is 20 in process 1 on node2, but 10 in .*: adv"):
        check_same({"steps": 10}, "advice")
    other = {}
    with pytest.raises(ConfigError, match='steps is "absent" in process 1'):
        check_same({"steps": 10}, "advice")
    with pytest.raises(ConfigError, match=r"x\.\.\."):
        check_same({"steps": "x" * 999}, "advice")
    assert first_difference([{"a": 1}] * 3) is None
