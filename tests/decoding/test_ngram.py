"""Laws of an n-gram model that writes and scores text."""

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
import tokenizers
from scipy import stats
from tokenizers import decoders, models, pre_tokenizers

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.tokenizer import Tokenizer, train_tokenizer
from transformer_jax.decoding.ngram import NgramLanguageModel, process_probs, sample_token
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.models.ngram import AddK, NgramModel

TEXTS = ["abcab", "abba", "cabc", "bca", "aab", "é c"] * 3


@pytest.fixture(scope="module")
def model():
    tokenizer = train_tokenizer("characters", TEXTS, 9)
    return NgramLanguageModel.train(TEXTS, tokenizer, order=3)


@pytest.fixture(scope="module")
def pieces():
    """Over bytes: a character may be two tokens."""
    tokenizer = train_tokenizer("bpe", ["éa à la été, là"] * 3, 264)
    return NgramLanguageModel.train(["été à là é", "là été", "àé"] * 2, tokenizer, order=2)


def one(model, prompt="", **settings):
    return model.generate([GenerationRequest(prompt, **settings)])[0]


def steps(model, prompt, tokens):
    """The distribution that each token was drawn from."""
    before = model.tokenizer.encode(prompt)
    for token in tokens:
        yield token, model.model.distribution(before)
        before = [*before, token]


def test_b23_b24_scores_are_the_models_own(model):
    for order, prompts in ((3, ["", "ab", "c"]), (1, ["ab"])):
        small = NgramLanguageModel.train(TEXTS, model.tokenizer, order=order)
        for prompt in prompts:
            texts = ["abc", "", "é", "aé z"]
            for text, score in zip(texts, small.score(texts, [prompt] * 4), strict=True):
                ids = small.tokenizer.encode(text)
                wanted = [math.log(p[i]) for i, p in steps(small, prompt, ids)]
                assert score.tokens == tuple(ids)
                assert score.log_probs == pytest.approx(wanted, rel=1e-12)
                assert score.log_prob == pytest.approx(sum(wanted), rel=1e-12)
                assert (score.characters, score.bytes) == (len(text), len(text.encode()))
    assert model.score(["abc"]) == model.score(["abc"], [""])
    assert model.score([]) == []
    # A prompt matters as far as the model looks back.
    assert model.score(["abc"], ["c"])[0].log_prob != model.score(["abc"], ["b"])[0].log_prob
    assert model.score(["a"], ["bca"]) == model.score(["a"], ["aca"])


def test_a_text_and_its_end_sum_to_the_continuation(model):
    for answer in one(model, "ab", num_return_sequences=20, max_new_tokens=30):
        wanted = sum(math.log(p[i]) for i, p in steps(model, "ab", answer.tokens))
        assert answer.log_prob == pytest.approx(wanted, rel=1e-12)
        ended = answer.tokens[-1] == model.tokenizer.eos
        assert answer.finish_reason == ("end" if ended else "length")
        assert answer.text == model.tokenizer.decode(answer.tokens)
        assert model.tokenizer.eos not in answer.tokens[:-1]


def test_b34_greedy_takes_the_most_probable_token(model):
    (answer,) = one(model, "c", temperature=0.0, max_new_tokens=12)
    assert all(token == p.argmax() for token, p in steps(model, "c", answer.tokens))
    assert (
        one(model, "c", temperature=0.0, max_new_tokens=12, num_return_sequences=3, seed=8)
        == [answer] * 3
    )
    assert one(model, "c", temperature=1e-9, max_new_tokens=12) == [answer]


@pytest.mark.slow
def test_an_empty_prompt_begins_a_document(model):
    first = [answer.tokens[0] for answer in one(model, max_new_tokens=1, num_return_sequences=2000)]
    p = model.model.distribution([])
    p = np.where(np.arange(len(p)) == model.tokenizer.unk, 0, p)
    seen = np.bincount(first, minlength=len(p))
    kept = p > 0
    assert seen[~kept].sum() == 0
    assert stats.chisquare(seen[kept], 2000 * p[kept] / p.sum()).pvalue > 1e-3


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"temperature": 0.5}, lambda p: p**2),
        ({"temperature": 2.0}, lambda p: p**0.5),
        ({"top_k": 2}, lambda p: p * (p >= np.sort(p)[-2])),
        ({"top_p": 0.6}, lambda p: p * [np.sum(p[p > x]) < 0.6 for x in p]),
        ({"min_p": 0.3}, lambda p: p * (p >= 0.3 * p.max())),
        (
            {"repetition_penalty": 1.7},
            lambda p: p ** np.where(np.isin(np.arange(5), [1, 2]), 1.7, 1),
        ),
        ({"no_repeat_ngram_size": 2}, lambda p: p * (np.arange(5) != 1)),  # 2 was followed by 1
    ],
)
def test_b32_b33_b34_draws_follow_the_shaped_distribution(settings, shape):
    p = np.array([0.07, 0.4, 0.28, 0.15, 0.1])
    wanted = shape(p)
    wanted = wanted / wanted.sum()
    weights = process_probs(p, [2, 1, 2], GenerationRequest("", **settings))
    np.testing.assert_allclose(weights, wanted, rtol=1e-12)
    rng = np.random.default_rng(0)
    seen = np.bincount([sample_token(weights, rng.random()) for _ in range(3000)], minlength=5)
    kept = wanted > 0
    assert seen[~kept].sum() == 0
    assert stats.chisquare(seen[kept], 3000 * wanted[kept]).pvalue > 1e-3


def test_of_equals_the_earlier_stay_and_something_always_does():
    even = np.full(4, 0.25)
    kept = lambda **settings: process_probs(
        even, [0, 1, 0], GenerationRequest("", **settings)
    ).tolist()
    assert kept(top_k=2) == [0.5, 0.5, 0, 0]
    assert kept(top_p=0.5) == [0.5, 0.5, 0, 0]
    assert kept(top_p=1e-9) == kept(temperature=0.0) == kept(top_k=1) == [1, 0, 0, 0]
    assert kept(top_k=9) == kept(top_p=1.0) == kept(min_p=1.0) == [0.25] * 4
    # All that may follow was forbidden: then nothing is.
    only = process_probs(
        np.array([0.0, 1.0]), [1, 1], GenerationRequest("", no_repeat_ngram_size=1)
    )
    assert only.tolist() == [0, 1]
    assert sample_token(np.array([0.0, 1.0, 0.0]), 1 - 2**-53) == 1
    assert sample_token(np.array([0.0, 1.0, 0.0]), 0.0) == 1


def test_a_sample_depends_on_its_seed_and_number_alone(model):
    request = GenerationRequest("a", num_return_sequences=4, seed=3, max_new_tokens=20, number=0)
    alone = model.generate([request])[0]
    mates = [
        GenerationRequest("bc", num_return_sequences=2, seed=3),
        request,
        GenerationRequest("c", temperature=0.0),
    ]
    assert model.generate(mates)[1] == alone
    assert model.generate([dataclasses.replace(request, num_return_sequences=2)])[0] == alone[:2]
    assert len({answer.text for answer in alone}) > 1
    first, second = model.generate([dataclasses.replace(request, number=None)] * 2)
    assert first == alone
    assert [answer.text for answer in second] != [answer.text for answer in alone]
    other = model.generate([dataclasses.replace(request, seed=4)])[0]
    assert [answer.text for answer in other] != [answer.text for answer in alone]


def test_no_run_comes_twice(model):
    for n in (1, 2, 3):
        for answer in one(
            model, "ab", num_return_sequences=15, max_new_tokens=12, no_repeat_ngram_size=n
        ):
            ids = model.tokenizer.encode("ab") + list(answer.tokens)
            runs = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
            assert len(set(runs)) == len(runs)


@pytest.mark.parametrize("which", ["model", "pieces"])
@pytest.mark.parametrize("stop", [(), ("b",), ("ab", "ca"), ("té",), ("à l", "a")])
@pytest.mark.quick("stop0-model", "stop3-pieces", "stop4-model")
def test_streams_are_what_is_generated_and_end_before_a_stop(request, which, stop):
    model = request.getfixturevalue(which)
    for seed in range(25):
        asked = GenerationRequest("é", seed=seed, max_new_tokens=14, stop=stop, temperature=1.5)
        (answer,) = model.generate([asked])[0]
        assert "".join(model.stream(asked)) == answer.text
        assert not any(end in answer.text for end in stop)
        ids = model.tokenizer.encode("é")
        whole = model.tokenizer.decode([*ids, *answer.tokens])
        if answer.finish_reason == "stop":
            at = min(whole.find(end, 1) for end in stop if end in whole[1:])
            assert whole[1:at] == answer.text
        else:
            assert whole[1:] == answer.text
        assert answer.finish_reason != "length" or len(answer.tokens) == 14


def test_streams_come_in_pieces_and_hold_back_half_characters(pieces):
    for seed in range(5):
        asked = GenerationRequest(
            "", max_new_tokens=40, seed=seed, temperature=0.5, no_repeat_ngram_size=9
        )
        parts = list(pieces.stream(asked))
        assert all(parts)
        assert "\ufffd" not in "".join(parts[:-1])
        assert len(parts) >= len("".join(parts)) / 3


def test_prompts_are_continued_across_half_words():
    """The continuation is part of the prompt's word, not a text of its own."""
    tokenizer = train_tokenizer("wordpiece", ["walking walked talking talked"] * 5, 60)
    model = NgramLanguageModel.train(["walking talked"] * 4, tokenizer, order=3)
    prompt = tokenizer.decode(tokenizer.encode("walking")[:1])
    (answer,) = one(model, prompt, temperature=0.0)
    assert prompt + answer.text == "walking talked"
    assert "".join(model.stream(GenerationRequest(prompt, temperature=0.0))) == answer.text


def every_continuation(model, prompt, limit):
    """All that may be written, with its log-probability."""
    eos, unk = model.tokenizer.eos, model.tokenizer.unk
    found = {}
    for length in range(1, limit + 1):
        for tokens in itertools.product(range(model.model.vocab_size), repeat=length):
            ended = tokens[-1] == eos
            if eos in tokens[:-1] or unk in tokens or not (ended or length == limit):
                continue
            with np.errstate(divide="ignore"):
                found[tokens] = sum(np.log(p[i]) for i, p in steps(model, prompt, tokens))
    return sorted(found.items(), key=lambda item: -item[1])


def test_b31_a_wide_beam_is_exhaustive(model):
    best = every_continuation(model, "a", 3)
    answers = one(model, "a", max_new_tokens=3, num_beams=100, num_return_sequences=10)
    for answer, (tokens, log_prob) in zip(answers, best, strict=False):
        assert answer.log_prob == pytest.approx(log_prob, rel=1e-9)
        assert answer.tokens == tokens or log_prob == pytest.approx(best[1][1])
    assert len(answers) == len({answer.tokens for answer in answers}) == 10


def test_b31_greedy_is_far_from_optimal_where_beams_are_not():
    """p(a) = .5, p(b) = .4 with p(a | b) = .9: the best is "ba", and a beam of 2 finds it."""
    texts = ["ac"] * 20 + ["ad"] * 15 + ["ae"] * 15 + ["ba"] * 36 + ["bc"] * 4 + ["cc"] * 10
    tokenizer = train_tokenizer("characters", texts, 9)
    model = NgramLanguageModel.train(texts, tokenizer, order=3, smoothing=AddK(0))
    assert one(model, temperature=0.0, max_new_tokens=2)[0].text == "ac"
    (best,) = one(model, num_beams=2, max_new_tokens=2)
    assert (best.text, math.exp(best.log_prob)) == ("ba", pytest.approx(0.36))
    assert list(model.stream(GenerationRequest("", num_beams=2, max_new_tokens=2))) == ["ba"]
    first, second = one(model, num_beams=3, num_return_sequences=2, max_new_tokens=2)
    assert (first, math.exp(second.log_prob)) == (best, pytest.approx(0.2))


def test_a_search_goes_on_while_something_better_may_come():
    texts = ["ab"] * 9 + [""]  # an end is found at once, and is not the best
    tokenizer = train_tokenizer("characters", texts, 6)
    model = NgramLanguageModel.train(texts, tokenizer, order=3, smoothing=AddK(0))
    best, second = one(model, num_beams=2, num_return_sequences=2)
    assert (best.text, math.exp(best.log_prob)) == ("ab", pytest.approx(0.9))
    assert (second.text, math.exp(second.log_prob)) == ("", pytest.approx(0.1))
    assert one(model, num_beams=2) == [best]


def test_beams_obey_stops_and_limits(model):
    for beams in (2, 4):
        for tokens in (1, 2, 9):
            answers = one(
                model,
                "ab",
                num_beams=beams,
                num_return_sequences=2,
                max_new_tokens=tokens,
                stop=("b",),
            )
            assert answers == sorted(answers, key=lambda answer: -answer.log_prob)
            for answer in answers:
                assert "b" not in answer.text
                assert len(answer.tokens) <= tokens
                wanted = sum(math.log(p[i]) for i, p in steps(model, "ab", answer.tokens))
                assert answer.log_prob == pytest.approx(wanted)


def test_what_the_vocabulary_lacks_is_scored_and_never_written():
    texts = ["ab", "az", "aq"] * 5
    tokenizer = train_tokenizer("characters", ["ab"], 6)
    for smoothing in (None, AddK(0)):
        model = NgramLanguageModel.train(texts, tokenizer, order=2, smoothing=smoothing)
        assert model.score(["z"], ["a"])[0].log_prob > math.log(0.4)
        for answer in one(model, "a", num_return_sequences=30, max_new_tokens=3) + one(
            model, "a", num_beams=3, num_return_sequences=3
        ):
            assert tokenizer.unk not in answer.tokens
            assert not {tokenizer.pad, tokenizer.bos} & set(answer.tokens)


def test_an_end_that_is_also_padding_and_start_is_predicted():
    """GPT-2's tokenizer has one special token for all three."""
    backend = tokenizers.Tokenizer(models.WordLevel({"<|endoftext|>": 0, "a": 1, "b": 2}, "a"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = Tokenizer(backend.to_str())
    assert tokenizer.pad == tokenizer.bos == tokenizer.eos == 0
    model = NgramLanguageModel.train(["ab"] * 9, tokenizer, order=2)
    assert one(model, "a", temperature=0.0)[0] == one(model, "a", num_beams=3)[0]
    assert one(model, "a", temperature=0.0)[0].tokens == (2, 0)


def test_a_model_of_another_vocabulary_is_refused(model):
    other = train_tokenizer("bytes", [])
    with pytest.raises(ConfigError, match="has 260 tokens but the model 9"):
        NgramLanguageModel(model.model, other)
    with pytest.raises(ConfigError, match="2 texts but 1 prompt:"):
        model.score(["a", "b"], ["c"])


def test_a_saved_model_writes_the_same(model, tmp_path):
    model.model.save(tmp_path / "ngram.npz")
    again = NgramLanguageModel(NgramModel.load(tmp_path / "ngram.npz"), model.tokenizer)
    asked = GenerationRequest(
        "a", num_return_sequences=5, max_new_tokens=random.Random(0).randint(9, 20)
    )
    assert again.generate([asked]) == model.generate([asked])
