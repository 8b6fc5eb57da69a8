"""Denoising pre-training of encoder-decoders, as a command: row T16."""

import dataclasses
import json
import logging
import shutil

import numpy as np
import pytest

import transformer_jax
from transformer_jax.cli import seq2seq
from transformer_jax.core.config_dict import from_dict
from transformer_jax.data.denoising import NoiseConfig
from transformer_jax.planning.run_programs import buckets
from transformer_jax.recipes import driver
from transformer_jax.recipes.denoising import DenoisingRun
from transformer_jax.recipes.registry import named_runs
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_directory import RunDirectory

RUNS = named_runs("denoising")

SIZES = [
    "--model.d-model", "16", "--model.encoder-layers", "1", "--model.decoder-layers", "1",
    "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "32",
    "--model.positions.max-length", "48", "--distributed.num-local-devices", "1",
    "--training.sequence-length", "32", "--training.num-buckets", "1",
    "--training.max-tokens", "512", "--tokenizer.vocab-size", "300",
    "--optimizer.schedule.warmup-steps", "2",
]  # fmt: skip
SHORT = ["--training.steps", "6", "--loop.evaluate-every", "3", "--loop.checkpoint-every", "3"]


@pytest.fixture(autouse=True)
def dn_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def text(shared):
    return shared("denoising_text", dn_write)


def dn_write(path):
    things = [f"the {a} {b} sees a {b}." for a in ("red", "blue") for b in ("dog", "cat", "fish")]
    documents = [" ".join(things[i:] + things[:i]) for i in range(6)] * 3
    path.write_text("\n\n".join(documents) + "\n")


def pretrain(text, output, name="bart-mini", *more):
    given = ["pretrain", name, *SIZES, *SHORT, "--data.text", str(text), "--output", str(output)]
    assert seq2seq.main([*given, *more]) == 0
    return output


@pytest.fixture(scope="module")
def run(text, shared):
    return shared("denoising_run", lambda path: pretrain(text, path))


def results(path):
    return json.loads((path / "results.json").read_text())


@pytest.mark.slow
def test_t16_a_run_ends_with_its_loss_beside_a_trivial_baseline(run):
    [scores] = results(run)["scores"].values()
    assert set(scores) == {"loss", "unigram_loss", "tokens"}
    assert 0 < scores["unigram_loss"] < np.log(300)
    looks = [r for r in read_metrics(run / "metrics.jsonl") if "valid_loss" in r]
    assert [record["step"] for record in looks] == [3, 6]
    # What validation measured is what the best checkpoint has.
    best = min(record["valid_loss"] for record in looks)
    assert abs(scores["loss"] - best) < 1e-3


@pytest.mark.slow
def test_a_run_resumes_bit_by_bit(run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step_00000006")
    assert seq2seq.main(["resume", str(copy), "--distributed.num-local-devices", "1"]) == 0
    assert results(copy)["state_sha256"] == results(run)["state_sha256"]


@pytest.mark.slow
def test_a_run_is_used_as_any_encoder_decoder(run):
    model = transformer_jax.load(run)
    with pytest.warns(UserWarning, match="1 of 1 text reached the length limit"):  # untrained
        assert isinstance(model("the red <mask> sees a dog."), str)
    directory = RunDirectory(run)
    tokenizer = directory.load_tokenizer()
    assert tokenizer.mask is not None
    assert not tokenizer.sentinels
    assert tokenizer.decode([tokenizer.mask]) == ""


@pytest.mark.slow
def test_t16_span_corruption_learns_its_sentinels(text, tmp_path):
    more = ["--training.steps", "300", "--optimizer.learning-rate", "1e-2",
            "--loop.evaluate-every", "0", "--loop.checkpoint-every", "0"]  # fmt: skip
    path = pretrain(text, tmp_path / "run", "t5-mini", *more)
    [scores] = results(path)["scores"].values()
    assert scores["loss"] < 0.6 * scores["unigram_loss"]
    tokenizer = RunDirectory(path).load_tokenizer()
    assert len(tokenizer.sentinels) == 3


@pytest.mark.parametrize("name", RUNS)
def test_every_named_run_can_be_written_and_read_back(name, tmp_path):
    fields = json.loads(json.dumps(dataclasses.asdict(RUNS[name][1])))
    assert from_dict(DenoisingRun, fields) == RUNS[name][1]
    directory = RunDirectory(tmp_path)
    directory.config.write_text(json.dumps(fields))
    assert driver.read(directory).noise == RUNS[name][1].noise


MISTAKES = [
    (["--noise.text-infilling", "2"], 2, "--noise.text-infilling is 2.0: at most 1"),
    (["--noise.span-corruption", "0.2"], 2, "together with noise.sentence_permutation 1.0"),
    (["--noise.sentence-permutation", "0", "--noise.text-infilling", "0"], 2, "nothing to restore"),
    (["--training.sequence-length", "90"], 2, "training.sequence_length is 90, but the model has"),
    (["--training.sequence-length", "1"], 2, "a text needs at least 2"),
    (["--data.text", "none.txt"], 3, "no such file"),
    (["--loop.best-checkpoint-metric", "sacrebleu"], 2, "this run has valid_loss"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "code", "said"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_is_one_line_and_an_exit_code(
    text, tmp_path, capfd, monkeypatch, given, code, said
):
    monkeypatch.chdir(tmp_path)
    words = ["pretrain", "bart-mini", *SIZES, *SHORT, "--data.text", str(text), *given]
    assert seq2seq.main(words) == code
    err = capfd.readouterr().err
    [line] = [line for line in err.splitlines() if line.startswith("error:")]
    assert said in line
    assert "Traceback" not in err


@pytest.mark.slow
def test_evaluating_translations_of_a_denoising_run_is_refused(run, text, capfd):
    given = ["evaluate", str(run), "--source", str(text), "--target", str(text)]
    assert seq2seq.main(given) in (2, 4)
    [line] = capfd.readouterr().err.splitlines()
    assert "denoising" in line


def test_a_plan_knows_the_batches():
    run = RUNS["bart-base"][1]
    shapes = buckets(run, {"data": 1, "fsdp": 1})
    assert shapes[0].length == run.training.sequence_length
    assert shapes[0].rows * shapes[0].length <= run.training.max_tokens


def test_t16_named_runs_have_the_noise_of_their_papers():
    """Lewis et al. 2020, section 3.1 (large-scale pre-training); Raffel et al. 2020, 3.1.4."""
    bart, t5 = RUNS["bart-base"][1].noise, RUNS["t5-small"][1].noise
    assert bart == NoiseConfig(sentence_permutation=1.0, text_infilling=0.3, mean_span_length=3.0)
    assert (t5.span_corruption, t5.mean_span_length) == (0.15, 3.0)
