"""An opened model is a value: it outlives its folder, and both doors to a use are the same."""

import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.doors import uses
from tests.parity import layouts
from transformer_jax.data.conversations import Message
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.inference.pretrained import Pretrained, open_pretrained, read_facts

pytestmark = pytest.mark.filterwarnings("ignore:.* (the length limit|does not know|truncated)")

TEXT = "un café à la carte"
MESSY = ["  cafe\u0301  à la CARTE \u00a0", "déjà\tvu ", "\u3000un\ufeff"]
ASKED: list[Message] = [{"role": "user", "content": TEXT}]
SHORT = {"num_beams": 1, "max_len_a": 0, "max_len_b": 3}
FEW = {"max_new_tokens": 3, "temperature": 0}
PIXELS = np.zeros((1, 32, 32, 3), np.float32)
PICTURE = np.zeros((32, 32, 3), np.uint8)

# What can be called on a predictor of each kind.
TRANSLATOR = {
    "translate": lambda model: model(TEXT, **SHORT),
    "beams": lambda model: model([TEXT, ""], num_beams=2, max_len_a=0, max_len_b=2),
    "hf": lambda model: model(TEXT, generation_config="hf", max_length=4),
    "embed": lambda model: model.embed(TEXT),
    "score": lambda model: model.score(TEXT, "carte"),
    "attention": lambda model: model.attention(TEXT, "carte"),
    "languages": lambda model: model.languages,
    "capture": lambda model: model.capture(TEXT, "carte", at="*")["logits"],
}
LANGUAGE = {
    "generate": lambda model: model.generate(TEXT, **FEW),
    "beams": lambda model: model.generate(TEXT, num_beams=2, max_new_tokens=2),
    "stream": lambda model: list(model.stream(TEXT, **FEW)),
    "score": lambda model: model.score(TEXT),
}
DECODER = LANGUAGE | {
    "hf": lambda model: model.generate(TEXT, generation_config="hf", max_new_tokens=2),
    "attention": lambda model: model.attention(TEXT),
    "capture": lambda model: model.capture(TEXT)["logits"],
}
CHAT = DECODER | {"chat": lambda model: model.chat(ASKED, **FEW)}
VECTORS = {
    "embed": lambda model: model.embed([TEXT, "carte"]),
    "layers": lambda model: model.embed(TEXT, layers="all", pooling="cls"),
    "attention": lambda model: model.attention(TEXT),
}
LABELS = {"classify": lambda model: model(TEXT)}
CLASSES = LABELS | {"capture": lambda model: model.capture(TEXT)["logits"]}
CALLS = {
    "bart": TRANSLATOR,
    "gpt2": CHAT,
    "bert": VECTORS | {"masks": lambda model: model.fill_mask(f"[MASK] {TEXT}")},
    "bert_cls": VECTORS | CLASSES,
    "bert_tag": VECTORS | {"tag": lambda model: model(TEXT)},
    "bert_qa": VECTORS | {"answer": lambda model: model(TEXT, f"{TEXT} {TEXT}")},
    "qwen3_number": {"reward": lambda model: model(TEXT)},
    "decoder_run": DECODER,
    "rotary_run": DECODER,
    "ngram_run": LANGUAGE,
    "trained_run": TRANSLATOR,
    "vit": {
        "probabilities": lambda model: model.probabilities(PIXELS),
        "embed": lambda model: model.embed(PIXELS),
    },
    **dict.fromkeys(("t5", "pegasus", "marian"), TRANSLATOR),
    **dict.fromkeys(("opt", "llama", "gemma2", "phi3", "qwen3"), CHAT),
    **dict.fromkeys(("roberta", "distilbert"), VECTORS),
    **dict.fromkeys(("gpt2_multi", "llama_cls"), LABELS),
    "bert_multi": VECTORS | CLASSES,
    "vit_gpt2": {
        "caption": lambda model: model(PICTURE),
        "beams": lambda model: model([PICTURE], num_beams=2, max_len_b=3),
        "hf": lambda model: model(PICTURE, generation_config="hf", max_length=4),
        "attention": lambda model: model.attention(PICTURE, max_len_b=3).text,
        "heat maps": lambda model: model.heat_maps(PICTURE, "carte").words,
    },
    "clip": {
        "images": lambda model: model.embed_images(PIXELS),
        "texts": lambda model: model.embed_texts([TEXT]),
        "labels": lambda model: model(PIXELS, ["carte", "vu"]),
    },
}
OPENED: list[str] = []  # names of files, while a test counts them
COUNTS = [False]


def _count(event, arguments):
    if COUNTS[0] and event == "open" and isinstance(arguments[0], str | Path):
        OPENED.append(str(arguments[0]))


sys.addaudithook(_count)


@pytest.fixture
def count_openings():
    """Counts the files that are opened by a call."""

    def count(call):
        OPENED.clear()
        COUNTS[0] = True
        try:
            result = call()
        finally:
            COUNTS[0] = False
        return result, list(OPENED)

    return count


@pytest.fixture
def placed(request, tmp_path):
    """Writes or copies a model to a folder of its own."""

    def place(name):
        folder = tmp_path / "model"
        if name.endswith("_run"):
            return Path(shutil.copytree(request.getfixturevalue(name), folder))
        if name != "vit":
            return uses.Use(name, str).write(folder)
        layouts.write(name, folder)
        return folder

    return place


def _same(one, other):
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return str(one) == str(other)


@pytest.mark.apart
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.slow
def test_every_method_works_after_the_folder_is_deleted(name, placed, count_openings):
    """Each call gives the same with and without the folder, and opens no file of it."""
    folder = placed(name)
    with_folder, model = tj.load(folder), tj.load(folder)
    before = {what: call(with_folder) for what, call in CALLS[name].items()}
    shutil.rmtree(folder)
    for what, call in CALLS[name].items():
        after, files = count_openings(lambda call=call: call(model))
        assert _same(before[what], after), what
        assert not [file for file in files if str(folder) in file], what


def _generated(model, text):
    read = model.opened.facts.preparation.text(text)
    return f"{read}{model.generate(text, **FEW | {'max_new_tokens': 4})}\n".split("\n")


# What a command prints about a text, by the predictor alone.
SHOWN = {
    "translate": lambda model, text: [str(model(text, num_beams=1, max_len_a=0, max_len_b=6)), ""],
    "generate": _generated,
    "classify texts": lambda model, text: [
        f"{(one := model(text)).label}\t{one.probability:.4f}",
        "",
    ],
    "reward texts": lambda model, text: [f"{model(text)[0]:.4f}", ""],
    "tag words": lambda model, text: [" ".join(f"{w.word}/{w.tag}" for w in model(text)), ""],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_predictor_gives_on_messy_text_what_its_command_gives(name, tmp_path, run_command):
    use = uses.USES[name]
    folder = use.write(tmp_path / "model")
    model = tj.load(folder)
    for text in MESSY:
        arguments, given = use.command(folder, text)
        code, lines, err = run_command(*arguments, text=given)
        assert code == 0, err
        assert lines == SHOWN[name](model, text), text


@pytest.mark.parametrize("name", ["ngram_run", pytest.param("trained_run", marks=pytest.mark.slow)])
def test_the_configuration_of_a_run_is_opened_at_most_twice_and_never_by_a_call(
    name, placed, count_openings
):
    folder = placed(name)
    model, files = count_openings(lambda: tj.load(folder))
    assert sum(file == str(folder / "config.json") for file in files) <= 2, files
    for call in CALLS[name].values():
        _, files = count_openings(lambda call=call: call(model))
        assert not [file for file in files if file.endswith("config.json")], files


def _live():
    return sum(array.nbytes for array in jax.live_arrays() if array.ndim > 1)


@pytest.mark.slow
def test_a_use_keeps_no_second_copy_of_the_parameters(rotary_run):
    """A command names no opened model while it decodes: only prepared parameters are kept."""
    facts, before = read_facts(rotary_run), _live()
    language = Pretrained.load(facts, "decoder").language()
    own = sum(leaf.nbytes for leaf in jax.tree.leaves(language.params) if leaf.ndim > 1)
    stream = language.stream(GenerationRequest("a", max_new_tokens=2, temperature=0))
    next(stream)
    assert _live() - before < 1.5 * own


def test_facts_of_an_opened_model_do_not_read_its_folder(ngram_run):
    opened = open_pretrained(ngram_run)
    with pytest.raises(AssertionError, match="does not read its folder"):
        _ = opened.facts.tokenizer
