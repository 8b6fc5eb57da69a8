"""Folders of M2M100, NLLB and mBART-50 with SentencePiece models of a few words."""

import io
import json
import random

import jax
import numpy as np
import sentencepiece
from flax import nnx

from tests.drawing import drawn
from transformer_jax.interop.export import write_folder
from transformer_jax.interop.family import Model
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.transformer.models import TransformerEncoderDecoder

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
# The kind of pieces, the class of the tokenizer, the number of languages, and two of these.
FAMILIES = {
    "m2m100": ("bpe", "M2M100Tokenizer", 100, ("en", "de")),
    "nllb": ("bpe", "NllbTokenizer", 202, ("eng_Latn", "deu_Latn")),
    "mbart50": ("unigram", "MBart50Tokenizer", 52, ("en_XX", "de_DE")),
}
ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzäöüéñ",
    "абвгдежзийклмнопрстуфхцчшщ",
    "αβγδεζηθικλμνξοπρστυφχψω",
    "東京都大阪府北海道あいうえおかきくけこ",
    "ابتثجحخدذرزسشصضطظعغ",
    "कखगघचछजझटठडढतथदधनपफबभमयरलवशषसह",
    "가나다라마바사아자차카타파하",
)


def words(draw, count=12):
    """Words of several scripts."""
    return ["".join(draw.choices(a, k=draw.randint(1, 6))) for a in ALPHABETS for _ in range(count)]


def texts(draw, known, count=30):
    """Sentences of known words and of others, some with letters that nobody has."""
    pool = [*known, *words(draw, 4), "ж" * 3, "ﬁ", "Ａ", "😀", "ẞ", "1 2", "_", "a_b"]
    return [" ".join(draw.choices(pool, k=draw.randint(1, 12))) for _ in range(count)]


def write_vocabulary(family, folder, known, draw, *, lacking=0, **settings):
    """Writes the files of a tokenizer; returns its SentencePiece model and its pieces by id.

    Args:
        family: One of ``FAMILIES``.
        folder: Where.
        known: Words that the pieces are made of.
        draw: Random numbers.
        lacking: How many pieces ``vocab.json`` lacks.
        settings: Keys of ``tokenizer_config.json``.
    """
    kind, name, _, _ = FAMILIES[family]
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(known * 4), model_writer=file, vocab_size=250, model_type=kind,
        hard_vocab_limit=False, minloglevel=2, character_coverage=1.0,
    )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())
    pieces = [model.id_to_piece(i) for i in range(3, len(model))]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sentencepiece.bpe.model").write_bytes(file.getvalue())
    fields = {"tokenizer_class": name} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    if family == "m2m100":
        draw.shuffle(pieces)
        pieces = pieces[lacking:]
        numbers = {token: id for id, token in enumerate([*SPECIAL, *pieces])}
        (folder / "vocab.json").write_text(json.dumps(numbers))
    return model, [*SPECIAL, *pieces]


def config_of(family, tokens):
    """A tiny model with so many tokens."""
    kind = "learned" if family == "mbart50" else "sinusoidal_fairseq"
    places = PositionConfig(kind, 64, offset=2, skip_padding=family != "mbart50")
    return TransformerConfig(
        vocab_size=tokens, d_model=16, encoder_layers=1, decoder_layers=1, positions=places,
        attention=AttentionConfig(num_heads=2), feed_forward=FeedForwardConfig(d_ff=24),
        embedding=EmbeddingConfig(layernorm_embedding=family == "mbart50"),
        norm=NormConfig(placement="pre"),
    )  # fmt: skip


def write_model(family, folder, tokens, **fields):
    """Writes a tiny model with random weights."""
    config = config_of(family, tokens)
    _, params = drawn(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))
    params = jax.tree.map(np.asarray, params)
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    write_folder(folder, Model("encoder-decoder", config), params, ids=ids | fields)


def write(family, folder, *, seed=0, spare=None, **settings):
    """Writes a folder with model and tokenizer; returns the words of its pieces."""
    draw = random.Random(seed)
    known = words(draw)
    _, pieces = write_vocabulary(family, folder, known, draw, **settings)
    count = FAMILIES[family][2]
    usual = {"m2m100": 8, "nllb": 3, "mbart50": 1}[family]  # a mask, and rows nobody uses
    write_model(family, folder, len(pieces) + count + (usual if spare is None else spare))
    return known
