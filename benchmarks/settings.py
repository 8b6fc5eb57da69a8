"""What a benchmark measures, with which Pythons, and what it gives."""

import dataclasses
import sys
from pathlib import Path
from typing import Literal

import tyro

from benchmarks.harness import Row

__all__ = ["ENCODERS", "Settings", "Table", "What"]

Table = tuple[str, list[Row], str]  # title, rows, unit
ENCODERS = {"encoder-pretrain": 4, "encoder-finetune": 4, "embed": 3}  # and their rounds

What = Literal[
    "train", "decode", "language-train", "language-decode", "encoder-pretrain",
    "encoder-finetune", "embed", "engine", "recurrent", "adapters", "frozen-base",
    "load",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure, and with which Pythons."""

    what: tyro.conf.Positional[What]
    peers: str = sys.executable  # the Python that has torch, transformers and ctranslate2
    rounds: int | None = None  # that count, after one that does not; None is 7, of encoders fewer
    tiny: bool = False  # encoders only: a tiny model and few texts, to see that all of it runs
    threads: int = 1  # with 1 the measure is CPU time, with more it is wall time
    output: Path = Path("benchmarks/results")  # where the JSON goes

    @property
    def turns(self) -> int:
        """The rounds that count."""
        return self.rounds or ENCODERS.get(self.what, 7)
