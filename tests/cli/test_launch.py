"""``transformer-jax launch``: what it starts, and the mistakes that it refuses in one line."""

import json
import shlex
import sys

import pytest

from transformer_jax.cli.launch import with_resume
from transformer_jax.cli.main import main
from transformer_jax.cli.training import STARTS
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


def test_every_command_that_begins_runs_starts_again_with_resume():
    assert {with_resume([name, "x"])[-1] for name in STARTS} == {"--resume"}


RENDER = ["--render", "slurm", "--plan", "h200:8", "--nodes", "4"]
SMALL = ["train", "gpt2-small", "--data.text", "text.txt"]
REFUSED = [
    (["trian", "small"], "trian: neither a program nor a command of transformer-jax"),
    (["train", "smal"], "unknown configuration smal: did you mean small?"),
    (["train", "gpt2-small"], "no training data: give data.text"),
    (["train", "gpt2-small", "--data.text", "no.txt"], "data.text no.txt: no such file (looked"),
    (["train", "small", "--data.pairs", "a-b=text.txt,no"], "data.pairs no: no such file (looked"),
    (["train", "phrasebook", "--tokenizer.path", "no"], "tokenizer.path no: no such file (looked"),
    ([*SMALL, "--model.d-modell", "8"], "did you mean --model.d-model?"),
    ([*SMALL, "--mesh.fsdp", "64"], "--plan h200:8 --nodes 4: --mesh.fsdp 64 needs"),
    ([*SMALL, "--training.batch-size", "20"], "a multiple of 20 rows, not divisible by 32 (mesh"),
    (["align", "dpo", "--init-from", "no"], "no: no such run directory"),
    (["resume", "no"], "no: no such run directory"),
]


@pytest.mark.parametrize("prefix", [[], ["transformer-jax"]], ids=["command", "program"])
@pytest.mark.parametrize(("command", "said"), REFUSED, ids=[case[1][:30] for case in REFUSED])
def test_what_train_would_refuse_is_refused_before_the_queue(
    tmp_path, monkeypatch, capsys, command, said, prefix
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a b\n")
    assert main(["launch", *RENDER, "--", *prefix, *command]) in (2, 4)
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == 1


@pytest.mark.parametrize(
    "command",
    [
        [*SMALL, "--mesh.fsdp", "32"],
        ["train", "phrasebook"],
        ["evaluate", "no"],
        ["sh", "-c", "true"],
    ],
)
def test_a_command_that_would_start_is_printed(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a b\n")
    assert main(["launch", *RENDER, "--", *command]) == 0
    assert shlex.join(command) in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize(
    "command",
    [
        ["train", "char", "--data.text", "lr=0.1/a,b.txt"],
        ["instruct", "sft-cpu", "--data.train", "lr=0.1/a,b.txt", "--training.batch-size", "64"],
        ["train", "babel"],
        ["train", "small", "--data.pairs", "a-b=lr=0.1/a,lr=0.1/b", "b-c=lr=0.1/a"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_each_setting_that_is_a_file_is_looked_for_as_train_reads_it(
    tmp_path, monkeypatch, capsys, command
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    said = [{"role": role, "content": role} for role in ("user", "assistant")]
    for name in ("a", "b", "a,b.txt"):
        (tmp_path / "lr=0.1" / name).write_text(json.dumps({"messages": said}) + "\n")
    assert main(["launch", *RENDER, "--", *command]) == 0, capsys.readouterr().err
    for name in ("a", "a,b.txt"):
        (tmp_path / "lr=0.1" / name).unlink()
    if command != ["train", "babel"]:
        assert main(["launch", *RENDER, "--", *command]) == 2
        assert "no such file (looked from" in capsys.readouterr().err


def test_paths_of_a_cluster_are_not_looked_for_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in (SMALL, ["resume", "no"], ["there-alone", "x"]):
        assert main(["launch", *RENDER, "--cluster-paths", "--", *command]) == 0
    capsys.readouterr()
    missing = ["--cluster-paths", "--", *SMALL, "--mesh.fsdp", "64"]
    assert main(["launch", *RENDER, *missing]) == 2
    assert main(["launch", *RENDER, "--", *SMALL]) == 2
    hint = "if it is on the cluster alone, add --cluster-paths before --"
    assert hint in capsys.readouterr().err
