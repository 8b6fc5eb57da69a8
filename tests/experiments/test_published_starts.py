"""Runs of encoder-decoders that start from published ones: rows B38 and T16.

What they compute is compared with transformers in ``tests/parity/test_published_starts.py``.
"""

import io
import json
import logging
import shutil

import numpy as np
import pytest

import transformer_jax
from tests import published_translators as published
from tests.experiments.language_runs import ALONE
from tests.opened import load
from transformer_jax.cli import main as program
from transformer_jax.cli import seq2seq
from transformer_jax.core.trees import flatten_dict
from transformer_jax.decoding.translator import Translator
from transformer_jax.inference.pretrained import open_directory
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint
from transformer_jax.recipes import driver
from transformer_jax.runs.checkpoint_reader import load_params
from transformer_jax.runs.run_directory import RunDirectory

FAMILIES = ["bart", "t5"]
PREFIX = "summarize : "
COMMON = [
    "--training.num-buckets", "1", "--training.max-tokens", "1024", *ALONE,
    "--optimizer.schedule.warmup-steps", "1",
]  # fmt: skip
SUMMARIZE = [
    "finetune", "summarize", *COMMON, "--training.steps", "8", "--loop.evaluate-every", "4",
    "--loop.checkpoint-every", "4", "--data.train", "{data}/train.jsonl", "--data.valid",
    "{data}/valid.jsonl", "--data.read.max-length", "30", "--data.read.source-prefix", PREFIX,
    "--optimizer.learning-rate", "0.01", "--evaluation.max-length", "6", "--evaluation.num-beams",
    "2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def ps_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def data(shared):
    return shared("published_data", published.write_data)


@pytest.fixture(scope="module")
def folder(shared):
    return lambda name: shared(f"published_{name}", lambda path: published.write(name, path))


@pytest.fixture(scope="module")
def run(shared, folder, data):
    """A summarizer that starts from a published model."""
    pytest.importorskip("rouge_score", reason="needs rouge-score")

    def made(name):
        given = [word.format(data=data) for word in SUMMARIZE]
        given += ["--init-from", str(folder(name))]
        make = lambda path: trained(given, path)
        return shared(f"published_run_{name}", make)

    return made


def trained(given, path):
    assert seq2seq.main([*given, "--output", str(path)]) == 0


def history(path, name):
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def results(path):
    return json.loads((path / "results.json").read_text())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow
def test_a_published_model_learns_to_summarize(run, folder, data, name, capfd):
    """Row T16: the loss falls, and the run writes what it was trained to, behind its prefix."""
    path = run(name)
    losses = history(path, "loss")
    assert losses[-1] < 0.9 * losses[0]
    own, there = RunDirectory.open(path), open_directory(folder(name))
    assert own.load_tokenizer().special == there.load_tokenizer().special
    text, other = "the red dog came .", "it saw a cat ."
    summarize = transformer_jax.load(path, checkpoint="last")
    assert summarize._translator.prepared(text) == PREFIX + text
    expected = summarize([text, other, ""])
    assert expected[2] == ""
    given = ["evaluate", str(path), "--data", f"{data}/valid.jsonl", "--num-beams", "2"]
    capfd.readouterr()
    assert seq2seq.main(given) == 0
    rouge = results(path)["tests"]["valid"]["model, 2 beams"]["rouge1"]
    assert f"{rouge:.2f}" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_translate_and_score_read_sources_behind_the_prefix(
    run, name, monkeypatch, capsys, tmp_path
):
    """Sources have the prefix, targets have not."""
    path, text = run(name), "the red dog came ."
    summarize = transformer_jax.load(path)
    plain = Translator(*load(path))  # whose texts come prepared
    capsys.readouterr()  # of training
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{text}\n".encode())))
    assert program.main(["translate", str(path)]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line == plain.translate([PREFIX + text])[0].text
    [score] = plain.score([PREFIX + text], ["a red dog"])
    assert summarize.score(text, "a red dog") == pytest.approx(score.log_prob, rel=1e-6)
    first = plain.tokenizer.target_prefix_ids
    assert score.tokens == (*plain.tokenizer.encode("a red dog"), plain.tokenizer.eos)
    page = tmp_path / "page.html"
    words = ["attention", path, text, "--target", "a red dog", "--json", "--output", page]
    assert program.main(list(map(str, words))) == 0
    held = json.loads(page.with_suffix(".json").read_text())["cross"]["rows"]
    assert len(held) == len(first) + len(score.tokens)
    by_hf = summarize(text, generation_config="hf", num_beams=1)
    assert isinstance(by_hf, str)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_it_resumes_bit_by_bit(run, tmp_path, name):
    copy = shutil.copytree(run(name), tmp_path / "run")
    shutil.rmtree(copy / "checkpoints" / "step_00000008")
    (copy / "results.json").unlink()
    assert seq2seq.main(["resume", str(copy), *ALONE]) == 0
    assert results(copy)["state_sha256"] == results(run(name))["state_sha256"]
    assert results(copy)["tests"] == results(run(name))["tests"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow
def test_its_export_has_the_format_of_the_start(run, folder, tmp_path, name):
    """The same settings, tokenizer and tensors; the weights are those that were trained."""
    out, path, there = tmp_path / "out", run(name), folder(name)
    assert program.main(["export", str(path), str(out)]) == 0
    config, before = (json.loads((one / "config.json").read_text()) for one in (out, there))
    assert {key: config[key] for key in before} == before
    assert (out / "tokenizer.json").read_bytes() == (there / "tokenizer.json").read_bytes()
    one, other = open_hf_checkpoint(out), open_hf_checkpoint(there)
    assert set(one.tensors.entries) == set(other.tensors.entries)
    best = flatten_dict(load_params(path, "best").params)
    for key, value in flatten_dict(one.load()).items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(best[key]), err_msg=key)


@pytest.mark.slow
def test_an_export_of_more_tokens_says_so(folder, data, tmp_path):
    """Tables grow; everything else of the configuration stays."""
    given = [word.format(data=data) for word in SUMMARIZE]
    given += ["--init-from", str(folder("bart")), "--tokenizer.add-tokens", "zebra"]
    given += ["--model.norm.residual-dropout", "0.3", "--training.steps", "1"]
    trained(given, tmp_path / "run")
    assert program.main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    config = json.loads((tmp_path / "out/config.json").read_text())
    before = json.loads((folder("bart") / "config.json").read_text())
    before |= {"vocab_size": before["vocab_size"] + 1, "dropout": 0.3}
    assert {key: config[key] for key in before} == before
    assert open_hf_checkpoint(tmp_path / "out").model.config.vocab_size == before["vocab_size"]


@pytest.mark.slow
def test_a_start_from_scratch_learns_its_prefix_too(data, tmp_path):
    """A tokenizer that is trained here has seen the prefix."""
    given = [word.format(data=data) for word in SUMMARIZE]
    sizes = ["--model.d-model", "16", "--model.attention.num-heads", "2", "--tokenizer.kind",
             "characters", "--data.read.source-prefix", "TL;DR "]  # fmt: skip
    trained([*given, *sizes, "--training.steps", "1"], tmp_path / "run")
    tokenizer = RunDirectory.open(tmp_path / "run").load_tokenizer()
    assert tokenizer.unk not in tokenizer.encode("TL;DR ")


DENOISE = [*COMMON, "--training.steps", "4", "--loop.evaluate-every", "2", "--data.text",
           "{data}/text.txt", "--training.sequence-length", "24", "--loop.checkpoint-every", "2",
           "--optimizer.learning-rate", "0.01"]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow
def test_denoising_goes_on_from_a_published_model(folder, data, tmp_path, name, capfd):
    """It learns, resumes bit by bit, and texts have the tokens around them of the start."""
    given = ["pretrain", f"{name}-mini", *(word.format(data=data) for word in DENOISE)]
    path = tmp_path / "run"
    trained([*given, "--init-from", str(folder(name)), "--freeze", "embeddings"], path)
    assert "newly initialized: none" in capfd.readouterr().err
    losses = history(path, "loss")
    assert losses[-1] < losses[0]
    here = flatten_dict(load_params(path, "last").params)
    there = flatten_dict(open_hf_checkpoint(folder(name)).load())
    moved = {key for key in here if not np.array_equal(here[key], np.asarray(there[key]))}
    assert "embedding/table" not in moved
    assert {key.split("/")[0] for key in moved} >= {"encoder", "decoder"}
    run = driver.read(RunDirectory.open(path))
    tokenizer = RunDirectory.open(path).load_tokenizer()
    task = driver.make_task(run, RunDirectory.open(path), tokenizer, driver.open_data(run))
    batch = task.train.make_batch(task.train.plan.batch(0))
    rows = batch["lengths"] > 0
    first = batch["target"][rows][:, 0]
    if name == "bart":
        assert set(first) == {0}  # <s>
        assert set(batch["inputs"]["source"][rows][:, 0]) == {0}
    else:
        assert set(first) <= set(tokenizer.sentinels)
    whole = results(path)["state_sha256"]
    shutil.rmtree(path / "checkpoints" / "step_00000004")
    (path / "results.json").unlink()
    assert seq2seq.main(["resume", str(path), *ALONE]) == 0
    assert results(path)["state_sha256"] == whole


MISTAKES = [
    ("t5", ["pretrain", "bart-mini"], "or start a model of spans (T5) as the run t5-mini"),
    ("bart", ["pretrain", "bart-mini", "--training.sequence-length", "60"],
     "the model has positions for 44 tokens"),
    ("bart", ["pretrain", "bart-mini", "--tokenizer.vocab-size", "300"], "has the tokenizer of"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "more", "said"), MISTAKES, ids=[case[2] for case in MISTAKES])
def test_a_mistake_is_one_line(folder, data, tmp_path, capfd, name, more, said):
    given = [*more[:2], *(word.format(data=data) for word in DENOISE), *more[2:]]
    given += ["--init-from", str(folder(name)), "--output", str(tmp_path / "run")]
    assert seq2seq.main(given) == 2
    [line] = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert said in line
    assert not (tmp_path / "run" / "config.json").exists()
