"""Tables of texts without labels: columns, keys, and what is refused."""

import json

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
    assert [*table.cells()] == [["7", 'one, "two"\n', "x"], ["8", " three ", ""]]


def test_objects_may_have_different_keys_and_values(tmp_path):
    rows = [{"text": "one", "n": 1.5}, {"tags": ["é"], "text": "two", "n": None}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read_text_table(path, LabeledOptions(), False)
    assert table.columns == ("text", "n", "tags")
    assert [*table.cells()] == [["one", "1.5", ""], ["two", "", '["é"]']]


def test_two_texts_by_name_number_and_usual_name(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("id\tpremise\thypothesis\n1\tone\ttwo\n")
    for read in (LabeledOptions(), LabeledOptions(text="2", text_pair="hypothesis")):
        assert read_text_table(path, read, True).texts == [["one", "two"]]


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.txt", "one\n", {}, r"the name ends in none of .*: rename the file; .*< .*a.txt"),
        ("a.csv", "a,b\n1,2\n3,4\n", {}, r"a.csv:2: no field 'text', only 'a', 'b'.*read.text"),
        ("a.csv", "a,b\n1,2\n", {"text": "3"}, r"a.csv:2: no field '3'"),
        ("a.csv", "text,text\n1,2\n", {}, r"a.csv:1: the column 'text' is there twice"),
        ("a.csv", "review,sentence2\n1,2\n", {}, r"has a second text, 'sentence2'"),
        ("a.csv", "text\n", {}, r"a.csv: no texts: it is empty"),
    ],
)  # fmt: skip
def test_other_tables_are_refused_in_one_error(tmp_path, name, text, options, message):
    (tmp_path / name).write_text(text)
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        read_text_table(tmp_path / name, LabeledOptions(**options), False)
    assert "\n" not in str(caught.value)
