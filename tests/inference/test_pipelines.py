"""Pipelines have the arguments, keys, nesting and values of transformers 4.57."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import transformer_jax as tj
from tests.doors import uses
from tests.parity import pipelines
from transformer_jax.core.errors import UserError
from transformer_jax.inference.pipelines import _EXAMPLES, _PIPELINES, Pipeline

KNOWN = json.loads(pipelines.FILE.read_text())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    pipelines.write_picture(root)
    return root


@pytest.fixture(scope="module")
def loaded(folders):
    """A function from names of folders to their models, each of which is loaded once."""
    found = {}

    def model(name):
        if name not in found:
            found[name] = tj.load(pipelines.write(name, folders / name))
        return found[name]

    return model


def compared(number, loaded, folders, monkeypatch):
    """Compares a call with its stored result."""
    monkeypatch.chdir(folders)
    one, known = pipelines.CALLS[number], KNOWN[number]
    made = tj.pipeline(one["task"], loaded(one["folder"]), **one["made"])
    found = made(*one["args"], **one["options"])
    if pipelines.is_sampled(one):
        assert pipelines.form(found) == pipelines.form(known)
    else:
        pipelines.check_equal(found, known)


NAMES = [f"{i} {one['task']}" for i, one in enumerate(pipelines.CALLS)]
QUICK = ("1 sentiment-analysis", "2 zero-shot-classification", "6 ner", "7 question-answering")
# Drawn texts of a call may not decode to what they were made of.
REACHED = "ignore:.*reached the length limit"


@pytest.mark.quick(*QUICK)
@pytest.mark.filterwarnings(REACHED, "ignore:translation. translation_en_to_fr is taken")
@pytest.mark.filterwarnings("ignore:.*longer than the model reads")
@pytest.mark.filterwarnings("ignore:.*holds? text that the tokenizer does not know")
@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_transformers(name, loaded, folders, monkeypatch):
    compared(NAMES.index(name), loaded, folders, monkeypatch)


def test_every_call_has_a_stored_result_and_every_task_a_call():
    assert len(KNOWN) == len(pipelines.CALLS)
    tried = {one["task"] for one in pipelines.CALLS}
    assert _PIPELINES.keys() - tried == {"automatic-speech-recognition"}  # no published family
    assert set(_EXAMPLES) == {_PIPELINES[task] for task in tried & _PIPELINES.keys()}


REFUSED = {
    "no model": (lambda m: tj.pipeline("ner"), "`hf download dbmdz/bert-large-cased-finetuned-"),
    "a name of the hub": (lambda m: tj.pipeline("ner", "dslim/bert-base-NER"),
                          "`hf download dslim/bert-base-NER --local-dir models/bert-base-NER`"),
    "no speech model": (lambda m: tj.pipeline("automatic-speech-recognition"), "train-speech"),
    "another task": (lambda m: tj.pipeline("object-detection", m), "allowed are translation, "),
    "near": (lambda m: tj.pipeline("sumarization", m), "did you mean summarization"),
    "another model": (lambda m: tj.pipeline("fill-mask", m),
                      "a ClassificationPredictor, which is for text-classification, sentiment-"),
    "no entailment": (lambda m: tj.pipeline("zero-shot-classification", m), "NEGATIVE, POSITIVE"),
    "device": (lambda m: tj.pipeline("sentiment-analysis", m, device=0),
               "device is not an option (the model is computed where it was loaded"),
    "near option": (lambda m: tj.pipeline("sentiment-analysis", m)("a", topk=2),
                    "topk is not an option; did you mean top_k?; allowed are top_k, function_to"),
    "batches": (lambda m: tj.pipeline("sentiment-analysis", m, batch_size=8), "of like lengths"),
    "out of range": (lambda m: tj.pipeline("sentiment-analysis", m)("a", top_k=0), "top_k is 0"),
    "choice": (lambda m: tj.pipeline("sentiment-analysis", m)("a", function_to_apply="relu"),
               "function_to_apply is 'relu'"),
    "no text": (lambda m: tj.pipeline("sentiment-analysis", m)([3]), "'3' is int: a text, or a"),
    "list of pairs": (lambda m: tj.pipeline("sentiment-analysis", m)([["a", "b"]]), "is list: a"),
    "mixed": (lambda m: tj.pipeline("sentiment-analysis", m)(["a", {"text": "b", "text_pair": ""}]),
              "some inputs are pairs"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_in_words(name, loaded):
    call, message = REFUSED[name]
    with pytest.raises(UserError, match=re.escape(message)):
        call(loaded("sentiment"))


MORE = {
    "long": ("sentiment-analysis", "sentiment", ("a " * 500,), {}, "give truncation=True"),
    "long vectors": ("feature-extraction", "words", ("a " * 500,), {}, "give truncation=True"),
    "long sources": ("summarization", "summaries", ("a " * 500,), {"max_new_tokens": 3}, "do not"),
    "sampling": ("text-generation", "stories", ("a",), {"do_sample": False, "top_k": 3},
                 "top_k is for sampling"),
    "beams that sample": ("text-generation", "stories", ("a",), {"num_beams": 2}, "num_beams"),
    "drawn translations": ("translation", "french", ("a",), {"do_sample": True}, "this is beam"),
    "one direction": ("translation", "french", ("a",), {"tgt_lang": "de"}, "in one direction"),
    "pair": ("translation_en_to_de", "prefixes", ("a",), {}, "this model has translation_en_to_fr"),
    "several greedy": ("text-generation", "stories", ("a",),
                       {"do_sample": False, "num_return_sequences": 2}, "allowed are 1 to num_be"),
    "address": ("image-classification", "pictures", ("https://a.b/cat.png",), {},
                "get the picture with `curl -O https://a.b/cat.png`"),
    "no picture": ("image-to-text", "captions", (5,), {}, "a path or a picture of Pillow"),
    "prompt": ("image-to-text", "captions", ("cat.png",), {"prompt": "a"}, "prompt is not an opt"),
    "search": ("image-to-text", "captions", ("cat.png",), {"generate_kwargs": {"seed": 1}}, "seed"),
    "labels": ("zero-shot-classification", "nli", ("a",), {}, "at least one text and one label"),
    "place": ("zero-shot-classification", "nli", ("a", "b"), {"hypothesis_template": ""}, "{} for"),
    "questions": ("question-answering", "qa", ("a",), {}, "a question and its context"),
    "contexts": ("question-answering", "qa", (), {"question": ["a"], "context": ["b"] * 2}, "as m"),
    "windows": ("question-answering", "qa", ("a", "b"), {"max_seq_len": 99}, "at most 60"),
    "mask": ("fill-mask", "words", ("no mask",), {}, "has no [MASK]"),
    "stride": ("ner", "ner", ("a",), {"stride": 4}, "stride is not an option (split the text)"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_options_of_each_task_are_refused_in_words(name, loaded, folders, monkeypatch):
    monkeypatch.chdir(folders)
    task, folder, args, options, message = MORE[name]
    with pytest.raises(UserError, match=re.escape(message)):
        tj.pipeline(task, loaded(folder))(*args, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("entails", "contradicts"), [(0, 2), (2, 0)])
def test_labels_of_their_own_compare_entailment_with_contradiction(tmp_path, entails, contradicts):
    folder = Path(pipelines.write("nli", tmp_path / "nli"))
    config = json.loads((folder / "config.json").read_text())
    names = {entails: "entailment", contradicts: "contradiction", 1: "neutral"}
    config["id2label"] = {str(i): name for i, name in sorted(names.items())}
    config["label2id"] = {name: i for i, name in names.items()}
    (folder / "config.json").write_text(json.dumps(config))
    model, template = tj.load(folder), "This example is {}."
    found = tj.pipeline("zero-shot-classification", model)("a dog", ["fun"], multi_label=True)
    pair = {"text": "a dog", "text_pair": template.format("fun")}
    classify = tj.pipeline("text-classification", model, function_to_apply="none", top_k=None)
    logits = {one["label"]: one["score"] for one in classify(pair)}
    odds = np.exp(logits["contradiction"] - logits["entailment"])
    np.testing.assert_allclose(found["scores"], [1 / (1 + odds)], rtol=1e-5)


@pytest.mark.slow
def test_a_length_of_the_call_counts_where_transformers_ignores_it(loaded):
    """Its ``max_length`` loses against ``max_new_tokens=256``, the default of the pipeline."""
    made = tj.pipeline("translation", loaded("french"), min_length=9, max_length=9)
    [found] = made("the red dog came")
    assert len(found["translation_text"].split()) == 7  # between the start and the end
    made = tj.pipeline("text-generation", loaded("stories"), do_sample=False, max_length=12)
    room = 12 - len(loaded("stories").tokenizer.encode("In this c"))
    assert made("In this c") == made("In this c", max_new_tokens=room)


@pytest.mark.slow
def test_drawn_texts_depend_on_the_seed_alone(loaded):
    made = tj.pipeline("text-generation", loaded("stories"), max_new_tokens=6)
    one, two = (made("In this", seed=seed, num_return_sequences=3) for seed in (1, 2))
    assert one == made("In this", seed=1, num_return_sequences=3) != two
    assert all(row["generated_text"].startswith("In this") for row in one)


@pytest.mark.slow
def test_a_conversation_is_answered_as_by_chat(tmp_path):
    model = tj.load(uses.USES["chat"].write(tmp_path / "model"))
    message = {"role": "user", "content": "la carte"}
    made = tj.pipeline("text-generation", model, max_new_tokens=4, do_sample=False)
    text = str(model.chat([message], max_new_tokens=4, temperature=0))
    answer = {"role": "assistant", "content": text}
    assert made([message]) == [{"generated_text": [message, answer]}]
    assert made([[message]], return_full_text=False) == [[{"generated_text": text}]]


@pytest.mark.slow
def test_a_picture_in_memory_is_read_as_its_file(loaded, folders, monkeypatch):
    monkeypatch.chdir(folders)
    picture = Image.open(pipelines.PICTURE)
    for task, name, options in (
        ("image-classification", "pictures", {}), ("image-to-text", "captions",
                                                   {"max_new_tokens": 4}),
    ):  # fmt: skip
        made = tj.pipeline(task, loaded(name), **options)
        pipelines.check_equal(made(picture), made(pipelines.PICTURE))
        pipelines.check_equal(made([picture, pipelines.PICTURE]), made([pipelines.PICTURE] * 2))


@pytest.mark.slow
def test_vectors_are_arrays_if_asked(loaded):
    made = tj.pipeline("feature-extraction", loaded("words"))
    [array] = made(["I hate"], return_tensors=True)
    assert array.shape == (1, 4, 32)
    np.testing.assert_array_equal(array, made("I hate"))


@pytest.mark.slow
def test_a_path_is_loaded_and_options_of_a_call_go_before_those_of_the_pipeline(loaded, folders):
    loaded("ner")
    made = tj.pipeline("ner", folders / "ner", aggregation_strategy="simple")
    assert isinstance(made, Pipeline)
    assert "entity_group" in made("My name")[0]
    assert "entity" in made("My name", aggregation_strategy="none")[0]
    with contextlib.suppress(IndexError):
        assert "entity_group" in made("My name")[0]


PAGE = (Path(tj.__file__).parents[1] / "docs" / "pipelines.md").read_text()
SHOWN = {
    "distilbert-sst-2": "sentiment", "roberta-large-mnli": "nli", "distilroberta-base": "masks",
    "bert-conll03": "ner", "distilbert-squad": "qa", "gpt2": "stories", "opus-mt-fr-en": "french",
    "distilbart-cnn-12-6": "summaries", "vit-base-patch16-224": "pictures",
    "vit-gpt2-coco-en": "captions",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*holds? text that the tokenizer does not know", REACHED)
def test_the_page_runs_as_written(loaded, folders, monkeypatch):
    monkeypatch.chdir(folders)
    [code] = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
    for name, folder in SHOWN.items():
        assert f'"models/{name}"' in code
        loaded(folder)
        code = code.replace(f'"models/{name}"', f'"{folder}"')
    assert "models/" not in code
    names = {}
    exec(code, names)
    assert names["features"]("I hate this") == names["features"](["I hate this"])[0]


def test_the_page_lists_the_options_of_every_task():
    rows = dict(re.findall(r"^\| (`[^|]*) \|(.*)", PAGE, re.MULTILINE))
    searches = PAGE.partition("## Searches")[2].partition("\n\n")[2].partition("\n\n")[0]
    listed = {task: f"{row} {searches}" for tasks, row in rows.items() for task in tasks.split("`")}
    for task, kind in _PIPELINES.items():
        for option in kind.options.__annotations__:
            assert f"`{option}`" in listed[task], (task, option)


@pytest.mark.slow
def test_a_target_without_a_token_is_told(loaded):
    made = tj.pipeline("fill-mask", loaded("words"))
    with pytest.warns(UserWarning, match="target 'courses' is no token: 'course' is taken"):
        [found] = made("This [MASK] is", targets="courses")
    assert found["token_str"] == "course"
