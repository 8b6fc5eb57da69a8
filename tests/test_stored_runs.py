"""Runs that version 0.1.0 stored are read, used and resumed; ``stored/make.py`` wrote them.

Settings, flags, request fields and measurements have the names of that time. A stopped run resumes
to the losses that it had then: bit for bit where the same program runs on the same processor, to
rounding elsewhere.
"""

import contextlib
import io
import json
import logging
import re
import shutil
import tarfile
from pathlib import Path

import jax
import pytest

from experiments import decoder_only, encoder_only, seq2seq
from transformer_jax.cli.main import main

pytestmark = pytest.mark.apart

ARCHIVE = Path(__file__).parent / "stored/runs.tar.xz"
PROGRAMS = {
    "seq2seq": seq2seq.main,
    "decoder_only": decoder_only.main,
    "encoder_only": encoder_only.main,
    "transformer-jax": main,
}
NAMES = [
    "translation", "translation-scanned", "contiguous", "packed", "pretraining",
    "pretraining-order", "classification", "pairs", "regression", "tagging", "answers",
]  # fmt: skip
# Their digests hold the path of the moving average, which has another name by now.
AVERAGED = ("translation", "packed", "pretraining-order", "answers")


@pytest.fixture(autouse=True)
def do_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """The folder of the runs and their data; paths in configurations start from there."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return json.loads((tmp_path / "expected.json").read_text())


def run_command(program, arguments, code=0):
    """The standard output and standard error of a command."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = PROGRAMS[program](arguments)
    assert found == code, (program, arguments, err.getvalue())
    out.flush()
    return out.buffer.getvalue().decode(), err.getvalue()


def words_of(program, text):
    """Texts and numbers of an output, without the names of columns and fields."""
    for line in text.splitlines():
        if line.startswith("{"):
            yield from leaves(json.loads(line))
        elif re.search(r"\d", line):
            for word in re.split(r"[\s,]+", line.strip()):
                yield from number_or_text(program, word.rstrip("%"))


def leaves(value):
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from leaves(inner)
    else:
        yield value


def number_or_text(program, word):
    try:
        yield float(word)
    except ValueError:
        if program == "transformer-jax":  # tables of scores call their rows what they like
            yield word


def close(value):
    return pytest.approx(value, rel=1e-4, abs=2e-4, nan_ok=True)


def check_commands(expected, name, when):
    for command, text in zip(expected["commands"], expected[when], strict=True):
        program, *arguments = [word.format(run=f"runs/{name}") for word in command]
        written = run_command(program, arguments)[0]
        if "\n\n" not in text:  # reports of classes, after a blank line, came later
            written = written.partition("\n\n")[0]
        found = list(words_of(program, written))
        wanted = list(words_of(program, text))
        assert len(found) == len(wanted), (command, found, wanted)
        for one, other in zip(found, wanted, strict=True):
            assert one == (close(other) if isinstance(other, float) else other), command


@pytest.mark.parametrize("name", ["ngram", "bigram", *NAMES])
@pytest.mark.quick("ngram")
def test_stored_run_gives_its_outputs(stored, name):
    """Its best checkpoint, with the flags and request fields of that time."""
    check_commands(stored["runs"][name], name, "before")


def test_every_stored_run_verifies_and_its_command_line_is_understood(stored):
    """Refused where the run is: all flags were understood before."""
    for name, expected in stored["runs"].items():
        run_command("transformer-jax", ["verify", f"runs/{name}"])
        error = run_command(expected["program"], expected["command"], code=2)[1]
        assert f"error: runs/{name}: " in error
        assert "--overwrite" in error


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.quick("translation")
def test_stored_run_is_described(stored, name):
    run_command("transformer-jax", ["describe", f"runs/{name}"])


def same_machine(stored):
    made = stored["made_with"]
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return made == {"jax": jax.__version__, "cpu": found and found.group(1)}


def check_end(stored, name):
    """The losses and the state that a run ended with."""
    expected, run = stored["runs"][name], Path("runs") / name
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    results, same = json.loads((run / "results.json").read_text()), same_machine(stored)
    for kind, values in expected["losses"].items():
        found = {str(record["step"]): record[kind] for record in records if kind in record}
        # A printed loss may be another rounding of the same sum; parameters are equal bit by bit.
        assert found == pytest.approx(values, rel=2e-7 if same else 1e-4), kind
    for setting in ("steps", "parameters"):
        assert results[setting] == expected["results"][setting]
    # A run that freezes parameters has them no longer in its state, but beside its checkpoints.
    if same and name not in AVERAGED and "--task.freeze" not in expected["command"]:
        assert results["state_sha256"] == expected["results"]["state_sha256"]
    known = leaves(expected["results"].get("scores", {}))
    scores = [value for value in leaves(results.get("scores", {})) if isinstance(value, float)]
    for value in known:
        assert not isinstance(value, float) or any(close(value) == score for score in scores)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_stored_run_resumes_to_the_end_it_had(stored, name):
    alone = ["--distributed.local-devices", "1"]
    program = stored["runs"][name]["program"]
    run_command(program, ["resume", f"runs/{name}", *alone])
    check_end(stored, name)
    check_commands(stored["runs"][name], name, "after")


# Earlier versions held out pairs by their sources alone, and learnt WordPiece from texts without
# keeping their blanks.
HELD = ["--data.read.grouped-by", "source"]
LEARNT = ["--data.read.normalization", "none", "--tokenizer.path", "tokenizer.json"]
EARLIER = {"translation": [*HELD, *LEARNT], "translation-scanned": HELD}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_old_command_line_trains_the_same_run(stored, name):
    """With the earlier value of what is done otherwise by now."""
    expected = stored["runs"][name]
    if "--task.init" in expected["command"]:  # it begins with what that run was at its end
        run_command("encoder_only", ["resume", "runs/pretraining",
                                     "--distributed.local-devices", "1"])  # fmt: skip
    shutil.copy(f"runs/{name}/tokenizer.json", "tokenizer.json")
    shutil.rmtree(f"runs/{name}")
    run_command(expected["program"], [*expected["command"], *EARLIER.get(name, [])])
    check_end(stored, name)


@pytest.mark.slow
def test_finished_stored_run_stays_as_it_is(stored):
    path = Path("runs/translation-finished/results.json")
    before = json.loads(path.read_text())
    alone = ["--distributed.local-devices", "1"]
    run_command("seq2seq", ["resume", "runs/translation-finished", *alone])
    after = json.loads(path.read_text())
    assert after["steps"] == before["steps"]
    assert after["best"]["value"] == before["best"]["value"]
    for one, other in zip(leaves(after["tests"]), leaves(before["tests"]), strict=True):
        assert one == (close(other) if isinstance(other, float) else other)
