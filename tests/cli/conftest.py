"""The command, and run directories: of a translator that knows its lesson, of language models."""

import dataclasses
import io
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.drawing import drawn
from transformer_jax.cli.main import main
from transformer_jax.data.corpora.phrasebook import L1_PAIRS
from transformer_jax.data.tokenizer import SPECIAL, train_tokenizer
from transformer_jax.decoding.ngram import NgramLanguageModel
from transformer_jax.functional.losses import cross_entropy
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.state import TrainState, split

LESSON = list(L1_PAIRS)


def rows_of(sequences, pad):
    out = np.full((len(sequences), max(map(len, sequences))), pad, np.int32)
    for row, ids in zip(out, sequences, strict=True):
        row[: len(ids)] = ids
    return out, np.array([len(ids) for ids in sequences], np.int32)


class Command:
    """The command with text on standard input; its code, output lines and errors."""

    def __init__(self, monkeypatch, capsysbinary):
        self.monkeypatch, self.capsys = monkeypatch, capsysbinary

    def __call__(self, *arguments, text=""):
        raw = text if isinstance(text, bytes) else text.encode()
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        code = main([str(argument) for argument in arguments])
        out, err = self.capsys.readouterr()
        return code, out.decode().split("\n"), err.decode()


@pytest.fixture
def run_command(monkeypatch, capsysbinary):
    return Command(monkeypatch, capsysbinary)


@pytest.fixture(scope="session")
def lesson():
    return LESSON


@pytest.fixture(scope="session")
def trained_run(shared):
    return shared("lesson", train_lesson)


@pytest.fixture(scope="session")
def learnt_run(shared):
    """A run that knows the lesson so well that weights in int8 do, on every processor."""
    return shared("learnt", lambda path: train_lesson(path, 300))


def train_lesson(folder, steps=120):
    tokenizer = train_tokenizer("bpe", [text for pair in LESSON for text in pair], 330)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        positions=PositionConfig(max_length=64),
        embedding=EmbeddingConfig(dropout=0.0),
        attention=AttentionConfig(num_heads=4),
        feed_forward=FeedForwardConfig(d_ff=64),
        norm=NormConfig(placement="pre", residual_dropout=0.0),
    )
    source, source_lengths = rows_of(
        [[*tokenizer.encode(s), tokenizer.eos] for s, _ in LESSON], tokenizer.pad
    )
    target, target_lengths = rows_of(
        [[*tokenizer.encode(t), tokenizer.eos] for _, t in LESSON], tokenizer.pad
    )
    inputs = np.concatenate([np.full((4, 1), tokenizer.bos, np.int32), target[:, :-1]], 1)
    weights = (np.arange(target.shape[1])[None] < target_lengths[:, None]).astype(np.float32)
    graph, params = drawn(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)), spread=0.2)
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
    params, _, value = jax.jit(lambda state: jax.lax.fori_loop(0, steps, step, state))(begun)
    assert value < 0.05, value
    run = RunDirectory.create(folder)
    tokenizer.save(run.tokenizer)
    run.write(run.config, {"model": dataclasses.asdict(config)})
    checkpointer = Checkpointer(run.checkpoints)
    for number, scale in ((100, 0.9), (150, 1.0)):
        scaled = jax.tree.map(lambda leaf, scale=scale: leaf * scale, params)
        checkpointer.save(number, TrainState(jnp.int32(number), scaled, {}))
    checkpointer.wait()
    checkpointer.close()


CONTEXT = 24
TEXT = "a cab, a bad dad, a fed cafe\nabcdefgh\n"


def language_run(folder, kind, positions, first, context=CONTEXT, special=SPECIAL):
    """A decoder that has learnt nothing, but is far from uniform."""
    tokenizer = train_tokenizer(kind, [TEXT], 300, special=special)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        encoder_layers=0,
        decoder_layers=1,
        positions=PositionConfig(kind=positions, max_length=context),
        embedding=EmbeddingConfig(dropout=0.0),
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=32),
        norm=NormConfig(placement="pre", residual_dropout=0.0),
    )
    run = RunDirectory.create(folder)
    tokenizer.save(run.tokenizer)
    run.write(run.config, {"model": dataclasses.asdict(config), "first": first})
    params = split(Decoder(config, rngs=nnx.Rngs(1)))[1]
    params = jax.tree.map(lambda leaf: leaf * 2 if leaf.ndim > 1 else leaf, params)
    checkpointer = Checkpointer(run.checkpoints)
    checkpointer.save(7, TrainState(jnp.int32(7), params, {}))
    checkpointer.wait()
    checkpointer.close()
    return run.path


@pytest.fixture(scope="session")
def decoder_run(tmp_path_factory):
    """Learned positions, characters, a single text that begins after a line end."""
    folder = tmp_path_factory.mktemp("runs") / "decoder"
    return language_run(folder, "characters", "learned", "newline")


@pytest.fixture(scope="session")
def rotary_run(tmp_path_factory):
    """Rotary positions, bytes, documents that begin with BOS and end."""
    return language_run(tmp_path_factory.mktemp("runs") / "rotary", "bytes", "rope", "bos")


@pytest.fixture(scope="session")
def ngram_run(tmp_path_factory):
    tokenizer = train_tokenizer("characters", [TEXT], 300)
    run = RunDirectory.create(tmp_path_factory.mktemp("runs") / "ngram")
    tokenizer.save(run.tokenizer)
    run.write(run.config, {"model": {"kind": "ngram", "order": 3}})
    model = NgramLanguageModel.train([TEXT] * 3, tokenizer, order=3).model
    model.save(run.path / "ngram.npz")
    return run.path
