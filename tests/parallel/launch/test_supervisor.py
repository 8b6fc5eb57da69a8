"""Processes of one command end together, start again when asked, and pass signals on."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.parallel.coordinator import find_launch
from transformer_jax.parallel.launch.supervisor import Processes, child_environment, supervise

ROOT = Path(__file__).parents[3]


@pytest.fixture
def launched(tmp_path, capfd):
    """Runs a shell command as processes; the exit code, the lines about them, and the output."""

    def run(script, number=2, **how):
        again = how.pop("again", None)
        said = []
        processes = Processes(number, logs=tmp_path / "logs", **{"grace": 20.0} | how)
        shell = lambda text: ["bash", "-c", text]
        code = supervise(
            shell(script), processes, again=again and shell(again), say=said.append, pause=0.01
        )
        return code, said, capfd.readouterr().out

    return run


def test_every_process_finds_the_others_by_its_variables():
    environ = {
        "JAX_LOCAL_DEVICE_IDS": "9",
        "XLA_FLAGS": "--a --xla_force_host_platform_device_count=8",
    }
    for rank in range(3):
        made = child_environment(environ, Processes(3, devices=2), rank, 4321)
        launch = find_launch(made)
        assert launch[1:4] == ("127.0.0.1:4321", 3, rank)
        assert launch.local_devices == (2 * rank, 2 * rank + 1)
        assert made["XLA_FLAGS"].split() == ["--a", "--xla_force_host_platform_device_count=2"]
        assert "JAX_PLATFORMS" not in made
    assert find_launch(child_environment(environ, Processes(1), 0, 1)) is None
    rehearsed = child_environment({"JAX_PLATFORMS": "cuda"}, Processes(2, cpu=True), 1, 1)
    assert rehearsed["JAX_PLATFORMS"] == "cpu"
    assert find_launch(rehearsed).local_devices is None


def test_all_succeed_and_output_is_that_of_process_0(launched, tmp_path):
    code, said, out = launched("echo line $JAX_PROCESS_ID of $JAX_NUM_PROCESSES", 3)
    assert (code, said, out) == (0, [], "[0] line 0 of 3\n")
    for rank in range(3):
        assert f"line {rank} of 3" in (tmp_path / "logs" / f"rank{rank}.log").read_text()
    _, _, out = launched("echo line $JAX_PROCESS_ID", 2, all_output=True)
    assert sorted(out.splitlines()) == ["[0] line 0", "[1] line 1"]


def test_one_that_fails_ends_the_others_and_gives_the_code(launched):
    began = time.monotonic()
    code, said, _ = launched(
        "[ $JAX_PROCESS_ID = 1 ] && echo broken && exit 7; trap 'exit 9' TERM; sleep 60 & wait"
    )
    assert code == 7
    assert time.monotonic() - began < 15
    assert said[0].startswith("launch: process 1 ended with exit code 7; its output is in")
    assert "[1] broken" in said


def test_one_that_ignores_sigterm_is_killed_after_the_grace(launched, tmp_path):
    # So are processes that it started.
    began = time.monotonic()
    code, said, _ = launched(
        f"[ $JAX_PROCESS_ID = 1 ] && sleep 0.3 && kill -9 $$; trap '' TERM; "
        f"sleep 60 & echo $! > {tmp_path}/started; wait; sleep 60",
        grace=1.0,
    )
    assert code == 128 + signal.SIGKILL
    assert 1.0 <= time.monotonic() - began < 15
    assert "signal SIGKILL" in said[0]
    assert said[-1] == "launch: 1 process did not end: SIGKILL"
    started = int((tmp_path / "started").read_text())
    for _ in range(100):
        if (
            not Path(f"/proc/{started}").exists()
            or " Z " in Path(f"/proc/{started}/stat").read_text()
        ):
            break
        time.sleep(0.05)
    else:
        pytest.fail("a process of a process is left")


def test_a_crash_starts_again_as_often_as_allowed(launched, tmp_path):
    counted = f"[ $JAX_PROCESS_ID = 0 ] || exit 0; echo x >> {tmp_path}/starts; exit 1"
    assert launched(counted, restarts=2)[0] == 1
    assert (tmp_path / "starts").read_text().count("x") == 3


def test_a_restart_runs_the_command_that_continues(launched):
    code, said, out = launched("echo first; exit 1", 1, restarts=1, again="echo then")
    assert code == 0
    assert out == "[0] first\n[0] then\n"
    assert "start 2" in said[-1]


@pytest.mark.parametrize("final", [2, 3, 4, 5])
def test_a_mistake_of_the_user_is_not_repeated(launched, final):
    code, said, _ = launched(f"exit {final}", 1, restarts=3)
    assert code == final
    assert len(said) == 1


def test_exit_75_starts_again_without_counting(launched, tmp_path):
    file = tmp_path / "n"
    script = f"echo x >> {file}; [ $(wc -l < {file}) -lt 4 ] && exit 75; exit 0"
    assert launched(script, 1)[0] == 0
    assert file.read_text().count("x") == 4


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGUSR1, 75), (signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_a_signal_reaches_all_and_nothing_starts_again(tmp_path, number, code):
    """In a process of its own: handlers belong to the main thread."""
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from transformer_jax.parallel.launch.supervisor import Processes, supervise
        sys.exit(supervise(sys.argv[2:], Processes(2, restarts=5, logs=Path(sys.argv[1]))))
        """
    )
    script = (
        f"trap 'echo told > {tmp_path}/$JAX_PROCESS_ID; exit {code}' {number.name[3:]}; "
        f"echo > {tmp_path}/ready$JAX_PROCESS_ID; while :; do sleep 0.05; done"
    )
    if number == signal.SIGINT:  # bash leaves ignored signals ignored; Python takes them
        script = f'exec {sys.executable} -c "{_PYTHON.format(folder=tmp_path)}"'
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "logs"), "bash", "-c", script],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        for _ in range(400):
            if all((tmp_path / f"ready{rank}").exists() for rank in range(2)):
                break
            time.sleep(0.05)
        launcher.send_signal(number)
        _, said = launcher.communicate(timeout=30)
    finally:
        launcher.kill()
    assert launcher.returncode == code
    assert "start 2" not in said
    assert (tmp_path / "0").exists()
    assert (tmp_path / "1").exists()


_PYTHON = """
import os, pathlib, time
rank = os.environ['JAX_PROCESS_ID']
try:
    pathlib.Path('{folder}', 'ready' + rank).touch()
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path('{folder}', rank).touch()
    os._exit(130)
"""


def test_what_cannot_start_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot be started"):
        supervise([str(tmp_path)], Processes(2, logs=tmp_path / "logs"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--log-dir .*: cannot be written"):
        supervise(["true"], Processes(1, logs=tmp_path / "file" / "logs"))
