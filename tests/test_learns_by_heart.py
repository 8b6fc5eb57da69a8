"""Row L1: the four pairs of the lecture, learnt by heart in under a minute and given back."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from transformer_jax.data.corpora.phrasebook import L1_PAIRS
from transformer_jax.data.loader import make_batch
from transformer_jax.data.pairs import collect
from transformer_jax.data.store import build_store
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.translator import Translator
from transformer_jax.models.build import make_model
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.partition import merging
from transformer_jax.models.recurrent_config import AlignmentConfig, RecurrentConfig
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.settings import OptimizerConfig, ScheduleConfig
from transformer_jax.training.state import TrainState, split
from transformer_jax.training.step import make_step

STEPS = 300
TRANSFORMER = TransformerConfig(
    d_model=32,
    encoder_layers=1,
    decoder_layers=1,
    embedding=EmbeddingConfig(dropout=0.0),
    positions=PositionConfig(max_length=64),
    attention=AttentionConfig(num_heads=4),
    feed_forward=FeedForwardConfig(d_ff=64),
    norm=NormConfig(placement="pre", residual_dropout=0.0),
)
RECURRENT = RecurrentConfig(d_model=32, bidirectional=False, max_length=64, dropout=0.0)
MODELS = {
    "transformer": TRANSFORMER,
    **{
        f"{score} {query}": dataclasses.replace(RECURRENT, attention=AlignmentConfig(score, query))
        for score in ("none", "dot", "scaled_dot", "general", "concat", "location")
        for query in ("current", "previous")
    },
    **{
        kind: dataclasses.replace(TRANSFORMER, mixer=MixerConfig(kind))
        for kind in ("recurrent", "convolution")
    },
}


@pytest.fixture(
    scope="module",
    params=[
        name if name == "transformer" else pytest.param(name, marks=pytest.mark.slow)
        for name in MODELS
    ],
)
def lesson(request):
    """Tokenizer, graph, parameters and batch of the pairs, before anything is learnt."""
    texts = [text for pair in L1_PAIRS for text in pair]
    tokenizer = train_tokenizer("bpe", texts, 300)
    config = dataclasses.replace(MODELS[request.param], vocab_size=tokenizer.vocab_size)
    pairs = collect(L1_PAIRS, "lecture")
    store = build_store(pairs, tokenizer)
    S, T = int(store.source_lengths.max()), int(store.target_lengths.max())
    batch = make_batch(store, np.arange(4), S, T, tokenizer.pad)
    graph, params = split(make_model("encoder-decoder", config, rngs=nnx.Rngs(0)))
    return tokenizer, graph, params, batch


@pytest.fixture(scope="module")
def learnt(lesson):
    tokenizer, graph, params, batch = lesson
    rate = OptimizerConfig(learning_rate=1e-2, schedule=ScheduleConfig("constant", warmup_steps=20))
    tx = make_optimizer(rate, 32, STEPS)
    step = jax.jit(make_step(sequence_to_sequence(tokenizer.bos), tx, merging(graph)))
    state, losses = TrainState(np.int32(0), params, tx.init(params), None), []
    for _ in range(STEPS):
        state, metrics = step(state, {}, batch, None)
        losses.append(float(metrics["loss"]))
    return Translator((graph, state.params), tokenizer), losses


@pytest.mark.slow
def test_the_loss_begins_at_chance(lesson):
    """Row B27: before training every token is about as likely as any other."""
    tokenizer, graph, params, batch = lesson
    objective = sequence_to_sequence(tokenizer.bos)
    sums = jax.jit(lambda params: objective(nnx.merge(graph, params), batch))(params)
    total, weight = sums["loss"]
    assert total / weight < 2 * np.log(tokenizer.vocab_size)


@pytest.mark.slow
def test_the_loss_ends_at_nothing(learnt):
    assert learnt[1][-1] < 0.05


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.slow
def test_all_four_references_come_back(learnt, beams):
    sources, targets = zip(*L1_PAIRS, strict=True)
    found = learnt[0].translate(sources, TRANSLATION.changed(num_beams=beams))
    assert [translation.text for translation in found] == list(targets)
