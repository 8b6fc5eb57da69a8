"""Runs with adapters on trained weights: what is trained, merged, chosen and refused (row B39)."""

import io
import json
import logging
import shutil

import numpy as np
import pytest

from tests.experiments.language_runs import ALONE, LANGUAGE, WIDTHS, run_of, write_texts
from transformer_jax.cli import decoder_only
from transformer_jax.cli.main import main as command
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.chat.template import find_template, named_template
from transformer_jax.inference.loading import load as tj_load
from transformer_jax.runs.checkpoint_reader import load_params, load_parts


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
@pytest.mark.slow
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


ADDED = ["--tokenizer.add-tokens", "cinco", "--tokenizer.add-special-tokens", "<|user|>"]
FAST = ["--optimizer.learning-rate", "0.05"]


@pytest.fixture(scope="module")
def grown(language, texts, shared):
    """A run with adapters that adds two tokens."""
    more = ["--init-from", str(language), "--lora.rank", "2", *ADDED, *FAST]
    return shared("adapters_grown", lambda run: run_of(decoder_only, LANGUAGE, texts, run, *more))


@pytest.mark.slow
def test_tokens_that_a_run_adds_are_trained_and_no_other_row_is(grown, language, texts, tmp_path):
    """Row B39; resumed, by the same command too, the run ends with the same bits."""
    config = json.loads((grown / "config.json").read_text())
    assert config["trainable_tokens"] == ["cinco", "<|user|>"]
    names = set(flatten_dict(load_parts(grown, "last").params))
    assert {name for name in names if "/lora_" not in name} == {"embedding/table_rows"}
    before, after = parameters(language, "best"), parameters(grown)
    old, new = before["embedding/table"], after["embedding/table"]
    assert new[:-2].tobytes() == old.tobytes()
    begun = flatten_dict(load_parts(grown, "last").frozen)["embedding/table"]
    assert np.abs(new[-2:] - begun[-2:]).max() > 0.01
    whole = results(grown)["state_sha256"]
    run = shutil.copytree(grown, tmp_path / "run")
    shutil.rmtree(run / "checkpoints/step_00000004")
    (run / "results.json").unlink()
    more = ["--init-from", str(language), "--lora.rank", "2", *ADDED, *FAST, "--resume"]
    run_of(decoder_only, LANGUAGE, texts, run, *more)
    assert results(run)["state_sha256"] == whole


@pytest.mark.slow
def test_a_run_with_tokens_of_its_own_merges_and_its_base_comes_back(
    grown, language, tmp_path, capfd
):
    plain, base = tmp_path / "plain", tmp_path / "base"
    assert command(["merge", str(grown), "--output", str(plain)]) == 0
    merged, own = parameters(plain), parameters(grown, "best")
    assert all(merged[name].tobytes() == own[name].tobytes() for name in own)
    assert tj_load(plain).score("um cinco") == tj_load(grown).score("um cinco")
    assert command(["merge", str(grown), "--unmerge", "--output", str(base)]) == 0
    found, start = parameters(base), parameters(language, "best")
    table = found["embedding/table"]
    assert table[:-2].tobytes() == start["embedding/table"].tobytes()
    assert np.abs(table[-2:] - table[:-2].mean(0)).max() < 0.05 * table.std()
    assert command(["spectrum", str(grown)]) == 0
    assert command(["verify", str(grown)]) == 0
    with pytest.raises(ConfigError, match="with rows of 2 tokens"):
        tj_load(language).with_adapters({"one": grown})
    chatting = shutil.copytree(grown, tmp_path / "chatting")
    (chatting / "chat_template.jinja").write_text(TEMPLATE)
    capfd.readouterr()
    assert command(["chat", str(language), "--adapter", str(chatting)]) == 2
    assert f"some of which {language} lacks" in capfd.readouterr().err
    assert command(["chat", str(language), "--adapter", str(grown), "--template", "nosuch"]) == 2
    assert "nosuch" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("freeze", ["embeddings", "decoder"])
def test_tokens_that_are_added_are_trained_where_embeddings_are_frozen(
    language, texts, tmp_path, capfd, freeze
):
    more = ["--init-from", str(language), "--freeze", freeze, *ADDED, *FAST]
    run = run_of(decoder_only, LANGUAGE, texts, tmp_path / "run", *more)
    before, after = parameters(language, "best"), parameters(run)
    assert after["embedding/table"][:-2].tobytes() == before["embedding/table"].tobytes()
    begun = flatten_dict(load_parts(run, "last").frozen)["embedding/table"]
    assert (after["embedding/table"][-2:] != begun[-2:]).any(1).all()
    layer = "decoder/blocks/1/feed_forward/up/kernel"
    assert (after[layer].tobytes() == before[layer].tobytes()) == (freeze == "decoder")
    assert tj_load(run).generate("um", max_new_tokens=3)
    assert command(["merge", str(run), "--output", str(tmp_path / "plain")]) == 4
    assert "has no adapters" in capfd.readouterr().err


@pytest.mark.slow
def test_tokens_that_were_there_are_trained_by_name(language, texts, tmp_path):
    """Like PEFT's trainable_token_indices, with any other row bit for bit unchanged."""
    more = ["--init-from", str(language), "--lora.rank", "2", "--trainable-tokens", "<eos>", *FAST]
    run = run_of(decoder_only, LANGUAGE, texts, tmp_path / "run", *more)
    before, after = (parameters(one)["embedding/table"] for one in (language, run))
    end = tj_load(run).tokenizer.eos
    changed = (before != after).any(1)
    assert changed[end]
    assert changed.sum() == 1


ADAPTERS = [
    (["--lora.rank", "17"], "lora.rank is 17: decoder/blocks/0/self_attention/key is 16 x 16"),
    (["--lora.rank", "2", "--lora.targets", "quary"], "lora.targets is quary: the model has no"),
    (["--lora.rank", "2", "--freeze", "1"], "freeze is 1 and lora.rank 2"),
    (["--lora.alpha", "4"], "settings of adapters need lora.rank"),
]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_merged_run_is_a_plain_run(adapted, language, texts, tmp_path, capfd):
    """Row B39: it needs no base, evaluates as the run with adapters, and starts other runs."""
    start = shutil.copytree(language, tmp_path / "start")
    given = ["--init-from", str(start), "--lora.rank", "2", "--optimizer.learning-rate", "0.05"]
    run = run_of(decoder_only, LANGUAGE, texts, tmp_path / "run", *given)
    for output, more in (("merged", []), ("base", ["--unmerge"])):
        assert command(["merge", str(run), "--output", str(tmp_path / output), *more]) == 0
        settings = json.loads((tmp_path / output / "config.json").read_text())
        assert not {"lora", "init_from", "freeze"} & settings.keys()
    shutil.rmtree(start)
    rows = {}
    for name in ("run", "merged"):
        capfd.readouterr()
        assert decoder_only.main(["evaluate", str(tmp_path / name)]) == 0
        rows[name] = capfd.readouterr().out.splitlines()[-1].split()[2:]
    assert rows["run"] == rows["merged"]
    written = sorted(path.name for path in (tmp_path / "merged").rglob("*"))
    for words in (["resume", str(tmp_path / "merged")], [*LANGUAGE, "--resume", "--output",
                  str(tmp_path / "merged")]):  # fmt: skip
        assert decoder_only.main([word.format(texts=texts) for word in words]) == 2
        [line] = [line for line in capfd.readouterr().err.splitlines() if "error:" in line]
        assert "has only weights, no training to resume: start a run from it" in line
    assert sorted(path.name for path in (tmp_path / "merged").rglob("*")) == written
    more = ["--init-from", str(tmp_path / "merged"), "--training.steps", "1", "--overwrite"]
    run_of(decoder_only, LANGUAGE, texts, tmp_path / "more", *more)


@pytest.mark.slow
def test_merged_weights_keep_the_chat_template(adapted, tmp_path):
    run = shutil.copytree(adapted, tmp_path / "run")
    chat = {"chat_template": named_template("vicuna").text, "eos_token": "<eos>"}
    (run / "tokenizer_config.json").write_text(json.dumps(chat))
    assert command(["merge", str(run), "--output", str(tmp_path / "plain")]) == 0
    before, after = find_template(run), find_template(tmp_path / "plain")
    assert (after.text, after.special) == (before.text, before.special)


@pytest.fixture(scope="module")
def other(language, texts, shared):
    """Another on it, whose texts begin with another token."""
    more = ["--init-from", str(language), "--lora.rank", "3", "--lora.variant", "dora"]
    more += ["--lora.targets", "mlp", "--optimizer.learning-rate", "0.3", "--first", "eos"]
    return shared("adapters_other", lambda run: run_of(decoder_only, LANGUAGE, texts, run, *more))


@pytest.mark.slow
def test_each_prompt_of_a_batch_chooses_its_adapter(adapted, other, language):
    """Row B39: one batch gives what each adapter gives alone, and the base without one."""
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
    with pytest.raises(CheckpointError, match="trained on a different base from"):
        tj_load(adapted).with_adapters({"one": adapted})
    with pytest.raises(CheckpointError, match="no adapter: give"):
        base.with_adapters({"one": language})


@pytest.mark.slow
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


CHOSEN = ("one", "two", None, "one", "two")
HOW = [
    ["--temperature", "0"],
    ["--num-beams", "2", "--num-return-sequences", "2"],
    ["--top-k", "5", "--seed", "3", "--num-return-sequences", "2"],
]


@pytest.fixture
def generate(capfd):
    """The lines of a ``generate`` that succeeds, and of its notes."""

    def call(*words):
        capfd.readouterr()
        code = command(["generate", *map(str, words), "--max-new-tokens", "8"])
        out, err = capfd.readouterr()
        assert code == 0, err
        return out.splitlines(), err.splitlines()

    return call


def near(one, other):
    """Equal, but for the rounding of numbers."""
    assert one["prompt"] == other["prompt"]
    for text, expected in zip(one["texts"], other["texts"], strict=True):
        assert text["text"] == expected["text"]
        assert text["log_prob"] == pytest.approx(expected["log_prob"], abs=1e-4)


@pytest.mark.parametrize("how", HOW, ids=["greedy", "beams", "sampled"])
@pytest.mark.slow
def test_each_request_chooses_its_adapter(adapted, other, language, generate, tmp_path, how):
    """Row B39: a line has the texts that the run of its adapter gives alone."""
    asked = [{"prompt": "um dois", "adapter": name, "number": i} for i, name in enumerate(CHOSEN)]
    file = tmp_path / "requests"
    file.write_text("".join(json.dumps(one) + "\n" for one in asked))
    adapters = ["--adapter", f"one={adapted}", "--adapter", f"two={other}"]
    found, _ = generate(language, "--requests", file, "--json", *how, *adapters)
    alone = {"one": adapted, "two": other, None: language}
    for one, line in zip(asked, found, strict=True):
        name = one.pop("adapter")
        file.write_text(json.dumps(one))
        [expected], _ = generate(alone[name], "--requests", file, "--json", *how)
        near(json.loads(line), json.loads(expected))
        assert json.loads(line).get("adapter") == name
    assert len({json.loads(line)["texts"][0]["log_prob"] for line in found[:3]}) == 3


WHOLE = [
    [],
    ["--trace"],
    ["--prompt-lookup-num-tokens", "3"],
    ["--dtype", "bfloat16"],
    ["--num-beams", "2"],
    ["--context", "16"],
]


@pytest.mark.parametrize("more", WHOLE, ids=[(*more, "stream")[0].strip("-") for more in WHOLE])
@pytest.mark.slow
def test_a_single_adapter_is_for_all_prompts(adapted, language, generate, more):
    """Row B39: the text, and the steps of a trace, are those of the run that was trained."""
    how = ["--temperature", "0"] if "--num-beams" not in more else []
    words = ["um dois", *how, *more]
    assert generate(language, *words, "--adapter", adapted) == generate(adapted, *words)


@pytest.mark.slow
def test_the_only_adapter_of_requests_is_that_of_lines_that_choose_none(
    other, language, generate, tmp_path
):
    file = tmp_path / "requests"
    file.write_text('{"prompt": "um"}\n{"prompt": "um", "adapter": null}\n')
    words = ["--temperature", "0", "--json"]
    found, _ = generate(language, "--requests", file, *words, "--adapter", f"two={other}")
    for line, run in zip(found, (other, language), strict=True):
        [expected], _ = generate(run, "um", *words)
        near(json.loads(line), json.loads(expected))


WRONG = [
    (["um", "--adapter", "a={run}", "a={run}"], 2, "two adapters are called a: give each another"),
    (["um", "--adapter", "a={run}", "--adapter", "a={run}"], 2, "two adapters are called a"),
    (["um", "--adapter", "={run}"], 2, "a name is missing: give NAME=PATH, or PATH alone"),
    (["um", "--adapter", "a="], 2, "a path is missing"),
    (["um", "--adapter", "a={run}", "b={run}"], 2, "2 adapters, and a prompt chooses none"),
    (["um", "--adapter", "{run}/no"], 4, "no: no such run directory"),
    (["um", "--adapter", "{base}"], 4, "no adapter: give"),
    (["um", "--adapter", "{run}", "--engine", "ctranslate2"], 2, "--adapter does not go with"),
    (["um", "--adapter", "{run}", "--generation-config", "hf"], 2, "--adapter does not go with"),
    (["--requests", "{file}", "--adapter", "a={run}"], 3, "requests:1: adapter is b: --adapter na"),
    (["--requests", "{file}"], 3, "requests:1: adapter is b: no --adapter b=PATH is given"),
    (["--requests", "{number}"], 3, "adapter is 3: text or null is needed"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "code", "said"), WRONG, ids=[said for *_, said in WRONG])
def test_a_mistake_about_the_choice_is_one_line(
    adapted, language, tmp_path, capfd, words, code, said
):
    """Row B39: before a model is loaded."""
    files = {"file": tmp_path / "requests", "number": tmp_path / "number"}
    files["file"].write_text('{"prompt": "um", "adapter": "b"}\n')
    files["number"].write_text('{"prompt": "um", "adapter": 3}\n')
    given = [word.format(run=adapted, base=language, **files) for word in words]
    assert command(["generate", str(language), *given]) == code
    [line] = capfd.readouterr().err.splitlines()
    assert said in line


@pytest.mark.slow
def test_an_adapter_of_another_base_is_one_line(adapted, other, tmp_path, capfd):
    for words in (["generate", str(other), "um"], ["merge", str(other), "--output", "no"]):
        assert command([*words, "--adapter", str(adapted)]) == 4
        [line] = capfd.readouterr().err.splitlines()
        assert "was trained on a different base from" in line
    given = ["merge", str(adapted), "--unmerge", "--adapter", str(adapted), "--output", "no"]
    assert command(given) == 2
    assert "--unmerge and --adapter" in capfd.readouterr().err


# Of few characters, as the model has few positions.
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
    "{{ eos_token }}{% endgeneration %}{% else %}{{ m['content'] }} {% endif %}{% endfor %}"
)


@pytest.mark.slow
def test_conversations_have_the_template_of_their_adapter(
    adapted, language, generate, tmp_path, capfd, monkeypatch
):
    """Row B39: in ``chat --adapter`` and in ``messages`` of requests."""
    run = shutil.copytree(adapted, tmp_path / "run")
    (run / "chat_template.jinja").write_text(TEMPLATE)
    chat = ["--temperature", "0", "--max-new-tokens", "8"]
    said = []
    for words in ([language, "--adapter", run], [run]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"um\ndois\n")))
        capfd.readouterr()
        assert command(["chat", *map(str, words), *chat]) == 0
        said.append(capfd.readouterr().out)
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == 2
    file = tmp_path / "requests"
    line = {"messages": [{"role": "user", "content": "um"}]}
    file.write_text(json.dumps(line))
    words = ["--requests", file, "--json", "--temperature", "0"]
    [found], _ = generate(language, *words, "--adapter", f"a={run}")
    [expected], _ = generate(run, *words)
    assert json.loads(found)["texts"][0]["text"] == json.loads(expected)["texts"][0]["text"]
    file.write_text("".join(json.dumps(line | {"adapter": name}) + "\n" for name in ("a", None)))
    capfd.readouterr()
    assert command(["generate", str(language), *map(str, words), "--adapter", f"a={run}"]) == 2
    assert "have different chat templates" in capfd.readouterr().err


@pytest.mark.slow
def test_a_choice_of_adapters_on_a_mesh_writes_what_one_device_writes(
    adapted, other, language, generate, tmp_path
):
    file = tmp_path / "requests"
    asked = [{"prompt": "um dois", "adapter": name} for name in CHOSEN]
    file.write_text("".join(json.dumps(one) + "\n" for one in asked))
    words = [language, "--requests", file, "--json", "--temperature", "0"]
    words += ["--adapter", f"one={adapted}", f"two={other}"]
    mesh = ["--mesh.data", "2", "--mesh.fsdp", "2", "--mesh.tensor", "2"]
    for one, many in zip(generate(*words)[0], generate(*words, *mesh)[0], strict=True):
        near(json.loads(one), json.loads(many))


@pytest.mark.slow
def test_an_adapter_merges_into_its_base_and_goes_through_peft(
    adapted, other, language, tmp_path, capfd
):
    """Row B39: the weights are those of the merged run, bit for bit; those of DoRA to rounding."""
    for name, run, error in (("one", adapted, 0), ("two", other, 1e-6)):
        folder = tmp_path / name
        assert command(["export", str(run), str(folder), "--format", "peft"]) == 0
        assert command(["merge", str(run), "--output", str(tmp_path / f"{name} merged")]) == 0
        expected = parameters(tmp_path / f"{name} merged")
        for adapter, most in ((run, 0), (folder, error)):
            output = str(tmp_path / "plain")
            given = ["merge", str(language), "--adapter", str(adapter), "--output", output]
            assert command([*given, "--overwrite"]) == 0
            for leaf, value in parameters(tmp_path / "plain").items():
                assert np.abs(value - expected[leaf]).max() <= most, leaf
    given = ["export", str(adapted), str(tmp_path / "one"), "--format", "peft"]
    assert command([*given, "--overwrite"]) == 0
    capfd.readouterr()
    assert command(["export", str(language), str(tmp_path / "no"), "--format", "peft"]) == 4
    assert "has no adapters for PEFT" in capfd.readouterr().err
    assert (
        command([*given[:2], str(tmp_path / "no"), "--format", "peft", "--dtype", "float16"]) == 2
    )
    assert "--dtype is for --format hf" in capfd.readouterr().err
