"""Tokens that a model does not have are refused where they come in, and not read as others."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import drawn
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.decoding.hf_config import GenerationConfig
from transformer_jax.decoding.hf_generate import HFGenerator
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.windowed_generation import TextStart
from transformer_jax.inference.encoding.masked import MaskFiller
from transformer_jax.inference.encoding.task_runner import TaskRunner
from transformer_jax.inference.encoding.vectors import Embedder
from transformer_jax.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.heads import EncoderForMaskedLM, SequenceClassifier
from transformer_jax.models.layers.basic import Embed
from transformer_jax.models.presets import bert
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder

TOKENIZER = train_tokenizer("wordpiece", ["a bank by a river"] * 3, 60, special=BERT_SPECIAL)
V = TOKENIZER.vocab_size


def tiny(vocab=V):
    config = bert(8, 1, vocab_size=vocab, max_length=16, dropout=0.0)
    return dataclasses.replace(config, attention=AttentionConfig(num_heads=2))


def plain(encoder_layers, decoder_layers):
    return TransformerConfig(
        vocab_size=V,
        d_model=8,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        positions=PositionConfig(max_length=16),
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=16),
    )


BEYOND = [np.array([[1, V]]), np.array([[-1, 2]])]


@pytest.mark.parametrize("ids", BEYOND)
def test_a_table_has_the_rows_it_has(ids):
    table = Embed(V, 4, scale=1.0, rngs=nnx.Rngs(0))
    with pytest.raises(DataError, match=rf"index {ids[(ids < 0) | (ids >= V)][0]}: allowed are 0"):
        table(jnp.asarray(ids))
    # A compiled program cannot know, and is as it was.
    graph, params = nnx.split(table)
    found = jax.jit(lambda params, ids: nnx.merge(graph, params)(ids))(params, jnp.asarray(ids))
    np.testing.assert_array_equal(found, np.asarray(table.table[...])[ids.clip(0, V - 1)])


@pytest.mark.parametrize("ids", BEYOND)
@pytest.mark.slow
def test_models_that_are_called_as_they_are_refuse_others_tokens(ids):
    ids, lengths = jnp.asarray(ids), jnp.array([2])
    encoder = nnx.merge(*drawn(lambda: EncoderForMaskedLM(tiny(), rngs=nnx.Rngs(0))))
    pair = nnx.merge(*drawn(lambda: TransformerEncoderDecoder(plain(1, 1), rngs=nnx.Rngs(0))))
    decoder = nnx.merge(*drawn(lambda: Decoder(plain(0, 1), rngs=nnx.Rngs(0))))
    fine = jnp.zeros_like(ids)
    for call in (
        lambda: encoder(ids, lengths),
        lambda: encoder(fine, lengths, jnp.full_like(ids, 2)),  # segments are 0 and 1
        lambda: pair(ids, fine, lengths),
        lambda: pair(fine, ids, lengths),
        lambda: decoder(ids),
    ):
        with pytest.raises(DataError, match="allowed are 0 to"):
            call()


def test_arrays_for_language_models_are_looked_at():
    made = drawn(lambda: Decoder(plain(0, 1), rngs=nnx.Rngs(0)))
    model = DecoderLanguageModel(made, TOKENIZER)
    for text, known in (([V], [1]), ([2], [-1]), ([2**32 + 1], [1])):
        with pytest.raises(DataError, match=r"token .*: allowed are 0 to"):
            model.log_probs([text], [known])
    with pytest.raises(DataError, match="the first token of texts is"):
        DecoderLanguageModel(made, TOKENIZER, start=TextStart.of(V))
    writer = HFGenerator(made, GenerationConfig(eos_token_id=(2,), pad_token_id=0))
    for ids in (*BEYOND, np.array([[2**32 + 1]])):
        with pytest.raises(DataError, match="a prompt holds token"):
            writer.generate(ids)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused():
    small = tiny(V - 1)
    masked = drawn(lambda: EncoderForMaskedLM(small, rngs=nnx.Rngs(0)))
    told = drawn(lambda: SequenceClassifier(small, labels=2, rngs=nnx.Rngs(0)))
    for make in (
        lambda: Embedder(masked, TOKENIZER),
        lambda: MaskFiller(masked, TOKENIZER),
        lambda: TaskRunner(told, TOKENIZER, kind="classify"),
    ):
        with pytest.raises(ConfigError, match=f"has {V} tokens but the model {V - 1}"):
            make()
    graph, params = told
    waiting = TaskRunner((graph, None), TOKENIZER, kind="classify")
    with pytest.raises(ConfigError, match=f"has {V} tokens but the model {V - 1}"):
        waiting.params = params
