"""Targets of random Marian folders have the ids of transformers' ``text_target``, and its scores.

Every run draws new folders; ``SWEEP_SEED`` repeats those of one that prints its seed.
"""

import json
import os
import random
import time

import numpy as np
import pytest
import sentencepiece

from tests.interop.test_vocabularies import marian, trained
from tests.opened import load
from tests.parity import layouts
from transformer_jax.data.pairs import Pairs
from transformer_jax.data.store import build_store
from transformer_jax.decoding.translator import Translator
from transformer_jax.inference.pretrained import open_directory

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.parity,
    # It would change punctuation alone, of which these words have none.
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses"),
]

FOLDERS, SCORED = 20, 4
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "абвгдежзийклмнопрстуфхцчшщ",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "äöüßéèçñabcdefghijklmn",
    "東京都大阪府北海道あいうえおかきくけこ",
    "ابتثجحخدذرزسشصضطظعغ",
)


def seed():
    return int(os.environ.get("SWEEP_SEED", time.time_ns() % 2**32))


def words_of(draw, alphabet, count):
    return ["".join(draw.choices(alphabet, k=draw.randint(1, 7))) for _ in range(count)]


def write(draw, folder):
    """A folder with SentencePiece models of other words, often of other letters; these words."""
    alphabets = draw.sample(ALPHABETS, 2)
    words = [words_of(draw, alphabet, draw.randint(8, 30)) for alphabet in alphabets]
    if draw.random() < 0.4:
        words[1] += draw.sample(words[0], len(words[0]) // 2)
    rules = ["nmt_nfkc", "nfkc", "identity"]
    models = [
        trained(
            words=side, size=draw.randint(70, 110), seed=draw.randint(0, 99),
            normalization_rule_name=draw.choice(rules),
        )
        for side in words
    ]  # fmt: skip
    folder.mkdir()
    size = len(marian(folder, *models))
    fields = {"source_lang": "en", "target_lang": "de", "eos_token": "</s>", "unk_token": "<unk>",
              "pad_token": "<pad>", "tokenizer_class": "MarianTokenizer"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    torch.manual_seed(draw.randint(0, 9999))
    ids = {"pad_token_id": size - 1, "decoder_start_token_id": size - 1}
    sizes = {"vocab_size": size, "decoder_vocab_size": size}
    config = layouts.LAYOUTS["marian"]["config"] | ids | sizes
    transformers.MarianMTModel(transformers.MarianConfig(**config)).save_pretrained(folder)
    return words


def texts_of(draw, words, count=25):
    """Texts of both sides' words, other letters among them, and blanks of several kinds."""
    found = []
    for _ in range(count):
        chosen = draw.choices(words[1] + words[0][:4], k=draw.randint(1, 6))
        if draw.random() < 0.3:
            chosen.insert(
                draw.randint(0, len(chosen)), draw.choice(["☃", "☃☃x", "1 234", "é", "…"])
            )
        text = draw.choice([" ", " ", "  "]).join(chosen)
        found.append(draw.choice(["", "", " "]) + text + draw.choice(["", "", " "]))
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    number = seed()
    print(f"SWEEP_SEED={number}")
    draw, root = random.Random(number), tmp_path_factory.mktemp("marian")
    made = []
    for folder in (root / str(i) for i in range(FOLDERS)):
        words = write(draw, folder)
        made.append((folder, words, texts_of(draw, words)))
    return number, made


def test_targets_have_the_ids_of_text_target(folders):
    number, made = folders
    apart = compared = 0
    for folder, _, texts in made:
        theirs = transformers.MarianTokenizer.from_pretrained(folder)
        tokenizer = open_directory(folder).load_tokenizer()
        sources = [[*ids, tokenizer.eos] for ids in tokenizer.encode_batch(texts)]
        store = build_store(Pairs(texts, texts, "texts"), tokenizer)
        for i, text in enumerate(texts):
            wanted = theirs(text_target=text)["input_ids"]
            assert store.target[i].tolist() == wanted, (number, folder.name, text)
            assert sources[i] == theirs(text)["input_ids"], (number, folder.name, text)
            apart += wanted != sources[i]
            compared += 1
    assert compared == 25 * FOLDERS
    assert apart > compared / 2


def test_scores_are_those_of_transformers(folders):
    number, made = folders
    for folder, words, texts in made[:SCORED]:
        theirs = transformers.MarianTokenizer.from_pretrained(folder)
        model = transformers.MarianMTModel.from_pretrained(folder).eval()
        fits = [text for text in texts if len(theirs(text_target=text)["input_ids"]) < 40][:6]
        sources = [" ".join(words[0][:3])] * len(fits)
        scores = Translator(*load(folder)).score(sources, fits)
        for source, target, score in zip(sources, fits, scores, strict=True):
            given = {name: torch.tensor([ids]) for name, ids in theirs(source).items()}
            labels = torch.tensor([theirs(text_target=target)["input_ids"]])
            with torch.no_grad():
                logits = model(**given, labels=labels).logits
            wanted = torch.log_softmax(logits, -1).gather(-1, labels[..., None]).sum()
            np.testing.assert_allclose(
                score.log_prob, float(wanted), rtol=1e-4, err_msg=f"{number} {folder.name} {target}"
            )


def test_the_models_differ(folders):
    for folder, _, _ in folders[1]:
        pieces = []
        for side in ("source", "target"):
            model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
            pieces.append({model.id_to_piece(i) for i in range(len(model))})
        assert pieces[0] != pieces[1]
