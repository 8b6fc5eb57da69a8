"""How translations are looked for, and in which shapes."""

import dataclasses
import itertools
import math
from typing import Literal

from transformer_jax.decoding.lengths import Normalization, check_normalization
from transformer_jax.errors import ConfigError

__all__ = ["BeamSearchConfig", "TranslationBatching"]


@dataclasses.dataclass(frozen=True)
class BeamSearchConfig:
    """How a translation is looked for."""

    beams: int = 4  # hypotheses that live side by side; 1 is greedy search
    normalization: Normalization = "gnmt"  # how scores are divided by length
    alpha: float = 0.6  # its exponent: 0 prefers short translations, 1 the best mean
    nbest: int = 1  # translations returned of each line, at most as many as beams
    length_ratio: float = 2.0  # at most so many target tokens for each source token,
    length_extra: int = 10  # and so many more
    minimum: int = 1  # at least so many target tokens, the end of the sentence included
    unknown: bool = True  # whether the unknown token may be written

    def __post_init__(self) -> None:
        check_normalization(self.normalization, self.alpha)
        if self.beams < 1:
            raise ConfigError(f"beams is {self.beams}: at least 1 (greedy search) is needed")
        if not 1 <= self.nbest <= self.beams:
            raise ConfigError(f"nbest is {self.nbest}: allowed are 1 to beams, {self.beams}")
        if not (math.isfinite(self.length_ratio) and self.length_ratio >= 0):
            raise ConfigError(f"length_ratio is {self.length_ratio}: a finite number from 0 on")
        if self.length_extra < 1:
            raise ConfigError(f"length_extra is {self.length_extra}: at least 1")
        if self.minimum < 1:
            raise ConfigError(f"minimum is {self.minimum}: at least 1, the end of the sentence")

    def limit(self, source_length: int, longest: int) -> int:
        """The most target tokens for a source of so many, EOS included in both."""
        return min(int(self.length_ratio * source_length) + self.length_extra, longest)


@dataclasses.dataclass(frozen=True)
class TranslationBatching:
    """Which shapes are compiled; a line's length is rounded up by itself, not by its neighbours."""

    source_lengths: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024)  # to round up to
    rows: tuple[int, ...] = (1, 8, 32)  # lines at once, the rest of a batch filled up
    tokens: int = 8192  # at most so many source tokens at once, where one line leaves the choice
    window: int = 4096  # lines read ahead and sorted by length; order is kept
    too_long: Literal["cut", "refuse"] = "cut"  # what happens to a line beyond the longest shape

    def __post_init__(self) -> None:
        for name in ("source_lengths", "rows"):
            sizes = getattr(self, name)
            if not sizes or sizes[0] < 1 or any(b <= a for a, b in itertools.pairwise(sizes)):
                raise ConfigError(f"{name} is {sizes}: it must be growing numbers from 1 on")
        if self.window < 1:
            raise ConfigError(f"window is {self.window}: at least 1 line must be read")
