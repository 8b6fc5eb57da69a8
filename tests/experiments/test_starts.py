"""Runs that start from trained weights: what they take over, what they train, what they need."""

import json
import logging
import shutil

import jax
import pytest

from tests.parity import layouts
from transformer_jax.cli import decoder_only
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.predictors.runs import load
from transformer_jax.training.stored import load_params, load_parts
from transformer_jax.training.trees import flatten_dict

WORDS = ["um", "dois", "três", "quatro", "cinco", "seis", "sete", "oito", "nove", "dez"]
ALONE = ["--distributed.num-local-devices", "1"]
SHORT = [
    "--training.steps", "4", "--optimizer.schedule.warmup-steps", "1", "--loop.evaluate-every", "2",
    "--loop.checkpoint-every", "2", *ALONE,
]  # fmt: skip
SIZES = [
    "--model.d-model", "16", "--model.attention.num-heads", "2", "--model.feed-forward.d-ff", "32",
    "--model.positions.max-length", "64", "--model.decoder-layers", "2",
]  # fmt: skip
LANGUAGE = [
    "train", "char-cpu", *SHORT, "--data.text", "{texts}/all.txt", "--data.read.documents", "line",
    "--training.layout", "packed", "--training.batch-size", "8", "--training.sequence-length", "16",
    "--evaluation.sample", "0", "--evaluation.ngram-orders",
]  # fmt: skip


@pytest.fixture(autouse=True)
def st_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def texts(shared):
    def write(folder):
        folder.mkdir()
        lines = [f"{a} {b}" for a in WORDS for b in WORDS[:6]]
        (folder / "all.txt").write_text("".join(f"{line}\n" for line in lines))

    return shared("starts_texts", write)


def run_of(program, command, texts, output, *more):
    """The run that a command made, which must succeed."""
    given = [word.format(texts=texts) for word in command]
    assert program.main([*given, "--output", str(output), *more]) == 0
    return output


@pytest.fixture(scope="module")
def language(texts, shared):
    """A language model of two layers."""
    return shared("starts_language", lambda run: run_of(decoder_only, LANGUAGE, texts, run, *SIZES))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A published language model, whose tokens to begin and end have unusual names."""
    folder = layouts.write("gpt2", tmp_path_factory.mktemp("published") / "gpt2")
    names = ("<start>", "<pad>", "<stop>", "<unk>")
    train_tokenizer("wordpiece", [" ".join(WORDS)] * 3, 90, special=(*names, "</s>")).save(
        folder / "tokenizer.json"
    )
    return folder


def parameters(run, which="last"):
    return flatten_dict(load_params(run, which).params)


def results(run):
    return json.loads((run / "results.json").read_text())


def test_a_language_model_goes_on_from_a_run(language, texts, tmp_path, capfd):
    """Row B38: at rate 0 nothing moves; own settings change no size."""
    run = run_of(
        decoder_only, LANGUAGE, texts, tmp_path / "run", "--init-from", str(language),
        "--optimizer.learning-rate", "0", "--model.norm.residual-dropout", "0.3",
    )  # fmt: skip
    assert f"parameters from {language}; newly initialized: none\n" in capfd.readouterr().err
    before, after = parameters(language, "best"), parameters(run)
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    config = json.loads((run / "config.json").read_text())["model"]
    there = json.loads((language / "config.json").read_text())["model"]
    assert config["norm"].pop("residual_dropout") == 0.3
    assert there["norm"].pop("residual_dropout") == 0.0
    assert config == there
    tokenizers = [(path / "tokenizer.json").read_bytes() for path in (run, language)]
    assert tokenizers[0] == tokenizers[1]


def test_frozen_layers_stay_bit_by_bit_and_have_no_optimizer_state(language, texts, tmp_path):
    """Row B38; resumed without the run that it started from, it ends with the same bits."""
    start = shutil.copytree(language, tmp_path / "start")
    run = run_of(
        decoder_only, LANGUAGE, texts, tmp_path / "run", "--init-from", str(start), "--freeze", "1"
    )
    shutil.rmtree(start)
    before, after = parameters(language, "best"), parameters(run)
    frozen = flatten_dict(load_parts(run, "last").frozen)
    below = ("embedding/", "decoder/positions/", "decoder/blocks/0/")
    assert frozen.keys() == {name for name in before if name.startswith(below)}
    for name in before:
        same = before[name].tobytes() == after[name].tobytes()
        assert same == (name in frozen), name
    manifest = json.loads((run / "checkpoints/step_00000004/manifest.json").read_text())
    stored = manifest["tree"]
    assert any(name.endswith("decoder/blocks/1/feed_forward/up/kernel") for name in stored)
    assert not [name for name in stored for still in frozen if name.endswith(still)]
    shutil.rmtree(run / "checkpoints/step_00000004")
    whole = results(run)["state_sha256"]
    (run / "results.json").unlink()
    assert decoder_only.main(["resume", str(run), *ALONE]) == 0
    assert results(run)["state_sha256"] == whole


def test_a_language_model_goes_on_from_a_published_one(gpt2, texts, tmp_path):
    run = run_of(
        decoder_only, LANGUAGE, texts, tmp_path / "run", "--init-from", str(gpt2),
        "--optimizer.learning-rate", "0",
    )  # fmt: skip
    (_, there), tokenizer = load(gpt2, kind="decoder")
    (_, here), same = load(run, "last", kind="decoder")
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), here, there))
    assert (same.bos, same.eos, same.pad) == (tokenizer.bos, tokenizer.eos, tokenizer.pad)
    assert (same.bos, same.eos) == (0, 2)


MISTAKES = [
    (["--model.d-model", "32"], 2, "model.d_model: "),
    (["--tokenizer.kind", "bpe"], 2, "a run with init_from reads text as that run does"),
    (["--data.read.lowercase"], 2, "was trained on text with capitals"),
    (["--freeze", "3"], 2, "freeze is 3: there are 2 layers"),
    (["--freeze", "encoder"], 2, "allowed are none, embeddings, decoder, or the number"),
    (["--freeze", "decoder"], 2, "nothing is left to train"),
    (["--reinit-last", "3"], 2, "reinit_last is 3: there are 2 layers"),
    (["--freeze", "1", "--reinit-last", "2"], 2, "never be trained"),
    (["--freeze", "1", "--model.compute.scan-layers"], 2, "--model.compute.no-scan-layers"),
]


@pytest.mark.parametrize(("more", "code", "said"), MISTAKES, ids=[m[2] for m in MISTAKES])
def test_a_mistake_about_a_start_is_one_line(language, texts, tmp_path, capfd, more, code, said):
    given = [word.format(texts=texts) for word in LANGUAGE]
    given += ["--init-from", str(language), "--output", str(tmp_path / "run")]
    assert decoder_only.main([*given, *more]) == code
    [line] = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert said in line
    assert not (tmp_path / "run/config.json").exists()
