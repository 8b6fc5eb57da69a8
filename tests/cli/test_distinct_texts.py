"""Lists of the best texts hold each text once, whatever its tokens, in every engine."""

import dataclasses
import json

import pytest

import transformer_jax
from tests.decoding.test_translator import EOS, SHAPES, Letters, letter_model
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.ngram import NgramLanguageModel
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.translator import Translator


class Twins(Letters):
    """Two tokens for each letter: texts of n letters have 2 ** n segmentations."""

    def decode(self, ids):
        return super().decode([i if i < 4 else 4 + (i - 4) // 2 for i in ids])


MANY = 8


@pytest.mark.slow
def test_repeated_texts_make_way_for_the_next_best():
    """The list is that of a search which keeps all hypotheses; more beams fill it up."""
    search = TRANSLATION.changed(
        num_beams=48, num_return_sequences=MANY, max_len_a=0.0, max_len_b=4
    )
    translator = Translator(letter_model(), Twins(), search=search, batching=SHAPES)
    lines = ["abc", "hgf", "", "d"]
    found = translator.translate(lines)
    wide = Translator(letter_model(), Letters(), batching=SHAPES)
    all_of = dataclasses.replace(search, num_return_sequences=search.num_beams)
    repeats, filled = 0, 0
    for line, done in zip(lines, found, strict=True):
        if not line:
            assert [one.text for one in done.hypotheses] == [""]
            continue
        texts = [one.text for one in done.hypotheses]
        assert len(set(texts)) == len(texts) == MANY
        [whole] = wide.translate([line], all_of)
        best = {}
        for one in whole.hypotheses:
            ids = [token for token in one.tokens if token != EOS]
            best.setdefault(Twins().decode(ids), one.score)
        if len(best) >= MANY:
            assert texts == list(best)[:MANY]
            assert [one.score for one in done.hypotheses] == pytest.approx([*best.values()][:MANY])
            filled += 1
        scores = [one.score for one in done.hypotheses]
        assert scores == sorted(scores, reverse=True)
        repeats += MANY - len({Twins().decode(one.tokens) for one in whole.hypotheses[:MANY]})
    assert filled
    assert repeats  # what search returns holds a text more than once


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "ctranslate2"])
def test_alternatives_of_a_translator_are_distinct(trained_run, lesson, engine):
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    model = transformer_jax.load(trained_run, engine=engine)
    for found in model([source for source, _ in lesson], num_beams=8, num_return_sequences=8):
        texts = [found, *found.alternatives]
        assert len(set(texts)) == len(texts) == 8
        assert found.score == max(text.score for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["jax", "ctranslate2"])
def test_beams_of_a_language_model_are_distinct(rotary_run, engine):
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    model = transformer_jax.load(rotary_run, engine=engine)
    settings = {"num_beams": 6, "num_return_sequences": 6, "max_new_tokens": 3}
    found = model.generate("a ", **settings)
    texts = [found, *found.alternatives]
    assert len(set(texts)) == len(texts) == 6


def test_beams_of_an_n_gram_model_are_distinct():
    tokenizer = train_tokenizer("bpe", ["abab abab ab"] * 9, 270)
    model = NgramLanguageModel.train(["abab", "ab ab", "abab ab"] * 5, tokenizer, order=2)
    request = GenerationRequest("a", max_new_tokens=4, num_beams=8, num_return_sequences=8)
    [found] = model.generate([request])
    texts = [one.text for one in found]
    assert len(set(texts)) == len(texts) == 8
    assert [one.log_prob for one in found] == sorted((one.log_prob for one in found), reverse=True)


@pytest.mark.slow
def test_n_best_commands_write_each_text_once(trained_run, lesson, run_command, tmp_path):
    source = f"{lesson[0][0]}\n"
    flags = ("translate", trained_run, "--num-beams", 8, "--num-return-sequences", 8)
    _, rows, _ = run_command(*flags, "--tsv", text=source)
    assert len({row.split("\t")[3] for row in rows[1:-1]}) == len(rows[1:-1]) == 8
    _, [line, _], _ = run_command(*flags, text=source)
    assert len(set(line.split("\t")[::2])) == 8


@pytest.mark.slow
def test_json_of_generate_holds_each_text_once(rotary_run, run_command):
    flags = ("generate", rotary_run, "a ", "--num-beams", 6, "--num-return-sequences", 6)
    code, lines, err = run_command(*flags, "--max-new-tokens", 3, "--json")
    assert code == 0, err
    texts = [json.loads(line) for line in lines if line]
    assert len({str(text) for text in texts}) == len(texts)
