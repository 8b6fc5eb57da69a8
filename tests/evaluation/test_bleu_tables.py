"""The table of translators is that of the paper, and own scores are those that are stored (H15)."""

import json

import pytest

from transformer_jax.core.errors import CheckpointError, DataError
from transformer_jax.evaluation.bleu_results import (
    DEVICE_FLOPS,
    TABLE,
    results_in,
    scores_of_run,
    training_cost,
)
from transformer_jax.runs.run_directory import RunDirectory

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
RESULTS = {
    "steps": 3,
    "parameters": 77,
    "tests": {
        "test": {"sacrebleu": 31.5, "sacrebleu_signature": SIGNATURE, "chrf": 50.0, "beams": 4},
        "other": {"sacrebleu": 12, "sacrebleu_signature": SIGNATURE, "beams": 1},
    },
}


def test_the_table_has_ten_rows_of_row_h15():
    found = {row.name: (row.bleu_de, row.bleu_fr, row.flops_de, row.flops_fr) for row in TABLE}
    assert found == {
        "ByteNet": (23.75, None, None, None),
        "Deep-Att + PosUnk": (None, 39.2, None, 1.0e20),
        "GNMT + RL": (24.6, 39.92, 2.3e19, 1.4e20),
        "ConvS2S": (25.16, 40.46, 9.6e18, 1.5e20),
        "MoE": (26.03, 40.56, 2.0e19, 1.2e20),
        "Deep-Att + PosUnk ensemble": (None, 40.4, None, 8.0e20),
        "GNMT + RL ensemble": (26.30, 41.16, 1.8e20, 1.1e21),
        "ConvS2S ensemble": (26.36, 41.29, 7.7e19, 1.2e21),
        "Transformer, base": (27.3, 38.1, 3.3e18, 3.3e18),
        "Transformer, big": (28.4, 41.8, 2.3e19, 2.3e19),
    }
    assert [row.name for row in TABLE if row.ensemble] == [n for n in found if "ensemble" in n]


def test_costs_of_the_transformers_follow_from_time_and_devices():
    *_, base, big = TABLE
    assert base.time.flops == pytest.approx(3.283e18, rel=2e-4)  # row H15: 12 h · 8 · 9.5 TFLOPS
    assert big.time.flops == pytest.approx(2.298e19, rel=2e-4)  # 3.5 days, not 4 (row H13)
    for row in (base, big):
        assert f"{row.time.flops:.1e}" == f"{row.flops_de:.1e}"  # as printed
    assert set(DEVICE_FLOPS) == {"K80", "K40", "M40", "P100"}


@pytest.fixture
def run(tmp_path):
    """A run directory of three steps; ``write`` replaces one of its files."""
    directory = RunDirectory(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps(RESULTS))
    lines = [{"step": i, "loss": 1.0, "flops": 10.0**i} for i in (1, 2, 3)]
    lines.insert(2, {"step": 2, "valid_loss": 2.0})
    write_lines(directory, lines)
    return directory


def write_lines(run, lines):
    run.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_scores_of_a_run_are_those_that_it_stored(run):
    one, other = scores_of_run(run, "mine")
    assert (one.source, one.test, one.bleu, one.signature) == ("mine", "test", 31.5, SIGNATURE)
    assert (one.search, other.search, other.bleu) == ("beam 4", "greedy", 12.0)
    assert (one.parameters, one.steps, one.flops) == (77, 3, 1110.0)


def test_a_cost_that_is_not_wholly_stored_is_none(run, caplog):
    assert training_cost(run) == 1110.0
    write_lines(run, [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0, "flops": 5.0}])
    assert training_cost(run) is None
    lines = [{"step": step, "loss": 1.0, "flops": 5.0} for step in (1, 2, 3)]
    write_lines(run, lines)
    assert training_cost(run) == 15.0
    run.metrics.write_bytes(run.metrics.read_bytes().replace(b"2", b"\xff", 1))
    with caplog.at_level("WARNING"):
        assert training_cost(run) is None
    assert "1 line is damaged and skipped (line 2)" in caplog.text
    assert "without 1 step of 3: the FLOPs of this run are unknown" in caplog.text
    run.metrics.unlink()
    assert training_cost(run) is None
    assert scores_of_run(run, "mine")[0].flops is None


def test_runs_without_scores_are_refused(run):
    run.results.write_text('{"steps": 3, "best": null}')
    with pytest.raises(CheckpointError, match=r"mine: its results.json has no BLEU"):
        scores_of_run(run, "mine")
    run.results.write_text("{")
    with pytest.raises(CheckpointError, match="damaged"):
        scores_of_run(run, "mine")
    run.results.unlink()
    with pytest.raises(CheckpointError, match=r"mine: no results.json"):
        scores_of_run(run, "mine")


def test_files_of_results_of_both_forms_are_read_and_others_passed(tmp_path):
    score = {"search": "beam 4", "sacrebleu": 39.56, "signature": SIGNATURE}
    listed = {"task": "Multi30k", "steps": 9, "scores": [score, {"chrf": 1.0}], "flops": 2e15}
    (tmp_path / "b.json").write_text(json.dumps(listed))
    (tmp_path / "a.json").write_text(json.dumps({"task": "demo", "results": RESULTS}))
    (tmp_path / "c.json").write_text("[1, 2]")
    (tmp_path / "d.json").write_text('{"scores": {"dev": 3}, "results": [], "tests": 1}')
    *first, last = results_in(tmp_path)
    assert [(one.source, one.test, one.flops) for one in first] == [
        ("a", "test", None),
        ("a", "other", None),
    ]
    assert (last.source, last.test, last.bleu, last.flops) == ("b", "Multi30k", 39.56, 2e15)
    assert (last.steps, last.parameters, last.search) == (9, None, "beam 4")


def test_a_file_may_hold_several_runs(tmp_path):
    score = {"search": "greedy", "sacrebleu": 40.6}
    runs = [
        {"run": "bahdanau", "steps": 9, "signature": SIGNATURE, "scores": [score]},
        {"run": "convs2s", "scores": [score | {"signature": "own"}]},
        "no run",
    ]
    (tmp_path / "a.json").write_text(json.dumps({"task": "Multi30k", "runs": runs}))
    found = results_in(tmp_path)
    assert [(one.source, one.test, one.signature, one.steps) for one in found] == [
        ("a, bahdanau", "Multi30k", SIGNATURE, 9),
        ("a, convs2s", "Multi30k", "own", None),
    ]


def test_folders_without_results_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        results_in(tmp_path / "none")
    with pytest.raises(DataError, match="no JSON file in it has BLEU"):
        results_in(tmp_path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match=r"x.json: not JSON"):
        results_in(tmp_path)
