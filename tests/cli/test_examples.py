"""Every file of ``examples/`` runs as it stands and shows what it says."""

import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parity import layouts
from transformer_jax import load
from transformer_jax.cli.main import main
from transformer_jax.core.errors import CheckpointError
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.recipes.registry import RECIPES

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    """The functions of an example."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert") / "model"
    layouts.write("bert", folder)
    made = example("fine_tune_bert")
    texts = [*made.TEXTS, *example("semantic_search").SENTENCES]
    train_tokenizer("wordpiece", texts * 3, 90, special=BERT_SPECIAL).save(
        folder / "tokenizer.json"
    )
    return folder


def test_examples_are_short_and_each_has_a_test():
    files = sorted(EXAMPLES.glob("*.py"))
    assert files
    tests = Path(__file__).read_text()
    for file in files:
        assert len(file.read_text().splitlines()) < 60, file.name
        assert f'example("{file.stem}")' in tests, file.name


def test_attention():
    by_hand, by_library = example("attention").main()
    np.testing.assert_allclose(by_hand, by_library, atol=1e-5)


@pytest.mark.slow
def test_check_another_library():
    check = example("check_another_library").check
    broken = {one.law for one in check(mended=False) if not one.holds}
    assert broken == {"source_padding", "loss_padding", "repeatability"}
    assert all(one.holds for one in check(mended=True))


def test_conversations(tmp_path):
    example("conversations").main(tmp_path)
    chats = (tmp_path / "chats.jsonl").read_text().splitlines()
    asked = [(tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("prompts", "test")]
    assert len(chats) == len(asked[0]) > 500
    assert not set(asked[0]) & set(asked[1])
    assert all(json.loads(line)["messages"][1]["content"].endswith(".") for line in chats)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore::FutureWarning")  # a name of arguments
def test_check_torch():
    pytest.importorskip("transformers")
    *sound, broken = example("check_torch").main()
    assert [found.law for found in sound] == [
        "causality", "batch_of_one", "cached", "prompt_padding",
    ]  # fmt: skip
    assert all(found.holds for found in sound)
    assert broken.where.startswith("row 1, position ")
    assert broken.error > 0.01


@pytest.mark.slow
def test_custom_mask():
    mask, _ = example("custom_mask").main()
    visible = np.asarray(mask.array(8, 8))[:, 0]
    assert visible[0, 5].tolist() == [1, 0, 0, 0, 1, 1, 0, 0]
    assert not visible[1, :, 6:].any()


@pytest.mark.slow
def test_custom_score():
    before, after = example("custom_score").main()
    assert after < before


@pytest.mark.slow
def test_own_training_loop():
    losses = example("own_training_loop").main(steps=30)
    assert losses[-1] < losses[0] - 0.7


@pytest.mark.slow
def test_logits_processor():
    plain, once = example("logits_processor").main()
    for row in once.tolist():
        assert len(set(row)) == len(row)
    assert once.shape == plain.shape


@pytest.mark.slow
def test_sharded_training():
    alone, losses, trained = example("sharded_training").main()
    np.testing.assert_allclose(losses, alone, atol=1e-5)
    kernel = trained["embedding"]["table"]
    assert len(kernel.sharding.device_set) == len(jax.devices()) == 8
    assert kernel.addressable_shards[0].data.size < kernel.size


@pytest.mark.slow
def test_translator(trained_run, lesson, capsys):
    sentences = tuple(source for source, _ in lesson[:2])
    best, log_prob = example("translator").main(trained_run, sentences)
    assert best == lesson[0][1]
    assert len(best.alternatives) == 2
    assert -5 < log_prob < 0
    assert f"{sentences[1]} -> {lesson[1][1]}" in capsys.readouterr().out


@pytest.mark.slow
def test_visualize_attention(trained_run, lesson, tmp_path):
    output = tmp_path / "attention"
    maps = example("visualize_attention").main(trained_run, lesson[0][0], output)
    assert {file.name for file in output.iterdir()} >= {"attention.html"}
    for one in maps:
        np.testing.assert_allclose(one.weights.sum(-1), 1, atol=1e-5)


@pytest.mark.slow
def test_semantic_search(bert):
    found = example("semantic_search").main(bert, query="A cat sleeps on the sofa.")
    assert found[0][1] == "A cat sleeps on the sofa."
    assert found[0][0] == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_export(trained_run, tmp_path):
    logits, expected = example("export").main(trained_run, tmp_path / "translator.stablehlo")
    assert jnp.abs(logits - expected).max() < 1e-5


@pytest.mark.slow
def test_fine_tune_bert(bert):
    loss, accuracy = example("fine_tune_bert").main(bert, steps=20)
    assert loss < 0.5
    assert accuracy >= 0.875


@pytest.mark.slow
def test_own_task(tmp_path):
    found = example("own_task").main(str(tmp_path))
    assert found.tolist() == [[3, 5, 7], [4, 9, 11]]


@pytest.mark.slow
def test_own_encoder(tmp_path):
    assert example("own_encoder").main(str(tmp_path)) < 0.1


@pytest.mark.slow
def test_own_attention():
    name, apart = example("own_attention").main()
    assert name == "CosineAttention"
    assert apart < 1e-5


@pytest.mark.slow
def test_own_kind(tmp_path, monkeypatch, capfd):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setitem(RECIPES, "reversal", "own_kind")
    made, run = example("own_kind"), str(tmp_path / "run")
    few = ["--training.steps", "2", "--distributed.num-local-devices", "1"]
    assert made.main(made.PROGRAM, ["train", "reversal", *few, "--output", run]) == 0
    assert "exact 0" in capfd.readouterr().err
    assert isinstance(load(run)("123"), str)
    with_module = ["train", "reversal", "--import", "own_kind", *few, "--output", f"{run}2"]
    assert main(with_module) == 0
    states = [json.loads(Path(path, "results.json").read_text()) for path in (run, f"{run}2")]
    assert states[0]["state_sha256"] == states[1]["state_sha256"]
    monkeypatch.delitem(RECIPES, "reversal")
    with pytest.raises(CheckpointError, match=r"unknown recipe reversal; .*--import MODULE"):
        load(run)


@pytest.mark.slow
def test_own_objective(tmp_path):
    assert example("own_objective").main(str(tmp_path)) > 0.9
    assert (tmp_path / "results.json").exists()
