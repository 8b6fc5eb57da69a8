"""Files of outputs are scored as evaluate scores them, and compared by sacreBLEU's paired tests."""

import json
import random
import subprocess
import sys

import numpy as np
import pytest

from transformer_jax.core.errors import DataError, UserError
from transformer_jax.data.labeled import Questions, Sentences, SquadAnswer, Tagged
from transformer_jax.evaluation.bleu import translation_scores
from transformer_jax.evaluation.captions import caption_scores
from transformer_jax.evaluation.error_rates import character_error_rate, word_error_rate
from transformer_jax.evaluation.output_scores import (
    OutputMetric,
    paired_tests,
    score_outputs,
    task_metrics,
)
from transformer_jax.evaluation.rouge import rouge_scores
from transformer_jax.evaluation.system_outputs import read_outputs
from transformer_jax.inference.encoding.task_runner import AnswerSpan
from transformer_jax.recipes.tasks.predictions import (
    AnswerPredictions,
    ClassPredictions,
    NumberPredictions,
    TagPredictions,
    write_predictions,
)

WORDS = ("a", "cat", "sat", "on", "the", "mat", ",", "and", "dogs", "saw", "it", ".")


def texts(count, seed=0):
    """References, and the outputs of two systems, of which the second errs more."""
    draw = random.Random(seed)
    true = [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(count)]
    wrong = lambda text, share: " ".join(
        draw.choice(WORDS) if draw.random() < share else word for word in text.split()
    )
    return true, [wrong(one, 0.2) for one in true], [wrong(one, 0.35) for one in true]


def write(folder, *sides):
    paths = [folder / f"{i}.txt" for i in range(len(sides))]
    for path, lines in zip(paths, sides, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return paths


@pytest.mark.parametrize(
    ("method", "flag"),
    [
        ("bootstrap", "--paired-bs"),
        pytest.param("randomization", "--paired-ar", marks=pytest.mark.slow),
    ],
)
def test_p_values_are_those_of_the_program_sacrebleu(method, flag, tmp_path):
    true, one, other = texts(25)
    second = [text.replace("cat", "dog") for text in true]
    reference, more, ours, theirs = map(str, write(tmp_path, true, second, one, other))
    flags = [
        reference,
        more,
        "-i",
        ours,
        theirs,
        "-m",
        "bleu",
        "chrf",
        flag,
        "-f",
        "text",
        "-w",
        "4",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", *flags],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    references = [list(row) for row in zip(true, second, strict=True)]
    metrics = task_metrics("translate", [one, other], references)
    rows = paired_tests({"one": one, "other": other}, references, metrics, method)
    assert [row.metric for row in rows] == ["BLEU", "chrF2"]
    for row in rows:
        assert row.p_value < 0.1
        assert f"(p = {row.p_value:.4f})" in done.stdout
        assert row.signature in done.stdout
        for i, score in enumerate(row.scores):
            spread = row.means and f" ({row.means[i]:.4f} ± {row.intervals[i]:.4f})"
            assert f"{score:.4f}{spread or ''}" in done.stdout


def test_equal_systems_do_not_differ():
    true, one, other = texts(12)
    references = [[text] for text in true]
    metrics = task_metrics("translate", [one], references)
    assert [row.p_value for row in paired_tests({"a": one, "b": one}, references, metrics)] == [
        1,
        1,
    ]
    swapped = [*other[:6], *one[6:]]
    for row in paired_tests({"a": one, "b": swapped}, references, metrics):
        assert row.p_value < 1


def test_another_metric_with_the_statistics_of_bleu_has_its_p_value():
    true, one, other = texts(25)
    references = [[text] for text in true]
    [bleu, _] = task_metrics("translate", [], references)
    rows = lambda outputs, _: bleu._extract_corpus_statistics(outputs, [true])
    score = lambda sums: bleu._compute_score_from_stats(list(map(int, sums))).score
    found = [
        paired_tests({"one": one, "other": other}, references, [metric])[0]
        for metric in (bleu, OutputMetric("own", rows, score))
    ]
    for one, other in zip(found[0][1:5], found[1][1:5], strict=True):
        assert one == pytest.approx(other)


@pytest.mark.slow  # imports of rouge-score
def test_texts_have_the_scores_of_evaluate():
    pytest.importorskip("rouge_score", reason="needs rouge-score")
    true, found, _ = texts(12)
    references = [[text, *[text[::-1]] * (i % 2)] for i, text in enumerate(true)]
    scores = lambda task, wanted: {
        name: score
        for name, score, _ in score_outputs(found, wanted, task_metrics(task, [found], wanted))
    }
    one = [[text] for text in true]
    rouge, captions = rouge_scores(found, references), caption_scores(found, references)
    bleu = translation_scores(found, true)
    assert scores("translate", one) == {"BLEU": bleu.bleu, "chrF2": bleu.chrf}
    assert scores("summarize", references) == pytest.approx(
        {name.replace("rouge", "ROUGE-"): getattr(rouge, name)
         for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")}
    )  # fmt: skip
    assert scores("caption", references) == pytest.approx(
        {"exact": captions.exact, "BLEU": captions.sacrebleu, "CIDEr-D": captions.cider,
         "ROUGE-L": captions.rougeL}
    )  # fmt: skip
    rates = word_error_rate(found, true).rate, character_error_rate(found, true).rate
    assert scores("transcribe", one) == {"WER": rates[0], "CER": rates[1], "BLEU": bleu.bleu}


def predictions():
    """Predictions of each task, as ``evaluate`` has them."""
    rng = np.random.default_rng(0)
    labels, count = ("no", "yes", 'B-X, "or"\nso'), 30
    shares = rng.dirichlet(np.ones(3), count)
    names = [(f"a.csv:{i}", f"text {i}") for i in range(count)]
    yield (
        "classify",
        ClassPredictions(
            names, ("text",), shares, rng.integers(0, 3, count), labels, ("accuracy", "macro_f1")
        ),
    )
    part = Sentences("a.tsv", ["t"] * count, None, [f"{x:.3f}" for x in rng.random(count)])
    yield "regress", NumberPredictions(part, rng.random(count))
    tags = ("B-LOC", "B-PER", "I-PER", "O")
    sizes = rng.integers(1, 7, count).tolist()
    true = [rng.integers(0, 4, size).tolist() for size in sizes]
    found = [[(int(tag), 0.5) for tag in rng.integers(0, 4, size)] for size in sizes]
    named = [[tags[tag] for tag in row] for row in true]
    tagged = Tagged("a.conll", [["word"] * size for size in sizes], named, [])
    yield "tag", TagPredictions(tagged, found, np.concatenate(true), tags)
    answers = [[SquadAnswer(one, 0) for one in row] for row in (["the cat"], [], ["a dog", "dog"])]
    asked = Questions("a.json", ["q1", "q2", "q3"], ["?"] * 3, ["cat"] * 3, answers)
    told = [AnswerSpan(text, 0, 1.0) for text in ("cat", "", "red dog")]
    yield "answer", AnswerPredictions(asked, told)


@pytest.mark.parametrize(
    ("task", "found"), [pytest.param(*one, id=one[0]) for one in predictions()]
)
def test_the_table_of_evaluate_has_its_scores(task, found, tmp_path):
    write_predictions(tmp_path / "a.csv", {"data": found})
    read = read_outputs(tmp_path / "a.csv")
    assert read.task == task
    rows = score_outputs(
        read.texts, read.references, task_metrics(task, [read.texts], read.references)
    )
    names = {"macro F1": "macro_f1", "Pearson": "pearson", "entity F1": "entity_f1",
             "exact match": "exact_match", "F1": "f1", "accuracy": "accuracy"}  # fmt: skip
    told = {names[name]: score for name, score, _ in rows if name in names}
    assert told == pytest.approx({name: found.scores[name] for name in told})
    assert len(told) >= 1 + (task != "regress")


def test_what_score_prints_has_its_perplexity(tmp_path):
    rows = ["line\tlog_prob\ttokens\tperplexity", "1\t-4.0000\t2\t7.3891", "2\t-6.0000\t3\t7.3891",
            "corpus\t-10.0000\t5\t7.3891"]  # fmt: skip
    (tmp_path / "a.tsv").write_text("\n".join(rows) + "\n")
    read = read_outputs(tmp_path / "a.tsv")
    metrics = task_metrics("language", [read.texts], read.references)
    scores = {name: score for name, score, _ in score_outputs(*read[1:], metrics)}
    assert scores == pytest.approx({"nats a line": 5.0, "perplexity": np.exp(2.0)})
    (tmp_path / "b.tsv").write_text("line\ttext\n1\ta\n")
    with pytest.raises(DataError, match="not the table that score prints"):
        read_outputs(tmp_path / "b.tsv")


def test_a_text_without_a_summary_has_no_score(tmp_path):
    (tmp_path / "a.csv").write_text("source,reference,predicted\na,b,c\nd,,e\n")
    assert read_outputs(tmp_path / "a.csv", task="summarize").texts == ["c"]
    assert read_outputs(tmp_path / "a.csv").texts == ["c", "e"]


def test_files_are_read_as_their_task_says(tmp_path):
    ours, true = write(tmp_path, ["yes", "no "], ["yes", "no "])
    read = read_outputs(ours, [true], "classify")
    assert read.texts == ["yes", "no "]
    empty, other = write(tmp_path, ["", "a"], ["b", "c"])  # an empty output counts
    assert read_outputs(empty, [other]).texts == ["", "a"]
    squad = {"data": [{"paragraphs": [{"context": "a cat", "qas": [
        {"id": "1", "question": "Who?", "answers": [{"text": "cat", "answer_start": 2}]},
        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}]}]}]}  # fmt: skip
    (tmp_path / "squad.json").write_text(json.dumps(squad))
    (tmp_path / "found.json").write_text(json.dumps({"2": "", "1": "the cat"}))
    read = read_outputs(tmp_path / "found.json", [tmp_path / "squad.json"], "answer")
    assert (read.texts, read.references) == (["the cat", ""], [["cat"], [""]])
    for name, tag in (("ours.txt", "B-X"), ("true.conll", "O")):
        (tmp_path / name).write_text(f"a {tag}\nb O\n\nc {tag}\n")
    read = read_outputs(tmp_path / "ours.txt", [tmp_path / "true.conll"], "tag")
    assert (read.texts, read.references) == (["B-X O", "B-X"], [["O O"], ["O"]])


@pytest.mark.parametrize(
    ("ours", "true", "task", "said"),
    [
        (["a", "b"], ["a"], "translate", r"0\.txt has 2 lines, but .*1\.txt has 1 line"),
        ([], [], "translate", "no outputs: it is empty"),
        (["a", " "], ["a", "b"], "classify", r"0\.txt:2: blank: a class is needed"),
        (["1", "nan"], ["1", "2"], "regress", r"0\.txt:2: 'nan': a number is needed"),
        (["a O", "b O"], ["a O", "c O"], "tag", r"0\.txt:1: this sentence is 'a b', but that of"),
        (["a O"], ["a O", "", "b O"], "tag", r"has 1 sentence, but .* has 2 sentences"),
    ],
)
def test_files_that_do_not_match_are_refused(ours, true, task, said, tmp_path):
    paths = write(tmp_path, ours, true)
    with pytest.raises(DataError, match=said):
        read_outputs(paths[0], paths[1:], task)


def test_other_tables_and_missing_references_are_refused(tmp_path):
    [lines] = write(tmp_path, ["a"])
    with pytest.raises(UserError, match="no references: name their files"):
        read_outputs(lines)
    with pytest.raises(UserError, match="task classify takes one file of references: there are 2"):
        read_outputs(lines, [lines, lines], "classify")
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    with pytest.raises(DataError, match="does not have the columns predicted and label"):
        read_outputs(tmp_path / "a.csv")
