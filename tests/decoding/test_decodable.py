"""Laws of whatever decodes a token at a time, and search over it: models and a toy recurrent one.

The recurrent decoder lives here: the package needs no change for another architecture.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxtyping import Array, Float

from tests.decoding.finding import SearchRows, find
from tests.drawing import drawn
from transformer_jax import laws
from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.programs import generate
from transformer_jax.decoding.search_state import row_keys
from transformer_jax.models.composed import EncoderDecoder
from transformer_jax.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    MixerConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.layers.basic import Embed
from transformer_jax.models.layers.recurrent_attention import make_score
from transformer_jax.models.layers.recurrent_layers import Recurrent
from transformer_jax.models.protocol import Decodable
from transformer_jax.models.recurrent_modules import (
    ContextDecoder,
    RecurrentDecoder,
    RecurrentEncoder,
)
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder

B, S, T, V, D = 3, 4, 5, 7, 16
EOS, PAD, BOS = 1, 0, 2
SPECIAL = SpecialTokens(EOS, PAD, (PAD, BOS))


class GruCache(NamedTuple):
    """The past in one vector a beam, and the source with its keys."""

    state: Float[Array, "B M D"]
    memory: Float[Array, "B S D"]
    keys: Float[Array, "B S D"]


class GruTranslator(nnx.Module):
    """A recurrent decoder with additive attention over embedded source tokens.

    Bahdanau et al. 2015.
    """

    def __init__(self, *, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(V, D, rngs=rngs)
        self.query, self.key = nnx.Linear(D, D, rngs=rngs), nnx.Linear(D, D, rngs=rngs)
        self.score = nnx.Linear(D, 1, rngs=rngs)
        self.gates = nnx.Linear(3 * D, 2 * D, rngs=rngs)
        self.candidate = nnx.Linear(3 * D, D, rngs=rngs)

    def cell(self, tokens, cache):
        """Logits after tokens ``[B M]``, and the cache with them."""
        query = self.query(cache.state)[:, :, None]
        scores = self.score(jnp.tanh(query + self.key(cache.memory)[:, None]))[..., 0]
        context = jnp.einsum("bms,bsd->bmd", jax.nn.softmax(scores), cache.memory)
        y = self.embedding(tokens)
        gates = self.gates(jnp.concatenate([y, context, cache.state], -1))
        reset, update = jnp.split(jax.nn.sigmoid(gates), 2, -1)
        new = jnp.tanh(self.candidate(jnp.concatenate([y, context, reset * cache.state], -1)))
        state = update * cache.state + (1 - update) * new
        return self.embedding.attend(state).astype(jnp.float32), cache._replace(state=state)

    def init_cache(self, inputs, rows, size, *, beams=1):
        memory = self.embedding(inputs["source"])
        return GruCache(jnp.zeros((rows, beams, D)), memory, self.key(memory))

    def prefill(self, tokens, cache, starts=None):
        logits = None
        for t in range(tokens.shape[1]):
            token = jnp.repeat(tokens[:, t : t + 1], cache.state.shape[1], axis=1)
            logits, new = self.cell(token, cache)
            begun = jnp.ones(len(tokens), bool) if starts is None else t >= starts
            state = jnp.where(begun[:, None, None], new.state, cache.state)
            cache = cache._replace(state=state)
        return logits[:, 0], cache

    def step(self, tokens, cache):
        logits, cache = self.cell(tokens.reshape(cache.state.shape[:2]), cache)
        return logits.reshape(len(tokens), -1), cache

    def reorder(self, cache, parents):
        return cache._replace(state=jnp.take_along_axis(cache.state, parents[:, :, None], axis=1))

    def take(self, cache, rows):
        return jax.tree.map(lambda x: x[rows], cache)

    def __call__(self, inputs, tokens):
        """Teacher forcing: a loop of its own, which calls neither ``prefill`` nor ``step``."""
        memory = self.embedding(inputs["source"])
        start = GruCache(jnp.zeros((len(tokens), 1, D)), memory, self.key(memory))

        def body(cache, token):
            logits, cache = self.cell(token[:, None], cache)
            return cache, logits[:, 0]

        return jax.lax.scan(body, start, tokens.T)[1].swapaxes(0, 1)


def configuration(encoder_layers, **fields):
    return TransformerConfig(
        **fields,
        vocab_size=V,
        d_model=D,
        encoder_layers=encoder_layers,
        decoder_layers=2 - encoder_layers,
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=32),
    )


def luong():
    """Luong et al. 2015: an encoder in both directions, input feeding."""
    rngs, table = nnx.Rngs(0), lambda rngs: Embed(V, D, scale=1.0, rngs=rngs)
    read = Recurrent(D, 6, "gru", layers=2, bidirectional=True, rngs=rngs)
    layers = Recurrent(2 * D, D, "gru", layers=2, rngs=rngs)
    score = make_score("general", D, read.outputs, rngs=rngs)
    encoder = RecurrentEncoder(table(rngs), read)
    decoder = RecurrentDecoder(table(rngs), layers, read, score, feeds=True, rngs=rngs)
    return EncoderDecoder(encoder, decoder)


def bahdanau():
    """Bahdanau et al. 2015: the state before each token attends; two layers, maxout."""
    rngs, table = nnx.Rngs(0), lambda rngs: Embed(V, D, scale=1.0, rngs=rngs)
    read = Recurrent(D, 6, "lstm", layers=2, bidirectional=True, rngs=rngs)
    layers = Recurrent(D + read.outputs, 10, "lstm", layers=2, rngs=rngs)
    score = make_score("concat", 10, read.outputs, rngs=rngs)
    encoder = RecurrentEncoder(table(rngs), read)
    decoder = ContextDecoder(table(rngs), layers, read, score, rngs=rngs)
    return EncoderDecoder(encoder, decoder)


SOURCE = {
    "source": np.random.default_rng(1).integers(3, V, (B, S)).astype(np.int32),
    "source_lengths": np.array([4, 2, 3], np.int32),
}
# Makers of models, what they are conditioned on, and teacher forcing: logits of whole sequences.
MODELS = {
    "gru": (
        lambda: GruTranslator(rngs=nnx.Rngs(0)),
        SOURCE,
        lambda model, inputs, tokens: model(inputs, tokens),
    ),
    "luong": (luong, SOURCE, lambda model, *args: model.logits(model.hidden(*args))),
    "bahdanau": (bahdanau, SOURCE, lambda model, *args: model.logits(model.hidden(*args))),
    "decoder": (
        lambda: Decoder(configuration(0), rngs=nnx.Rngs(0)),
        None,
        lambda model, inputs, tokens: model(tokens),
    ),
    "lstm blocks": (
        lambda: Decoder(
            configuration(0, mixer=MixerConfig("recurrent"), positions=PositionConfig("none")),
            rngs=nnx.Rngs(0),
        ),
        None,
        lambda model, inputs, tokens: model(tokens),
    ),
    "convolution blocks": (
        lambda: TransformerEncoderDecoder(
            configuration(1, mixer=MixerConfig("convolution", kernel_size=2, dilations=(2,))),
            rngs=nnx.Rngs(0),
        ),
        SOURCE,
        lambda model, inputs, tokens: model(inputs["source"], tokens, inputs["source_lengths"]),
    ),
    "encoder-decoder": (
        lambda: TransformerEncoderDecoder(configuration(1), rngs=nnx.Rngs(0)),
        SOURCE,
        lambda model, inputs, tokens: model(inputs["source"], tokens, inputs["source_lengths"]),
    ),
}


class Case(NamedTuple):
    """A model with each of its functions compiled."""

    model: Decodable
    inputs: dict | None
    forced: Callable  # inputs, tokens -> logits of teacher forcing
    begin: Callable
    prefill: Callable
    step: Callable

    def init_cache(self, size=T, beams=1):
        return self.begin(self.inputs, B, size, beams=beams)


@pytest.fixture(params=MODELS, scope="module")
def kind(request):
    make, inputs, teacher = MODELS[request.param]
    model = nnx.merge(*drawn(make, spread=0.7))
    compiled = jax.jit(lambda inputs, tokens: teacher(model, inputs, tokens))
    begin = jax.jit(model.init_cache, static_argnums=(1, 2), static_argnames="beams")
    forced = lambda tokens, inputs=inputs: np.array(compiled(inputs, tokens))
    return Case(model, inputs, forced, begin, jax.jit(model.prefill), jax.jit(model.step))


TOKENS = np.random.default_rng(0).integers(3, V, (B, T)).astype(np.int32)


@pytest.mark.quick("luong", "decoder", "lstm blocks", "encoder-decoder")
def test_models_keep_the_protocol(kind):
    assert isinstance(kind.model, Decodable)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 2])
def test_sequences_continue_by_themselves(kind, beams):
    cache, rows = kind.init_cache(beams=beams), jnp.array([2, 0])
    for t in range(2):
        _, cache = kind.step(np.repeat(TOKENS[:, t], beams), cache)
    every, _ = kind.step(np.repeat(TOKENS[:, 2], beams), cache)
    taken = jax.jit(kind.model.take)(cache, rows)
    some, _ = kind.step(np.repeat(TOKENS[rows, 2], beams), taken)
    of_rows = np.asarray(every).reshape(B, beams, V)[rows].reshape(some.shape)
    np.testing.assert_allclose(some, of_rows, atol=1e-6)


@pytest.mark.slow
def test_rows_that_have_ended_can_be_left_out(kind):
    """Law: a batch that becomes smaller writes what the whole batch does."""
    rows = SearchRows(jnp.full(B, BOS), jnp.array([2, 5, 4]))
    how = {"vocab": V, "length": T}
    whole = find(kind.model, kind.init_cache(), rows, SPECIAL, **how)
    less = find(kind.model, kind.init_cache(), rows, SPECIAL, **how, sizes=(2, 1))
    for one, other in zip(whole, less, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.quick("gru", "encoder-decoder")
def test_greedy_search_takes_the_most_probable_tokens(kind):
    forced, rows = kind.forced, SearchRows(jnp.full(B, BOS))
    out = find(kind.model, kind.init_cache(), rows, SPECIAL, vocab=V, length=T)
    tokens = np.full((B, T + 1), BOS, np.int32)
    for t in range(T):
        logits = forced(tokens[:, :T])[:, t].copy()
        logits[:, [PAD, BOS]] = -np.inf
        tokens[:, t + 1] = logits.argmax(-1)
    for b in range(B):
        n = int(out.lengths[b, 0])
        assert out.tokens[b, 0, :n].tolist() == tokens[b, 1 : n + 1].tolist()
        assert bool(out.ended[b, 0]) == (tokens[b, n] == EOS)


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 3])
def test_texts_of_inputs_are_those_of_a_search_from_the_start_token(kind, beams):
    if kind.inputs is None:  # a language model
        return
    config = GenerationConfig(
        num_beams=beams,
        eos_token_id=(EOS,),
        pad_token_id=PAD,
        suppress_tokens=(PAD, BOS),
        no_repeat_ngram_size=2,  # reads the text
    )
    given = config.changed(decoder_start_token_id=BOS, max_new_tokens=T)
    tokens = generate(kind.model, kind.inputs, given)
    rows = SearchRows(jnp.full(B, BOS))
    cache = kind.init_cache(beams=beams)
    found = find(kind.model, cache, rows, SPECIAL, config, vocab=V, length=T)
    assert tokens.tolist() == found.tokens[:, 0].tolist()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"max_new_tokens": None}, "max_new_tokens is None: a search from inputs needs it"),
        ({"decoder_start_token_id": None}, "decoder_start_token_id is None"),
        (
            {"temperature": 0.5},
            "temperature: is not a setting of a search from inputs: leave it out",
        ),
    ],
)
def test_settings_that_a_search_from_inputs_lacks_or_does_not_read_are_refused(changed, said):
    config = GenerationConfig(decoder_start_token_id=BOS, max_new_tokens=T).changed(**changed)
    with pytest.raises(ConfigError, match=said):
        generate(GruTranslator(rngs=nnx.Rngs(0)), SOURCE, config)


@pytest.mark.slow
def test_samples_are_scored_as_teacher_forcing_does(kind):
    forced = kind.forced
    rows = SearchRows(jnp.full(B, BOS), keys=row_keys(jax.random.key(0), jnp.arange(B)))
    hot = GenerationConfig(temperature=2.0)
    out = find(kind.model, kind.init_cache(), rows, SPECIAL, hot, vocab=V, length=T)
    read = np.concatenate([np.full((B, 1), BOS, np.int32), out.tokens[:, 0]], 1)[:, :T]
    log_p = np.asarray(jax.nn.log_softmax(forced(read)))
    for b in range(B):
        n = int(out.lengths[b, 0])
        total = sum(log_p[b, t, int(out.tokens[b, 0, t])] for t in range(n))
        assert out.log_probs[b, 0] == pytest.approx(total, abs=1e-4)


@pytest.mark.slow
def test_a_wide_beam_is_exhaustive_search(kind):
    """Search over the cache, with beams that are reordered, finds what whole prefixes give."""
    forced = kind.forced
    length, rows = 3, 16  # all prefixes of two tokens that do not end
    config = TRANSLATION.changed(
        num_beams=16, num_return_sequences=3, normalization="power", length_penalty=0.5
    )
    cache = kind.init_cache(length, beams=16)
    first = SearchRows(jnp.full(B, BOS))
    found = find(kind.model, cache, first, SPECIAL, config, vocab=V, length=length)
    for b in range(B):
        own = jax.tree.map(lambda a, b=b: np.repeat(a[b : b + 1], rows, axis=0), kind.inputs)
        ways = zip(found.tokens[b], found.lengths[b], found.scores[b], strict=True)
        search = lambda ways=ways: [(ids[:n].tolist(), score) for ids, n, score in ways]
        scorer = lambda prefixes, own=own: forced(np.asarray(prefixes), own)
        laws.beam_search(
            search, scorer, SPECIAL, config, start=BOS, vocab_size=V, length=length
        ).require()
