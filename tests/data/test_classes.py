"""Names of classes: counts, twins, and the numbers of folders without names."""

import itertools

import numpy as np
import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data.classes import class_numbers, describe_classes, sort_classes
from transformer_jax.data.images.data import ImageSplits
from transformer_jax.data.images.picture_sources import ArrayPictures
from transformer_jax.data.images.picture_tables import ImageTable
from transformer_jax.data.labeled import (
    LabeledData,
    LabeledOptions,
    LabeledSplits,
    Sentences,
    Tagged,
    label_names,
    open_labeled,
    read_labeled,
)
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.inference.encoding.task_runner import TaskRunner
from transformer_jax.models.presets import bert, vit
from transformer_jax.recipes.tasks.image_task import image_classification, label_numbers
from transformer_jax.recipes.tasks.labeled import labeled
from transformer_jax.recipes.tasks.scores import predict

LABELS = ["bug"] * 7 + ["Bug"] + ["new idea"] * 6 + ["New\u00a0Idea", "newidea"]
COUNTED = [
    "a: 5 classes: bug (7), new idea (6), Bug (1), New\u00a0Idea (1), newidea (1)",
    "warning: a: 2 classes that differ only in case or blanks: 'bug', 'Bug': are they one?",
    "warning: a: 3 classes that differ only in case or blanks: 'new idea', 'New\\xa0Idea', "
    "'newidea': are they one?",
    "warning: a: 3 classes with fewer than 5 examples: 'Bug', 'New\\xa0Idea', 'newidea': correct "
    "the label, or add more",
]


def test_twins_and_classes_of_few_examples_are_named():
    assert describe_classes("a", LABELS) == COUNTED
    assert describe_classes("a", ["x", "y"] * 5) == ["a: 2 classes: x (5), y (5)"]
    [line, few] = describe_classes("a", map(str, range(30)), "tag")
    assert line.startswith("a: 30 tags: 0 (1), 1 (1)")
    assert line.endswith("19 (1), and 10 more")
    assert few.endswith("'19', ...: correct the label, or add more")


def _texts():
    return Sentences("a", [f"text {i}" for i in range(len(LABELS))], None, LABELS)


def _words():
    return Tagged("a", [["word"]] * len(LABELS), [[label] for label in LABELS])


@pytest.mark.parametrize(("kind", "examples"), [("classify", _texts), ("tag", _words)])
def test_training_on_texts_begins_with_the_counts_of_classes(kind, examples, capsys):
    splits = LabeledSplits(examples(), None, {})
    tokenizer = train_tokenizer("wordpiece", ["text word 0123456789"], 60, special=BERT_SPECIAL)
    config = bert(8, 1, vocab_size=tokenizer.vocab_size, max_length=16)
    labeled(splits, config, tokenizer, kind=kind, labels=label_names(splits, kind))
    what = "tag" if kind == "tag" else "class"
    err = capsys.readouterr().err
    assert all(line in err for line in describe_classes("a", LABELS, what))


def test_training_on_pictures_begins_with_the_counts_of_classes(capsys):
    count = len(LABELS)
    pictures = ArrayPictures(np.zeros((count, 8, 8, 3), np.uint8), "a")
    table = ImageTable("a", pictures, np.arange(count), LABELS, [str(i) for i in range(count)])
    config = vit(8, 1, image_size=8, patch_size=4)
    image_classification(ImageSplits(table), config)
    err = capsys.readouterr().err
    assert COUNTED[1] in err
    assert COUNTED[0] in err


def test_classes_without_names_are_known_by_their_numbers():
    assert class_numbers(["LABEL_0", "LABEL_1"])["1"] == 1
    assert "0" not in class_numbers(["LABEL_1", "LABEL_0"])

    class Second(TaskRunner):
        """Predicts the second class for every text."""

        def __init__(self):
            """Has no model."""

        def classes(self, texts, seconds):
            return np.tile([0.1, 0.9], (len(texts), 1))

    part = Sentences("a", ["x", "y"], None, ["1", "0"])
    names = ("LABEL_0", "LABEL_1")
    assert predict(Second(), "classify", names, part).scores["accuracy"] == 0.5
    named = Sentences("a", ["x", "y"], None, ["LABEL_1", "0"])
    assert predict(Second(), "classify", names, named).scores["accuracy"] == 0.5
    with pytest.raises(DataError, match="a: example 1: the label '2' is not among the training"):
        predict(Second(), "classify", names, Sentences("a", ["x"], None, ["2"]))
    pictures = ArrayPictures(np.zeros((2, 8, 8, 3), np.uint8), "a")
    table = ImageTable("a", pictures, np.arange(2), ["1", "0"], ["0", "1"])
    assert label_numbers(table, names).tolist() == [1, 0]


def test_an_unseen_tag_is_named_with_its_line(tmp_path):
    for name, text in (("train", "a X\nb Y\n"), ("valid", "a X\nb Y\nc Z\n")):
        (tmp_path / f"{name}.conll").write_text(text)
    data = LabeledData(train=str(tmp_path / "train.conll"), valid=str(tmp_path / "valid.conll"))
    with pytest.raises(DataError, match=r"valid.conll:3: the tag 'Z' does not occur in training"):
        label_names(open_labeled(data, "tag"), "tag")


def test_an_unseen_class_that_is_a_known_one_in_another_case_names_it(tmp_path):
    for name, label in (("train", "bug"), ("valid", "Bug ")):
        (tmp_path / f"{name}.tsv").write_text(f"text\tlabel\nit fails\t{label}\nit works\tidea\n")
    train, valid = (
        read_labeled(str(tmp_path / f"{name}.tsv"), "classify", LabeledOptions())
        for name in ("train", "valid")
    )
    with pytest.raises(DataError, match=r"valid.tsv:2: .*: 'bug' differs only in case"):
        label_names(LabeledSplits(train, valid, {}), "classify")


def test_a_row_with_fewer_columns_than_the_header_is_a_bad_one(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("text\tlabel\tsource\nit failsbug\tweb\nit works\tidea\tweb\n")
    with pytest.raises(DataError, match=r"train.tsv:2: 2 columns, but the header has 3"):
        read_labeled(str(path), "classify", LabeledOptions())
    read = read_labeled(str(path), "classify", LabeledOptions(bad_rows="skip"))
    assert read.labels == ["idea"]


def test_the_order_of_classes_does_not_depend_on_the_order_of_their_names():
    names = ["nan", "2", "1", "0", "10", "01"]
    orders = {sort_classes(order) for order in itertools.permutations(names)}
    assert orders == {("0", "01", "1", "10", "2", "nan")}
    assert sort_classes(names[1:]) == ("0", "01", "1", "2", "10")
