"""``--engine ctranslate2`` decodes what ours decodes, or says by name what it does not have."""

import dataclasses
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.cli.conftest import LESSON, language_run
from tests.opened import engine_language, engine_translator, load, load_language
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.options import BatchingConfig, TranslationBatching
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.translator import Translator
from transformer_jax.functional import logits as processors
from transformer_jax.inference.engines import EngineConfig

pytest.importorskip("ctranslate2")

WORDS = sorted({word for source, _ in LESSON for word in source.split()})


@pytest.fixture(scope="module")
def lesson_run(trained_run, tmp_path_factory):
    """A run of its own, beside which exports may lie."""
    return shutil.copytree(trained_run, tmp_path_factory.mktemp("engine") / "lesson")


@pytest.fixture(scope="module")
def gpt2_run(tmp_path_factory):
    """Learned positions as GPT-2 has, and texts that begin with EOS."""
    return language_run(tmp_path_factory.mktemp("engine") / "gpt2", "bytes", "learned", "eos")


def lines_of_words(count):
    draw = random.Random(0)
    drawn = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]
    return [source for source, _ in LESSON] + drawn[len(LESSON) :]


SEARCHES = {
    "greedy": TRANSLATION.changed(num_beams=1, normalization="none"),
    "beams": TRANSLATION.changed(normalization="none"),
    "gnmt": TRANSLATION.changed(early_stopping="never"),
    "power": TRANSLATION.changed(normalization="power", early_stopping="never"),
    "num_return_sequences": TRANSLATION.changed(num_return_sequences=3, early_stopping="never"),
    # Beams may rank otherwise: an end that is not allowed yet has no probability there.
    "min_length": TRANSLATION.changed(num_beams=1, min_length=6),
    "short": TRANSLATION.changed(num_beams=1, max_len_a=0.5, max_len_b=3),
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.quick("beams")
def test_a_translator_writes_what_ours_writes(lesson_run, name):
    """200 lines that it mostly has not seen; those that a limit cuts end otherwise by beams."""
    search, lines = SEARCHES[name], lines_of_words(200)
    one_shape = TranslationBatching(source_lengths=(64,), rows=(32,))
    ours = Translator(*load(lesson_run), batching=one_shape)
    theirs = engine_translator(lesson_run)
    limits = [search.target_tokens(len(ids), ours.most) for ids in ours.encode(lines)[0]]
    compared = others = 0
    for limit, ours_, theirs_ in zip(
        limits, ours.translate(lines, search), theirs.translate(lines, search), strict=True
    ):
        pairs = list(zip(ours_.hypotheses, theirs_.hypotheses, strict=True))
        if search.num_beams > 1 and any(len(one.tokens) >= limit for one, _ in pairs):
            continue
        compared += 1
        one, other = pairs[0]
        assert one.tokens == other.tokens
        assert one.finish_reason == other.finish_reason
        others += all(a.tokens == b.tokens for a, b in pairs[1:])
        if not search.min_length:
            room = 0.02 * len(one.tokens)
            assert abs(one.score - other.score) < room
            assert abs(one.log_prob - other.log_prob) < room
    assert compared > (120 if search.num_return_sequences > 1 else 150)
    # Of further ones almost all: their probabilities leave out what is never written.
    assert others >= 0.97 * compared


@pytest.mark.quick("4")
@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_translation_depends_on_its_line_alone(lesson_run, num_beams):
    """Not on the lines of its batch, whose limits, which many reach, and lengths are others."""
    lines = [*lines_of_words(30), "", LESSON[0][0]]
    search = TRANSLATION.changed(num_beams=num_beams, max_len_a=0.3, max_len_b=3)
    theirs = engine_translator(lesson_run, search=search)
    together = theirs.translate(lines)
    for line, one in zip(lines, together, strict=True):
        [alone] = theirs.translate([line])
        assert alone.tokens == one.tokens
        assert np.isclose(alone.score, one.score, atol=1e-4)
    assert theirs.counts["empty"] == 2


@pytest.mark.quick("few1")
@pytest.mark.parametrize("few", [{"rows": (1,)}, {"tokens": 64}, {"window": 7}])
def test_batches_change_no_translation(lesson_run, few):
    lines = lines_of_words(20)
    found = [
        engine_translator(lesson_run, batching=TranslationBatching(**how)).translate(lines)
        for how in ({}, few)
    ]
    assert [one.text for one in found[0]] == [one.text for one in found[1]]


REQUESTS = {
    "greedy": {},
    "long": {"max_new_tokens": 40},  # beyond the context
    "stop": {"stop": ("a", "ef"), "max_new_tokens": 40},
    "samples": {"num_return_sequences": 2},
    "beams": {"num_beams": 3, "num_return_sequences": 1},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("kind", ["gpt2", "rotary", "decoder"])
def test_a_language_model_writes_what_ours_writes(request, kind, name):
    """200 prompts of many lengths, of a start token alone and beyond the context too."""
    run, settings = request.getfixturevalue(f"{kind}_run"), REQUESTS[name]
    depends = name in ("repetition_penalty", "no_repeat_ngram_size")
    if depends and (kind == "decoder" or (kind, name) == ("gpt2", "repetition_penalty")):
        pytest.skip("refused: the start token may be written")
    draw, most = random.Random(0), 12 if depends else 30
    prompts = ["".join(draw.choices("abcdefgh, ", k=draw.randint(0, most))) for _ in range(200)]
    given = {"max_new_tokens": 8} | ({} if "num_beams" in settings else {"temperature": 0})
    asked = [GenerationRequest(prompt, **given | settings) for prompt in prompts]
    shapes = BatchingConfig(rows=(32,), lengths=(32,), caches=(64,))
    ours = load_language(run, shapes=shapes).generate(asked)
    theirs = engine_language(run).generate(asked)
    same = sum(
        [(one.tokens, one.text, one.finish_reason) for one in a]
        == [(one.tokens, one.text, one.finish_reason) for one in b]
        for a, b in zip(ours, theirs, strict=True)
    )
    # Of beams not all: probabilities leave out what is never written, here a quarter of a
    # vocabulary of which nothing is learnt.
    assert same >= (170 if "num_beams" in settings else 200)
    assert len({found[0].text for found in ours}) > 10


def test_it_streams_what_it_generates(rotary_run):
    theirs = engine_language(rotary_run)
    asked = GenerationRequest("a c", max_new_tokens=60, temperature=0)
    parts = list(theirs.stream(asked))
    [[whole]] = theirs.generate([asked])
    assert len(parts) > 2
    assert "".join(parts) == whole.text
    left = theirs.stream(dataclasses.replace(asked, max_new_tokens=10**6))
    next(left)
    left.close()  # and generation ends


SAMPLINGS = {
    "temperature": {"temperature": 0.5},
    "top_k": {"top_k": 5},
    "top_k_of_all": {"top_k": 10**6},
    "top_p": {"top_p": 0.6},
    "all": {"temperature": 1.5, "top_k": 20, "top_p": 0.8},
    "cold": {"temperature": 1e-30},
}


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.slow
def test_samples_have_the_distribution_of_ours(decoder_run, name):
    """Temperature first, then the most probable tokens, then those that hold a probability."""
    settings, count = {"temperature": 1.0} | SAMPLINGS[name], 2000
    theirs = engine_language(decoder_run)
    asked = GenerationRequest("a c", max_new_tokens=1, num_return_sequences=count, **settings)
    [found] = theirs.generate([asked])
    ids = [one.tokens[0] for one in found]
    drawn = np.bincount(ids, minlength=theirs.vocab) / count
    [read] = theirs.tokenizer.encode_batch(["a c"])
    scores = [
        theirs.engine.log_probs([[*theirs.start.before, *read, id]])[0][-1]
        for id in range(theirs.vocab)
    ]
    scores = jnp.array(scores)[None].at[:, list(theirs.special.suppress_tokens)].set(-jnp.inf)
    scores = processors.temperature(scores, max(settings["temperature"], 1e-6))
    if "top_k" in settings:
        scores = processors.top_k(scores, min(settings["top_k"], theirs.vocab))
    if "top_p" in settings:
        scores = processors.top_p(scores, settings["top_p"])
    wanted = np.asarray(jax.nn.softmax(scores))[0]
    assert not drawn[wanted == 0].any()
    spread = np.sqrt(wanted * (1 - wanted) / count)
    assert (abs(drawn - wanted) <= 5 * spread + 1e-6).all()


@pytest.mark.slow
def test_samples_follow_from_the_seed(decoder_run, lesson_run):
    theirs = engine_language(decoder_run)
    draw = lambda seed: [
        one.tokens
        for found in theirs.generate(
            [
                GenerationRequest(p, max_new_tokens=9, seed=seed, temperature=3)
                for p in ("a", "b", "ab")
            ]
        )
        for one in found
    ]
    assert draw(1) == draw(1) != draw(2)
    assert len(set(draw(3))) == 3
    translator = engine_translator(lesson_run)
    hot = TRANSLATION.changed(num_beams=1, do_sample=True, temperature=3.0)
    sample = lambda seed: [
        one.tokens for one in translator.stream([LESSON[0][0]] * 2, hot.changed(seed=seed))
    ]
    assert sample(0) == sample(0) != sample(1)
    assert sample(0)[0] != sample(0)[1]


@pytest.mark.slow
def test_int8_keeps_the_lesson_and_its_scores_differ(learnt_run, tmp_path):
    run = shutil.copytree(learnt_run, tmp_path / "run")
    sources = [source for source, _ in LESSON]
    exact, rough = (
        engine_translator(run, engine=EngineConfig(compute)).translate(sources)
        for compute in ("float32", "int8")
    )
    assert [one.text for one in rough] == [target for _, target in LESSON]
    assert [one.score for one in rough] != [one.score for one in exact]
