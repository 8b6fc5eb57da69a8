"""The types of the package in a user's program, by a type checker."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_mypy_understands_a_users_program(tmp_path):
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", "--cache-dir",
         ROOT / ".mypy_cache", "--config-file", tmp_path / "none.ini",
         Path(__file__).parent / "user.py"],
        cwd=tmp_path, env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if "user.py" in line]
    assert found == [], done.stdout
