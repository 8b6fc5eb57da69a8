"""Ours, as a worker: training steps of adapters on a float32, bfloat16 or int8 base.

int8 is a prototype outside of the package: each column of a frozen matrix has a scale, and a linear
map converts its matrix to float32 in the forward and again in the backward pass.
"""

# ruff: noqa: E402 (the allocator is set before jax is imported)

from transformer_jax.core.runtime import retain_freed_memory

retain_freed_memory()

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks.worker import serve
from transformer_jax.core.trees import flatten_dict, unflatten_dict
from transformer_jax.functional.kernels.products import matmul
from transformer_jax.models.config import LoRAConfig
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.layers.parameters import parameters, values
from transformer_jax.models.layers.surgery import replaced
from transformer_jax.models.lora import lora
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.training.objectives import language_model
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.settings import OptimizerConfig, ScheduleConfig
from transformer_jax.training.state import TrainState
from transformer_jax.training.step import make_step


@jax.custom_vjp
def int8_linear(x, kernel, scale):
    """Computes ``x W`` for an int8 ``W`` with a scale per column."""
    return matmul(x, kernel.astype(x.dtype) * scale[None], x.ndim - 1, 0)


def _forward(x, kernel, scale):
    return int8_linear(x, kernel, scale), (kernel, scale)


def _backward(kept, g):
    kernel, scale = kept
    # Otherwise XLA keeps the float32 matrix of the forward pass.
    kernel, g = jax.lax.optimization_barrier((kernel, g))
    return matmul(g, kernel.astype(g.dtype) * scale[None], g.ndim - 1, 1), None, None


int8_linear.defvjp(_forward, _backward)


class Int8Linear(nnx.Module):
    """A linear map without a bias."""

    def __init__(self, kernel, scale):
        self.kernel, self.scale, self.bias = kernel, nnx.Param(scale), None

    def __call__(self, x):
        """Applies the map to each row."""
        return int8_linear(x, self.kernel[...], self.scale[...])


def quantized(frozen):
    """Returns parameters with int8 kernels, and the scales of columns by path."""
    leaves, scales = flatten_dict(frozen), {}
    for name, kernel in leaves.items():
        if name.endswith("/kernel") and "/blocks/" in name:
            scale = jnp.maximum(jnp.abs(kernel).max(0), 1e-12) / 127
            leaves[name] = jnp.round(kernel / scale[None]).astype(jnp.int8)
            scales[name.removesuffix("/kernel")] = scale
    return unflatten_dict(leaves), scales


def int8_merge(merge, graph, trainable, frozen, key):
    """Returns the model of a partition of adapters on a ``quantized`` base."""
    frozen, scales = frozen

    def make(path, module):
        scale = scales.get(path.removesuffix("/base"))
        return Int8Linear(module.kernel, scale) if type(module) is Linear else None

    return replaced(merge(graph, trainable, frozen, key), make)


def train(vocab, width, heads, layers, hidden, context, batch, rank, base):
    """AdamW with clipping on full rows; memory is measured for the compiled step."""
    preset = PRESETS["llama_style"]
    config = dataclasses.replace(
        preset,
        vocab_size=vocab,
        d_model=width,
        decoder_layers=layers,
        attention=dataclasses.replace(preset.attention, num_heads=heads, num_kv_heads=None),
        feed_forward=dataclasses.replace(preset.feed_forward, d_ff=hidden),
    )
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, vocab, (2, batch, context)).astype(np.int32)
    rows = {"tokens": tokens, "targets": targets, "weights": np.ones(tokens.shape, np.float32)}
    kept: Literal["float32", "bfloat16"] = "bfloat16" if base == "bfloat16" else "float32"
    partition = lora(LoRAConfig(rank=rank, base_dtype=kept))
    model = Decoder(config, rngs=nnx.Rngs(0))
    graph, (trained, frozen) = nnx.graphdef(model), partition.split(parameters(model), nnx.Rngs(0))
    params, frozen = values(trained), values(frozen)
    merge = functools.partial(partition.merge, graph)
    if base == "int8":
        frozen = quantized(frozen)
        merge = functools.partial(int8_merge, partition.merge, graph)
    how = {"beta2": 0.99, "eps": 1e-8, "weight_decay": 0.0}
    rate = OptimizerConfig(
        name="adamw", learning_rate=1e-3, schedule=ScheduleConfig("constant", 0), **how
    )
    tx = make_optimizer(rate, width, 1000, params=trained)
    del model, trained
    state = TrainState(jnp.int32(0), params, tx.init(params), None)
    program = jax.jit(make_step(language_model(), tx, merge), donate_argnums=0)
    step: Any = program.lower(state, frozen, rows, None).compile()
    memory = step.memory_analysis()
    held = {"state": state}

    def run(times):
        for _ in range(times):
            held["state"], metrics = step(held["state"], frozen, rows, None)
        return float(metrics["loss"])

    return run, {
        "base_mb": sum(leaf.nbytes for leaf in jax.tree.leaves(frozen)) >> 20,
        "temporary_mb": memory.temp_size_in_bytes >> 20,
        "loss_after_3": run(3),
    }


if __name__ == "__main__":
    serve({"train": train})
