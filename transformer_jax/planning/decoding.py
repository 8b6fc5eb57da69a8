"""The decoding programs of a run: translations by beam search, and the text that a model writes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import BatchingConfig, SpecialTokens, TranslationBatching
from transformer_jax.decoding.programs import Programs, PromptBatch, SearchPrompts
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.windows import round_up
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.models.layers.parameters import map_parameters, parameters
from transformer_jax.models.layers.replace import prepare_for_decoding, with_attention_kernels
from transformer_jax.models.making import make_model
from transformer_jax.parallel.sharding import num_batch_shards, shardings
from transformer_jax.recipes.registry import get_recipe

__all__ = ["DecodingProgram", "decoding_program", "decoding_shape"]

_SPECIAL = SpecialTokens(eos=2, pad=0)  # of programs that are compiled only, any will do
_FIRST_CACHE = 256  # positions that a short prompt begins with


class DecodingProgram(NamedTuple):
    """A program that generates texts.

    Attributes:
        jitted: A jitted function.
        arguments: Its arguments, which are shapes.
        settings: Its static arguments.
        outgrown: Arrays that lie beside it as it starts: the smaller cache that it grew from.
    """

    jitted: Any
    arguments: tuple[Any, ...]
    settings: dict[str, Any]
    outgrown: Any = None


class DecodingShape(NamedTuple):
    """Texts at once, beams of each, and the most tokens that are read and written."""

    rows: int
    beams: int
    read: int
    written: int


def decoding_shape(run: Any, platform: str, shards: int) -> DecodingShape | None:
    """The largest decoding of a run, at its own settings; None for a run that generates nothing.

    A translator is tested with as many lines at once as :class:`TranslationBatching` allows, a
    language model writes one sample.

    Args:
        run: The run.
        platform: Of the devices.
        shards: How many groups of devices share the rows.

    Example:
        >>> decoding_shape(get_recipe("translation").runs["base"][1], "gpu", 8)
        DecodingShape(rows=32, beams=4, read=256, written=522)
    """
    up = lambda rows: -(-rows // shards) * shards
    decoding = get_recipe(run.recipe).decoding
    if decoding == "search":
        batching, search = TranslationBatching(), run.evaluation.search(run.evaluation.num_beams)
        most = run.model.max_length
        longest = min(run.data.read.max_length, batching.source_lengths[-1], most)
        read = min(round_up(longest, batching.source_lengths), most)
        rows = up(batching.allowed_rows(read, search.num_beams)[-1])
        return DecodingShape(rows, search.num_beams, read, search.target_tokens(read, most))
    if decoding is None or not run.evaluation.sample:
        return None
    shapes = BatchingConfig().for_platform(platform)
    context = run.model.max_length
    read = round_up(1, shapes.lengths)
    written = round_up(min(run.evaluation.sample, context), shapes.caches)
    return DecodingShape(round_up(1, shapes.rows), 1, read, written)


def decoding_program(run: Any, mesh: Mesh) -> DecodingProgram | None:
    """The decoding program of a run with the largest shape; None for a run without."""
    device, shards = mesh.devices.flat[0], num_batch_shards(mesh)
    platform = {"cuda": "gpu", "rocm": "gpu"}.get(device.platform, device.platform)
    shape = decoding_shape(run, platform, shards)
    if shape is None:
        return None
    searches = get_recipe(run.recipe).decoding == "search"
    kind: Any = "encoder-decoder" if searches else "decoder"
    made = lambda: make_model(kind, run.model, rngs=nnx.Rngs(0))
    with on_mesh(mesh):
        model = nnx.eval_shape(lambda: prepare_for_decoding(with_attention_kernels(made(), device)))
    declared = parameters(model)
    shapes = map_parameters(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), declared)
    params = jax.tree.map(
        lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s),
        shapes,
        shardings(declared, mesh),
    )
    programs = Programs(nnx.graphdef(model), _SPECIAL)
    number = lambda *shape: jax.ShapeDtypeStruct((shape), jnp.int32)
    rows, vocab = shape.rows, run.model.decoder_vocab_size or run.model.vocab_size
    how: dict[str, Any] = {"vocab": vocab, "length": shape.written}
    if searches:
        inputs = {"source": number(rows, shape.read), "source_lengths": number(rows)}
        prompts = SearchPrompts(number(rows, 1), number(rows), number(rows), inputs)
        config = TRANSLATION.changed(num_beams=shape.beams)
        plan, values = search_settings(config, _SPECIAL, **how)
        settings = {"plan": plan, "values": values, "length": shape.written}
        return DecodingProgram(programs.search.jitted, (params, prompts), settings)
    tokens = number(rows, shape.read)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), rows))
    prompt = PromptBatch(tokens, number(rows), number(rows), number(rows), keys)
    nucleus = GenerationConfig(top_p=0.95, normalization="none")
    plan, values = search_settings(nucleus, _SPECIAL, **how, sampled=True)
    settings = {"plan": plan, "values": values}
    caches = BatchingConfig().caches
    # The cache grows with the text: the last one is the largest.
    largest = caches.index(round_up(min(shape.read + shape.written, caches[-1]), caches))

    def begun(size: int) -> Any:
        sizes = {"size": size, "length": shape.written}
        with on_mesh(mesh):
            return programs.begin.jitted.eval_shape(params, prompt, **settings, **sizes)

    progress = begun(caches[largest])
    outgrown = begun(caches[largest - 1]).cache if caches[largest] > _FIRST_CACHE else None
    arguments = (params, progress, number())
    return DecodingProgram(programs.go.jitted, arguments, settings, outgrown)
