"""Translators of recurrent layers: the lecture's four steps, attention, and what they learn."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.drawing import compiled, drawn, normals
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.composed import EncoderDecoder
from transformer_jax.models.layers.basic import Embed
from transformer_jax.models.layers.recurrent_attention import make_score
from transformer_jax.models.layers.recurrent_layers import Recurrent
from transformer_jax.models.partition import merging
from transformer_jax.models.protocol import Encoded
from transformer_jax.models.recurrent_modules import (
    ContextDecoder,
    RecurrentDecoder,
    RecurrentEncoder,
)
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.state import TrainState, split
from transformer_jax.training.step import make_step

V, D, B, S, T, BOS, EOS = 12, 8, 3, 6, 5, 1, 2
LENGTHS = np.array([6, 2, 4], np.int32)
SCORES = ["dot", "scaled_dot", "general", "concat", "location"]


def make(
    score="general", *, kind="all at once", cell="lstm", size=D, both=True, layers=1, truncate=None
):
    """A translator; its decoder reads ``all at once``, feeds ``hidden`` states or a ``context``."""
    rngs = nnx.Rngs(0)
    table = lambda: Embed(V, size, scale=1.0, rngs=rngs)
    half = size // 2 if both else size
    how = {"layers": layers, "truncate": truncate, "rngs": rngs}
    read = Recurrent(size, half, cell, bidirectional=both, **how)
    made = None if score is None else make_score(score, size, size, places=S, rngs=rngs)
    beside = 0 if kind == "all at once" else size
    write = Recurrent(size + beside, size, cell, **how)
    if kind == "context":
        decoder = ContextDecoder(table(), write, read, made, dropout=0.1, rngs=rngs)
    else:
        feeds = kind == "hidden"
        decoder = RecurrentDecoder(table(), write, read, made, feeds=feeds, dropout=0.1, rngs=rngs)
    return EncoderDecoder(RecurrentEncoder(table(), read, dropout=0.1), decoder)


def texts(seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.integers(3, V, shape).astype(np.int32)
    found = {"source": draw(B, S), "source_lengths": LENGTHS}, draw(B, T)
    return jax.tree.map(jnp.asarray, found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["all at once", "hidden", "context"])
def test_b25_a_decoder_learns_back_to_the_last_multiple_and_computes_the_same(kind):
    """Row B25: of five tokens the last reaches the fourth, and not those before position 3."""
    inputs, _ = texts()
    tokens, found = jnp.array([[3, 4, 5, 6, 7]] * B), {}
    for truncate in (None, 3):
        graph, params = drawn(lambda truncate=truncate: make(kind=kind, truncate=truncate))

        def last(params, graph=graph):
            model = nnx.merge(graph, params)
            return (model.hidden(inputs, tokens)[:, -1] ** 2).sum()

        value, gradient = jax.jit(jax.value_and_grad(last))(params)
        rows = gradient["decoder"]["embedding"]["table"][3:8]
        found[truncate] = value, (np.abs(rows).max(1) > 0).tolist()
    np.testing.assert_array_equal(found[None][0], found[3][0])
    assert found[None][1] == [True] * 5
    assert found[3][1] == [False, False, False, True, True]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.slow
def test_the_four_steps_of_the_lecture():
    """Row T8 with an LSTM and dot products, one source and one step after the other."""
    model = nnx.merge(*drawn(lambda: make("dot")))
    inputs, tokens = texts()
    encoded = model.encoded(inputs)
    logits = model.logits(model.hidden(inputs, tokens))
    decoder, layer = model.decoder, model.decoder.layers.forward[0]
    begin = jax.tree.map(np.asarray, decoder.first_states(encoded))
    w = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(decoder)))
    maps = compiled(decoder, lambda decoder, *args: decoder.attention_maps(*args))(encoded, tokens)
    U, W, b = (
        np.asarray(one[...]) for one in (layer.kernel, layer.inputs.kernel, layer.inputs.bias)
    )
    for row in range(B):
        H = np.asarray(encoded.states[row, : LENGTHS[row]])
        s, c = (one[row] for one in begin[0])
        for t in range(T):
            gates = w["embedding"]["table"][tokens[row, t]] @ W + b + s @ U
            i, f, g, o = np.split(gates, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            s = sigmoid(o) * np.tanh(c)
            e = H @ s  # 1: scores
            alpha = np.exp(e - e.max()) / np.exp(e - e.max()).sum()  # 2: weights
            a = alpha @ H  # 3: what is attended to
            mixed = np.concatenate([a, s]) @ w["mixed"]["kernel"] + w["mixed"]["bias"]
            out = w["embedding"]["table"] @ np.tanh(mixed)  # 4: output
            np.testing.assert_allclose(logits[row, t], out, atol=1e-5)
            np.testing.assert_allclose(maps[row, t, : LENGTHS[row]], alpha, atol=1e-5)
            assert (maps[row, t, LENGTHS[row] :] == 0).all()


@pytest.mark.slow
def test_bahdanau_step_by_step():
    """Row T6, the state before a token attends; a maxout layer over state, context, embedding."""
    model = nnx.merge(*drawn(lambda: make("concat", kind="context", cell="gru")))
    inputs, tokens = texts()
    encoded = model.encoded(inputs)
    logits = model.logits(model.hidden(inputs, tokens))
    decoder = model.decoder
    begin = np.asarray(decoder.first_states(encoded)[-1][0])
    w = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(decoder)))
    maps = compiled(decoder, lambda decoder, *args: decoder.attention_maps(*args))(encoded, tokens)
    layer, score = w["layers"]["forward"][0], w["score"]
    for row in range(B):
        H, s = np.asarray(encoded.states[row, : LENGTHS[row]]), begin[row]
        for t in range(T):
            e = np.tanh(s @ score["query"] + H @ score["key"]) @ score["vector"]
            alpha = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
            c, x = alpha @ H, w["embedding"]["table"][tokens[row, t]]
            read = np.concatenate([x, c]) @ layer["inputs"]["kernel"] + layer["inputs"]["bias"]
            U = layer["kernel"]
            r, z = np.split(sigmoid(read[: 2 * D] + s @ U[:, : 2 * D]), 2)
            n = np.tanh(read[2 * D :] + (r * s) @ U[:, 2 * D :])
            s = z * s + (1 - z) * n
            pieces = np.concatenate([s, c, x]) @ w["maxout"]["kernel"] + w["maxout"]["bias"]
            out = w["embedding"]["table"] @ np.maximum(*np.split(pieces, 2))
            np.testing.assert_allclose(logits[row, t], out, atol=1e-5)
            np.testing.assert_allclose(maps[row, t, : LENGTHS[row]], alpha, atol=1e-5)


@pytest.mark.slow
def test_a_reversed_encoder_reads_sources_backwards():
    """Sutskever et al. 2014, 3.3: its states are those of the turned source, turned back."""
    rngs = nnx.Rngs(0)
    table, layers = Embed(V, D, scale=1.0, rngs=rngs), Recurrent(D, D, "gru", rngs=rngs)
    [inputs, _] = texts()
    source, lengths = np.asarray(inputs["source"]), LENGTHS
    turned = source.copy()
    for row, size in enumerate(lengths):
        turned[row, :size] = source[row, :size][::-1]
    back = RecurrentEncoder(table, layers, reverse=True)(**inputs)
    plain = RecurrentEncoder(table, layers)(jnp.asarray(turned), inputs["source_lengths"])
    chex.assert_trees_all_close(back.last, plain.last, atol=1e-6)
    for row, size in enumerate(lengths):
        chex.assert_trees_all_close(
            back.states[row, :size], plain.states[row, :size][::-1], atol=1e-6
        )


@pytest.mark.slow
def test_what_is_fed_into_kernels_of_zeros_changes_nothing():
    graph, params = drawn(lambda: make("general", kind="hidden"))
    kernel = params["decoder"]["layers"]["forward"][0]["inputs"]["kernel"]
    params["decoder"]["layers"]["forward"][0]["inputs"]["kernel"] = kernel.at[D:].set(0)
    feeding = nnx.merge(graph, params)
    params["decoder"]["layers"]["forward"][0]["inputs"]["kernel"] = kernel[:D]
    plain = nnx.merge(nnx.graphdef(nnx.eval_shape(lambda: make("general"))), params)
    hidden = lambda model: compiled(model, lambda model, *args: model.hidden(*args))(*texts())
    chex.assert_trees_all_close(hidden(feeding), hidden(plain), atol=1e-6)


def trained(model, steps, batch_of):
    graph, params = split(model)
    tx = optax.adam(1e-2)
    state = TrainState(jnp.int32(0), params, tx.init(params))
    step = jax.jit(make_step(sequence_to_sequence(bos=BOS), tx, merging(graph)), donate_argnums=0)
    for number in range(steps):
        state, metrics = step(state, {}, batch_of(number), jax.random.key(number))
    return nnx.merge(graph, state.params), float(metrics["loss"])


def copies(seed, rows=32):
    """Texts to be copied."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, S + 1, rows).astype(np.int32)
    source = rng.integers(3, V, (rows, S)).astype(np.int32)
    source = np.where(np.arange(S) < lengths[:, None], source, 0)
    target = np.zeros((rows, S + 1), np.int32)
    target[:, :S] = source
    target[np.arange(rows), lengths] = EOS
    return {
        "inputs": {"source": source, "source_lengths": lengths},
        "target": target,
        "lengths": lengths + 1,
    }


@pytest.mark.parametrize(
    ("cell", "kind"), [("lstm", "all at once"), ("gru", "all at once"), ("gru", "context")]
)
@pytest.mark.parametrize("score", [*SCORES, None])
@pytest.mark.slow
def test_texts_are_copied_and_the_attention_is_diagonal(score, cell, kind):
    if score == "general" and cell == "lstm":
        kind = "hidden"
    model, loss = trained(make(score, kind=kind, cell=cell, size=32), 300, copies)
    assert loss < (1.6 if score is None else 0.5), "without attention one vector holds the source"
    if score in (None, "location", "scaled_dot"):
        return  # scores that are scaled down stay flat here: the states carry the text
    batch = jax.tree.map(jnp.asarray, copies(999))
    encoded = model.encoded(batch["inputs"])
    shifted = jnp.pad(batch["target"][:, :-1], [(0, 0), (1, 0)], constant_values=BOS)
    maps = np.asarray(model.decoder.attention_maps(encoded, shifted))[:, :S]
    inside = np.arange(S) < np.asarray(batch["inputs"]["source_lengths"])[:, None]
    # States know their neighbours: where a step looks on the whole follows it.
    looked = (maps @ np.arange(S))[inside]
    places = np.broadcast_to(np.arange(S), inside.shape)[inside]
    assert np.corrcoef(looked, places)[0, 1] > 0.9


def test_what_does_not_fit_is_refused():
    rngs = nnx.Rngs(0)
    table = Embed(V, D, scale=1.0, rngs=rngs)
    lstm = lambda inputs, size, **how: Recurrent(inputs, size, "lstm", **how, rngs=rngs)
    read = lstm(D, D)
    for layers, message in (
        (lstm(D, D, bidirectional=True), "a decoder is unidirectional"),
        (lstm(D, D, layers=2), "2 layers, not as many as the encoder"),
        (lstm(D + 1, D), "its layers read width 9, not 8"),
        (lstm(D, D + 1), "states have size 9, the output table 8"),
        (Recurrent(D, D, "gru", rngs=rngs), "gru cells have a different number of states"),
    ):
        with pytest.raises(ConfigError, match=f"RecurrentDecoder: {message}"):
            RecurrentDecoder(table, layers, read, rngs=rngs)
    with pytest.raises(ConfigError, match="score dot: queries have size 8 and keys 6: choose"):
        make_score("dot", 8, 6, rngs=rngs)
    decoder = RecurrentDecoder(table, lstm(D, D), read, rngs=rngs)
    [states] = normals((B, S, D))
    with pytest.raises(ConfigError, match="the encoder returns no last states"):
        decoder.hidden(Encoded(states, None), jnp.ones((B, T), jnp.int32))
    with pytest.raises(ConfigError, match="this decoder has no attention"):
        decoder.attention_maps(Encoded(states, None), jnp.ones((B, T), jnp.int32))
