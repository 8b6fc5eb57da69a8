"""Programs that a run compiles: shapes of batches, model, objectives, without data."""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import stages
from jax.sharding import AbstractMesh, AxisType, Mesh
from jaxtyping import PyTree

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.plan import rows_within
from transformer_jax.data.shapes import padded_length
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import BatchingConfig, SpecialTokens, TranslationBatching
from transformer_jax.decoding.programs import Programs, PromptBatch, SearchPrompts
from transformer_jax.decoding.search_plan import search_settings
from transformer_jax.decoding.search_state import SearchState
from transformer_jax.decoding.windows import round_up
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.models.build import Kind, make_model
from transformer_jax.models.layers.parameters import map_parameters, parameters
from transformer_jax.models.layers.surgery import with_attention_kernels
from transformer_jax.parallel.device_catalog import Target
from transformer_jax.parallel.mesh import make_mesh, mesh_shape
from transformer_jax.parallel.placement import prepare_for_decoding
from transformer_jax.parallel.sharding import batch_sharding, num_batch_shards, shardings
from transformer_jax.recipes.plan_inputs import BatchShapes, PlanInputs
from transformer_jax.recipes.registry import get_recipe
from transformer_jax.recipes.settings import (
    ExampleBatches,
    RowBatches,
    SharedRowBatches,
    TokenBatches,
    Trained,
    start_config,
)

__all__ = [
    "DecodingProgram", "Shape", "buckets", "check_planned", "decoding_program", "decoding_shape",
    "mesh_on", "parts_of",
]  # fmt: skip

STEPS = 100_000  # for schedules; does not affect the size of a program


class Shape(NamedTuple):
    """Rows of a batch, and tokens of each."""

    rows: int
    length: int


def mesh_on(run: Trained, target: Target) -> Mesh | AbstractMesh:
    """Returns the mesh of a run over the devices of a target; without devices, only its shape.

    Raises:
        ConfigError: The sizes do not match the number of devices.
    """
    if target.compiles:
        return make_mesh(run.mesh, target.devices)
    sizes = mesh_shape(run.mesh, target.number)
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * 4)


def check_planned(run: Trained) -> None:
    """Refuses settings that a plan does not support.

    Raises:
        ConfigError: The run uses ``pmap``, or takes its model from another run.
    """
    if run.training.mode != "jit":
        raise ConfigError(f"--plan does not support training.mode {run.training.mode}")
    if run.model.features.num_features:
        raise ConfigError("--plan does not support models of features yet")
    start = start_config(run)
    if start.has_start:
        name = "init_from" if start.init_from is not None else "init_encoder"
        raise ConfigError(
            f"--plan does not support {start.prefix}{name}: leave it out, and set the size of that "
            f"model by flags"
        )


def buckets(run: Trained, sizes: Mapping[str, int]) -> list[Shape]:
    """Returns the shapes of the batches of a run, the longest first.

    Actual bucket lengths depend on the data; here they are evenly spaced, up to the limit of the
    run's texts.

    Args:
        run: The run.
        sizes: Sizes of the mesh axes, by name.

    Raises:
        ConfigError: The rows are not divisible by mesh and accumulation, or exceed the tokens of a
            batch.
    """
    training, shards = run.training, sizes["data"] * sizes["fsdp"]
    parts = shards * training.gradient_accumulation_steps
    if isinstance(training, SharedRowBatches):  # pairs of the longest texts, one in each row
        rows = -(-training.batch_size // parts) * parts
        return [Shape(rows, 2 * run.length_limit[1])]
    if isinstance(training, ExampleBatches):
        rows = training.batch_size
        if rows % parts:
            raise ConfigError(
                f"training.batch_size is {rows}: with mesh.data x mesh.fsdp {shards} and "
                f"training.gradient_accumulation_steps {training.gradient_accumulation_steps} it "
                f"must be a multiple of {parts}"
            )
        # Rows of images, and of their texts, have the full length of the model.
        length = run.model.max_length
        if isinstance(training, RowBatches):
            length = training.sequence_length
        return [Shape(rows, length)]
    assert isinstance(training, TokenBatches)
    count = training.num_buckets
    even = np.ceil(run.length_limit[1] / count * np.arange(1, count + 1)).astype(int)
    unit = training.pad_to_multiple_of or training.cpu_multiple
    lengths = set(padded_length(even, unit).tolist())
    multiple = math.lcm(training.required_batch_size_multiple, parts)
    fitting = functools.partial(rows_within, training.max_tokens, multiple=multiple)
    return [Shape(fitting(length), length) for length in sorted(lengths, reverse=True)]


def parts_of(run: Trained, mesh: Mesh | AbstractMesh, shape: Shape) -> PlanInputs:
    """Returns the parts of a step, with the shapes of a batch."""
    batch = BatchShapes(shape.rows, shape.length, batch_sharding(mesh))
    return get_recipe(run.recipe).plan_inputs(run, batch)


_SPECIAL = SpecialTokens(eos=2, pad=0)  # any ids will do for programs that are only compiled


_FIRST_CACHE = 256  # initial size of the cache for a short prompt, in positions


class DecodingProgram(NamedTuple):
    """A program that generates texts.

    Attributes:
        jitted: A jitted function.
        arguments: The arguments, as shapes.
        settings: The static arguments.
        outgrown: Arrays in memory when it starts: the smaller cache that it grew from.
    """

    jitted: stages.Wrapped
    arguments: tuple[PyTree, ...]
    settings: dict[str, object]
    outgrown: PyTree = None


class DecodingShape(NamedTuple):
    """Number of texts, beams of each, and the maximum numbers of tokens read and written."""

    rows: int
    beams: int
    read: int
    written: int


def decoding_shape(run: Trained, shards: int) -> DecodingShape | None:
    """Returns the largest decoding shape of a run; None for a run that does not generate texts.

    A translator decodes as many lines at once as :class:`TranslationBatching` allows; a language
    model generates one sample.

    Args:
        run: The run.
        shards: Number of groups of devices that divide the rows.

    Example:
        >>> decoding_shape(get_recipe("translation").runs["base"][1], 8)
        DecodingShape(rows=32, beams=4, read=256, written=522)
    """
    up = lambda rows: -(-rows // shards) * shards
    recipe = get_recipe(run.recipe)
    decoding = recipe.decoding if recipe.plans_decoding else None
    evaluation: Any = getattr(run, "evaluation", None)  # as the recipe defines it
    if decoding == "search":
        batching, search = TranslationBatching(), evaluation.search(evaluation.num_beams)
        most = run.model.max_length
        longest = min(run.data.read.max_length, batching.source_lengths[-1], most)
        read = min(round_up(longest, batching.source_lengths), most)
        rows = up(batching.allowed_rows(read, search.num_beams)[-1])
        return DecodingShape(rows, search.num_beams, read, search.target_tokens(read, most))
    if decoding is None or not evaluation.sample:
        return None
    shapes = BatchingConfig()
    context = run.model.max_length
    read = round_up(1, shapes.lengths)
    written = round_up(min(evaluation.sample, context), shapes.caches)
    return DecodingShape(round_up(1, shapes.rows), 1, read, written)


def decoding_program(run: Trained, mesh: Mesh) -> DecodingProgram | None:
    """Returns the decoding program of a run with the largest shape, or None."""
    device, shards = mesh.devices.flat[0], num_batch_shards(mesh)
    shape = decoding_shape(run, shards)
    if shape is None:
        return None
    searches = get_recipe(run.recipe).decoding == "search"
    kind: Kind = "encoder-decoder" if searches else "decoder"
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
    zeros = lambda *shape: jnp.zeros(shape, jnp.int32)
    rows, vocab = shape.rows, run.model.decoder_vocab_size or run.model.vocab_size
    if searches:
        inputs = lambda: {"source": zeros(rows, shape.read), "source_lengths": zeros(rows)}
        prompts = jax.eval_shape(
            lambda: SearchPrompts(zeros(rows, 1), zeros(rows), zeros(rows), inputs())
        )
        config = TRANSLATION.changed(num_beams=shape.beams)
        plan, values = search_settings(config, _SPECIAL, vocab=vocab, length=shape.written)
        how: dict[str, object] = {"plan": plan, "values": values, "length": shape.written}
        return DecodingProgram(programs.search.jitted, (params, prompts), how)
    keys = lambda: jax.random.split(jax.random.key(0), rows)
    tokens = lambda: zeros(rows, shape.read)
    prompt = jax.eval_shape(
        lambda: PromptBatch(tokens(), zeros(rows), zeros(rows), zeros(rows), keys())
    )
    nucleus = GenerationConfig(top_p=0.95, normalization="none")
    plan, values = search_settings(
        nucleus, _SPECIAL, vocab=vocab, length=shape.written, sampled=True
    )
    settings: dict[str, object] = {"plan": plan, "values": values}
    caches = BatchingConfig().caches
    # The cache grows with the text; the last one is the largest.
    largest = caches.index(round_up(min(shape.read + shape.written, caches[-1]), caches))

    def begun(size: int) -> SearchState:
        sizes = {"size": size, "length": shape.written}
        with on_mesh(mesh):
            return programs.begin.jitted.eval_shape(params, prompt, **settings, **sizes)

    progress = begun(caches[largest])
    outgrown = begun(caches[largest - 1]).cache if caches[largest] > _FIRST_CACHE else None
    arguments = (params, progress, jax.eval_shape(zeros))
    return DecodingProgram(programs.decode.jitted, arguments, settings, outgrown)
