"""F1 of named entities, which several tags together mark."""

import re
from collections.abc import Iterator, Sequence

from transformer_jax.evaluation.lengths import check_lengths

__all__ = ["entities", "entity_f1", "marks_entities"]

_BEGINS, _ENDS = "BSU", "ESLU"  # the first and the last tag of an entity, besides I


def marks_entities(labels: Sequence[str]) -> bool:
    """Returns whether tags mark entities: B-PER, I-PER and O, and E, L, S, U for ends.

    Example:
        >>> marks_entities(["B-PER", "I-PER", "O"]), marks_entities(["NOUN", "X"])
        (True, False)
    """
    tags = [label for label in labels if label != "O"]
    return bool(tags) and all(re.match(r"[BIELSU]-.", tag) for tag in tags)


def entities(tags: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yields the first place, the place after the last, and the type of each entity.

    An I that follows no tag of its type begins an entity, as in the evaluation of CoNLL-2000
    (Tjong Kim Sang and Buchholz 2000).

    Example:
        >>> [*entities(["B-PER", "I-PER", "O", "B-LOC", "I-PER"])]
        [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'PER')]
    """
    begin, last = 0, "O"
    for place, tag in enumerate([*tags, "O"]):
        goes_on = tag[0] not in _BEGINS and tag[1:] == last[1:] and last[0] not in _ENDS
        if not goes_on:
            if last != "O":
                yield begin, place, last[2:]
            begin = place
        last = tag


def entity_f1(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Returns the F1 of entities, ``2 correct / (predicted + true)``; 0 if there are none.

    An entity is correct if its first word, its last word and its type are.

    Raises:
        DataError: The numbers of predictions and references differ, or there are none.

    Example:
        >>> entity_f1([["B-PER", "I-PER", "O"]], [["B-PER", "O", "B-LOC"]])
        0.0
        >>> round(entity_f1([["B-PER", "O", "O"]], [["B-PER", "O", "B-LOC"]]), 3)
        0.667
    """
    check_lengths(predictions, references)
    correct = total = 0
    for predicted, wanted in zip(predictions, references, strict=True):
        ours, theirs = set(entities(predicted)), set(entities(wanted))
        correct += len(ours & theirs)
        total += len(ours) + len(theirs)
    return 2 * correct / total if total else 0.0
