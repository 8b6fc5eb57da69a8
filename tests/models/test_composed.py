"""Encoder-decoders composed of what others made: trained, sharded and searched like our own."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.decoding.finding import SearchRows, find
from tests.drawing import compiled, drawn
from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.models.composed import EncoderDecoder
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    TransformerConfig,
)
from transformer_jax.models.layers.basic import Embed, Linear
from transformer_jax.models.layers.parameters import layer_depths, parameters
from transformer_jax.models.partition import merging
from transformer_jax.models.protocol import Decodable, Encoded, Scorer
from transformer_jax.models.transformer.models import (
    TransformerDecoder,
    TransformerEncoder,
    TransformerEncoderDecoder,
)
from transformer_jax.parallel.sharding import shardings
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.state import TrainState, split
from transformer_jax.training.step import make_step

BOS, EOS, V, T = 1, 2, 12, 4
CONFIG = TransformerConfig(
    vocab_size=V,
    d_model=16,
    encoder_layers=1,
    decoder_layers=2,
    attention=AttentionConfig(num_heads=2, dropout=0.0),
    feed_forward=FeedForwardConfig(d_ff=32),
    embedding=EmbeddingConfig(dropout=0.0),
)


class BagOfEmbeddings(nnx.Module):
    """The embeddings of a set of tokens, each with the mean of all: no order, no attention."""

    def __init__(self, width, *, rngs):
        self.embedding = Embed(V, width, scale=1.0, rngs=rngs)

    def __call__(self, source, source_lengths, *, key=None):
        real = (jnp.arange(source.shape[1])[None] < source_lengths[:, None])[..., None]
        x = jnp.where(real, self.embedding(source), 0.0)
        return Encoded(x + x.sum(1, keepdims=True) / real.sum(1, keepdims=True), source_lengths)


def toy(width=16):
    rngs = nnx.Rngs(0)
    bridge = None if width == 16 else Linear(width, 16, (None, "embed"), rngs=rngs)
    decoder = TransformerDecoder.from_config(CONFIG, rngs=rngs)
    return EncoderDecoder(BagOfEmbeddings(width, rngs=rngs), decoder, bridge)


def sentences(seed, rows=32):
    """Sets of three tokens; the target has them in ascending order."""
    rng = np.random.default_rng(seed)
    source = np.stack([rng.permutation(np.arange(3, V))[:3] for _ in range(rows)]).astype(np.int32)
    ends = np.full((rows, 1), EOS, np.int32)
    return {
        "inputs": {"source": source, "source_lengths": np.full(rows, 3, np.int32)},
        "target": np.concatenate([np.sort(source), ends], 1),
        "lengths": np.full(rows, T, np.int32),
    }


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 10])
def test_a_toy_encoder_learns_with_our_decoder_and_is_searched_by_beams(width):
    """An encoder of another width gets a bridge."""
    graph, params = split(toy(width))
    tx = optax.adam(1e-2)
    state = TrainState(jnp.int32(0), params, tx.init(params))
    step = jax.jit(make_step(sequence_to_sequence(bos=BOS), tx, merging(graph)), donate_argnums=0)
    losses = []
    for number in range(150):
        state, metrics = step(state, {}, sentences(number), None)
        losses.append(float(metrics["loss"]))
    assert losses[-1] < 0.15 * losses[0], losses[::30]

    model = nnx.merge(graph, state.params)
    assert isinstance(model, Scorer)
    assert isinstance(model, Decodable)
    batch = sentences(999, rows=8)
    inputs = jax.tree.map(jnp.asarray, batch["inputs"])
    cache = compiled(model, lambda model, inputs: model.init_cache(inputs, 8, T + 1, beams=3))(
        inputs
    )
    rows, how = SearchRows(jnp.full(8, BOS, jnp.int32)), TRANSLATION.changed(num_beams=3)
    found = find(model, cache, rows, SpecialTokens(EOS, 0), how, vocab=V, length=T + 1)
    right = (np.asarray(found.tokens)[:, 0, :T] == batch["target"]).all(1)
    assert right.mean() >= 0.75, np.asarray(found.tokens)[:, 0]


class BagOfPatches(nnx.Module):
    """A bag of embeddings that reads vectors under names of its own, as of images."""

    def __init__(self, table):
        self.table = table

    def __call__(self, patches, *, key=None):
        x = patches @ self.table[...]
        return Encoded(x + x.mean(1, keepdims=True), None)


class StatesOfPatches(BagOfPatches):
    """The same states without a mask, as a Vision Transformer returns them."""

    def __call__(self, patches, *, key=None):
        return super().__call__(patches, key=key).states


@pytest.mark.slow
def test_an_encoder_without_padding_may_return_its_states_alone():
    texts, source = toy(), sentences(0)["inputs"]["source"]
    inputs = {"patches": jnp.eye(V)[source]}
    tokens, table = jnp.full((len(source), T), BOS), texts.encoder.embedding.table
    hidden = lambda encoder: compiled(
        EncoderDecoder(encoder(table), texts.decoder), lambda model, *args: model.hidden(*args)
    )(inputs, tokens)
    chex.assert_trees_all_equal(hidden(StatesOfPatches), hidden(BagOfPatches))


@pytest.mark.slow
def test_the_objective_gives_an_encoder_its_inputs_by_name():
    """Captions of pictures whose patches are one-hot vectors: the loss of the tokens."""
    texts, batch = toy(), sentences(0)
    captions = EncoderDecoder(BagOfPatches(texts.encoder.embedding.table), texts.decoder)
    patches = np.eye(V, dtype=np.float32)[batch["inputs"]["source"]]
    pictures = batch | {"inputs": {"patches": patches}}
    loss = compiled(captions, sequence_to_sequence(bos=BOS))(pictures)
    chex.assert_trees_all_close(
        loss, compiled(texts, sequence_to_sequence(bos=BOS))(batch), rtol=1e-5
    )


@pytest.mark.slow
def test_the_transformer_is_the_composition_of_its_halves():
    """With the same parameters under the paths of its own fields."""
    apart = EmbeddingConfig(share_encoder_decoder_embeddings=False, dropout=0.0)
    config = dataclasses.replace(CONFIG, embedding=apart)
    make = lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0))
    model = nnx.merge(*drawn(make))
    composed = EncoderDecoder(model.as_encoder(), model.as_decoder())
    batch = sentences(0, rows=3)
    inputs = jax.tree.map(jnp.asarray, batch["inputs"])
    tokens = jnp.asarray(batch["target"])
    hidden = lambda model, *args: model.hidden(*args)
    states = compiled(model, hidden)(inputs, tokens)
    chex.assert_trees_all_equal(compiled(composed, hidden)(inputs, tokens), states)
    cache = compiled(composed, lambda model, inputs: model.init_cache(inputs, 3, T))(inputs)
    step = compiled(composed, lambda model, *args: model.step(*args))
    for t in range(T):
        logits, cache = step(tokens[:, t], cache)
    expected = model.logits(states)[:, -1]
    chex.assert_trees_all_close(logits, expected, atol=1e-5)


def test_a_shared_table_belongs_to_the_decoder():
    rngs = nnx.Rngs(0)
    decoder = TransformerDecoder.from_config(CONFIG, rngs=rngs)
    encoder = TransformerEncoder.from_config(CONFIG, embedding=decoder.embedding, rngs=rngs)
    found = parameters(EncoderDecoder(encoder, decoder))
    assert "embedding" in found["decoder"]
    assert "embedding" not in found["encoder"]


def test_composed_parameters_shard_and_a_decoder_is_above_its_encoder():
    rngs = nnx.Rngs(0)
    encoder = TransformerEncoder.from_config(CONFIG, rngs=rngs)
    model = EncoderDecoder(encoder, TransformerDecoder.from_config(CONFIG, rngs=rngs))
    declared = parameters(model)
    mesh = jax.sharding.AbstractMesh((1, 2, 2), ("data", "fsdp", "tensor"))
    table = shardings(declared, mesh)["encoder"]["embedding"]["table"]
    assert table.spec == jax.sharding.PartitionSpec("tensor", "fsdp")
    depths = layer_depths(declared)
    up = lambda side, i: depths[side]["stack"]["blocks"][i]["feed_forward"]["up"]["kernel"]
    assert [up("encoder", 0), up("decoder", 0), up("decoder", 1)] == [1, 2, 3]
    assert depths["decoder"]["embedding"]["table"] == 0


def test_an_encoder_of_another_width_is_refused_without_a_bridge():
    rngs = nnx.Rngs(0)
    decoder = TransformerDecoder.from_config(CONFIG, rngs=rngs)
    model = EncoderDecoder(BagOfEmbeddings(10, rngs=rngs), decoder)
    inputs = {"source": jnp.ones((2, 3), jnp.int32), "source_lengths": jnp.array([3, 2])}
    for use in (
        lambda: model.hidden(inputs, jnp.ones((2, T), jnp.int32)),
        lambda: model.init_cache(inputs, 2, T),
    ):
        with pytest.raises(
            ConfigError, match="have width 10, the decoder 16: give EncoderDecoder a bridge"
        ):
            use()
