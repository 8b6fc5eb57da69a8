"""Labeled examples come from every format; what is wrong is said in one line (B36, H22)."""

import json
import random

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.images.picture_tables import read_images
from transformer_jax.data.labeled import (
    LabeledData,
    LabeledOptions,
    LabeledSplits,
    Sentences,
    SquadAnswer,
    label_names,
    open_labeled,
    read_labeled,
)
from transformer_jax.data.labeled_files import read_sentences

WORDS = """# sent_id = 1
# text = I can't go
1\tI\tI\tPRON\tPRP\t_\t3\tnsubj\t_\t_
2-3\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
2\tca\tcan\tAUX\tMD\t_\t3\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3.1\tleft\tleave\tVERB\tVB\t_\t_\t_\t_\t_
4\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_

# a second one
1\t#\t#\tSYM\tNN\t_\t0\troot\t_\t_
"""

CONTEXT = "Żółw ate 12 figs. İt was 12 o'clock."


@pytest.fixture
def write(tmp_path):
    def make(text, name="train.tsv"):
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
        return str(tmp_path / name)

    return make


def squad(*questions, context=CONTEXT):
    return json.dumps({"data": [{"paragraphs": [{"context": context, "qas": list(questions)}]}]})


def question(text="12 figs", start=9, id="q1", **other):
    answers = [{"text": text, "answer_start": start}]
    return {"id": id, "question": "What was eaten?", "answers": answers, **other}


def read(path, task, **options):
    return read_labeled(path, task, LabeledOptions(**options))


# What comes back


def test_h22_columns_go_by_the_names_of_the_header_or_by_number(write):
    named = write('\ufefflabel\t#1 String\ttext\n1\t"a\t b\\t\n0\tc\td\n\n', "a.txt")
    for options in (
        {"text": "text", "text_pair": "#1 String", "format": "tsv"},
        {"text": "3", "text_pair": "2", "label": "1", "header": True, "format": "tsv"},
    ):
        found = read(named, "pair", **options)
        # Nothing is quoted or escaped, blanks at the ends go, and so do empty lines.
        assert (found.texts, found.text_pairs) == (["b\\t", "d"], ['"a', "c"])
        assert (found.labels, found.lines) == (["1", "0"], [2, 3])
    bare = write("gj04\t1\t\tA Bee.\r\ngj04\t0\t*\tA see.\n")
    found = read(bare, "classify", text="4", label="2", lowercase=True)
    assert (found.texts, found.text_pairs, found.labels) == (["a bee.", "a see."], None, ["1", "0"])


def test_a_first_row_that_may_have_names_is_told(write, capsys):
    read = LabeledOptions(text="1", label="2")
    rows = "Opinion,Mood (final)\na film,good\nno film,bad\na dog,good\nno dog,bad\n"
    path = write(rows, "a.csv")
    assert read_sentences(path, "classify", read).labels[0] == "Mood (final)"
    said = "a.csv:1: read as an example, because columns are given by number, and no other has"
    assert said in capsys.readouterr().err
    named = LabeledOptions(text="1", label="2", header=True)
    assert read_sentences(path, "classify", named).labels == ["good", "bad"] * 2
    read_sentences(write(rows.partition("\n")[2], "b.csv"), "classify", read)
    assert "read as an example" not in capsys.readouterr().err
    with pytest.raises(DataError, match="columns 'text' and 'label' are not in the header, which"):
        read_sentences(path, "classify", LabeledOptions())


def test_h22_a_regression_reads_one_sentence_or_two(write):
    path = write("5.00\ta\tb\n1e-1\tc\td\n")
    options = {"text": "2", "text_pair": "3", "label": "1"}
    assert read(path, "regress", **options).text_pairs is None
    found = read(path, "regress", pair=True, **options)
    assert (found.text_pairs, found.labels) == (["b", "d"], ["5.00", "1e-1"])


def test_json_labels_may_be_text_or_numbers(write):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": "x"}, {"text": "c", "label": 2.5}]
    path = write("\n".join(map(json.dumps, rows)), "train.jsonl")
    assert read(path, "classify").labels == ["1", "x", "2.5"]


def test_b36_conllu_gives_words_and_tags_without_ranges_and_empty_nodes(write):
    path = write(WORDS, "train.conllu")
    found = read(path, "tag")
    assert found.words == [["I", "ca", "n't", "Go"], ["#"]]
    assert found.tags == [["PRON", "AUX", "PART", "VERB"], ["SYM"]]
    assert found.lines == [[3, 5, 6, 8], [11]]
    assert read(path, "tag", tag="xpos").tags == [["PRP", "MD", "RB", "VB"], ["NN"]]
    assert read(path, "tag", lowercase=True).words[0] == ["i", "ca", "n't", "go"]
    lists = [{"words": w, "upos": t} for w, t in zip(found.words, found.tags, strict=True)]
    other = write("\n".join(map(json.dumps, lists)), "train.jsonl")
    again = read(other, "tag", text="words")
    assert (again.words, again.tags, again.lines) == (found.words, found.tags, [[1] * 4, [2]])


def test_squad_gives_questions_in_order_and_answers_by_character(write):
    rows = [question(), question(id="q2", is_impossible=True), question("12", 25, id="q3")]
    path = write(squad(*rows), "train.json")
    found = read(path, "qa")
    assert found.ids == ["q1", "q2", "q3"]
    assert found.answers == [[SquadAnswer("12 figs", 9)], [], [SquadAnswer("12", 25)]]
    # A letter that would become two in lower case would move the answers behind it.
    lower = read(path, "qa", lowercase=True)
    assert lower.contexts[0].startswith("żółw")
    for context, answers in zip(lower.contexts, lower.answers, strict=True):
        assert all(context.startswith(answer.text, answer.start) for answer in answers)


# What is refused


@pytest.mark.parametrize(
    ("text", "task", "options", "message"),
    [
        ("text\tlabel\na\t1\nb\n", "classify", {}, r"train.tsv:3: 1 column, and data.read.label "
         r"'label' is number 2: correct the line"),
        ("text\tlabel\na\t1\nb\t \n", "classify", {}, r":3: the label is empty: fill it in"),
        ("text\tlabel\n \t1\n", "classify", {}, r":2: the text is empty"),
        ("words\tlabel\na\t1\n", "classify", {}, r":1: column 'text' is not in the header, "
         r"which has 'words', 'label': give data.read.text"),
        ("text\ttext\tlabel\na\tb\t1\n", "classify", {}, r":1: column 'text' is twice in"),
        ("a\tb\tlabel\nc\td\t1\n", "pair", {}, r":1: columns 'text' and 'second' are "
         r"not in the header, which has 'a', 'b', 'label': give data.read.text and"),
        ("text label\na 1\n", "classify", {}, r"header True; columns are separated by tabs"),
        ("text\tlabel\na\t1\n", "classify", {"text": "²"}, r":1: column '²' is not in the header"),
        ("text\tlabel\na\t1\n", "classify", {"text": "9" * 5000}, r":1: column '9{5000}' is not"),
        ("text\tlabel\na\t3,5\n", "regress", {}, r":2: the label '3,5' is not a finite number"),
        ("text\tlabel\na\tnan\n", "regress", {}, r":2: the label 'nan' is not a finite number"),
        ("text\tlabel\n", "classify", {}, r"train.tsv: no examples: .* or has only a header"),
        ("", "classify", {}, r"train.tsv: no examples: it is empty"),
    ],
)  # fmt: skip
def test_bad_lines_are_named(write, text, task, options, message):
    with pytest.raises(DataError, match=message) as error:
        read(write(text), task, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "a"}, r"jsonl:1: no field 'label', only 'text': name it with data.read.label"),
        ({"text": "a", "label": None}, r":1: field 'label' is null; text is needed"),
        ({"text": "a", "label": float("nan")}, r":1: the label is NaN: fill it in, or remove the"),
        ({"text": 1, "label": "x"}, r":1: field 'text' is a number; text is needed"),
        ({"text": "\ud800", "label": "x"}, r":1: field 'text' holds half a character"),
    ],
)
def test_bad_json_lines_are_named(write, row, message):
    with pytest.raises(DataError, match=message):
        read(write(json.dumps(row), "train.jsonl"), "classify")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": ["a", "b"], "upos": ["X"]}, r"jsonl:1: 2 words \('text'\) and 1 tag \('upos'\)"),
        ({"text": "a b", "upos": ["X"]}, r":1: field 'text' is not a list of texts"),
        (
            {"text": ["a"], "ner_tags": ["X"], "pos_tags": ["Y"]},
            r":1: field 'upos' is not a list .*data.read.tag",
        ),
        ({"text": ["a", " "], "upos": ["X", "Y"]}, r":1: field 'text, item 2' is empty"),
        ({"text": ["a"], "upos": [3]}, r":1: field 'upos, item 1' is a number"),
    ],
)
def test_b36_tags_that_do_not_match_words_are_named(write, row, message):
    with pytest.raises(DataError, match=message):
        read(write(json.dumps(row), "train.jsonl"), "tag")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\tAUX\t", "\t_\t", r"conllu:5: the word 'ca' has no upos tag"),
        ("2\tca", "3\tca", r"conllu:5: the word has number '3', but 2 is needed"),
        ("\tMD", "", r"conllu:5: 9 columns, but CoNLL-U has 10.* columns"),
        ("2\tca", "2\t", r"conllu:5: the word '' is empty"),
        (WORDS, "# nothing\n", r"no sentences: it is empty"),
    ],
)
def test_b36_bad_conllu_is_named(write, old, new, message):
    assert old in WORDS
    with pytest.raises(DataError, match=message):
        read(write(WORDS.replace(old, new, 1), "train.conllu"), "tag")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (question(start=10), r"json: question q1: the answer '12 figs' should begin at character "
         r"10, where the paragraph has '2 figs.'; it is nearest found at 9: correct answer_start"),
        (question("12", 24), r"where the paragraph has ' 1'; it is nearest found at 25"),
        (question("12", -3), r"outside its paragraph of .*; it is nearest found at 9"),
        (question("12", 999), r"outside its paragraph of .*; it is nearest found at 25"),
        (question(start=99), r"question q1: .* character 99, outside its paragraph of 36 char"),
        (question(start=9 - 36), r"question q1: .* character -27, outside its paragraph"),
        (question("pears"), r"the answer 'pears' .*it is nowhere in it"),
        (question(""), r"question q1: an answer is empty"),
        (question(answers=[]), r'question q1: no answers: give one, or say "is_impossible": true'),
        (question(id=7), r"article 1, paragraph 1, question 1: field 'id' is a number"),
        ({"id": "q1"}, r"question q1: no field 'question', only 'id': SQuAD has data,"),
        (question(question=" "), r"question q1: the question is empty"),
    ],
)  # fmt: skip
def test_answers_outside_their_paragraph_are_named(write, row, message):
    with pytest.raises(DataError, match=message) as error:
        read(write(squad(row), "train.json"), "qa")
    assert "\n" not in str(error.value)


def test_squad_files_that_are_none_are_refused(write):
    for text, message in (
        ('{"data": [\n}', r"json:2: not JSON"),
        ("[]", r"train.json: no field 'data', only a list"),
        ('{"data": []}', r"no questions: it is empty"),
        (squad(question(), question()), r"question q1: comes twice"),
    ):
        with pytest.raises(DataError, match=message):
            read(write(text, "train.json"), "qa")


@pytest.mark.parametrize(
    ("name", "task", "options", "message"),
    [
        ("a.txt", "classify", {}, r"data.train .*a.txt: the name does not tell the format .*"
         r"data.read.format, tsv or csv or jsonl"),
        ("a.conllu", "classify", {}, r"the format conllu is not for the task classify"),
        ("a.csv", "tag", {}, r"for the task tag, which needs conllu or columns or jsonl"),
        ("a.tsv", "qa", {}, r"not for the task qa, which needs squad"),
        ("a.tsv", "classify", {"pair": True}, r"data.read.pair: the task classify has no second"),
        ("a.tsv", "classify", {"header": False}, r"data.read.text text: without a header"),
        ("a.tsv", "classify", {"text": "0", "label": "1"}, r"data.read.text 0: columns have num"),
        ("a.conllu", "tag", {"tag": "deprel"}, r"data.read.tag deprel: CoNLL-U has upos and xpos"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(write, name, task, options, message):
    with pytest.raises(ConfigError, match=message):
        read(write("a\tb\n", name), task, **options)


def test_data_is_given_once():
    for options, message in (
        ({"train": "a", "tfds": "b"}, r"more than one way \(data.train, data.tfds\)"),
        ({"train": "a", "tfds_dir": "b"}, r"data.tfds_dir is given without"),
        (
            {"read": {"validation_size": 0.6}},
            r"data.read.validation_size is 0.6: at most 0.5",
        ),
        ({"read": {"label": ""}}, r"data.read.label is empty"),
    ):
        with pytest.raises(ConfigError, match=message):
            LabeledData(**options | {"read": LabeledOptions(**options.get("read", {}))})
    with pytest.raises(ConfigError, match=r"no training data for the task tag: give data.train"):
        open_labeled(LabeledData(), "tag")
    with pytest.raises(ConfigError, match=r"data.tfds has sentences with labels, not .* qa"):
        open_labeled(LabeledData(tfds="squad"), "qa")


# Classes


def test_classes_are_sorted_and_numbers_by_their_size():
    def names(*labels):
        part = Sentences("e", ["a"] * len(labels), None, list(labels))
        return label_names(LabeledSplits(part, None, {}), "classify")

    assert names("10", "9", "-1", "9") == ("-1", "9", "10")
    assert names("b", "10", "a", "9") == ("10", "9", "a", "b")
    assert label_names(LabeledSplits(Sentences("e", ["a"], None, ["1"]), None, {}), "regress") == ()


def test_a_class_that_training_lacks_is_named_with_its_line(write):
    train = write("text\tlabel\na\tpos\nb\tneg\n")
    other = write("text\tlabel\nc\tpos\nd\tgood\n", "other.tsv")
    for part in ({"valid": other}, {"valid": train, "test": other}):
        splits = open_labeled(LabeledData(train=train, **part), "classify")
        with pytest.raises(DataError, match=r"other.tsv:3: the class 'good' does not occur in "
                           r"training \('neg', 'pos'\): correct the label"):  # fmt: skip
            label_names(splits, "classify")


def test_a_class_that_was_held_out_whole_is_explained(write):
    rows = "".join(f"t{i}\tc{i}\n" for i in range(10))
    splits = open_labeled(LabeledData(train=write("text\tlabel\n" + rows)), "classify")
    with pytest.raises(DataError, match=r"train.tsv:\d+: the class 'c\d' .*: it was held out, so"):
        label_names(splits, "classify")


def test_b36_a_tag_that_training_lacks_is_named(write):
    train = write(WORDS, "train.conllu")
    valid = write(WORDS.replace("SYM", "PUNCT"), "valid.conllu")
    splits = open_labeled(LabeledData(train=train, valid=valid), "tag")
    with pytest.raises(DataError, match=r"valid.conllu:11: the tag 'PUNCT' does not occur"):
        label_names(splits, "tag")
    splits = open_labeled(LabeledData(train=train, valid=train), "tag")
    assert label_names(splits, "tag") == ("AUX", "PART", "PRON", "SYM", "VERB")


def test_a_file_with_one_class_is_refused(write):
    path = write("text\tlabel\na\t1\nb\t1\n")
    splits = open_labeled(LabeledData(train=path, valid=path), "classify")
    with pytest.raises(DataError, match=r"train.tsv: all examples have the class '1': at least two "
                       r"are needed; is data.read.label"):  # fmt: skip
        label_names(splits, "classify")


# Validation


def held(write, rows, share=0.2):
    path = write("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    read = LabeledOptions(validation_size=share)
    splits = open_labeled(LabeledData(train=path, read=read), "classify")
    parts = (splits.train, splits.valid)
    return [set(zip(part.texts, part.labels, strict=True)) for part in parts], splits


def test_what_is_held_out_is_disjoint_and_the_same_in_any_order(write):
    rows = [(f"text {i // 2}", str(i % 2)) for i in range(200)]
    (train, valid), splits = held(write, rows)
    assert train | valid == set(rows)
    assert not {text for text, _ in train} & {text for text, _ in valid}
    assert len(valid) == 40
    assert splits.valid.name == f"{splits.train.name} (held out)"
    for i, line in enumerate(splits.valid.lines):
        assert rows[line - 2] == (splits.valid.texts[i], splits.valid.labels[i])
    random.Random(0).shuffle(rows)
    assert held(write, rows)[0] == [train, valid]
    # A greater share holds out more, and nothing less.
    assert valid < held(write, rows, 0.4)[0][1]


def test_a_little_is_always_held_out_and_never_all(write):
    (train, valid), _ = held(write, [("a", "0"), ("b", "1")], 0.01)
    assert len(train) == len(valid) == 1
    with pytest.raises(DataError, match=r"all 2 examples have one text, so none can be held out"):
        held(write, [("a", "0"), ("a", "1")])


def test_holdout_0_and_a_file_of_its_own_hold_nothing_out(write):
    path = write("text\tlabel\na\t0\nb\t1\n")
    none = LabeledData(train=path, read=LabeledOptions(validation_size=0.0))
    assert open_labeled(none, "classify").valid is None
    splits = open_labeled(LabeledData(train=path, valid=path, test=path), "classify")
    assert len(splits.train) == len(splits.valid) == len(splits.tests["test"]) == 2


def test_all_questions_of_a_paragraph_stay_together(write):
    article = [
        {"context": f"{i} {CONTEXT}", "qas": [question(start=11, id=f"{i} {j}") for j in range(3)]}
        for i in range(8)
    ]
    path = write(json.dumps({"data": [{"paragraphs": article}]}), "train.json")
    splits = open_labeled(LabeledData(train=path, read=LabeledOptions(validation_size=0.25)), "qa")
    assert (len(splits.train), len(splits.valid)) == (18, 6)
    assert not set(splits.train.contexts) & set(splits.valid.contexts)
    tagged = open_labeled(LabeledData(train=write(WORDS, "train.conllu")), "tag")
    assert sorted(tagged.train.words + tagged.valid.words) == [["#"], ["I", "ca", "n't", "Go"]]


# TFDS


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    tfds = pytest.importorskip("tensorflow_datasets")
    pytest.importorskip("array_record.python.array_record_module")
    rows = [{"one": f"s {i}", "two": f"t {i}", "label": i % 2, "score": i / 4} for i in range(8)]
    hidden = [{**row, "label": -1, "score": -1.0} for row in rows]
    features = {
        "one": tfds.features.Text(),
        "two": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["bad", "good"]),
        "score": tfds.features.Scalar(np.float32),
    }

    def info(self):
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def splits(self, manager):
        parts = {"train": rows[:5], "validation_matched": rows[5:7]}
        parts.update(validation_mismatched=rows[7:], test_matched=hidden)
        return {key: self._generate_examples(part) for key, part in parts.items()}

    body = {
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": info,
        "_split_generators": splits,
        "_generate_examples": lambda self, part: enumerate(part),
        "name": "tiny_labeled",
        "__module__": __name__,
    }
    root = tmp_path_factory.mktemp("tfds")
    bases = (tfds.core.GeneratorBasedBuilder,)
    kind = type("tiny_labeled", bases, body, skip_registration=True)
    kind(data_dir=str(root), file_format="array_record").download_and_prepare()
    return str(root)


def opened(root, task, **options):
    read = LabeledOptions(**{"text": "one", "text_pair": "two", **options})
    return open_labeled(LabeledData(tfds="tiny_labeled", tfds_dir=root, read=read), task)


def test_h22_a_prepared_data_set_gives_the_names_of_its_classes(prepared):
    splits = opened(prepared, "pair")
    rows = zip(splits.train.texts, splits.train.text_pairs, splits.train.labels, strict=True)
    wanted = [(f"s {i}", f"t {i}", ("bad", "good")[i % 2]) for i in range(5)]
    assert sorted(rows) == wanted
    assert label_names(splits, "pair") == ("bad", "good")
    assert sorted(splits.valid.texts) == ["s 5", "s 6"]
    # The labels of the test are withheld, so there is nothing to score.
    assert {name: part.texts for name, part in splits.tests.items()} == {
        "validation_mismatched": ["s 7"]
    }
    scores = opened(prepared, "regress", label="score")
    assert sorted(map(float, scores.train.labels)) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert list(scores.tests) == ["validation_mismatched"]


def test_features_that_do_not_fit_are_refused_with_a_list(prepared):
    for task, options, message in (
        ("classify", {"text": "text"}, r"data.read.text text: tiny_labeled has no such feature"),
        ("classify", {"text": "label"}, r"data.read.text label: not a text, choose another of "),
        ("regress", {"label": "label"}, r"data.read.label label: not a number, .*score \(\w+\)"),
        ("pair", {"text_pair": "score"}, r"data.read.text_pair score: not a text"),
    ):
        with pytest.raises(ConfigError, match=message):
            opened(prepared, task, **options)


@pytest.mark.parametrize(
    ("label", "text"), [("3", "3"), ("1.5", "1.5"), ("true", "True"), ("NaN", None)]
)
def test_numbers_are_labels_of_texts_and_of_pictures_and_nan_is_none(tmp_path, label, text):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "a", "image": "a.png", "label": {label}}}\n')
    for read in (lambda: read_sentences(str(path), "classify").labels,
                 lambda: read_images(str(path)).texts):  # fmt: skip
        if text is not None:
            assert read() == [text]
            continue
        with pytest.raises(DataError, match=r"a\.jsonl:1: the label is NaN"):
            read()
