"""Laws of models: the same functions as ``transformer_jax.laws`` gives to users, over every kind.

Rows L12, L16, U11, B26, B28, B29.
"""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.cases import KINDS, B, Compiled, S, T
from tests.platforms import trace_for
from transformer_jax import laws
from transformer_jax.models.layers.surgery import with_attention_kernels

OF_TEXTS = [name for name, kind in KINDS.items() if "source_lengths" in (kind.inputs or {})]
DECODERS = [name for name in KINDS if name.startswith("decoder ")]
TRANSLATORS = [name for name in KINDS if name.startswith("translator ")]
MODERN = "translator modern"


def over(names, *quick):
    """Cases of a law, of which some are quick."""
    mark = lambda name: [] if name in quick else [pytest.mark.slow]
    cases = [pytest.param(name, marks=mark(name)) for name in names]
    return pytest.mark.parametrize("model", cases, indirect=True)


@pytest.fixture(scope="module")
def model(request):
    """A model of a kind; all its laws follow each other and share its programs."""
    return Compiled(request.param)


@over(KINDS, "recurrent concat hidden", "gru")  # gradients show it of the others
def test_no_position_reads_a_later_one(model):
    laws.causality(model.whole, model.tokens).require()


@over([name for name in KINDS if name != "gru"], "decoder window", "translator mixed")
def test_no_gradient_comes_from_the_future(model):
    laws.causality_by_gradient(*model.hidden_of_vectors()).require()


@over(KINDS, "decoder window", MODERN, "gru")
def test_steps_with_a_cache_equal_the_whole(model):
    laws.cached(model.whole, model.step, model.cache(), model.tokens).require()


@over(KINDS, "decoder window")
def test_steps_on_a_gpu_equal_the_whole(model, monkeypatch):
    """In the formulation of NVIDIA's GPUs, whose caches have an axis of heads."""
    whole = model.whole(model.tokens)
    trace_for(monkeypatch, "cuda")
    gpu = types.SimpleNamespace(platform="gpu")
    there = lambda model: with_attention_kernels(model, gpu)
    begin = lambda model, inputs: there(model).init_cache(inputs, B, T + 2)
    step = model.program(lambda model, *args: there(model).step(*args))
    cache = model.program(begin)(model.inputs)
    laws.cached(lambda tokens: whole, step, cache, model.tokens).require()


@over(KINDS, "decoder window", "gru")
def test_a_prompt_at_once_equals_the_whole(model):
    given = model.step, model.cache(), model.tokens
    laws.prefilled(model.whole, model.prefill, *given, 3).require()


@over(KINDS, "gru")
def test_beams_continue_their_common_prompt(model):
    """Two beams of each padded prompt, which change places after every step."""
    both = lambda logits: np.concatenate([logits, logits], axis=-1)
    swapped = np.array([[1, 0], [1, 1], [0, 1]], np.int32)

    def step(tokens, cache):
        logits, cache = model.step(np.repeat(tokens, 2), cache)
        return logits.reshape(B, -1), model.reorder(cache, swapped)

    def prefill(tokens, cache, starts):
        logits, cache = model.prefill(tokens, cache, starts)
        return both(logits), cache

    whole = lambda tokens: both(model.whole(tokens))
    given = whole, prefill, step, model.cache(beams=2), model.tokens
    laws.prompt_padding(*given, np.array([0, 3, 1])).require()


@over(DECODERS, "decoder window")
def test_several_tokens_at_once_equal_the_whole(model):
    """A prompt, several tokens and single ones, and a cache that grows in between."""

    def read(model, tokens, cache):
        first, cache = model.prefill(tokens[:, :2], cache)
        some, cache = model.extend(tokens[:, 2:4], cache)
        last, cache = model.step(tokens[:, 4], cache)
        logits = jnp.concatenate([first[:, None], some, last[:, None]], axis=1)
        return logits, cache.resize(T + 4)

    given = model.step, model.cache(), model.tokens
    laws.prefilled(model.whole, model.program(read), *given, 5).require()


@over(KINDS, "decoder gpt2", "gru")
def test_padding_before_a_prompt_is_invisible(model):
    given = model.step, model.cache(), model.tokens
    laws.prompt_padding(model.whole, model.prefill, *given, np.array([0, 3, 1])).require()


@over(KINDS, "translator mixed", "gru")
def test_beams_continue_their_parents(model):
    short = lambda tokens: model.whole(np.pad(tokens, ((0, 0), (0, T - 3)), mode="edge"))
    laws.reordered(short, model.step, model.reorder, model.cache(beams=2), model.beams).require()


@over(KINDS, "translator mixed")
def test_rows_of_a_batch_do_not_read_each_other(model):
    run = lambda given: model.forced(*given)
    laws.batch_mates(run, (model.inputs, model.tokens)).require()
    laws.batch_of_one(run, (model.inputs, model.tokens)).require()


@over(OF_TEXTS, "translator mixed", "recurrent concat hidden", "speech luong")
def test_padding_of_the_source_is_invisible(model):

    run = lambda source, real, tokens: model.forced(
        {"source": source, "source_lengths": real.sum(1).astype(np.int32)}, tokens
    )
    source, lengths = model.inputs.values()
    real = np.arange(source.shape[1]) < lengths[:, None]
    laws.source_padding(run, source, real, model.tokens).require()
    laws.source_length(run, source, real, model.tokens).require()


@over(TRANSLATORS, "translator mixed")
def test_padding_of_the_source_may_stand_anywhere(model):
    """A mask says where: at the end it is that of lengths; cached steps read the same."""
    run = lambda source, real, tokens: model.forced(
        {"source": source, "source_lengths": real}, tokens
    )
    source, lengths = model.inputs.values()
    ends = np.arange(S) < lengths[:, None]
    same = run(source, ends, model.tokens)
    np.testing.assert_allclose(same, model.whole(model.tokens), rtol=1e-6, atol=1e-6)
    real = np.array([[0, 1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 1, 0], [1] * 7], bool)
    laws.source_padding(run, source, real, model.tokens).require()
    inputs = {"source": source, "source_lengths": real}
    whole = lambda tokens: model.forced(inputs, tokens)
    laws.cached(whole, model.step, model.cache(inputs=inputs), model.tokens).require()


@over(DECODERS, "decoder window")
def test_packed_documents_are_as_each_alone(model):
    packed = model.program(lambda model, *args: model(*args))
    documents, length = [model.tokens[0, :5], model.tokens[1, :4]], 12
    fill = lambda tokens: np.pad(tokens, ((0, 0), (0, 5 - tokens.shape[1])), mode="edge")
    alone = lambda tokens: model.forced(None, fill(tokens))[:, : tokens.shape[1]]
    laws.packing(packed, alone, documents, length=length).require()
    laws.packed_mates(packed, documents, length=length).require()


@over(KINDS)
def test_without_a_key_nothing_is_drawn(model):
    laws.repeatability(model.whole, model.tokens).require()
