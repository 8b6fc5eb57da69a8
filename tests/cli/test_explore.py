"""The command and the method write the same page, and refuse the same models."""

import pytest

import transformer_jax as tj
from tests.doors import uses
from transformer_jax.inference.pretrained import Pretrained
from transformer_jax.visual import model_page


@pytest.mark.slow
def test_the_command_writes_what_explore_returns(tmp_path, run_command):
    folder = uses.Use("bert_cls", str).write(tmp_path / "model")
    page = tmp_path / "page.html"
    assert run_command("explore", folder, "--text", "un café", "--output", page)[0] == 0
    assert page.read_text() == tj.load(folder).explore("un café").text
    assert run_command("explore", folder, "--weights", "int8", "--output", page)[0] == 0
    assert page.stat().st_size < len(tj.load(folder).explore().text)
    for layout, said in (("t5", "positions.kind is relative"), ("bert_qa", "no page runs")):
        other = uses.Use(layout, str).write(tmp_path / layout)
        code, _, err = run_command("explore", other, "--output", page)
        assert code != 0
        assert said in err
    code, _, err = run_command("explore", folder, "--output", tmp_path / "page.txt")
    assert code != 0
    assert "ends in .html" in err


@pytest.mark.slow
def test_a_large_model_is_refused_before_its_parameters_are_read(
    tmp_path, run_command, monkeypatch
):
    folder = uses.Use("gpt2", str).write(tmp_path / "model")
    monkeypatch.setattr(model_page, "MOST_PARAMETERS", 100)
    monkeypatch.delattr(Pretrained, "load")
    code, _, err = run_command("explore", folder)
    assert code == 2
    assert "parameters: a page runs at most 100: explore a smaller model" in err


@pytest.mark.parametrize("words", [
    ["attention", "{run}", "a", "--output"], ["caption", "{run}", "a.png", "--heat-maps"],
    ["explore", "{run}", "--output"], ["word-vectors", "{run}", "bank", "the bank", "--output"],
], ids=lambda words: words[0])  # fmt: skip
def test_a_page_that_cannot_be_written_is_refused_before_the_model_is_read(
    words, tmp_path, run_command
):
    there = [word.format(run=tmp_path / "no run") for word in words]
    (tmp_path / "file").touch()
    for page, said in (("page.txt", "ends in .html"), ("file/page.html", "cannot be written")):
        code, _, err = run_command(*there, tmp_path / page)
        assert code == 2
        assert err.startswith(f"error: {words[-1]} {tmp_path / page}: ")
        assert said in err
