"""``report bleu``: the table of the paper, own scores beside it, and what they are worth (H15)."""

import json
import re
from pathlib import Path

import pytest

from transformer_jax.cli.main import main

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_the_table_is_printed_with_its_caveats(capsys):
    assert main(["report", "bleu"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 1 + 10
    base, big = (re.split(r" {2,}", line) for line in lines[-2:])
    assert base[2:] == ["27.3", "38.1", "3.3e18", "3.3e18", "3.283e18"]
    assert big[2:] == ["28.4", "41.8", "2.3e19", "2.3e19", "2.298e19"]
    assert "tokenised text, with compounds split for German: not comparable with sacreBLEU" in err
    assert "training time × number of GPUs × sustained single-precision FLOP/s" in err


def test_own_results_are_those_of_the_files(tmp_path, capsys):
    path = tmp_path / "bleu.json"
    assert main(["report", "bleu", "--results", str(RESULTS), "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    written = json.loads(path.read_text())
    stored = json.loads((RESULTS / "multi30k_de_en.json").read_text())
    own = [one for one in written["own"] if one["source"] == "multi30k_de_en"]
    assert [one["bleu"] for one in own] == [score["sacrebleu"] for score in stored["scores"]]
    for one in own:
        assert one["signature"] in out
    assert len(written["published"]) == 10
    assert len(written["caveats"]) == 2
    assert "FLOPs are unknown" not in err
    assert all(one["flops"] > 0 for one in own)
    assert f"wrote {path}\n" in err


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--results", str(RESULTS)]])
def test_the_picture_is_written_and_repeatable(tmp_path, capsys, flags):
    for name in "ab":
        path = tmp_path / f"{name}.png"
        assert main(["report", "bleu", *flags, "--output", str(path)]) == 0
    assert "warning" not in capsys.readouterr().err
    once, twice = (tmp_path / f"{name}.png" for name in "ab")
    assert once.read_bytes() == twice.read_bytes()
    assert once.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "Missing from transformer-jax report: {bleu}"),
        (["rouge"], 2, "table is rouge: allowed are bleu"),
        (["bleu", "--results", "none"], 3, "none: no such folder of results"),
        (["bleu", "none"], 4, "none: no such run directory"),
        (["bleu", "--output", "x.bmp"], 2, "--output x.bmp: the name ends in .png, .svg, .html"),
        (["bleu", "--json", "x"], 2, "--json x: the name ends in .json"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, code, says):
    assert main(["report", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert says in err


def test_a_translator_without_a_test_set_is_refused(trained_run, capsys):
    assert main(["report", "bleu", str(trained_run)]) == 4
    assert "no results.json: the run has not ended" in capsys.readouterr().err


def test_a_language_model_is_refused(decoder_run, capsys):
    assert main(["report", "bleu", str(decoder_run)]) == 4
    assert "not a translator: only translators have BLEU" in capsys.readouterr().err
