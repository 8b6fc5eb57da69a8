"""What the compilers of GPUs and TPUs make of named runs; no device is needed, the compilers are.

``make gates`` installs them. A run keeps its width, heads, vocabulary and batch a device; layers
are few, as each is like the others.
"""

import dataclasses
import importlib.util

import jax
import pytest
from flax import nnx

from transformer_jax.models.making import make_model
from transformer_jax.parallel.mesh import MeshConfig
from transformer_jax.parallel.target import find_target
from transformer_jax.runs.begin import with_dtype
from transformer_jax.runs.encoder_settings import PRETRAIN_RUNS
from transformer_jax.runs.language_settings import RUNS
from transformer_jax.runs.plan import compile_program
from transformer_jax.runs.translation_settings import RUNS as TRANSLATION_RUNS

NAMED = {**TRANSLATION_RUNS, **PRETRAIN_RUNS, **RUNS}
KINDS = {"base": "encoder-decoder", "bert-base": "encoder"}
MB = 10**6

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="compilers of accelerators are not installed: make gates",
)


def planned(name, target, mesh, *, layers=1, rows=None, length=None, **training):
    """A named run with few layers, on a mesh (data, fsdp, tensor, and context) of a target."""
    run = NAMED[name][1]
    model = dataclasses.replace(
        run.model,
        encoder_layers=min(layers, run.model.encoder_layers),
        decoder_layers=min(layers, run.model.decoder_layers),
    )
    if rows is not None:
        training |= {"batch_size": rows}
    if length is not None:
        training |= {"sequence_length": length}
    run = dataclasses.replace(
        run,
        model=model,
        mesh=MeshConfig(*mesh),
        training=dataclasses.replace(run.training, **training),
    )
    found = find_target(target)
    return with_dtype(run, found.devices[0]), found


def parameter_bytes(run, name):
    kind = KINDS.get(name, "decoder")
    shapes = nnx.state(nnx.eval_shape(lambda: make_model(kind, run.model, rngs=nnx.Rngs(0))))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def attentions(run):
    """Of one pass; a decoder layer of an encoder-decoder has two."""
    encoder, decoder = run.model.encoder_layers, run.model.decoder_layers
    return encoder + decoder * (2 if encoder else 1)


def assert_sound(report, run, capfd):
    assert "rematerialization" not in capfd.readouterr().err
    assert report.aliased >= 0.999 * report.outputs, "the state is not donated whole"
    for one in report.collectives:
        # What looks up rows of a table moves them in a shard_map.
        moved = one.kind in ("all-to-all", "collective-permute")
        assert not moved or "shard_map" in one.operation, one
        fsdp_alone = dataclasses.replace(run.mesh, fsdp=1) == MeshConfig(1)
        assert not (fsdp_alone and one.kind == "all-reduce" and one.bytes > 10 * MB), one


GPU = {
    "gpt2-small, fsdp": ("gpt2-small", (1, 8, 1), {"layout": "contiguous", "rows": 64}),
    "gpt2-small, all": ("gpt2-small", (2, 2, 2), {"layout": "contiguous", "rows": 64}),
    "base, fsdp and tensor": ("base", (1, 4, 2), {}),
    "bert-base, all": ("bert-base", (2, 2, 2), {}),
}


@pytest.mark.parametrize("case", GPU)
@pytest.mark.quick("gpt2-small, fsdp")
def test_training_on_gpus(case, capfd):
    name, mesh, changes = GPU[case]
    run, target = planned(name, "h200:8", mesh, **changes)
    report = compile_program(run, target, "training").report
    assert_sound(report, run, capfd)
    assert report.kernels == {"cudnn": attentions(run), "cudnn backward": attentions(run)}
    if mesh == (1, 8, 1):
        # Parameters and both moments of Adam, and the batch.
        assert report.arguments <= 3 * parameter_bytes(run, name) / 8 * 1.05 + MB


@pytest.mark.parametrize("implementation", ["ring", "chunked"])
@pytest.mark.slow
def test_training_on_texts_that_several_gpus_share(implementation, capfd):
    run, target = planned("gpt2-small", "h200:8", (1, 2, 1, 4), rows=16)
    attention = dataclasses.replace(run.model.attention, implementation=implementation)
    run = dataclasses.replace(run, model=dataclasses.replace(run.model, attention=attention))
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
        activations = one.kind == "all-gather" and one.bytes % (rows * length * 2) == 0
        assert not activations or one.bytes <= 2 * rows * length * width * 2, one
        assert not activations or implementation != "ring", one


TPU = {
    "base, all": ("base", "v5e:2x4", (2, 2, 2), {}),
    "gpt2-small, fsdp": ("gpt2-small", "v5e:2x4", (1, 8, 1), {"rows": 64}),
    "bert-base, data and tensor": ("bert-base", "v5e:2x4", (4, 1, 2), {}),
    "modern, fsdp and tensor": ("modern", "v6e:4x4", (1, 4, 4), {"rows": 32}),
    "gpt2-small, a cube": ("gpt2-small", "v5p:2x2x2", (2, 2, 2), {"rows": 64}),
    "gpt2-small, a text on 4 devices": ("gpt2-small", "v5e:2x4", (1, 2, 1, 4), {"rows": 16}),
}


@pytest.mark.parametrize("case", TPU)
@pytest.mark.quick("gpt2-small, fsdp")
def test_training_on_tpus(case, capfd):
    name, target, mesh, changes = TPU[case]
    run, target = planned(name, target, mesh, **changes)
    report = compile_program(run, target, "training").report
    # Collectives are not checked by kind: this compiler makes permutations of gathers, to compute
    # while they run.
    assert report.aliased >= 0.999 * report.outputs, "the state is not donated whole"
    assert report.kernels == {"pallas": 2 * attentions(run)}
    assert "rematerialization" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200:8", "v5e:2x4"])
def test_evaluation_has_a_kernel_for_each_attention(target):
    run, found = planned("gpt2-small", target, (2, 2, 2), rows=64, layout="contiguous")
    report = compile_program(run, found, "evaluation").report
    assert sum(report.kernels.values()) == attentions(run)
