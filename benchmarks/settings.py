"""Settings of a benchmark, and sizes of models."""

import dataclasses
import sys
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.harness import Bench, Limits, Row
from benchmarks.sizes import sized

__all__ = ["ENCODERS", "Settings", "Table", "What"]

Table = tuple[str, list[Row], str]  # title, rows, unit
ENCODERS = {"encoder-pretrain": 4, "encoder-finetune": 4, "embed": 3}  # numbers of rounds

What = Literal[
    "train", "decode", "language-train", "language-decode", "encoder-pretrain",
    "encoder-finetune", "modernbert", "vit-train", "embed", "engine", "recurrent", "adapters",
    "frozen-base", "load",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings:
    """The cases to measure, and Python interpreters."""

    what: tyro.conf.Positional[What]
    peers: str = sys.executable  # Python interpreter with torch, transformers and ctranslate2
    rounds: int | None = None  # measured rounds, after a warmup; None is 7, fewer for encoders
    # Seconds that a case may take to set up or to run once; slower cases are skipped.
    patience: float = 60.0
    # Minutes per table, after which no further round begins; at least one is measured.
    minutes: float = 2.0
    processes: int = 1  # processes that run each case, whose medians are stored
    tiny: bool = False  # a tiny model and little work, as a smoke test
    threads: int = 1  # on a CPU, 1 measures CPU time, more measures wall time
    output: Path = Path("benchmarks/results")  # output folder

    @property
    def turns(self) -> int:
        """Returns the number of measured rounds."""
        return self.rounds or ENCODERS.get(self.what, 7)

    @property
    def limits(self) -> Limits:
        """Returns the time limits of a case and of a table."""
        return Limits(self.patience, 60 * self.minutes)

    def bench(self, title: str) -> Bench:
        """Returns the bench of a table, with the time limits of the settings."""
        return Bench(self.threads, title, self.limits, processes=self.processes)

    def size(self, **size: Any) -> dict[str, Any]:
        """Returns the sizes of a model and of its work, small with ``tiny``."""
        return sized(self.tiny, **size)
