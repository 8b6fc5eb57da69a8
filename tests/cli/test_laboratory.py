"""``python -m experiments.laboratory``: what it writes, and what it refuses in one line."""

import json

import pytest

from transformer_jax.cli.laboratory import COMMANDS, main

TINY = [
    "recall", "--distances", "2", "3", "--models", "tanh", "--symbols", "2", "--parameters", "300",
    "--steps", "2", "--eval-texts", "16",
]  # fmt: skip


@pytest.mark.slow
def test_a_command_writes_a_picture_and_its_figures(tmp_path, capsys):
    to = tmp_path / "new" / "found.svg"
    assert main([*TINY, "--output", str(to)], lambda: {"commit": "abc"}) == 0
    out, err = capsys.readouterr()
    assert err.splitlines()[0] == "recall: starting"
    assert err.splitlines()[-1] == f"wrote {to}, {to.with_suffix('.json')}"
    assert out.split()[:4] == ["model", "parameters", "D=2", "D=3"]
    assert "<svg" in to.read_text()
    facts = json.loads(to.with_suffix(".json").read_text())
    assert facts["commit"] == "abc"
    assert facts["command"].startswith("transformer-jax laboratory recall --distances 2 3")
    assert facts["settings"]["distances"] == [2, 3]
    assert facts["settings"]["seed"] == 0
    assert "output" not in facts["settings"]
    assert [len(row) for row in facts["accuracy"]["tanh"]] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["recal"], "unknown command recal: did you mean recall? there are recall, gradients,"),
        (["recall", "--distance", "8"], "recall has no flag --distance: did you mean --distances?"),
        (["recall", "--distances", "0"], "--distances: 0 is outside 1 to 8,192"),
        (["recall", "--models", "mlp"], "mlp"),
        (["recall", "--learning-rate", "nan"], "--learning-rate"),
        (["recall", "--output", "found.pdf"], "--output found.pdf: the name ends in .png"),
        (["recall", "--output", ""], "--output is '': a path is needed"),
        (
            ["recall", "--output", "/proc/found.png"],
            "--output /proc/found.png: cannot be written: ",
        ),
        (["recall", "--parameters", "3"], "--parameters is 3: from "),
        (["gradients", "--lags", "x"], "--lags"),
        (["gradients", "--kernel-scale", "-1"], "--kernel-scale is -1.0: above 0"),
        (["lengths", "--scores", "location"], "location"),
        (["lengths", "--seeds", "0"], "--seeds is 0: at least 1"),
        (["rewards", "--methods", "dpo"], "dpo"),
        (["scales", "--sizes", "0"], "--sizes: 0 is outside 1 to 8,192"),
        (["rewards", "--group-size", "1"], "--group-size is 1: at least 2"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    [line] = [line for line in err.splitlines() if not line.endswith(": starting")]
    assert line.startswith("error: ")
    assert message in line
    assert out == ""


def test_a_folder_is_no_picture(tmp_path, capsys):
    folder = tmp_path / "a.png"
    folder.mkdir()
    assert main(["lengths", "--output", str(folder)]) == 2
    assert f"--output {folder}: this is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_the_settings(command, capsys):
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "--output PATH" in out
    assert "--seeds INT" in out
    assert main([]) == 2
    assert command in capsys.readouterr().out
