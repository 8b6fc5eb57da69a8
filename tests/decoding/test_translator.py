"""From lines to lines: order, batches and shapes leave no trace in a translation."""

import collections
import copy
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import drawn
from transformer_jax import laws
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.languages import Direction, LanguageTags
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.options import SpecialTokens, TranslationBatching
from transformer_jax.decoding.programs import SearchPrompts
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.translator import Translator
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.transformer.models import TransformerEncoderDecoder

PAD, UNK, BOS, EOS = range(4)
LETTERS = "abcdefghijklmnop"


class Letters:
    """A tokenizer of single letters."""

    def __init__(self, vocab_size=20):
        self.vocab_size = vocab_size
        self.pad, self.unk, self.bos, self.eos = PAD, UNK, BOS, EOS
        self.end_tokens = (EOS,)
        self.prefix_ids, self.suffix_ids = (), (EOS,)
        self.target_prefix_ids = ()
        self.languages = None

    def encode_batch(self, texts):
        ids = {letter: 4 + i for i, letter in enumerate(LETTERS)}
        return [[ids.get(c, UNK) for c in text if not c.isspace()] for text in texts]

    def decode(self, ids):
        return "".join("?" if i == UNK else LETTERS[i - 4] for i in ids if i not in (0, 2, 3))

    def convert_ids_to_tokens(self, ids):
        return [f"<{i}>" if i < 4 else LETTERS[i - 4] for i in ids]


def letter_model(seed=0, vocab=20, max_length=24):
    """An untrained model whose choices differ from line to line."""
    config = TransformerConfig(
        vocab_size=vocab,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        embedding=EmbeddingConfig(scale=8.0, dropout=0.0),
        positions=PositionConfig(max_length=max_length),
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=32),
    )
    return TransformerEncoderDecoder(config, rngs=nnx.Rngs(seed))


SHAPES = TranslationBatching(source_lengths=(8, 16), rows=(1, 4))
SEARCH = TRANSLATION.changed(
    num_beams=3, num_return_sequences=2, length_penalty=1.0, normalization="power", max_len_a=1.0
)
GREEDY = dataclasses.replace(SEARCH, num_beams=1, num_return_sequences=1)


@pytest.fixture(scope="module")
def translator():
    return Translator(letter_model(), Letters(), search=SEARCH, batching=SHAPES)


@pytest.fixture(scope="module")
def greedy():
    return Translator(letter_model(), Letters(), search=GREEDY, batching=SHAPES)


def like(translator, **batching):
    """A translator that begins to count anew, with the same compiled functions."""
    other = copy.copy(translator)
    other.batching = dataclasses.replace(translator.batching, **batching)
    other.counts = collections.Counter()
    return other


@pytest.fixture(scope="module")
def lines():
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(list(LETTERS), n)) for n in (3, 12, 7, 1, 9, 15, 2, 5, 7, 4, 6)]


def forced_logits(model):
    """Logits of whole prefixes, without a cache."""
    run = jax.jit(model)

    def teacher(source, inputs):
        rows = np.full((len(inputs), 16), PAD)
        rows[:, : len(source)] = source
        lengths = np.full(len(inputs), len(source))
        return np.asarray(run(*map(jnp.asarray, (rows, inputs, lengths))))

    return teacher


def same(one, other):
    assert one.text == other.text
    for a, b in zip(one.hypotheses, other.hypotheses, strict=True):
        assert a.tokens == b.tokens
        np.testing.assert_allclose([a.score, a.log_prob], [b.score, b.log_prob], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["translator", "greedy"], ids=["beam", "greedy"])
def test_the_finish_reason_says_whether_the_limit_cut_a_text(request, lines, search):
    """An untrained model writes on to the limit, where beam search pays for an EOS."""
    translator = like(request.getfixturevalue(search))
    found = translator.translate(lines)
    best = [one.hypotheses[0] for one in found]
    limits = [translator.search.target_tokens(len(line) + 1, translator.most) for line in lines]
    full = [len(text.tokens) == limit for text, limit in zip(best, limits, strict=True)]
    assert sum(full) > len(lines) // 2
    assert ["length" if one else "end" for one in full] == [one.finish_reason for one in best]
    assert translator.counts["limited"] == sum(full)
    said = translator.limit_note(sum(full), len(lines))
    assert said == (f"{sum(full)} of 11 texts reached the length limit (1 x source tokens + 10 "
                    f"tokens, at most 24) and may be cut")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("search", ["translator", "greedy"], ids=["beam", "greedy"])
def test_order_and_company_of_lines_leave_no_trace(request, lines, search):
    translator = request.getfixturevalue(search)
    together = translator.translate(lines)
    assert [t.source for t in together] == lines
    assert len({t.text for t in together}) > len(lines) // 2
    order = np.random.default_rng(1).permutation(len(lines))
    shuffled = translator.translate([lines[i] for i in order])
    for i, translation in zip(order, shuffled, strict=True):
        same(translation, together[i])
    for i in (0, 1, 5):
        [alone] = translator.translate([lines[i]])
        same(alone, together[i])


@pytest.mark.slow
def test_windows_leave_no_trace_and_are_not_waited_for(greedy, lines):
    translator = like(greedy, window=2)
    read = []
    stream = translator.stream(line for line in lines if read.append(line) is None)
    first = next(stream)
    assert len(read) == 2
    whole = greedy.translate(lines)
    for one, other in zip([first, *stream], whole, strict=True):
        same(one, other)


@pytest.mark.slow
def test_greedy_is_the_argmax_of_teacher_forcing(greedy, lines):
    """Stepwise with a cache equals whole prefixes without one."""
    model, tokenizer = letter_model(), Letters()
    teacher = forced_logits(model)
    barred = np.zeros(20, np.float32)
    barred[[PAD, BOS]] = -np.inf
    for translation in greedy.translate(lines[:3]):
        source = [*tokenizer.encode_batch([translation.source])[0], EOS]
        limit = GREEDY.target_tokens(len(source), 24)
        tokens = []
        while len(tokens) < limit and EOS not in tokens:
            inputs = np.full((1, 24), PAD)
            inputs[0, : len(tokens) + 1] = BOS, *tokens
            logits = teacher(source, inputs)[0, len(tokens)]
            tokens.append(int(np.argmax(logits + barred)))
        assert translation.tokens == tuple(tokens)


@pytest.mark.slow
def test_the_finish_reason_is_the_end_token_or_the_limit(translator, greedy, lines):
    """Beam search always ends with EOS, by the limit here; greedy search may reach it before."""
    for way in translator.translate(lines[1:2])[0].hypotheses:
        assert (way.finish_reason, way.tokens[-1]) == ("length", EOS)
    found = [translation.hypotheses[0] for translation in greedy.translate(lines)]
    assert "length" in {way.finish_reason for way in found}
    for line, way in zip(lines, found, strict=True):
        assert (way.finish_reason == "end") == (way.tokens[-1] == EOS)
        if way.finish_reason == "length":
            assert len(way.tokens) == GREEDY.target_tokens(len(line) + 1, 24)


def test_scores_are_those_of_teacher_forcing(translator, lines):
    for translation in translator.translate(lines[1:5]):
        assert len(translation.hypotheses) == 2
        assert translation.hypotheses[0].score >= translation.alternatives[0].score
        for way in translation.hypotheses:
            assert way.tokens[-1] == EOS
            [score] = translator.score([translation.source], [way.text])
            assert score.tokens == way.tokens
            assert score.log_prob == pytest.approx(way.log_prob, abs=1e-4)
            assert sum(score.log_probs) == pytest.approx(score.log_prob, abs=1e-5)
            assert way.score == pytest.approx(way.log_prob / len(way.tokens), abs=1e-6)


@pytest.mark.slow
def test_scoring_many_pairs_keeps_their_order(translator, lines):
    targets = lines[::-1]
    together = translator.score(lines, targets)
    for source, target, score in list(zip(lines, targets, together, strict=True))[::4]:
        [alone] = translator.score([source], [target])
        assert alone.tokens == score.tokens
        np.testing.assert_allclose(alone.log_probs, score.log_probs, atol=1e-5)
    with pytest.raises(DataError, match="11 sources but 10 targets"):
        translator.score(lines, targets[1:])
    with pytest.raises(DataError, match="target 2 has 24 tokens: at most 23"):
        translator.score(["a", "a"], ["a", "a" * 24])


@pytest.mark.slow
def test_a_wide_beam_over_the_cache_is_exhaustive_search():
    """The oracle has no cache: this holds the model's reordering to account as well."""
    vocab, length = 6, 3
    model = letter_model(3, vocab)
    tokenizer = Letters(vocab)
    search = TRANSLATION.changed(
        num_beams=9, num_return_sequences=4, max_len_a=0.0, max_len_b=length, normalization="power"
    )
    translator = Translator(model, tokenizer, search=search, batching=SHAPES)
    teacher = forced_logits(model)
    for translation in translator.translate(["ab", "b", "bbaab"]):
        source = [*tokenizer.encode_batch([translation.source])[0], EOS]
        ways = [(way.tokens, way.score) for way in translation.hypotheses]
        laws.beam_search(
            lambda ways=ways: ways,
            lambda inputs, source=source: teacher(source, inputs),
            SpecialTokens(EOS, PAD, (PAD, BOS)),
            search,
            start=BOS,
            vocab_size=vocab,
            length=length,
            tolerance=1e-5,
        ).require()


@pytest.mark.slow
def test_the_number_of_compiled_shapes_is_finite(greedy):
    translator = greedy
    rng = np.random.default_rng(2)
    for count in (1, 2, 3, 9, 30):
        translator.translate(["a" * int(n) for n in rng.integers(1, 16, count)])
    assert translator.run.search._cache_size() <= len(SHAPES.source_lengths) * len(SHAPES.rows)
    again = translator.run.search._cache_size()
    for alpha in (0.3, 2.0):
        search = dataclasses.replace(GREEDY, length_penalty=alpha)
        translator.translate(["abc", "d"], search)
    assert translator.run.search._cache_size() == again


def test_a_lines_shape_is_its_own(translator):
    lengths = [1, 8, 9, 16, 3, 3, 3, 3, 3]
    shapes = {i: size for which, (_, size) in translator.batches(range(9), lengths) for i in which}
    assert [shapes[i] for i in range(9)] == [8, 8, 16, 16, 8, 8, 8, 8, 8]
    rows = [(rows, len(which)) for which, (rows, _) in translator.batches(range(9), lengths)]
    assert rows == [(4, 4), (4, 3), (4, 2)]
    assert [rows for _, (rows, _) in translator.batches([0], lengths)] == [1]
    tight = Translator(letter_model(), Letters(), batching=dataclasses.replace(SHAPES, tokens=8))
    assert {shape for _, shape in tight.batches(range(9), lengths)} == {(1, 8), (1, 16)}


@pytest.mark.slow
def test_other_parameters_need_no_other_program(greedy, lines):
    translator = like(greedy)
    before = translator.translate(lines[:2])
    compiled = translator.run.search._cache_size()
    graph, state = nnx.split(letter_model(1))
    translator.params = params = nnx.to_pure_dict(state)
    after = translator.translate(lines[:2])
    assert translator.run.search._cache_size() == compiled
    assert [t.text for t in before] != [t.text for t in after]
    pair = Translator((graph, params), Letters(), search=GREEDY, batching=SHAPES)
    for one, other in zip(pair.translate(lines[:2]), after, strict=True):
        same(one, other)


def equations_of(jaxpr, looped=False):
    """All equations of a program, wherever they stand, and whether that is within a loop."""
    for equation in jaxpr.eqns:
        yield equation, looped
        here = looped or equation.primitive.name in ("while", "scan")
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda p: hasattr(p, "eqns")
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations_of(inner, here)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.slow
def test_weights_are_cast_once_and_not_at_every_token(beams):
    """In bfloat16, no loop of the program casts a matrix."""
    made = letter_model()
    compute = dataclasses.replace(made.config.compute, dtype="bfloat16")
    config = dataclasses.replace(made.config, compute=compute)
    model = nnx.merge(*drawn(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0))))
    search = dataclasses.replace(SEARCH, num_beams=beams, num_return_sequences=1)
    translator = Translator(model, Letters(), search=search, batching=SHAPES)
    shapes = {leaf.shape for leaf in jax.tree.leaves(translator.params) if leaf.ndim > 1}
    limits = np.full(4, 9, np.int32)
    inputs = {"source": np.ones((4, 8), np.int32), "source_lengths": limits}
    prompts = SearchPrompts(np.full((4, 1), BOS), np.zeros(4, np.int32), limits, inputs)
    vocab = config.vocab_size
    plan, values = search_settings(search, SpecialTokens(EOS, PAD), vocab=vocab, length=9)
    traced = translator.run.search.trace(
        translator.params, prompts, plan=plan, values=values, length=9
    )
    looped = [equation for equation, within in equations_of(traced.jaxpr.jaxpr) if within]
    assert len([equation for equation in looped if equation.primitive.name == "dot_general"]) > 5
    cast = [
        equation
        for equation in looped
        if equation.primitive.name == "convert_element_type"
        and equation.invars[0].aval.shape in shapes
    ]
    assert not cast
    assert translator.translate(["abc"])[0].text


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 3])
def test_what_every_target_begins_with_is_given(lines, num_beams):
    """Search, scores and traces condition on it; none counts it (``<s>`` of BART)."""
    tokenizer = Letters()
    tokenizer.target_prefix_ids = (7, 5)
    search = dataclasses.replace(SEARCH, num_beams=num_beams, num_return_sequences=1)
    model = letter_model(max_length=16)
    translator = Translator(model, tokenizer, search=search, batching=SHAPES)
    free = Translator(model, Letters(), search=search, batching=SHAPES)
    teacher, found = forced_logits(model), translator.translate(lines)
    assert [one.text for one in found] != [one.text for one in free.translate(lines)]
    assert max(len(one.tokens) for one in found) == 14
    for one, line in zip(found, lines, strict=True):
        inputs = np.full((1, 16), PAD)
        whole = [BOS, 7, 5, *one.tokens]
        inputs[0, : len(whole) - 1] = whole[:-1]
        logits = teacher(translator.encode([line])[0][0], inputs)[0, 2 : len(whole) - 1]
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        if num_beams == 1:
            allowed = np.where(np.isin(np.arange(20), (PAD, BOS)), -np.inf, logits)
            assert tuple(allowed.argmax(1)) == one.tokens
        total = logs[np.arange(len(one.tokens)), one.tokens].sum()
        assert one.hypotheses[0].log_prob == pytest.approx(total, abs=1e-4)
        if one.tokens[-1] == EOS and UNK not in one.tokens:
            [score] = translator.score([line], [one.text])
            assert score.tokens == one.tokens
            assert score.log_prob == pytest.approx(total, abs=1e-4)
    translation, steps = translator.trace(lines[0])
    assert tuple(step.token for step in steps) == translation.tokens
    worth = sum(step.log_prob for step in steps)
    assert worth == pytest.approx(translation.hypotheses[0].log_prob, abs=1e-4)
    with pytest.raises(DataError, match="target 1 has 14 tokens: at most 13 are scored"):
        translator.score(["a"], ["a" * 14])


@pytest.mark.slow
def test_a_trace_shows_the_best_tokens_of_every_step(greedy):
    translation, steps = greedy.trace("abcd")
    assert tuple(step.token for step in steps) == translation.tokens
    assert sum(step.log_prob for step in steps) == pytest.approx(
        translation.hypotheses[0].log_prob, abs=1e-4
    )
    for step in steps:
        assert len(step.best) == 5
        values = [value for _, value in step.best]
        assert values == sorted(values, reverse=True)
        assert sum(np.exp(values)) < 1 + 1e-5
        allowed = [(name, value) for name, value in step.best if name not in ("<0>", "<2>")]
        assert (step.piece, pytest.approx(step.log_prob, abs=1e-5)) == allowed[0]
    assert greedy.trace("  ") == (greedy.translate(["  "])[0], [])


def test_empty_lines_stay_empty_and_are_counted(greedy):
    translator = like(greedy)
    out = translator.translate(["", "abc", "   ", "abc"])
    assert [t.text for t in out[::2]] == ["", ""]
    assert out[1] == out[3] != out[0]
    assert translator.counts == {"lines": 4, "empty": 2, "cut": 0, "unknown": 0, "limited": 2}
    assert translator.translate([]) == []


def test_long_lines_are_cut_or_refused_by_choice_and_counted(greedy):
    translator = like(greedy)
    long, kept, short = translator.translate(["ab" * 10, "ab" * 7 + "a", "ab"])
    assert (long.cut, kept.cut, short.cut) == (True, False, False)
    assert translator.counts["cut"] == 1
    same(long, kept)
    with pytest.raises(DataError, match="line 2 has 20 tokens: at most 15 are read"):
        like(greedy, too_long="error", window=1).translate(["a", "ab" * 10])


def test_a_source_is_framed_as_the_tokenizer_says(greedy):
    """BART has a token in front, mBART two at the end; the text has the room that they leave."""
    translator = like(greedy)
    plain = translator.encode(["ab", "ab" * 10])[0]
    tokenizer = Letters()
    tokenizer.prefix_ids, tokenizer.suffix_ids = (BOS,), (EOS, 5)
    framed = Translator(letter_model(), tokenizer, search=GREEDY, batching=SHAPES)
    assert framed.encode(["ab"])[0] == [[BOS, *plain[0][:-1], EOS, 5]]
    [long], [cut] = framed.encode(["ab" * 10])
    assert cut
    assert len(long) == framed.longest == len(plain[1])
    assert (long[0], long[-2:]) == (BOS, [EOS, 5])
    assert framed.room == translator.room - 2
    [empty, text] = framed.translate(["", "ab"])
    assert empty.text == ""
    assert text.text != like(greedy).translate(["ab"])[0].text
    assert framed.counts["empty"] == 1


def test_the_models_positions_limit_source_and_target():
    translator = Translator(
        letter_model(max_length=10), Letters(), search=dataclasses.replace(GREEDY, max_len_b=99),
        batching=SHAPES,
    )  # fmt: skip
    assert (translator.shapes, translator.longest) == ((8, 10), 10)
    [out] = translator.translate(["a" * 50])
    assert out.cut
    assert len(out.tokens) <= 10


@pytest.mark.slow
def test_unknown_tokens_are_not_written_where_unwanted():
    model = letter_model()
    model.embedding.table[...] = model.embedding.table[...].at[UNK].multiply(30.0)
    search = dataclasses.replace(GREEDY, min_length=5)
    translator = Translator(model, Letters(), search=search, batching=SHAPES)
    lines = ["abc", "cde", "fgh", "ijk"]
    free = translator.translate(lines)
    bound = translator.translate(lines, dataclasses.replace(search, allow_unk=False))
    assert any(UNK in t.tokens for t in free)
    assert not any(UNK in t.tokens for t in bound)


def test_a_tokenizer_whose_eos_is_its_padding_can_still_end(translator):
    tokenizer = Letters()
    tokenizer.pad = tokenizer.bos = EOS
    assert EOS not in Translator(letter_model(), tokenizer).special_tokens().suppress_tokens
    smaller = Translator(letter_model(), Letters(18))
    assert smaller.special_tokens().suppress_tokens == (PAD, BOS, 18, 19)
    assert smaller.special_tokens(allow_unk=False).suppress_tokens == (PAD, UNK, BOS, 18, 19)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="sequences is 5: allowed are 1 to num_beams, 4"):
        TRANSLATION.changed(num_return_sequences=5)
    with pytest.raises(ConfigError, match="num_beams is 0"):
        TRANSLATION.changed(num_beams=0)
    with pytest.raises(ConfigError, match="length_penalty is -1"):
        TRANSLATION.changed(length_penalty=-1.0)
    with pytest.raises(ConfigError, match="max_len_b is 0: at least 1"):
        TRANSLATION.changed(max_len_b=0)
    for name, value in itertools.product(("rows", "source_lengths"), ((), (0, 1), (8, 8))):
        with pytest.raises(ConfigError, match=name):
            TranslationBatching(**{name: value})
    with pytest.raises(ConfigError, match="window is 0"):
        TranslationBatching(window=0)
    with pytest.raises(ConfigError, match="tokenizer has 21 tokens but the model 20"):
        Translator(letter_model(), Letters(21))


def test_line_breaks_in_a_translation_do_not_break_the_line(greedy):
    class Breaking(Letters):
        def decode(self, ids):
            return "a\nb\r"

    translator = like(greedy)
    translator.tokenizer = Breaking()
    out = translator.translate(["ab"])
    assert out[0].text == "a b "


def test_what_comes_back_is_plain_python(greedy, lines):
    """Tokens, scores and counts come back as plain numbers, ready for JSON."""
    [out] = greedy.translate(lines[:1])
    leaves = jax.tree.leaves(dataclasses.asdict(out))
    assert all(type(leaf) in (int, float, str, bool) for leaf in leaves)


PLACEMENTS = {
    "source": (("to",), (EOS,), ()),
    "target": ((), (EOS,), ("to",)),
    "both": (("from",), (EOS,), ("to",)),
    "behind": ((), (EOS, "from"), ("to",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_lines_of_one_batch_go_to_a_language_each(lines, placement, num_beams):
    """Each is translated as it is alone; no language is compiled, and no tag is in a text."""
    tokenizer = Letters()
    tokenizer.languages = LanguageTags({"x": 17, "y": 18, "z": 19}, *PLACEMENTS[placement])
    search = dataclasses.replace(SEARCH, num_beams=num_beams, num_return_sequences=1)
    model = letter_model(max_length=16)
    translator = Translator(model, tokenizer, search=search, batching=SHAPES)
    lines = [line for line in lines if len(line) < 8][:8]  # of one shape
    pairs = [Direction(*pair) for pair in itertools.permutations("xyz", 2)]
    directions = [pairs[i % len(pairs)] for i in range(len(lines))]
    assert {17, 18, 19} <= set(translator.special_tokens().suppress_tokens)
    together = translator.translate(lines, directions=directions)
    programs = translator.run.search._cache_size()
    for pair in pairs:
        for one, alone, own in zip(
            together, translator.translate(lines, directions=pair), directions, strict=True
        ):
            if own == pair:
                same(one, alone)
            assert not {17, 18, 19} & set(alone.tokens)
    assert translator.run.search._cache_size() == programs
    six = translator.score(["abcd"] * len(pairs), ["ab"] * len(pairs), pairs)
    assert len({score.log_prob for score in six}) > 1
    scores = translator.score(lines, ["ab"] * len(lines), directions)
    alone = translator.score(lines[1:2], ["ab"], directions[1])
    assert scores[1].log_prob == pytest.approx(alone[0].log_prob, abs=1e-5)
    assert scores[1].tokens == (4, 5, EOS)
    with pytest.raises(ConfigError, match="--to: w is not a target language"):
        translator.translate(lines, directions=Direction("x", "w"))


def test_a_translator_without_tags_has_no_languages(greedy):
    with pytest.raises(ConfigError, match="leave the languages out"):
        greedy.translate(["ab"], directions=Direction(target="x"))
