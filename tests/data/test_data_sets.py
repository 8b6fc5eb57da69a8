"""Data sets of Hugging Face: equal rows in all formats, splits of folders, names of classes."""

import dataclasses
import json
import sys

import numpy as np
import pytest

from tests.doors.readers import write_parquet, write_saved
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data import data_sets
from transformer_jax.data.data_sets import table_files
from transformer_jax.data.documents import TextData, open_texts, read_texts
from transformer_jax.data.labeled import LabeledData, LabeledOptions, open_labeled, read_labeled
from transformer_jax.data.preferences import PreferenceData, open_preferences
from transformer_jax.data.sources import Files, PairData, load_splits, read_pairs
from transformer_jax.data.summaries import SummaryData, load_summaries

FEATURES = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}, "sentence": {}}
ROWS = [{"sentence": f"text, {i}", "label": ("neg", "pos")[i % 2]} for i in range(8)]
NUMBERED = [row | {"label": i % 2} for i, row in enumerate(ROWS)]


class Named(list):
    """Rows with ``features``, as a ``datasets.Dataset`` has them."""

    @property
    def features(self):
        return {"label": type("ClassLabel", (), {"names": ["neg", "pos"]})()}


def with_names(path, rows, features):
    """Writes Parquet as the library datasets does, with a description of the columns."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(rows)
    info = json.dumps({"info": {"features": features}})
    parquet.write_table(table.replace_schema_metadata({"huggingface": info}), path)
    return str(path)


def forms(folder):
    """The rows in all forms."""
    objects = "".join(f"{json.dumps(row)}\n" for row in ROWS)
    cells = "".join(f'"{row["sentence"]}",{row["label"]}\n' for row in ROWS)
    (folder / "a.jsonl").write_text(objects)
    (folder / "a.csv").write_text("sentence,label\n" + cells)
    write_saved(folder / "saved", NUMBERED, FEATURES)
    yield from (str(folder / name) for name in ("a.jsonl", "a.csv", "saved"))
    yield with_names(folder / "a.parquet", NUMBERED, FEATURES)
    yield from (ROWS, iter(ROWS), Named(NUMBERED))


def test_rows_are_equal_in_all_forms(tmp_path):
    for source in forms(tmp_path):
        found = read_labeled(source, "classify")
        assert found.texts == [row["sentence"] for row in ROWS]
        assert found.labels == [row["label"] for row in ROWS]


def clone(folder, rows=NUMBERED, config="", test=NUMBERED[:2]):
    """Writes a clone of a repository of the hub, with three splits."""
    data = folder / "data" / config
    data.mkdir(parents=True)
    parts = {"train-00000-of-00002": rows[:4], "train-00001-of-00002": rows[4:],
             "validation-00000-of-00001": rows[:3], "test-00000-of-00001": test}  # fmt: skip
    for name, part in parts.items():
        with_names(data / f"{name}.parquet", part, FEATURES)
    (folder / "README.md").write_text("# A data set\n")
    return str(folder)


def test_the_splits_of_a_folder_are_read_by_their_names(tmp_path, capfd):
    path = clone(tmp_path / "hub", test=[row | {"label": -1} for row in NUMBERED])
    splits = open_labeled(LabeledData(path), "classify")
    assert (len(splits.train), len(splits.valid), splits.tests) == (8, 3, {})
    said = capfd.readouterr().err
    assert f"{path}: the split train is read" in said
    assert f"{path}/test: the labels are withheld: the split is left out" in said
    assert read_labeled(f"{path}/validation", "classify").lines == [1, 2, 3]
    own = dataclasses.replace(LabeledData(path), valid=f"{path}/train")
    assert len(open_labeled(own, "classify").valid) == 8
    scored = clone(tmp_path / "scored")
    assert len(read_labeled(scored, "classify", where="--data")) == 2
    with pytest.raises(DataError, match=r"no such file"):
        read_labeled(f"{path}/dev", "classify", LabeledOptions(format="tsv"))


def test_every_task_takes_the_splits_of_a_folder(tmp_path):
    rows = [
        {"source": f"one {i}", "target": f"un {i}", "prompt": f"{i}?", "chosen": "a",
         "rejected": "b", "text": f"text {i}"}
        for i in range(6)
    ]  # fmt: skip
    path = clone(tmp_path / "hub", rows, test=rows[:2])
    parts = [
        load_splits(PairData(pairs=path)),
        load_summaries(SummaryData(path)),
        open_texts(TextData(jsonl=path)),
        open_preferences(PreferenceData(path), "pairs"),
    ]
    counts = [[len(list(part)) if part else 0 for part in (one.train, one.valid)]
              for one in (parts[2],)]  # fmt: skip
    counts += [[len(one.train), len(one.valid)] for one in (parts[0], parts[1], parts[3])]
    assert counts == [[6, 3]] * 4
    assert all({*one.tests} == {"test"} for one in parts[:3])
    assert len(read_pairs(Files(pairs=path))) == 6
    assert len(list(read_texts(f"{path}/validation"))) == 3


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["en/train.jsonl", "de/train.jsonl"], r"2 data sets \(de, en\): name the folder"),
        (["train-a.csv", "train-b.csv"], r"2 files of the split train \(train-a.csv, train-b.c"),
        (["train.jsonl", "train.parquet"], r"2 files of the split train .*: name one"),
        (["dev-00000-of-00001.jsonl", "odd-00000-of-00001.jsonl"], r"no split for train, only"),
    ],
)
def test_no_split_is_guessed_between_two(tmp_path, files, said):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(ROWS[0]))
    with pytest.raises(DataError, match=said):
        read_labeled(str(tmp_path), "classify")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00001.parquet", "train"),
        ("plain_text/validation_matched-00000-of-00001.parquet", "validation_matched"),
        ("dev.csv", "dev"),
        ("test/reviews.jsonl", "test"),
        ("en.train.tsv", "train"),
        ("reviews.jsonl", "train"),
    ],
)
def test_a_file_tells_its_split_as_on_the_hub(tmp_path, name, split):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("x")
    expected = [str(tmp_path / name)]
    assert table_files(tmp_path / split) == expected or split == "reviews"
    assert table_files(tmp_path, "data.train") == expected  # the only split


def test_no_file_of_a_large_folder_is_left_out_in_silence(tmp_path, monkeypatch):
    path = clone(tmp_path / "hub")  # has five files
    monkeypatch.setattr(data_sets, "_MOST_FILES", 4)
    with pytest.raises(DataError, match="more than 4 files: name the folder or the file of one"):
        read_labeled(path, "classify")


def test_a_folder_of_a_data_set_is_no_folder_of_texts(tmp_path):
    path = clone(tmp_path / "hub")
    with pytest.raises(DataError, match=r"the folder of a data set: give it as data.jsonl"):
        open_texts(TextData(text=f"{path}/data"))


def test_single_precision_is_read_as_it_is_written(tmp_path):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"text": ["a"], "label": pyarrow.array([np.float32(3.8)])})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read_labeled(str(tmp_path / "a.parquet"), "regress").labels == ["3.8"]


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"PAR1", "cannot be read"), (b"", "cannot be read"), (b"\0" * 999, "cannot be read")],
)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_damaged_tables_are_refused_in_a_line(tmp_path, content, said, ending):
    (tmp_path / f"a.{ending}").write_bytes(content)
    with pytest.raises(DataError, match=f"a.{ending}: {said}") as refused:
        read_labeled(str(tmp_path / f"a.{ending}"), "classify")
    assert "\n" not in str(refused.value)


def test_a_text_that_is_no_utf_8_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    raw = pyarrow.array([b"caf\xe9"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": raw, "label": ["b"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet: cannot be read: 'utf-8' codec"):
        read_labeled(str(tmp_path / "a.parquet"), "classify")


def test_a_table_that_unpacks_out_of_proportion_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"text": ["a" * 17_000_000], "label": ["b"]})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(DataError, match="unpacks to more than 16 MiB"):
        read_labeled(str(tmp_path / "a.parquet"), "classify")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", NUMBERED)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"need pyarrow: `pip install 'transformer-jax\[parq"):
        read_labeled(str(path), "classify")


def test_objects_in_python_are_checked_as_lines_are():
    assert read_pairs([{"source": "one", "target": "un"}]).targets == ["un"]
    assert read_labeled([{"tokens": ["a"], "ner_tags": ["O"]}], "tag").words == [["a"]]
    with pytest.raises(DataError, match=r"the rows:1: an object is needed, found text: of several"):
        read_labeled({"train": ROWS}, "classify")
    with pytest.raises(DataError, match="the rows:2: the text is empty"):
        read_labeled([ROWS[0], {"sentence": "", "label": "pos"}], "classify")
