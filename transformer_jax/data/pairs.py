"""Sentence pairs in memory: collected, counted, and split into training and validation."""

import dataclasses
import hashlib
from collections.abc import Iterable
from typing import SupportsIndex

from transformer_jax.errors import DataError

__all__ = ["Pairs", "collect", "hold_out"]


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Sentences and their translations, with counts of dropped pairs."""

    sources: list[str]
    targets: list[str]
    name: str
    counts: dict[str, int] = dataclasses.field(default_factory=dict)  # dropped pairs by reason

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: SupportsIndex) -> tuple[str, str]:
        return self.sources[index], self.targets[index]

    def with_prefix(self, prefix: str) -> "Pairs":
        """The pairs with ``prefix`` before every source; an empty one stays empty.

        Example:
            >>> Pairs(["um"], ["one"], "example").with_prefix("to English: ").sources
            ['to English: um']
        """
        if not prefix:
            return self
        sources = [source and prefix + source for source in self.sources]
        return dataclasses.replace(self, sources=sources)

    def without_empty(self) -> "Pairs":
        """The pairs with text on both sides; the others are counted as dropped.

        Example:
            >>> Pairs(["um", ""], ["one", "two"], "example").without_empty()
            Pairs(sources=['um'], targets=['one'], name='example', counts={'empty': 1})
        """
        keep = [bool(s and t) for s, t in zip(self.sources, self.targets, strict=True)]
        empty = len(keep) - sum(keep)
        counts = self.counts | {"empty": self.counts.get("empty", 0) + empty}
        return _select(self, keep, self.name, counts) if empty else self


def collect(
    rows: Iterable[tuple[str, str]], name: str, lowercase: bool = False, *, every: bool = False
) -> Pairs:
    """Pairs from rows: stripped, optionally lower-cased, without those with an empty side.

    Args:
        rows: Sources and targets.
        name: For messages.
        lowercase: Whether both sides are lower-cased.
        every: Whether pairs with an empty side stay, as in data that is scored: a score over some
            lines of a file is another score.

    Raises:
        DataError: No pair has text on both sides.

    Example:
        >>> collect([("Um", "One "), ("dois", "")], "example", lowercase=True)
        Pairs(sources=['um'], targets=['one'], name='example', counts={'empty': 1})
        >>> collect([("Um", "One "), ("dois", " ")], "example", every=True).targets
        ['One', '']
    """
    strip = lambda text: "" if text.isspace() else text.strip(" \t")
    sides = [(strip(source), strip(target)) for source, target in rows]
    cased = lambda text: text.lower() if lowercase else text
    pairs = Pairs([cased(text) for text, _ in sides], [cased(text) for _, text in sides], name)
    full = pairs.without_empty()
    if not len(full):
        count = len(pairs)
        read = f"all {count} of its pairs have an empty side" if count else "it is empty"
        raise DataError(f"{name}: no sentence pairs: {read}")
    return pairs if every else full


def hold_out(pairs: Pairs, count: int) -> tuple[Pairs, Pairs | None]:
    """Training and validation pairs: about ``count``, at most a tenth, go to validation.

    The choice depends on the source sentences alone; equal sources stay together, so no validation
    sentence is in the training data.

    Example:
        >>> pairs = Pairs([f"s{i}" for i in range(100)], [f"t{i}" for i in range(100)], "example")
        >>> train, valid = hold_out(pairs, 5)
        >>> len(train), len(valid)
        (95, 5)
    """
    count = min(count, len(pairs) // 10)
    keys = [hashlib.blake2b(source.encode(), digest_size=16).digest() for source in pairs.sources]
    rest = count
    chosen: set[bytes] = set()
    sizes: dict[bytes, int] = {}
    for key in keys:
        sizes[key] = sizes.get(key, 0) + 1
    for key in sorted(sizes):
        if rest <= 0:
            break
        if sizes[key] <= rest:
            chosen.add(key)
            rest -= sizes[key]
    if not chosen:
        return pairs, None
    inside = [key in chosen for key in keys]
    return (
        _select(pairs, [not held for held in inside], pairs.name, pairs.counts),
        _select(pairs, inside, f"{pairs.name} (held out)", {}),
    )


def _select(pairs: Pairs, keep: list[bool], name: str, counts: dict[str, int]) -> Pairs:
    return Pairs(
        [text for text, kept in zip(pairs.sources, keep, strict=True) if kept],
        [text for text, kept in zip(pairs.targets, keep, strict=True) if kept],
        name,
        counts,
    )
