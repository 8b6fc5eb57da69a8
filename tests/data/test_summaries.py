"""Texts and summaries from JSONL: row T16."""

import json

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.summaries import (
    SummaryData,
    SummaryOptions,
    load_summaries,
    read_summaries,
)


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_text_is_one_or_a_list_and_so_is_a_summary(tmp_path):
    rows = [
        {"source": "It rains. \nTake a  coat.", "target": "Rain"},
        {"source": ["It rains, i.e. wet. Go\n", "Take a coat."], "target": ["Rain", "A\tcoat"]},
        {"source": [], "target": "x"},
        {"source": "a", "target": [" "]},
    ]
    found = read_summaries(written(tmp_path / "a.jsonl", rows))
    assert found.parts == [
        ["It rains.", "Take a coat."],
        ["It rains, i.e. wet. Go", "Take a coat."],
    ]
    assert found.references == [["Rain"], ["Rain", "A coat"]]
    assert found.empty == 2
    assert found.sources[0] == "It rains. Take a coat."
    assert found.pairs().targets == ["Rain", "Rain"]
    assert found.pairs(every=True).targets == ["Rain", "Rain", "A coat"]
    assert found.pairs().counts == {"empty": 2}
    lower = read_summaries(
        written(tmp_path / "b.jsonl", [{"text": "It Rains", "tldr": "RAIN"}]),
        SummaryOptions(fields=("text", "tldr"), lowercase=True),
    )
    assert (lower.sources, lower.references) == (["it rains"], [["rain"]])


def test_every_text_of_what_is_scored_stays(tmp_path):
    rows = [{"source": "a", "target": "b"}, {"source": "", "target": "x"},
            {"source": "c", "target": [" ", ""]}]  # fmt: skip
    path = written(tmp_path / "a.jsonl", rows)
    read = SummaryOptions(source_prefix="sum: ")
    splits = load_summaries(SummaryData(train=path, valid=path, test=path, read=read))
    assert (len(splits.train), splits.train.empty) == (1, 2)
    for part in (splits.valid, splits.tests["test"]):
        assert part.sources == ["sum: a", "", "sum: c"]
        assert part.references == [["b"], ["x"], []]
        assert part.with_references == [0, 1]
        assert part.pairs().targets == part.pairs(every=True).targets == ["b", "x", ""]
        assert part.pairs().without_empty().targets == ["b"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"source": "a", "target": "b"}', '{"source": "a"}'],
         "a.jsonl:2: no field 'target', only 'source': name the two with data.read.fields"),
        (['{"source": 3, "target": "b"}'], "a.jsonl:1: field 'source' is a number, and text or"),
        (['{"source": ["a", 1], "target": "b"}'], "a.jsonl:1: field 'source' holds a number, and"),
        (['{"source": "a\\u0000", "target": "b"}'], "a.jsonl:1: field 'source' holds NUL"),
        (["[]"], "a.jsonl:1: a JSON object is needed, found a list"),
        (["nothing"], "a.jsonl:1: not JSON"),
        (['{"source": "", "target": "b"}'], "no summaries: all 1 of its lines have an empty side"),
        ([""], "no summaries: it is empty"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_named_by_its_line(tmp_path, lines, said):
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError) as caught:
        read_summaries(str(tmp_path / "a.jsonl"))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_of_training_is_held_out_whole_with_its_references(tmp_path):
    rows = [{"source": f"Text {i}. More.", "target": [f"t{i}", f"u{i}"]} for i in range(60)]
    path = written(tmp_path / "a.jsonl", [*rows, {"source": "", "target": "x"}])
    splits = load_summaries(SummaryData(train=path, read=SummaryOptions(validation_size=5)))
    assert (len(splits.train), len(splits.valid), splits.train.empty) == (55, 5, 1)
    assert splits.tests == {}
    assert not set(splits.train.sources) & set(splits.valid.sources)
    for part in (splits.train, splits.valid):
        for source, references in zip(part.sources, part.references, strict=True):
            number = source.split()[1].rstrip(".")
            assert references == [f"t{number}", f"u{number}"]
    given = load_summaries(SummaryData(train=path, valid=path, test=path))
    assert len(given.train) == 60  # what is scored keeps the text without a summary
    assert len(given.valid) == len(given.tests["test"]) == 61
    none = load_summaries(SummaryData(train=path, read=SummaryOptions(validation_size=0)))
    assert none.valid is None
    with pytest.raises(ConfigError, match=r"no training data: give data\.train"):
        load_summaries(SummaryData())
