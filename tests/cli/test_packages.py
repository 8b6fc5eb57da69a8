"""A command imports what Flax imports, and the few packages that it uses."""

import functools
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.apart, pytest.mark.slow]  # each command is a process

ROOT = Path(__file__).parents[2]
USED = {"jaxtyping", "wadler_lindig", "tensorstore", "tokenizers", "transformer_jax"}
FLAGS = {"tyro", "docstring_parser"}
COMMANDS = {
    "translate": ["translate", "runs/translation-finished", "--input", "line.txt"],
    "generate": ["generate", "runs/packed", "the red dog", "--max-new-tokens", "2"],
    "embed": ["embed", "runs/pretraining", "line.txt", "--output", "vectors.npz"],
    "classify": ["classify", "runs/classification", "the red dog sees a cat."],
    "score": ["score", "runs/packed", "line.txt"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("stored")
    with tarfile.open(ROOT / "tests/stored/runs.tar.xz") as archive:
        archive.extractall(path, filter="data")
    (path / "line.txt").write_text("l l l\n")
    return path


def packages(code, folder, *arguments):
    """The third-party packages in a process after a program."""
    code = f"import sys, json\n{code}\nprint(json.dumps([*sys.modules]), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True,
        timeout=300, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    names = {name.partition(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}
    return {name for name in names - sys.stdlib_module_names if not name.startswith("_")}


@functools.cache
def of_flax():
    return packages("from flax import nnx", ROOT)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_imports_no_package_that_it_does_not_use(name, folder):
    code = "from transformer_jax.cli.main import main\nassert main() == 0"
    assert packages(code, folder, *COMMANDS[name]) - of_flax() <= USED | FLAGS


def test_a_loaded_model_needs_no_package_of_flags(folder):
    code = "import transformer_jax as tj\ntj.load('runs/translation-finished')('l l l')"
    assert packages(code, folder) - of_flax() <= USED
