"""A run killed or stopped anywhere and gone on with ends as the undisturbed one, bit by bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from experiments import decoder_only, encoder_only, seq2seq
from transformer_jax import laws

pytestmark = pytest.mark.apart

ROOT = Path(__file__).parents[2]
STEPS = 150
WORDS = ["um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito", "nove", "dez"]
TRANSFORMER = [
    "--model.decoder-layers", "1", "--model.attention.num-heads", "2", "--model.feed-forward.d-ff",
    "16",
]  # fmt: skip
SETTINGS = [
    "--model.d-model", "8",
    "--training.steps", str(STEPS), "--training.ema-decay", "0.9",
    "--optimizer.schedule.warmup-steps", "20", "--loop.evaluate-every", "50",
    "--loop.checkpoint-every", "25",
]  # fmt: skip
PAIRS = [
    "--data.source", "{texts}/a.pt", "--data.target", "{texts}/a.en", "--data.read.max-length",
    "64", "--training.num-buckets", "1", "--training.max-tokens", "256", "--evaluation.sentences",
    "0", "--tokenizer.kind", "characters",
]  # fmt: skip
SCENES = [
    *TRANSFORMER, "--encoder.d-model", "8", "--encoder.encoder-layers", "1",
    "--encoder.attention.num-heads", "2", "--encoder.feed-forward.d-ff", "16",
    "--encoder.norm.residual-dropout", "0.1", "--data.corpus-size", "60",
    "--training.batch-size", "8",
]  # fmt: skip
# The run of each family that has a name, its texts, and what it has of its own.
FAMILIES = {
    "seq2seq": ["small", *TRANSFORMER, "--model.encoder-layers", "1", *PAIRS],
    "recurrent": ["bahdanau", *PAIRS],
    "pairs": [
        "small", *TRANSFORMER, "--model.encoder-layers", "1", "--data.pairs",
        "pt-tp={texts}/a.pt,{texts}/a.en", "tp-pt={texts}/a.pt,{texts}/a.en", *PAIRS[4:],
    ],
    "decoder_only": [
        "char-cpu", *TRANSFORMER, "--tokenizer.kind", "characters", "--data.text", "{texts}/a.pt",
        "--data.read.documents", "line", "--training.layout", "packed", "--training.batch-size",
        "8", "--training.sequence-length", "32",
        "--model.norm.residual-dropout", "0.1", "--evaluation.sample", "0",
        "--evaluation.ngram-orders",
    ],
    "pictures": [
        "digits", "--model.encoder-layers", "1", "--model.attention.num-heads", "2",
        "--model.feed-forward.d-ff", "16", "--model.image.stem-channels", "4",
        "--data.images", "{texts}/a.npz", "--data.read.decode-first", "False",
        "--training.batch-size", "8", "--model.norm.residual-dropout", "0.1",
        "--augmentation.operations", "1",
        "--augmentation.erase", "0.5", "--augmentation.mixup", "0.2", "--augmentation.cutmix", "1",
    ],
    "captions": ["scenes", *SCENES],
    "clip": ["clip-scenes", *SCENES, "--contrast.projection-dim", "8"],
}  # fmt: skip


MODULES = {
    "decoder_only": decoder_only,
    **dict.fromkeys(("seq2seq", "recurrent", "pairs", "captions"), seq2seq),
    **dict.fromkeys(("pictures", "clip"), encoder_only),
}


class Runs:
    """Sees the training command through here, and ends it early in processes of their own."""

    def __init__(self, folder: Path, family: str):
        self.folder, self.family = folder, family
        lines = [f"{a} {b}" for a in WORDS for b in WORDS]
        (folder / "a.pt").write_text("".join(f"{line}\n" for line in lines))
        (folder / "a.en").write_text("".join(f"{line[::-1]}\n" for line in lines))
        pixels = np.random.default_rng(0).integers(0, 256, (60, 9, 9), np.uint8)
        np.savez(folder / "a.npz", images=pixels, labels=np.arange(60) % 3)

    def arguments(self, run: Path) -> list[str]:
        """The arguments of the command that begins or resumes the run."""
        named, *own = [word.format(texts=self.folder) for word in FAMILIES[self.family]]
        fresh = not (run / "metrics.jsonl").exists()
        begin = ["train", named, *SETTINGS, "--output", str(run), *own]
        command = begin if fresh else ["resume", str(run)]
        return [*command, "--distributed.num-local-devices", "1"]

    def whole(self, run: Path) -> None:
        """Sees the run through."""
        assert MODULES[self.family].main(self.arguments(run)) == 0

    def cut(self, run: Path, number: int, step: int) -> None:
        """Sends a signal as soon as ``step`` is measured, and checks how the process ends."""
        command = [sys.executable, "-m", MODULES[self.family].__name__, *self.arguments(run)]
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"}, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        wait_for(run / "metrics.jsonl", step, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
        expected = -9 if number == signal.SIGKILL else 128 + number
        assert process.returncode == expected, err
        assert "Traceback" not in err
        if number != signal.SIGKILL:
            assert "is saved: continue with `transformer-jax resume" in err


def wait_for(path: Path, step: int, process: subprocess.Popen) -> None:
    """Returns when ``path`` holds the measurements of ``step``."""
    offset, deadline = 0, time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists():
            text = path.read_text()
            lines = text[offset:].splitlines()
            if any(f'{{"step": {n}, ' in line for line in lines for n in (step, step + 1)):
                return
        time.sleep(0.002)
    raise AssertionError(f"step {step} never came: {process.communicate()[1]}")


# The loop is one; a decoder compiles in half the time.
@pytest.fixture(
    scope="module",
    params=[
        "decoder_only",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("seq2seq", "recurrent", "pairs", "pictures", "captions", "clip")
        ),
    ],
)
def runs(tmp_path_factory, request):
    return Runs(tmp_path_factory.mktemp("resume"), request.param)


def steps_measured(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "loss" in line]


def assert_resumed(runs, number, times, seed):
    """Sends a signal at random steps of a run, and compares its end with the undisturbed run."""
    rng, part = random.Random(seed), (STEPS - 40) // times
    stops = tuple(part * place + rng.randrange(1, part - 15) for place in range(times))

    def train(stops):
        run = runs.folder / (f"{number.name}{seed}" if stops else "undisturbed")
        for stop in stops:
            runs.cut(run, number, stop)
        if not (run / "results.json").exists():  # all tests have one undisturbed run
            runs.whole(run)
        results = json.loads((run / "results.json").read_text())
        return {
            "state": results["state_sha256"],
            "best": results["best"],
            "steps": steps_measured(run),
        }

    laws.resumed(train, [stops]).require()
    assert train(())["steps"] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_killed_it_ends_the_same(runs):
    assert_resumed(runs, signal.SIGKILL, 1, seed=time.time_ns())


@pytest.mark.slow
@pytest.mark.parametrize("runs", ["decoder_only", "pairs"], indirect=True)
@pytest.mark.parametrize("seed", range(2))
def test_four_random_kills(runs, seed):
    assert_resumed(runs, signal.SIGKILL, 2, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("runs", ["decoder_only", "pairs"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_in_order(runs, number):
    assert_resumed(runs, number, 2, seed=int(number))
