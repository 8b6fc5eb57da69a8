"""``doctor``: a line for each law, a certificate, exit code 5."""

import json

import pytest

from transformer_jax import laws
from transformer_jax.models.ngram import NgramModel


def test_a_healthy_model_has_a_certificate(ngram_run, run_command, tmp_path):
    path = tmp_path / "certificate.json"
    code, lines, err = run_command("doctor", ngram_run, "--output", path)
    assert code == 0
    assert f"wrote {path}" in err
    assert lines[0].split() == ["law", "holds", "error", "tolerance", "worst", "place"]
    checked = [line.split()[:2] for line in lines[1 : lines.index("")]]
    assert ["cached", "yes"] in checked
    assert lines[-2].endswith(", 0 broken")
    content = json.loads(path.read_text())
    assert content["holds"]
    assert [[one["law"], "yes"] for one in content["laws"]] == checked
    assert {*content["versions"]} >= {"transformer_jax", "jax", "flax", "numpy"}
    assert content["device"]["platform"] == "cpu"
    names = {one["law"] for one in content["laws"]}
    assert names | {*content["not_checked"]} == {*laws.ALL}


def test_a_broken_law_ends_with_five(ngram_run, run_command, monkeypatch, tmp_path):
    path = tmp_path / "certificate.json"
    uniform = lambda self, context: self._uniform[: self.vocab_size]
    monkeypatch.setattr(NgramModel, "distribution", uniform)
    code, lines, err = run_command("doctor", ngram_run, "--output", path)
    assert code == 5
    assert "1 law broken: cached: Decoding one token at a time with a cache" in err
    assert any(line.startswith("cached") and "no" in line.split() for line in lines)
    assert [one["law"] for one in json.loads(path.read_text())["laws"] if not one["holds"]] == [
        "cached"
    ]


def test_what_is_no_model_is_refused(run_command, tmp_path):
    assert run_command("doctor", tmp_path / "none")[0] == 4
    code, _, err = run_command("doctor", tmp_path, "--output", tmp_path / "certificate.txt")
    assert code == 2
    assert "the name ends in .json" in err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trained_run", "decoder_run", "rotary_run"])
def test_trained_runs_are_healthy(name, request, run_command, tmp_path):
    path = tmp_path / "certificate.json"
    code, lines, _ = run_command("doctor", request.getfixturevalue(name), "--output", path)
    assert code == 0
    model = json.loads(path.read_text())["model"]
    assert model["attention_kernels"] == ["chunked", "xla"]
    assert len(model["sha256"]) == 64
    assert len(lines) > 20


@pytest.mark.slow
def test_a_model_on_a_mesh_is_that_of_one_device(trained_run, run_command):
    code, lines, _ = run_command("doctor", trained_run, "--mesh.data", "2")
    assert code == 0
    assert any(line.startswith("sharded") and " yes " in line for line in lines)
