"""Programs of named runs, as GPU and TPU compilers make them without a device.

``make gates`` installs them. A run keeps its width, heads, vocabulary and batch a device; layers
are few, as each is like the others.
"""

import dataclasses
import importlib.util
import itertools
import math

import jax
import pytest
from flax import nnx

from benchmarks.decoding_programs import DecodingCase
from benchmarks.programs import NAMED, Case
from benchmarks.training_programs import StepCase
from tests.planning.compiled_plans import run_of, stored_cases
from transformer_jax.models.build import make_model
from transformer_jax.parallel.device_catalog import find_target
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.planning.plan import compile_program, estimate_program, programs
from transformer_jax.planning.run_programs import Shape
from transformer_jax.recipes.captions import CaptionRun
from transformer_jax.recipes.clip import ClipRun
from transformer_jax.recipes.images import ImageRun
from transformer_jax.recipes.language_model import LanguageRun
from transformer_jax.recipes.masked_lm import PretrainRun
from transformer_jax.recipes.sizing import for_device
from transformer_jax.recipes.translation import Run as TranslationRun

KINDS = {TranslationRun: "encoder-decoder", PretrainRun: "encoder", LanguageRun: "decoder"}
MB = 10**6
COMPILED = (
    "gpt2-small, h200:8, 8x1x1, 1 layer, 64 x 1024",
    "gpt2-small, h200:8, 1x8x1, 2 layers, 64 x 1024, remat",
    "gpt2-small, v5e:2x4, 8x1x1, 2 layers, 64 x 1024, remat",
)

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="compilers of accelerators are not installed: make gates",
)


def parameter_bytes(run):
    kind = KINDS[type(run)]
    shapes = nnx.state(nnx.eval_shape(lambda: make_model(kind, run.model, rngs=nnx.Rngs(0))))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def attentions(run):
    """The attention calls of one pass; a decoder layer of an encoder-decoder has two."""
    encoder, decoder = run.model.encoder_layers, run.model.decoder_layers
    return encoder + decoder * (2 if encoder else 1)


def assert_gradients_are_summed_to_parts(report, run):
    if dataclasses.replace(run.mesh, fsdp=1) == MeshConfig(1):
        for one in report.collectives:
            assert one.kind != "all-reduce" or one.bytes <= 10 * MB, one


def assert_donated(report):
    """The new state lies where the old one lay; metrics are a few numbers, each in a tile."""
    assert report.outputs - report.aliased <= 0.001 * report.outputs + 2**14, report


def assert_sound(report, run, capfd):
    assert "rematerialization" not in capfd.readouterr().err
    assert_donated(report)
    # Embedding lookups exchange rows in a shard_map. Beyond that, nothing large moves but the
    # square kernel of a head, with its bias, in bfloat16.
    square = 2 * run.model.d_model * (run.model.d_model + 1)
    for one in report.collectives:
        moves = one.kind in ("all-to-all", "collective-permute")
        moved = moves and one.bytes > 2 * MB and one.bytes != square
        assert not moved or "shard_map" in one.operation, one
    assert_gradients_are_summed_to_parts(report, run)


UNPACKED = (("training.layout", "contiguous"),)
GPU = {
    "gpt2-small, fsdp": Case("gpt2-small", "h200:8", (1, 8), 1, 64, changes=UNPACKED),
    "gpt2-small, all": Case("gpt2-small", "h200:8", (2, 2, 2), 1, 64, changes=UNPACKED),
    "base, fsdp and tensor": Case("base", "h200:8", (1, 4, 2), 1),
    "bert-base, all": Case("bert-base", "h200:8", (2, 2, 2), 1),
}


@pytest.mark.parametrize("case", GPU)
@pytest.mark.quick("gpt2-small, fsdp")
def test_training_on_gpus(case, capfd):
    run, target = GPU[case].planned()
    report = compile_program(run, target, "training").report
    assert_sound(report, run, capfd)
    assert report.kernels == {"cudnn": attentions(run), "cudnn backward": attentions(run)}
    if GPU[case].mesh == (1, 8):
        # Parameters and both moments of Adam, and the batch.
        assert report.arguments <= 3 * parameter_bytes(run) / 8 * 1.05 + MB


@pytest.mark.parametrize("implementation", ["ring", "chunked"])
@pytest.mark.slow
def test_training_on_texts_that_several_gpus_share(implementation, capfd):
    kernel = (("model.attention.implementation", implementation),)
    run, target = Case("gpt2-small", "h200:8", (1, 2, 1, 4), 1, 16, changes=kernel).planned()
    report = compile_program(run, target, "training").report
    assert_sound(report, run, capfd)
    kinds = {one.kind for one in report.collectives}
    assert ("collective-permute" in kinds) == (implementation == "ring")
    # Keys and values of the rows, in bfloat16, are the only activations that are gathered.
    rows, length, width = (
        run.training.batch_size // 2,
        run.training.sequence_length,
        run.model.d_model,
    )
    for one in report.collectives:
        # Parameters are gathered along fsdp, by 2 devices.
        activations = one.kind == "all-gather" and one.devices != 2 and one.bytes > MB
        assert not activations or one.bytes <= 2 * rows * length * width * 2, one
        assert not activations or implementation != "ring", one


TPU = {
    "base, all": Case("base", "v5e:2x4", (2, 2, 2), 1),
    "gpt2-small, fsdp": Case("gpt2-small", "v5e:2x4", (1, 8), 1, 64),
    "bert-base, data and tensor": Case("bert-base", "v5e:2x4", (4, 1, 2), 1),
    "modern, fsdp and tensor": Case("modern", "v6e:4x4", (1, 4, 4), 1, 32),
    "gpt2-small, a cube": Case("gpt2-small", "v5p:2x2x2", (2, 2, 2), 1, 64),
    "gpt2-small, a text on 4 devices": Case("gpt2-small", "v5e:2x4", (1, 2, 1, 4), 1, 16),
}


@pytest.mark.parametrize("case", TPU)
@pytest.mark.quick("gpt2-small, fsdp")
def test_training_on_tpus(case, capfd):
    run, target = TPU[case].planned()
    report = compile_program(run, target, "training").report
    # Permutations are not looked for: this compiler makes them of gathers, to compute meanwhile.
    assert_gradients_are_summed_to_parts(report, run)
    assert_donated(report)
    assert report.kernels == {"pallas": 2 * attentions(run)}
    assert "rematerialization" not in capfd.readouterr().err
    if case == "gpt2-small, fsdp":
        # The table is on its way while layers compute.
        gathers = [one for one in report.collectives if one.kind == "all-gather"]
        assert {one.started for one in gathers if one.bytes > 8 * MB} == {True}
        # Copies of the table; those of queries, keys and values were 0.8 million more.
        assert report.cycles["copies"] <= 5.2e6


def test_a_layer_of_a_step_launches_few_kernels_and_moves_few_bytes():
    one, two = (StepCase("nanogpt", 16, layers=n).figures() for n in (1, 2))
    assert two["launches"] - one["launches"] <= 50
    assert two["GB"] - one["GB"] <= 3.25
    # Embedding, loss and update, too.
    assert one["launches"] <= 97
    assert one["GB"] <= 20.9


# Every named run on every target; meshes take turns, so that each target has each.
MESHES = {1: [(1,)], 8: [(8,), (1, 8), (1, 4, 2), (2, 2, 2)], 16: [(16,), (1, 16), (2, 4, 2)]}
TARGETS = {"h200:1": 1, "h200:8": 8, "v5e:2x4": 8, "v5e:4x4": 16, "v5p:2x2x2": 8, "v6e:4x4": 16}
PLANNED = (*KINDS, ImageRun, CaptionRun, ClipRun)
TRAINED = [name for name, (_, run) in NAMED.items() if type(run) in PLANNED]


def parts_with_attention(name):
    run = NAMED[name][1]
    return [run.model, *([run.encoder] if hasattr(run, "encoder") else [])]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "name"), list(itertools.product(TARGETS, TRAINED)))
def test_every_named_run_compiles_for_every_target(target, name, capfd):
    # Heads that do not divide over the devices of tensor stay whole, and are gathered.
    heads = math.gcd(*(part.attention.num_heads for part in parts_with_attention(name)))
    meshes = [mesh for mesh in MESHES[TARGETS[target]] if not heads % (*mesh, 1, 1)[2]]
    mesh = meshes[(TRAINED.index(name) + list(TARGETS).index(target)) % len(meshes)]
    rows = 64 if type(NAMED[name][1]) is LanguageRun else None
    run, found = Case(name, target, mesh, 1, rows).planned()
    training = compile_program(run, found, "training")
    assert training.memory <= found.usable
    assert_donated(training.report)
    assert_gradients_are_summed_to_parts(training.report, run)
    if target.startswith("h200"):
        assert_sound(training.report, run, capfd)
    evaluation = compile_program(run, found, "evaluation")
    assert evaluation.memory <= found.usable
    # As many kernels in one pass as each of both has in training; none with attention dropout.
    passes = 2 * (run.model.attention.dropout == 0)
    assert passes * sum(evaluation.report.kernels.values()) == sum(training.report.kernels.values())
    assert "rematerialization" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_memory_is_what_is_stored_and_what_is_estimated(name):
    case = stored_cases()[name]
    target = find_target(case["target"])
    run, shape = run_of(case, target), Shape(*case["batch"])
    found = compile_program(run, target, "training", shape)
    # Another version of a compiler may need a little more or less.
    assert found.memory == pytest.approx(case["compiled_bytes"], rel=0.05)
    assert estimate_program(run, target, "training", shape).memory == pytest.approx(
        found.memory, rel=0.1
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200:1", "h200:8", "v5e:1x1", "v5e:2x4"])
@pytest.mark.parametrize("name", ["phrasebook", "base", "python-docs", "gpt2-small"])
def test_a_decoding_loop_neither_copies_its_cache_nor_waits_for_the_host(name, target):
    found = find_target(target)
    mesh = MeshConfig(1) if found.number == 1 else MeshConfig(2, 2, 2)
    run = for_device(dataclasses.replace(NAMED[name][1], mesh=mesh), found.device)
    (shape,) = [shape for what, shape in programs(run, found) if what == "decoding"]
    report = compile_program(run, found, "decoding", shape).report
    assert report.host == ()
    # Of one layer, keys or values alone, on one device.
    cache = shape.rows * shape.length * run.model.d_model * 2 // found.number
    assert report.copied < cache / 4


@pytest.mark.parametrize("batch", [1, pytest.param(32, marks=pytest.mark.slow)])
def test_a_decoding_loop_launches_few_kernels_for_each_layer(batch):
    """Attention, norms and biases are in one or two kernels each, and weights are read once."""
    one, two = (DecodingCase("gpt2-small", batch, 1, layers=n).figures() for n in (1, 2))
    assert two["launches"] - one["launches"] <= {1: 9, 32: 14}[batch]
    assert one["launches"] <= 35
    if batch == 1:
        assert two["MB"] <= 1.1 * two["least_MB"]


@pytest.mark.slow
def test_a_text_alone_takes_a_tpu_no_longer_than_two():
    """By the compiler's estimate, which is twice as long where products of a row are sums."""
    one, two = (
        DecodingCase("gpt2-small", batch, 1, layers=1, target="v5e:1x1").figures()
        for batch in (1, 2)
    )
    assert one["estimated_Kcycles_in_all"] <= two["estimated_Kcycles_in_all"]
