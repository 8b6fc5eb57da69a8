"""Scripts of completion give commands, named runs, flags and their values, without Python."""

import shutil
import subprocess

import pytest

from transformer_jax.cli.commands import COMMANDS
from transformer_jax.cli.main import main


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("completion"), {}

    def script(shell, capsys):
        if shell not in made:
            assert main(["completion", shell]) == 0
            made[shell] = folder / shell
            made[shell].write_text(capsys.readouterr().out)
        return made[shell]

    return script


@pytest.fixture
def completions(scripts, capsys):
    """The words that bash offers after others."""

    def complete(*words):
        line = " ".join(f"'{word}'" for word in words)
        code = (
            f"source {scripts('bash', capsys)}; COMP_WORDS=(transformer-jax {line}); "
            f"COMP_CWORD={len(words)}; _transformer_jax; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(
            ["bash", "-c", code], capture_output=True, text=True, timeout=60, check=True, env={}
        )
        assert done.stderr == ""
        return done.stdout.split()

    return complete


def test_commands_runs_flags_and_values_are_completed(completions):
    assert set(completions("")) == {name.partition(" ")[0] for name in COMMANDS}
    assert completions("transl") == ["translate"]
    assert "small" in completions("train", "")
    assert completions("word-vectors", "t") == ["train"]
    assert completions("laboratory", "rec") == ["recall"]
    assert completions("translate", "--tsv")[0] == "--tsv"
    found = completions("train", "small", "--model.norm.")
    assert {"--model.norm.kind", "--model.norm.bias", "--model.norm.no-bias"} <= {*found}
    assert completions("train", "small", "--model.norm.kind", "") == ["layer", "rms"]
    assert completions("train", "char", "--data.sou") == []  # a language model has no source
    assert "--data.pairs" in completions("evaluate", "runs/x", "--data")
    assert "--plan" in completions("pretrain", "small", "--")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_sound(shell, scripts, capsys):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, "-n", scripts(shell, capsys)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
