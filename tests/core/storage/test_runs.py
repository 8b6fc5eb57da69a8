"""Runs on an object store: trained, killed, resumed and used as those of a local folder."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import transformer_jax as tj
from transformer_jax.cli.main import main
from transformer_jax.core.storage.copies import fetched
from transformer_jax.core.storage.objects import Objects
from transformer_jax.data.corpora import phrasebook
from transformer_jax.runs.verification import verify

ROOT = Path(__file__).parents[3]
STEPS = 60
TINY = [
    "--model.d-model", "8", "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "16",
    "--tokenizer.kind", "characters", "--optimizer.schedule.warmup-steps", "6",
    "--training.steps", str(STEPS), "--loop.evaluate-every", "20", "--loop.checkpoint-every", "10",
    "--distributed.num-local-devices", "1",
]  # fmt: skip
SEQ2SEQ = [
    "train", "small", "--data.source", "{data}/a.pt", "--data.target", "{data}/a.en",
    "--model.encoder-layers", "1", "--model.decoder-layers", "1", "--training.num-buckets", "1",
    "--training.max-tokens", "512", "--evaluation.sentences", "0", "--data.read.max-length", "64",
]  # fmt: skip
DECODER = [
    "train", "char-cpu", "--data.text", "{data}/a.en", "--data.read.documents", "line",
    "--model.decoder-layers", "1", "--training.layout", "packed", "--training.batch-size", "8",
    "--training.sequence-length", "32", "--evaluation.sample", "0", "--evaluation.ngram-orders",
]  # fmt: skip


def arguments(words, data, output):
    return [word.format(data=data) for word in words] + [*TINY, "--output", str(output)]


@pytest.fixture
def texts(bucket):
    """The URL of a folder of texts."""
    rows = list(phrasebook.generate("train", 120, 0))
    for place, name in enumerate(("a.pt", "a.en")):
        text = "".join(f"{row[place]}\n" for row in rows)
        Objects(f"{bucket}/data/{name}").write("", text.encode())
    return f"{bucket}/data"


def results(url):
    return json.loads(Objects(url).read("results.json"))


def forget(tmp_path):
    """Makes this machine one that knows nothing of runs."""
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


@pytest.mark.slow
def test_a_run_is_trained_used_and_resumed_on_an_object_store(bucket, texts, tmp_path, capfd):
    url, local = f"{bucket}/runs/lm", tmp_path / "run"
    assert main(arguments(DECODER, texts, url)) == 0
    assert f"run: {url}" in capfd.readouterr().out
    assert main(arguments(DECODER, texts, local)) == 0
    assert (
        results(url)["state_sha256"]
        == json.loads((local / "results.json").read_text())["state_sha256"]
    )
    assert "lock.json" not in Objects(url).list()
    forget(tmp_path)
    Objects(f"{bucket}/prompts.txt").write("", b"a friend\n")
    prompts = ["--prompts", f"{bucket}/prompts.txt"]
    assert main(["generate", url, *prompts, "--max-new-tokens", "4"]) == 0
    here = tj.load(url).score("a friend")
    assert here == tj.load(local).score("a friend")
    assert not [path for path in (tmp_path / "cache" / "read").rglob("optimizer") if path.is_dir()]
    forget(tmp_path)
    assert main(["resume", url]) == 0
    assert main(arguments(DECODER, texts, url)) == 2
    assert f"{url}: has a run already" in capfd.readouterr().err
    assert not list(tmp_path.glob("s3*"))


@pytest.mark.slow
def test_commands_answer_as_with_a_local_run(bucket, texts, tmp_path, capfd):
    url, local = f"{bucket}/runs/small", tmp_path / "run"
    assert main(arguments(SEQ2SEQ, texts, local)) == 0
    for path in local.rglob("*"):
        if path.is_file():
            Objects(url).upload(path, path.relative_to(local).as_posix())
    text = f"{bucket}/data/a.pt"
    commands = [
        ["translate", "{run}", "--input", text],
        ["translate", "{run}", "--input", text, "--engine", "ctranslate2", "--num-beams", "1"],
        ["score", "{run}", "--source", text, "--target", text.replace(".pt", ".en")],
        ["evaluate", "{run}", "--source", text, "--target", text.replace(".pt", ".en")],
        ["verify", "{run}"],
        ["describe", "{run}"],
    ]
    for command in commands:
        outputs = []
        for run in (str(local), url):
            capfd.readouterr()
            assert main([word.format(run=run) for word in command]) == 0, capfd.readouterr().err
            outputs.append(capfd.readouterr())
        assert outputs[0].out.replace(str(local), url) == outputs[1].out
        assert str(tmp_path / "cache") not in outputs[1].out + outputs[1].err
    assert main([word.format(run=url) for word in commands[1]]) == 0
    assert "wrote" not in capfd.readouterr().err  # the export of the first time
    assert main(["translate", url, "--engine", "ctranslate2", "--engine-cache", url]) == 2
    assert f"--engine-cache is {url}: this command writes local files" in capfd.readouterr().err


def start(command):
    return subprocess.Popen(
        [sys.executable, "-m", "transformer_jax.cli.main", *command],
        cwd=ROOT, env=os.environ | {"JAX_PLATFORMS": "cpu"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("words", [SEQ2SEQ, DECODER], ids=["seq2seq", "decoder"])
def test_ten_kills_of_a_run_lose_nothing(bucket, texts, tmp_path, words):
    assert main(arguments(words, texts, f"{bucket}/runs/undisturbed")) == 0
    url = f"{bucket}/runs/killed"
    rng, kills, newest = random.Random(len(words)), 0, 0
    while kills < 10:
        process = start([*arguments(words, texts, url), "--resume"])
        # At any moment: at the start, between and within saves, uploads and removals.
        before = set(Objects(url).list())
        while process.poll() is None and set(Objects(url).list()) == before:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1.5))
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=60)
        assert process.returncode in (-9, 0), err
        kills += process.returncode == -9
        whole = any(Path(name).match("checkpoints/*/manifest.json") for name in Objects(url).list())
        found = verify(fetched(url)) if whole else []
        assert all(one.problem is None for one in found)
        assert max((one.step for one in found), default=0) >= newest
        newest = max((one.step for one in found), default=0)
        if newest:
            tj.load(url, checkpoint="last")
        if process.returncode == 0:
            break
        if kills % 3 == 0:
            forget(tmp_path)
    assert main([*arguments(words, texts, url), "--resume"]) == 0
    assert results(url)["state_sha256"] == results(f"{bucket}/runs/undisturbed")["state_sha256"]
    assert kills >= 3


@pytest.mark.slow
def test_a_store_that_fails_during_training_ends_it_in_a_line(
    bucket, texts, tmp_path, monkeypatch, capfd
):
    url, upload = f"{bucket}/runs/lm", Objects.upload

    def full(self, path, name):
        if "step_00000030" in name:
            raise PermissionError(errno.EACCES, "no permission for the bucket")
        upload(self, path, name)

    with monkeypatch.context() as patch:
        patch.setattr(Objects, "upload", full)
        assert main(arguments(DECODER, texts, url)) == 4
    err = capfd.readouterr().err
    assert "the checkpoint could not be written" in err
    assert "no permission for the bucket" in err
    assert "Traceback" not in err
    forget(tmp_path)
    assert main(["resume", url]) == 0
    assert "resumed from step 20" in capfd.readouterr().err
