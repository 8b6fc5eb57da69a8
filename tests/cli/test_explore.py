"""The command and the method write the same page, and refuse the same models."""

import pytest

import transformer_jax as tj
from tests.doors import uses


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
