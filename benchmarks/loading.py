"""Loading a Hugging Face checkpoint: time and memory of fresh processes, ours and transformers'.

Each process imports its framework, loads a random checkpoint of GPT-2 small, and reads every
parameter once, since a mapped file is not in memory before. Memory is the peak of the process. Ours
load it as a file with mappable tensors, and as a file with tensors that must be read.

A virtual machine returns unused memory to its host, so the first process to allocate it waits for
the host. Therefore another process allocates and frees memory before each measurement.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import tell
from benchmarks.settings import Settings
from benchmarks.sizes import GPT2

__all__ = ["begin_at", "measure", "table", "write_gpt2"]

THEIRS = "transformers"
_BEFORE = "import numpy; numpy.ones(1 << 28, numpy.float32)"  # a GiB
_OURS = """
import sys, time
import jax, numpy
from benchmarks.resident import peak
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint
import transformer_jax.models.transformer.models
jax.device_put(0.0).block_until_ready()
base = peak()
start = time.perf_counter()
params = jax.block_until_ready(open_hf_checkpoint(sys.argv[1]).load())
load = time.perf_counter() - start
sum(float(numpy.asarray(leaf).max()) for leaf in jax.tree.leaves(params))
"""
_THEIRS = """
import sys, time
import torch
from benchmarks.resident import peak
from transformers import AutoModelForCausalLM, GPT2LMHeadModel
torch.zeros(1)
base = peak()
start = time.perf_counter()
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
load = time.perf_counter() - start
sum(float(p.detach().max()) for p in model.parameters())
"""
_END = """
import json
used = time.perf_counter() - start
print("@" + json.dumps({"load_s": load, "used_s": used, "peak_mib": peak() / 2**20,
                        "above_import_mib": (peak() - base) / 2**20}))
"""


def write_gpt2(folder: Path, **size: int) -> int:
    """Writes a random checkpoint of a GPT-2, by default the smallest; returns its bytes."""
    from flax import nnx

    from benchmarks.ours_language import resized
    from transformer_jax.core.trees import flatten_dict, unflatten_dict
    from transformer_jax.interop.export import write_folder
    from transformer_jax.interop.family import Model
    from transformer_jax.models.presets import PRESETS
    from transformer_jax.models.transformer.models import Decoder

    config = resized(PRESETS["gpt2_small"], **size) if size else PRESETS["gpt2_small"]
    shapes = flatten_dict(nnx.to_pure_dict(nnx.split(nnx.eval_shape(
        lambda: Decoder(config, rngs=nnx.Rngs(0))))[1]))  # fmt: skip
    draw = np.random.default_rng(0)
    leaves = {
        name: draw.standard_normal(leaf.shape, np.float32) * 0.02 for name, leaf in shapes.items()
    }
    write_folder(folder, Model("decoder", config), unflatten_dict(leaves))
    return (folder / "model.safetensors").stat().st_size


def begin_at(folder: Path, place: int) -> None:
    """Shifts the tensors of a folder's file to an offset from a multiple of 64 bytes."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = data[8:end].rstrip()
    header += b" " * ((place - 8 - len(header)) % 64)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])


def measure(settings: Settings) -> dict[str, Any]:
    """Measures medians over fresh processes in turns, and ratios to transformers within rounds."""
    ours, began, limits = sys.executable, time.monotonic(), settings.limits
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "mapped"
        tell("writing a random checkpoint")
        size = write_gpt2(folder, **settings.size(**GPT2))
        begin_at(folder, 0)
        apart = Path(shutil.copytree(folder, Path(place) / "read"))
        begin_at(apart, 8)
        cases = {
            THEIRS: (settings.peers, _THEIRS, folder),
            "transformer_jax": (ours, _OURS, folder),
            "transformer_jax, read": (ours, _OURS, apart),
        }
        found: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
        for turn in range(settings.turns + 1):
            spent = time.monotonic() - began
            if turn > 1 and limits.table is not None and spent > limits.table:
                tell(f"{turn - 1} of {settings.turns} rounds: {limits.table:.0f} s are over")
                break
            tell(f"round {turn} of {settings.turns}, {spent:.0f} s" if turn else "warming up")
            for name in list(found):
                python, code, where = cases[name]
                subprocess.run([ours, "-c", _BEFORE], check=True, timeout=60)
                try:
                    said = _run(python, code + _END, where, limits.patience)
                except RuntimeError as error:
                    tell(f"left out: {name}: {error}")
                    del found[name]
                    continue
                if turn:  # the first round reads the file into the system's cache
                    found[name].append(said)
    keys = ("load_s", "used_s", "peak_mib", "above_import_mib")
    middle = lambda name, key: statistics.median(run[key] for run in found[name])
    rows = {name: {key: round(middle(name, key), 3) for key in keys} for name in found}
    theirs = found.pop(THEIRS, None)
    ratio = lambda runs, key: round(
        statistics.median(a[key] / b[key] for a, b in zip(runs, theirs or (), strict=True)), 3
    )
    return {
        "file_mib": round(size / 2**20, 1),
        "rows": rows,
        "over_transformers": {
            name: {key: ratio(runs, key) for key in keys}
            for name, runs in found.items()
            if theirs is not None
        },
    }


def table(found: dict[str, Any]) -> str:
    """Formats the measurements as a table."""
    lines = [f"load {found['file_mib']} MiB and read every parameter once; medians"]
    for name, row in found["rows"].items():
        lines.append(
            f"{name:22} loaded {row['load_s']:.2f} s  and read {row['used_s']:.2f} s  "
            f"peak {row['peak_mib']:.0f} MiB, {row['above_import_mib']:.0f} above imports"
        )
    for name, ratios in found["over_transformers"].items():
        shares = "  ".join(f"{key} {value:.2f}" for key, value in ratios.items())
        lines.append(f"{name} / transformers: {shares}")
    return "\n".join(lines)


def _run(python: str, code: str, folder: Path, patience: float | None) -> dict[str, float]:
    env = os.environ | {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    command = [python, "-c", code, str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=patience)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no answer within {patience:.0f} s (--patience)") from None
    except OSError as error:
        raise RuntimeError(f"{python}: {error.strerror}") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("@")]
    if done.returncode or not lines:
        raise RuntimeError(f"{python}: {done.stderr[-2000:]}")
    said: dict[str, float] = json.loads(lines[0][1:])
    return said
