"""Directions and tags of languages: which tokens stand where, and what is refused."""

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.added_tokens import add_tokens
from transformer_jax.data.languages import Direction, LanguageTags
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer

TAGS = {"de": 7, "en": 8, "cs": 9}
PLACEMENTS = {
    "source": (("to",), (2,), ()),
    "target": ((), (2,), ("to",)),
    "none": ((), (2,), ()),
    "mbart": (("from",), (2,), ("to",)),
    "legacy": ((), (2, "from"), ("to",)),
}


@pytest.mark.parametrize(
    ("placement", "frame"),
    [
        ("source", ((9,), (2,), ())),
        ("target", ((), (2,), (9,))),
        ("none", ((), (2,), ())),
        ("mbart", ((7,), (2,), (9,))),
        ("legacy", ((), (2, 7), (9,))),
    ],
)
def test_the_tokens_of_a_direction_stand_where_the_templates_say_and_are_stored_with_them(
    placement, frame
):
    tags = LanguageTags(TAGS, *PLACEMENTS[placement], directions=frozenset([Direction("de", "en")]))
    stored = LanguageTags.of(tags.to_dict(str), int)
    assert stored == tags
    assert stored.frame(Direction("de", "cs")) == frame
    assert len(frame[2]) == stored.size_of_begins
    assert len(frame[0]) + len(frame[1]) == stored.size_of_sides
    assert stored.is_trained(Direction("de", "en")) > stored.is_trained(Direction("de", "cs"))


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        (Direction("de", None), "--to is missing: allowed are en, cs"),
        (
            Direction("de", "fr"),
            "--to: fr is not a target language of this model: allowed are en, cs",
        ),
        (Direction("de", "de"), "--to: de is not a target"),
        (Direction(None, "en"), "--from is missing: allowed are de, en, cs"),
        (Direction("xx", "en"), "--from: xx is not a source language"),
    ],
)
def test_an_unknown_or_missing_language_is_refused_with_what_is_allowed(direction, message):
    tags = LanguageTags(TAGS, *PLACEMENTS["mbart"], targets=("en", "cs"))
    with pytest.raises(ConfigError, match=message):
        tags.frame(direction)


def test_a_language_that_follows_need_not_be_named():
    tags = LanguageTags(TAGS, *PLACEMENTS["mbart"], targets=("cs",), default=Direction("en"))
    assert tags.frame(Direction()) == ((8,), (2,), (9,))
    assert LanguageTags(TAGS, *PLACEMENTS["none"]).frame(Direction()) == ((), (2,), ())


@pytest.mark.parametrize("name", ["de", "de-", "-en", "de-en-cs", "de en", "de-de", "d/e-en", ""])
def test_a_malformed_pair_is_refused(name):
    with pytest.raises(ConfigError, match=r"data\.pairs: the pair"):
        Direction.parse(name, "data.pairs")


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {"tags": []},
        {"tags": {"de": "x"}, "before": [], "after": [], "begins": []},
        {"tags": {"de": "7"}, "before": [{"language": "of"}], "after": [], "begins": []},
        {"tags": {}, "before": [], "after": [], "begins": [], "directions": ["de"]},
        {"tags": {}, "before": [], "after": [], "begins": [], "default": ["de", "en", "cs"]},
    ],
)
def test_damaged_languages_are_refused(fields):
    with pytest.raises(DataError, match="damaged"):
        LanguageTags.of(fields, int)


@pytest.mark.parametrize("kind", ["special", "words"])  # a file may list tags as either
def test_a_tokenizer_keeps_its_tags_out_of_text_and_through_more_tokens(kind):
    plain = add_tokens(train_tokenizer("bytes", []), **{kind: ["<2de>", "<2en>"]})
    names = {"de": "<2de>", "en": "<2en>"}
    stored = {"tags": names, "before": [{"language": "to"}], "after": ["<eos>"], "begins": []}
    tokenizer = Tokenizer(plain.text, {"languages": stored})
    assert tokenizer.languages.frame(Direction(target="de")).before == (tokenizer.vocab_size - 2,)
    text = tokenizer.encode("<2de> Haus")
    assert not tokenizer.languages.ids & set(text)
    spelled = {"special": "<2de> Haus", "words": " Haus"}[kind]  # a word is a token, or unknown
    assert tokenizer.decode([tokenizer.token_id("<2de>"), *text]) == spelled
    assert add_tokens(tokenizer, special=["<new>"]).languages == tokenizer.languages
    with pytest.raises(DataError, match="no token '<2de>'"):
        Tokenizer(train_tokenizer("bytes", []).text, {"languages": stored})
