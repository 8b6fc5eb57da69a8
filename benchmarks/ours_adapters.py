"""Ours, as a worker: training steps of a decoder, of all parameters or only of adapters.

A process has one case, since its memory is measured.
"""

# ruff: noqa: E402 (the allocator is set before jax is imported)

from transformer_jax.core.runtime import retain_freed_memory

retain_freed_memory()

import dataclasses
import resource
from typing import Any

import numpy as np
from flax import nnx

from benchmarks.ours_steps import training_steps
from benchmarks.worker import serve
from transformer_jax.models.config import LoRAConfig
from transformer_jax.models.lora import lora
from transformer_jax.models.partition import EVERYTHING
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.training.objectives import language_model


def train(vocab, width, heads, layers, hidden, context, batch, rank):
    """AdamW with clipping on full rows; a ``rank`` of 0 trains all parameters."""
    base = PRESETS["llama_style"]
    config = dataclasses.replace(
        base,
        vocab_size=vocab,
        d_model=width,
        decoder_layers=layers,
        attention=dataclasses.replace(base.attention, num_heads=heads, num_kv_heads=None),
        feed_forward=dataclasses.replace(base.feed_forward, d_ff=hidden),
    )
    rng = np.random.default_rng(0)
    draw = lambda: rng.integers(0, vocab, (batch, context)).astype(np.int32)
    ones = np.ones((batch, context), np.float32)
    batches = [{"tokens": draw(), "targets": draw(), "weights": ones} for _ in range(4)]
    partition = lora(LoRAConfig(rank=rank)) if rank else EVERYTHING
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = Decoder(config, rngs=nnx.Rngs(0))
    how: dict[str, Any] = {"beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0}
    run, facts = training_steps(model, language_model(), width, batches, partition, **how)
    del model
    run(2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return run, facts | {"imported_mb": before // 1024, "peak_mb": peak // 1024}


if __name__ == "__main__":
    serve({"train": train})
