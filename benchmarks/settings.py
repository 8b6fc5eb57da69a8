"""Settings of a benchmark, Python interpreters, and results."""

import dataclasses
import sys
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.harness import Bench, Limits, Row

__all__ = ["ENCODERS", "GPT2", "Settings", "Table", "What"]

Table = tuple[str, list[Row], str]  # title, rows, unit
ENCODERS = {"encoder-pretrain": 4, "encoder-finetune": 4, "embed": 3}  # numbers of rounds
GPT2 = {"vocab": 50_257, "width": 768, "heads": 12, "layers": 12}  # the smallest GPT-2
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
    """The cases to measure, and Python interpreters."""

    what: tyro.conf.Positional[What]
    peers: str = sys.executable  # Python interpreter with torch, transformers and ctranslate2
    rounds: int | None = None  # measured rounds, after a warmup; None is 7, fewer for encoders
    # Seconds that a case may take to set up or to run once; slower cases are skipped. None is 60,
    # and on a GPU 300, where compilers try several programs.
    patience: float | None = None
    # Minutes per table, after which no further round begins; at least one is measured. None is 2,
    # and on a GPU 10.
    minutes: float | None = None
    tiny: bool = False  # a tiny model and little work, as a smoke test
    threads: int = 1  # on a CPU, 1 measures CPU time, more measures wall time
    # Device. On a GPU, larger models are measured, in bfloat16 and by wall time.
    device: Literal["cpu", "gpu"] = "cpu"
    output: Path = Path("benchmarks/results")  # output folder

    @property
    def turns(self) -> int:
        """Returns the number of measured rounds."""
        return self.rounds or ENCODERS.get(self.what, 7)

    @property
    def limits(self) -> Limits:
        """Returns the time limits of a case and of a table."""
        patience, minutes = (300.0, 10.0) if self.device == "gpu" else (60.0, 2.0)
        patience = patience if self.patience is None else self.patience
        return Limits(patience, 60 * (minutes if self.minutes is None else self.minutes))

    def bench(self, title: str) -> Bench:
        """Returns the bench of a table, with the time limits of the settings."""
        return Bench(self.threads, title, self.limits, self.device)

    def size(self, **size: Any) -> dict[str, Any]:
        """Returns the sizes of a model and of its work, small with ``tiny``."""
        if not self.tiny:
            return size
        return {name: min(value, _TINY.get(name, value)) for name, value in size.items()}
