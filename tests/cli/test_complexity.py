"""``complexity``: the figures of table 1 for any sizes (rows H14, L2)."""

import json
import re
import time

import pytest

from transformer_jax.cli.complexity import Complexity
from transformer_jax.cli.main import main
from transformer_jax.laboratory.complexity.layer_formulas import KINDS, Layer

SMALL = ["--lengths", "16", "32", "--sizes", "64", "--repetitions", "1"]
FLOPS, SECONDS = r"[\d.]+(?: [kMG])?", r"[\d.]+ (?:s|ms|µs)"


def rows(text):
    """The lines of a table by their first column: kind, then sizes and figures."""
    return [re.split(r" {2,}", line) for line in text.splitlines() if line.startswith(KINDS)]


@pytest.mark.slow
def test_every_layer_has_its_figures_on_the_terminal_and_in_the_file(tmp_path, capsys):
    path = tmp_path / "figures" / "layers.json"
    assert main(["complexity", *SMALL, "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    growth, table = out.split("\n\n")
    assert [row[0] for row in rows(growth)] == list(KINDS)
    written = json.loads(path.read_text())
    assert written["device"] == "cpu"
    assert written["repetitions"] == 1
    assert written["empty_program_seconds"] > 0
    shown = rows(table)
    assert len(shown) == len(written["layers"]) == 5 * 2
    for row, found in zip(shown, written["layers"], strict=True):
        extent = found["k"] or found["r"]
        layer = Layer(found["layer"], found["n"], found["d"], extent)
        assert row[:3] == [layer.name, str(layer.n), str(layer.d)]
        assert all(re.fullmatch(FLOPS, cell) for cell in row[3:5])
        assert row[5].endswith(" %")
        assert all(re.fullmatch(SECONDS, cell) for cell in row[6:8])
        assert row[8:] == [str(layer.sequential_depth), str(layer.path_length)]
        assert found["multiply_adds"] == layer.multiply_adds
        assert found["counted_flops"] == pytest.approx(layer.flops, rel=0.01)
        assert found["measured_path_length"] == found["path_length"] == layer.path_length
        assert found["measured_sequential_depth"] == found["sequential_depth"]
        assert min(found["forward_seconds"], found["backward_seconds"]) > 0
    assert f"wrote {path}\n" in err
    assert "FLOPs of one step, times n" in err


@pytest.mark.slow
def test_paths_of_the_lecture(capsys):
    flags = [
        "--layers",
        "restricted",
        "dilated",
        "--windows",
        "3",
        "9",
        "17",
        "--kernels",
        "2",
        "4",
    ]
    sizes = ["--lengths", "64", "--sizes", "4", "--repetitions", "0"]
    assert main(["complexity", *flags, *sizes]) == 0
    found = {row[0]: row[-1] for row in rows(capsys.readouterr().out.split("\n\n")[1])}
    assert found == {
        "restricted self-attention, r = 3": "63",
        "restricted self-attention, r = 9": "16",
        "restricted self-attention, r = 17": "8",
        "dilated convolution, k = 2": "6",
        "dilated convolution, k = 4": "3",
    }  # row H14


def test_without_repetitions_no_time_is_taken(tmp_path, capsys):
    path = tmp_path / "layers.json"
    assert main(["complexity", *SMALL[:-1], "0", "--layers", "recurrent", "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "forward" not in out
    assert "median" not in err
    [found, _] = json.loads(path.read_text())["layers"]
    assert found["forward_seconds"] is found["backward_seconds"] is None


def test_paths_beyond_the_longest_are_those_of_the_formula_and_say_so(capsys, monkeypatch):
    monkeypatch.setattr("transformer_jax.laboratory.complexity.measure.LONGEST_PATH", 16)
    assert main(["complexity", *SMALL[:-1], "0", "--layers", "recurrent"]) == 0
    out, err = capsys.readouterr()
    assert [row[-1] for row in rows(out.split("\n\n")[1])] == ["15", "(31)"]
    assert "in parentheses are from the formula: Jacobians are computed up to n = 16" in err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--lengths", "0"], "--lengths is (0,): 0 in it: at least 1"),
        (["--lengths", "64", "-3"], "-3 in it: at least 1"),
        (["--lengths", "1000000"], "1000000 in it: at most 16384"),
        (["--sizes", "0"], "--sizes is (0,): 0 in it: at least 1"),
        (["--kernels", "1"], "--kernels is (1,): 1 in it: at least 2"),
        (["--windows", "8"], "--windows has 8: an odd number is needed, centered on the position: "
         "7 or 9"),
        (["--windows", "1"], "--windows is (1,): 1 in it: at least 3"),
        (["--repetitions", "-1"], "--repetitions is -1: at least 0"),
        (["--layers", "attention"], "did you mean self-attention?"),
        (["--output", "x.bmp"], "--output x.bmp: the name ends in .png, .svg, .html"),
        (["--json", "x.txt"], "--json x.txt: the name ends in .json"),
        (["--json", "/proc/x.json"], "--json /proc/x.json: cannot be written"),
        (["--sizes", "8192", "--kernels", "1024"], "most of it convolution, k = 1024 with n = "),
    ],
)  # fmt: skip
def test_sizes_that_cannot_be_are_one_line_before_any_work(capsys, flags, says):
    began = time.monotonic()
    assert main(["complexity", *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert time.monotonic() - began < 10


def test_each_size_is_measured_once_and_lengths_ascend():
    command = Complexity(lengths=(8, 4, 8), sizes=(2, 2), windows=(5, 3, 5), kernels=(2, 2))
    found = [(layer.name, layer.n) for layer in command.checked()]
    assert len(found) == len(set(found)) == 6 * 2
    assert found[:4] == [
        ("self-attention", 4),
        ("self-attention", 8),
        ("restricted self-attention, r = 3", 4),
        ("restricted self-attention, r = 3", 8),
    ]


@pytest.mark.slow
def test_the_picture_is_written(tmp_path, capsys):
    flags = [*SMALL, "--layers", "self-attention", "recurrent"]
    assert main(["complexity", *flags, "--output", str(tmp_path / "layers.svg")]) == 0
    text = (tmp_path / "layers.svg").read_text()
    assert "FLOPs of the forward pass" in text or text.count("<path") > 50
    assert f"wrote {tmp_path / 'layers.svg'}\n" in capsys.readouterr().err
