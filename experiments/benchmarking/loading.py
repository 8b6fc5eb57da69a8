"""Loading a published checkpoint: time and memory of fresh processes, ours and transformers'.

Each process imports its framework, loads a random checkpoint of GPT-2's smallest size, and reads
every parameter once, as a mapped file is not in memory before that. Memory is the process's peak.

A virtual machine gives memory that nobody holds back to its host, and who takes it again waits for
the host to find pages: a property of the machine that the first to ask pays for. So before each of
them another process takes memory and gives it back.
"""

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["measure", "table", "write_gpt2"]

# Not ru_maxrss, which begins with that of the process that started this one.
_PEAK = """
def peak():
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1])
"""
_OURS = """
import sys, time
import jax, numpy
from transformer_jax.interop.folder import open_folder
import transformer_jax.models.decoder
jax.device_put(0.0).block_until_ready()
base = peak()
start = time.perf_counter()
params = jax.block_until_ready(open_folder(sys.argv[1]).load())
load = time.perf_counter() - start
sum(float(numpy.asarray(leaf).max()) for leaf in jax.tree.leaves(params))
"""
_THEIRS = """
import sys, time
import torch
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
print("@" + json.dumps({"load_s": load, "used_s": used, "peak_mib": peak() / 1024,
                        "above_import_mib": (peak() - base) / 1024}))
"""


_BEFORE = "import numpy; numpy.ones(1 << 28, numpy.float32)"  # a GiB


def write_gpt2(folder: Path) -> int:
    """A random checkpoint of GPT-2's smallest size; its bytes."""
    from flax import nnx

    from transformer_jax.config import PRESETS
    from transformer_jax.interop.export import write_folder
    from transformer_jax.interop.family import Model
    from transformer_jax.models.decoder import Decoder
    from transformer_jax.training.trees import named, nested

    config = PRESETS["gpt2"]
    shapes = named(nnx.to_pure_dict(nnx.split(nnx.eval_shape(
        lambda: Decoder(config, rngs=nnx.Rngs(0))))[1]))  # fmt: skip
    draw = np.random.default_rng(0)
    leaves = {
        name: draw.standard_normal(leaf.shape, np.float32) * 0.02 for name, leaf in shapes.items()
    }
    write_folder(folder, Model("decoder", config), nested(leaves))
    return (folder / "model.safetensors").stat().st_size


def measure(peers: str, ours: str, rounds: int) -> dict[str, Any]:
    """Medians over fresh processes in turns, and ratios to transformers within rounds."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "gpt2"
        size = write_gpt2(folder)
        found: dict[str, list[dict[str, float]]] = {"transformers": [], "transformer_jax": []}
        for turn in range(rounds + 1):
            for name, python, code in (
                ("transformers", peers, _THEIRS),
                ("transformer_jax", ours, _OURS),
            ):
                subprocess.run([ours, "-c", _BEFORE], check=True, timeout=60)
                said = _run(python, _PEAK + code + _END, folder)
                if turn:  # the first reads the file into the system's cache
                    found[name].append(said)
    middle = lambda name, key: statistics.median(run[key] for run in found[name])
    keys = ("load_s", "used_s", "peak_mib", "above_import_mib")
    rows = {name: {key: round(middle(name, key), 3) for key in keys} for name in found}
    pairs = list(zip(found["transformer_jax"], found["transformers"], strict=True))
    ratio = lambda key: round(statistics.median(a[key] / b[key] for a, b in pairs), 3)
    return {
        "file_mib": round(size / 2**20, 1),
        "rows": rows,
        "ours_over_theirs": {key: ratio(key) for key in keys},
    }


def table(found: dict[str, Any]) -> str:
    """What was measured, for people."""
    lines = [f"load {found['file_mib']} MiB and read every parameter once; medians"]
    for name, row in found["rows"].items():
        lines.append(
            f"{name:16} loaded {row['load_s']:.2f} s  and read {row['used_s']:.2f} s  "
            f"peak {row['peak_mib']:.0f} MiB, {row['above_import_mib']:.0f} above imports"
        )
    shares = "  ".join(f"{key} {value:.2f}" for key, value in found["ours_over_theirs"].items())
    return "\n".join([*lines, f"ours / theirs: {shares}"])


def _run(python: str, code: str, folder: Path) -> dict[str, float]:
    env = os.environ | {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [python, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("@")]
    if done.returncode or not lines:
        raise RuntimeError(f"{python}: {done.stderr[-2000:]}")
    said: dict[str, float] = json.loads(lines[0][1:])
    return said
