"""``transformer-jax launch``: what it starts, and the mistakes that it refuses in one line."""

import sys

import pytest

from transformer_jax.cli.launch import with_resume
from transformer_jax.cli.main import main
from transformer_jax.parallel.launch import supervisor


@pytest.fixture
def started(monkeypatch, tmp_path):
    """The command that ``launch`` would run."""
    seen = []

    def supervise(command, processes, *, again):
        seen.append((command, processes, again))
        return 7

    monkeypatch.setattr(supervisor, "supervise", supervise)
    monkeypatch.chdir(tmp_path)
    return seen


OURS = [sys.executable, "-m", "transformer_jax.cli.main"]


def test_a_command_of_the_library_runs_in_this_python_and_continues_with_resume(started):
    words = ["train", "small", "--training.steps", "4", "--num-beams", "-n"]
    assert main(["launch", "-n", "3", "--restarts", "2", "--", *words]) == 7
    ((command, processes, again),) = started
    assert command == [*OURS, *words]
    assert again == [*command, "--resume"]
    assert (processes.number, processes.restarts, processes.cpu) == (3, 2, False)


def test_a_rehearsal_is_on_the_cpu(started):
    main(["launch", "--rehearse", "8", "--devices-per-process", "2", "--", "true", "--", "x"])
    ((command, processes, again),) = started
    assert command == again == ["true", "--", "x"]
    assert (processes.number, processes.devices, processes.cpu) == (8, 2, True)


@pytest.mark.parametrize(
    "command",
    [["resume", "runs/x"], ["train", "x", "--resume"], ["python", "train"], ["score", "train"]],
)
def test_other_commands_start_again_as_they_are(command):
    assert with_resume(command) == command
    module = ["python", "-m", "experiments.seq2seq", "train", "x"]
    assert with_resume(module) == [*module, "--resume"]
    assert with_resume(["/bin/transformer-jax", "pretrain", "x"])[-1] == "--resume"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "launch needs a command after --"),
        (["--", "trian", "small"], "trian: neither a program nor a command of transformer-jax"),
        (["-n", "0", "--", "true"], "--num-processes is 0: at least 1"),
        (["--grace", "-1", "--", "true"], "--grace is -1.0: at least 0"),
        (["--rehearse", "0", "--", "true"], "--rehearse is 0: at least 1, or None"),
        (["--rehearse", "2", "-n", "2", "--", "true"], "both set the number of processes"),
        (["--restart", "2", "--", "true"], "did you mean --restarts?"),
        (["-n", "two", "--", "true"], "two"),
        (["--", "launch", "--", "true"], "launch: neither a program"),
    ],
)
def test_mistakes_are_one_line_before_anything_starts(started, capsys, given, said):
    assert main(["launch", *given]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert not started
