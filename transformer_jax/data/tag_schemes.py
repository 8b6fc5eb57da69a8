"""Schemes by which the tags of words mark entities: IOB1, IOB2, BIOES and BILOU."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

__all__ = ["TagScheme", "entities", "marks_entities", "scheme_of", "write_entities"]

TagScheme = Literal["iob1", "iob2", "bioes", "bilou"]
_BEGINS, _ENDS = "BSU", "ESLU"  # the first and the last tag of an entity, besides I
# The first tag, further ones, the last one, and the only one of an entity.
_LETTERS = {"iob1": "IIII", "iob2": "BIIB", "bioes": "BIES", "bilou": "BILU"}


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

    Reads every scheme. An I that follows no tag of its type begins an entity, as in the evaluation
    of CoNLL-2000 (Tjong Kim Sang and Buchholz 2000).

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


def write_entities(tags: Sequence[str], scheme: TagScheme) -> list[str]:
    """Returns tags that mark the same entities in another scheme.

    In IOB1, B marks an entity that follows one of its type at once, and I all other words of
    entities; in IOB2, B marks every first word (Tjong Kim Sang and Veenstra 1999). BIOES also marks
    the last word (E) and the only one (S); BILOU calls these L and U (Ratinov and Roth 2009).

    Example:
        >>> tags = ["B-PER", "I-PER", "B-PER", "O"]
        >>> write_entities(tags, "iob1"), write_entities(tags, "bioes")
        (['I-PER', 'I-PER', 'B-PER', 'O'], ['B-PER', 'E-PER', 'S-PER', 'O'])
    """
    first, inside, last, only = (*_LETTERS[scheme],)
    written, before = ["O"] * len(tags), (0, 0, "")
    for begin, end, kind in entities(tags):
        size = end - begin
        letters = only if size == 1 else first + inside * (size - 2) + last
        if scheme == "iob1" and before[1:] == (begin, kind):
            letters = "B" + letters[1:]
        written[begin:end] = [f"{letter}-{kind}" for letter in letters]
        before = begin, end, kind
    return written


def scheme_of(sentences: Sequence[Sequence[str]]) -> TagScheme | None:
    """Returns the scheme whose way of writing the entities gives the same tags again.

    There is at most one if there are entities.

    Returns:
        The scheme; None if tags mark no entities, or fit none, as where schemes are mixed.

    Example:
        >>> scheme_of([["I-PER", "O"]]), scheme_of([["B-PER", "I-PER"]]), scheme_of([["S-PER"]])
        ('iob1', 'iob2', 'bioes')
        >>> scheme_of([["I-PER", "O", "B-PER"]]), scheme_of([["NOUN"]])
        (None, None)
    """
    if not marks_entities(list({tag for tags in sentences for tag in tags})):
        return None
    schemes: tuple[TagScheme, ...] = get_args(TagScheme)
    fits = lambda scheme: all(write_entities(tags, scheme) == list(tags) for tags in sentences)
    return next(filter(fits, schemes), None)
