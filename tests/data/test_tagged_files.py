"""Words with tags in columns, as CoNLL-2003 has them (row B36)."""

import itertools
import random
from typing import get_args

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.labeled import LabeledData, in_scheme_of, open_labeled
from transformer_jax.data.labeled_files import LabeledOptions, read_tagged
from transformer_jax.data.tag_schemes import TagScheme, entities, scheme_of, write_entities
from transformer_jax.evaluation.classification import entity_f1

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


SCHEMES = get_args(TagScheme)


def drawn(draw, scheme, count=40):
    """Sentences with random entities, some next to each other, in a scheme."""
    letters = ("O", "B-A", "I-A", "B-B", "I-B")
    rows = [draw.choices(letters, k=draw.randint(1, 9)) for _ in range(count)]
    return [write_entities(row, scheme) for row in [*rows, ["B-A", "I-A", "B-A"]]]


@pytest.mark.parametrize(("one", "other"), [*itertools.permutations(SCHEMES, 2)])
def test_a_scheme_is_recognized_and_written_in_another_without_loss(one, other):
    rows = drawn(random.Random(f"{one} {other}"), one)
    assert scheme_of(rows) == one
    converted = [write_entities(row, other) for row in rows]
    assert scheme_of(converted) == other
    assert [[*entities(row)] for row in converted] == [[*entities(row)] for row in rows]
    assert entity_f1(converted, rows) == 1
    assert [write_entities(row, one) for row in converted] == rows


def conll(path, rows):
    """Writes tags of words."""
    path.write_text("".join("".join(f"w {tag}\n" for tag in row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(("one", "other"), [("iob1", "bioes"), ("bilou", "iob2")])
def test_held_out_files_have_the_scheme_of_training(tmp_path, capfd, one, other):
    rows = drawn(random.Random(3), "iob2")
    files = [
        conll(tmp_path / f"{name}.conll", [write_entities(row, scheme) for row in rows])
        for name, scheme in (("train", one), ("valid", other), ("test", other))
    ]
    splits = open_labeled(LabeledData(*files), "tag")
    assert splits.train.tags == splits.valid.tags == splits.tests["test"].tags
    said = capfd.readouterr().err
    assert f"train.conll: entities (A, B) are marked in {one.upper()}" in said
    assert said.count(f"rewritten from {other.upper()} to {one.upper()}") == 2
    assert scheme_of(read_tagged(files[0], LabeledOptions(tag_scheme=other)).tags) == other
    labels = tuple({tag for row in splits.train.tags for tag in row})
    scored = in_scheme_of(read_tagged(files[2]), labels).tags  # as evaluate does
    assert entity_f1(splits.train.tags, scored) == 1
    assert {tag for row in scored for tag in row} <= {*labels}
    assert one == "iob1" or scored == splits.train.tags  # B and I alone may be either


def test_tags_in_several_schemes_are_told_and_left_as_they_are(tmp_path, capfd):
    path = conll(tmp_path / "a.conll", [["B-A", "O", "I-A"]])
    assert read_tagged(path).tags == [["B-A", "O", "I-A"]]
    assert "a.conll: entities (A) are marked in several schemes at once" in capfd.readouterr().err
    assert read_tagged(path, LabeledOptions(tag_scheme="iob2")).tags == [["B-A", "O", "B-A"]]


ROW = "bc/x 0 0 {} NN * - - - S1 {} (0\n"


@pytest.mark.parametrize(
    ("name", "text", "words", "tags"),
    [
        ("a.tsv", "#\thttp://x [2009]\n1\tAda\tB-PER\tO\n2\tsah\tO\tB-LOC\n\n1\tOb\tO\tO\n",
         [["Ada", "sah"], ["Ob"]], [["B-PER", "O"], ["O"]]),
        ("a.conll", "0\tThis\tO\n1\tParis\tB-LOC\n\n0\tThat\tO\n",
         [["This", "Paris"], ["That"]], [["O", "B-LOC"], ["O"]]),
        ("a.bio", "1 Ada B-PER\n2 # O\n", [["Ada", "#"]], [["B-PER", "O"]]),
        ("a.txt", "1 O\n2 O\n", [["1", "2"]], [["O", "O"]]),  # two columns: numbers are words
        ("a.v4_gold_conll", "#begin document (x); part 000\n" + ROW.format("Ada", "(PERSON*")
         + ROW.format("L", "*)") + ROW.format("saw", "*") + ROW.format("Paris", "(GPE)")
         + "\n#end document\n",
         [["Ada", "L", "saw", "Paris"]], [["B-PERSON", "I-PERSON", "O", "B-GPE"]]),
    ],
)  # fmt: skip
def test_columns_of_public_data_sets_are_recognized(tmp_path, capfd, name, text, words, tags):
    (tmp_path / name).write_text(text)
    data = read_tagged(str(tmp_path / name))
    assert (data.words, data.tags) == (words, tags)
    said = capfd.readouterr().err
    assert ("column 1 numbers the words" in said) == (name in ("a.tsv", "a.conll", "a.bio"))
    assert ("as files of CoNLL-2012" in said) == name.endswith("gold_conll")
