"""``describe``: the architecture and what it costs (rows H12, B13, U15)."""

import re
from pathlib import Path

import pytest

from transformer_jax.cli.describe import report
from transformer_jax.cli.main import main
from transformer_jax.core.text_tables import aligned, short
from transformer_jax.models.costs.accounting import components, model_cost
from transformer_jax.models.presets import PRESETS

SNAPSHOT = Path(__file__).parent / "snapshots" / "vaswani_base.txt"


def test_vaswani_base(capsys):
    assert main(["describe", "--preset", "vaswani_base"]) == 0
    assert capsys.readouterr().out == SNAPSHOT.read_text(encoding="utf-8")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_part_has_its_row_and_the_rows_add_up(preset):
    lines = report(PRESETS[preset], name=preset).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("part "))
    rows = lines[start + 1 : lines.index("", start)]
    assert [re.split(r"  +", row)[0] for row in rows] == [
        p.path for p in components(PRESETS[preset])
    ]
    end = lines[start].index("parameters") + len("parameters")
    counts = [row[:end].split("  ")[-1].strip().replace(",", "") for row in rows]
    total = model_cost(PRESETS[preset]).parameters
    assert sum(int(count) for count in counts if count) == total
    assert f"{total:,} parameters" in lines[0]


SIZES = (
    ("vaswani_base", "63.05 M"),
    ("vaswani_big", "214.17 M"),
    ("bert_base", "109.48 M"),
    ("bert_large", "335.14 M"),
)


def test_published_sizes(capsys):
    for preset, size in SIZES:
        main(["describe", "--preset", preset])
        assert f"({size})" in capsys.readouterr().out.splitlines()[0]


def test_lengths_and_batch_change_costs_and_not_parameters(capsys):
    seen = []
    for flags in ([], ["--batch-size", "2"], ["--source-length", "64"], ["--target-length", "64"]):
        assert main(["describe", "--preset", "t5_small", *flags]) == 0
        seen.append(capsys.readouterr().out)
    assert len(set(seen)) == 4
    assert len({text.splitlines()[0] for text in seen}) == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "either a run directory or --preset"),
        (["run", "--preset", "gpt2_small"], "either a run directory or"),
        (["--preset", "vaswani_bass"], "did you mean vaswani_base?"),
        (["--preset", "vit_tiny", "--batch-size", "0"], "--batch-size is 0: at least 1"),
        (["--preset", "vit_tiny", "--source-length", "0"], "--source-length is 0: at least 1"),
        (
            ["--preset", "gpt2_small", "--pictures", "/proc/x"],
            "--pictures /proc/x: cannot be written",
        ),
    ],
)
def test_wrong_flags_exit_2(capsys, flags, says):
    assert main(["describe", *flags]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.slow
def test_pictures(tmp_path, capsys):
    assert main(["describe", "--preset", "vaswani_base", "--pictures", str(tmp_path / "p")]) == 0
    assert capsys.readouterr().err == f"wrote {tmp_path / 'p'}\n"
    names = sorted(path.name for path in (tmp_path / "p").iterdir())
    assert names == ["attention.png", "masks.png", "padding.png", "positions.png"]


@pytest.mark.parametrize("number", [1, 12, 999, 1000, 9994, 9996, 99_950, 12_345_678, 10**15])
def test_short_numbers_are_right_to_half_a_percent(number):
    digits, _, prefix = short(number).partition(" ")
    value = float(digits) * 1000 ** " kMGTP".index(prefix or " ")
    assert value == pytest.approx(number, rel=0.005)
    assert len(digits.replace(".", "")) <= 3


def test_columns_stand_in_line():
    text = aligned([("a", "", "b", "n"), ("xx", "6 ×", "2×3", "6"), ("y", "", "", "1,234")], left=3)
    assert {len(line) for line in text.splitlines()} == {len("xx  6 ×  2×3  1,234")}


@pytest.mark.quick(
    "vaswani_base-v5e:2x4-128-training: cross-attention: splash",
    "gpt2_small-h200:1-64-training: decoder: xla: attention dropout needs the",
    "bert_base-h200:1-64-evaluation: encoder: cudnn",
)
@pytest.mark.parametrize(
    ("preset", "target", "length", "line"),
    [
        ("vaswani_base", "v5e:2x4", 128, "training: cross-attention: splash"),
        ("vaswani_base", "v5e:2x4", 64, "evaluation: decoder: xla: 64 queries and 64 keys are"),
        ("gpt2_small", "h200:1", 64, "training: decoder: xla: attention dropout needs the"),
        ("bert_base", "h200:1", 64, "evaluation: encoder: cudnn"),
        ("vit_base", "v5e:1x1", 64, "evaluation: encoder: xla: 197 queries and 197 keys are"),
    ],
)
def test_the_kernels_of_a_target_are_named(preset, target, length, line, run_command):
    sizes = ("--batch-size", 8, "--source-length", length, "--target-length", length)
    code, out, err = run_command("describe", "--preset", preset, "--plan", target, *sizes)
    assert (code, err) == (0, "")
    assert [found for found in out if found.startswith(line)]


def test_an_unknown_target_is_refused(run_command):
    code, _, err = run_command("describe", "--preset", "vaswani_base", "--plan", "h900")
    assert (code, err.count("\n")) == (2, 1)
    assert "there is no target 'h900'" in err
