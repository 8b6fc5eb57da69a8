"""Tokens that are added to a tokenizer: text has them or does not, and all else stays."""

import json

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.added_tokens import add_tokens
from transformer_jax.data.tokenizer import BERT_SPECIAL, Tokenizer, load_tokenizer, train_tokenizer

TEXTS = ["the cat sat on the mat", "a dog ran to the river"] * 4
KINDS = ("bpe", "wordpiece", "unigram", "bytes", "characters")
ROLES = ("pad", "unk", "bos", "eos", "mask")


@pytest.fixture(scope="module", params=KINDS)
def learnt(request):
    return train_tokenizer(request.param, TEXTS, 320)


def test_new_ids_follow_and_other_text_stays(learnt):
    grown = add_tokens(learnt, ["covid"], ["<|user|>", "<|end|>"])
    assert [grown.token_id(token) for token in ("covid", "<|user|>", "<|end|>")] == [
        *range(learnt.vocab_size, learnt.vocab_size + 3)
    ]
    assert grown.vocab_size == learnt.vocab_size + 3
    assert grown.encode_batch(TEXTS) == learnt.encode_batch(TEXTS)
    assert [getattr(grown, role) for role in ROLES] == [getattr(learnt, role) for role in ROLES]


def test_text_becomes_a_word_and_never_a_special_token(learnt):
    grown = add_tokens(learnt, ["covid"], ["<|user|>"])
    assert learnt.vocab_size in grown.encode("the covid cat")
    assert "covid" in grown.decode(grown.encode("the covid cat"))
    spelled = grown.encode("the <|user|> cat")
    assert grown.token_id("<|user|>") not in spelled
    assert spelled == learnt.encode("the <|user|> cat")
    assert grown.decode([grown.token_id("<|user|>")]) == ""


def test_a_file_holds_them(learnt, tmp_path):
    grown = add_tokens(learnt, ["covid"], ["<|user|>"])
    grown.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json", special=grown.special)
    assert again.sha256 == grown.sha256
    assert again.encode("a covid cat") == grown.encode("a covid cat")


def test_tokens_that_are_there_stay(learnt):
    assert add_tokens(learnt, [learnt.name(learnt.eos)]) is learnt
    once = add_tokens(learnt, ["covid"])
    assert add_tokens(once, ["covid"]) is once


def test_a_role_keeps_its_token():
    """Also where a token is added that would else be the first choice."""
    bert = train_tokenizer("wordpiece", TEXTS, 60, special=BERT_SPECIAL)
    grown = add_tokens(bert, [], ["<s>", "</s>", "<pad>"])
    assert [getattr(grown, role) for role in ROLES] == [getattr(bert, role) for role in ROLES]
    assert grown.special["bos"] == "[CLS]"


def test_what_cannot_be_added_exactly_is_refused():
    with pytest.raises(ConfigError, match="empty"):
        add_tokens(train_tokenizer("bytes", TEXTS), [""])
    file = json.loads(train_tokenizer("characters", TEXTS, 320).text)
    file["model"]["vocab"]["t"] = 100  # a hole, into which the library would put new tokens
    with pytest.raises(ConfigError, match="cannot be added to this tokenizer exactly"):
        add_tokens(Tokenizer(json.dumps(file)), ["covid"])


def test_further_ends_of_texts_stay_with_more_tokens():
    plain = add_tokens(train_tokenizer("bytes", []), special=["<stop>"])
    tokenizer = Tokenizer(plain.text, {"ends": ["<stop>"]})
    assert add_tokens(tokenizer, special=["<new>"]).end_tokens == tokenizer.end_tokens
    assert len(tokenizer.end_tokens) == 2
