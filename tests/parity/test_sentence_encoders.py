"""Vectors of sentence encoders are those of sentence-transformers, over random folders."""

import json
import random
import shutil

import numpy as np
import pytest

import transformer_jax as tj
from tests.parity import layouts
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer

pytestmark = [pytest.mark.parity, pytest.mark.slow]

LONG = "The bank of the river, the cash of the bank, and a river that ran to the bank " * 4
TEXTS = [
    "I sat on the bank of the river.", "I took cash to the bank.", "rivers ran; who ran?", "a", LONG
]  # fmt: skip
FOLDERS = 30
SPECIAL = dict.fromkeys(("roberta", "mpnet"), ("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
PROMPTS = {"query": "who ran: ", "document": "The bank ", "passage": "a ", "Other": "CASH; "}
OLD_MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
MODES = sorted(OLD_MODES)


def encoder(layout, path):
    """The Hugging Face folder of a small encoder."""
    layouts.write(layout, path)
    special = SPECIAL.get(layout.split("_")[0], BERT_SPECIAL)
    tokenizer = train_tokenizer("wordpiece", [text.lower() for text in TEXTS], 90, special=special)
    tokenizer.save(path / "tokenizer.json")
    file = json.loads((path / "tokenizer.json").read_text())
    begin, end = (
        special[2 if special is BERT_SPECIAL else 0],
        special[3 if special is BERT_SPECIAL else 2],
    )
    piece = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    file["model"]["unk_token"] = next(name for name in special if "unk" in name.lower())
    text = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    ids = {
        name: {"id": name, "ids": [special.index(name)], "tokens": [name]} for name in (begin, end)
    }
    file["post_processor"] = {
        "type": "TemplateProcessing", "single": [piece(begin), text[0], piece(end)],
        "pair": [piece(begin), text[0], piece(end), text[1], piece(end)], "special_tokens": ids,
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(file))
    pad = next(name for name in special if "pad" in name.lower())
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pad, "cls_token": begin,
            "sep_token": end, "bos_token": begin, "eos_token": end}  # fmt: skip
    (path / "tokenizer_config.json").write_text(json.dumps(said))


def drawn(number, path):
    """A folder of sentence-transformers and its prompts; some files are of older versions."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as models

    draw = random.Random(number)
    layout = ["bert_bare", "roberta", "distilbert", "electra_bare", "mpnet_bare"][number % 5]
    encoder(layout, path / "encoder")
    length = draw.choice([None, 7, 20, 30])
    torch_module(number)
    first = models.Transformer(str(path / "encoder"), max_seq_length=length or 40)
    count = draw.choice([1, 1, 1, 2, 3])
    modes, width = draw.sample(MODES, count), 32
    include = draw.random() < 0.7
    parts = [first, models.Pooling(width, modes if count > 1 else modes[0], include_prompt=include)]
    if draw.random() < 0.4:
        import torch

        act = draw.choice([torch.nn.Tanh(), torch.nn.Identity()])
        parts.append(
            models.Dense(width * count, 5, bias=draw.random() < 0.5, activation_function=act)
        )
    if draw.random() < 0.5:
        parts.append(models.Normalize())
    prompts = draw.choice([None, PROMPTS, {"query": PROMPTS["query"]}])
    usual = draw.choice([None, *prompts]) if prompts else None
    model = SentenceTransformer(
        modules=parts, device="cpu", prompts=prompts, default_prompt_name=usual
    )
    model.save(str(path / "folder"))
    rewrite(draw, path / "folder", modes, include)
    return path / "folder", prompts or {}


def torch_module(number):
    import torch

    torch.manual_seed(number)
    torch.set_num_threads(1)


def rewrite(draw, folder, modes, include):
    """Files as earlier versions wrote them, for some folders."""
    # Its dense layer would follow vectors in another order.
    if draw.random() < 0.5 and modes == [mode for mode in OLD_MODES if mode in modes]:
        said = {"word_embedding_dimension": 32, "include_prompt": include}
        said |= {key: mode in modes for mode, key in OLD_MODES.items()}
        file = folder / "1_Pooling/config.json"
        file.write_text(json.dumps(said))
    if draw.random() < 0.5:
        lower = draw.random() < 0.5
        said = {"max_seq_length": draw.choice([5, 9, 26]), "do_lower_case": lower}
        (folder / "sentence_bert_config.json").write_text(json.dumps(said))
    file = folder / "modules.json"
    if draw.random() < 0.5:
        parts = json.loads(file.read_text())
        for part in parts:
            name = part["type"].rpartition(".")[2]
            part["type"] = f"sentence_transformers.models.{name}"
        file.write_text(json.dumps(parts))


@pytest.mark.filterwarnings("ignore:.*longer than the model reads")  # lengths are drawn
@pytest.mark.parametrize("number", range(FOLDERS))
def test_vectors_are_those_of_sentence_transformers(tmp_path, number):
    """Prompts, lengths, poolings, linear maps and normalization, of the folder and of its run."""
    library = pytest.importorskip("sentence_transformers")
    from transformer_jax.interop.hf_run_directory import convert

    folder, prompts = drawn(number, tmp_path)
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    convert(folder, tmp_path / "run", overwrite=False)
    loaded = [tj.load(folder), tj.load(tmp_path / "run")]
    for how in ({}, *({"prompt_name": name} for name in prompts), {"prompt": "a river "}):
        wanted = np.array([theirs.encode(text, **how) for text in TEXTS])
        for ours in loaded:
            np.testing.assert_allclose(
                ours.embed(TEXTS, **how), wanted, atol=2e-5, err_msg=str(how)
            )


def test_what_is_exported_is_what_was_read(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    from transformer_jax.cli.main import main

    for number in range(4):
        path = tmp_path / str(number)
        folder, _ = drawn(number, path)
        assert main(["export", str(folder), str(path / "out"), "--format", "hf"]) == 0
        one, two = (
            library.SentenceTransformer(str(p), device="cpu") for p in (folder, path / "out")
        )
        np.testing.assert_allclose(one.encode(TEXTS), two.encode(TEXTS), atol=2e-5)
        shutil.rmtree(path)
