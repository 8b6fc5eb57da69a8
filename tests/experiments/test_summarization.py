"""Summarization as a command: row T16."""

import json
import logging
import shutil

import numpy as np
import pytest

import transformer_jax
from transformer_jax.cli import seq2seq
from transformer_jax.core.trees import flatten_dict
from transformer_jax.recipes.registry import named_runs
from transformer_jax.runs.checkpoint_reader import load_params

TASK_RUNS = named_runs("finetuning")
RUNS = named_runs("summarization")

SIZES = [
    "--model.d-model", "16", "--model.encoder-layers", "1", "--model.decoder-layers", "1",
    "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "32",
    "--model.positions.max-length", "48", "--tokenizer.vocab-size", "300",
]  # fmt: skip
SHORT = [
    "--training.num-buckets", "1", "--training.max-tokens", "1024", "--training.steps", "4",
    "--distributed.num-local-devices", "1", "--optimizer.schedule.warmup-steps", "2",
    "--loop.evaluate-every", "2", "--loop.checkpoint-every", "2",
]  # fmt: skip
READ = ["--data.read.fields", "text", "tldr", "--data.read.max-length", "40",
        "--evaluation.max-length", "6", "--evaluation.num-beams", "2"]  # fmt: skip


@pytest.fixture(autouse=True)
def sm_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def data(shared):
    return shared("summaries", sm_write)


def sm_write(folder):
    folder.mkdir()
    things = [(a, b) for a in ("red", "blue", "big") for b in ("dog", "cat", "fish", "bird")]
    rows = [
        {"text": [f"the {a} {b} came.", f"it saw a {b}."], "tldr": [f"{a} {b}", f"a {b}"]}
        for a, b in things
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 2))
    # Every one is scored: the last two cannot be right.
    tests = [*rows[:3], {"text": "", "tldr": "a dog"}, {"text": "the red cat came.", "tldr": []}]
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tests))
    (folder / "bad.jsonl").write_text('{"text": "a", "tldr": "b"}\n{"text": "a"}\n')
    documents = [" ".join(" ".join(row["text"]) for row in rows[i:]) for i in range(8)]
    (folder / "text.txt").write_text("\n\n".join(documents))


@pytest.fixture(scope="module")
def pretrained(data, shared):
    def make(path):
        given = ["pretrain", "bart-mini", *SIZES, *SHORT, "--training.sequence-length", "40",
                 "--data.text", str(data / "text.txt"), "--output", str(path)]  # fmt: skip
        assert seq2seq.main(given) == 0

    return shared("summaries_pretrained", make)


@pytest.fixture(scope="module")
def run(data, pretrained, shared):
    pytest.importorskip("rouge_score", reason="needs rouge-score")

    def make(path):
        assert seq2seq.main(asked(data, path, "--init-from", str(pretrained))) == 0

    return shared("summaries_run", make)


def asked(data, output, *more):
    return ["finetune", "summarize", *SHORT, *READ, "--data.train", str(data / "train.jsonl"),
            "--data.test", str(data / "test.jsonl"), "--output", str(output), *more]  # fmt: skip


def results(path):
    return json.loads((path / "results.json").read_text())


@pytest.mark.slow
def test_t16_a_run_ends_with_rouge_beside_lead_and_oracle(run):
    test = results(run)["tests"]["test"]
    assert list(test) == ["model, 2 beams", "lead-1", "oracle-3"]
    for scores in test.values():
        assert scores["summaries"] == 4
        assert scores["signature"].startswith("nrefs:var|F1|")
    # "the red dog came." has both words of the reference, and two more: 2 · ½ · 1 / (3/2). One of
    # five texts is empty, and another has no summary.
    assert test["lead-1"]["rouge1"] == pytest.approx(100 * 2 / 3 * 3 / 4)
    assert test["oracle-3"]["rouge1"] >= test["lead-1"]["rouge1"]
    assert test["oracle-3"]["rouge2"] >= test["lead-1"]["rouge2"]


@pytest.mark.slow
def test_t16_it_starts_from_the_pretrained_model(run, pretrained):
    before = flatten_dict(load_params(pretrained, "best").params)
    after = flatten_dict(load_params(run, "last").params)
    assert before.keys() == after.keys()
    # Four steps change parameters little; anew they would be as far apart as they are long.
    kernels = [name for name in before if np.asarray(before[name]).ndim > 1]
    for name in kernels:
        old, new = np.asarray(before[name]), np.asarray(after[name])
        assert np.linalg.norm(new - old) < 0.5 * np.linalg.norm(old), name
    assert (run / "tokenizer.json").read_bytes() == (pretrained / "tokenizer.json").read_bytes()


@pytest.mark.slow
def test_a_run_resumes_bit_by_bit(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step_00000004")
    assert seq2seq.main(["resume", str(copy), "--distributed.num-local-devices", "1"]) == 0
    assert results(copy)["state_sha256"] == results(run)["state_sha256"]
    assert results(copy)["tests"] == results(run)["tests"]


@pytest.mark.slow
def test_evaluate_repeats_the_scores_and_writes_the_summaries(run, data, tmp_path, capfd):
    out = tmp_path / "out.txt"
    given = ["evaluate", str(run), "--data", str(data / "test.jsonl"), "--num-beams", "2"]
    assert seq2seq.main([*given, "--output", str(out)]) == 0
    found = results(run)["tests"]["test"]["model, 2 beams"]
    printed = capfd.readouterr().out
    assert f"{found['rouge1']:.2f}" in printed
    assert len(out.read_text().splitlines()) == 5
    with pytest.warns(UserWarning, match="1 of 1 text reached the length limit .6 tokens, at most"):
        assert isinstance(transformer_jax.load(run)("the red dog came."), str)


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["--data.train", "{data}/bad.jsonl"], 3, "bad.jsonl:2: no field 'tldr', only 'text'"),
        (["--data.train", "none.jsonl"], 3, "no such file"),
        (["--data.read.max-length", "1"], 2, "data.read.max-length is 1: at least 2"),
        (["--evaluation.lead", "0"], 2, "evaluation.lead is 0: at least 1"),
        (["--loop.best-checkpoint-metric", "sacrebleu"], 2, "this run has valid_loss, rouge1"),
        pytest.param(
            ["--init-from", "{pretrained}", "--model.d-model", "32"], 2,
            "keeps the sizes of its start",
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_mistake_is_one_line(data, request, tmp_path, capfd, monkeypatch, given, code, said):
    pytest.importorskip("rouge_score", reason="needs rouge-score")
    monkeypatch.chdir(tmp_path)
    there = request.getfixturevalue("pretrained") if "--init-from" in given else None
    words = [word.format(data=data, pretrained=there) for word in given]
    sizes = [] if "--init-from" in given else SIZES
    assert seq2seq.main([*asked(data, tmp_path / "run"), *sizes, *words]) == code
    [line] = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error:")]
    assert said in line


def test_without_the_library_of_rouge_nothing_begins(data, tmp_path, capfd, monkeypatch):
    import sys

    for name in ("rouge_score", "rouge_score.rouge_scorer"):
        monkeypatch.setitem(sys.modules, name, None)
    assert seq2seq.main(asked(data, tmp_path / "run")) == 2
    assert "pip install 'transformer-jax[rouge]'" in capfd.readouterr().err
    assert not (tmp_path / "run" / "config.json").exists()
