"""Recurrent translators, and decoders of recurrent blocks, that start from others: row B38."""

import dataclasses
import json
import logging
import shutil

import numpy as np
import pytest
from flax import nnx

import transformer_jax as tj
from tests.experiments.language_runs import ALONE, LANGUAGE, SHORT, run_of, write_texts
from tests.experiments.test_published_starts import history
from tests.opened import load
from transformer_jax.cli import decoder_only, seq2seq
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict, unflatten_dict
from transformer_jax.decoding.translator import Translator
from transformer_jax.recipes.freezing import partition_of
from transformer_jax.recipes.registry import named_runs
from transformer_jax.recipes.start import parameter_shapes
from transformer_jax.runs.checkpoint_reader import load_params, load_parts

RUNS = named_runs("translation", "recurrent_translation")

STILL = ["--optimizer.learning-rate", "0"]
TRANSLATE = [
    *SHORT, "--data.source", "{texts}/all.txt", "--data.target", "{texts}/all.txt",
    "--data.read.max-length", "40", "--training.max-tokens", "256", "--training.num-buckets", "1",
    "--evaluation.sentences", "0", "--evaluation.num-beams", "1", "--optimizer.learning-rate",
    "0.01",
]  # fmt: skip
SIZES = [
    "--model.d-model", "16", "--model.num-layers", "2", "--model.max-length", "64",
    "--tokenizer.kind", "characters", "--model.dropout", "0.0",
]  # fmt: skip


@pytest.fixture(autouse=True)
def rs_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def texts(shared):
    return shared("recurrent_starts_texts", write_texts)


@pytest.fixture(scope="module")
def train(texts):
    def made(name, output, *more):
        return run_of(seq2seq, ["train", name, *TRANSLATE], texts, output, *map(str, more))

    return made


@pytest.fixture(scope="module")
def start(train, shared):
    return lambda name: shared(f"recurrent_start_{name}", lambda run: train(name, run, *SIZES))


def parameters(run, which="last"):
    return flatten_dict(load_params(run, which).params)


def results(run):
    return json.loads((run / "results.json").read_text())


@pytest.mark.parametrize("name", ["luong", "bahdanau", "cho"])
@pytest.mark.slow
def test_a_run_goes_on_from_another(start, train, tmp_path, capfd, name):
    """At rate 0 it is the start, bit for bit, with its loss; by its rate it learns on."""
    there = start(name)
    run = train(name, tmp_path / "still", "--init-from", there, *STILL)
    assert f"parameters from {there}; newly initialized: none\n" in capfd.readouterr().err
    before, after = parameters(there, "best"), parameters(run)
    assert before.keys() == after.keys()
    assert all(before[key].tobytes() == after[key].tobytes() for key in before)
    assert (run / "tokenizer.json").read_bytes() == (there / "tokenizer.json").read_bytes()
    best = results(there)["best"]["value"]
    assert history(run, "valid_loss")[0] == best
    written = [Translator(*load(path)).translate(["um dois", "três"]) for path in (there, run)]
    assert written[0] == written[1]
    more = train(name, tmp_path / "more", "--init-from", there)
    assert history(more, "valid_loss")[-1] < best


CASES = [
    ("luong", "embeddings", ("decoder/embedding/",)),
    ("luong", "encoder", ("encoder/", "decoder/embedding/")),
    ("bahdanau", "decoder", ("decoder/",)),
    ("luong", "1", ("decoder/embedding/", "encoder/layers/forward/0/", "encoder/layers/backward/0/",
                    "decoder/layers/forward/0/")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "freeze", "below"), CASES, ids=[" ".join(c[:2]) for c in CASES])
@pytest.mark.slow
def test_frozen_parameters_stay_and_the_run_resumes_without_its_start(
    start, train, tmp_path, name, freeze, below
):
    there = shutil.copytree(start(name), tmp_path / "start")
    run = train(name, tmp_path / "run", "--init-from", there, "--freeze", freeze)
    shutil.rmtree(there)
    before, after = parameters(start(name), "best"), parameters(run)
    frozen = flatten_dict(load_parts(run, "last").frozen)
    assert frozen.keys() == {key for key in before if key.startswith(below)}
    for key in before:
        same = before[key].tobytes() == after[key].tobytes()
        assert same or key not in frozen, key
    assert any(before[key].tobytes() != after[key].tobytes() for key in before)
    whole = results(run)["state_sha256"]
    shutil.rmtree(run / "checkpoints/step_00000004")
    (run / "results.json").unlink()
    assert seq2seq.main(["resume", str(run), *ALONE]) == 0
    assert results(run)["state_sha256"] == whole


def test_a_table_of_its_own_is_trained_beside_a_frozen_stack():
    """Tables that nothing shares are frozen with their own stack; the output table never is."""
    config = RUNS["luong"][1].model
    apart = {"share_encoder_decoder_embeddings": False}
    config = dataclasses.replace(
        config,
        embedding=dataclasses.replace(config.embedding, **apart),
        head=dataclasses.replace(config.head, tie_word_embeddings=False),
    )
    shapes = parameter_shapes(config)
    split = lambda freeze: partition_of(freeze, config).split(
        unflatten_dict({name: np.zeros(1) for name in shapes}), nnx.Rngs(0)
    )
    tables = {"encoder/embedding/table", "decoder/embedding/table", "decoder/table/table"}
    for freeze, frozen in (
        ("embeddings", {"encoder/embedding/table", "decoder/embedding/table"}),
        ("encoder", {"encoder/embedding/table"}),
        ("decoder", {"decoder/embedding/table"}),
    ):
        assert tables & flatten_dict(split(freeze)[1]).keys() == frozen


@pytest.mark.slow
def test_layers_the_head_and_new_tokens(start, train, tmp_path, capfd):
    """The last layer of the decoder is drawn anew; new rows are near the mean of the others."""
    there = start("luong")
    run = train(
        "luong", tmp_path / "run", "--init-from", there, *STILL, "--reinit-last", 1,
        "--model.head.no-tie-word-embeddings", "--tokenizer.add-tokens", "quatro",
        "--training.seed", 7,
    )  # fmt: skip
    err = capfd.readouterr().err
    assert "1 new token initialized near the mean" in err
    before, after = parameters(there, "best"), parameters(run)
    layer = [name for name in before if name.startswith("decoder/layers/forward/1/")]
    assert after.keys() - before.keys() == {"decoder/table/table"}
    for name in before:
        same = before[name].shape == after[name].shape and np.array_equal(before[name], after[name])
        kernel = name.endswith("kernel")
        assert same or name in layer or name == "decoder/embedding/table", name
        assert not (same and kernel and name in layer), name
    old, new = (one["decoder/embedding/table"] for one in (before, after))
    assert np.array_equal(new[:-1], old)
    assert np.abs(new[-1] - old.mean(0)).max() < 0.05 * old.std()


@pytest.mark.slow
def test_a_new_token_is_trained_beside_frozen_embeddings(start, train, tmp_path):
    """Row B38: its row alone changes, of all tables."""
    there = start("luong")
    run = train(
        "luong", tmp_path / "run", "--init-from", there, "--freeze", "embeddings",
        "--tokenizer.add-tokens", "quatro",
    )  # fmt: skip
    before, after = parameters(there, "best"), parameters(run)
    tables = [name for name in before if name.endswith("embedding/table")]
    assert tables
    for name in tables:
        assert len(after[name]) == len(before[name]) + 1
        assert np.array_equal(after[name][:-1], before[name])
    moved = [name for name in before if not np.array_equal(after[name], before[name])]
    assert any(name.endswith("kernel") for name in moved)


@pytest.mark.slow
def test_a_recurrent_translator_is_a_function_of_sentences_in_python(start):
    """It translates like the commands; it has no sentence vectors."""
    run = start("luong")
    translate, (model, tokenizer) = tj.load(run), load(run)
    [expected] = Translator(model, tokenizer).translate(["um dois"])
    assert translate("um dois") == expected.text
    [score] = Translator(model, tokenizer).score(["um dois"], ["one two"])
    assert translate.score("um dois", "one two") == pytest.approx(score.log_prob, rel=1e-6)
    with pytest.raises(ConfigError, match="a recurrent translator, which has no sentence vectors"):
        translate.embed("um dois")


MISTAKES = [
    ("luong", "luong", ["--model.d-model", "32"], "model.d_model: "),
    ("luong", "luong", ["--model.cell", "gru"], "model.cell: "),
    ("luong", "luong", ["--freeze", "3"], "freeze is 3: there are 2 layers"),
    ("luong", "luong", ["--lora.rank", "2"], "adapters are for Transformers"),
    ("luong", "luong", ["--trainable-tokens", "quatro"], "has no token 'quatro'"),
    ("luong", "luong", ["--reinit-head"], "the output layer of this model is its embedding table"),
    ("small", "luong", [], "the run of a recurrent translator, not of an encoder"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "there", "more", "said"), MISTAKES, ids=[m[3] for m in MISTAKES])
def test_a_mistake_is_one_line(start, texts, tmp_path, capfd, name, there, more, said):
    given = [word.format(texts=texts) for word in ["train", name, *TRANSLATE]]
    given += ["--init-from", str(start(there)), "--output", str(tmp_path / "run"), *more]
    assert seq2seq.main(given) == 2
    [line] = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert said in line
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.slow
def test_a_decoder_of_recurrent_blocks_goes_on(texts, tmp_path, capfd):
    """Row B38: at rate 0 it is the start; its first layer is frozen; it resumes."""
    sizes = ["--model.d-model", "16", "--model.decoder-layers", "2", "--tokenizer.kind",
             "characters", "--model.positions.max-length", "64"]  # fmt: skip
    command = ["train", "lstm", *LANGUAGE[2:]]
    there = run_of(decoder_only, command, texts, tmp_path / "start", *sizes)
    run = run_of(decoder_only, command, texts, tmp_path / "run", "--init-from", str(there), *STILL)
    assert "newly initialized: none" in capfd.readouterr().err
    before, after = parameters(there, "best"), parameters(run)
    assert all(before[key].tobytes() == after[key].tobytes() for key in before)
    assert history(run, "valid_loss")[0] == results(there)["best"]["value"]
    frozen = run_of(
        decoder_only, command, texts, tmp_path / "half", "--init-from", str(there), "--freeze", "1"
    )
    still = flatten_dict(load_parts(frozen, "last").frozen)
    assert {key.split("/")[0] for key in still} == {"embedding", "decoder"}
    assert any(key.startswith("decoder/blocks/0/") for key in still)
    assert not any(key.startswith("decoder/blocks/1/") for key in still)
    whole = results(frozen)["state_sha256"]
    shutil.rmtree(frozen / "checkpoints/step_00000004")
    (frozen / "results.json").unlink()
    assert decoder_only.main(["resume", str(frozen), *ALONE]) == 0
    assert results(frozen)["state_sha256"] == whole
