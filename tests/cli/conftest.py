"""A run directory with a small model that knows the four sentence pairs of row L1 by heart."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from transformer_jax.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.functional.losses import cross_entropy
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.training.checkpoint import Checkpointer
from transformer_jax.training.run_directory import RunDirectory
from transformer_jax.training.state import TrainState, split

LESSON = [
    ("Lucas irá viajar ao Rio em Dezembro.", "Lucas will travel to Rio in December."),
    ("Em Dezembro, Lucas irá viajar ao Rio.", "Lucas will travel to Rio in December."),
    ("O gato dorme.", "The cat sleeps."),
    ("Ela lê um livro.", "She reads a book."),
]


def rows_of(sequences, pad):
    out = np.full((len(sequences), max(map(len, sequences))), pad, np.int32)
    for row, ids in zip(out, sequences, strict=True):
        row[: len(ids)] = ids
    return out, np.array([len(ids) for ids in sequences], np.int32)


@pytest.fixture(scope="session")
def lesson():
    return LESSON


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory):
    tokenizer = train_tokenizer("bpe", [text for pair in LESSON for text in pair], 330)
    config = TransformerConfig(
        vocab=tokenizer.vocab_size,
        width=32,
        encoder_layers=2,
        decoder_layers=2,
        positions=PositionConfig(max_length=64),
        embedding=EmbeddingConfig(dropout=0.0),
        attention=AttentionConfig(heads=4),
        feed_forward=FeedForwardConfig(width=64),
        norm=NormConfig(place="pre", dropout=0.0),
    )
    source, source_lengths = rows_of(
        [[*tokenizer.encode(s), tokenizer.eos] for s, _ in LESSON], tokenizer.pad
    )
    target, target_lengths = rows_of(
        [[*tokenizer.encode(t), tokenizer.eos] for _, t in LESSON], tokenizer.pad
    )
    inputs = np.concatenate([np.full((4, 1), tokenizer.bos, np.int32), target[:, :-1]], 1)
    weights = (np.arange(target.shape[1])[None] < target_lengths[:, None]).astype(np.float32)
    graph, params = split(EncoderDecoder(config, rngs=nnx.Rngs(0)))
    tx = optax.adam(3e-3)

    @jax.jit
    def step(params, opt_state):
        def loss(params):
            batch = (jnp.asarray(part) for part in (source, inputs, source_lengths))
            logits = nnx.merge(graph, params)(*batch)
            total, weight = cross_entropy(logits, jnp.asarray(target), jnp.asarray(weights))
            return total / weight

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, value

    opt_state = tx.init(params)
    for _ in range(150):
        params, opt_state, value = step(params, opt_state)
    assert value < 0.05, value
    run = RunDirectory.create(tmp_path_factory.mktemp("runs") / "lesson")
    tokenizer.save(run.tokenizer)
    run.write(run.config, {"model": dataclasses.asdict(config)})
    checkpointer = Checkpointer(run.checkpoints)
    for number in (100, 150):
        checkpointer.save(number, TrainState(jnp.int32(number), params, opt_state))
    checkpointer.wait()
    checkpointer.close()
    return run.path
