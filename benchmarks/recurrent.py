"""Recurrent translators and convolutions against torch: ``python -m benchmarks recurrent``."""

from typing import Any

import numpy as np

from benchmarks.settings import Settings, Table

__all__ = ["recurrent"]

OURS, PEERS = "benchmarks.ours_recurrent", "benchmarks.peers_recurrent"


def recurrent(settings: Settings) -> list[Table]:
    """Recurrent translators of width 512, pairs of 20 + 20 tokens, and gated convolutions."""
    size = settings.size(vocab=8000, width=512, length=20)
    tables = []
    for kind in ("luong", "bahdanau"):
        for case, full, times in (("train", 64, 1), ("decode", 32, 4), ("decode", 1, 16)):
            batch = settings.size(batch=full)["batch"]
            arguments = {**size, "kind": kind, "batch": batch}
            theirs = {"torch, eager": {}, "torch, compiled": {"compiled": True}}
            if case == "decode":
                del theirs["torch, compiled"]
            title = f"{kind}, {'training step' if case == 'train' else 'greedy'}, {batch} sentences"
            work = batch * size["length"] * (2 if case == "train" else 1)
            tables.append(_recurrent(settings, title, case, arguments, theirs, work, times))
        sources, targets = _line_lengths(settings.size(count=1000)["count"])
        file: dict[str, Any] = {"kind": kind, "vocab": size["vocab"], "width": size["width"]}
        file |= {"sources": sources, "targets": targets}
        others: dict[str, Any] = {
            "torch, eager": {},
            "torch, eager, batches of 128": {"batch": 128},
        }
        title = f"{kind}, greedy, a file of {len(sources):,} sentences"
        tables.append(_recurrent(settings, title, "lines", file, others, sum(targets), 1))
    for batch, length, places in ((64, 24, 3), (16, 256, 4)):
        arguments = settings.size(width=256, places=places, batch=batch, length=length)
        work = arguments["batch"] * arguments["length"]
        title = f"gated convolution of {places} places, {batch} texts of {length}"
        theirs = {"torch, eager": {}}
        tables.append(_recurrent(settings, title, "convolution", arguments, theirs, work, 4))
    return tables


def _line_lengths(count: int) -> tuple[list[int], list[int]]:
    """Returns lengths of sources and translations, distributed as in a Multi30k test file.

    There, log-lengths of sources have mean 2.67 and deviation 0.32; lengths of translations differ
    by a factor whose logarithm has deviation 0.14.
    """
    rng = np.random.default_rng(0)
    sources = np.exp(rng.normal(2.67, 0.32, count))
    targets = sources * np.exp(rng.normal(-0.02, 0.14, count))
    whole = lambda lengths: np.maximum(1, lengths.round()).astype(int).tolist()
    return whole(sources), whole(targets)


def _recurrent(
    settings: Settings,
    title: str,
    case: str,
    arguments: dict[str, Any],
    theirs: dict[str, dict[str, Any]],
    work: int,
    times: int,
) -> Table:
    bench = settings.bench(title)
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS, "times": times}
    bench.add("transformer_jax", case, arguments, module=OURS, times=times)
    for name, more in theirs.items():
        bench.add(name, case, arguments | more, **peer)
    rows = bench.measure(settings.turns, work, "torch, eager")
    bench.close()
    return title, rows, "tokens"
