"""Scores of pairs are those of sentence-transformers: length, token types, activation, classes.

Folders of random settings; sentence-transformers#3304 is a length that was ignored.
"""

import json
import random

import numpy as np
import pytest

import transformer_jax
from tests.interop import published_starts as starts
from tests.interop.test_folder_settings import WORDPIECE, scorer, write_tokenizer
from tests.parity import layouts
from transformer_jax.cli.main import main

torch = pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

pytestmark = pytest.mark.parity

CLASSES = {
    "bert_cls": ("BertTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend"),
    "distilbert_cls": ("DistilBertTokenizer", "PreTrainedTokenizerFast"),
    "electra_cls": ("ElectraTokenizer", "BertTokenizer"),
    "mpnet_cls": ("PreTrainedTokenizerFast", "TokenizersBackend"),
    "roberta_cls": ("PreTrainedTokenizerFast",),
}
ACTIVATIONS = ("torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid",
               "torch.nn.modules.activation.Tanh")  # fmt: skip


def write(folder, draw):
    """A cross-encoder of random settings; returns its activation."""
    layout = draw.choice(sorted(CLASSES))
    layouts.write(layout, folder)
    settings = {"tokenizer_class": draw.choice(CLASSES[layout]), **WORDPIECE}
    settings["do_lower_case"] = draw.random() < 0.5
    settings["model_max_length"] = draw.choice([6, 7, 16, 512])
    if draw.random() < 0.5:
        names = ["input_ids", "attention_mask", *draw.choice([[], ["token_type_ids"]])]
        settings["model_input_names"] = names
    if layouts.LAYOUTS[layout]["config"]["pad_token_id"] == 1:
        settings["first"] = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
        settings.pop("model_input_names", None)  # RoBERTa has one token type
    write_tokenizer(folder, lowercase=draw.random() < 0.5, **settings)
    fields = layouts.LAYOUTS[layout]["config"]
    labels = {"id2label": {"0": "score"}, "label2id": {"score": 0}, "num_labels": 1}
    activation = draw.choice(ACTIVATIONS)
    where = draw.choice(["sentence_transformers", "sbert_ce_default_activation_function"])
    said = {"activation_fn": activation} if where == "sentence_transformers" else activation
    (folder / "config.json").write_text(json.dumps({**fields, **labels, where: said}))
    one = {n: t[:1] if n.startswith("classifier") and n.split(".")[-2] != "dense" else t
           for n, t in layouts.weights(layout).items()}  # fmt: skip
    from safetensors.numpy import save_file

    save_file(one, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.filterwarnings("ignore:.* longer than the model reads")
@pytest.mark.parametrize("seed", range(20))
def test_scores_are_those_of_a_cross_encoder(tmp_path, seed):
    draw = random.Random(seed)
    write(tmp_path, draw)
    words = ["a", "b", "c", "A", "É", "ab", "[SEP]", "文"]
    text = lambda: " ".join(draw.choices(words[:6], k=draw.randint(1, 12)))
    pairs = [(text(), text()) for _ in range(8)]
    theirs = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu")
    ours = transformer_jax.load(tmp_path)
    np.testing.assert_allclose(ours(pairs), theirs.predict(pairs), atol=2e-5)
    query, texts = pairs[0][0], [second for _, second in pairs]
    ranked, wanted = ours.rank(query, texts, top_k=5), theirs.rank(query, texts, top_k=5)
    np.testing.assert_allclose(
        [one.score for one in ranked], [one["score"] for one in wanted], atol=2e-5
    )
    apart = np.diff([one["score"] for one in wanted], append=-np.inf) < -1e-4
    if apart.all():  # no scores of equal height, of which either may be first
        assert [one.position for one in ranked] == [one["corpus_id"] for one in wanted]


PAIRS = [("a b", "c"), ("c", "a ab b"), ("A", "b"), ("c c c", "a")]


def scores(folder):
    """The scores of sentence-transformers."""
    return sentence_transformers.CrossEncoder(str(folder), device="cpu").predict(PAIRS)


def own_scores(folder):
    return np.asarray(transformer_jax.load(folder)(*map(list, zip(*PAIRS, strict=True))))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("convert", [False, True], ids=["folder", "run"])
def test_a_saved_cross_encoder_and_its_export_have_one_score(tmp_path, activation, convert):
    """Saved by sentence-transformers, exported here, and read by both."""
    folder = scorer(tmp_path / "folder")
    theirs = sentence_transformers.CrossEncoder(
        str(folder),
        device="cpu",
        activation_fn=sentence_transformers.util.import_from_string(activation)(),
    )
    theirs.save_pretrained(str(tmp_path / "saved"))
    source, expected = tmp_path / "saved", theirs.predict(PAIRS)
    np.testing.assert_allclose(own_scores(source), expected, atol=2e-5)
    if convert:
        assert main(["convert", str(source), str(tmp_path / "run")]) == 0
        source = tmp_path / "run"
    assert main(["export", str(source), str(tmp_path / "out")]) == 0
    for found in (scores(tmp_path / "out"), own_scores(tmp_path / "out")):
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("layout", ["bert_mlm", "roberta", "distilbert_cls", "gemma2"])
def test_a_score_trained_here_is_that_of_its_export(tmp_path, layout):
    """Without a name of the activation, sentence-transformers puts a sigmoid on the score."""
    data, start = starts.write_data(tmp_path / "data"), starts.write(layout, tmp_path / "start")
    rows = (
        "text\tsecond\tlabel",
        *(f"{one}\t{two}\t{i / 4}" for i, (one, two) in enumerate(PAIRS)),
    )
    (data / "regress.tsv").write_text("\n".join([*rows, *rows[1:]]) + "\n")
    run, pair = tmp_path / "run", ["--data.read.pair"]
    assert starts.begin(layout, "finetune regress", start, data, run, *pair) == 0
    starts.draw_parameters(run)
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    expected = own_scores(run)
    assert abs(expected).max() > 1e-3
    for found in (scores(tmp_path / "out"), own_scores(tmp_path / "out")):
        np.testing.assert_allclose(found, expected, atol=2e-5)
