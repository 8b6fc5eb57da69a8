"""Compares this checkout with an earlier one, interleaved on this machine.

    git worktree add ../before 9818fef
    python -m benchmarks.compare ../before --module experiments.benchmarking

Measures training, decoding, embedding and loading, with both checkouts in turns within each round.
Prints the speedup of this checkout, and writes
``benchmarks/results/compare_COMMIT_cpu_pyVERSION.json``, whose other rows ``--only`` keeps. Takes
about 20 minutes.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tyro

from benchmarks.harness import TREE, Bench, Row, environment, table
from benchmarks.loading import begin_at, write_gpt2
from benchmarks.program import run_program
from benchmarks.sizes import GPT2
from benchmarks.suite import BERT_SMALL, CHARACTERS, LLAMA, MIDDLE, MINILM, SIZE

_LOAD = "import importlib, sys; m = importlib.import_module({!r}); exec(m._OURS + m._END)"


@dataclasses.dataclass(frozen=True)
class Case:
    """A row: a case for both checkouts."""

    title: str
    module: str  # of the benchmark programs
    case: str
    arguments: dict[str, Any]
    times: int = 1
    units: int | None = 1
    first: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Arguments with different values for 0.1.0, whose programs are elsewhere."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The checkouts to compare."""

    before: tyro.conf.Positional[Path]
    """Path of the earlier checkout."""
    module: str = "benchmarks"
    """Module of its benchmark programs."""
    rounds: int = 7
    """Number of measured rounds, after a warmup round."""
    processes: int = 1
    """Processes of each checkout that run a case; the medians of each are stored."""
    peers: str = sys.executable
    """Python interpreter with torch and transformers, which make the weights for decoding."""
    only: tuple[str, ...] = ("",)
    """Only cases whose titles contain one of these texts."""
    output: Path = Path("benchmarks/results")
    """Folder for the JSON file."""


def cases(folder: str) -> Iterator[Case]:
    """Yields every kind of work on a CPU."""
    pairs = {**SIZE, "batch": 64, "length": 32}
    yield Case("translator, training step", "ours", "train", pairs)
    yield Case(
        "translator, training step, bfloat16", "ours", "train", pairs | {"dtype": "bfloat16"}
    )
    for batch, beams in ((1, 1), (1, 4), (32, 1), (32, 4)):
        how = {"folder": folder, "batch": batch, "length": 32, "new": 32, "beams": beams}
        title = f"translator, decoding, batch {batch}, beams {beams}"
        yield Case(title, "ours", "decode", {**SIZE, **how}, times=8 if batch == 1 else 1)
    for name, size, times in (("nanoGPT on a CPU", CHARACTERS, 8), ("middle size", MIDDLE, 1)):
        yield Case(f"language model, training step, {name}", "ours_language", "train", size, times)
    for batch, prompt, new in ((1, 32, 64), (8, 32, 64), (1, 512, 1)):
        how = {"preset": "gpt2_small", "batch": batch, "prompt": prompt, "new": new}
        title = f"GPT-2 small, batch {batch}, {new} tokens after {prompt}"
        yield Case(title, "ours_language", "decode", how, first={"preset": "gpt2"})
    for case, texts in (("pretrain", 640), ("finetune", 1280)):
        how = {**BERT_SMALL, "texts": texts, "batch": 32, "deals": 4}
        yield Case(f"encoder, {case} step", "ours_encoder", case, how, units=None)
    yield Case("MiniLM, 2,000 mean vectors", "ours_encoder", "embed",
               {**MINILM, "texts": 2000, "tokens": 4096})  # fmt: skip
    for kind in ("luong", "bahdanau"):
        how = {"kind": kind, "vocab": 8000, "width": 512, "length": 20, "batch": 1}
        yield Case(f"{kind}, greedy, 1 sentence", "ours_recurrent", "decode", how, times=16)
    base = {"vocab": 8000, "width": 512, "heads": 8, "layers": 6, "hidden": 2048}
    works: dict[str, tuple[str, dict[str, Any]]] = {
        "translate, batch 16, beams 4": (
            "translate",
            base | {"batch": 16, "length": 24, "new": 24, "beams": 4},
        ),
        **{
            f"generate, batch {batch}": (
                "generate",
                GPT2 | {"batch": batch, "prompt": 16, "new": 32},
            )
            for batch in (1, 8)
        },
    }
    for title, (case, how) in works.items():
        for engine in ("jax", "float32", "int8"):
            shown = engine if engine == "jax" else f"CTranslate2 {engine}"
            yield Case(
                f"lines, {title}, {shown}",
                "ours_engine",
                case,
                how | {"folder": folder, "engine": engine},
            )
    for dtype in ("float32", "bfloat16", "int8"):
        how = {**LLAMA, "context": 128, "batch": 8, "rank": 8, "base": dtype}
        yield Case(
            f"adapters, training step on a frozen base in {dtype}", "ours_frozen_base", "train", how
        )


def compared(case: Case, settings: Settings) -> list[Row]:
    """Measures both checkouts on one case."""
    if case.title.startswith("translator, decoding"):
        # Random weights from the peers, read by both checkouts.
        peer = Bench()
        peer.add(
            "weights", "generate", case.arguments, python=settings.peers, module="benchmarks.peers"
        )
        peer.close()
    bench = Bench(processes=settings.processes)
    changes = {} if settings.module == "benchmarks" else case.first
    for name, module, tree, changed in (
        ("before", settings.module, settings.before.resolve(), changes),
        ("now", "benchmarks", TREE, dict[str, Any]()),
    ):
        module, how = f"{module}.{case.module}", case.arguments | changed
        bench.add(name, case.case, how, module=module, times=case.times, tree=tree)
    rows = bench.measure(settings.rounds, case.units, "before")
    bench.close()
    return rows


def loading(settings: Settings) -> dict[str, Any]:
    """Measures the seconds to load GPT-2 small in fresh processes, and the ratio within rounds."""
    trees = {"before": (settings.module, settings.before.resolve()), "now": ("benchmarks", TREE)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "gpt2"
        write_gpt2(folder)
        begin_at(folder, 0)
        for turn in range(settings.rounds + 1):
            for name, (module, tree) in trees.items():
                env = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(tree)}
                command = [sys.executable, "-c", _LOAD.format(f"{module}.loading"), str(folder)]
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    env=env,
                    cwd=tree,
                    timeout=300,
                    check=True,
                )
                line = next(line for line in done.stdout.splitlines() if line.startswith("@"))
                if turn:
                    found[name].append(json.loads(line[1:]))
    ratio = lambda key: statistics.median(
        a[key] / b[key] for a, b in zip(found["before"], found["now"], strict=True)
    )
    return {key: round(ratio(key), 3) for key in ("load_s", "used_s", "peak_mib")}


def main() -> None:
    """Compares, prints and stores the result."""
    settings = tyro.cli(Settings, prog="python -m benchmarks.compare", description=__doc__)
    if not settings.before.is_dir():
        sys.exit(f"{settings.before}: no such checkout: git worktree add {settings.before} COMMIT")
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=settings.before,
                            capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    facts = environment()
    python = ".".join(facts["python"].split(".")[:2])
    settings.output.mkdir(parents=True, exist_ok=True)
    where = settings.output / f"compare_{commit}_cpu_py{python}.json"
    report: dict[str, Any] = json.loads(where.read_text()) if where.exists() else {"tables": []}
    report |= {"environment": facts, "before": commit, "rounds": settings.rounds}
    tables = {found["title"]: found for found in report["tables"]}
    wanted = lambda title: any(text in title for text in settings.only)
    keep = lambda: where.write_text(
        json.dumps(report | {"tables": list(tables.values())}, indent=1) + "\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(folder):
            if wanted(case.title):
                rows = compared(case, settings)
                print(table(case.title, rows, "runs"), end="\n\n", flush=True)
                tables[case.title] = {
                    "title": case.title,
                    "commit": facts["commit"],
                    "rows": [dataclasses.asdict(row) for row in rows],
                }
                keep()
    if wanted("loading"):
        report["loading"] = loading(settings)
        print(f"loading GPT-2 small, before / now: {report['loading']}")
        keep()
    print(f"written to {where}")


if __name__ == "__main__":
    run_program(main)
