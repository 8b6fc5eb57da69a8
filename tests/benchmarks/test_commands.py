"""Every benchmark command runs, says what it does, and is cut by time."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from typing import get_args

import numpy as np
import pytest

from benchmarks.harness import TREE, Bench, Limits
from benchmarks.ours_language import decode
from benchmarks.settings import Settings, What
from benchmarks.sizes import GPT2
from transformer_jax.cli.process import guarded
from transformer_jax.core.errors import DataError

PEERS = all(map(importlib.util.find_spec, ("torch", "transformers", "ctranslate2")))


@pytest.mark.slow
@pytest.mark.apart
@pytest.mark.parametrize("what", get_args(What))
def test_every_command_runs_with_a_tiny_model(what, tmp_path):
    if what == "decode" and not PEERS:
        pytest.skip("transformers makes the model that is decoded")
    command = [sys.executable, "-m", "benchmarks", what, "--tiny", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path), "--patience", "90", "--minutes", "1"],
        capture_output=True, text=True, cwd=TREE, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text())
    assert found["command"] == f"python -m benchmarks {what} --tiny"
    if what == "load":
        assert {"transformer_jax", "transformer_jax, read"} <= set(found["rows"])
    else:
        for table in found["tables"]:
            names = [row["name"] for row in table["rows"]]
            ours = ("jax", "float32") if what in ("engine", "frozen-base") else ("transformer_jax",)
            assert any(name.startswith(ours) for name in names), table["title"]
            assert all(row["rounds"] == 1 and row["ms"] > 0 for row in table["rows"])
    assert "transformer_jax: " not in "".join(
        line for line in done.stderr.splitlines() if "left out" in line
    )
    if PEERS:
        missing = [line for line in done.stderr.splitlines() if "left out" in line]
        # Compilers of torch need a compiler of C++, which not every machine has.
        assert not [line for line in missing if "ompile" not in line and "PEFT" not in line]


def test_help_ends_in_five_columns_and_a_full_standard_output_is_named():
    command, how = [sys.executable, "-m", "benchmarks", "--help"], {"cwd": TREE, "timeout": 60}
    narrow = subprocess.run(command, env=os.environ | {"COLUMNS": "5"}, capture_output=True, **how)
    assert narrow.returncode == 0
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, **how)
    assert done.returncode == 2
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.slow
def test_word_vectors_are_timed_and_judged_without_the_peer(tmp_path, capfd):
    from benchmarks.word_vectors import SIMILARITIES, main

    words = ["a", "b", "c", "d", "e", "f"]
    rng = np.random.default_rng(0)
    lines = (" ".join(rng.choice(words, 12)) for _ in range(200))
    (tmp_path / "text").write_text("\n".join(lines) + "\n")
    (tmp_path / "questions-words.txt").write_text(": all\na b c d\nb c d e\n")
    for name in SIMILARITIES:
        (tmp_path / f"{name}.txt").write_text("a b 1\nb c 2\nc d 5\n")
    output = tmp_path / "out.json"
    flags = ["--text", str(tmp_path / "text"), "--questions", str(tmp_path), "--size", "8"]
    flags += ["--rounds", "1", "--epochs", "1", "--seeds", "1", "--output", str(output)]
    main([*flags, "--peers", str(tmp_path / "none")])
    found = json.loads(output.read_text())
    for method in ("skip-gram", "cbow"):
        assert [row["name"] for row in found[method]["rows"]] == ["transformer_jax"]
        assert found[method]["quality"]["transformer_jax"]["analogies_answered"]["mean"] == 2
    assert capfd.readouterr().err.startswith("word2vec, skip-gram:\n  setting up gensim\n")


@pytest.mark.parametrize("missing", ["--text", "--questions"])
def test_a_missing_file_of_word_vectors_is_one_line(tmp_path, capfd, missing):
    from benchmarks.word_vectors import main

    (tmp_path / "text").write_text("a b\n")
    text = tmp_path / ("none" if missing == "--text" else "text")
    flags = ["--text", str(text), "--questions", str(tmp_path), "--peers", "none"]
    assert guarded(lambda: main(flags)) == DataError.exit_code
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {missing} {tmp_path}/")
    assert "no such file" in line


@pytest.mark.slow
def test_a_decoder_of_any_size_writes_its_tokens():
    """``language-decode`` calls the programs of text generation as the library does."""
    size = Settings("language-decode", tiny=True).size(**GPT2)
    run, facts = decode("gpt2_small", 2, 4, 3, **size)
    assert len(run(1)) == 3
    table, positions = size["vocab"] * size["width"], 1024 * size["width"]
    assert facts["weight_bytes"] > 4 * (table + positions)


def test_sizes_are_small_only_if_asked():
    whole, tiny = Settings("train"), Settings("train", tiny=True)
    assert whole.size(width=256, length=32) == {"width": 256, "length": 32}
    assert tiny.size(width=256, length=32, texts=5) == {"width": 32, "length": 8, "texts": 5}


CASES = """
import time
from benchmarks.worker import serve

def sleeps(setup, run):
    time.sleep(setup)
    return (lambda times: time.sleep(run)), {"setup": setup}

serve({"sleeps": sleeps})
"""


@pytest.fixture
def add(tmp_path, monkeypatch):
    (tmp_path / "sleeping_cases.py").write_text(CASES)
    monkeypatch.setenv("PYTHONPATH", f"{TREE}")
    bench = Bench(1, "a table", Limits(patience=5.0, table=1.0))

    def add(name, setup=0.0, run=0.01):
        arguments = {"setup": setup, "run": run}
        # The worker runs a file of the test, with the package beside it.
        return bench.add(name, "sleeps", arguments, module="sleeping_cases", tree=tmp_path)

    (tmp_path / "benchmarks").symlink_to(TREE / "benchmarks")
    yield bench, add
    bench.close()


def test_a_case_that_takes_long_is_left_out_and_others_go_on(add, capfd):
    bench, add = add
    assert add("first")["setup"] == 0.0
    assert add("second")["setup"] == 0.0
    assert add("slow to run", run=60.0) is not None
    bench.limits = Limits(patience=1.0, table=60.0)
    began = time.monotonic()
    assert add("slow", setup=60.0) is None
    assert time.monotonic() - began < 5
    rows = bench.measure(2, 1, "first")
    assert [row.name for row in rows] == ["first", "second"]
    assert all(row.rounds == 2 and row.wall_ms >= 10 for row in rows)
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "  setting up first"
    assert "  left out: slow: no answer within 1 s (--patience)" in said
    assert "  left out: slow to run: no answer within 1 s (--patience)" in said
    assert any(line.startswith("  round 2 of 2") for line in said)


def test_rounds_end_when_the_time_of_the_table_is_over(add, capfd):
    bench, add = add
    add("one", run=0.4)
    (row,) = bench.measure(50, 1, "one")
    assert 1 <= row.rounds < 50
    assert np.isfinite(row.ratio)
    assert f"{row.rounds} of 50 rounds: 1 s are over" in capfd.readouterr().err


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from benchmarks.harness import Worker
from benchmarks.program import run_program

def main():
    worker = Worker(sys.executable, "asleep", 1, Path(sys.argv[1]))
    print(worker.process.pid, flush=True)
    # A program in the background of a script ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), int(sys.argv[2]))
    time.sleep(60)

run_program(main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_a_stopped_benchmark(number, tmp_path):
    (tmp_path / "asleep.py").write_text("import time\ntime.sleep(60)\n")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(int(number))]
    ended = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 128 + number
    assert len(ended.stderr.splitlines()) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int(ended.stdout), 0)
