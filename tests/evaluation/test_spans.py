"""Answers to questions (row H22), against the logic of SQuAD's own scripts."""

import random
import re
import string
from collections import Counter

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.answers import SpanScore, squad_scores


def normalize(text):
    """With the next two, SQuAD's evaluate-v1.1.py written down once more."""
    text = "".join(ch for ch in text.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def f1_v1(prediction, truth):
    prediction, truth = normalize(prediction).split(), normalize(truth).split()
    same = sum((Counter(prediction) & Counter(truth)).values())
    if same == 0:
        return 0
    precision, recall = same / len(prediction), same / len(truth)
    return 2 * precision * recall / (precision + recall)


def evaluate_v1(predictions, answers):
    exact = f1 = total = 0
    for question, truths in answers.items():
        total += 1
        if question not in predictions:
            continue
        prediction = predictions[question]
        exact += max(normalize(prediction) == normalize(truth) for truth in truths)
        f1 += max(f1_v1(prediction, truth) for truth in truths)
    return exact / total, f1 / total


def evaluate_v2(predictions, answers):
    """SQuAD's evaluate-v2.0.py without thresholds; every question has a prediction."""
    exact = f1 = 0
    for question, truths in answers.items():
        truths = [truth for truth in truths if normalize(truth)] or [""]
        prediction = predictions[question]
        exact += max(int(normalize(prediction) == normalize(truth)) for truth in truths)
        scores = []
        for truth in truths:
            ours, theirs = normalize(prediction).split(), normalize(truth).split()
            empty = not ours or not theirs
            scores.append(int(ours == theirs) if empty else f1_v1(prediction, truth))
        f1 += max(scores)
    return exact / len(answers), f1 / len(answers)


WORDS = ["the", "The", "a", "an", "dog", "Dog,", "red", "red.", "(cat)", "U.S.", "theatre", "-"]


def texts(rng, least):
    return " ".join(rng.choices(WORDS, k=rng.randint(least, 4)))


def pair(score):
    return pytest.approx((score.exact_match, score.f1), abs=1e-12)


def test_equal_to_the_script_of_squad_1():
    rng = random.Random(0)
    for _ in range(40):
        questions = [str(number) for number in range(rng.randint(1, 12))]
        answers = {one: [texts(rng, 0) + " dog" for _ in range(3)] for one in questions}
        predictions = {one: texts(rng, 0) for one in questions if rng.random() < 0.8}
        assert evaluate_v1(predictions, answers) == pair(squad_scores(predictions, answers))


def test_equal_to_the_script_of_squad_2():
    rng = random.Random(1)
    for _ in range(40):
        questions = [str(number) for number in range(rng.randint(1, 12))]
        answers = {one: [texts(rng, 0) for _ in range(rng.randint(0, 3))] for one in questions}
        predictions = {one: texts(rng, 0) for one in questions}
        assert evaluate_v2(predictions, answers) == pair(squad_scores(predictions, answers))


def test_by_hand():
    answers = {"1": ["Denver Broncos", "the Broncos"], "2": ["1066"], "3": ["red big dog"]}
    predictions = {"1": "Broncos!", "2": "in 1066", "3": "the cat"}
    score = squad_scores(predictions, answers)
    assert pair(score) == (1 / 3, (1 + 2 / 3 + 0) / 3)
    assert score.count == 3


def test_without_an_answer_the_empty_text_is_right():
    nothing: list[list[str]] = [[], [""], ["", ""]]
    for wanted in nothing:
        answers = {"1": wanted}
        assert squad_scores({"1": ""}, answers) == SpanScore(1.0, 1.0, 1)
        assert squad_scores({"1": "dog"}, answers) == SpanScore(0.0, 0.0, 1)
    assert squad_scores({"1": ""}, {"1": ["dog"]}) == SpanScore(0.0, 0.0, 1)


def test_an_answer_without_words_is_left_out_where_the_scripts_differ():
    given, wanted = {"1": "."}, {"1": ["peace", "."]}
    assert evaluate_v1(given, wanted) == (1, 0)
    assert evaluate_v2(given, wanted) == (0, 0) == pair(squad_scores(given, wanted))
    assert squad_scores({"1": "a"}, {"1": ["the", "cat"]}) == SpanScore(0.0, 0.0, 1)
    assert squad_scores({"1": "cat"}, {"1": ["the", "cat"]}) == SpanScore(1.0, 1.0, 1)


def test_a_question_without_a_prediction_is_wrong():
    answers = {"1": ["dog"], "2": ["cat"], "3": []}
    assert squad_scores({"1": "dog"}, answers) == SpanScore(1 / 3, 1 / 3, 3)
    assert squad_scores({}, answers) == SpanScore(0.0, 0.0, 3)


def test_predictions_to_other_questions_are_passed_over():
    assert squad_scores({"1": "dog", "9": "cat"}, {"1": ["dog"]}) == SpanScore(1.0, 1.0, 1)


def test_no_question_is_refused():
    with pytest.raises(DataError, match="no question"):
        squad_scores({"1": "dog"}, {})
