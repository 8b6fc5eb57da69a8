"""Texts that are compared: what a file has, and what is held out."""

import json

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data.text_similarities import (
    SimilarityData,
    SimilarityOptions,
    has_scores,
    open_similarities,
    read_rankings,
)


def test_whether_a_file_has_scores_is_seen_from_its_columns_or_keys(tmp_path):
    for name, text, scored in (
        ("a.csv", "sentence1,sentence2,score\na,b,1\n", True),
        ("b.csv", "query,answer\na,b\n", False),
        ("c.tsv", "text\tsecond\tlabel\na\tb\t1\n", True),
        ("d.jsonl", '{"anchor": "a", "positive": "b", "negative": "c"}\n', False),
        ("e.jsonl", '{"text": "a", "second": "b", "label": 1}\n', True),
    ):
        (tmp_path / name).write_text(text)
        assert has_scores(SimilarityData(str(tmp_path / name))) == scored, name
    named = SimilarityOptions(label="similar")
    (tmp_path / "f.csv").write_text("text,second,similar\na,b,1\n")
    assert has_scores(SimilarityData(str(tmp_path / "f.csv"), read=named))


def test_positives_are_examples_and_negatives_are_those_of_their_names(tmp_path, capfd):
    path = tmp_path / "a.jsonl"
    rows = [
        {"query": "a", "pos": ["b", "c"], "neg": ["d", "e"]},
        {"query": "f", "pos": "g", "neg": []},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = read_rankings(str(path), SimilarityOptions())
    assert list(zip(found.texts, found.text_pairs or [], strict=True)) == [
        ("a", "b"), ("a", "c"), ("f", "g"),
    ]  # fmt: skip
    assert found.negatives == [["d", "e"], ["d", "e"], []]
    assert found.lines == [1, 1, 2]
    assert "hard negatives are 'neg'" in capfd.readouterr().err
    table = tmp_path / "a.tsv"
    table.write_text("anchor\tnegative_1\tpositive\tnegative_2\na\tb\tc\t\n")
    assert read_rankings(str(table), SimilarityOptions()).negatives == [["b"]]
    chosen = SimilarityOptions("refuse", text="1", text_pair="3", negatives=("2",), header=True)
    assert read_rankings(str(table), chosen).negatives == [["b"]]
    table.write_text("anchor\tpositive\tnegative\na\tb\ta\n")
    with pytest.raises(DataError, match=r"a.tsv:2: 'a' is a negative and the anchor"):
        read_rankings(str(table), SimilarityOptions())


def test_held_out_pairs_share_no_text_with_training(tmp_path):
    path = tmp_path / "a.csv"
    rows = [f"q{i // 2},a{i}" for i in range(100)] + [f"q{i},a{i}" for i in range(0, 50, 7)]
    path.write_text("\n".join(["query,answer", *rows]))
    splits = open_similarities(SimilarityData(str(path)), "ranking")
    assert splits.valid is not None
    texts = [{*part.texts, *part.text_pairs} for part in (splits.train, splits.valid)]
    assert texts[1]
    assert not texts[0] & texts[1]
    assert len(splits.train) + len(splits.valid) == len(rows)
