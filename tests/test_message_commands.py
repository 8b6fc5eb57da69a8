"""Commands in messages run as they stand: they exist, are whole, and quote paths for a shell."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from tests.test_docs import strange_command
from transformer_jax.cli.main import main
from transformer_jax.core.errors import CheckpointError, ConfigError, command, install, no_such_run
from transformer_jax.runs.run_directory import RunDirectory

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "transformer_jax").rglob("*.py"))
PLACE = "runs/Ada's first"  # what stands for a path
# A program or an installer outside of backticks is one that nobody can paste.
BARE = re.compile(r"transformer-jax [a-z]|python -m [a-z]|pip install\b|hf download")
# Descriptions of programs, and where commands are made.
ALLOWED = {"core/errors.py", "cli/main.py", "cli/train_word_vectors.py", "interop/stablehlo.py"}
PROGRAM = re.compile(r"(python -m )?experiments\.\w+|python -m experiments\.\{\}")


def strings(tree):
    """Every string of a file but docstrings: its line and its text, values as ``{}``."""
    docs, parts = set(), set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            docs.add(body[0].value)
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
            text = (one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
            yield node.lineno, "".join(text)
    for node in ast.walk(tree):
        plain = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if plain and node not in docs and node not in parts:
            yield node.lineno, node.value


def made():
    """Every call of ``command``: where it is, and the words, with ``PLACE`` for values."""
    for path in FILES:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "command(" in text else ():
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "command"
            if called and node.args:
                words = [one.value if isinstance(one, ast.Constant) else PLACE for one in node.args]
                yield f"{path.relative_to(ROOT)}:{node.lineno}", words


CALLS = dict(made())


def test_commands_of_messages_are_made_by_one_function():
    for path in FILES:
        name = str(path.relative_to(ROOT / "transformer_jax"))
        if name in ALLOWED:
            continue
        for line, text in strings(ast.parse(path.read_text())):
            where = f"{name}:{line}: {text}"
            if not PROGRAM.fullmatch(text):
                assert not BARE.search(text), where
            for held in re.findall(r"`([^`]+)`", text):
                assert " " not in held, where  # a single word, such as the name of a setting


@pytest.mark.parametrize("where", CALLS)
def test_each_command_exists(where):
    words = CALLS[where]
    if words[0] == PLACE:  # the command that reads what a run holds
        words = ["embed", *words[1:]]
    if PLACE in words[1:2] and words[0] == "finetune":
        words = [words[0], "tag", *words[2:]]
    text = command(*words)
    assert text[0] == text[-1] == "`"
    assert shlex.split(text[1:-1]) == ["transformer-jax", *words]
    assert not list(strange_command(shlex.join(["transformer-jax", *words]).replace("'", "")))


@pytest.mark.parametrize("where", [where for where in CALLS if "--help" in CALLS[where]])
def test_each_help_is_printed(where, capfd):
    words = list(CALLS[where])
    if words[0] == "finetune":
        words[1] = "tag"
    try:
        code = main(words)
    except SystemExit as done:
        code = done.code
    assert code in (0, None), capfd.readouterr().err
    assert "usage: transformer-jax" in capfd.readouterr().out


def test_a_path_with_blanks_and_quotes_is_pasted_whole(tmp_path):
    path = tmp_path / "Ada's first run; rm -r x"
    path.mkdir()
    (path / "config.json").write_text('{"output": "run"}')
    (path / "metrics.jsonl").write_text("{}\n")
    (path / "checkpoints").mkdir()
    (path / "checkpoints" / "1").mkdir()
    with pytest.raises(ConfigError) as refused:
        RunDirectory.check_free(path)
    held = re.findall(r"`([^`]+)`", str(refused.value))
    assert [shlex.split(one) for one in held] == [["transformer-jax", "resume", str(path)]]


def test_every_extra_that_messages_install_exists():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for path in FILES:
        for name in re.findall(r"\binstall\(['\"](\w+)['\"]\)", path.read_text()):
            assert name in extras, path
            assert shlex.split(install(name)[1:-1])[-1] == f"transformer-jax[{name}]"


@pytest.mark.parametrize(
    ("path", "download"),
    [
        ("gpt2", "hf download openai-community/gpt2 --local-dir models/gpt2"),
        ("models/gpt2", "hf download openai-community/gpt2 --local-dir models/gpt2"),
        ("gpt2-medium", "hf download openai-community/gpt2-medium --local-dir models/gpt2-medium"),
        ("Helsinki-NLP/opus-mt-en-de",
         "hf download Helsinki-NLP/opus-mt-en-de --local-dir models/opus-mt-en-de"),
        ("unheard-of", "hf download openai-community/gpt2 --local-dir models/gpt2"),
        ("runs/none", None),
        ("/tmp/none", None),
        ("tests/none", None),  # a folder of this machine, and none of a user of the hub
        ("a; rm -r x", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("door", ["message", "generate", "resume", "load"])
def test_what_is_not_there_is_not_downloaded(path, download, door, capfd, monkeypatch):
    monkeypatch.chdir(ROOT)
    said = no_such_run(path)
    if door in ("generate", "resume"):
        assert main([door, path, *(["text"] if door == "generate" else [])]) in (2, 4)
        said = capfd.readouterr().err
    elif door == "load":
        import transformer_jax as tj

        with pytest.raises(CheckpointError) as refused:
            tj.load(path)
        said = str(refused.value)
    assert f"{path}: no such run directory" in said
    assert ("nothing is downloaded" in said) == (download is not None)
    assert re.findall("`([^`]+)`", said) == ([] if download is None else [download])
