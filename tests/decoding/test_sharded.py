"""Decoding on a mesh: the same tokens as on one device, and no logits or caches are gathered."""

import dataclasses
import functools

import numpy as np
import pytest
from flax import nnx

from tests.decoding.test_translator import Letters, letter_model
from tests.drawing import drawn
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.options import BatchingConfig, TranslationBatching
from transformer_jax.decoding.programs import SearchPrompts
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.translator import Translator
from transformer_jax.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
)
from transformer_jax.models.partition import merging
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.placement import mesh_of, shard_parameters, split_model
from transformer_jax.parallel.program_report import collectives, parsed
from transformer_jax.training.validation import _evaluated

MESHES = {
    "8x1x1": (8, 1, 1),
    "1x8x1": (1, 8, 1),
    "2x2x2": (2, 2, 2),
    "1x2x4": (1, 2, 4),
    "4x1x2": (4, 1, 2),
}
LINES = ["abc", "abcdefghijkl", "gfedcba", "a", "ponmlkjih", "bb", "fedcb", "dadadad", "cab"]
SHAPES = TranslationBatching(source_lengths=(16,), rows=(4,))
every_mesh = pytest.mark.parametrize("name", MESHES)
ROWS = 16  # of a batch


def sharded(parts, name):
    """The model on the devices of a mesh; ``None`` is one device."""
    graph, params = split_model(parts)
    if name is None:
        return graph, params
    data, fsdp, tensor = MESHES[name]
    mesh = make_mesh(data=data, fsdp=fsdp, tensor=tensor)
    return graph, shard_parameters(graph, params, mesh)


# A vocabulary of 20 divides by every tensor axis here, and one of 21 by none.
@functools.cache
def translator(name=None, vocab=20):
    # The two heads do not divide by a tensor axis of 4.
    model = letter_model(vocab=vocab)
    return Translator(sharded(model, name), Letters(), batching=SHAPES)


def alike(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose([one.score, one.log_prob], [other.score, other.log_prob],
                                   atol=1e-5)  # fmt: skip


@pytest.mark.slow
@every_mesh
@pytest.mark.parametrize("vocab", [20, 21])
@pytest.mark.parametrize("beams", [1, 4])
def test_translations_are_those_of_one_device(name, vocab, beams):
    search = TRANSLATION.changed(num_beams=beams, num_return_sequences=min(beams, 2))
    found, wanted = (translator(where, vocab).translate(LINES, search) for where in (name, None))
    assert len({one.text for one in wanted}) > len(LINES) // 2
    for one, other in zip(found, wanted, strict=True):
        alike(one.hypotheses, other.hypotheses)


@functools.cache
def writer(name=None, kv_heads=2, vocab=20, rows=4):
    tokenizer = Letters()
    config = dataclasses.replace(
        PRESETS["llama_style"],
        vocab_size=vocab,
        d_model=32,
        decoder_layers=2,
        attention=AttentionConfig(num_heads=4, num_kv_heads=kv_heads),
        feed_forward=FeedForwardConfig(d_ff=64),
        norm=NormConfig(placement="pre"),
        positions=PositionConfig(kind="rope", max_length=24),
    )
    parts = drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)), seed=3)
    shapes = BatchingConfig(rows=(rows,), lengths=(24,), caches=(64,))
    return DecoderLanguageModel(sharded(parts, name), tokenizer, shapes=shapes)


REQUESTS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 7},
    "top-k": {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "seed": 3},
    "beams": {"num_beams": 4, "num_return_sequences": 2},
    "penalty": {"temperature": 0, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
}


@every_mesh
@pytest.mark.parametrize("how", REQUESTS)
@pytest.mark.slow
def test_generated_texts_are_those_of_one_device(name, how):
    # They outgrow the context of 24.
    asked = [GenerationRequest(line, max_new_tokens=30, **REQUESTS[how]) for line in LINES[:5]]
    found, wanted = (writer(where).generate(asked) for where in (name, None))
    for one, other in zip(found, wanted, strict=True):
        assert [text.tokens for text in one] == [text.tokens for text in other]
        np.testing.assert_allclose(
            [text.score for text in one], [text.score for text in other], atol=1e-5, rtol=1e-5
        )


@every_mesh
@pytest.mark.slow
def test_many_texts_of_a_vocabulary_that_does_not_divide_are_those_of_one_device(name):
    # As many rows as the width: a program that is not traced on the mesh is partitioned wrongly.
    asked = [GenerationRequest(line, max_new_tokens=9, temperature=0) for line in LINES]
    found, wanted = (writer(at, vocab=21, rows=32).generate(asked) for at in (name, None))
    for [one], [other] in zip(found, wanted, strict=True):
        assert one.tokens == other.tokens
        assert one.score == pytest.approx(other.score, abs=1e-5)


@every_mesh
@pytest.mark.slow
def test_scores_are_those_of_one_device(name):
    for found, wanted in zip(*(writer(at).score(LINES) for at in (name, None)), strict=True):
        np.testing.assert_allclose(found.log_probs, wanted.log_probs, atol=1e-5)
    pairs = LINES, LINES[::-1]
    for found, wanted in zip(*(translator(at).score(*pairs) for at in (name, None)), strict=True):
        np.testing.assert_allclose(found.log_probs, wanted.log_probs, atol=1e-5)


def loop_exchanges(text):
    """The exchanges between devices inside the loops of a compiled program."""
    bodies = parsed(text).bodies
    assert bodies
    return collectives(bodies)


def compiled_search(name, beams):
    one = translator(name)
    with_rows = lambda array: np.broadcast_to(array, (ROWS, *np.shape(array))).astype(np.int32)
    prompts = SearchPrompts(
        with_rows([2]), with_rows(0), with_rows(8),
        {"source": with_rows(np.arange(16) % 8 + 4), "source_lengths": with_rows(16)},
    )  # fmt: skip
    plan, values = search_settings(
        TRANSLATION.changed(num_beams=beams), one.special_tokens(), vocab=one.vocab, length=8
    )
    lowered = one.run.search.lower(one.params, prompts, plan=plan, values=values, length=8)
    return lowered.compile().as_text()


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.slow
def test_devices_that_have_rows_alone_exchange_nothing_in_the_loop(beams):
    assert list(loop_exchanges(compiled_search("8x1x1", beams))) == []


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("name", ["4x1x2", "2x2x2"])
def test_the_loop_gathers_neither_logits_nor_the_cache(name, beams):
    data, fsdp, _ = MESHES[name]
    found = list(loop_exchanges(compiled_search(name, beams)))
    rows = ROWS * beams // (data * fsdp)
    assert found
    # Logits are less than the cache; hidden states are less than logits.
    assert max(one.bytes for one in found) < 4 * rows * 20


@pytest.mark.slow
def test_what_validation_measures_runs_on_the_mesh_of_the_run():
    graph, params = sharded(letter_model(), "2x2x2")

    def evaluate(model):
        used = Translator(model, Letters(), batching=SHAPES)
        assert mesh_of(used.params) == mesh_of(params)
        found = used.translate(LINES, TRANSLATION.changed(num_beams=1))
        wanted = translator().translate(LINES, TRANSLATION.changed(num_beams=1))
        return {"same": sum(a.tokens == b.tokens for a, b in zip(found, wanted, strict=True))}

    assert _evaluated(evaluate, merging(graph), params, {}) == {"same": len(LINES)}
