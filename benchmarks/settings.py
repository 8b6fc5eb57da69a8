"""Settings of a benchmark, its Pythons, and its results."""

import dataclasses
import sys
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.harness import Bench, Limits, Row

__all__ = ["ENCODERS", "GPT2", "Settings", "Table", "What"]

Table = tuple[str, list[Row], str]  # title, rows, unit
ENCODERS = {"encoder-pretrain": 4, "encoder-finetune": 4, "embed": 3}  # and their rounds
GPT2 = {"vocab": 50_257, "width": 768, "heads": 12, "layers": 12}  # the smallest of the family
# The largest sizes of --tiny.
_TINY = {
    "vocab": 1000, "width": 32, "heads": 2, "layers": 1, "hidden": 64, "context": 16,
    "batch": 4, "length": 8, "prompt": 8, "new": 4, "texts": 64, "deals": 2, "count": 16,
    "image": 32,
}  # fmt: skip

What = Literal[
    "train", "decode", "language-train", "language-decode", "encoder-pretrain",
    "encoder-finetune", "vit-train", "embed", "engine", "recurrent", "adapters",
    "frozen-base", "load",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings:
    """The cases to measure, and the Pythons."""

    what: tyro.conf.Positional[What]
    peers: str = sys.executable  # the Python that has torch, transformers and ctranslate2
    rounds: int | None = None  # that count, after one that does not; None is 7, of encoders fewer
    # Seconds that a case may take to be set up or to run once; slower cases are left out.
    patience: float = 60.0
    # Minutes of a table, after which no further round begins; one always counts.
    minutes: float = 2.0
    tiny: bool = False  # a tiny model and little work, to see that all of it runs
    threads: int = 1  # with 1 the measure is CPU time, with more it is wall time
    output: Path = Path("benchmarks/results")  # where the JSON goes

    @property
    def turns(self) -> int:
        """The rounds that count."""
        return self.rounds or ENCODERS.get(self.what, 7)

    def bench(self, title: str) -> Bench:
        """The cases of a table, which have the time that the settings give."""
        return Bench(self.threads, title, Limits(self.patience, 60 * self.minutes))

    def size(self, **size: Any) -> dict[str, Any]:
        """The sizes of a model and of its work; small ones with ``tiny``."""
        if not self.tiny:
            return size
        return {name: min(value, _TINY.get(name, value)) for name, value in size.items()}
