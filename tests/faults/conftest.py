"""Sound runs of the three families, a Hugging Face folder, and texts; faults are done to copies."""

import logging
import os
import shutil
from pathlib import Path

import pytest

from transformer_jax.cli import decoder_only, encoder_only, seq2seq
from transformer_jax.cli.main import main

WORDS = ["um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito", "nove", "dez"]
SMALL = [
    "--model.d-model", "16", "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "32",
    "--training.steps", "6", "--optimizer.schedule.warmup-steps", "2", "--loop.evaluate-every", "3",
    "--loop.checkpoint-every", "3", "--distributed.num-local-devices", "1",
]  # fmt: skip
TRANSLATOR = [
    *SMALL, "--model.encoder-layers", "1", "--model.decoder-layers", "1", "--tokenizer.kind",
    "characters", "--training.num-buckets", "1", "--training.max-tokens", "512",
    "--evaluation.sentences",
    "0", "--evaluation.num-beams", "1", "--data.read.max-length", "64",
]  # fmt: skip
WRITER = [
    *SMALL, "--model.decoder-layers", "1", "--model.positions.max-length", "32",
    "--training.batch-size", "16", "--training.sequence-length", "16", "--evaluation.sample", "0",
    "--evaluation.ngram-orders", "--tokenizer.kind", "bytes",
]  # fmt: skip
READER = [
    *SMALL, "--model.encoder-layers", "1", "--model.positions.max-length", "32",
    "--training.max-tokens", "256", "--training.sequence-length", "16", "--training.num-buckets",
    "1",
    "--tokenizer.vocab-size", "100",
]  # fmt: skip


@pytest.fixture(autouse=True)
def fa_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="session")
def texts(shared):
    return shared("faults_texts", write_texts)


def write_texts(folder):
    folder.mkdir()
    lines = [f"{a} {b}" for a in WORDS for b in WORDS[:6]]
    (folder / "a.pt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "a.en").write_text("".join(f"{line[::-1]}\n" for line in lines))
    (folder / "t.pt").write_text("".join(f"{line}\n" for line in lines[:4]))
    (folder / "t.en").write_text("".join(f"{line[::-1]}\n" for line in lines[:4]))
    (folder / "a.txt").write_text("\n\n".join(f"{line}.\n{line[::-1]}." for line in lines) + "\n")
    (folder / "a.tsv").write_text("".join(f"{line}\t{line[0]}\n" for line in lines))
    os.mkfifo(folder / "pipe")


def train(program, command):
    assert program(command) == 0


@pytest.fixture(scope="session")
def translator(texts, shared):
    data = ["--data.source", f"{texts}/a.pt", "--data.target", f"{texts}/a.en"]
    command = ["train", "small", *data, *TRANSLATOR, "--output"]
    return shared("faults_translator", lambda run: train(seq2seq.main, [*command, str(run)]))


@pytest.fixture(scope="session")
def writer(texts, shared):
    data = ["--data.text", f"{texts}/a.txt", "--data.read.documents", "blank"]
    command = ["train", "char-cpu", *data, *WRITER, "--output"]
    return shared("faults_writer", lambda run: train(decoder_only.main, [*command, str(run)]))


@pytest.fixture(scope="session")
def reader(texts, shared):
    data = ["--data.text", f"{texts}/a.txt"]
    command = ["pretrain", "small", *data, *READER, "--output"]
    return shared("faults_reader", lambda run: train(encoder_only.main, [*command, str(run)]))


@pytest.fixture(scope="session")
def published(writer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "published"
    assert main(["export", str(writer), str(folder), "--format", "hf"]) == 0
    return folder


@pytest.fixture
def copy(tmp_path):
    """A copy of a sound folder, for one fault."""
    counter = iter(range(10_000))

    def make(folder: Path) -> Path:
        return Path(shutil.copytree(folder, tmp_path / f"copy{next(counter)}"))

    return make
