"""F1 of entities, against a definition over all spans (row B36)."""

import random

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.classification import entities, entity_f1, marks_entities

TAGS = ("O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B")


def continues(left, right):
    """Returns whether two tags next to each other are of one entity."""
    return left[0] in "BI" and right[0] in "IE" and left[1:] == right[1:]


def spans(tags):
    """Yields the spans that are whole inside, and end on both sides."""
    for i in range(len(tags)):
        for j in range(i + 1, len(tags) + 1):
            inside = all(continues(tags[t], tags[t + 1]) for t in range(i, j - 1))
            ends = (i == 0 or not continues(tags[i - 1], tags[i])) and (
                j == len(tags) or not continues(tags[j - 1], tags[j])
            )
            if inside and ends and tags[i] != "O":
                yield i, j, tags[i][2:]


def test_b36_entities_are_the_longest_spans():
    draw = random.Random(0)
    for length in range(9):
        for _ in range(40):
            tags = draw.choices(TAGS, k=length)
            assert [*entities(tags)] == [*spans(tags)], tags


def test_b36_f1_counts_whole_entities():
    wanted = [["B-A", "I-A", "O", "B-B"], ["O", "S-A"]]
    assert entity_f1(wanted, wanted) == 1
    # One of three is found, and one of two that are predicted is right.
    assert entity_f1([["B-A", "O", "O", "O"], ["O", "S-A"]], wanted) == pytest.approx(2 / 5)
    assert entity_f1([["O"]], [["O"]]) == 0
    with pytest.raises(DataError, match="2 predictions but 1 reference"):
        entity_f1([["O"], ["O"]], [["O"]])


def test_b36_other_tags_mark_no_entities():
    assert marks_entities(["O", "B-PER", "I-PER", "U-LOC", "L-LOC"])
    for labels in (["O"], ["NOUN", "X"], ["B", "I", "O"], ["B-PER", "PER"], []):
        assert not marks_entities(labels)
