"""Runs with adapters on trained weights: what is trained, merged, chosen and refused (row B39)."""

import json
import logging
import shutil

import numpy as np
import pytest

from tests.experiments.language_runs import ALONE, LANGUAGE, WIDTHS, run_of, write_texts
from transformer_jax.chat.template import find_template, named_template
from transformer_jax.cli import decoder_only
from transformer_jax.cli.main import main as command
from transformer_jax.errors import CheckpointError, ConfigError
from transformer_jax.predictors.loading import load as tj_load
from transformer_jax.training.stored import load_params, load_parts
from transformer_jax.training.trees import flatten_dict


@pytest.fixture(autouse=True)
def ad_quiet():
    yield
    logging.getLogger().handlers.clear()


@pytest.fixture(scope="module")
def texts(shared):
    return shared("adapters_texts", write_texts)


@pytest.fixture(scope="module")
def language(texts, shared):
    """A language model of two layers."""
    return shared(
        "adapters_language", lambda run: run_of(decoder_only, LANGUAGE, texts, run, *WIDTHS)
    )


def parameters(run, which="last"):
    return flatten_dict(load_params(run, which).params)


def results(run):
    return json.loads((run / "results.json").read_text())


@pytest.mark.parametrize("variant", ["lora", "dora"])
@pytest.mark.quick("dora")
def test_adapters_alone_are_trained_and_stored(language, texts, tmp_path, variant):
    """Row B39; resumed, the run ends with the same bits, and it loads as plain weights."""
    run = run_of(
        decoder_only, LANGUAGE, texts, tmp_path / "run", "--init-from", str(language),
        "--lora.rank", "2", "--lora.variant", variant, "--lora.dropout", "0.1",
    )  # fmt: skip
    before, after = parameters(language, "best"), parameters(run)
    parts = load_parts(run, "last")
    frozen = flatten_dict(parts.frozen)
    assert all("/lora_" in name for name in flatten_dict(parts.params))
    assert frozen.keys() == before.keys() == after.keys()
    for name in before:
        assert before[name].tobytes() == frozen[name].tobytes()
        assert (before[name].tobytes() != after[name].tobytes()) == name.endswith(
            ("query/kernel", "key/kernel", "value/kernel", "out/kernel")
        ), name
    shutil.rmtree(run / "checkpoints/step_00000004")
    whole = results(run)["state_sha256"]
    (run / "results.json").unlink()
    assert decoder_only.main(["resume", str(run), *ALONE]) == 0
    assert results(run)["state_sha256"] == whole


ADAPTERS = [
    (["--lora.rank", "17"], "lora.rank is 17: decoder/blocks/0/self_attention/key is 16 x 16"),
    (["--lora.rank", "2", "--lora.targets", "quary"], "lora.targets is quary: the model has no"),
    (["--lora.rank", "2", "--freeze", "1"], "freeze is 1 and lora.rank 2"),
    (["--lora.alpha", "4"], "given without lora.rank"),
]


@pytest.mark.parametrize(("more", "said"), ADAPTERS, ids=[said for _, said in ADAPTERS])
def test_a_mistake_about_adapters_is_one_line(language, texts, tmp_path, capfd, more, said):
    given = [word.format(texts=texts) for word in LANGUAGE]
    given += ["--init-from", str(language), "--output", str(tmp_path / "run")]
    assert decoder_only.main([*given, *more]) == 2
    [line] = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
    assert said in line
    assert not (tmp_path / "run/config.json").exists()


def test_adapters_need_a_trained_model(texts, tmp_path, capfd):
    given = [word.format(texts=texts) for word in LANGUAGE]
    given += [*WIDTHS, "--output", str(tmp_path / "run"), "--lora.rank", "2"]
    assert decoder_only.main(given) == 2
    assert "lora.rank is given without init_from" in capfd.readouterr().err


@pytest.fixture(scope="module")
def adapted(language, texts, shared):
    """A run with adapters on the language model."""
    more = ["--init-from", str(language), "--lora.rank", "2", "--optimizer.learning-rate", "0.05"]
    return shared("adapters_adapted", lambda run: run_of(decoder_only, LANGUAGE, texts, run, *more))


def test_adapters_merge_into_weights_and_the_base_comes_back(adapted, language, tmp_path, capfd):
    """Row B39."""
    assert command(["merge", str(adapted), "--output", str(tmp_path / "plain")]) == 0
    merged, before = parameters(tmp_path / "plain"), parameters(adapted, "best")
    assert all(merged[name].tobytes() == before[name].tobytes() for name in before)
    assert tj_load(tmp_path / "plain").score("um dois") == tj_load(adapted).score("um dois")
    given = ["merge", str(adapted), "--unmerge", "--output", str(tmp_path / "base")]
    assert command(given) == 0
    base, start = parameters(tmp_path / "base"), parameters(language, "best")
    assert all(base[name].tobytes() == start[name].tobytes() for name in start)
    capfd.readouterr()
    assert command(["merge", str(language), "--output", str(tmp_path / "no")]) == 4
    assert "has no adapters" in capfd.readouterr().err
    assert command(given) == 2
    assert "--overwrite" in capfd.readouterr().err


def test_merged_weights_keep_the_chat_template(adapted, tmp_path):
    run = shutil.copytree(adapted, tmp_path / "run")
    chat = {"chat_template": named_template("vicuna").text, "eos_token": "<eos>"}
    (run / "tokenizer_config.json").write_text(json.dumps(chat))
    assert command(["merge", str(run), "--output", str(tmp_path / "plain")]) == 0
    before, after = find_template(run), find_template(tmp_path / "plain")
    assert (after.text, after.special) == (before.text, before.special)


def test_each_prompt_of_a_batch_chooses_its_adapter(adapted, language, texts, tmp_path):
    """Row B39: one batch gives what each adapter gives alone, and the base without one."""
    more = ["--init-from", str(language), "--lora.rank", "3", "--lora.variant", "dora"]
    more += ["--lora.targets", "mlp", "--optimizer.learning-rate", "0.3"]
    other = run_of(decoder_only, LANGUAGE, texts, tmp_path / "other", *more)
    base = tj_load(language)
    both = base.with_adapters({"one": adapted, "two": other})
    prompts, how = ["um", "dois", "um", "dois", "um"], {"max_new_tokens": 8, "temperature": 0}
    found = both.generate(prompts, adapter=["one", "two", None, "one", "two"], **how)
    alone = {None: base, "one": tj_load(adapted), "two": tj_load(other)}
    chosen = zip(prompts, ["one", "two", None, "one", "two"], strict=True)
    for text, (prompt, name) in zip(found, chosen, strict=True):
        expected = alone[name].generate(prompt, **how)
        assert text == expected
        assert text.score == pytest.approx(expected.score, abs=1e-4)
    scores = {both.generate("um", adapter=name, **how).score for name in (None, "one", "two")}
    assert len(scores) == 3
    beams = both.generate("um", adapter="two", num_beams=2, max_new_tokens=5)
    assert beams == alone["two"].generate("um", num_beams=2, max_new_tokens=5)
    with pytest.raises(ConfigError, match="adapter is three: there are one, two"):
        both.generate("um", adapter="three")
    with pytest.raises(ConfigError, match="there are none: see with_adapters"):
        base.generate("um", adapter="one")
    with pytest.raises(CheckpointError, match="trained on another base than"):
        tj_load(adapted).with_adapters({"one": adapted})
    with pytest.raises(CheckpointError, match="holds no adapter"):
        base.with_adapters({"one": language})


def test_the_spectrum_of_adapters_is_that_of_their_product(adapted, tmp_path, capfd):
    """Row B39: as many singular values as the rank, those of s A B."""
    picture = tmp_path / "spectrum.png"
    capfd.readouterr()
    assert command(["spectrum", str(adapted), "--output", str(picture)]) == 0
    lines = dict(line.split(" ", 1) for line in capfd.readouterr().out.splitlines() if "/" in line)
    own = flatten_dict(load_parts(adapted).params)
    at = "decoder/blocks/1/self_attention/value"
    product = 8.0 * own[f"{at}/lora_a"] @ own[f"{at}/lora_b"]
    expected = np.linalg.svd(product, compute_uv=False)[:2]
    np.testing.assert_allclose([float(v) for v in lines[at].split()], expected, rtol=1e-2)
    assert len([name for name in lines if name.startswith("decoder/")]) == 8
    assert picture.stat().st_size > 10_000
