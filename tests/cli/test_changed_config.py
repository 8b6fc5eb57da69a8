"""Every command that uses a run refuses one whose configuration was changed after training."""

import json
import shutil

import pytest

from transformer_jax.cli.commands import with_flags
from transformer_jax.cli.support.run_command import RunCommand
from transformer_jax.core.errors import CheckpointError
from transformer_jax.runs import manifest
from transformer_jax.runs.manifest import steps
from transformer_jax.runs.run_directory import RunDirectory, group_of

COMMANDS = dict(with_flags())
# What each command is given beside the run; only verify and convert have no flag to allow it.
ARGUMENTS = {
    "translate": [], "generate": ["a"], "prompt": ["--task", "in-context"], "score": ["FILE"],
    "diversity": ["FILE"], "caption": ["FILE"],
    "prefer": ["FILE", "--output", "OUT"],
    "win-rate": ["RUN", "FILE", "--rule", "RULE"],
    "fill-mask": ["a [MASK]"], "classify": ["a"], "tag": ["a"], "embed": ["FILE"],
    "answer": ["a", "--context", "FILE"],
    "semantic-search": ["FILE", "a"], "probe": ["FILE"], "word-vectors": ["a", "a a"],
    "transcribe": ["FILE"], "attention": ["a"], "explore": [], "chat": [], "describe": [],
    "export": ["OUT"],
    "merge": ["--output", "OUT"],
    "spectrum": [], "doctor": [], "tokenize": ["a"],
    "compare-tokenizers": ["--tokenizers", "RUN"],
}  # fmt: skip
CHANGED = "config.json: changed after training: model.norm.eps is 0.5"


@pytest.fixture(scope="session")
def sealed_run(trained_run, tmp_path_factory):
    """The trained run with manifests that say what was trained, as training writes them."""
    run = tmp_path_factory.mktemp("sealed") / "run"
    shutil.copytree(trained_run, run)
    config = json.loads((run / "config.json").read_text())
    for step in steps(run / "checkpoints"):
        path = run / "checkpoints" / f"step_{step:08d}"
        manifest.rewrite(path, manifest.read(path) | {"config": config})
    return run


@pytest.fixture
def changed_run(sealed_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(sealed_run, run)
    config = json.loads((run / "config.json").read_text())
    config["model"]["norm"]["eps"] = 0.5
    config["data"] = {"read": {"lowercase": True}}
    (run / "config.json").write_text(json.dumps(config))
    return run


def test_all_commands_are_here():
    assert {name for name, kind in COMMANDS.items() if issubclass(kind, RunCommand)} == {*ARGUMENTS}
    others = {"verify", "convert", "launch", "complexity", "report", "analogy", "most-similar",
              "completion", "bpe-merges", "lecture", "glue", "check", "score-file",
              "compare"}  # fmt: skip
    assert {*COMMANDS} - {*ARGUMENTS} == others


@pytest.mark.quick(
    "translate", "generate", "classify", "embed", "attention", "chat", "describe", "export"
)
@pytest.mark.parametrize("command", ARGUMENTS)
def test_a_command_refuses_a_changed_run(changed_run, run_command, command, tmp_path):
    (tmp_path / "file.txt").write_text("a\tx\nb\ty\n")
    (tmp_path / "rule.py").write_text("def reward(prompt, completion):\n    return 0\n")
    paths = {"FILE": tmp_path / "file.txt", "OUT": tmp_path / "out", "RUN": changed_run}
    paths["RULE"] = tmp_path / "rule.py"
    arguments = [paths.get(word, word) for word in ARGUMENTS[command]]
    first = paths["FILE"] if command == "compare-tokenizers" else changed_run
    code, lines, err = run_command(command, first, *arguments, text="a\n")
    assert (code, lines) == (4, [""])
    assert CHANGED in err
    assert "data.read.lowercase is true (absent in training)" in err
    assert "--allow-changed-config" in err
    # A slow machine shows the progress of loading, too.
    assert len([line for line in err.splitlines() if not line.startswith("loading ")]) == 1


def test_a_changed_run_is_evaluated_where_that_is_meant(changed_run, run_command):
    code, _, err = run_command("evaluate", changed_run)
    assert code == 4
    assert CHANGED in err
    code, _, err = run_command("evaluate", changed_run, "--allow-changed-config")
    assert code == 2
    assert "--source is missing" in err


@pytest.mark.slow
def test_a_changed_run_is_used_where_that_is_meant(changed_run, sealed_run, run_command, lesson):
    flags, text = ("--num-beams", 1, "--scores"), lesson[0][0]
    code, expected, err = run_command("translate", sealed_run, *flags, text=text)
    assert (code, err) == (0, "")
    flags = (*flags, "--allow-changed-config")
    code, found, err = run_command("translate", changed_run, *flags, text=text)
    assert code == 0
    assert err.startswith("warning: ")
    assert "note" not in err
    assert found != expected


def test_verify_names_every_field(changed_run, sealed_run, run_command):
    assert run_command("verify", sealed_run)[0] == 0
    code, lines, err = run_command("verify", changed_run)
    assert code == 4
    assert lines[:2] == ["step_00000150\tok", "step_00000100\tok"]
    [said] = [line for line in lines if line.startswith("config.json\t")]
    assert "model.norm.eps is 0.5" in said
    assert "data.read.lowercase" in said
    assert err.endswith("changed since it was written: config.json\n")


def test_an_ngram_model_has_a_manifest_too(ngram_run, run_command, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(ngram_run, run)
    config = json.loads((run / "config.json").read_text())
    manifest.rewrite(run, {"schema": manifest.SCHEMA, "config": config})
    assert run_command("verify", run)[0] == 0
    assert run_command("generate", run, "a", "--max-new-tokens", 2)[0] == 0
    config["data"] = {"read": {"lowercase": True}}
    (run / "config.json").write_text(json.dumps(config))
    for command in (["verify"], ["generate", "a"]):
        name, *rest = command
        code, _, err = run_command(name, run, *rest)
        assert code == 4
        assert "config.json" in err


@pytest.mark.parametrize(("name", "code"), [("translation", 0), ("speech", 4), ("painting", 4)])
def test_verify_finds_a_wrong_recipe_in_a_run_that_stored_none(
    sealed_run, run_command, tmp_path, name, code
):
    run = tmp_path / "run"
    shutil.copytree(sealed_run, run)
    config = json.loads((run / "config.json").read_text())
    config.pop("recipe", None)
    for step in steps(run / "checkpoints"):
        path = run / "checkpoints" / f"step_{step:08d}"
        manifest.rewrite(path, manifest.read(path) | {"config": config})
    (run / "config.json").write_text(json.dumps(config | {"recipe": name}))
    ended, lines, err = run_command("verify", run)
    assert ended == code
    said = f'config.json\tchanged after training: recipe is "{name}" ("translation" in training)'
    assert (said in lines) == bool(code)
    assert err.endswith("changed since it was written: config.json\n") == bool(code)


@pytest.mark.quick("data-3", "model-[]")
@pytest.mark.parametrize("value", [3, [], "x", None], ids=json.dumps)
@pytest.mark.parametrize("group", ["data", "model"])
def test_a_group_that_is_no_object_is_named(sealed_run, tmp_path, run_command, group, value):
    run = tmp_path / "run"
    shutil.copytree(sealed_run, run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {group: value}))
    for command in (["translate", run], ["embed", run, run / "config.json"], ["evaluate", run],
                    ["translate", run, "--engine", "ctranslate2"]):  # fmt: skip
        code, _, err = run_command(*command, "--allow-changed-config", text="a\n")
        assert code in (2, 4), (command, err)
        assert "unexpected" not in err
    found = pytest.raises(CheckpointError, match=rf"config.json: {group} is .*: an object")
    with found:
        group_of(config | {group: value}, group)


def test_groups_of_groups_are_read(tmp_path):
    (tmp_path / "config.json").write_text('{"data": {"read": {"text_pair": "b"}}}')
    fields = RunDirectory(tmp_path).read_config()
    assert group_of(fields, "data", "read") == {"text_pair": "b"}
    assert group_of(fields, "nothing", "here") == {}
