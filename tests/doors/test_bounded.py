"""Outside stays bounded: hostile input is refused in one line, in little time and memory, alone.

Files of data and folders of models that are no files, never end, unpack to gigabytes, nest without
end, name what lies elsewhere, or ask for sizes that no machine has are refused with an error of one
line that names the file, within five seconds of processor time and 500 MB. Nothing talks to another
machine. ``hostile.py`` writes the cases; each is read in a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doors import bounded, hostile
from transformer_jax.core.errors import UserError

LAW = 7
KINDS = ("reader", "folder")
CASES = hostile.CASES
EXEMPT = {
    "data sets of TensorFlow": "the library of the data sets reads them, in the user's own folder",
    "demonstrations": "a file of pairs or labels, which is read as those are",
    "rewards and rules of users": "a program of the user, which may do what the user may",
    "prompts in lines or JSONL": "lines of text or JSONL, which are read as those are",
    "requests": "JSONL, which is read as other JSONL is",
    "results of benchmarks": "files that the user's own benchmarks wrote",
    "outputs with references": "lines, CSV, words with tags and JSON, read as others are",
    "plan of a run": "flags of the user and named runs: nothing from outside",
}

ROOT = Path(__file__).parents[2]


def measured(names, folder):
    """The results of cases, which one process reads one after another."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.doors.bounded", str(folder / "cases"), *names],
        capture_output=True, text=True, timeout=1500, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """The results of all selected cases."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    params = [call.params for call in calls if call is not None]
    names = [one["hostile_input"] for one in params if "hostile_input" in one]
    return measured(names, tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize(
    "hostile_input",
    [
        "pairs as TSV: a device",
        "pairs as JSONL: deep JSON",
        "table of pairs by language: a path of an address",
        "table of pairs by language: 9 MB",
        "recordings as TSV: a pipe",
        "pictures in arrays: a shape of exabytes",
        "run: a file of settings of 64 GB",
    ],
)
def test_hostile_input_is_refused_in_a_line(hostile_input, tmp_path):
    """In this process, where nothing stops what is not refused."""
    read = hostile.ALL[hostile_input](tmp_path)
    with pytest.raises(UserError) as caught:
        read()
    assert "\n" not in str(caught.value)
    assert str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("hostile_input", hostile.ALL)
def test_hostile_input_is_refused_within_limits(results, hostile_input):
    found = results[hostile_input]
    assert found["kind"] == "UserError", found
    assert found["text"], found
    assert "\n" not in found["text"]
    assert found["seconds"] < bounded.SECONDS, found
    assert found["megabytes"] < 500, found
    assert not found["talked"]


@pytest.mark.slow
def test_the_measurement_sees_what_is_not_bounded(tmp_path):
    found = measured(bounded.UNBOUNDED, tmp_path)
    assert {name: one["kind"] for name, one in found.items()} == {
        "nothing is refused": "none", "another error": "ValueError", "memory": "none",
        "time": "none", "another machine": "ConnectionRefusedError",
    }  # fmt: skip
    assert found["memory"]["megabytes"] > 500
    assert found["time"]["seconds"] > bounded.SECONDS
    assert found["another machine"]["talked"] == ["127.0.0.1", "('127.0.0.1', 9)"]


def test_there_are_many_cases():
    folders = ("weights", "configuration of a model", "tokenizer", "SentencePiece", "run",
               "settings of a tokenizer", "settings of generation", "processor of pictures",
               "sentence encoder", "chat template", "adapter")  # fmt: skip
    assert all(len(CASES[name]) >= 4 for name in folders)
    assert len(hostile.ALL) > 200
