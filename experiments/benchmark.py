"""Ours and the peers', interleaved on this machine: ``train``, ``decode``.

    python -m experiments.benchmark train
    python -m experiments.benchmark decode --peers /path/to/python-with-torch

Writes ``benchmarks/results/NAME.json`` with hardware, versions and commit, and prints a table of
ratios: how many times as fast as the base case, medians over rounds. Peers that are not installed
are left out, and said so. About 2 minutes each.
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import tyro

from experiments.benchmarking.harness import Bench, environment, table

PEERS = "experiments.benchmarking.peers"

# 3+3 layers of 256 and 1024, 4 heads, 8,000 tokens: the size of a small translator.
SIZE = {"vocab": 8000, "width": 256, "heads": 4, "layers": 3, "hidden": 1024}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure, and with which Pythons."""

    what: tyro.conf.Positional[Literal["train", "decode"]]
    peers: str = sys.executable  # the Python that has torch, transformers and ctranslate2
    rounds: int = 7  # that count, after one that does not
    threads: int = 1  # with 1 the measure is CPU time, with more it is wall time
    output: Path = Path("benchmarks/results")  # where the JSON goes


def train(settings: Settings) -> tuple[str, list[Any], str]:
    """A training step on 64 pairs of 32 + 32 tokens."""
    bench = Bench(settings.threads)
    arguments = {**SIZE, "batch": 64, "length": 32}
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS}
    base = "torch.nn.Transformer, eager"
    bench.add(base, "train", arguments, **peer)
    bench.add("torch.nn.Transformer, compiled", "train", {**arguments, "compiled": True}, **peer)
    bench.add("transformer_jax", "train", arguments)
    bench.add("transformer_jax, logits not held", "train", {**arguments, "chunk": 512})
    rows = bench.measure(settings.rounds, 64 * 64, base)
    bench.close()
    return "seq2seq training step, 64 pairs of 32 + 32 tokens", rows, "tokens"


def decode(settings: Settings) -> list[tuple[str, list[Any], str]]:
    """32 new tokens of sentences of 32, greedily and with 4 beams, alone and 32 at a time."""
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for batch, beams in ((1, 1), (1, 4), (32, 1), (32, 4)):
            bench = Bench(settings.threads)
            arguments = {
                **SIZE, "folder": folder, "batch": batch, "length": 32, "new": 32, "beams": beams
            }  # fmt: skip
            peer: dict[str, Any] = {"python": settings.peers, "module": PEERS}
            base, few = "transformers generate", 8 if batch == 1 else 1
            bench.add(base, "generate", arguments, times=max(1, few // 4), **peer)
            bench.add("CTranslate2 float32", "ctranslate2", arguments, times=few, **peer)
            int8 = {**arguments, "precision": "int8"}
            bench.add("CTranslate2 int8", "ctranslate2", int8, times=few, **peer)
            bench.add("transformer_jax", "decode", arguments, times=few)
            rows = bench.measure(settings.rounds, batch * 32, base)
            bench.close()
            search = "greedy" if beams == 1 else f"beam {beams}"
            tables.append((f"decode, batch {batch}, {search}", rows, "tokens"))
    return tables


def main() -> None:
    """Runs one benchmark and keeps its result."""
    settings = tyro.cli(Settings, description=__doc__)
    tables = [train(settings)] if settings.what == "train" else decode(settings)
    facts = environment()
    python = ".".join(facts["python"].split(".")[:2])
    settings.output.mkdir(parents=True, exist_ok=True)
    where = settings.output / f"{settings.what}_cpu_py{python}.json"
    report = {
        "command": "python -m experiments.benchmark " + " ".join(sys.argv[1:2]),
        "environment": facts,
        "threads": settings.threads,
        "rounds": settings.rounds,
        "tables": [
            {"title": title, "rows": [dataclasses.asdict(row) for row in rows]}
            for title, rows, _ in tables
        ],
    }
    where.write_text(json.dumps(report, indent=1) + "\n")
    for title, rows, unit in tables:
        print(table(title, rows, unit), end="\n\n")
    print(f"written to {where}")


if __name__ == "__main__":
    main()
