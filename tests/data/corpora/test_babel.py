"""Laws of the artificial languages: round trip, one translation each, disjoint splits, overlap."""

import itertools
import subprocess
import sys

import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.corpora import babel
from transformer_jax.data.corpora.babel import babel_pairs, training_counts
from transformer_jax.data.corpora.babel_languages import CONCEPTS, LANGUAGES, VALUES
from transformer_jax.data.languages import Direction
from transformer_jax.data.sources import PairData, ReadOptions, load_splits, parallel_texts

SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def drawn():
    return [meaning for split in SPLITS for meaning in babel.meanings(split, 150)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_sentence_has_one_meaning_and_a_meaning_one_sentence(drawn, language):
    sentences = [babel.express(meaning, language) for meaning in drawn]
    assert [babel.parse(sentence, language) for sentence in sentences] == drawn
    assert len({*sentences}) == len({*drawn}) == len(drawn)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_word_has_one_reading(language):
    words = [word for word, _ in LANGUAGES[language].forms()]
    assert len({*words}) == len(words)
    assert {form.concept for _, form in LANGUAGES[language].forms()} - {"not"} == {
        *itertools.chain(*CONCEPTS.values())
    }


def test_every_small_difference_of_meaning_shows_in_every_language(drawn):
    def variants(meaning):
        for tense, polarity in itertools.product(VALUES["tense"], VALUES["polarity"]):
            for number in VALUES["number"]:
                subject = babel.Phrase(meaning.subject.noun, number, meaning.subject.adjective)
                yield babel.Meaning(
                    meaning.verb, tense, polarity, subject, meaning.object, meaning.relation,
                    meaning.place,
                )  # fmt: skip

    for meaning, language in itertools.product(drawn[::50], LANGUAGES):
        sentences = [babel.express(variant, language) for variant in variants(meaning)]
        assert len({*sentences}) == len(sentences) == 12


def test_orders_and_agreements_of_the_languages():
    kings = babel.Phrase("king", "plural", "old")
    meaning = babel.Meaning(
        "see", "past", "negated", kings, babel.Phrase("dog", "singular"), "near",
        babel.Phrase("house", "singular", "red"),
    )  # fmt: skip
    kinds = {}
    for code in LANGUAGES:
        readings = dict(LANGUAGES[code].forms())
        forms = [readings[word] for word in babel.express(meaning, code).split()]
        kinds[code] = " ".join(form.concept for form in forms)
        by_concept = {form.concept: form.features for form in forms}
        for noun, adjective in (("king", "old"), ("house", "red")):
            for feature in by_concept[adjective]:
                assert by_concept[adjective][feature] == by_concept[noun][feature]
        for feature in {"number", "class"} & {*by_concept["see"]} & {*by_concept["king"]}:
            assert by_concept["see"][feature] == by_concept["king"][feature]
    assert kinds == {
        "a": "old king not see dog near red house",
        "b": "king old house red near dog see",
        "c": "not see king old dog near house red",
        "d": "red house near dog see old king not",
    }


@pytest.mark.parametrize(
    "sentence",
    ["", "puki", "unknown word", "{} {}", "{} ", " {}"],
)
def test_what_the_language_does_not_make_has_no_meaning(drawn, sentence):
    assert babel.parse(sentence.format(*[babel.express(drawn[0], "a")] * 2), "a") is None


def test_a_word_out_of_agreement_has_no_meaning():
    cats = babel.Phrase("cat", "plural", "good")
    words = babel.express(babel.Meaning("run", "past", "affirmed", cats), "c").split()
    assert babel.parse(" ".join(words), "c")
    wrong = LANGUAGES["c"].word("adjective", "good", {"class": "1", "number": "plural"})
    assert wrong not in words
    assert babel.parse(" ".join([*words[:-1], wrong]), "c") is None


def test_fewer_are_the_beginning_of_more_and_the_seed_decides():
    more = babel.meanings("test", 60)
    assert babel.meanings("test", 20) == more[:20]
    assert babel.meanings("test", 20, seed=1) != more[:20]
    assert len({*more}) == 60


def test_splits_are_disjoint_whatever_the_seed():
    for seed in (0, 1):
        for split in SPLITS:
            assert {babel.split_of(m) for m in babel.meanings(split, 100, seed)} == {split}


@pytest.mark.parametrize("overlap", [0.0, 0.25, 1.0])
def test_pairs_share_the_meanings_of_the_overlap_and_no_other(overlap):
    sizes = [80, 40, 60]
    texts = babel.training_meanings(sizes, overlap)
    assert [len({*text}) for text in texts] == sizes
    for first, second in itertools.combinations(texts, 2):
        assert len({*first} & {*second}) == overlap * 40
    assert {*texts[0]}.isdisjoint(babel.meanings("test", 100))


def test_impossible_requests_are_refused(monkeypatch):
    with pytest.raises(ConfigError, match="the splits are train, valid, test"):
        babel.meanings("test", -1)
    monkeypatch.setattr(babel, "_PATIENCE", 3)
    monkeypatch.setattr(babel, "split_of", lambda meaning: "train")
    with pytest.raises(DataError, match="not 5: ask for fewer"):
        babel.meanings("test", 5)


@pytest.mark.slow
def test_the_same_texts_in_another_process():
    code = (
        "from transformer_jax.data.corpora import babel;"
        "print([babel.express(m, 'd') for m in babel.meanings('train', 30, 3)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1


def directions(*names):
    return {Direction.parse(name): count for name, count in names}


def test_pairs_of_directions_are_true_translations_of_disjoint_splits():
    counts = directions(("a-b", 30), ("b-a", 20), ("b-c", 10))
    train, valid, tests = babel_pairs(counts, overlap=0.5)
    assert {way: len(part) for way, part in train.by_direction().items()} == counts
    assert list(tests) == ["test a-b", "test b-a", "test b-c"]
    meanings = []
    for part in (train, valid, *tests.values()):
        for source, target, way in zip(part.sources, part.targets, part.directions, strict=True):
            assert babel.translate(source, *way) == target
        meanings.append({babel.parse(text, way.source) for text, way in _sources(part)})
    assert len(meanings[0]) == 30 + 10 - 5
    for first, second in itertools.combinations(meanings[:3], 2):
        assert first.isdisjoint(second)
    assert meanings[2] == meanings[3] == meanings[4]


def _sources(pairs):
    return zip(pairs.sources, pairs.directions, strict=True)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ({"a-e": "5"}, "data.pairs a-e: the languages of babel are a, b, c, d"),
        ({"a-b": "train.tsv"}, "a-b=train.tsv: babel needs the number of pairs, 1 to 1,000,000"),
        ({"a-b": "0"}, "a-b=0: babel needs the number of pairs"),
        ({"a-b": "99999999"}, "babel needs the number of pairs, 1 to 1,000,000, such as"),
    ],
)
def test_unknown_languages_and_counts_are_refused(pairs, message):
    with pytest.raises(ConfigError, match=message):
        training_counts({Direction.parse(name): count for name, count in pairs.items()})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "babel needs data.pairs, the number of pairs of each direction, such as a-b=10000"),
        ({"pairs": "x.tsv"}, "babel needs data.pairs, the number of pairs of each direction"),
        ({"pairs": ("a-b=5",), "tfds": "x"}, "data is given in more than one way"),
    ],
)
def test_settings_without_numbers_of_pairs_are_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        PairData(corpus="babel", **data)


def test_an_overlap_of_other_texts_than_babel_is_refused():
    with pytest.raises(ConfigError, match="corpus_overlap is for data"):
        PairData(pairs=("a-b=x.tsv",), read=ReadOptions(corpus_overlap=0.5))


def test_all_languages_have_the_test_sentences_of_each_direction():
    data = PairData(corpus="babel", pairs=("a-b=5", "b-c=5"))
    splits, texts = load_splits(data), parallel_texts(data)
    assert list(texts) == list(LANGUAGES)
    for name, pairs in splits.tests.items():
        source, target = name.removeprefix("test ").split("-")
        assert (pairs.sources, pairs.targets) == (texts[source], texts[target])
    assert parallel_texts(PairData(corpus="phrasebook")) == {}
