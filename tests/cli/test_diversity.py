"""``diversity``: greedy, beam search and samples of one model, compared (rows B32 to B34)."""

import json

import pytest

WAYS = ["greedy", "beam search, 3", "temperature 0.7", "temperature 1", "top-k 3", "top-p 0.9"]
FLAGS = ["--number", 3, "--max-new-tokens", 8, "--top-k", 3]


def compared(run_command, run, folder, *flags):
    (folder / "in.txt").write_text("aba\nba\n")
    path = folder / "out.json"
    given = [run, folder / "in.txt", *FLAGS, "--json", path, *flags]
    code, lines, err = run_command("diversity", *given)
    assert code == 0, err
    return json.loads(path.read_text()), lines, err


@pytest.mark.parametrize("kind", ["decoder_run", "trained_run"])
@pytest.mark.slow
def test_every_way_writes_its_texts_and_is_measured(kind, run_command, tmp_path, request):
    run = request.getfixturevalue(kind)
    found, lines, err = compared(run_command, run, tmp_path)
    assert found["lines"] == ["aba", "ba"]
    assert list(found["ways"]) == WAYS
    for name, way in found["ways"].items():
        assert [len(texts) for texts in way["texts"]] == [1 if name == "greedy" else 3] * 2
        assert (way["self_bleu"] is None) == (name == "greedy")
        assert any(line.startswith(name) for line in lines)
    # No beam holds a text twice; samples are drawn each for itself, the same again with a seed.
    for texts in found["ways"]["beam search, 3"]["texts"]:
        assert len(set(texts)) == 3 or kind == "trained_run"
    assert len({*found["ways"]["temperature 1"]["texts"][0]}) > 1
    again, _, _ = compared(run_command, run, tmp_path)
    assert again == found
    other, _, _ = compared(run_command, run, tmp_path, "--seed", 7)
    for name in WAYS:
        same = other["ways"][name]["texts"] == found["ways"][name]["texts"]
        assert same == (name in WAYS[:2]), name
    assert "2 lines; words split by sacreBLEU's 13a; self-BLEU compares the 3 texts" in err


@pytest.mark.slow
def test_the_picture_is_written_and_repeatable(decoder_run, run_command, tmp_path):
    for name in "ab":
        path = tmp_path / f"{name}.png"
        _, lines, err = compared(run_command, decoder_run, tmp_path, "--output", path, "--show", 1)
        assert f"wrote {tmp_path / 'out.json'}" in err
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert sum(line.startswith("1\tbeam search, 3\t") for line in lines) == 3


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--number", 1], 2, "--number is 1: at least 2"),
        (["--top-p", 1.5], 2, "--top-p is 1.5: above 0 and at most 1"),
        (["--temperatures", 0], 2, "--temperatures is (0.0,): 0.0 in it: above 0"),
        (["--output", "x.bmp"], 2, "the name ends in .png, .svg, .html"),
        (["--json", "x"], 2, "the name ends in .json"),
    ],
)
def test_a_mistake_is_one_line(decoder_run, run_command, tmp_path, flags, code, said):
    (tmp_path / "in.txt").write_text("a\n")
    found, _, err = run_command("diversity", decoder_run, tmp_path / "in.txt", *flags)
    assert (found, err.count("\n")) == (code, 1)
    assert said in err


def test_an_empty_file_is_refused(decoder_run, run_command, tmp_path):
    (tmp_path / "in.txt").write_text("\n")
    code, _, err = run_command("diversity", decoder_run, tmp_path / "in.txt")
    assert (code, err.count("\n")) == (3, 1)
    assert "no lines: it is empty" in err
