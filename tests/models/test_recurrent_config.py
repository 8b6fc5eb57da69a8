"""Configurations of recurrent translators: published sizes, counted costs, what is refused."""

import dataclasses
import zlib

import jax
import numpy as np
import pytest
from flax import nnx

from tests.training import families
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.build import make_model
from transformer_jax.models.costs.accounting import count_parameters, decoding, model_cost
from transformer_jax.models.recurrent_config import (
    RECURRENT_PRESETS,
    AlignmentConfig,
    RecurrentConfig,
    RecurrentEmbeddingConfig,
    RecurrentHeadConfig,
)


def model_of(config):
    return nnx.eval_shape(lambda: make_model("encoder-decoder", config, rngs=nnx.Rngs(0)))


def parameters_of(config):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model_of(config))))


def test_published_sizes():
    """Row U15: Sutskever et al. 2014, 3.4, count 384 M parameters, 64 M of them recurrent."""
    sizes = {name: count_parameters(config) for name, config in RECURRENT_PRESETS.items()}
    assert round(sizes["sutskever2014"] / 1e6) == 384
    for name, size in sizes.items():
        assert parameters_of(RECURRENT_PRESETS[name]) == size
    decoder = model_of(RECURRENT_PRESETS["sutskever2014"]).decoder.layers
    layers = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(decoder)))
    assert round(2 * layers / 1e6) == 64


@pytest.mark.quick("0", "7", "13")
@pytest.mark.parametrize("number", range(20))
def test_counted_parameters_are_those_of_the_model(number):
    rng = np.random.default_rng(zlib.crc32(f"{families.SEED}/{number}".encode()))
    config = families.random_recurrent(rng, 23, 24)
    said = f"SWEEP_SEED={families.SEED}: {config}"
    assert count_parameters(config) == parameters_of(config), said
    # Encoder, bridge and keys once, then one token after another: the products of a forward pass.
    sizes = {"batch": 3, "source_length": 7, "target_length": 5}
    cost = decoding(config, **sizes)
    assert 3 * 5 * cost.flops + cost.prefill == model_cost(config, **sizes).forward, said


REFUSED = {
    "model.d_model is 0: at least 1": {"d_model": 0},
    "model.num_layers is 1000: at most 256": {"num_layers": 1000},
    "model.dropout is 1.0: allowed are 0 up to, not including, 1": {"dropout": 1.0},
    "model.compute.remat: recurrent layers do not support it": {"compute": {"remat": True}},
    "model.attention.score dot: states have size 256 and those of an encoder in both directions "
    "512: choose general or concat": {"attention": AlignmentConfig("dot")},
    "model.attention.input_feeding is for attention with query current": {
        "attention": AlignmentConfig("none", input_feeding=True)
    },
    "model.head.maxout_size is for model.attention.query previous": {
        "head": RecurrentHeadConfig(False, 100)
    },
    "model.head.tie_word_embeddings: hidden states have size 256 and embeddings 100: make them "
    "equal": {"embedding": RecurrentEmbeddingConfig(100)},
    "model.decoder_vocab_size: a decoder with its own vocabulary shares no embeddings": {
        "decoder_vocab_size": 10
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_model_can_have_is_refused(message):
    fields = dict(REFUSED[message])
    if isinstance(fields.get("compute"), dict):
        compute = dataclasses.replace(RecurrentConfig().compute, **fields["compute"])
        fields["compute"] = compute
    with pytest.raises(ConfigError, match=f"^{message}"):
        RecurrentConfig(**fields)
