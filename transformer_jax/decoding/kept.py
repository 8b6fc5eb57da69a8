"""The cached state of a text that a model has read, to continue from."""

import dataclasses
from collections.abc import Sequence
from typing import Any

__all__ = ["KeptContext"]


@dataclasses.dataclass
class KeptContext:
    """The keys and values of a text that grows, such as a conversation.

    Attributes:
        ids: The tokens that the cache holds.
        origin: Slot of the first of them.
        cache: Their keys and values; None while a program has them, and where nothing is kept.
    """

    ids: list[int] = dataclasses.field(default_factory=list)
    origin: int = 0
    cache: Any = None

    def shared(self, ids: Sequence[int]) -> int:
        """Counts the first tokens of ``ids`` that need not be read, all but the last at most.

        Example:
            >>> KeptContext([1, 2, 3], 0, "a cache").shared([1, 2, 4, 5])
            2
            >>> KeptContext([1, 2, 3], 0, "a cache").shared([1, 2, 3])
            2
        """
        if self.cache is None:
            return 0
        count = 0
        for mine, theirs in zip(self.ids, ids[:-1], strict=False):
            if mine != theirs:
                break
            count += 1
        return count

    def take(self) -> Any:
        """The cache, for a program that uses it up."""
        cache, self.cache = self.cache, None
        return cache

    def hold(self, cache: Any, ids: list[int]) -> None:
        """Keeps a cache of these tokens."""
        self.cache, self.ids = cache, ids
