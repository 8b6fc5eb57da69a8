"""A text larger than memory: it is read as a stream, and what came of it is mapped, not loaded."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.resident import peak
from transformer_jax.runs.metrics import read_metrics

ROOT = Path(__file__).parents[2]
MEGABYTES = int(os.environ.get("TRANSFORMER_JAX_BIG_MB", "64"))
STEPS = 400
SETTINGS = [
    "--model.d-model", "16", "--model.decoder-layers", "1", "--model.attention.num-heads", "2",
    "--model.feed-forward.d-ff", "32", "--training.steps", str(STEPS), "--training.batch-size", "8",
    "--training.sequence-length", "64", "--loop.evaluate-every", "0", "--loop.checkpoint-every",
    "0",
    "--evaluation.sample", "0",
]  # fmt: skip


def write_text(path, megabytes):
    """Paragraphs of words as frequent as words are."""
    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = np.array(["".join(rng.choice(syllables, 1 + i % 4)) for i in range(20_000)])
    shares = np.cumsum(1 / np.arange(10, 10 + len(words)))
    left = megabytes << 20
    with open(path, "w", encoding="utf-8") as file:
        while left > 0:
            chosen = words[np.searchsorted(shares, rng.random(200_000) * shares[-1])]
            lines = [" ".join(row) for row in chosen.reshape(-1, 10)]
            ends = ["\n\n" if i % 8 == 7 else "\n" for i in range(len(lines))]
            text = "".join(line + end for line, end in zip(lines, ends, strict=True))[:left]
            file.write(text)
            left -= len(text)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "text.txt"
    write_text(path, MEGABYTES)
    yield path
    path.unlink()


class Watched:
    """The command in a process of its own, and when it took its first step."""

    def __init__(self, run, log, *arguments):
        self.began, self.run, self.log = time.monotonic(), run, log
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "experiments.decoder_only", *arguments],
                cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, stdout=file, stderr=file,
            )  # fmt: skip

    def wait_for(self, step):
        """Seconds from the start until ``step`` was measured."""
        path = self.run / "metrics.jsonl"
        while self.process.poll() is None:
            if path.exists() and any(r["step"] >= step for r in read_metrics(path)):
                return time.monotonic() - self.began
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def end(self):
        """The exit code, and gigabytes of memory that it had resident at most."""
        most = 0
        while self.process.poll() is None:
            most = max(most, peak(self.process.pid))
            time.sleep(0.02)
        return self.process.returncode, most / 1e9


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
@pytest.mark.parametrize(
    ("kind", "vocab", "documents"),
    [("characters", "10000", "file"), ("bpe", "8000", "blank")],
    ids=["characters", "bpe"],
)
def test_memory_stays_bounded_and_a_second_start_is_quick(text, tmp_path, kind, vocab, documents):
    run, log = tmp_path / "run", tmp_path / "log"
    chosen = ["--tokenizer.kind", kind, "--tokenizer.vocab-size", vocab]
    chosen += ["--data.text", str(text), "--data.read.documents", documents]
    layout = ["--training.layout", "contiguous" if documents == "file" else "packed"]
    first = Watched(
        run, log, "train", "char-cpu", *chosen, *layout, *SETTINGS, "--output", str(run)
    )
    fresh = first.wait_for(2)
    first.process.send_signal(signal.SIGTERM)
    code, resident = first.end()
    assert code == 143, log.read_text()
    second = Watched(run, tmp_path / "log2", "resume", str(run))
    again = second.wait_for(len(read_metrics(run / "metrics.jsonl")) + 1)
    code, resident_again = second.end()
    print(f"\n{MEGABYTES} MB, {kind}: first step after {fresh:.0f} s, on resuming {again:.0f} s; "
          f"resident {resident:.2f} and {resident_again:.2f} GB\n{log.read_text()}"
          f"{(tmp_path / 'log2').read_text()}")  # fmt: skip
    assert code == 0, (tmp_path / "log2").read_text()
    assert again < 60
    # Of the text, and of its ids, no more than a part is ever in memory.
    assert max(resident, resident_again) < 2
