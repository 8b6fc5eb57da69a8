"""The loss that a run starts with is that of transformers on the same texts: rows B38, T16."""

import json
import logging

import jax
import numpy as np
import pytest
from flax import nnx

from tests import published_translators as published
from tests.experiments.test_published_starts import COMMON, DENOISE, PREFIX, SUMMARIZE
from tests.opened import load
from transformer_jax.cli import seq2seq
from transformer_jax.recipes import driver
from transformer_jax.runs.run_directory import RunDirectory

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

CLASSES = {
    "bart": "BartForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "marian": "MarianMTModel",
}
STILL = ["--training.steps", "1", "--optimizer.learning-rate", "0", "--loop.evaluate-every", "1"]


@pytest.fixture(autouse=True)
def pp_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def data(shared):
    return shared("published_data", published.write_data)


@pytest.fixture(scope="module")
def folder(shared):
    return lambda name: shared(f"published_{name}", lambda path: published.write(name, path))


def theirs(name, folder, inputs, labels):
    """The loss of transformers, by its own shift of labels; -100 is padding."""
    model = getattr(transformers, CLASSES[name]).from_pretrained(folder).eval()
    given = {key: torch.tensor(np.asarray(value)) for key, value in inputs.items()}
    with torch.no_grad():
        return float(model(**given, labels=torch.tensor(np.asarray(labels))).loss)


def batch_of(folder, sources, targets):
    """Inputs and labels by a tokenizer of transformers."""
    fields = json.loads((folder / "config.json").read_text())
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>"
    )
    assert tokenizer.pad_token_id == fields["pad_token_id"]
    made = tokenizer(sources, padding=True)
    labels = tokenizer(text_target=targets, padding=True)["input_ids"]
    labels = [[-100 if id == tokenizer.pad_token_id else id for id in row] for row in labels]
    return {key: made[key] for key in ("input_ids", "attention_mask")}, labels


def valid_loss(path):
    lines = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return next(line["valid_loss"] for line in lines if "valid_loss" in line)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("prefix", ["", PREFIX], ids=["plain", "prefix"])
def test_the_first_loss_of_summaries(folder, data, tmp_path, name, prefix):
    pytest.importorskip("rouge_score", reason="needs rouge-score")
    given = [word.format(data=data) for word in SUMMARIZE]
    given[given.index("--data.read.source-prefix") + 1] = prefix
    given += [*STILL, "--init-from", str(folder(name)), "--output", str(tmp_path / "run")]
    assert seq2seq.main(given) == 0
    rows = [json.loads(line) for line in (data / "valid.jsonl").read_text().splitlines()]
    sources = [prefix + row["source"] for row in rows]
    batch = batch_of(folder(name), sources, [row["target"] for row in rows])
    expected = theirs(name, folder(name), *batch)
    assert valid_loss(tmp_path / "run") == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("name", CLASSES)
def test_the_first_loss_of_translations(folder, data, tmp_path, name):
    given = ["train", "small", *COMMON, *STILL, "--data.pairs", f"{data}/pairs.tsv",
             "--data.valid.pairs", f"{data}/pairs.tsv", "--data.read.max-length", "30",
             "--evaluation.num-beams", "1", "--init-from", str(folder(name)),
             "--output", str(tmp_path / "run")]  # fmt: skip
    assert seq2seq.main(given) == 0
    pairs = [line.split("\t") for line in (data / "pairs.tsv").read_text().splitlines()]
    batch = batch_of(folder(name), *map(list, zip(*pairs, strict=True)))
    expected = theirs(name, folder(name), *batch)
    assert valid_loss(tmp_path / "run") == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_the_first_loss_of_denoising(folder, data, tmp_path, name):
    """For a batch of the run: the labels of transformers are its targets."""
    path = tmp_path / "run"
    given = ["pretrain", f"{name}-mini", *(word.format(data=data) for word in DENOISE), *STILL]
    assert seq2seq.main([*given, "--init-from", str(folder(name)), "--output", str(path)]) == 0
    (graph, params), tokenizer = load(path, "last")
    directory = RunDirectory.open(path)
    run = driver.read(directory)
    task = driver.make_task(run, directory, tokenizer, driver.open_data(run))
    batch = task.train.make_batch(task.train.plan.batch(0))
    source, lengths = batch["inputs"]["source"], batch["inputs"]["source_lengths"]
    keep = lengths > 0
    mask = (np.arange(source.shape[1]) < lengths[:, None]).astype(int)
    real = np.arange(batch["target"].shape[1]) < batch["lengths"][:, None]
    labels = np.where(real, batch["target"], -100).astype(int)
    inputs = {"input_ids": source[keep].astype(int), "attention_mask": mask[keep]}
    expected = theirs(name, folder(name), inputs, labels[keep])
    with jax.default_matmul_precision("highest"):
        total, weight = task.objective(nnx.merge(graph, params), batch, None)["loss"]
    assert float(total / weight) == pytest.approx(expected, rel=2e-6)
