"""The complete `translate` command on a shuffled file of real sentences, compared with peers.

    python -m benchmarks.lines RUN FILE --peers PYTHON

Ours is the command, from the start of Python to the last line written, with and without compiled
programs cached on disk. The peers are processes that load a model of the run's size with random
weights, and generate for each batch of 32 sentences of similar length as many tokens as the longest
of our translations. All run on one core.
"""

import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tyro

from benchmarks.program import run_program
from benchmarks.starts import to_line

__all__ = ["main"]


@dataclasses.dataclass(frozen=True)
class Lines:
    """Time `translate` on a file against transformers and CTranslate2."""

    run: tyro.conf.Positional[Path]
    """Run directory of a translator."""
    file: tyro.conf.Positional[Path]
    """File of sentences, one per line, .gz allowed."""
    peers: Path
    """Python interpreter with torch, transformers and ctranslate2."""
    rounds: int = 3
    """Number of timed rounds."""
    beams: tuple[int, ...] = (1, 4)
    """Number of beams."""
    output: Path = Path("benchmarks/results/translate_lines_cpu.json")
    """Output file of the figures."""


def work(asked: Lines, folder: Path, beams: int) -> tuple[Path, Path]:
    """Writes the shuffled file, and the peers' input: sources as ids, and lengths to generate."""
    from transformer_jax.data.text import read_lines
    from transformer_jax.decoding.generation_config import TRANSLATION
    from transformer_jax.inference.pretrained import open_pretrained

    lines = list(read_lines(asked.file))
    random.Random(0).shuffle(lines)
    text = folder / "lines.txt"
    text.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    opened = open_pretrained(asked.run, "best", "encoder-decoder")
    translator = opened.translator(TRANSLATION.changed(num_beams=beams))
    tokenizer = opened.tokenizer
    lengths = [len(done.tokens) for done in translator.translate(lines)]
    sources = [[*ids, tokenizer.eos] for ids in tokenizer.encode_batch(lines)]
    config = json.loads((asked.run / "config.json").read_text())["model"]
    sizes = {
        "vocab": config["vocab_size"],
        "width": config["d_model"],
        "heads": config["attention"]["num_heads"],
        "layers": config["decoder_layers"],
        "hidden": config["feed_forward"]["d_ff"],
    }
    given = folder / f"given{beams}.json"
    given.write_text(json.dumps({"sizes": sizes, "sources": sources, "lengths": lengths}))
    return text, given


def main() -> int:
    """Times all in turns and writes the medians."""
    from benchmarks.harness import environment

    asked = tyro.cli(Lines)
    core = ["taskset", "-c", "1"] if sys.platform == "linux" else []
    searches: dict[str, Any] = {}
    lines = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        settings["TRANSFORMER_JAX_CACHE"] = str(folder / "cache")
        for beams in asked.beams:
            text, given = work(asked, folder, beams)
            lines = text.read_text("utf-8").count("\n")
            ours = [sys.executable, "-m", "transformer_jax.cli.main", "translate", str(asked.run)]
            peer = [str(asked.peers), "-m", "benchmarks.lines_peer", str(folder)]
            commands = {"ours": [*ours, "--num-beams", str(beams)]}
            commands["ours_first_start"] = commands["ours"]
            for kind in ("transformers", "ctranslate2"):
                commands[kind] = [*peer, str(given), kind, str(beams)]
            samples: dict[str, list[tuple[float, float]]] = {kind: [] for kind in commands}
            for round_ in range(asked.rounds + 1):
                for kind, command in commands.items():
                    with text.open("rb") as file:
                        kept = {"TRANSFORMER_JAX_CACHE": "off"} if "first" in kind else {}
                        how = {"stdin": file, "stdout": subprocess.DEVNULL, "env": settings | kept}
                        spent = to_line([*core, *command], None, **how)
                    # The first round creates the peers' models, and fills the program cache.
                    if round_:
                        samples[kind].append(spent)
            row = {
                kind: {
                    "wall_s": round(statistics.median(w for _, w in found), 2),
                    "cpu_s": round(statistics.median(c for c, _ in found), 2),
                }
                for kind, found in samples.items()
            }
            for kind in ("transformers", "ctranslate2"):
                row[kind]["ours_is_faster_by"] = round(row[kind]["cpu_s"] / row["ours"]["cpu_s"], 2)
            searches[f"beams {beams}"] = row
            print(beams, json.dumps(row), flush=True)
    result = {
        "what": __doc__,
        "command": "python -m benchmarks.lines RUN FILE --peers PYTHON",
        "lines": lines,
        "rounds": asked.rounds,
        **environment(),
        "searches": searches,
    }
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    run_program(main)
