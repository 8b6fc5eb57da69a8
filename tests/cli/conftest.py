"""A run directory with a small model that knows the four sentence pairs of row L1 by heart."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.experimental.compilation_cache import compilation_cache

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


@pytest.fixture(autouse=True)
def kept_programs(tmp_path_factory):
    """Programs compiled by one test serve the next, as each command compiles anew."""
    folder = tmp_path_factory.getbasetemp() / "programs"
    options = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    before = {name: getattr(jax.config, name) for name in options}
    compilation_cache.reset_cache()
    for name, value in options.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture(scope="session")
def lesson():
    return LESSON


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory):
    tokenizer = train_tokenizer("bpe", [text for pair in LESSON for text in pair], 330)
    config = TransformerConfig(
        vocab=tokenizer.vocab_size,
        width=32,
        encoder_layers=1,
        decoder_layers=1,
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
    tx = optax.adam(5e-3)

    def step(_, state):
        def loss(params):
            batch = (jnp.asarray(part) for part in (source, inputs, source_lengths))
            logits = nnx.merge(graph, params)(*batch)
            total, weight = cross_entropy(logits, jnp.asarray(target), jnp.asarray(weights))
            return total / weight

        params, opt_state, _ = state
        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, value

    begun = params, tx.init(params), jnp.float32(0)
    params, _, value = jax.jit(lambda state: jax.lax.fori_loop(0, 120, step, state))(begun)
    assert value < 0.05, value
    run = RunDirectory.create(tmp_path_factory.mktemp("runs") / "lesson")
    tokenizer.save(run.tokenizer)
    run.write(run.config, {"model": dataclasses.asdict(config)})
    checkpointer = Checkpointer(run.checkpoints)
    for number, scale in ((100, 0.9), (150, 1.0)):
        scaled = jax.tree.map(lambda leaf, scale=scale: leaf * scale, params)
        checkpointer.save(number, TrainState(jnp.int32(number), scaled, {}))
    checkpointer.wait()
    checkpointer.close()
    return run.path
