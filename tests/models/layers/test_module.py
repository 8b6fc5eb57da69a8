"""A printed model fits a screen and counts its parameters."""

import dataclasses

import jax
import pytest
from flax import nnx

import transformer_jax as tj
from transformer_jax.models.layers.module import summarize

SMALL = dataclasses.replace(
    tj.TransformerConfig(vocab_size=11, d_model=8, encoder_layers=3, decoder_layers=2),
    attention=tj.AttentionConfig(num_heads=2),
    feed_forward=tj.FeedForwardConfig(d_ff=16),
)
MODELS = {
    "decoder": lambda: tj.Decoder(dataclasses.replace(SMALL, encoder_layers=0), rngs=nnx.Rngs(0)),
    "encoder": lambda: tj.Encoder(dataclasses.replace(SMALL, decoder_layers=0), rngs=nnx.Rngs(0)),
    "translator": lambda: tj.TransformerEncoderDecoder(SMALL, rngs=nnx.Rngs(0)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_printed_model_fits_a_screen_and_counts_its_parameters(name):
    model = nnx.eval_shape(MODELS[name])
    text = repr(model)
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert text == str(model) == summarize(model)
    assert text.splitlines()[0] == f"{type(model).__name__}: {count:,} parameters"
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) < 80
    outer = [line.split() for line in text.splitlines()[1:] if line[2] != " "]
    assert sum(int(row[-1].replace(",", "")) for row in outer) == count


def test_parts_of_a_model_print_as_it_does():
    model = nnx.eval_shape(MODELS["decoder"])
    for part in (model.embedding, model.decoder, model.decoder.blocks[0]):
        assert repr(part).startswith(f"{type(part).__name__}: ")
        assert len(repr(part).splitlines()) <= 32


def test_equal_blocks_are_shown_once_and_the_whole_tree_stays_reachable():
    model = nnx.eval_shape(MODELS["translator"])
    assert "blocks" in repr(model)
    assert "3 x Block" in repr(model)
    assert "2 x Block" in repr(model)
    assert len(nnx.Module.__repr__(model).splitlines()) > 100
