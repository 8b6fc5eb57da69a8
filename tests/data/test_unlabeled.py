"""Tables of texts without labels: columns, keys, and what is refused."""

import datetime
import decimal
import json
import math

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.labeled_files import LabeledOptions
from transformer_jax.data.unlabeled import read_text_table


def test_every_column_is_kept_and_the_text_found(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,review,label\n7,"one, ""two""\n",x\n\n8, three ,\n')
    table = read_text_table(path, LabeledOptions(), False)
    assert table.texts == [['one, "two"\n'], [" three "]]
    assert table.places == [f"{path}:2", f"{path}:5"]
    assert table.columns == ("id", "review", "label")
    assert table.rows == [["7", 'one, "two"\n', "x"], ["8", " three ", ""]]


def test_objects_may_have_different_keys_and_values(tmp_path):
    rows = [{"text": "one", "n": 1.5}, {"tags": ["é"], "text": "two", "n": None, "1": "x"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read_text_table(path, LabeledOptions(), False)
    assert table.columns == ("text", "n", "tags", "1")
    assert table.rows == [["one", "1.5", "", ""], ["two", "", '["é"]', "x"]]
    with pytest.raises(DataError, match=r"a.jsonl:1: no field '1'"):
        read_text_table(path, LabeledOptions(text="1"), False)


def test_rows_of_objects_that_have_no_text_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"n": 1}, {"review": "one"}, {"review": "two", "n": "\ud800"}, {"review": "three"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read_text_table(path, LabeledOptions(bad_rows="skip"), False)
    assert table.rows == [["one"], ["three"]]
    path.write_text('{"review": "one"}\n{"sentence": "two"}\n')  # not chosen anew
    with pytest.raises(DataError, match=r"a.jsonl:2: no field 'review'"):
        read_text_table(path, LabeledOptions(), False)


def test_values_of_other_kinds_are_written_as_they_are_read(tmp_path):
    day, cost = datetime.date(2020, 1, 2), decimal.Decimal("1.50")
    rows = [{"text": "one", "day": day, "cost": cost, "share": math.nan, "sure": True}]
    assert read_text_table(rows, LabeledOptions(), False).rows == [
        ["one", "2020-01-02", "1.50", "", "true"]
    ]


def test_without_names_the_first_row_is_one(tmp_path, capsys):
    path = tmp_path / "a.tsv"
    path.write_text("1\tone\tx\n2\ttwo\n")
    table = read_text_table(path, LabeledOptions(text="2"), False)
    assert table.columns == ("1", "2", "3")
    assert table.rows == [["1", "one", "x"], ["2", "two", ""]]
    assert "say so by --data.read.header" in capsys.readouterr().err
    path.write_text("n\treview\n2\ttwo\n")
    table = read_text_table(path, LabeledOptions(text="2", header=True), False)
    assert (table.columns, table.rows) == (("n", "review"), [["2", "two"]])


def test_columns_with_one_name_are_kept(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("review,id,id,,\none,1,2,3,4\n")
    table = read_text_table(path, LabeledOptions(), False)
    assert table.columns == ("review", "id", "id", "", "")
    assert table.rows == [["one", "1", "2", "3", "4"]]


def test_two_texts_by_name_number_and_usual_name(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("id\tpremise\thypothesis\n1\tone\ttwo\n")
    for read in (LabeledOptions(), LabeledOptions(text="2", text_pair="hypothesis")):
        assert read_text_table(path, read, True).texts == [["one", "two"]]


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.txt", "one\n", {}, r"the name ends in none of .*; a text in each line .*< .*a.txt"),
        ("a.json", "[]", {}, r"a list of objects is stored as .jsonl"),
        ("", "", {}, "--data : the name ends in none of"),
        ("a.csv", "a,b\n1,2\n3,4\n", {}, r"column 'text' is not in the header, which has 'a', 'b'"),
        ("a.csv", "a,b\n1,2\n", {"text": "3", "header": True}, r"'3' is number 3"),
        ("a.csv", "text,text\n1,2\n", {}, r"a.csv:1: column 'text' is twice in the header"),
        ("a.csv", "review,sentence2\n1,2\n", {}, r"has a second text, 'sentence2'"),
        ("a.csv", "text\n", {}, r"a.csv: no texts: it is empty"),
    ],
)  # fmt: skip
def test_other_tables_are_refused_in_one_error(tmp_path, name, text, options, message):
    path = name and tmp_path / name
    if path:
        path.write_text(text)
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        read_text_table(path, LabeledOptions(**options), False)
    assert "\n" not in str(caught.value)
