"""Reports of classes are scikit-learn's to the digit, and predictions are those of the model."""

import csv
import random

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.labeled import Questions, Sentences, SquadAnswer, Tagged
from transformer_jax.decoding.requests import Continuation, Translation
from transformer_jax.evaluation.classification import (
    accuracy,
    class_report,
    confusion_matrix,
    macro_f1,
    score_intervals,
)
from transformer_jax.evaluation.system_outputs import read_outputs
from transformer_jax.inference.encoding.task_runner import AnswerSpan, TaskRunner
from transformer_jax.recipes.scored_texts import write_table, write_texts
from transformer_jax.recipes.tasks.predictions import reports, worst, write_predictions
from transformer_jax.recipes.tasks.scores import predict, print_predictions, write_scores
from transformer_jax.visual.charts import plot_confusions


@pytest.mark.parametrize("seed", range(20))
def test_a_report_is_that_of_scikit_learn(seed):
    from sklearn.metrics import classification_report

    rng = np.random.default_rng(seed)
    labels = tuple(f"class {i}" for i in range(rng.integers(2, 20)))
    count = int(rng.integers(1, 60))
    true, told = rng.integers(0, len(labels), (2, count))
    report = class_report(confusion_matrix(told, true, len(labels)), labels)
    numbers = range(len(labels))
    wanted = classification_report(
        true, told, labels=numbers, target_names=labels, digits=4, zero_division=0, output_dict=True
    )
    lines = str(report).splitlines()
    for i, name in enumerate((*labels, "macro mean", "weighted mean"), 1):
        row = wanted[name.replace("mean", "avg")]
        shown = [f"{row[x]:.4f}" for x in ("precision", "recall", "f1-score")]
        assert lines[i].split()[-4:] == [*shown, f"{row['support']:.0f}"]
        assert lines[i].startswith(name)


def test_intervals_are_those_of_examples_drawn_anew():
    rng = np.random.default_rng(0)
    true = rng.integers(0, 3, 200)
    told = np.where(rng.random(200) < 0.7, true, rng.integers(0, 3, 200))
    drawn = [rng.integers(0, 200, 200) for _ in range(2000)]
    found = score_intervals(confusion_matrix(told, true, 3))
    for name, measure in (("accuracy", accuracy), ("macro_f1", macro_f1)):
        wanted = np.quantile([measure(told[at], true[at]) for at in drawn], [0.025, 0.975])
        np.testing.assert_allclose(found[name], wanted, atol=0.012)


class Stub(TaskRunner):
    """Answers with what it is given."""

    def __init__(self, **answers):
        for name, value in answers.items():
            setattr(self, name, lambda *_, value=value: value)


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.reader(file)]


SHARES = np.array([[0.9, 0.1], [0.25, 0.75], [0.625, 0.375]], np.float32)
TEXTS = Sentences(
    "a.tsv", ['one, "two"', "three\nfour", "five"], None, ["no", "yes", "yes"], [2, 3, 5]
)


def test_classes_have_a_row_with_all_probabilities(tmp_path):
    found = predict(Stub(classes=SHARES), "classify", ("no", "yes"), TEXTS)
    write_predictions(tmp_path / "a.csv", {"data": found})
    head, *rows = rows_of(tmp_path / "a.csv")
    columns = ["place", "text", "label", "predicted", "probability of no", "probability of yes"]
    assert head == columns
    assert [row[:4] for row in rows] == [
        ["a.tsv:2", 'one, "two"', "no", "no"],
        ["a.tsv:3", "three\nfour", "yes", "yes"],
        ["a.tsv:5", "five", "yes", "no"],
    ]
    assert np.array_equal(np.array([row[4:] for row in rows], np.float32), SHARES)
    assert worst(found, 1).splitlines()[1].split()[:3] == ["0.9808", "a.tsv:5", "five"]
    assert [row.split()[1] for row in worst(found, 2).splitlines()[1:]] == ["a.tsv:5", "a.tsv:3"]
    assert "always 'yes' would have accuracy 0.6667" in reports({"data": found})


def test_several_parts_have_a_column_of_their_names(tmp_path):
    found = predict(Stub(classes=SHARES), "classify", ("no", "yes"), TEXTS)
    write_predictions(tmp_path / "a.csv", {"valid": found, "test": found})
    head, *rows = rows_of(tmp_path / "a.csv")
    assert head[:2] == ["data", "place"]
    assert [row[0] for row in rows] == ["valid"] * 3 + ["test"] * 3


def test_pairs_numbers_tags_and_answers_have_their_rows(tmp_path):
    pairs = Sentences("a.tsv", ["a", "b"], ["c", "d"], ["1.5", "3.0"], [2, 3])
    tagged = Tagged("a.conll", [["Ann", "Lee", "sat"]], [["B-PER", "I-PER", "O"]], [[1, 2, 3]])
    tags = ("B-LOC", "B-PER", "I-PER", "O")
    answers = [[SquadAnswer("here", 3)], []]
    asked = Questions("a.json", ["q1", "q2"], ["Where?", "Why?"], ["is here", "is here"], answers)
    parts = {
        "regress": (predict(Stub(numbers=np.array([1.25, 9.0])), "regress", (), pairs), "second"),
        "tag": (predict(Stub(tags=[[(1, 0.5), (3, 0.75), (3, 1.0)]]), "tag", tags, tagged), "word"),
        "qa": (
            predict(Stub(answers=[[AnswerSpan("there", 3, 1.5)], [AnswerSpan("", -1, 0.0)]]),
                    "qa", (), asked),
            "question",
        ),
    }  # fmt: skip
    wanted = {
        "regress": [["a.tsv:2", "a", "c", "1.5", "1.25"], ["a.tsv:3", "b", "d", "3.0", "9.0"]],
        "tag": [
            ["a.conll:1", "1", "Ann", "B-PER", "B-PER", "0.5"],
            ["a.conll:2", "1", "Lee", "I-PER", "O", "0.75"],
            ["a.conll:3", "1", "sat", "O", "O", "1.0"],
        ],
        "qa": [
            ["q1", "Where?", "here", "there", "1.5", "0.0"],
            ["q2", "Why?", "", "", "0.0", "1.0"],
        ],
    }
    for kind, (found, column) in parts.items():
        write_predictions(tmp_path / f"{kind}.csv", {"data": found})
        head, *rows = rows_of(tmp_path / f"{kind}.csv")
        assert column in head
        assert rows == wanted[kind]
    assert parts["tag"][0].report.splitlines()[1].split() == [
        "PER",
        "0.0000",
        "0.0000",
        "0.0000",
        "1",
    ]
    assert parts["qa"][0].losses.tolist() == [1.0, 0.0]


def test_many_classes_show_their_commonest_confusions():
    labels = tuple(f"class {i}" for i in range(30))
    matrix = np.diag(np.full(30, 5))
    matrix[3, 4], matrix[7, 1] = 2, 3
    said = str(class_report(matrix, labels)).splitlines()
    assert said[-2].split() == ["class", "7", "class", "1", "3"]
    assert said[-1].split() == ["class", "3", "class", "4", "2"]
    assert str(class_report(np.diag(np.full(30, 5)), labels)).endswith("is taken for another")


def test_texts_have_rows_with_their_references_and_log_probabilities(tmp_path):
    made = lambda source, text, worth, count: Translation(
        source, (Continuation(text, (1,) * count, worth, "end", worth / count),)
    )
    texts = [made("ein, Hund", "a dog", -1.5, 3), made("Katze", 'a "cat"\nsat', -0.25, 5)]
    references = [["the dog", "a dog"], ["cat"]]
    assert write_texts(tmp_path / "a.csv", texts, references, "source") == 0
    assert rows_of(tmp_path / "a.csv") == [
        ["source", "reference", "reference 2", "predicted", "log_prob", "tokens"],
        ["ein, Hund", "the dog", "a dog", "a dog", "-1.5", "3"],
        ["Katze", "cat", "", 'a "cat"\nsat', "-0.25", "5"],
    ]
    read = read_outputs(tmp_path / "a.csv")
    assert read == ("translate", ["a dog", 'a "cat"\nsat'], references)
    for of, task in (
        ("document", "summarize"),
        ("recording", "transcribe"),
        ("picture", "caption"),
    ):
        write_texts(tmp_path / "b.csv", texts, references, of)
        assert read_outputs(tmp_path / "b.csv") == (task, *read[1:])
    assert write_texts(tmp_path / "a.txt", texts, references, "source") == 0
    assert (tmp_path / "a.txt").read_text() == 'a dog\na "cat" sat\n'


def test_other_scores_have_no_rows(tmp_path):
    with pytest.raises(ConfigError, match=r"not for these scores: name a \.json file"):
        write_scores(tmp_path / "a.csv", {"loss": 1.0})
    part = Sentences("a.tsv", ["a"], None, ["1.5"], [2])
    found = predict(Stub(numbers=np.array([1.25])), "regress", (), part)
    with pytest.raises(ConfigError, match="this task has no classes to draw"):
        print_predictions({"data": found}, tmp_path / "a.png", None)


@pytest.mark.slow
@pytest.mark.parametrize("count", [3, 30])
def test_a_picture_has_the_confusions_of_each_part(count, tmp_path):
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 40, (count, count))
    labels = [f"class {i}" for i in range(count)]
    reports = {name: class_report(matrix, labels) for name in ("valid", "test")}
    figure = plot_confusions(tmp_path / "a.png", reports)
    assert (tmp_path / "a.png").stat().st_size > 5000
    for ax in figure.axes[:2]:
        assert np.allclose(ax.images[0].get_array(), matrix / matrix.sum(1, keepdims=True))
        numbers = [text.get_text() for text in ax.texts]
        assert numbers == [str(n) for n in matrix.flat] * (count <= 20)
        assert [text.get_text() for text in ax.get_yticklabels()] == labels


def test_any_text_in_a_table_is_read_back(tmp_path):
    draw = random.Random(0)
    text = lambda: "".join(draw.choice("ab\", \t\r\n'é") for _ in range(draw.randint(0, 6)))
    rows = [[text(), text() + "."] for _ in range(200)]
    write_table(tmp_path / "a.csv", ("one", "two"), rows)
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        assert [*csv.reader(file)] == [["one", "two"], *rows]
    before = (tmp_path / "a.csv").read_bytes()
    with pytest.raises(UnicodeEncodeError):
        write_table(tmp_path / "a.csv", ("one",), [["\ud800"]])
    assert (tmp_path / "a.csv").read_bytes() == before
