"""Our cases for language models: the library as used by its commands."""

# ruff: noqa: E402 (the allocator is set before jax is imported)

from transformer_jax.core.runtime import retain_freed_memory

retain_freed_memory()

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.ours_steps import training_steps
from benchmarks.worker import Setup, serve
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.programs import Programs, PromptBatch, SearchPrompts
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.costs.accounting import training_flops
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.placement import prepared
from transformer_jax.training.objectives import language_model
from transformer_jax.training.state import split


def configuration(
    vocab: int,
    width: int,
    heads: int,
    layers: int,
    context: int,
    gelu: str,
    dtype: Literal["float32", "bfloat16"],
):
    """Returns a GPT-2 without biases or dropout, nanoGPT's model."""
    return TransformerConfig(
        vocab_size=vocab,
        d_model=width,
        encoder_layers=0,
        decoder_layers=layers,
        embedding=EmbeddingConfig(scale=1.0, dropout=0.0),
        positions=PositionConfig(kind="learned", max_length=context),
        attention=AttentionConfig(num_heads=heads, bias=False, out_bias=False),
        feed_forward=FeedForwardConfig(
            d_ff=4 * width, activation="gelu" if gelu == "exact" else "gelu_tanh", bias=False
        ),
        norm=NormConfig(placement="pre", eps=1e-5, bias=False, residual_dropout=0.0),
        compute=ComputeConfig(dtype=dtype),
    )


def train(
    vocab, width, heads, layers, context, batch, gelu="exact", chunk=None, dtype="float32",
    compute=None, options=None,
):  # fmt: skip
    """One AdamW step with clipping, on full rows; ``compute`` has further settings."""
    config = configuration(vocab, width, heads, layers, context, gelu, dtype)
    config = dataclasses.replace(
        config, compute=dataclasses.replace(config.compute, **(compute or {}))
    )
    model = Decoder(config, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    draw = lambda: rng.integers(0, vocab, (batch, context)).astype(np.int32)
    ones = np.ones((batch, context), np.float32)
    batches = [{"tokens": draw(), "targets": draw(), "weights": ones} for _ in range(8)]
    how: dict[str, Any] = {"beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1, "options": options}
    run, facts = training_steps(model, language_model(chunk=chunk), width, batches, **how)
    return run, facts | {"flops": training_flops(config, batch, context)}


def resized(config: TransformerConfig, vocab: int, width: int, heads: int, layers: int):
    """Returns a decoder of another size, with feed-forward layers four times as wide."""
    return dataclasses.replace(
        config,
        vocab_size=vocab,
        d_model=width,
        decoder_layers=layers,
        attention=dataclasses.replace(config.attention, num_heads=heads),
        feed_forward=dataclasses.replace(config.feed_forward, d_ff=4 * width),
    )


def decode(preset, batch, prompt, new, beams=1, dtype="float32", **size):
    """The programs of ``DecoderLanguageModel``: prompts, then exactly ``new`` tokens each."""
    config = resized(PRESETS[preset], **size) if size else PRESETS[preset]
    compute = dataclasses.replace(config.compute, dtype=dtype)
    config = dataclasses.replace(config, compute=compute)
    graph, params = split(Decoder(config, rngs=nnx.Rngs(0)))
    narrow = lambda a: a.astype(dtype) if a.ndim > 1 else a
    graph, params = prepared(graph, jax.tree.map(narrow, params))
    end = config.vocab_size - 1
    programs = Programs(graph, SpecialTokens(end, 0, (end,)))
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, end, (batch, prompt)).astype(np.int32)
    if beams > 1:
        run = _beam_search(programs, params, tokens, new, beams, config.vocab_size)
    else:
        run = _greedy_search(programs, params, tokens, new, config.vocab_size)
    run(1)
    return run, {"weight_bytes": sum(a.nbytes for a in jax.tree.leaves(params))}


def _greedy_search(programs, params, tokens, new, vocab):
    batch, prompt = tokens.shape
    starts, before = np.zeros((2, batch), np.int32)
    limits = np.full(batch, new, np.int32)
    prompts = PromptBatch(tokens, starts, limits, before)
    size = 64 * -(-(prompt + new) // 64)
    until, most = np.int32(new), max(new, 64)
    plain = GenerationConfig(normalization="none")
    plan, values = search_settings(plain, programs.special, vocab=vocab, length=most)
    how: Any = {"plan": plan, "values": values}

    def run(times):
        for _ in range(times):
            at = programs.begin(params, prompts, size=size, length=most, **how)
            if new > 1:
                at = programs.decode(params, at, until, **how)
            out = np.asarray(at.tokens)[:new, :, 0].T
        return out[0, :8].tolist()

    return run


def _beam_search(programs, params, tokens, new, beams, vocab):
    batch, most = len(tokens), new + 1  # one more step, for the end
    config = GenerationConfig(num_beams=beams, normalization="power", min_length=most)
    plan, values = search_settings(config, programs.special, vocab=vocab, length=most)
    prompts = SearchPrompts(tokens, np.zeros(batch, np.int32), np.full(batch, most, np.int32))

    def run(times):
        for _ in range(times):
            found = programs.search(params, prompts, plan=plan, values=values, length=most)
            out = np.asarray(found.tokens)[:, 0, :new]
        return out[0, :8].tolist()

    return run


def floor(size, new):
    """``new`` products of a vector and a matrix of ``size`` float32 values: memory bandwidth."""
    rows = min(2048, size)
    matrix = jnp.ones((rows, size // rows), jnp.float32)
    vector = jnp.ones((1, rows), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    product(vector, matrix).block_until_ready()

    def run(times):
        for _ in range(times * new):
            out = product(vector, matrix)
            out.block_until_ready()
        return float(out[0, 0])

    return run, {"bytes": matrix.nbytes}


CASES: dict[str, Setup] = {"train": train, "decode": decode, "floor": floor}

if __name__ == "__main__":
    serve(CASES)
