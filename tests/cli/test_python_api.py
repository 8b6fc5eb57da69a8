"""From Python, trained models do what the commands do; importing the package costs nothing."""

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import transformer_jax as tj
from tests.parity import layouts
from transformer_jax.cli.main import main
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError
from transformer_jax.data.labeled import LabeledSplits
from transformer_jax.data.labeled_files import Sentences
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.inference.generation_settings import is_hf
from transformer_jax.inference.results import GeneratedText
from transformer_jax.recipes.tasks.language_model_task import Rows

ROOT = Path(__file__).parents[2]
TEXT = ["i sat on the bank of the river.", "i took cash to the bank.", "rivers ran; who ran?"]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")

    def folder(name):
        if not (root / name).exists():
            layouts.write(name, root / name)
            special = ("<s>", "<pad>", "</s>", "<unk>") if name.startswith("gpt2") else BERT_SPECIAL
            tokenizer = train_tokenizer("wordpiece", TEXT * 3, 90, special=special)
            tokenizer.save(root / name / "tokenizer.json")
        return root / name

    return folder


def test_every_name_is_there_and_nothing_is_imported_before_it_is_asked_for():
    for name in tj.__all__:
        assert getattr(tj, name) is not None
    assert set(tj.__all__) <= set(dir(tj))
    with pytest.raises(AttributeError, match="no attribute 'Decoderr'"):
        tj.Decoderr  # noqa: B018
    code = (
        "import sys, transformer_jax; "
        "print([name for name in ('jax', 'flax', 'numpy', 'tyro') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_the_python_page_runs_as_written(published, trained_run, lesson, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "python.md").read_text()
    code, layers = re.findall("```python\n(.*?)```", page, re.DOTALL)
    for path, there in (
        ("runs/pt-en", trained_run),
        ("models/gpt2", published("gpt2")),
        ("models/all-MiniLM-L6-v2", published("bert")),
        ("models/bert", published("bert")),
        ("runs/mood", published("bert_cls")),
        ("runs/pairs", published("bert_cls")),
        ("runs/ner", published("bert_tag")),
        ("runs/qa", published("bert_qa")),
    ):
        assert f'"{path}"' in code
        code = code.replace(f'"{path}"', repr(str(there)))
    names = {"lines": [source for source, _ in lesson], "sentences": TEXT}
    exec(code, names)
    assert names["found"] == [target for _, target in lesson]
    jax.eval_shape(lambda: exec(layers, names))  # a base model: nobody waits for its numbers
    assert names["y"].shape == (1, 5, 8, 64)


@pytest.mark.slow
def test_a_run_is_a_pipeline(trained_run, lesson):
    sources, targets = zip(*lesson, strict=True)
    found = tj.pipeline("translation", trained_run)(list(sources), max_length=60)
    assert found == [{"translation_text": target} for target in targets]


def test_readme_shows_lines_of_the_python_page():
    [block] = re.findall("```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    page = (ROOT / "docs" / "python.md").read_text().splitlines()
    assert [line for line in block.splitlines() if line not in page] == []


TINY = {
    "d_model": 16,
    "attention": tj.AttentionConfig(num_heads=2),
    "feed_forward": tj.FeedForwardConfig(d_ff=32),
}


@pytest.mark.slow
def test_a_library_task_of_translation_is_trained_and_loaded(tmp_path, lesson):
    pairs = [*lesson] * 4
    tokenizer = train_tokenizer("bpe", [text for pair in pairs for text in pair], 330)
    config = tj.TransformerConfig(
        vocab_size=tokenizer.vocab_size, encoder_layers=1, decoder_layers=1, **TINY
    )
    task = tj.tasks.translation(pairs, config, tokenizer)
    mesh = tj.make_mesh(devices=jax.devices()[:1], fsdp=1)
    trainer = tj.Trainer(task, tmp_path / "mine", optimizer=tj.adamw(3e-4), mesh=mesh)
    assert trainer.fit(steps=2).step == 2
    assert trainer.load("last").config == config
    # A model of two steps does not end its texts by itself.
    with pytest.warns(UserWarning, match="length limit"):
        [found] = tj.load(tmp_path / "mine")([pairs[0][0]])
    assert isinstance(found, str)


def as_decoder(texts, sizes):
    """A language model, and what it writes."""
    tokenizer = train_tokenizer("characters", texts, 200)
    config = tj.TransformerConfig(
        vocab_size=tokenizer.vocab_size, encoder_layers=0, decoder_layers=1, **sizes
    )
    task = tj.tasks.language_model(
        texts, config, tokenizer, rows=Rows(batch_size=4, sequence_length=16)
    )
    return task, lambda model: isinstance(model.generate(texts[0], max_new_tokens=3), str)


def encoder_parts(texts, sizes):
    tokenizer = train_tokenizer("wordpiece", texts, 200, special=BERT_SPECIAL)
    head = tj.HeadConfig(pooler=True)
    config = tj.TransformerConfig(
        vocab_size=tokenizer.vocab_size, encoder_layers=1, decoder_layers=0, head=head, **sizes
    )
    return config, tokenizer


def as_encoder(texts, sizes):
    """A masked language model, and its vectors."""
    task = tj.tasks.masked_lm(texts, *encoder_parts(texts, sizes), length=32)
    return task, lambda model: model.embed(texts[:2]).shape == (2, 16)


def as_classifier(texts, sizes):
    """A classifier, and its labels."""
    rows = Sentences("rows", texts, None, [str(i % 2) for i in range(len(texts))])
    splits, parts = LabeledSplits(rows, None, {}), encoder_parts(texts, sizes)
    task = tj.tasks.sequence_classification(splits, *parts, labels=("0", "1"))
    return task, lambda model: model(texts[0]).label in ("0", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("make", [as_decoder, as_encoder, as_classifier])
def test_a_library_task_is_trained_and_loaded(tmp_path, lesson, make):
    texts = [text for pair in lesson for text in pair] * 4
    task, used = make(texts, TINY)
    mesh = tj.make_mesh(devices=jax.devices()[:1], fsdp=1)
    trainer = tj.Trainer(task, tmp_path / "mine", optimizer=tj.adamw(3e-4), mesh=mesh)
    assert trainer.fit(steps=2).step == 2
    assert trainer.load("last").config.d_model == 16
    assert used(tj.load(tmp_path / "mine"))


@pytest.mark.slow
@pytest.mark.usefixtures("no_curves")
def test_a_run_of_a_program_is_evaluated_on_a_text_and_resumed_by_the_program(
    tmp_path, lesson, capfd
):
    texts, run = [text for pair in lesson for text in pair] * 4, str(tmp_path / "mine")
    task, _ = as_decoder(texts, TINY)
    trainer = tj.Trainer(task, run, tj.adamw(3e-4), tj.make_mesh(devices=jax.devices()[:1]))
    trainer.fit(steps=1)
    text = tmp_path / "text"
    text.write_text("\n".join(texts))
    assert main(["evaluate", run, "--text", str(text)]) == 0
    out, err = capfd.readouterr()
    assert "perplexity" in out
    assert "config.json names no training text, so there are no n-gram models" in err
    for arguments, says in (
        (["evaluate", run], "config.json names no texts: give --text"),
        (["evaluate", run, "--text", str(text), "--ngrams", "1"], "--ngrams counts training text"),
        (["resume", run], "was begun by a program with a Trainer, which has its data: run that"),
        (["train", "char", "--data.text", str(text), "--output", run], "run the program again to"),
    ):
        assert main(arguments) == 2
        assert says in capfd.readouterr().err


@pytest.mark.slow
def test_an_own_loop_over_the_step_learns():
    config = tj.TransformerConfig(vocab_size=11, encoder_layers=0, decoder_layers=1, **TINY)
    model, tx = tj.Decoder(config, rngs=nnx.Rngs(0)), optax.adam(1e-2)
    tokens = np.arange(24).reshape(2, 12) % 11
    weights = np.ones((2, 11), np.float32)
    batch = {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "weights": weights}
    graph, params = tj.split(model)
    step = jax.jit(
        tj.make_step(tj.objectives.language_model(), tx, tj.merging(graph)), donate_argnums=0
    )
    state, losses = tj.TrainState.create(params, tx), []
    for _ in range(20):
        state, metrics = step(state, {}, batch, jax.random.key(0))
        losses.append(float(metrics["loss"]))
    assert int(state.step) == 20
    assert losses[-1] < 0.7 * losses[0]


def test_a_mesh_is_made_from_sizes_by_name():
    axes = tj.make_mesh(fsdp=2, tensor=2).shape
    assert (axes["fsdp"], axes["tensor"]) == (2, 2)
    assert tj.make_mesh(tj.MeshConfig(fsdp=2), tensor=2).shape == axes
    with pytest.raises(ConfigError, match="a mesh has no axis model: there are data, fsdp, tensor"):
        tj.make_mesh(model=2)


def test_tasks_are_functions_whatever_was_imported_before():
    from transformer_jax.recipes.tasks import labeled, translation_task  # noqa: F401

    for name in tj.tasks.__all__:
        assert callable(getattr(tj.tasks, name))
    with pytest.raises(AttributeError, match="no attribute 'translaton'"):
        tj.tasks.translaton  # noqa: B018


@pytest.mark.slow
def test_translations_are_those_of_the_command(trained_run, lesson, run_command):
    translate, sources = tj.load(trained_run), [source for source, _ in lesson]
    found = translate(sources, num_beams=4, num_return_sequences=3)
    assert found == [target for _, target in lesson]
    one = found[0]
    assert len(one.alternatives) == 2
    assert one.score > one.alternatives[0].score
    assert one.tokens[-1] == translate.tokenizer.eos
    flags = ["--num-beams", "4", "--num-return-sequences", "3"]
    text = "".join(source + "\n" for source in sources)
    _, [line, *_], _ = run_command("translate", trained_run, *flags, text=text)
    assert line.split("\t")[0::2] == [one, *one.alternatives]
    assert line.split("\t")[1] == f"{one.score:.4f}"
    assert translate("") == ""
    with pytest.raises(
        ConfigError, match="num_return_sequences is 5: allowed are 1 to num_beams, 4"
    ):
        translate("a", num_return_sequences=5)
    scores = translate.score(sources, [target for _, target in lesson])
    assert all(-1 < score < 0 for score in scores)
    assert translate.model.config.d_model == 32
    assert translate.embed(sources[0]).shape == (32,)


@pytest.mark.slow
def test_one_translation_is_the_first_of_many(trained_run, lesson):
    translate, (source, target) = tj.load(trained_run), lesson[0]
    scores = translate.score(*zip(*lesson, strict=True))
    assert translate.score(source, target) == pytest.approx(scores[0], abs=1e-4)
    with pytest.warns(UserWarning, match="1 text was longer than the model reads"):
        translate("a b " * 200)
    assert tj.load(trained_run, checkpoint=100)(source) == target


@pytest.mark.parametrize("run", ["decoder_run", "ngram_run"])
@pytest.mark.quick("ngram_run")
def test_texts_are_those_of_the_command(request, run, run_command):
    path = request.getfixturevalue(run)
    model = tj.load(path)
    text = model.generate("a ", max_new_tokens=9, temperature=0)
    _, [line, *_], _ = run_command(
        "generate", path, "a ", "--max-new-tokens", "9", "--temperature", "0"
    )
    assert "a " + text == line
    assert "".join(model.stream("a ", max_new_tokens=9, temperature=0)) == text
    drawn = model(["a ", "a "], max_new_tokens=9, num_return_sequences=2, seed=1, stop="zz")
    assert drawn == model(["a ", "a "], max_new_tokens=9, num_return_sequences=2, seed=1)
    assert [len(one.alternatives) for one in drawn] == [1, 1]
    assert drawn[0].finish_reason in ("end", "length")
    assert model.score(["a cab"])[0].log_prob < 0
    assert model.model is not None
    assert model.score("a cab") == model.score(["a cab"])[0]
    with pytest.raises(ConfigError, match="sequences is 5: allowed are 1 to num_beams, 2"):
        model("a", num_beams=2, num_return_sequences=5)
    with pytest.raises(ConfigError, match="temprature is not a setting of generation; did you"):
        model.generate("a", temprature=1)


@pytest.mark.slow
def test_a_generation_config_is_followed_as_by_the_command(published, run_command):
    path = published("gpt2")
    model = tj.load(path)
    text = model.generate("the", generation_config="hf", num_beams=2, max_new_tokens=5)
    flags = ["--generation-config", "hf", "--num-beams", "2", "--max-new-tokens", "5", "--tsv"]
    _, [_, row, *_], _ = run_command("generate", path, "the", *flags)
    assert row.split("\t")[-1] == text
    ends = text.tokens[-1] == model.tokenizer.eos
    assert text.finish_reason == ("end" if ends else "length")
    assert ends or len(text.tokens) == 5
    with pytest.raises(ConfigError, match="top_k: generation_config hf is greedy or beam"):
        model.generate("the", generation_config="hf", top_k=3, seed=1)
    with pytest.raises(ConfigError, match="do_sample is True: generation_config hf is greedy"):
        model.generate("the", generation_config="hf", do_sample=True)
    said = "generation_config is 'ours': must be None, 'hf' or a GenerationConfig"
    with pytest.raises(ConfigError, match=said):
        is_hf("ours")  # as generate does, whose signature tests enforce


@pytest.mark.slow
def test_encoders_give_vectors_and_masked_tokens(published, tmp_path, run_command):
    encoder = tj.load(published("bert"))
    vectors = encoder.embed(TEXT)
    (tmp_path / "lines").write_text("\n".join(TEXT) + "\n")
    output = tmp_path / "vectors.npz"
    assert run_command("embed", published("bert"), tmp_path / "lines", "--output", output)[0] == 0
    np.testing.assert_array_equal(vectors, np.load(output)["vectors"])
    assert encoder.embed(TEXT, layers="all", pooling="cls").shape == (3, 3, 32)
    assert encoder.embed([]).shape == (0, 32)
    np.testing.assert_allclose(encoder.embed(TEXT[0]), vectors[0], atol=1e-6)
    assert encoder.fill_mask("the [MASK]")[0][0] == encoder.fill_mask(["the [MASK]"])[0][0][0]
    [[best, *_]] = encoder.fill_mask(["the [MASK]"], top_k=2)[0]
    _, [_, row, *_], _ = run_command("fill-mask", published("bert"), "the [MASK]")
    assert row.split("\t")[2:] == [best.text, f"{best.probability:.4f}"]
    with pytest.raises(ConfigError, match="pooling is none"):
        encoder.embed(TEXT, pooling="none")


def test_classifiers_give_labels(published, run_command):
    classify = tj.load(published("bert_cls"))
    found = classify(TEXT)
    _, lines, _ = run_command("classify", published("bert_cls"), *TEXT)
    assert lines[:3] == [f"{one.label}\t{one.probability:.4f}" for one in found]
    assert sum(found[0].probabilities.values()) == pytest.approx(1, abs=1e-5)
    with pytest.raises(DataError, match="3 texts and 1 second text"):
        classify(TEXT, ["one"])


@pytest.mark.slow
def test_taggers_give_tags(published, run_command):
    tag = tj.load(published("bert_tag"))
    [tags] = tag(["who ran?"])
    assert [one[:2] for one in tag("who ran?")] == [one[:2] for one in tags]
    _, [line, _], _ = run_command("tag", published("bert_tag"), "who ran?")
    assert line == " ".join(f"{one.word}/{one.tag}" for one in tags)


def test_readers_give_pieces_of_the_text(published):
    answers = tj.load(published("bert_qa"))("Who ran?", TEXT[2], top_k=2)
    assert len(answers) == 2
    assert all(TEXT[2][one.start :].startswith(one.text) for one in answers)


@pytest.mark.slow
def test_fine_tuned_models_give_several_labels_and_vectors(published):
    classify = tj.load(published("bert_cls"))
    assert classify(TEXT[0])[:1] == classify(TEXT)[0][:1]
    several = tj.load(published("bert_multi"))(TEXT[0], threshold=0.0)
    assert set(several.labels) == set(several.probabilities)
    assert tj.load(published("bert_tag")).embed(TEXT).shape == (3, 32)


@pytest.mark.slow
def test_pairs_are_given_where_they_were_trained_on(published, tmp_path, run_command):
    """Python requires pairs like the command; Hugging Face models accept both."""
    run = tmp_path / "run"
    assert run_command("convert", published("bert_cls"), run)[0] == 0
    assert tj.load(run)(["a"], ["b"])[0].label.startswith("LABEL_")
    config = json.loads((run / "config.json").read_text())
    del config["published"]
    for kind, given, said in (("classify", (["a"], ["b"]), "trained on single texts"),
                              ("pair", (["a"],), "trained on pairs of texts")):  # fmt: skip
        config["task"]["kind"] = kind
        (run / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match="changed after training"):
            tj.load(run)
        model = tj.load(run, allow_changed_config=True)
        assert model.embed(["a"]).shape == (1, 32)
        with pytest.raises(DataError, match=said):
            model(*given)


@pytest.mark.slow
def test_several_prompts_of_a_generation_config_are_each_as_alone(published):
    model, flags = tj.load(published("gpt2")), {"num_beams": 2, "max_new_tokens": 5}
    found = model.generate(["i sat", "the"], generation_config="hf", **flags)
    for prompt, text in zip(("i sat", "the"), found, strict=True):
        assert model.generate(prompt, generation_config="hf", **flags) == text


def test_decoders_have_no_vectors_of_texts(published):
    model = tj.load(published("gpt2_multi"))
    with pytest.raises(ConfigError, match="a fine-tuned decoder has no encoder"):
        model.embed(["a"])


def test_what_is_nothing_trained_is_refused(tmp_path, ngram_run):
    with pytest.raises(ConfigError, match="has no steps: leave checkpoint out"):
        tj.load(ngram_run, checkpoint=5)
    with pytest.raises(CheckpointError, match="no such run directory"):
        tj.load(tmp_path / "none")


def test_generated_texts_are_strings():
    text = GeneratedText("a b", score=-1.0, tokens=(1, 2))
    again = pickle.loads(pickle.dumps(text))
    assert (again, again.score, again.tokens) == ("a b", -1.0, (1, 2))
    assert text.split() == ["a", "b"]


def test_a_task_is_named_and_another_is_refused(trained_run):
    assert type(tj.load(trained_run, "translation")) is type(tj.load(trained_run))
    with pytest.raises(ConfigError, match=r"task is regression: the model in .* is for translat"):
        tj.load(trained_run, "regression")
    with pytest.raises(ConfigError, match=r"task is translaton: .*; did you mean translation\?"):
        tj.load("nowhere", "translaton")
    with pytest.raises(ConfigError, match="task is 3: give a Task, or a name from"):
        tj.load("nowhere", 3)
