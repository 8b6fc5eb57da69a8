"""Activations by name: watching changes nothing, and a replacement changes what it names."""

import dataclasses
import fnmatch
import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import transformer_jax as tj
from tests.drawing import drawn
from transformer_jax.core.errors import ArgumentError
from transformer_jax.models.activations import activation_names, capture
from transformer_jax.models.heads import EncoderForMaskedLM, SequenceClassifier
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder

SMALL = tj.TransformerConfig(
    vocab_size=20,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    attention=tj.AttentionConfig(num_heads=4, num_kv_heads=2),
    feed_forward=tj.FeedForwardConfig(d_ff=24, gated=True, activation="silu"),
    norm=tj.NormConfig(placement="pre"),
    positions=tj.PositionConfig(kind="rope", max_length=16),
)
SOURCE, TARGET, LENGTHS = jnp.array([[1, 2, 3, 4]]), jnp.array([[1, 5, 6]]), jnp.array([4])


def changed(**fields):
    return dataclasses.replace(SMALL, **fields)


def seq2seq(config=SMALL):
    model = nnx.merge(*drawn(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0))))
    return model, lambda model: model(SOURCE, TARGET, LENGTHS)


def decoder(config=SMALL):
    config = changed(encoder_layers=0, scores=config.scores, compute=config.compute)
    model = nnx.merge(*drawn(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    return model, lambda model: model(TARGET)


def masked():
    config = changed(decoder_layers=0, positions=tj.PositionConfig("learned", max_length=16))
    make = lambda: EncoderForMaskedLM(config, next_sentence=False, rngs=nnx.Rngs(0))
    model = nnx.merge(*drawn(make))
    run = lambda model: model.mlm_logits(super(EncoderForMaskedLM, model).__call__(SOURCE, LENGTHS))
    return model, run


def classifier():
    config = changed(decoder_layers=0, norm=tj.NormConfig(placement="post"))
    model = nnx.merge(*drawn(lambda: SequenceClassifier(config, labels=3, rngs=nnx.Rngs(0))))
    return model, lambda model: model(SOURCE, LENGTHS)


def scanned():
    return decoder(changed(compute=tj.ComputeConfig(scan_layers=True)))


def capped():
    return decoder(changed(scores=tj.ScoreConfig(sliding_window=2, attn_logit_softcapping=3.0)))


MODELS = {make.__name__: make for make in (seq2seq, decoder, masked, classifier, scanned, capped)}


def equal(a, b):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_watching_changes_no_logit(name):
    model, run = MODELS[name]()
    found = capture(model, run, "*")
    if name == "scanned":  # a scan is another program than the loop over its blocks
        np.testing.assert_allclose(found["logits"], run(model)[0], rtol=1e-5, atol=1e-5)
    else:
        equal(found["logits"], run(model)[0])
    assert set(found) == set(activation_names(model))
    assert list(found) == sorted(found, key=activation_names(model).index)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_activation_replaced_by_itself_changes_nothing(name):
    model, run = MODELS[name]()
    found = capture(model, run, "*")
    equal(capture(model, run, replace=found)["logits"], found["logits"])
    for each in found if name == "seq2seq" else ():
        equal(capture(model, run, replace={each: lambda old: old})["logits"], found["logits"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["self_attention", "cross_attention"])
def test_a_head_switched_off_is_zero_rows_of_the_output_map(kind):
    model, run = seq2seq()
    path, head = f"decoder/blocks/1/{kind}", 2
    off = capture(model, run, replace={f"{path}/heads/{head}": 0.0})["logits"]
    other, _ = seq2seq()
    out = getattr(other.decoder.blocks[1], kind).out
    H = other.config.head_dim
    out.kernel[...] = out.kernel[...].at[head * H : (head + 1) * H].set(0.0)
    np.testing.assert_allclose(off, run(other)[0], rtol=1e-5, atol=1e-6)
    assert np.abs(off - np.asarray(run(model)[0])).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_the_softmax_and_those_of_attention_maps(name):
    model, run = MODELS[name]()
    found = capture(model, run, "*/weights")
    for weights in found.values():
        np.testing.assert_allclose(weights.sum(-1), 1.0, atol=1e-6)
    given = {"seq2seq": (SOURCE, TARGET, LENGTHS)} | dict.fromkeys(
        ("masked", "classifier"), (SOURCE, LENGTHS)
    )
    maps = model.attention_maps(*given.get(name, (TARGET,)))
    if not isinstance(maps, dict):
        maps = {"encoder" if name in given else "decoder": maps}
    for kind, weights in maps.items():
        side = "encoder" if kind == "encoder" else "decoder"
        part = "cross" if kind == "cross" else "self"
        for i in range(len(weights)):
            name = f"{side}/blocks/{i}/{part}_attention/weights"
            np.testing.assert_allclose(found[name], weights[i, 0], atol=1e-6)


@pytest.mark.slow
def test_parts_compute_one_another():
    model, run = seq2seq()
    found = capture(model, run, "*")
    at = lambda part: found[f"decoder/blocks/0/cross_attention/{part}"]
    k, v = (np.repeat(at(part), 2, axis=0) for part in "kv")
    scores = np.einsum("nth,nsh->nts", at("q"), k) / np.sqrt(4)
    np.testing.assert_allclose(at("scores"), scores, atol=1e-5)
    np.testing.assert_allclose(at("heads"), np.einsum("nts,nsh->nth", at("weights"), v), atol=1e-5)
    block = lambda part: found[f"decoder/blocks/0/{part}"]
    parts = ("self_attention/output", "cross_attention/output", "feed_forward/output")
    total = block("input") + sum(map(block, parts))
    np.testing.assert_allclose(block("output"), total, atol=1e-4)
    equal(block("output"), found["decoder/blocks/1/input"])
    # Heads by number, and patterns.
    one = capture(model, run, ["decoder/blocks/0/cross_attention/heads/3", "decoder/*/0/input"])
    equal(one["decoder/blocks/0/cross_attention/heads/3"], at("heads")[3])
    assert [name for name in found if fnmatch.fnmatch(name, "decoder/*/0/input")] == list(one)[:1]


@pytest.mark.slow
def test_replaced_scores_and_weights_meet_the_mask():
    model, run = decoder()
    path = "decoder/blocks/0/self_attention"
    even = capture(model, run, f"{path}/weights", {f"{path}/scores": 0.0})[f"{path}/weights"]
    np.testing.assert_allclose(even, np.broadcast_to(np.tri(3) / [[1], [2], [3]], even.shape))
    first = np.array([[1, 0, 0]])
    found = capture(model, run, [f"{path}/heads/1", f"{path}/v"], {f"{path}/weights/1": first})
    equal(found[f"{path}/heads/1"], np.broadcast_to(found[f"{path}/v"][0, :1], (3, 4)))


def test_unknown_names_list_the_known_ones():
    model = nnx.eval_shape(lambda: TransformerEncoderDecoder(SMALL, rngs=nnx.Rngs(0)))
    for at, replace in ((["decoder/blocks/2/input"], None), ("logits", {"decoder/*/q": 0.0})):
        with pytest.raises(
            ArgumentError, match=r"decoder/blocks/i/cross_attention/heads.*i below 2"
        ):
            capture(model, lambda model: None, at, replace)
    with pytest.raises(ArgumentError, match="no activation"):
        capture(model, lambda model: None, "encoder/blocks/0/self_attention/k/2")  # 2 key heads
    for at, replace, said in (
        ("encoder/blocks/0/self_attention/weight", None, "did you mean .*/weights?"),
        (3, None, "at: 3: give a name, or a list of names"),
        ([1], None, "at: .*give a name"),
        ("logits", [1], "replace: .*give a dictionary"),
    ):
        with pytest.raises(ArgumentError, match=said):
            inspect.unwrap(capture)(model, lambda model: None, at, replace)


@pytest.mark.slow
def test_a_value_of_another_shape_is_refused():
    model, run = decoder()
    with pytest.raises(ArgumentError, match=r"logits has shape \(3, 20\), its new value \(4,\)"):
        capture(model, run, replace={"logits": np.zeros(4)})
    for value in ("zero", None, 1j):
        with pytest.raises(ArgumentError, match=r"replace: logits becomes .*give real numbers"):
            capture(model, run, replace={"logits": lambda old, value=value: value})
