"""Tokenizers: lossless where promised, special tokens out of reach of text, damage refused."""

import hashlib
import itertools
import json
import random
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.preparation import compose
from transformer_jax.data.tokenizer import (
    BERT_SPECIAL,
    SPECIAL,
    Tokenizer,
    load_tokenizer,
    train_tokenizer,
)

# Row U1: two sentences of 13 and 15 words.
ENGLISH = "UT Dallas is a rising public research university in the heart of DFW."
FRENCH = "UT Dallas est une université de recherche publique en plein essor au cœur de DFW."
TEXTS = [
    *[ENGLISH, FRENCH] * 3,
    "Lucas irá viajar ao Rio em Dezembro.",
    "A man in a blue shirt is standing on a ladder cleaning a window.",
    "Ein Mann in einem blauen Hemd steht auf einer Leiter und putzt ein Fenster.",
    "Two young, White males are outside near many bushes; the others are not (yet).",
]
KINDS = ["bpe", "wordpiece", "wordpiece_likelihood", "unigram", "words", "bytes", "characters"]
LOSSLESS = ["bpe", "unigram", "bytes"]
NASTY = [
    "a  b   c",
    " leading and trailing  ",
    "\ttabs\tand\u00a0no-break",
    "café cafe\u0301 ÅÅ ﬁ Ⅷ",
    "👩‍👩‍👧‍👦 🇧🇷 👍🏽",
    "שלום עולם مرحبا",
    "\x01\x02\x1f\x7f\x85\u2028\u2029\u200b\ufeff",
    "▁ Ġ ## @@ </w> <0x41>",
    "if (x != 0) { return a[i] >> 2; }",
    "",
]


SIZES = {
    "bpe": 400, "wordpiece": 200, "wordpiece_likelihood": 200, "unigram": 320, "words": 200,
    "bytes": 260, "characters": 200,
}  # fmt: skip


@pytest.fixture(scope="module")
def made():
    return {kind: train_tokenizer(kind, TEXTS, SIZES[kind]) for kind in KINDS}


@pytest.fixture(scope="module")
def plain():
    return {kind: train_tokenizer(kind, TEXTS, SIZES[kind], normalization="none") for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_u1_accents_and_casing_survive(made, kind):
    for text in (ENGLISH, FRENCH):
        assert made[kind].decode(made[kind].encode(text)) == text


@pytest.mark.parametrize("kind", LOSSLESS)
def test_b21_nasty_text_survives(made, plain, kind):
    for text in NASTY:
        assert made[kind].decode(made[kind].encode(text)) == compose(text)
        assert plain[kind].decode(plain[kind].encode(text)) == text


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
@example("<eos></s> <pad>[SEP]<|endoftext|>")
def test_b21_any_text_survives(plain, text):
    for kind in LOSSLESS:
        ids = plain[kind].encode(text)
        assert plain[kind].decode(ids) == text
        assert all(4 <= i < plain[kind].vocab_size for i in ids)


@pytest.mark.parametrize("kind", KINDS)
def test_canonically_equal_texts_have_the_same_tokens(made, plain, kind):
    text = "Une université égale, là-haut."
    apart = unicodedata.normalize("NFD", text)
    tokenizer = made[kind]
    assert tokenizer.normalization == "nfc"
    assert tokenizer.encode(apart) == tokenizer.encode(text)
    assert (
        train_tokenizer(
            kind, [unicodedata.normalize("NFD", text) for text in TEXTS], SIZES[kind]
        ).sha256
        == tokenizer.sha256
    )
    [(ids, spans)] = tokenizer.encode_spans([apart])
    assert ids == tokenizer.encode(text)
    assert "".join(dict.fromkeys(apart[a:b] for a, b in spans)).count("\u0301") > 0
    # Without it, and in files of earlier versions, they do not.
    assert plain[kind].normalization == "none"
    assert plain[kind].encode(apart) != plain[kind].encode(text)
    assert Tokenizer(tokenizer.text).normalization == "nfc"


@pytest.mark.parametrize(
    "text", [ENGLISH, FRENCH, 'l\'eau (3,5 %) - "oui"; a##b -- c!', " two  blanks ", "déjà-vu"]
)
def test_joined_pieces_of_wordpiece_restore_their_text(text):
    tokenizer = train_tokenizer("wordpiece", [*TEXTS, text], 300)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    # White space that the texts lack is no unknown token.
    plain = train_tokenizer("wordpiece", ["one two"] * 3, 60)
    for blank in "\t\n\u00a0\u2028\u3000":
        assert plain.encode(f"one{blank}two") == plain.encode("one two")
    # Words of encoders are never joined: they are the same tokens in a text and in a list.
    encoder = train_tokenizer("wordpiece", TEXTS, 300, special=BERT_SPECIAL)
    words = encoder.encode_batch(["A", "man", ",", "a"])
    assert encoder.encode("A man, a") == list(itertools.chain.from_iterable(words))


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_the_first_ids(made, kind):
    tokenizer = made[kind]
    assert (tokenizer.pad, tokenizer.unk, tokenizer.bos, tokenizer.eos) == (0, 1, 2, 3)
    assert tokenizer.convert_ids_to_tokens(range(4)) == list(SPECIAL)


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_spells_a_special_token_is_text(made, kind):
    tokenizer = made[kind]
    for text in (*SPECIAL, "a<eos>b", " <eos> ", "<eos><eos>", "</s>", "[SEP]"):
        ids = tokenizer.encode(text)
        assert not {tokenizer.pad, tokenizer.bos, tokenizer.eos} & set(ids), text
        if kind in LOSSLESS:
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_leave_no_trace_in_text(made, kind):
    tokenizer = made[kind]
    ids = tokenizer.encode("Two young males")
    assert tokenizer.decode([2, *ids, 3, 0, 0]) == tokenizer.decode(ids) == "Two young males"


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_encoded_as_if_alone(made, kind):
    tokenizer = made[kind]
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
    assert tokenizer.decode_batch(tokenizer.encode_batch(TEXTS[:2])) == TEXTS[:2]


@pytest.fixture(scope="module")
def for_encoders():
    sizes = SIZES | {"bytes": 261}
    return {kind: train_tokenizer(kind, TEXTS, sizes[kind], special=BERT_SPECIAL) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_h18_tokenizers_for_encoders_have_a_mask(for_encoders, made, kind, tmp_path):
    tokenizer = for_encoders[kind]
    roles = tokenizer.pad, tokenizer.unk, tokenizer.bos, tokenizer.eos, tokenizer.mask
    assert roles == (0, 1, 2, 3, 4)
    assert tokenizer.convert_ids_to_tokens(range(5)) == list(BERT_SPECIAL)
    assert tokenizer.special_ids == set(range(5))
    assert (made[kind].mask, made[kind].special_ids) == (None, set(range(4)))
    ids = tokenizer.encode(ENGLISH)
    assert min(ids) >= 5
    assert max(ids) < tokenizer.vocab_size
    assert tokenizer.decode(ids) == ENGLISH
    assert tokenizer.decode([2, *ids, 4, 3, 0]) == tokenizer.decode(ids)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert (again.mask, again.encode(FRENCH)) == (4, tokenizer.encode(FRENCH))


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_spells_a_mask_is_text(for_encoders, kind):
    tokenizer = for_encoders[kind]
    for text in (*BERT_SPECIAL, "a[MASK]b", " [MASK] ", "<mask>"):
        ids = tokenizer.encode(text)
        assert not (tokenizer.special_ids - {tokenizer.unk}) & set(ids), text
        if kind in LOSSLESS:
            assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_h18_words_begin_where_nothing_continues(for_encoders, kind):
    """Whole words are those that blanks part, and for WordPiece punctuation too."""
    tokenizer = for_encoders[kind]
    continues = tokenizer.is_continuation
    assert continues.shape == (tokenizer.vocab_size,)
    assert not continues[sorted(tokenizer.special_ids)].any()
    if kind in ("characters", "words"):
        assert not continues.any()
        return
    text = "A man in a blue shirt is standing on a ladder"
    ids = tokenizer.encode(text)
    # The first piece of a text begins a word, whatever it is.
    starts = [i for i, id in enumerate(ids) if i == 0 or not continues[id]]
    words = [tokenizer.decode(ids[a:b]) for a, b in itertools.pairwise([*starts, len(ids)])]
    assert [word.strip() for word in words] == text.split()
    assert np.mean(continues[ids]) > 0.1


def test_u1_a_mask_of_another_file_is_found_or_named(tmp_path):
    roberta = load_tokenizer(
        foreign(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "<unk>")
    )
    roles = roberta.bos, roberta.pad, roberta.eos, roberta.unk, roberta.mask
    assert roles == (0, 1, 2, 3, 4)
    assert roberta.encode("a <mask> b") == [5, 3, 6]
    named = load_tokenizer(foreign(tmp_path, ["</s>", "(hole)"], "a"), special={"mask": "(hole)"})
    assert named.mask == 1
    assert not named.is_continuation.any()


def test_bytes_have_the_ids_of_bytes(made):
    text = "é 😀\x01"
    assert made["bytes"].encode(text) == [4 + byte for byte in text.encode()]
    assert made["bytes"].vocab_size == 260


def test_characters_are_one_id_each_and_unknown_ones_are_unk(made):
    assert len(made["characters"].encode("Lucas irá")) == 9
    assert made["characters"].encode("Ж") == [made["characters"].unk]
    common = train_tokenizer("characters", ["aaab", "bc"], 6)
    assert [common.encode(c)[0] for c in "abc"] == [4, 5, 1]


def test_b21_words_are_one_id_each_and_unknown_ones_are_unk(made):
    """Row B21: a vocabulary of words has no token for a misspelling."""
    words = made["words"]
    assert words.convert_ids_to_tokens(words.encode("Lucas (yet).")) == [
        *("Lucas", "▁", "(", "yet", ")", "."),
    ]
    assert words.encode("Luca") == [words.unk]
    assert words.decode(words.encode("A man, at the end.")) == "A man, the."
    common = train_tokenizer("words", ["b b a a c", "b"], 6)
    assert [common.encode(word)[0] for word in ("b", "a", "c")] == [4, 5, 1]


def test_wordpiece_marks_what_does_not_begin_a_word(made):
    pieces = made["wordpiece"].convert_ids_to_tokens(made["wordpiece"].encode("standings"))
    assert not pieces[0].startswith("##")
    assert all(piece.startswith("##") for piece in pieces[1:])
    assert len(pieces) > 1


def test_a_vocabulary_is_as_large_as_asked_where_the_text_allows(made):
    assert made["bpe"].vocab_size == 400
    assert train_tokenizer("bpe", ["ab ab"], 1000).vocab_size == 262  # with ab and " ab"


@pytest.mark.parametrize(
    ("kind", "size", "least"), [("bpe", 259, 260), ("unigram", 100, 260), ("characters", 4, 5)]
)
def test_a_vocabulary_too_small_is_refused(kind, size, least):
    with pytest.raises(
        ConfigError, match=f"a {kind} vocabulary of size {size}: {least} to 16777216 are allowed"
    ):
        train_tokenizer(kind, TEXTS, size)


def test_a_vocabulary_that_trainers_have_no_memory_for_is_refused():
    with pytest.raises(ConfigError, match="of size 1000000000: 260 to 16777216 are allowed"):
        train_tokenizer("bpe", TEXTS, 10**9)


def test_a_vocabulary_without_room_for_all_characters_is_refused():
    with pytest.raises(ConfigError, match="the characters of the text alone need 19"):
        train_tokenizer("wordpiece", ["abcdef bcdefg"], 9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("bpe", "wordpiece")
def test_training_is_repeatable_in_another_process(made, kind):
    code = (
        "import json, sys; from transformer_jax.data.tokenizer import train_tokenizer as t; "
        "kind, size, texts = json.loads(sys.stdin.read()); print(t(kind, texts, size).sha256)"
    )
    wanted = made[kind].sha256
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([kind, SIZES[kind], TEXTS]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_is_the_same_when_loaded(made, kind, tmp_path):
    path = tmp_path / "tokenizer.json"
    made[kind].save(path)
    loaded = load_tokenizer(path, sha256=made[kind].sha256)
    assert loaded.sha256 == made[kind].sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert loaded.encode_batch([*TEXTS, *NASTY]) == made[kind].encode_batch([*TEXTS, *NASTY])
    assert loaded.vocab_size == made[kind].vocab_size
    assert [f.name for f in tmp_path.iterdir()] == ["tokenizer.json"]


def test_truncation_and_padding_of_a_file_are_switched_off(made, tmp_path):
    path = tmp_path / "tokenizer.json"
    made["bpe"].save(path)
    backend = tokenizers.Tokenizer.from_file(str(path))
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    backend.save(str(path))
    assert load_tokenizer(path).encode_batch(TEXTS) == made["bpe"].encode_batch(TEXTS)


def foreign(tmp_path, names, unk="x", special=True):
    vocab = {name: i for i, name in enumerate([*names, *"abc"])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token=unk))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if special:
        backend.add_special_tokens(list(names))
    path = tmp_path / "tokenizer.json"
    backend.save(str(path))
    return path


def test_special_tokens_of_other_files_are_found_by_their_usual_names(tmp_path):
    bert = load_tokenizer(foreign(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "[UNK]"))
    assert (bert.pad, bert.unk, bert.bos, bert.eos) == (0, 1, 2, 3)
    marian = load_tokenizer(foreign(tmp_path, ["</s>", "<unk>", "<pad>"], "<unk>"))
    assert (marian.pad, marian.unk, marian.bos, marian.eos) == (2, 1, 2, 0)
    gpt = load_tokenizer(foreign(tmp_path, ["<|endoftext|>"], "a"))
    assert (gpt.pad, gpt.unk, gpt.bos, gpt.eos) == (0, None, 0, 0)
    # A word-level vocabulary would find the special token in the text.
    assert bert.encode("a [SEP] b") == [4, 1, 5]
    assert gpt.encode("a <|endoftext|> b") == [1, 2]


def test_the_vocabulary_reaches_to_the_largest_id(tmp_path):
    path = foreign(tmp_path, ["</s>"], "a")
    path.write_text(path.read_text().replace('"c":3', '"c":30').replace('"c": 3', '"c": 30'))
    tokenizer = load_tokenizer(path)
    assert tokenizer.vocab_size == 31
    assert tokenizer.encode("c") == [30]


def test_special_tokens_that_a_file_does_not_mark_leave_no_trace_either(tmp_path):
    tokenizer = load_tokenizer(foreign(tmp_path, ["<pad>", "</s>"], "a", special=False))
    assert tokenizer.decode([2, 1, 3, 0, 0]) == "a b"
    assert tokenizer.encode("a </s> b") == [2, 3]


def test_special_tokens_may_be_named(tmp_path):
    path = foreign(tmp_path, ["(end)", "(pad)"], "a")
    with pytest.raises(DataError, match="no token that ends a sentence"):
        load_tokenizer(path)
    named = load_tokenizer(path, special={"eos": "(end)", "pad": "(pad)"})
    assert (named.eos, named.pad, named.bos) == (0, 1, 1)
    with pytest.raises(DataError, match=r"no token '\(stop\)' to be eos"):
        load_tokenizer(path, special={"eos": "(stop)"})
    with pytest.raises(DataError, match="'end': the roles are pad"):
        load_tokenizer(path, special={"end": "(end)"})


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_folder_without_a_name_is_no_tokenizer(path):
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        load_tokenizer(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_what_is_no_tokenizer_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.json: not a usable tokenizer\.json") as error:
        load_tokenizer(path)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such tokenizer file"):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("seed", range(60))
def test_t4_a_mutated_file_is_refused_or_still_works_and_a_checksum_tells(made, tmp_path, seed):
    path = tmp_path / "tokenizer.json"
    tokenizer = made[("bpe", "wordpiece", "unigram")[seed % 3]]
    tokenizer.save(path)
    draw = random.Random(seed)
    data = bytearray(path.read_bytes())
    where = draw.randrange(len(data))
    if seed % 4 == 0:
        data[where] ^= 1 << draw.randrange(8)
    elif seed % 4 == 1:
        del data[where : where + draw.randint(1, 50)]
    elif seed % 4 == 2:
        data[where : where + 2] = data[where : where + 2][::-1] + b'"'
    else:
        del data[where:]
    changed = bytes(data) != path.read_bytes()
    path.write_bytes(bytes(data))
    try:
        load_tokenizer(path).encode_batch(TEXTS)
    except DataError as error:
        assert "\n" not in str(error)  # noqa: PT017
    if changed:
        with pytest.raises(DataError, match="not the tokenizer that is expected"):
            load_tokenizer(path, sha256=tokenizer.sha256)


@pytest.mark.slow
def test_byte_level_words_are_those_of_gpt2_in_texts_without_marks():
    text = (
        "They're 3rd-rate, isn't it? L'été\u00a0à  Gdańsk…\n\n\tdef f(x): return x**2  # 42 ❤️\n"
        "日本語のテキスト。 Привет, мир! 한국어 a1b2 __init__ ²³ ½ \U0001f469\u200d\U0001f680 "
    )
    theirs = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ours = train_tokenizer("bpe", [text], 300)._backend.pre_tokenizer
    assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)
    hindi = "हिन्दी किताब"
    assert (len(ours.pre_tokenize_str(hindi)), len(theirs.pre_tokenize_str(hindi))) == (2, 11)
