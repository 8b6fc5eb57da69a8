"""Every text, and the tree of beam search: rows B30 and B31."""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.decoding.test_beam import tree_reorder, tree_step
from tests.decoding.test_language import CONTEXT
from tests.decoding.test_translator import SHAPES, Letters, letter_model
from tests.drawing import drawn
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.beam_tree import LiveBeams, beam_tree
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.inspect_search import every_text, tree_of_beams
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.options import BatchingConfig, SpecialTokens
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.search import search_trail
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import SearchRows, Steps
from transformer_jax.decoding.translator import Translator
from transformer_jax.models.config import AttentionConfig, FeedForwardConfig, PositionConfig
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder

LENGTH = 3


def translator():
    """Six tokens, of which three may be written besides the end."""
    search = TRANSLATION.changed(
        num_beams=9, num_return_sequences=4, max_len_a=0.0, max_len_b=LENGTH, normalization="power"
    )
    return Translator(letter_model(3, 6), Letters(6), search=search, batching=SHAPES)


def language():
    """Three letters; texts do not end in training, and a limit cuts them."""
    tokenizer = train_tokenizer("characters", ["abc"], 10)
    config = dataclasses.replace(
        PRESETS["nanogpt_char"], vocab_size=tokenizer.vocab_size, d_model=16, decoder_layers=1,
        attention=AttentionConfig(num_heads=2), feed_forward=FeedForwardConfig(d_ff=16),
        positions=PositionConfig(kind="learned", max_length=CONTEXT),
    )  # fmt: skip
    shapes = BatchingConfig(rows=(1,), lengths=(8,), caches=(8,))
    model = drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)), seed=3)
    return DecoderLanguageModel(model, tokenizer, shapes=shapes)


def request(beams=16, texts=5):
    return GenerationRequest(
        "ab", max_new_tokens=LENGTH, num_beams=beams, num_return_sequences=texts
    )


@functools.cache
def searched(kind):
    """A translator or a language model, a sequence, its wide beam search and its texts."""
    if kind == "translator":
        line = translator()
        [translation] = line.translate(["ab"])
        return line, line.sequence("ab", line.search), line.search, translation.hypotheses
    model = language()
    [texts] = model.generate([request()])
    return *model.beam_searcher(request()), texts


def kinds(test):
    """Runs a law with both; ``make test`` runs it with the language model."""
    both = pytest.mark.parametrize("kind", ["translator", "language"])
    return pytest.mark.quick("language")(both(test))


@kinds
@pytest.mark.slow
def test_b30_every_text_is_what_a_beam_finds_that_keeps_all(kind):
    searcher, sequence, config, texts = searched(kind)
    found = every_text(searcher, sequence, config, LENGTH)
    assert [one.tokens for one in found] == [one.tokens for one in texts]
    assert [one.text for one in found] == [one.text for one in texts]
    for name in ("log_prob", "score"):
        wanted = [getattr(one, name) for one in texts]
        np.testing.assert_allclose([getattr(one, name) for one in found], wanted, atol=1e-5)


@pytest.mark.slow
def test_lines_of_exhaustive_search_are_cut_and_counted_as_those_of_beam_search():
    lines, found, asked = ["", "ab", "ab" * 40], {}, []
    for name in ("beams", "every"):
        line = translator()
        line.sequence("ab", line.search)  # as for a tree: counts nothing

        def find(sequence, line=line):
            asked.append(sequence.index)
            return every_text(line, sequence, line.search, LENGTH)

        given = {} if name == "beams" else {"find": find}
        found[name] = [*line.stream(lines, **given)], line.counts.copy()
        strict = translator()
        strict.batching = dataclasses.replace(strict.batching, too_long="error")
        with pytest.raises(DataError, match="line 3 has 80 tokens"):
            list(strict.stream(lines, **given))
    (beams, counts), (every, others) = found.values()
    assert [[text.text for text in one.hypotheses] for one in beams] == [
        [text.text for text in one.hypotheses] for one in every
    ]
    assert asked == [1, 2]
    assert [one.cut for one in every] == [False, False, True]
    assert (
        counts
        == others
        == {"lines": 3, "empty": 1, "cut": 1, "unknown": 0, "limited": counts["limited"]}
    )


@pytest.mark.slow
def test_the_tree_of_a_text_that_fills_the_context_is_drawn():
    model = language()
    longest = dataclasses.replace(request(beams=3, texts=1), prompt="ab" * 11)
    searcher, sequence, config = model.beam_searcher(longest)
    tree = tree_of_beams(searcher, sequence, config)
    # 22 letters behind a start, and two more, of which the last is not read.
    assert max(node.step for node in tree.nodes) == CONTEXT - 22


@pytest.mark.slow
@kinds
def test_b31_the_tree_holds_what_beam_search_kept_and_its_best_text(kind):
    searcher, sequence, config, _ = searched(kind)
    # Long texts win, so that the limit ends some.
    config = config.changed(num_beams=3, num_return_sequences=1, length_penalty=3.0)
    tree = tree_of_beams(searcher, sequence, config)
    paths = [tree.tokens(i) for i in range(len(tree.nodes))]
    inputs = np.array([[0, *path, *[0] * (LENGTH - len(path))] for path in paths])
    logits = searcher.scorer(sequence)(inputs).astype(np.float64)
    steps = logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)
    for node, path, own in zip(tree.nodes, paths, steps, strict=True):
        assert len(path) == node.step
        assert node.parent < 0 or tree.nodes[node.parent].fate == "kept"
        total = own[np.arange(len(path)), list(path)].sum()
        assert node.log_prob == pytest.approx(total, abs=1e-5)
    for step in range(1, LENGTH + 1):
        level = [node for node in tree.nodes if node.step == step]
        # Of those that do not end, the three most probable are kept.
        longer = [node for node in level if node.token not in searcher.run.special.ends]
        worth = {
            fate: [node.log_prob for node in longer if node.fate == fate]
            for fate in ("kept", "pruned")
        }
        assert len(worth["kept"]) <= 3
        assert len(level) <= 3 * 3 + 3
        # An end is a hypothesis if it is among the three best of all, or if the limit forces it.
        forced = step == LENGTH and config.at_limit == "eos"
        third = sorted((node.log_prob for node in level), reverse=True)[:3][-1]
        for node in level:
            if node.token in searcher.run.special.ends:
                assert (node.fate == "ended") == (forced or node.log_prob >= third)
        least = min(worth["kept"], default=math.inf)
        assert max(worth["pruned"], default=-math.inf) <= least + 1e-6
    search = searcher.beam_search([sequence], config)
    result = search.run(searcher.run.search)
    best = [tree.tokens(i) for i, node in enumerate(tree.nodes) if node.best]
    wanted = np.asarray(result.tokens)[0, 0, : int(result.lengths[0, 0])].tolist()
    assert best == [tuple(wanted[: n + 1]) for n in range(len(wanted))]


def test_b30_the_tree_of_the_lecture():
    """Greedy search finds a text of .20, two beams find the best, "ba", of .36 (row B30)."""
    a, b, end, V = 0, 1, 2, 3
    tiny = 1e-9
    after = {(): (0.5, 0.4, 0.1), (a,): (0.4, 0.3, 0.3), (b,): (0.9, 0.05, 0.05)}
    table = lambda text: np.log(np.array(after.get(text, (tiny, tiny, 1.0))))
    nodes = np.full((1, 1 + V + V * V, V), -np.inf, np.float32)
    texts = [(), *((x,) for x in range(V)), *((x, y) for x in range(V) for y in range(V))]
    for i, text in enumerate(texts):
        nodes[0, i] = table(text)
    config = GenerationConfig(
        num_beams=2, do_sample=False, eos_token_id=(end,), pad_token_id=3, at_limit="eos",
        normalization="none",
    )  # fmt: skip
    step, cache = tree_step(jnp.asarray(nodes), 2)
    plan, values = search_settings(config, vocab=V, length=3)
    rows = SearchRows(jnp.zeros(1, jnp.int32))
    steps = Steps(step, tree_reorder)
    result, trail = search_trail(steps, cache, rows, plan, values, length=3)
    assert result.tokens[0, 0].tolist() == [b, a, end]
    live = LiveBeams(np.asarray(trail.tokens)[:, 0], np.asarray(trail.parents)[:, 0], 3, False)
    tree = beam_tree(
        live, lambda texts: np.stack([table(text) for text in texts]),
        SpecialTokens(end, pad=3), [b, a, end], lambda ids: ["ab."[i] for i in ids],
    )  # fmt: skip
    shown = {"".join("ab."[i] for i in tree.tokens(n)): node for n, node in enumerate(tree.nodes)}
    assert math.exp(shown["ba"].log_prob) == pytest.approx(0.36)
    assert math.exp(shown["aa"].log_prob) == pytest.approx(0.20)
    assert {text: node.fate for text, node in shown.items() if node.step == 1} == {
        "a": "kept", "b": "kept",
    }  # fmt: skip
    assert [text for text, node in shown.items() if node.best] == ["b", "ba", "ba."]


def test_what_cannot_be_searched_is_refused():
    line = translator()
    sequence = line.sequence("ab", line.search)
    with pytest.raises(ConfigError, match=r"6\^30 = 10\^23.3 sequences: at most 1000000"):
        every_text(line, sequence, line.search, 30)
    with pytest.raises(ConfigError, match="a tree needs 2 beams or more"):
        tree_of_beams(line, sequence, line.search.changed(num_beams=1, num_return_sequences=1))
    with pytest.raises(ConfigError, match="at most 24 are read"):
        language().scorer(next(language().sequences(request(), 0)))(np.zeros((1, 30), np.int32))
