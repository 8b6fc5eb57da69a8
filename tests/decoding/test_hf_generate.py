"""Generation by a Hugging Face generation config, over tables of random logits."""

import dataclasses
import functools
import json
import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import drawn
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.hf_config import from_generation_config
from transformer_jax.decoding.hf_generate import HFGenerator
from transformer_jax.decoding.search import search as find
from transformer_jax.decoding.search_plan import plan_of, values_of
from transformer_jax.decoding.search_state import PromptContext, SearchRows, Steps
from transformer_jax.models.config import AttentionConfig, FeedForwardConfig, PositionConfig
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder

V, H, P, T, S, B = 13, 997, 6, 12, 5, 3
OUT = np.float32(-1e9)
draw = np.random.default_rng(0)
FIRST, SECOND = (draw.normal(0, 1.5, (n, V)).astype(np.float32) for n in (V, H))


def follow(state, token):
    """A number that tells a row's whole past from others, so that mixed-up beams would show."""
    return (state * 31 + token + 1) % H


def step(tokens, state):
    state = follow(state, tokens)
    return jnp.asarray(FIRST)[tokens] + jnp.asarray(SECOND)[state], state


def reorder(state, parents):
    return jnp.take_along_axis(state.reshape(parents.shape), parents, axis=1).reshape(-1)


EVERYTHING = GenerationConfig(
    finishing="hf",
    eos_token_id=tuple(range(6)),
    sequence_bias=tuple(((i, 1, 2), 1.0) for i in range(4)),
    bad_words_ids=tuple((i, 6, 6) for i in range(4)),
    forced_eos_token_id=(1, 2),
    forced_bos_token_id=1,
    suppress_tokens=(10, 11, 12),
    begin_suppress_tokens=(4, 5, 6),
    no_repeat_ngram_size=4,
    encoder_no_repeat_ngram_size=3,
    repetition_penalty=2.0,
    encoder_repetition_penalty=2.0,
    min_length=2,
    exponential_decay_length_penalty=(2, 1.1),
    renormalize_logits=True,
    remove_invalid_values=True,
)


@functools.partial(jax.jit, static_argnames="plan")
def search(prompts, known, starts, source, width, values, limits, plan):
    def read_one(state, column):
        read = (column >= starts) & (column < known - 1)
        return jnp.where(read, follow(state, prompts[:, column]), state), None

    state = jax.lax.scan(read_one, jnp.zeros(len(prompts), jnp.int32), jnp.arange(P))[0]
    state = jnp.repeat(state, plan.beams, axis=0)
    context = PromptContext(prompts, known, starts, source, width)
    rows = SearchRows(jnp.take(prompts, known - 1, axis=1), limits, context=context)
    return find(Steps(step, reorder), state, rows, plan, values, length=T)


def run(case, rules, others=(EVERYTHING,), rows=B):
    """The results of the compiled loop for the first rows of a case, cut as ``generate`` does."""
    known, count = case["prompts"].shape[1], len(case["prompts"])
    wide = lambda x, width: np.pad(x, ((0, rows - len(x)), (0, width - x.shape[1])))
    longest, plan = rules.longest(known, 99), plan_of([rules, *others], beams=rules.num_beams)
    values = values_of(rules, plan, vocab=V, length=T, prompt=known, longest=longest)
    starts = np.pad(case["starts"], (0, rows - len(case["starts"])))
    limits = np.where(np.arange(rows) < count, longest - known, 0)
    given = wide(case["prompts"], P), np.int32(known), starts, wide(case["source"], S)
    width = np.int32(case["source"].shape[1])
    out = jax.device_get(search(*given, width, values, limits, plan))
    scores = out.log_probs if rules.num_beams == 1 else out.scores
    keep = rules.num_return_sequences
    written, lengths, scores = (x[:count, :keep] for x in (out.tokens, out.lengths, scores))
    prompts = np.repeat(case["prompts"][:, None], keep, axis=1)
    tokens = np.concatenate([prompts, written], axis=2).reshape(count * keep, -1)
    return tokens[:, : known + lengths.max()], scores.reshape(-1)


def log_softmax(x):
    top = x - x.max(-1, keepdims=True)
    return (top - np.log(np.exp(top).sum(-1, keepdims=True, dtype=np.float32))).astype(np.float32)


def expected_logits(row, start):
    state = 0
    for token in row[start:]:
        state = int(follow(state, token))
    return FIRST[row[-1]] + SECOND[state]


def penalised(x, seen, by):
    out = x.copy()
    for token in set(seen):
        out[token] = x[token] * np.float32(by) if x[token] < 0 else x[token] / np.float32(by)
    return out


def following(before, row, n):
    """The tokens in ``before`` that followed the last n - 1 tokens of a row."""
    end = row[len(row) - n + 1 :] if n > 1 else []
    if len(end) < n - 1:
        return []
    return [before[i + n - 1] for i in range(len(before) - n + 1) if before[i : i + n - 1] == end]


def expected_scores(x, row, case, b, r, prompt, longest):
    """The processors as one would explain them, on one row of plain numbers."""
    x, ends, n = x.copy(), list(r.eos_token_id), len(row)
    source = case["source"][b].tolist()
    for run_, bias in r.sequence_bias:
        *before, last = run_
        if n >= len(before) and row[n - len(before) :] == before:
            x[last] += np.float32(bias)
    x = penalised(x, source, 1 / r.encoder_repetition_penalty)
    x = penalised(x, row[case["starts"][b] :], r.repetition_penalty)
    if r.no_repeat_ngram_size:
        x[following(row, row, r.no_repeat_ngram_size)] = -np.inf
    if r.encoder_no_repeat_ngram_size:
        x[following(source, row, r.encoder_no_repeat_ngram_size)] = -np.inf
    for *before, last in r.bad_words_ids:
        lone_end = not before and last in ends
        if not lone_end and n >= len(before) and row[n - len(before) :] == before:
            x[last] = -np.inf
    minimum = r.min_length if r.min_new_tokens is None else prompt + r.min_new_tokens
    if n < minimum:
        x[ends] = -np.inf
    if r.forced_bos_token_id is not None and n == 1:
        x[:] = -np.inf
        x[r.forced_bos_token_id] = 0
    if r.forced_eos_token_id and n == longest - 1:
        x[:] = -np.inf
        x[list(r.forced_eos_token_id)] = 0
    if r.remove_invalid_values:
        x = np.nan_to_num(x, neginf=float(np.finfo(np.float32).min))
    if r.exponential_decay_length_penalty:
        start, base = r.exponential_decay_length_penalty
        if n > start + prompt:
            for token in {e for e in ends if np.isfinite(x[e])}:
                x[token] += abs(x[token]) * np.float32(base ** (n - start - prompt) - 1)
    x[list(r.suppress_tokens)] = -np.inf
    late = prompt == 1 and r.forced_bos_token_id is not None
    if n == prompt + late:
        x[list(r.begin_suppress_tokens)] = -np.inf
    return log_softmax(x) if r.renormalize_logits else x


def best_first(x, k):
    return np.argsort(-x, kind="stable")[:k]


def expected_greedy(case, r):
    prompt = case["prompts"].shape[1]
    rows, longest = case["prompts"].tolist(), r.longest(case["prompts"].shape[1], 99)
    going = [True] * len(rows)
    while any(going) and len(rows[0]) < longest:
        for b, row in enumerate(rows):
            x = expected_logits(row, case["starts"][b])
            x = expected_scores(x, row, case, b, r, prompt, longest)
            row.append(int(x.argmax()) if going[b] else r.pad)
            going[b] = going[b] and row[-1] not in r.eos_token_id
    return np.array(rows)


def expected_beams(case, r):
    """Beam search by its rules, a sentence at a time but in step: (tokens, scores)."""
    count, prompt = case["prompts"].shape
    M, longest = r.num_beams, r.longest(prompt, 99)
    eager, never = r.early_stopping is True, r.early_stopping == "never" and r.length_penalty > 0
    live = [[row.tolist() for _ in range(M)] for row in case["prompts"]]
    worth = [np.array([0.0, *[OUT] * (M - 1)], np.float32) for _ in range(count)]
    best = [[(OUT, row.tolist(), 0, False) for _ in range(M)] for row in case["prompts"]]
    hope, n, more = [True] * count, prompt, True
    while more:
        all_end = True
        for b in range(count):
            x = [log_softmax(expected_logits(row, case["starts"][b])) for row in live[b]]
            x = [
                expected_scores(s, row, case, b, r, prompt, longest)
                for s, row in zip(x, live[b], strict=True)
            ]
            total = (np.array(x, np.float32) + worth[b][:, None]).reshape(-1)
            top = best_first(total, max(2, 1 + len(r.eos_token_id)) * M)
            ways = [[*live[b][i // V], int(i % V)] for i in top]
            ended = np.array([w[-1] in r.eos_token_id or n + 1 >= longest for w in ways])
            all_end &= bool(ended.all())
            scores = total[top] / np.float32(float(n + 1 - prompt) ** r.length_penalty)
            shut = (eager and all(e for *_, e in best[b])) * OUT
            scores = scores + shut + (not hope[b]) * OUT
            may = ended & (np.arange(len(ways)) < M)
            scores = scores + np.where(may, 0, OUT).astype(np.float32)
            merged = best[b] + [
                (s, way, n + 1 - prompt, bool(e))
                for s, way, e in zip(scores, ways, may, strict=True)
            ]
            best[b] = [merged[i] for i in best_first(np.array([m[0] for m in merged]), M)]
            shifted = total[top] + np.where(ended, OUT, 0).astype(np.float32)
            onward = best_first(shifted, M)
            live[b], worth[b] = [ways[i] for i in onward], shifted[onward]
        n += 1
        for b in range(count):
            reach = worth[b][0] / np.float32(float(longest - prompt if never else n - prompt)
                                             ** r.length_penalty)  # fmt: skip
            worst = min(s for s, *_ in best[b])
            hope[b] = hope[b] and any(reach > (worst if e else OUT) for *_, e in best[b])
        done = eager and all(e for row in best for *_, e in row)
        more = any(hope) and not done and not all_end
    kept = [found for row in best for found in row[: r.num_return_sequences]]
    width = prompt + max(found[2] for found in kept)
    tokens = np.array([(row + [r.fill] * longest)[:width] for _, row, *_ in kept])
    return tokens, np.array([s for s, *_ in kept])


def random_case(rng):
    """Prompts padded on the left, or a single start token; and something to be read beside."""
    count = rng.randint(1, B)
    width = rng.choice([1, 3, P])
    table = lambda columns: np.array(
        [[rng.randrange(V) for _ in range(columns)] for _ in range(count)]
    )
    prompts = table(width)
    starts = np.array([0, *[rng.randrange(max(1, width - 1)) for _ in range(count - 1)]])
    source = prompts
    if width == 1:
        source = table(rng.choice([2, S]))
    for row, start in zip(prompts, starts, strict=True):
        row[:start] = 0
    return {"prompts": prompts, "starts": starts, "source": source[:, :S]}


def random_rules(rng, num_beams, pad=None):
    """Any options at all, each absent more often than not."""
    some = lambda n, most=V: tuple(sorted(rng.sample(range(most), n)))
    maybe = lambda chance, value: value() if rng.random() < chance else None
    ends = some(rng.choice([1, 1, 2, 6]))
    runs = lambda: tuple(some(rng.choice([1, 2, 3])) for _ in range(4))
    options = {
        "eos_token_id": maybe(0.95, lambda: ends),
        "pad_token_id": maybe(0.8, lambda: rng.choice([0, 7])),
        "max_new_tokens": maybe(0.8, lambda: rng.choice([1, 5, T])),
        "max_length": maybe(0.1, lambda: P + 2) or P + 6,
        "no_repeat_ngram_size": maybe(0.25, lambda: rng.choice([1, 2, 3, 4])),
        "encoder_no_repeat_ngram_size": maybe(0.2, lambda: rng.choice([1, 2, 3])),
        "repetition_penalty": maybe(0.25, lambda: rng.choice([1.3, 0.8, 2.0])),
        "encoder_repetition_penalty": maybe(0.2, lambda: rng.choice([1.5, 0.7])),
        "min_new_tokens": maybe(0.2, lambda: rng.choice([2, 4])),
        "min_length": maybe(0.2, lambda: rng.choice([2, P + 2])),
        "forced_eos_token_id": maybe(0.2, lambda: ends[: rng.choice([1, 2])]),
        "forced_bos_token_id": maybe(0.2, lambda: 9),
        "bad_words_ids": maybe(0.25, runs),
        "suppress_tokens": maybe(0.15, lambda: tuple(t for t in some(3) if t not in (9, *ends))),
        "begin_suppress_tokens": maybe(0.15, lambda: some(3)),
        "sequence_bias": maybe(0.2, lambda: [[run_, rng.choice([-2.0, 1.5])] for run_ in runs()]),
        "renormalize_logits": rng.random() < 0.15,
        "remove_invalid_values": rng.random() < 0.1,
        "num_beams": num_beams,
    }
    if options["eos_token_id"]:
        options["exponential_decay_length_penalty"] = maybe(0.2, lambda: (2, 1.1))
    if num_beams > 1:
        options["length_penalty"] = rng.choice([-1.0, 0.0, 0.6, 1.0, 2.0])
        options["early_stopping"] = rng.choice([False, True, "never"])
        options["num_return_sequences"] = rng.randint(1, num_beams)
    return from_generation_config(options)


def assert_same(found, wanted, real):
    """Equal but for what stands in for hypotheses that do not exist."""
    if real.all():
        np.testing.assert_array_equal(found, wanted)
    width = min(found.shape[1], wanted.shape[1])
    np.testing.assert_array_equal(found[real, :width], wanted[real, :width])


@pytest.mark.slow
def test_greedy_follows_the_rules_one_by_one():
    rng = random.Random(1)
    for _ in range(200):
        case, rules = random_case(rng), random_rules(rng, 1)
        np.testing.assert_array_equal(run(case, rules)[0], expected_greedy(case, rules), str(rules))


@pytest.mark.parametrize(
    "num_beams", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 5))]
)
def test_beams_follow_the_rules_one_by_one(num_beams):
    rng, compared = random.Random(num_beams), 0
    for _ in range(100):
        case, rules = random_case(rng), random_rules(rng, num_beams)
        tokens, scores = run(case, rules)
        with np.errstate(over="ignore"):  # of logits that were made as low as can be
            wanted, worth = expected_beams(case, rules)
        real = worth > -1e8
        compared += real.sum()
        assert_same(tokens, wanted, real)
        assert (scores[~real] < -1e8).all()
        np.testing.assert_allclose(scores[real], worth[real], rtol=1e-5, atol=1e-5)
    assert compared > 200


def plain(**options):
    options = {"finishing": "hf", "do_sample": False, **options}
    return GenerationConfig(eos_token_id=(2,), pad_token_id=0, max_new_tokens=T, **options)


@pytest.mark.parametrize(
    ("pad", "num_beams", "fill"), [(7, 1, 7), (7, 2, 7), (0, 1, 0), (0, 2, 2), (None, 1, 2)]
)
@pytest.mark.quick("7-1-7", "None-1-2")
def test_what_follows_an_end(pad, num_beams, fill):
    """``pad_token_id``; where that is 0, beam search fills with the first end instead."""
    rng, compared = random.Random(5), 0
    for _ in range(20):
        case = random_case(rng)
        rules = dataclasses.replace(plain(), pad_token_id=pad, num_beams=num_beams)
        written = [row[case["prompts"].shape[1] :] for row in run(case, rules)[0].tolist()]
        rest = [row[row.index(2) + 1 :] for row in written if 2 in row]
        compared += any(rest)
        assert all(set(row) <= {fill} for row in rest)
    assert compared > 2, "some texts end before others"


@pytest.mark.parametrize("num_beams", [1, 3])
def test_rows_do_not_influence_one_another(num_beams):
    """But for the width that they are cut to; nor do rows of padding, or the room for rules."""
    rng = random.Random(num_beams)
    for n in range(20):
        case = random_case(rng)
        rules = dataclasses.replace(random_rules(rng, num_beams), num_return_sequences=1)
        tokens, scores = run(case, rules)
        for b in range(len(tokens)):
            alone = {name: rows[b : b + 1] for name, rows in case.items()}
            others = () if n == 0 and b == 0 else (EVERYTHING,)
            one, score = run(alone, rules, others)
            same = one.shape[1]
            np.testing.assert_array_equal(one[0], tokens[b, :same])
            np.testing.assert_array_equal(score, scores[b : b + 1])
            filled = rules.fill if num_beams > 1 else rules.pad
            assert (tokens[b, same:] == filled).all()


def test_the_loop_ends_when_nothing_can_change():
    calls: list[int] = []
    plan = plan_of([from_generation_config({"eos_token_id": 0, "num_beams": 2})], beams=2)

    @jax.jit
    def run(logits, values):
        def counting_step(tokens, state):
            jax.debug.callback(lambda: calls.append(1))
            return jnp.tile(logits[None], (len(tokens), 1)), state

        rows = SearchRows(jnp.ones(1, jnp.int32))
        return find(Steps(counting_step), None, rows, plan, values, length=49)

    def steps(*logits, **options):
        calls.clear()
        rules = from_generation_config(
            {"eos_token_id": 0, "max_length": 50, "num_beams": 2, **options}
        )
        run(jnp.array(logits), values_of(rules, plan, vocab=3, length=49))
        jax.effects_barrier()
        return len(calls)

    # An end has -0.35, a letter -1.35: two texts have ended after two steps. What lives has -2.7,
    # which over two tokens is worse than both, and over 49 is not before there are 31 letters.
    assert steps(3.0, 2.0, 0.0, early_stopping=True) == 2
    assert steps(3.0, 2.0, 0.0, early_stopping=False) == 2
    assert steps(3.0, 2.0, 0.0, early_stopping="never") == 31
    # The other way around each letter is better than the mean of what ended.
    assert steps(2.0, 3.0, 0.0, early_stopping=True) == 2
    assert steps(2.0, 3.0, 0.0, early_stopping=False) == 49
    assert steps(2.0, 3.0, 0.0, early_stopping=False, length_penalty=0.0) == 5


@functools.cache
def decoder(kind="learned"):
    config = dataclasses.replace(
        PRESETS["nanogpt_char"],
        vocab_size=V,
        d_model=16,
        decoder_layers=2,
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=16),
        positions=PositionConfig(kind=kind, max_length=20),
    )
    return drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)), spread=0.5)


@functools.cache
def translator():
    config = dataclasses.replace(
        PRESETS["marian"],
        vocab_size=V,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=16),
        positions=PositionConfig(kind="sinusoidal_halves", max_length=20),
    )
    return drawn(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))


def starting(token):
    return dataclasses.replace(plain(), decoder_start_token_id=token, max_new_tokens=3)


@pytest.mark.slow
def test_shapes_leave_no_trace():
    """However prompts and rows are filled up, and however many rows go at once."""
    ids = np.array([[5, 6, 7, 8], [0, 9, 1, 3], [0, 0, 0, 4]])
    mask = (ids > 0).astype(int)
    rules = plain(num_beams=3, repetition_penalty=1.3, no_repeat_ngram_size=2)
    wide = HFGenerator(decoder(), rules, rows=(4,), lengths=(16,)).generate(ids, mask)
    tight = HFGenerator(decoder(), rules, rows=(2,), lengths=(1,)).generate(ids, mask)
    np.testing.assert_array_equal(wide.tokens, tight.tokens)
    np.testing.assert_allclose(wide.scores, tight.scores, atol=1e-5)


@pytest.mark.slow
def test_padding_on_the_left_is_not_read():
    rules = plain()
    generator = HFGenerator(decoder(), rules, rows=(4,), lengths=(16,))
    padded = generator.generate([[0, 0, 9, 1]], [[0, 0, 1, 1]]).tokens
    np.testing.assert_array_equal(padded[:, 2:], generator.generate([[9, 1]]).tokens)


def test_prompts_that_cannot_be():
    generator = HFGenerator(decoder(), plain(), rows=(4,), lengths=(16,))
    for ids, mask, told in (
        ([[1, 2], [3]], None, r"prompts have \[1, 2\] tokens"),
        ([[1, 99]], None, "token 99: the model has tokens 0 to 12"),
        (
            [[1, 2]],
            [[1, 0]],
            r"row 1 of the mask is \[1, 0\]: padding must be on the left and leave",
        ),
        ([[1, 2]], [[0, 0]], "leave at least 1 token"),
        ([[1] * 12], None, "texts of 23 tokens do not fit: the model has positions for 20"),
    ):
        with pytest.raises(DataError, match=told):
            generator.generate(ids, mask)
    computed = HFGenerator(decoder("sinusoidal"), plain(), rows=(4,), lengths=(16,))
    with pytest.raises(DataError, match=r"texts of 23 tokens .*: the model has positions for 20"):
        computed.generate([[1] * 12])
    with pytest.raises(DataError, match="the prompt has 3 tokens and texts may have 3"):
        generator.generate([[1, 2, 3]], generation_config=GenerationConfig(max_length=3))
    with pytest.raises(ConfigError, match="token 13: the model writes 0 to 12"):
        generator.generate([[1]], generation_config=GenerationConfig(eos_token_id=(13,)))


def test_sources_are_no_longer_than_the_table_of_sinusoids():
    """transformers fails there too: beyond the table there is only its last row."""
    ids = [[5] * 21]
    with pytest.raises(DataError, match=r"texts of 21 tokens .*: the model has positions for 20"):
        HFGenerator(translator(), starting(1)).generate(ids)


@pytest.mark.parametrize("start", [V, 10**6])
def test_a_decoder_starts_from_a_token_that_it_has(start):
    with pytest.raises(ConfigError, match=f"decoder_start_token_id is {start}: .* 0 to 12"):
        HFGenerator(translator(), starting(start))
    generator = HFGenerator(translator(), starting(V - 1))
    with pytest.raises(ConfigError, match=f"decoder_start_token_id is {start}"):
        generator.generate([[5, 6]], generation_config=starting(start))


def test_files_are_read_as_they_are_published():
    rules = from_generation_config(
        {
            "_from_model_config": True,
            "transformers_version": "4.30.0",
            "bad_words_ids": [[58100]],
            "bos_token_id": 0,
            "do_sample": True,
            "eos_token_id": [2, 3],
            "forced_eos_token_id": 2,
            "max_length": 512,
            "num_beam_groups": 1,
            "num_beams": 6,
            "length_penalty": 2,
            "pad_token_id": 58100,
            "temperature": 0.6,
            "top_p": 0.9,
            "begin_suppress_tokens": None,
        }
    )
    assert rules == GenerationConfig(
        finishing="hf",
        bad_words_ids=((58100,),),
        decoder_start_token_id=0,
        do_sample=True,
        eos_token_id=(2, 3),
        forced_eos_token_id=(2,),
        max_length=512,
        num_beams=6,
        length_penalty=2.0,
        pad_token_id=58100,
    )
    assert rules.longest(1, 1024) == 512
    assert dataclasses.replace(rules, max_new_tokens=5).longest(3, 1024) == 8
    assert from_generation_config({}).longest(1015, 1024) == 1024
    old = {"force_bos_token_to_be_generated": True, "bos_token_id": 0}
    assert from_generation_config(old).forced_bos_token_id == 0


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"num_beam_groups": 2}, "num_beam_groups is 2: generation with it is not supported"),
        ({"penalty_alpha": 0.6}, "penalty_alpha is 0.6"),
        ({"guidance_scale": 1.5}, "guidance_scale is 1.5"),
        ({"stop_strings": ["x"]}, "stop_strings"),
        ({"constraints": [{}]}, "constraints"),
        ({"num_beams": 0}, "num_beams is 0: at least 1"),
        ({"num_beams": 2.5}, "num_beams is 2.5: allowed is a whole number"),
        ({"num_beams": True}, "num_beams is True: allowed is a whole number"),
        ({"num_return_sequences": 2}, "allowed are 1 to num_beams, 1"),
        ({"early_stopping": "soon"}, "early_stopping is 'soon': allowed is true, false or 'never'"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0.0: at least 1e-06"),
        ({"bad_words_ids": [[]]}, "each needs tokens"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end': allowed is a token id or"),
        ({"suppress_tokens": [1], "forced_eos_token_id": 1}, "also among suppress_tokens"),
        ({"exponential_decay_length_penalty": [2, 1.1]}, "give eos_token_id"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused_by_name(field, message):
    with pytest.raises(ConfigError, match=message):
        from_generation_config(field)


TOKENS, LENGTHS = "at (least {}|most 2147483647)", "at (least {}|most 1048576)"
LISTS = "allowed is a list of"
INFINITE = json.loads("1e400")


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        ({"pad_token_id": 10**12}, TOKENS.format(-1)),
        ({"pad_token_id": -2}, TOKENS.format(-1)),
        ({"pad_token_id": INFINITE}, "a whole number"),
        ({"eos_token_id": True}, "a token id or a list of them"),
        ({"eos_token_id": {}}, "a token id or a list of them"),
        ({"eos_token_id": [2, 2.5]}, "a token id or a list of them"),
        ({"eos_token_id": "12"}, "a token id or a list of them"),
        ({"eos_token_id": [2, 2**31]}, TOKENS.format(0)),
        ({"forced_eos_token_id": math.nan}, "a token id or a list of them"),
        ({"forced_bos_token_id": 2**31}, TOKENS.format(0)),
        ({"decoder_start_token_id": -1}, TOKENS.format(0)),
        ({"bad_words_ids": [[INFINITE]]}, LISTS),
        ({"bad_words_ids": [1, 2]}, LISTS),
        ({"bad_words_ids": ["12"]}, LISTS),
        ({"bad_words_ids": [[1, -3]]}, TOKENS.format(0)),
        ({"suppress_tokens": [2**31]}, TOKENS.format(-1)),
        ({"begin_suppress_tokens": [True]}, LISTS),
        ({"begin_suppress_tokens": 3}, LISTS),
        ({"sequence_bias": [[[1], INFINITE]]}, LISTS),
        ({"sequence_bias": [[[1], "2"]]}, LISTS),
        ({"sequence_bias": [[[1], 1e300]]}, r"at most 1e\+38"),
        ({"sequence_bias": [[[10**12], 1.0]]}, TOKENS.format(0)),
        ({"length_penalty": 1e308}, "at most 6"),
        ({"length_penalty": INFINITE}, "a number that is finite"),
        ({"length_penalty": 10**400}, "a number that is finite"),
        ({"repetition_penalty": math.nan}, "a number that is finite"),
        ({"encoder_repetition_penalty": 1e-320}, "at least 1e-06"),
        ({"exponential_decay_length_penalty": [2, 1e308], "eos_token_id": 1}, "at most 1000000"),
        ({"exponential_decay_length_penalty": [10**400, 1.1], "eos_token_id": 1}, "at most"),
        ({"exponential_decay_length_penalty": 3, "eos_token_id": 1}, "a pair of a whole number"),
        ({"max_length": 10**12}, LENGTHS.format(1)),
        ({"max_length": INFINITE}, "a whole number"),
        ({"max_new_tokens": 10**12}, LENGTHS.format(1)),
        ({"min_length": 10**12}, LENGTHS.format(0)),
        ({"min_new_tokens": 10**12}, LENGTHS.format(0)),
        ({"num_beams": 10**12}, "at most 1024"),
        ({"no_repeat_ngram_size": 10**12}, "at most 256"),
        ({"do_sample": 1}, "true or false"),
    ],
    ids=str,
)
def test_numbers_that_no_program_could_hold_are_refused(field, allowed):
    """One line, whatever stands in the file: which key, and what it may be."""
    with pytest.raises(ConfigError, match=allowed) as caught:
        from_generation_config(field)
    line = str(caught.value)
    assert line.startswith(next(iter(field)))
    assert len(line) < 200
    assert "\n" not in line


def test_values_of_python_are_held_to_the_same_ranges():
    for values in ({"pad_token_id": 2**31}, {"length_penalty": math.nan}, {"max_length": 2**40}):
        with pytest.raises(ConfigError, match=r"at (most|least)"):
            GenerationConfig(**values)


def test_the_last_numbers_that_are_allowed_make_programs():
    """No warning and no overflow at the ends of the ranges; whole floats are whole numbers."""
    rules = from_generation_config(
        {"length_penalty": 6, "repetition_penalty": 1e6, "encoder_repetition_penalty": 1e-6,
         "sequence_bias": [[[1], -1e38]], "pad_token_id": 2**31 - 1, "eos_token_id": [2.0],
         "max_length": 2.0**20, "suppress_tokens": [-1]}
    )  # fmt: skip
    how = values_of(rules, plan_of([rules]), vocab=5, length=2**20)
    assert np.isfinite(how.penalties).all()
    assert np.isfinite(how.biases).all()
    assert np.isfinite(how.encoder_repetition)
    assert (rules.eos_token_id, rules.max_length, how.pad) == ((2,), 2**20, 2**31 - 1)
