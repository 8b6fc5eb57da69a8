"""A tokenizer that learns more characters and subwords: as if it had learned on; old text stays."""

import collections
import json
import random

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.added_tokens import add_tokens, tag_languages
from transformer_jax.data.coverage import text_coverage
from transformer_jax.data.extension import check_extensible, extend_tokenizer, joined_tokens
from transformer_jax.data.languages import Direction
from transformer_jax.data.piece_rules import UNKNOWN_TEXT, others_pattern
from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

LETTERS = "abcdeéßžлö日 "
ROLES = ("pad", "unk", "bos", "eos", "mask")


def texts_of(draw, count=60, letters=LETTERS):
    """Texts of a few words, some with blanks, marks and line breaks in unusual places."""
    words = ["".join(draw.choices(letters, k=draw.randint(1, 8))) for _ in range(30)]
    blanks = [" ", " ", " ", "  ", "\n", ", "]
    return [
        "".join(word + draw.choice(blanks) for word in draw.choices(words, k=draw.randint(0, 9)))
        for _ in range(count)
    ]


def sentencepiece_file(kind, texts, size):
    """A tokenizer like Llama's: the text is one word, with marks for blanks, and bytes beside."""
    del kind
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=size + 60, special_tokens=special, show_progress=False)
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(texts, trainer)
    file = json.loads(backend.to_str())
    file["added_tokens"] = file["added_tokens"][:3]
    marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    backend = tokenizers.Tokenizer.from_str(json.dumps(file | {"pre_tokenizer": None}))
    backend.normalizer = normalizers.Sequence(marks)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    return Tokenizer(backend.to_str())


def published_file(kind, texts, size, *, letters=LETTERS, rule=False):
    """A tokenizer like T5's (unigram) or NLLB's (bpe): it knows only its letters, and no bytes.

    With ``rule``, a run of other characters becomes one, as where pieces have numbers of their own.
    """
    special = ["<pad>", "</s>", "<unk>"]
    if kind == "unigram":
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False
        )
        backend = tokenizers.Tokenizer(models.Unigram())
    else:
        trainer = trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, show_progress=False, initial_alphabet=[]
        )
        backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator([text.replace("\n", " ") for text in texts], trainer)
    rules = [normalizers.NFC()]
    if rule:
        others = tokenizers.Regex(others_pattern({*letters, "▁", " ", ","}))
        rules.append(normalizers.Replace(others, UNKNOWN_TEXT))
    backend.normalizer = normalizers.Sequence(rules)
    backend.decoder = decoders.Metaspace()
    return Tokenizer(backend.to_str())


def merges_of(tokenizer):
    return json.loads(tokenizer.text)["model"]["merges"]


@pytest.mark.parametrize("seed", range(12))
def test_learning_continues(seed):
    """On the same text, the result is the tokenizer of a larger vocabulary."""
    draw = random.Random(seed)
    texts = texts_of(draw, draw.choice([5, 60, 300]))
    first, more = draw.randint(262, 340), draw.randint(0, 90)
    begun = train_tokenizer("bpe", texts, first)
    longer = extend_tokenizer(begun, texts, more)
    whole = train_tokenizer("bpe", texts, begun.vocab_size + more)
    assert merges_of(longer) == merges_of(whole)
    assert longer.encode_batch(texts) == whole.encode_batch(texts)


def extended(old, texts, most=40):
    """The tokenizer with new subwords of texts after its old tokens, and what each joins."""
    new = extend_tokenizer(old, texts, most)
    assert old.vocab_size < new.vocab_size <= old.vocab_size + most
    assert [new.name(i) for i in range(old.vocab_size)] == [*map(old.name, range(old.vocab_size))]
    assert [getattr(new, role) for role in ROLES] == [getattr(old, role) for role in ROLES]
    assert new.languages == old.languages
    return new, joined_tokens(new, old.vocab_size)


@pytest.mark.parametrize("seed", range(12))
def test_new_subwords_join_old_tokens(seed):
    draw = random.Random(seed)
    kind = draw.choice(["bpe", "bytes", "sentencepiece"])
    made = sentencepiece_file if kind == "sentencepiece" else train_tokenizer
    old = made(kind, texts_of(draw), 300)
    old = tag_languages(add_tokens(old, ["zeb"]), [Direction("de", "en")])
    new_text = texts_of(draw, letters="xyzžeb ")
    new, parts = extended(old, new_text)
    assert [*parts] == [*range(old.vocab_size, new.vocab_size)]
    texts = [*new_text, *texts_of(draw), "zeb <2de> <eos>"]
    for before, after in zip(old.encode_batch(texts), new.encode_batch(texts), strict=True):
        apart = [id for token in after for id in parts.get(token, (token,))]
        assert apart == before
        assert new.decode(after) == old.decode(before)
        if set(after).isdisjoint(parts):
            assert after == before
    count = lambda tokenizer: sum(map(len, tokenizer.encode_batch(new_text)))
    assert count(new) < count(old)
    # No subword is more than a word and the blanks before it.
    joined = (new.convert_ids_to_tokens([token])[0] for token in parts)
    assert all(" " not in name.lstrip(" ") for name in joined)


def test_a_subword_is_never_a_special_token():
    """Text may spell out what roles and languages are called."""
    old = tag_languages(train_tokenizer("bytes", []), [Direction("de", "en")])
    texts = ["<2de>", "</s>", "<mask>", "<extra_id_0>", "[PAD]", "<2en></s>"] * 9
    new = extend_tokenizer(old, texts, 200)
    assert [getattr(new, role) for role in ROLES] == [getattr(old, role) for role in ROLES]
    assert (new.mask, new.sentinels) == (None, ())
    assert new.languages == old.languages
    assert [new.decode(ids) for ids in new.encode_batch(texts)] == texts
    assert new.languages.ids.isdisjoint(id for ids in new.encode_batch(texts) for id in ids)
    assert new.vocab_size > old.vocab_size + 10


def test_a_file_holds_it_and_it_grows_again(tmp_path):
    draw = random.Random(0)
    old = add_tokens(train_tokenizer("bpe", texts_of(draw), 300), [], ["<|user|>"])
    once = extend_tokenizer(old, texts_of(draw, letters="xyz "), 9)
    twice = extend_tokenizer(add_tokens(once, ["covid"]), texts_of(draw, letters="uvw "), 9)
    twice.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json", special=twice.special)
    assert again.vocab_size == old.vocab_size + 19
    assert again.token_id("covid") == old.vocab_size + 9
    for text in ("xyzzy uvw covid <|user|>", *texts_of(draw)):
        assert again.encode(text) == twice.encode(text)
        assert again.decode(again.encode(text)) == text


def test_earlier_files_have_merges_as_text():
    draw = random.Random(1)
    texts = texts_of(draw)
    old = train_tokenizer("bpe", texts, 290)
    file = json.loads(old.text)
    file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
    new = extend_tokenizer(Tokenizer(json.dumps(file)), texts, 20)
    assert all(isinstance(merge, str) for merge in merges_of(new))
    assert new.encode_batch(texts) == extend_tokenizer(old, texts, 20).encode_batch(texts)
    assert joined_tokens(new, old.vocab_size) == joined_tokens(
        extend_tokenizer(old, texts, 20), old.vocab_size
    )


HINDI = ["नमस्ते दुनिया", "यह एक घर है", "दुनिया एक है", "घर यह है"]
GREEK = ["ένα σπίτι", "το σπίτι είναι ένα"]


@pytest.mark.parametrize("rule", [False, True], ids=["plain", "runs"])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_characters_that_nobody_knows_are_learned_first(kind, rule):
    """A script that a published vocabulary lacks: each word was one unknown token."""
    draw = random.Random(3)
    old = published_file(kind, texts_of(draw), 60, rule=rule)
    assert text_coverage(HINDI, old).share == 1
    new = extend_tokenizer(old, [*HINDI, *GREEK] * 4, 60)
    assert text_coverage([*HINDI, *GREEK], new).share == 0
    assert [new.decode(ids) for ids in new.encode_batch(HINDI)] == HINDI
    assert [new.name(i) for i in range(old.vocab_size)] == [*map(old.name, range(old.vocab_size))]
    assert new.vocab_size <= old.vocab_size + 60
    assert any(len(new.name(i)) > 2 for i in range(old.vocab_size, new.vocab_size))  # subwords too
    texts = texts_of(draw, letters="abcde")
    known = joined_tokens(new, old.vocab_size)
    for before, after in zip(old.encode_batch(texts), new.encode_batch(texts), strict=True):
        assert [i for one in after for i in known.get(one, (one,))] == before
    assert all(max(parts) < old.vocab_size for parts in known.values())
    few = extend_tokenizer(old, HINDI * 4, 5)
    assert few.vocab_size == old.vocab_size + 5
    counts = collections.Counter("".join(HINDI).replace(" ", ""))
    assert {few.name(old.vocab_size + i) for i in range(3)} <= {
        one for one, count in counts.items() if count >= counts.most_common(5)[-1][1]
    }


@pytest.mark.parametrize("seed", range(12))
def test_unigram_vocabularies_grow_by_what_their_pieces_make(seed):
    """Text has the same pieces as before once its new subwords are taken apart."""
    draw = random.Random(seed)
    old = published_file("unigram", texts_of(draw), 80)
    old = tag_languages(add_tokens(old, ["zeb"], ["<x>"]), [Direction("de", "en")])
    new_text = [text.replace("\n", " ") for text in texts_of(draw, letters="abcdeéßžl ")]
    new, parts = extended(old, new_text)
    letters = {*range(old.vocab_size, new.vocab_size)} - parts.keys()
    own = {new.name(id) for id in letters if len(new.name(id)) == 1}
    assert all({*new.name(id)} <= own for id in letters)
    texts = [*new_text, *(text.replace("\n", " ") for text in texts_of(draw))]
    for before, after in zip(old.encode_batch(texts), new.encode_batch(texts), strict=True):
        if old.unk in before:
            continue
        assert letters.isdisjoint(after)
        assert score(old, [i for one in after for i in parts.get(one, (one,))]) == pytest.approx(
            score(old, before), abs=0.05
        )
        assert new.decode(after) == old.decode(before)
    count = lambda tokenizer: sum(map(len, tokenizer.encode_batch(new_text)))
    assert count(new) < count(old)
    spelled = "zeb <2de> <x> </s>"
    assert new.decode(new.encode(spelled)) == old.decode(old.encode(spelled))
    assert new.languages.ids.isdisjoint(new.encode(spelled))
    twice = extend_tokenizer(new, new_text, 10)
    assert new.vocab_size < twice.vocab_size <= new.vocab_size + 10


def score(tokenizer, ids):
    """The log-probability of tokens in a unigram vocabulary; that of unknown ones is nothing."""
    pieces = json.loads(tokenizer.text)["model"]["vocab"]
    return sum(pieces[id][1] for id in ids if id not in tokenizer.special_ids and id < len(pieces))


@pytest.mark.parametrize("kind", ["wordpiece", "words", "characters"])
def test_other_kinds_are_refused(kind):
    refused = r"only byte-pair encodings and unigram .* of the kind Word.*add-tokens"
    with pytest.raises(ConfigError, match=refused):
        check_extensible(train_tokenizer(kind, ["a cat sat"] * 4, 300), 5)


def test_separate_vocabularies_of_sources_and_targets_are_refused():
    file = published_file("unigram", texts_of(random.Random(0)), 60).text
    with pytest.raises(ConfigError, match="one vocabulary for sources and one for targets"):
        check_extensible(Tokenizer(file, None, file), 5)


def test_a_unigram_vocabulary_of_bytes_grows():
    texts = ["low lower lowest", "ein Haus, ένα σπίτι"] * 3
    old = train_tokenizer("unigram", texts, 300)
    new = extend_tokenizer(old, HINDI * 4, 20)
    assert new.vocab_size > old.vocab_size
    assert [new.decode(ids) for ids in new.encode_batch([*texts, *HINDI])] == [*texts, *HINDI]
    assert sum(map(len, new.encode_batch(HINDI))) < sum(map(len, old.encode_batch(HINDI)))


def test_subwords_with_a_prefix_are_refused():
    file = json.loads(train_tokenizer("bytes", []).text)
    file["model"]["continuing_subword_prefix"] = "##"
    with pytest.raises(ConfigError, match="begin with '##' inside words: it cannot be extended"):
        check_extensible(Tokenizer(json.dumps(file)), 5)


def test_a_vocabulary_that_is_too_large_is_refused():
    with pytest.raises(ConfigError, match="at most 16,777,216 tokens, and this tokenizer has 260"):
        check_extensible(train_tokenizer("bytes", []), 1 << 24)
