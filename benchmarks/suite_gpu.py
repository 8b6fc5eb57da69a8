"""Cases of the suite on GPUs, in bfloat16 and of sizes that fill one."""

import contextlib
import importlib.metadata
import re
import subprocess
import tempfile
from typing import Any

from benchmarks.settings import GPT2, Settings, Table

__all__ = ["BASE", "ON_GPUS", "decode", "facts", "language_decode", "narrow", "short_name"]

ON_GPUS = ("train", "decode", "language-train", "language-decode")
BASE = {"vocab": 37_000, "width": 512, "heads": 8, "layers": 6, "hidden": 2048}


def narrow(cases: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the cases in bfloat16, in which GPUs train."""
    return {name: more for name, more in cases.items() if more.get("dtype") == "bfloat16"}


def decode(settings: Settings) -> list[Table]:
    """32 new tokens for sentences of 32, by Transformer-base."""
    tables = []
    with tempfile.TemporaryDirectory() as folder:
        for batch, beams in ((1, 4), (32, 1), (128, 4)):
            size = settings.size(**BASE, batch=batch, length=32, new=32)
            arguments = {**size, "folder": folder, "beams": beams, "dtype": "bfloat16"}
            search = "greedy" if beams == 1 else f"beam {beams}"
            title = f"Transformer-base, decode, bfloat16, batch {size['batch']}, {search}"
            bench, base = settings.bench(title), "transformers generate"
            bench.add(base, "generate", arguments, python=settings.peers, module="benchmarks.peers")
            bench.add("transformer_jax", "decode", arguments, times=8)
            rows = bench.measure(settings.turns, size["batch"] * size["new"], base)
            bench.close()
            tables.append((title, rows, "tokens"))
    return tables


def language_decode(settings: Settings, batch: int) -> Table:
    """256 greedy tokens after prompts of 32, by GPT-2 small."""
    size = settings.size(**GPT2, batch=batch, prompt=32, new=256) | {"dtype": "bfloat16"}
    title = f"GPT-2 small, bfloat16, batch {batch}, {size['new']} tokens after {size['prompt']}"
    bench, base = settings.bench(title), "transformers"
    peer: dict[str, Any] = {"python": settings.peers, "module": "benchmarks.peers_language"}
    bench.add(base, "generate", size, **peer)
    static = {**size, "cache": "static"}
    bench.add("transformers, static cache, compiled", "generate", static, **peer)
    ours = {"preset": "gpt2_small", **size}
    bench.add("transformer_jax", "decode", ours, module="benchmarks.ours_language", times=4)
    rows = bench.measure(settings.turns, batch * size["new"], base)
    bench.close()
    return title, rows, "tokens"


def short_name(gpu: str) -> str:
    """Returns the model of a GPU, as files of results have it.

    Args:
        gpu: What nvidia-smi says: the name and the driver.

    Example:
        >>> [short_name("NVIDIA H200, 580.159.04"), short_name("NVIDIA H100 80GB HBM3, 580.159.04")]
        ['h200', 'h100']
    """
    number = re.search(r"\w*\d\w*", gpu.partition(",")[0])
    return number[0].lower() if number else "gpu"


def facts() -> dict[str, Any]:
    """Returns the GPU with its driver, and the versions of installed peers."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    peers = {}
    for name in ("torch", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            peers[name] = importlib.metadata.version(name)
    return {"gpu": gpu.strip(), "peers": peers}
