"""Decoding loops of the GPU benchmarks, compiled for GPUs and TPUs that need not be there."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import SingleDeviceSharding
from jaxtyping import PyTree

from benchmarks import ours
from benchmarks.ours_language import resized
from benchmarks.program_kernels import Loop, loops, totals
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.programs import Programs, SearchPrompts
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder
from transformer_jax.parallel.device_catalog import Target, compile_only, find_target
from transformer_jax.parallel.placement import prepare_for_decoding
from transformer_jax.parallel.program_report import estimated_cycles, parsed

__all__ = ["DECODING", "DecodingCase"]

_UNSPLIT = {"xla_gpu_experimental_force_split_k": "1"}


@dataclasses.dataclass(frozen=True)
class DecodingCase:
    """Search by a model in bfloat16 on one device.

    Attributes:
        model: GPT-2 small, which continues prompts, or Transformer-base, which translates.
        batch: Number of texts.
        beams: Beams of each.
        read: Tokens of a prompt or source.
        written: Tokens of a continuation or translation.
        layers: Number of layers of an encoder and of a decoder.
        target: The device.
    """

    model: str
    batch: int
    beams: int
    read: int = 32
    written: int = 32
    layers: int = 12
    target: str = "h200:1"

    def figures(self) -> dict[str, int | float]:
        """Returns launches and megabytes of one turn of the compiled loop, and the least MB.

        For a TPU, operations of the turn instead of launches, and the cycles that the compiler
        expects of them, in thousands; see :func:`.estimated_cycles`.

        The least is what a step reads in any case: the decoder's weights once, and the part of its
        cache that is filled on average. With several texts, there are also the figures of products
        that XLA's ``splitk-rewriter`` leaves whole: by default, it divides the sums of a product
        that has few results over more processors, before kernels are chosen, and the partial sums
        in float32 are written and read.
        """
        target = find_target(self.target)
        arguments, text, least = self._compiled(target)
        loop = _longest(text)
        (launches, size), (checks, _) = totals(loop.body), totals(loop.condition)
        found = {
            "launches": launches,
            "launches_of_the_condition": checks,
            "MB": round(size / 1e6, 1),
            "least_MB": round(least / 1e6, 1),
            "arguments_MB": round(arguments / 1e6, 1),
        }
        if target.type.platform == "tpu":
            cycles = estimated_cycles(parsed(text).within(loop.turn))
            thousands = {f"of_{kind}": round(n / 1e3, 1) for kind, n in cycles.items()}
            thousands["in_all"] = round(sum(cycles.values()) / 1e3, 1)
            return found | {f"estimated_Kcycles_{kind}": n for kind, n in thousands.items()}
        if self.batch > 1:
            launches, size = totals(_longest(self._compiled(target, _UNSPLIT)[1]).body)
            found |= {"launches_unsplit": launches, "MB_unsplit": round(size / 1e6, 1)}
        return found

    def _compiled(
        self, target: Target, options: dict[str, str] | None = None
    ) -> tuple[int, str, float]:
        """Returns the bytes of the arguments, the program's text, and the least bytes of a step."""
        translates, special = self.model == "base", SpecialTokens(3, 0, (3,))
        config = (
            ours.configuration(37_000, 512, 8, self.layers, 2048)
            if translates
            else resized(PRESETS["gpt2_small"], 50_257, 768, 12, self.layers)
        )
        compute = dataclasses.replace(config.compute, dtype="bfloat16")
        config = dataclasses.replace(config, compute=compute)
        kind = TransformerEncoderDecoder if translates else Decoder
        make = lambda: with_attention_kernels(kind(config, rngs=nnx.Rngs(0)), target.device)
        graph, state = nnx.split(nnx.eval_shape(lambda: prepare_for_decoding(make())))
        narrow = lambda leaf: jnp.bfloat16 if len(leaf.shape) > 1 else leaf.dtype
        place = SingleDeviceSharding(target.devices[0])
        there = lambda leaf, dtype=None: jax.ShapeDtypeStruct(
            jnp.shape(leaf), dtype or jnp.result_type(leaf), sharding=place
        )
        params = jax.tree.map(lambda leaf: there(leaf, narrow(leaf)), nnx.to_pure_dict(state))
        number: Any = lambda *shape: there(jax.ShapeDtypeStruct(shape, jnp.int32))
        texts, rows = number(self.batch, self.read), number(self.batch)
        inputs = {"source": texts, "source_lengths": rows} if translates else None
        prompts = SearchPrompts(number(self.batch, 1) if translates else texts, rows, rows, inputs)
        base: Any = TRANSLATION if translates else GenerationConfig(normalization="none")
        length = self.written + (self.beams > 1)
        plan, values = search_settings(
            base.changed(num_beams=self.beams), special, vocab=config.vocab_size, length=length
        )
        program = Programs(graph, special).search.jitted
        with compile_only(target):
            traced = program.trace(params, prompts, plan=plan, values=values, length=length)
            compiled = traced.lower(lowering_platforms=(target.lowering,)).compile(options)
        memory, text = compiled.memory_analysis(), compiled.as_text()
        assert memory is not None
        assert text is not None
        own = self.beams * self.written / 2 + (0 if translates else self.read)
        filled = own + (self.read if translates else 0)
        cache = 2 * 2 * self.batch * self.layers * config.d_model * filled
        return memory.argument_size_in_bytes, text, _weights(params) + cache


def _longest(text: str) -> Loop:
    return max(loops(text), key=lambda loop: len(loop.body))


def _weights(params: PyTree) -> int:
    """Returns the bytes of the weights that a step reads completely."""
    size = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        names = [str(getattr(key, "key", key)) for key in path]
        once = names[0] == "encoder" or "positions" in names
        projects = "cross_attention" in names and {"key", "value"} & set(names)
        size += 0 if once or projects else leaf.size * leaf.dtype.itemsize
    return size


def _searches() -> Iterator[tuple[str, DecodingCase]]:
    for target, where in (("h200:1", ""), ("v5e:1x1", ", TPU")):
        for batch, texts in ((1, "1 text"), (32, "32 texts")):
            greedy = DecodingCase("gpt2-small", batch, 1, written=256, target=target)
            yield f"gpt2-small, decoding, {texts}{where}", greedy
            beams = DecodingCase("base", batch, 4, written=31, layers=6, target=target)
            yield f"base, decoding, {texts}, 4 beams{where}", beams


DECODING = dict(_searches())
