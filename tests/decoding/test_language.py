"""From prompts to texts: company, padding, shapes and pieces leave no trace in what is written."""

import collections
import copy
import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from tests.drawing import drawn
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.options import BatchingConfig
from transformer_jax.decoding.requests import GenerationRequest, numbered
from transformer_jax.decoding.windowed_generation import TextStart
from transformer_jax.decoding.windows import windows
from transformer_jax.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
)
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.placement import split_model
from transformer_jax.training.adapter_parts import Adapter, merge_adapter, with_choice

CONTEXT = 24
PROMPTS = ["abc", "jello, jello", "", "abcdefghijklm", "a b c d e f g h i j k l m n o p a b c d"]


@functools.cache
def tokenizer():
    return train_tokenizer("characters", ["abcdefghij, klmnop\n"], 100)


@functools.cache
def parts(kind="learned"):
    config = dataclasses.replace(
        PRESETS["llama_style"] if kind == "rope" else PRESETS["nanogpt_char"],
        vocab_size=tokenizer().vocab_size,
        d_model=32,
        decoder_layers=2,
        attention=AttentionConfig(num_heads=4),
        feed_forward=FeedForwardConfig(d_ff=64),
        norm=NormConfig(placement="pre", residual_dropout=0.5),
        positions=PositionConfig(kind=kind, max_length=CONTEXT),
    )
    # Far from uniform, so that the most probable token is never a matter of rounding.
    return drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)), seed=3)


# One shape for all, so that little is compiled.
FEW = {"rows": (8,), "lengths": (24,), "caches": (64,)}
DEFAULT = dataclasses.asdict(BatchingConfig())


@functools.cache
def model(kind="learned", **shapes):
    shapes = BatchingConfig(**(FEW | shapes))
    return DecoderLanguageModel(parts(kind), tokenizer(), shapes=shapes)


def greedy(tokens=40, **more):
    return [
        GenerationRequest(prompt, max_new_tokens=tokens, temperature=0, **more)
        for prompt in PROMPTS
    ]


def written(found):
    return [[one.tokens for one in each] for each in found]


@functools.cache
def forward(kind="learned"):
    """Logits after each token, compiled."""
    graph, params = parts(kind)
    run = jax.jit(lambda params, tokens: nnx.merge(graph, params)(tokens))
    return functools.partial(run, params)


@functools.cache
def slowly(kind, prompt, tokens):
    """Greedy decoding by the full forward pass of all that is read, one token after another."""
    special = tokenizer()
    read = [special.bos, *special.encode_batch([prompt])[0]][-CONTEXT:]
    out, worth = [], 0.0
    for _ in range(tokens):
        if len(read) > CONTEXT:
            read = read[-CONTEXT // 2 :]
        rows = np.zeros((1, CONTEXT), np.int32)
        rows[0, : len(read)] = read
        logits = np.array(forward(kind)(rows))[0, len(read) - 1]
        log_probs = logits - np.log(np.exp(logits).sum())
        log_probs[[special.pad, special.bos, special.unk]] = -np.inf
        out.append(int(log_probs.argmax()))
        worth += float(log_probs.max())
        read = [*read, out[-1]]
        if out[-1] == special.eos:
            break
    return tuple(out), worth


@pytest.mark.parametrize("kind", ["learned", pytest.param("rope", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_texts_are_those_of_slow_greedy_decoding(kind):
    """Cache = full forward, contexts that fill up and slide among them (row B30)."""
    found = model(kind).generate(greedy())
    for prompt, [one] in zip(PROMPTS, found, strict=True):
        tokens, worth = slowly(kind, prompt, 40)
        assert one.tokens == tokens, prompt
        assert one.log_prob == pytest.approx(worth, abs=1e-3)
        assert one.finish_reason == ("end" if tokens[-1] == tokenizer().eos else "length")


@pytest.mark.slow
def test_neither_company_nor_order_leaves_a_trace():
    """Left padding and batch mates are invisible.

    A draw depends on its seed and the number of its request.
    """
    drawn = (dataclasses.replace(request, temperature=1.2, seed=7) for request in greedy())
    requests = numbered([*greedy(), *drawn])
    together = written(model().generate(requests))
    backwards = written(model().generate(requests[::-1]))[::-1]
    assert together == backwards
    alone = model(rows=(1,), lengths=(16,))
    assert written(alone.generate([requests[7]]))[0] == together[7]


@pytest.mark.slow
def test_shapes_leave_no_trace():
    drawn = (dataclasses.replace(request, temperature=1.2, seed=7) for request in greedy())
    requests = numbered([*greedy(), *drawn])
    others = model(rows=(3,), lengths=(40,), caches=(12, 17, 90), chunk=5)
    for shapes in (DEFAULT, FEW):
        assert written(others.generate(requests)) == written(model(**shapes).generate(requests))


@pytest.mark.slow
def test_a_text_in_pieces_is_the_whole_text():
    drawn = GenerationRequest("ab", max_new_tokens=60, seed=3, stop=("n", "ab"))
    requests = numbered([*greedy(stop=("j",)), drawn])
    for request, [one] in zip(requests, model().generate(requests), strict=True):
        pieces = list(model().stream(request))
        assert "".join(pieces) == one.text
        if one.finish_reason == "stop":
            assert not any(word in one.text for word in request.stop)


@pytest.mark.slow
def test_stop_strings_cut_what_is_written_without_them():
    [[free]] = model().generate([GenerationRequest("abc", max_new_tokens=40, temperature=0)])
    word = free.text[10:12]
    [[cut]] = model().generate(
        [GenerationRequest("abc", max_new_tokens=40, temperature=0, stop=(word,))]
    )
    assert cut.text == free.text[: free.text.find(word)]
    assert cut.finish_reason == "stop"
    assert free.tokens[: len(cut.tokens)] == cut.tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "draft"),
    [
        ("learned", 4),
        ("rope", 1),
        pytest.param("learned", 1, marks=pytest.mark.slow),
        pytest.param("rope", 4, marks=pytest.mark.slow),
    ],
)
def test_speculation_changes_no_token(kind, draft):
    fast = model(kind, num_draft_tokens=draft)
    for slow, quick in zip(model(kind).generate(greedy()), fast.generate(greedy()), strict=True):
        assert quick[0].tokens == slow[0].tokens
        assert quick[0].log_prob == pytest.approx(slow[0].log_prob, abs=1e-3)
        assert quick[0].finish_reason == slow[0].finish_reason
    assert 0 < fast.counts["steps"] < fast.counts["tokens"]


@pytest.mark.slow
def test_samples_differ_and_are_the_same_again():
    request = GenerationRequest("ab", max_new_tokens=12, num_return_sequences=3, seed=1)
    [first], [again] = (written(model().generate([request])) for _ in range(2))
    assert first == again
    assert len(set(first)) == 3
    assert written(model().generate([dataclasses.replace(request, seed=2)]))[0] != first


def test_no_two_prompts_of_a_call_draw_the_same():
    """Equal prompts and seeds are two texts, each what it would be alone by its number."""
    request = GenerationRequest("ab", max_new_tokens=12, seed=1)
    both = written(model().generate([request] * 2))
    assert both[0] != both[1]
    for number, text in enumerate(both):
        again = model().generate([dataclasses.replace(request, number=number)])
        assert written(again) == [text]


@pytest.mark.slow
def test_log_probabilities_are_of_the_model_whatever_the_sampling():
    request = GenerationRequest(
        "abc", max_new_tokens=9, temperature=0.3, top_k=4, repetition_penalty=1.5, seed=5
    )
    [[one]] = model().generate([request])
    known = [tokenizer().bos, *tokenizer().encode_batch(["abc"])[0]]
    [values] = model().log_probs([one.tokens], [known])
    assert one.log_prob == pytest.approx(sum(values), abs=1e-4)


@pytest.mark.slow
def test_penalties_hold_for_greedy_texts_too():
    [[one]] = model().generate(
        [GenerationRequest("abab", max_new_tokens=30, temperature=0, no_repeat_ngram_size=2)]
    )
    read = tokenizer().encode_batch(["abab"])[0]
    pairs = list(zip([*read, *one.tokens], [*read, *one.tokens][1:], strict=False))
    new = pairs[len(read) - 1 :]
    assert len(new) == len(set(new))
    assert not set(new) & set(pairs[: len(read) - 1])
    [[much]] = model().generate(
        [GenerationRequest("abab", max_new_tokens=12, temperature=0, repetition_penalty=1e6)]
    )
    assert len(set(much.tokens)) == len(much.tokens)


COMBINATIONS = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.1},
    "penalty": {"repetition_penalty": 3.0},
    "ngram": {"no_repeat_ngram_size": 1},
    "all": {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.02,
            "repetition_penalty": 1.4, "no_repeat_ngram_size": 2},
}  # fmt: skip


@pytest.mark.parametrize("settings", COMBINATIONS.values(), ids=COMBINATIONS)
@pytest.mark.slow
def test_frequencies_of_draws_are_those_of_the_distribution(settings):
    """Rows B32-B34: chi-square of first tokens against probabilities worked out by hand."""
    count, prompt, special = 3000, "abcabda", tokenizer()
    request = GenerationRequest(
        prompt, max_new_tokens=1, num_return_sequences=count, seed=11, **settings
    )
    found = [one.tokens[0] for one in model(rows=(500,)).generate([request])[0]]
    read = [special.bos, *special.encode_batch([prompt])[0]]
    logits = np.array(forward()(np.array([read])))[0, -1]
    expected = by_hand(logits.astype(np.float64), read, settings)
    observed = np.bincount(found, minlength=len(expected))
    assert not observed[expected == 0].any()
    likely = expected * count >= 5
    rest = (observed[~likely].sum(), expected[~likely].sum() * count)
    seen, due = list(observed[likely]), list(expected[likely] * count)
    if rest[1] > 0:
        seen, due = [*seen, rest[0]], [*due, rest[1]]
    assert stats.chisquare(seen, due).pvalue > 1e-4


def by_hand(logits, read, settings):
    special = tokenizer()
    if penalty := settings.get("repetition_penalty"):
        for token in set(read):
            logits[token] = (
                logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
            )
    n = settings.get("no_repeat_ngram_size", 0)
    for i in range(len(read) - n + 1 if n else 0):
        if read[i : i + n - 1] == read[len(read) - n + 1 :]:
            logits[read[i + n - 1]] = -np.inf
    logits[[special.pad, special.bos, special.unk]] = -np.inf
    logits = logits / settings.get("temperature", 1.0)
    if k := settings.get("top_k"):
        logits[logits < np.sort(logits)[-k]] = -np.inf
    softmax = lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    if p := settings.get("top_p"):
        likely = softmax(logits)
        order = np.argsort(-likely)
        before = np.cumsum(likely[order]) - likely[order]
        logits[order[before >= p]] = -np.inf
    if p := settings.get("min_p"):
        likely = softmax(logits)
        logits[likely < p * likely.max()] = -np.inf
    return softmax(logits)


@pytest.mark.slow
def test_beams_find_what_is_more_probable_and_tell_the_truth_about_it():
    request = GenerationRequest("abcab", max_new_tokens=5, num_beams=6, num_return_sequences=4)
    [[plain]] = model().generate(
        [dataclasses.replace(request, num_beams=1, num_return_sequences=1, temperature=0)]
    )
    [found] = model().generate([request])
    assert [one.log_prob for one in found] == sorted((o.log_prob for o in found), reverse=True)
    assert len({one.tokens for one in found}) == 4
    known = [tokenizer().bos, *tokenizer().encode_batch(["abcab"])[0]]
    for one in found:
        [values] = model().log_probs([one.tokens], [known])
        assert one.log_prob == pytest.approx(sum(values), abs=1e-4)
        assert len(one.tokens) == 5 or one.finish_reason == "end"
    assert (
        found[0].log_prob >= plain.log_prob - 1e-4 or plain.finish_reason != found[0].finish_reason
    )
    # In company of another prompt it is the same.
    other = GenerationRequest("jello", max_new_tokens=3, num_beams=6, num_return_sequences=4)
    both = model().generate([other, request])
    assert written(both)[1] == [one.tokens for one in found]


def test_scores_are_those_of_the_full_forward_pass():
    texts, prompts = ["abc", "", "jello, j"], ["", "ab", "abcd"]
    special = tokenizer()
    for text, prompt, score in zip(texts, prompts, model().score(texts, prompts), strict=True):
        read = [special.bos, *special.encode_batch([prompt])[0]]
        ids = special.encode_batch([text])[0]
        assert score.tokens == tuple(ids)
        if ids:
            logits = np.array(forward()(np.array([[*read, *ids]])))[0]
            logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
            due = [logits[len(read) - 1 + i, token] for i, token in enumerate(ids)]
            np.testing.assert_allclose(score.log_probs, due, atol=1e-5)
        assert score.log_prob == pytest.approx(sum(score.log_probs))
        assert score.bytes == len(text.encode())


def test_a_long_text_is_scored_in_windows_of_at_least_half_a_context():
    text = "abc, jello " * 9
    [score] = model().score([text])
    special = tokenizer()
    whole = [special.bos, *special.encode_batch([text])[0]]
    seen = []
    for start, stop, at in windows(1, len(whole), CONTEXT):
        logits = np.array(forward()(np.array([whole[start:stop]])))[0]
        logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
        due = [logits[i - start, whole[i + 1]] for i in range(at, stop)]
        np.testing.assert_allclose(score.log_probs[at:stop], due, atol=1e-5)
        seen += range(at, stop)
        assert start == 0 or at - start >= CONTEXT // 2
    assert seen == list(range(len(whole) - 1))


@pytest.mark.slow
def test_trace_tells_each_step():
    """Row L13."""
    request = GenerationRequest("abc", max_new_tokens=6, temperature=0)
    one, steps = model().trace(request)
    assert tuple(step.token for step in steps) == one.tokens
    assert sum(step.log_prob for step in steps) == pytest.approx(one.log_prob, abs=1e-4)
    for step in steps:
        assert len(step.best) == 5
        assert step.best[0][1] >= step.log_prob - 1e-6


@pytest.mark.slow
def test_texts_of_an_adapter_begin_and_end_as_those_it_was_trained_on():
    """Row B39: as the merged model writes them, in company of the base and of other adapters."""
    graph, params = split_model(parts())
    rng, adapters = np.random.default_rng(4), {}
    for name in ("a", "b"):
        own = {"lora_a": rng.standard_normal((32, 2)), "lora_b": rng.standard_normal((2, 32))}
        own = {leaf: value.astype(np.float32) for leaf, value in own.items()}
        adapters[name] = Adapter({"decoder/blocks/1/self_attention/query": own}, {
            "decoder/blocks/1/self_attention/query": 0.5})  # fmt: skip
    how, shapes = {"a": (TextStart.of(tokenizer().eos), False)}, BatchingConfig(**FEW)
    chosen = with_choice(nnx.merge(graph, params), list(adapters.values()))
    both = DecoderLanguageModel(chosen, tokenizer(), shapes=shapes, adapters=("a", "b"))
    both.set_texts("a", *how["a"])
    both.set_texts("b", TextStart.of(tokenizer().bos), True)
    alone = {None: model()}
    for name, adapter in adapters.items():
        start, ends = how.get(name, (TextStart.of(tokenizer().bos), True))
        merged = graph, merge_adapter(adapter, params)
        alone[name] = DecoderLanguageModel(
            merged, tokenizer(), shapes=shapes, start=start, ends=ends
        )
    asked = [
        GenerationRequest("abc", max_new_tokens=9, temperature=heat, adapter=name)
        for heat in (1, 0)
        for name in ("a", None, "b")
    ]
    found = both.generate(asked)
    for request, [text] in zip(numbered(asked), found, strict=True):
        plain, one = dataclasses.replace(request, adapter=None), alone[request.adapter]
        [[expected]] = one.generate([plain])
        assert text.tokens == expected.tokens
        assert text.log_prob == pytest.approx(expected.log_prob, abs=1e-3)
        assert "".join(both.stream(request)) == expected.text
        if not request.temperature:
            steps, expected_steps = both.trace(request)[1], one.trace(plain)[1]
            assert [step.token for step in steps] == [step.token for step in expected_steps]
            worth = [step.log_prob for step in expected_steps]
            np.testing.assert_allclose([step.log_prob for step in steps], worth, atol=1e-4)


def test_a_long_prompt_is_cut_or_refused():
    long = GenerationRequest("abc" * 20, max_new_tokens=3, temperature=0)
    counting = copy.copy(model())
    counting.counts = collections.Counter()
    assert written(counting.generate([long]))[0][0] == slowly("learned", long.prompt, 3)[0]
    assert counting.counts["cut"] == 1
    with pytest.raises(DataError, match="the prompt has 60 tokens, the context allows 23"):
        model(too_long="error").generate([long])


def test_a_full_context_can_end_the_text():
    [[one]] = model(full="stop").generate(
        [GenerationRequest("abcab", max_new_tokens=60, temperature=0)]
    )
    assert one.finish_reason in ("length", "end")
    assert len(one.tokens) <= CONTEXT - 6 + 1


@pytest.mark.slow
def test_narrow_weights_give_nearly_the_same():
    narrow = DecoderLanguageModel(parts(), tokenizer(), dtype="bfloat16")
    wide, low = (m.score(["abc, jello"])[0].log_prob for m in (model(), narrow))
    assert low == pytest.approx(wide, rel=0.05)
    assert low != wide


def test_a_tokenizer_of_another_model_is_refused():
    larger = train_tokenizer("characters", ["abcdefghijklmnopqrstuvwxyz0123456789"], 100)
    with pytest.raises(ConfigError, match="the tokenizer has 40 tokens but the model 23"):
        DecoderLanguageModel(parts(), larger)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
        ({"stop": ("",)}, "stop holds an empty text"),
        ({"seed": -1}, "seed is -1"),
        ({"number": 2**32}, "number is 4294967296: at most 4294967295"),
        ({"top_k": 2**31}, "top_k is 2147483648: at most"),
        ({"no_repeat_ngram_size": 2**31}, "no_repeat_ngram_size is 2147483648: at most"),
        ({"temperature": 10**400}, "temperature is a number of 401 digits"),
        ({"repetition_penalty": 10**400}, "repetition_penalty is a number of 401 digits"),
        (
            {"num_beams": 2, "num_return_sequences": 3},
            "allowed are 1 to num_beams, 2",
        ),
        ({"num_beams": 2, "temperature": 0.5}, "temperature: needs sampling, but num_beams is 2"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0"),
    ],
)
def test_settings_out_of_range_are_refused(setting, words):
    with pytest.raises(ConfigError, match=words):
        GenerationRequest("a", **setting)


@pytest.mark.slow
def test_a_context_that_is_full_ends_no_other_text():
    requests = [dataclasses.replace(r, max_new_tokens=60) for r in greedy()]
    stopping = model(full="stop")
    together = written(stopping.generate(requests))
    assert together == [written(stopping.generate([request]))[0] for request in requests]


@pytest.mark.slow
def test_a_shorter_context_is_read_whatever_the_positions():
    short = DecoderLanguageModel(
        parts(), tokenizer(), context=8, shapes=BatchingConfig(full="stop")
    )
    [[one]] = short.generate([GenerationRequest("abc", max_new_tokens=40, temperature=0)])
    assert len(one.tokens) == 8 - 4 + 1
    assert short.context == 8
    with pytest.raises(ConfigError, match="2 texts but 1 prompt:"):
        short.score(["a", "b"], ["c"])
