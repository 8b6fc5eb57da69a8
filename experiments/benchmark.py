"""Ours and the peers', interleaved on this machine.

    python -m experiments.benchmark train
    python -m experiments.benchmark decode --peers /path/to/python-with-torch
    python -m experiments.benchmark language-train
    python -m experiments.benchmark language-decode

Writes ``benchmarks/results/NAME.json`` with hardware, versions and commit, and prints a table of
ratios: how many times as fast as the base case, medians over rounds. Peers that are not installed
are left out, and said so. About 2 minutes each.
"""

import dataclasses
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import tyro

from experiments.benchmarking.harness import Bench, Row, environment, table

PEERS = "experiments.benchmarking.peers"
OURS_LANGUAGE = "experiments.benchmarking.ours_language"
PEERS_LANGUAGE = "experiments.benchmarking.peers_language"

Table = tuple[str, list[Row], str]  # title, rows, unit

# 3+3 layers of 256 and 1024, 4 heads, 8,000 tokens: the size of a small translator.
SIZE = {"vocab": 8000, "width": 256, "heads": 4, "layers": 3, "hidden": 1024}

# nanoGPT's settings for a CPU, and a model six times as deep and wide in memory.
CHARACTERS = {"vocab": 65, "width": 128, "heads": 4, "layers": 4, "context": 64, "batch": 12}
MIDDLE = {"vocab": 8000, "width": 384, "heads": 6, "layers": 6, "context": 256, "batch": 8}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure, and with which Pythons."""

    what: tyro.conf.Positional[Literal["train", "decode", "language-train", "language-decode"]]
    peers: str = sys.executable  # the Python that has torch, transformers and ctranslate2
    rounds: int = 7  # that count, after one that does not
    threads: int = 1  # with 1 the measure is CPU time, with more it is wall time
    output: Path = Path("benchmarks/results")  # where the JSON goes


def train(settings: Settings) -> list[Table]:
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
    return [("seq2seq training step, 64 pairs of 32 + 32 tokens", rows, "tokens")]


def decode(settings: Settings) -> list[Table]:
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


def language_train(settings: Settings) -> list[Table]:
    """A training step of nanoGPT's model, small and middle-sized."""
    tables = []
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS_LANGUAGE}
    for name, size, times in (("nanoGPT on a CPU", CHARACTERS, 8), ("middle size", MIDDLE, 1)):
        bench = Bench(settings.threads)
        for title, more in (("eager", {}), ("compiled", {"compiled": True})):
            bench.add(f"nanoGPT, {title}", "train", {**size, **more}, times=times, **peer)
        tanh = {**size, "gelu": "tanh"}
        compiled = {**tanh, "compiled": True}
        bench.add("nanoGPT, compiled, tanh GELU", "train", compiled, times=times, **peer)
        bench.add("transformer_jax", "train", size, times=times, module=OURS_LANGUAGE)
        bench.add("transformer_jax, tanh GELU", "train", tanh, times=times, module=OURS_LANGUAGE)
        rows = bench.measure(settings.rounds, size["batch"] * size["context"], "nanoGPT, eager")
        bench.close()
        what = f"{size['batch']} texts of {size['context']}"
        tables.append((f"language model training step, {name}, {what}", rows, "tokens"))
    return tables


def language_decode(settings: Settings) -> list[Table]:
    """GPT-2 small: 64 tokens after prompts of 32, greedily, and the reading of longer prompts."""
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for batch, prompt, new in ((1, 32, 64), (8, 32, 64), (1, 128, 1), (1, 512, 1)):
            tables.append(_language_decode(settings, folder, batch, prompt, new))
    return tables


def _language_decode(settings: Settings, folder: str, batch: int, prompt: int, new: int) -> Table:
    bench = Bench(settings.threads)
    ours: dict[str, Any] = {"module": OURS_LANGUAGE}
    peer: dict[str, Any] = {"python": settings.peers, "module": PEERS_LANGUAGE}
    size = {"batch": batch, "prompt": prompt, "new": new}
    narrow = {**size, "dtype": "bfloat16"}
    case, base = ("generate" if new > 1 else "prefill"), "transformers"
    bench.add(base, case, size, **peer)
    if batch > 1:
        bench.add("transformers, bfloat16", case, narrow, **peer)
    for precision in ("float32", "int8"):
        more = {"folder": folder, "precision": precision}
        bench.add(f"CTranslate2 {precision}", "ctranslate2", {**size, **more}, **peer)
    arguments = {"preset": "gpt2", **size}
    bench.add("transformer_jax", "decode", arguments, **ours)
    # Before 0.12, XLA's narrow products are slower than its float32 ones on CPU.
    if importlib.metadata.version("jax") >= "0.12":
        narrow = {**arguments, "dtype": "bfloat16"}
        bench.add("transformer_jax, bfloat16", "decode", narrow, **ours)
    floor = "float32 weights read once a token"
    if new > 1:
        # All but the table of positions, of which one row is read.
        bench.add(floor, "floor", {"size": 123_653_376, "new": new}, **ours)
    rows = bench.measure(settings.rounds, batch * (new if new > 1 else prompt), base)
    bench.close()
    if new == 1:
        return f"GPT-2 small, a prompt of {prompt}, its first token", rows, "tokens"
    least = next((row.ms for row in rows if row.name == floor), None)
    if least is not None:
        rows = [
            dataclasses.replace(row, facts={**row.facts, "of_floor": round(least / row.ms, 3)})
            for row in rows
        ]
    return f"GPT-2 small, batch {batch}, {new} tokens after {prompt}", rows, "tokens"


RUNS = {
    "train": train,
    "decode": decode,
    "language-train": language_train,
    "language-decode": language_decode,
}


def main() -> None:
    """Runs one benchmark and keeps its result."""
    settings = tyro.cli(Settings, description=__doc__)
    tables = RUNS[settings.what](settings)
    facts = environment()
    python = ".".join(facts["python"].split(".")[:2])
    settings.output.mkdir(parents=True, exist_ok=True)
    where = settings.output / f"{settings.what.replace('-', '_')}_cpu_py{python}.json"
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
