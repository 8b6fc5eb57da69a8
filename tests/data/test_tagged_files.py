"""Words with tags in columns, as CoNLL-2003 has them (row B36)."""

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.labeled_files import LabeledOptions, read_tagged

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
    assert data.lines == [[3, 4], [7, 8]]


@pytest.mark.parametrize(
    ("text", "tag", "kind", "message"),
    [
        ("a X\nb\n", "upos", DataError, r"a.conll:2: 1 column, and the tag is in column 2"),
        ("a X\n", "3", DataError, r"a.conll:1: 2 columns, and the tag is in column 3: correct"),
        ("a X\n", "ner", ConfigError, r"data.read.tag ner: columns have numbers, .*from 2"),
        ("a X\n", "1", ConfigError, r"data.read.tag 1: columns have numbers, and words are in"),
        (
            "a X\nNew York X\n",
            "upos",
            DataError,
            r"a.conll:2: 3 columns separated by blanks, but "
            r"line 1 has 2: .*tabs",
        ),
        ("\na\tX\nb X\n", "upos", DataError, r"a.conll:3: 1 column, and the tag is in column 2"),
        (
            "a X\n# SYM\n",
            "upos",
            DataError,
            r"a.conll:2: a comment or the word '#' with the tag "
            r"'SYM', which occurs nowhere else: move",
        ),
        ("a\tX\n\u200b\tX\n", "upos", DataError, r"a.conll:2: a word or its tag is blank"),
        ("\n-DOCSTART- O\n", "upos", DataError, r"a.conll: no sentences"),
    ],
)
def test_bad_columns_are_named(tmp_path, text, tag, kind, message):
    (tmp_path / "a.conll").write_text(text)
    with pytest.raises(kind, match=message):
        read_tagged(str(tmp_path / "a.conll"), LabeledOptions(tag=tag))


NBSP = "10\u00a0000"


@pytest.mark.parametrize(
    ("text", "words", "tags"),
    [
        # MultiCoNER: comments with a tab, words with as many columns between blanks.
        ("# id 12\tdomain=en\na _ _ O\n# _ _ O\n\n# id 13\tdomain=en\nb _ _ B-PER\n",
         [["a", "#"], ["b"]], [["O", "O"], ["B-PER"]]),
        ("# sent_id = 3\n# text = a b\na O\n# O\nb B-X\n", [["a", "#", "b"]], [["O", "O", "B-X"]]),
        ("# sent_id = 3\na _ _ O\n\n#\nb _ _ B-X\n", [["a"], ["b"]], [["O"], ["B-X"]]),
        ("# a comment\n#\tSYM\n#tag\tX\n# id 3\tdomain=en\n", [["#", "#tag"]], [["SYM", "X"]]),
        ("a\tO\n#\tSYM\n", [["a", "#"]], [["O", "SYM"]]),
        ("a O\n#\tSYM\n", [["a", "#"]], [["O", "SYM"]]),
        (f"{NBSP}\tB-NUM\nNew York\tB-LOC \n", [[NBSP, "New York"]], [["B-NUM", "B-LOC"]]),
        (f"{NBSP} B-NUM\n{NBSP}\tB-NUM\n", [[NBSP, NBSP]], [["B-NUM", "B-NUM"]]),
        ("a\tO\n\u00a0\n \t\nb\tB-X\n", [["a"], ["b"]], [["O"], ["B-X"]]),
    ],
)  # fmt: skip
def test_comments_are_no_words_and_words_keep_their_blanks(tmp_path, text, words, tags):
    # flair#3006, flair#940, fastNLP#419.
    (tmp_path / "a.conll").write_text(text, "utf-8")
    data = read_tagged(str(tmp_path / "a.conll"))
    assert (data.words, data.tags) == (words, tags)


def test_comments_are_counted(tmp_path, capsys):
    (tmp_path / "a.conll").write_text("# one\na O\n\n# two = b\nb X\n")
    read_tagged(str(tmp_path / "a.conll"))
    assert "a.conll: 2 lines that begin with # left out as comments" in capsys.readouterr().err
