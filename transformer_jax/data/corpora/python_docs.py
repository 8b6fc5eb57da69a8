"""``python-docs``: the topics of Python's own reference, which is part of every Python."""

import hashlib
from typing import Literal

from transformer_jax.core.errors import DataError

__all__ = ["Split", "generate", "once", "part", "topics"]

Split = Literal["train", "valid", "test"]

_PARTS = 10  # every tenth topic is for testing, the one after it for validation


def generate(split: Split) -> list[str]:
    """The topics of a split, sorted by name; they depend only on the version of Python.

    Held-out topics are chosen by a hash of their names: in the order of the hashes, every tenth is
    for testing, and as many for validation. A third of the topics' paragraphs also occur in another
    topic. Each is kept only in the first topic by name, so nothing held out is trained on.

    Raises:
        DataError: This Python has no documentation.

    Example:
        >>> parts = [generate(split) for split in ("train", "valid", "test")]
        >>> [round(len(part) / sum(map(len, parts)), 1) for part in parts]
        [0.8, 0.1, 0.1]
    """
    return part(once(topics()), split)


def part(documents: dict[str, str], split: Split) -> list[str]:
    """The documents of a split, sorted by name, by the rule of ``generate``."""
    ranked = sorted(documents, key=lambda name: hashlib.sha256(name.encode()).digest())
    places = {name: rank % _PARTS for rank, name in enumerate(ranked)}
    wanted = {"test": {0}, "valid": {1}, "train": set(range(2, _PARTS))}[split]
    return [documents[name] for name in sorted(documents) if places[name] in wanted]


def topics() -> dict[str, str]:
    """All topics, unchanged, by name.

    Raises:
        DataError: This Python has no documentation.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise DataError(
            "data.corpus: this Python came without pydoc_data: use another Python, or "
            "another corpus"
        ) from None
    return topics


def once(documents: dict[str, str]) -> dict[str, str]:
    """Removes paragraphs that already occur in documents earlier by name."""
    seen: set[str] = set()
    kept = {}
    for name in sorted(documents):
        paragraphs = [p for p in documents[name].split("\n\n") if p.strip()]
        fresh = [p for p in dict.fromkeys(paragraphs) if _plain(p) not in seen]
        seen.update(map(_plain, fresh))
        if fresh:
            kept[name] = "\n\n".join(fresh).strip("\n") + "\n"
    return kept


def _plain(paragraph: str) -> str:
    """The words of a paragraph: topics indent the same text differently."""
    return " ".join(paragraph.split())
