"""The tables of the page of benchmarks are written from the files of results."""

import json
import re

from benchmarks import page
from benchmarks.harness import TREE

TEXT = (TREE / "docs" / "benchmarks.md").read_text()


def test_the_tables_of_the_page_are_those_of_the_files():
    assert page.filled(TEXT) == TEXT, "run `python -m benchmarks page`"


def test_no_table_is_written_by_hand():
    tables = re.findall(r"(.*)\n\|(?:.*)\n\|-", TEXT)
    assert tables == [f"<!-- {name} -->" for name in page.TABLES]


def test_a_table_that_was_changed_by_hand_is_written_anew():
    assert page.filled(TEXT.replace("3.38 (3.36 to 3.39)", "4.38")) == TEXT


def test_every_gpu_is_on_the_page_but_no_tiny_model(tmp_path, monkeypatch):
    row = {"name": "a", "ms": 1.0, "units_per_s": 1000.0, "facts": {}}
    tables = [{"title": "step", "base": "a", "rows": [row]}]
    for name in ("gpu_t4", "gpu_h200", "gpu_tiny_cpu"):
        (tmp_path / f"{name}_py3.12.json").write_text(json.dumps({"tables": tables}))
    monkeypatch.setattr(page, "_RESULTS", tmp_path)
    _, *rows = page.TABLES["one GPU"]()
    assert [cells[0] for cells in rows] == ["H200: step", "T4: step"]


def test_a_program_that_is_compiled_again_joins_no_other_table(monkeypatch):
    stored = page._stored("programs")
    compiled = stored["cases"]["gpt2-small, one TPU, 2 layers"]
    cases = stored["cases"] | {"another": compiled, "base, one TPU": compiled}
    before = list(page.TABLES["schedules of TPUs"]())
    monkeypatch.setattr(page, "_stored", lambda file: {"cases": cases})
    assert list(page.TABLES["schedules of TPUs"]()) == before
