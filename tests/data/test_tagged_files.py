"""Words with tags in columns, as CoNLL-2003 has them (row B36)."""

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.labeled_files import LabeledOptions
from transformer_jax.data.tagged_files import read_tagged

TEXT = "-DOCSTART- -X- O O\n\nEU NNP B-ORG\nrejects\tVBZ\tO\n\n \nPeter NNP B-PER\nB. NNP I-PER\n"


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [["B-ORG", "O"], ["B-PER", "I-PER"]]),
        ({"tag": "2"}, [["NNP", "VBZ"], ["NNP", "NNP"]]),
    ],
)
def test_the_tag_is_in_the_last_column_or_in_the_one_that_is_named(tmp_path, options, tags):
    (tmp_path / "a.conll").write_text(TEXT)
    data = read_tagged(str(tmp_path / "a.conll"), LabeledOptions(**options))
    assert data.words == [["EU", "rejects"], ["Peter", "B."]]
    assert data.tags == tags
    assert data.lines == [3, 7]


@pytest.mark.parametrize(
    ("text", "tag", "kind", "message"),
    [
        ("a X\nb\n", "upos", DataError, r"a.conll:2: 1 column, and the tag is in column 2"),
        ("a X\n", "3", DataError, r"a.conll:1: 2 columns, and the tag is in column 3: correct"),
        ("a X\n", "ner", ConfigError, r"data.read.tag ner: columns have numbers, .*from 2"),
        ("a X\n", "1", ConfigError, r"data.read.tag 1: columns have numbers, and words are in"),
        ("\n-DOCSTART- O\n", "upos", DataError, r"a.conll: no sentences"),
    ],
)
def test_bad_columns_are_named(tmp_path, text, tag, kind, message):
    (tmp_path / "a.conll").write_text(text)
    with pytest.raises(kind, match=message):
        read_tagged(str(tmp_path / "a.conll"), LabeledOptions(tag=tag))
