"""Training steps of the GPU benchmark, compiled for devices that need not be there."""

import collections
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import SingleDeviceSharding

from benchmarks import ours, ours_language
from benchmarks.ours_steps import step_parts
from benchmarks.program_kernels import Kernel, kernels, totals
from transformer_jax.models.partition import EVERYTHING
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder
from transformer_jax.parallel.device_catalog import compile_only, find_target
from transformer_jax.training.objectives import language_model, sequence_to_sequence

__all__ = ["STEPS", "StepCase"]


@dataclasses.dataclass(frozen=True)
class StepCase:
    """A step of AdamW in bfloat16 on one device.

    Attributes:
        model: GPT-2 small without biases, on rows of 1,024 tokens, or Transformer-base, on pairs of
            64 + 64 tokens.
        rows: Rows of a batch.
        chunk: Rows whose logits are held at a time: see :func:`.linear_cross_entropy`.
        layers: Number of layers of an encoder and of a decoder.
        target: The device.
    """

    model: str
    rows: int
    chunk: int | None = None
    layers: int = 12
    target: str = "h200:1"

    def figures(self) -> dict[str, Any]:
        """Returns launches, bytes and operations of the compiled step, and those of its parts."""
        target = find_target(self.target)
        model, objective, width, batch, adamw = self._parts()
        made = step_parts(model, objective, width, target.device, EVERYTHING, **adamw)
        place = SingleDeviceSharding(target.devices[0])
        there = lambda tree: jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), tree
        )
        state = jax.eval_shape(made.start, made.params)
        with compile_only(target):
            traced = jax.jit(made.step, donate_argnums=0).trace(
                there(state), there(made.frozen), there(batch), None
            )
            compiled = traced.lower(lowering_platforms=(target.lowering,)).compile()
        memory, text = compiled.memory_analysis(), compiled.as_text()
        assert memory is not None
        assert text is not None
        found, parts = kernels(text), collections.defaultdict(list)
        for one in found:
            parts[_part(one)].append(one)
        return {
            **_sums(found),
            "temporaries_GB": round(memory.temp_size_in_bytes / 1e9, 2),
            "parts": {name: _sums(some) for name, some in sorted(parts.items())},
        }

    def _parts(self) -> tuple[nnx.Module, Any, int, dict[str, Any], dict[str, float]]:
        whole = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
        if self.model == "gpt2":
            config = ours_language.configuration(
                50_304, 768, 12, self.layers, 1024, "exact", "bfloat16"
            )
            model: nnx.Module = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
            tokens = whole(self.rows, 1024)
            weights = jax.ShapeDtypeStruct(tokens.shape, jnp.float32)
            batch: dict[str, Any] = {"tokens": tokens, "targets": tokens, "weights": weights}
            adamw = {"beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
            return model, language_model(chunk=self.chunk), 768, batch, adamw
        config = ours.configuration(37_000, 512, 8, self.layers, 2048, final=True)
        compute = dataclasses.replace(config.compute, dtype="bfloat16")
        config = dataclasses.replace(config, compute=compute)
        model = nnx.eval_shape(lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))
        texts, lengths = whole(self.rows, 64), whole(self.rows)
        inputs = {"source": texts, "source_lengths": lengths}
        batch = {"inputs": inputs, "target": texts, "lengths": lengths}
        objective = sequence_to_sequence(ours.BOS, 0.1, chunk=self.chunk)
        return model, objective, 512, batch, {"weight_decay": 0.01}


def _part(one: Kernel) -> str:
    if "fmha" in one.kind:
        return "attention"
    if one.flops or "gemm" in one.kind:
        return "products"
    if "transpose(jvp" in one.operation:
        return "backward pass"
    return "forward pass" if "jvp(" in one.operation else "update"


def _sums(found: list[Kernel]) -> dict[str, Any]:
    launches, size = totals(found)
    flops = sum(one.launches * one.flops for one in found)
    return {"launches": launches, "GB": round(size / 1e9, 2), "TFLOP": round(flops / 1e12, 2)}


STEPS = {
    "GPT-2 small, a step": StepCase("gpt2", 16),
    "GPT-2 small, a step, logits in four parts": StepCase("gpt2", 16, chunk=16 * 1024 // 4),
    "Transformer-base, a step": StepCase("base", 384, layers=6),
    "Transformer-base, a step, logits in four parts": StepCase(
        "base", 384, chunk=384 * 64 // 4, layers=6
    ),
}
