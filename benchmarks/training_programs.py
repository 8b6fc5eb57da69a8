"""Training steps of the GPU benchmark, compiled for devices that need not be there."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import SingleDeviceSharding

from benchmarks import ours, ours_language
from benchmarks.ours_steps import step_parts
from benchmarks.program_kernels import Kernel, kernels, totals
from transformer_jax.models.config import ComputeConfig, TransformerConfig
from transformer_jax.models.heads import EncoderForMaskedLM
from transformer_jax.models.partition import EVERYTHING
from transformer_jax.models.presets import PRESETS, bert
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder
from transformer_jax.parallel.device_catalog import compile_only, find_target
from transformer_jax.recipes.sizing import without_attention_dropout
from transformer_jax.training.objectives import (
    language_model,
    masked_lm,
    sequence_to_sequence,
)
from transformer_jax.training.step import Objective

__all__ = ["STEPS", "StepCase"]


@dataclasses.dataclass(frozen=True)
class StepCase:
    """A step of AdamW in bfloat16 on one device.

    Attributes:
        model: GPT-2 small, on rows of 1,024 tokens: ``nanogpt`` without biases and dropout,
            ``gpt2`` as in the named run; ``base``, on pairs of 64 + 64 tokens; or ``bert``, base
            size, on pairs of sentences of 512 tokens of which 77 are masked. The models of named
            runs have dropout, except of attention weights.
        rows: Rows of a batch.
        layers: Number of layers of an encoder and of a decoder.
        logits_chunk: See :class:`.ComputeConfig`.
        logits_dtype: See :class:`.ComputeConfig`.
        target: The device.
    """

    model: Literal["nanogpt", "gpt2", "base", "bert"]
    rows: int
    layers: int = 12
    logits_chunk: int | None = None
    logits_dtype: Literal["float32", "bfloat16"] = "float32"
    target: str = "h200:1"

    def figures(self) -> dict[str, Any]:
        """Returns launches, bytes and operations of the compiled step, and those of its parts."""
        target = find_target(self.target)
        parts = _PARTS[self.model](self)
        model = nnx.eval_shape(parts.model)
        width, adamw = model.config.d_model, parts.adamw
        made = step_parts(model, parts.objective, width, target.device, EVERYTHING, **adamw)
        place = SingleDeviceSharding(target.devices[0])
        there = lambda tree: jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), tree
        )
        state = jax.eval_shape(made.start, made.params)
        key = jax.eval_shape(lambda: jax.random.key(0)) if parts.dropout else None
        with compile_only(target):
            traced = jax.jit(made.step, donate_argnums=0).trace(
                there(state), there(made.frozen), there(parts.batch), there(key)
            )
            compiled = traced.lower(lowering_platforms=(target.lowering,)).compile()
        memory, text = compiled.memory_analysis(), compiled.as_text()
        assert memory is not None
        assert text is not None
        found, kinds = kernels(text), collections.defaultdict(list)
        for one in found:
            kinds[_part(one)].append(one)
        return {
            **_sums(found),
            "temporaries_GB": round(memory.temp_size_in_bytes / 1e9, 2),
            "parts": {name: _sums(some) for name, some in sorted(kinds.items())},
        }

    def computed(self, config: TransformerConfig) -> TransformerConfig:
        """Returns the configuration with the case's computation."""
        compute = ComputeConfig(
            "bfloat16", logits_dtype=self.logits_dtype, logits_chunk=self.logits_chunk
        )
        return dataclasses.replace(config, compute=compute)


class _Parts(NamedTuple):
    model: Callable[[], Any]
    objective: Objective
    batch: dict[str, Any]
    adamw: dict[str, float]
    dropout: bool = False


def _whole(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _nanogpt(case: StepCase) -> _Parts:
    config = ours_language.configuration(50_304, 768, 12, case.layers, 1024, "exact", "bfloat16")
    return _language_model(case, config)


def _gpt2(case: StepCase) -> _Parts:
    config = dataclasses.replace(PRESETS["gpt2_small"], decoder_layers=case.layers)
    return _language_model(case, without_attention_dropout(config))._replace(dropout=True)


def _language_model(case: StepCase, config: TransformerConfig) -> _Parts:
    config = case.computed(config)
    tokens = _whole(case.rows, 1024)
    weights = jax.ShapeDtypeStruct(tokens.shape, jnp.float32)
    batch = {"tokens": tokens, "targets": tokens, "weights": weights}
    adamw = {"beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
    return _Parts(lambda: Decoder(config, rngs=nnx.Rngs(0)), language_model(), batch, adamw)


def _base(case: StepCase) -> _Parts:
    config = case.computed(ours.configuration(37_000, 512, 8, case.layers, 2048, final=True))
    texts, lengths = _whole(case.rows, 64), _whole(case.rows)
    inputs = {"source": texts, "source_lengths": lengths}
    batch = {"inputs": inputs, "target": texts, "lengths": lengths}
    make = lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0))
    return _Parts(make, sequence_to_sequence(ours.BOS, 0.1), batch, {"weight_decay": 0.01})


def _bert(case: StepCase) -> _Parts:
    config = case.computed(without_attention_dropout(bert(768, case.layers)))
    tokens, masked = _whole(case.rows, 512), _whole(case.rows, 77)
    batch = {
        **{"tokens": tokens, "types": tokens, "lengths": _whole(case.rows)},
        **{"masked_positions": masked, "targets": masked},
        "weights": jax.ShapeDtypeStruct(masked.shape, jnp.float32),
        "next_sentence_label": _whole(case.rows),
    }
    make = lambda: EncoderForMaskedLM(config, rngs=nnx.Rngs(0))
    return _Parts(make, masked_lm(), batch, {"weight_decay": 0.01}, dropout=True)


_PARTS = {"nanogpt": _nanogpt, "gpt2": _gpt2, "base": _base, "bert": _bert}


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
    "GPT-2 small, a step": StepCase("nanogpt", 16),
    "GPT-2 small, a step, logits in four parts": StepCase(
        "nanogpt", 16, logits_chunk=16 * 1024 // 4
    ),
    "GPT-2 small, a step, logits in bfloat16": StepCase("nanogpt", 16, logits_dtype="bfloat16"),
    "Transformer-base, a step": StepCase("base", 384, 6),
    "Transformer-base, a step, logits in four parts": StepCase(
        "base", 384, 6, logits_chunk=384 * 64 // 4
    ),
    "Transformer-base, a step, logits in bfloat16": StepCase(
        "base", 384, 6, logits_dtype="bfloat16"
    ),
    "gpt2-small as named, a step": StepCase("gpt2", 16),
    "BERT-base as named, a step": StepCase("bert", 32),
}
