"""Sentence pairs in memory: collecting, counting, and splitting into training and validation."""

import collections
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Literal, SupportsIndex

from transformer_jax.core.errors import DataError, plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.languages import Direction
from transformer_jax.data.preparation import Preparation

__all__ = [
    "Grouping",
    "Pairs",
    "choose_held",
    "collect",
    "describe_held",
    "describe_overlap",
    "describe_swapped",
    "hold_out",
    "warn_none_held",
]

Grouping = Literal["both", "source"]
_COMPARED = 200  # sentences of a language in a direction, to find swapped sides


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, with counts of dropped pairs.

    Attributes:
        sources: Sentences.
        targets: Their translations.
        name: Name of the source, for messages.
        counts: Dropped pairs by reason.
        directions: The languages of each pair; None if all are of one unnamed direction.
    """

    sources: list[str]
    targets: list[str]
    name: str
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    directions: list[Direction] | None = None

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: SupportsIndex) -> tuple[str, str]:
        return self.sources[index], self.targets[index]

    def with_prefix(self, prefix: str) -> "Pairs":
        """Returns the pairs with ``prefix`` before every source; empty sources stay empty.

        Example:
            >>> Pairs(["um"], ["one"], "example").with_prefix("to English: ").sources
            ['to English: um']
        """
        if not prefix:
            return self
        sources = [source and prefix + source for source in self.sources]
        return dataclasses.replace(self, sources=sources)

    def without_empty(self) -> "Pairs":
        """Returns the pairs with text on both sides, and counts the others as dropped.

        Example:
            >>> Pairs(["um", ""], ["one", "two"], "example").without_empty().counts
            {'empty': 1}
        """
        keep = [bool(s and t) for s, t in zip(self.sources, self.targets, strict=True)]
        empty = len(keep) - sum(keep)
        counts = self.counts | {"empty": self.counts.get("empty", 0) + empty}
        return _select(self, keep, self.name, counts) if empty else self

    def first(self, count: int) -> "Pairs":
        """The first ``count`` pairs.

        Example:
            >>> Pairs(["um", "dois"], ["one", "two"], "example").first(1).targets
            ['one']
        """
        inside = [i < count for i in range(len(self))]
        return self if count >= len(self) else _select(self, inside, self.name, self.counts)

    def with_copies(self, share: float) -> "Pairs":
        """Returns the pairs, plus copies of a share of the distinct sentences of each language.

        A copy has the direction from a language to itself. Sentences are chosen by their hash.

        Example:
            >>> pairs = Pairs(["um"], ["one"], "example", {}, [Direction("pt", "en")])
            >>> [str(direction) for direction in pairs.with_copies(1.0).directions or ()]
            ['pt-en', 'pt-pt', 'en-en']
        """
        texts: dict[str | None, dict[str, None]] = {}
        for way, part in self.by_direction().items() if share else ():
            for language, side in zip(way, (part.sources, part.targets), strict=True):
                texts.setdefault(language, {}).update(dict.fromkeys(side))
        most = share * 256**16
        copies = [
            (text, Direction(language, language))
            for language, own in texts.items()
            for text in own
            if int.from_bytes(_digest(text)) < most
        ]
        if not copies:
            return self
        same, ways = map(list, zip(*copies, strict=True))
        return dataclasses.replace(
            self,
            sources=self.sources + same,
            targets=self.targets + same,
            directions=[*(self.directions or ()), *ways],
        )

    def by_direction(self) -> "dict[Direction, Pairs]":
        """Returns the pairs of each direction, in order of first occurrence.

        Example:
            >>> both = [Direction("pt", "en"), Direction("en", "pt")]
            >>> pairs = Pairs(["um", "two"], ["one", "dois"], "example", {}, both)
            >>> {str(direction): part.sources for direction, part in pairs.by_direction().items()}
            {'pt-en': ['um'], 'en-pt': ['two']}
        """
        directions = self.directions or []
        return {
            one: _select(self, [own == one for own in directions], f"{self.name} {one}", {})
            for one in dict.fromkeys(directions)
        }


def collect(
    rows: Iterable[tuple[str, str]],
    name: str,
    prepare: Preparation = Preparation(),
    *,
    every: bool = False,
) -> Pairs:
    """Collects pairs of prepared lines, without those that have an empty side.

    Args:
        rows: Sources and targets.
        name: Name of the source, for messages.
        prepare: Preparation of both sides.
        every: Whether to keep pairs with an empty side, as for data to score: a score over only
            some lines of a file would be a different score.

    Raises:
        DataError: No pair has text on both sides.

    Example:
        >>> pairs = collect([("Um", "One "), ("dois", "")], "example", Preparation(lowercase=True))
        >>> pairs.sources, pairs.targets, pairs.counts
        (['um'], ['one'], {'empty': 1})
        >>> collect([("Um", "One "), ("dois", " ")], "example", every=True).targets
        ['One', '']
    """
    sides = [(prepare.line(source), prepare.line(target)) for source, target in rows]
    pairs = Pairs([source for source, _ in sides], [target for _, target in sides], name)
    full = pairs.without_empty()
    if not len(full):
        count = len(pairs)
        read = f"all {count} of its pairs have an empty side" if count else "it is empty"
        raise DataError(f"{name}: no sentence pairs: {read}")
    return pairs if every else full


def hold_out(pairs: Pairs, count: int, grouped_by: Grouping = "both") -> tuple[Pairs, Pairs | None]:
    """Splits pairs into training and validation: about ``count``, at most a tenth, are held out.

    Pairs that share a side stay together, directly or through other pairs: no validation sentence
    is trained on, in any direction. The choice depends only on the sentences, not on their order.
    If so many are connected that none could be held out, as with targets that are classes, only
    shared sources keep pairs together.

    Args:
        pairs: The pairs.
        count: Number of pairs to hold out, on average per direction.
        grouped_by: Whether ``both`` sides or only the ``source`` keep pairs together.

    Example:
        >>> pairs = Pairs([f"s{i}" for i in range(100)], [f"t{i}" for i in range(100)], "example")
        >>> train, valid = hold_out(pairs, 5)
        >>> len(train), len(valid)
        (95, 5)
    """
    if pairs.directions is not None:
        inside = _held_of_directions(pairs, pairs.directions, count, grouped_by)
    else:
        targets = pairs.targets if grouped_by == "both" else None
        inside = choose_held(pairs.sources, targets, count)
    if not any(inside):
        warn_none_held(pairs.name, count)
        return pairs, None
    return (
        _select(pairs, [not held for held in inside], pairs.name, pairs.counts),
        _select(pairs, inside, f"{pairs.name} (held out)", {}),
    )


def warn_none_held(name: str, count: int) -> None:
    """Logs that no examples are held out for validation, unless that is what ``count`` says."""
    if count:
        log(
            f"warning: {name}: no validation: at most a tenth is held out, and examples that share "
            f"a text stay together, so there is none: give data.valid, or set "
            f"data.read.validation_size to 0"
        )


def choose_held(sources: Sequence[str], targets: Sequence[str] | None, count: int) -> list[bool]:
    """Returns whether each pair is held out by :func:`hold_out`.

    Args:
        sources: One side.
        targets: The other side; None lets only equal sources keep pairs together.
        count: Number of pairs to hold out, at most a tenth of all.

    Example:
        >>> choose_held([str(i % 10) for i in range(20)], None, 2).count(True)
        2
        >>> choose_held([str(i) for i in range(20)], ["yes", "no"] * 10, 2).count(True)
        2
    """
    keys, count = [_digest(source) for source in sources], min(count, len(sources) // 10)
    if targets is not None:
        inside = _choose(_connected(keys, [_digest(target) for target in targets]), count)
        if any(inside):
            return inside
    return _choose(keys, count)


def _held_of_directions(
    pairs: Pairs, directions: Sequence[Direction], count: int, grouped_by: Grouping
) -> list[bool]:
    """Returns whether each pair of several directions is held out.

    A sentence counts as the same whether it is a source or a target of its language.
    """
    both = list(zip(directions, pairs.sources, pairs.targets, strict=True))
    keys = [_digest(f"{way.source}\0{source}") for way, source, _ in both]
    most = min(count * len(set(directions)), len(keys) // 10)
    if grouped_by == "both":
        targets = [_digest(f"{way.target}\0{target}") for way, _, target in both]
        every = [*keys, *targets]  # each sentence paired with itself: its two nodes are connected
        inside = _choose(_connected([*keys, *every], [*targets, *every])[: len(keys)], most)
        if any(inside):
            return inside
    return _choose(keys, most)


def _choose(keys: Sequence[bytes], rest: int) -> list[bool]:
    """Returns whether each item is chosen: groups of equal keys in key order, at most ``rest``."""
    chosen: set[bytes] = set()
    sizes = collections.Counter(keys)
    for key in sorted(sizes):
        if rest <= 0:
            break
        if sizes[key] <= rest:
            chosen.add(key)
            rest -= sizes[key]
    return [key in chosen for key in keys]


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _connected(sources: Sequence[bytes], targets: Sequence[bytes]) -> list[bytes]:
    """Returns the smallest source of each pair's connected component.

    Sources and targets are the nodes of a graph; pairs are its edges.

    Example:
        >>> _connected([b"3", b"1", b"1", b"7"], [b"x", b"x", b"y", b"z"])
        [b'1', b'1', b'1', b'7']
    """
    above = {source: source for source in sources}

    def root(source: bytes) -> bytes:
        while above[source] != source:
            above[source] = above[above[source]]
            source = above[source]
        return source

    first: dict[bytes, bytes] = {}
    for source, target in zip(sources, targets, strict=True):
        one, other = root(source), root(first.setdefault(target, source))
        above[max(one, other)] = min(one, other)
    return [root(source) for source in sources]


def describe_overlap(train: Pairs, held: Pairs) -> str:
    """Returns a line about sentences of ``held`` that also occur in the training pairs.

    Example:
        >>> train = Pairs(["um", "dois"], ["one", "two"], "train")
        >>> describe_overlap(train, Pairs(["um", "tres"], ["one", "two"], "valid.tsv"))
        'valid.tsv: of 2 pairs, 1 source, 2 targets and 1 whole pair are also in the training data'
    """
    # Sets of the smaller side only: training pairs may be many millions.
    rows = list(zip(held.sources, held.targets, strict=True))
    known = set(held.sources).intersection(train.sources)
    written = set(held.targets).intersection(train.targets)
    both = set(rows).intersection(zip(train.sources, train.targets, strict=True))
    sources = sum(source in known for source in held.sources)
    targets = sum(target in written for target in held.targets)
    whole = sum(pair in both for pair in rows)
    return (
        f"{held.name}: of {plural(len(held), 'pair')}, {plural(sources, 'source')}, "
        f"{plural(targets, 'target')} and {plural(whole, 'whole pair')} are also in the training "
        f"data"
    )


def describe_held(train: Pairs, valid: Pairs | None) -> tuple[str, ...]:
    """Returns a line about held-out pairs whose targets are also trained on, if there are any.

    Example:
        >>> train, valid = hold_out(Pairs([str(i) for i in range(20)], ["yes", "no"] * 10, "a"), 2)
        >>> describe_held(train, valid)[0][:30]
        'a (held out): of 2 pairs, 0 so'
    """
    if valid is None or set(valid.targets).isdisjoint(train.targets):
        return ()
    return (describe_overlap(train, valid),)


def describe_swapped(pairs: Pairs) -> tuple[str, ...]:
    """Returns a line for each two directions that give most of their sentences other languages.

    The sides of a file are then probably read in the wrong order. The first sentences of each
    direction are compared.

    Example:
        >>> ways = [Direction("de", "en"), Direction("en", "de")]
        >>> pairs = Pairs(["ein Haus"] * 2, ["a house"] * 2, "data.pairs", {}, ways)
        >>> describe_swapped(pairs)[0][:67]
        'data.pairs: 1 of 1 sentence of en in en-de is a sentence of de in d'
    """
    texts: dict[Direction, tuple[dict[str, None], dict[str, None]]] = {}
    for way, *sides in zip(pairs.directions or (), pairs.sources, pairs.targets, strict=False):
        for own, text in zip(texts.setdefault(way, ({}, {})), sides, strict=True):
            if text and len(own) < _COMPARED:
                own[text] = None
    lines = []
    for one, other in itertools.combinations(texts, 2):
        for (name, own), (old, others) in itertools.product(
            zip(other, texts[other], strict=True), zip(one, texts[one], strict=True)
        ):
            shared = len(own.keys() & others.keys())
            if name != old and 2 * shared > min(len(own), len(others)):
                lines.append(
                    f"{pairs.name}: {shared} of {plural(len(own), 'sentence')} of {name} in "
                    f"{other} {'is a sentence' if shared == 1 else 'are sentences'} of {old} in "
                    f"{one}: check the order of the sides in the files of {other}"
                )
                break
    return tuple(lines)


def _select(pairs: Pairs, keep: list[bool], name: str, counts: dict[str, int]) -> Pairs:
    chosen = lambda items: [item for item, kept in zip(items, keep, strict=True) if kept]
    ways = None if pairs.directions is None else chosen(pairs.directions)
    return Pairs(chosen(pairs.sources), chosen(pairs.targets), name, counts, ways)
