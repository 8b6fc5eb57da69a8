"""On a mesh every function gives what it gives on one device, and its parameters stay in parts."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.drawing import drawn, normals
from transformer_jax import laws
from transformer_jax.functional import masks
from transformer_jax.functional.kernels import choice as kernels
from transformer_jax.functional.kernels import splash
from transformer_jax.functional.layers import linear
from transformer_jax.functional.losses import OutputTable, linear_cross_entropy
from transformer_jax.functional.partitioning import (
    constrain,
    current_mesh,
    on_mesh,
    partition_spec,
    take_rows,
    unshard_fsdp,
)
from transformer_jax.functional.reduce_scatter import (
    _sum_and_exchange,
    _sum_in_stages,
    reduce_scatter,
)
from transformer_jax.functional.scores import ScaledDot, Scores
from transformer_jax.models.config import AttentionConfig, FeedForwardConfig, TransformerConfig
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.models.transformer.layers import Attention
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.sharding import shardings

MESHES = {  # data, fsdp, tensor, context
    "2x2x2": (2, 2, 2, 1),
    "1x8x1": (1, 8, 1, 1),
    "1x2x4": (1, 2, 4, 1),
    "context2": (1, 2, 2, 2),
    "context8": (1, 1, 1, 8),
}


@pytest.fixture(params=MESHES)
def mesh(request):
    return mesh_of(request.param)


def mesh_of(name):
    return make_mesh(**dict(zip(("data", "fsdp", "tensor", "context"), MESHES[name], strict=True)))


def value_and_gradients(function, cotangent, *inputs):
    y, back = jax.vjp(function, *inputs)
    return y, back(cotangent)


def on_all(function, cotangent, mesh, *inputs):
    """Result and gradients on a mesh where ``inputs`` lie as declared: arrays and logical axes."""

    def run(*arguments):
        with on_mesh(mesh):
            y, grads = value_and_gradients(function, *arguments)
            return y, tuple(constrain(g, a) for g, (_, a) in zip(grads, inputs, strict=True))

    spec = lambda x, axes: NamedSharding(mesh, partition_spec(axes, x.shape, mesh.shape))
    placed = [jax.device_put(x, spec(x, axes)) for x, axes in inputs]
    return jax.block_until_ready(jax.jit(run)(cotangent, *placed))


def on_one_and_on_all(function, cotangent, mesh, *inputs):
    """Result and gradients on one device, and on a mesh."""
    one = jax.jit(lambda *given: value_and_gradients(function, *given))
    return one(cotangent, *(x for x, _ in inputs)), on_all(function, cotangent, mesh, *inputs)


def assert_formula(run, mesh, axes, inputs, mask, **how):
    """A kernel on a mesh is its formula in float64, output and gradients."""

    def kernel(q, k, v, cotangent, mask):
        y, gradients = on_all(run, cotangent, mesh, *((x, axes) for x in (q, k, v)))
        return y, *gradients

    laws.attention_kernel(kernel, *inputs, mask, **how).require()


@pytest.mark.parametrize("shape", [(8, 8), (1, 8), (64, 5)])  # rows move; no batch; table moves
@pytest.mark.parametrize("V", [24, 23])  # a tensor axis divides the vocabulary, or does not
@pytest.mark.quick("2x2x2-23-shape2", "context2-24-shape0")
def test_rows_of_a_table_whose_parts_are_everywhere(mesh, V, shape):
    table, g = normals((V, 16), (*shape, 16))
    ids = np.random.default_rng(0).integers(-3, 30, shape)  # some beyond the table
    axes = ("vocab", "embed")
    take = lambda table: take_rows(table, jnp.asarray(ids), axes)
    one, all_ = on_one_and_on_all(take, g, mesh, (table, axes))
    chex.assert_trees_all_close(all_, one, atol=1e-5)
    np.testing.assert_array_equal(one[0], table[np.clip(ids, 0, V - 1)])


@pytest.mark.parametrize("rows", [8, 64])
@pytest.mark.quick("2x2x2-8", "1x8x1-64")
def test_rows_are_rounded_alike_on_one_device_and_on_all(mesh, rows):
    table, g = normals((24, 16), (rows, 5, 16))
    ids, axes = jnp.arange(5 * rows).reshape(rows, 5) % 24, ("vocab", "embed")
    take = lambda table: take_rows(table, ids, axes, jnp.bfloat16)
    (y, (d,)), (y_all, (d_all,)) = on_one_and_on_all(take, g, mesh, (table, axes))
    assert y.dtype == d.dtype == table.dtype
    np.testing.assert_array_equal(y, table[ids].astype(jnp.bfloat16).astype(jnp.float32))
    np.testing.assert_array_equal(y_all, y)
    # Rounded to bfloat16 is each row's gradient, not their sum.
    np.testing.assert_allclose(d_all, d, atol=1e-6)


@pytest.mark.quick(
    "2-reduce_scatter-37-0",
    "8-reduce_scatter-24-1",
    "4-_sum_in_stages-2050-0",
    "8-_sum_and_exchange-37-1",
    "2-_sum_and_exchange-2050-0",
    "8-_sum_in_stages-37-0",
)
@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("other", [24, 37, 2050])
@pytest.mark.parametrize("function", [reduce_scatter, _sum_in_stages, _sum_and_exchange])
@pytest.mark.parametrize("fsdp", [2, 4, 8])
def test_a_matrix_is_summed_to_parts(function, other, dimension, fsdp):
    shape = (16, other) if dimension == 0 else (other, 16)
    (x,) = normals((fsdp, *shape))
    parts = P(*("fsdp" if axis == dimension else None for axis in range(2)))
    act = lambda x: function(x[0], "fsdp", dimension)
    with jax.set_mesh(make_mesh(fsdp=fsdp, tensor=8 // fsdp, data=1)):
        found = jax.jit(jax.shard_map(act, in_specs=P("fsdp"), out_specs=parts))(x)
    np.testing.assert_allclose(found, x.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [("embed", "mlp"), ("mlp", "embed"), ("embed", None)])
@pytest.mark.quick("2x2x2-axes0", "1x8x1-axes1")
def test_a_linear_map_of_a_kernel_whose_parts_are_everywhere(mesh, axes):
    x, kernel, bias, g = normals((8, 3, 16), (16, 24), (24,), (8, 3, 24))
    function = lambda x, kernel, bias: linear(x, kernel, bias, axes)
    rows = ("batch", None, None)
    one, all_ = on_one_and_on_all(function, g, mesh, (x, rows), (kernel, axes), (bias, axes[1:]))
    chex.assert_trees_all_close(all_, one, atol=1e-5)


def test_a_gathered_kernel_is_not_kept_for_the_backward_pass():
    mesh = make_mesh(fsdp=8, data=1)
    kernel = jax.ShapeDtypeStruct((16, 24), jnp.float32)

    def residuals(x, kernel):
        with on_mesh(mesh):
            return jax.vjp(lambda k: linear(x, k, axes=("embed", "mlp")), kernel)[1]

    program = jax.make_jaxpr(residuals)(jax.ShapeDtypeStruct((8, 16), jnp.bfloat16), kernel)
    # What is kept are the input in bfloat16 and the kernel as it is stored.
    kept = [v.aval.str_short() for v in program.jaxpr.outvars]
    assert "float32[16,24]" in kept, kept
    assert "bfloat16[16,24]" not in kept, kept


def test_a_kernel_is_gathered_again_once_its_cotangent_is_there():
    mesh = make_mesh(fsdp=8, data=1)

    def backward(x, kernel, g):
        with on_mesh(mesh):
            return jax.vjp(lambda x: linear(x, kernel, axes=("embed", "mlp")), x)[1](g)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 16), (16, 24), (8, 24))]
    program = jax.make_jaxpr(backward)(*shapes)
    barriers = [e for e in program.eqns if e.primitive.name == "optimization_barrier"]
    assert [[v.aval.shape for v in e.outvars] for e in barriers] == [[(16, 24), (8, 24)]]


@pytest.mark.parametrize("chunk", [None, 12])
@pytest.mark.parametrize("V", [24, 23])
@pytest.mark.quick("1x2x4-23-12")
def test_the_loss_of_an_output_table_whose_parts_are_everywhere(mesh, V, chunk):
    x, table, bias = normals((8, 8, 16), (V, 16), (V,))
    targets = jnp.arange(64).reshape(8, 8) % V
    weights = (jnp.arange(64) % 5).astype(jnp.float32).reshape(8, 8)

    def function(x, table, bias):
        output = OutputTable(table, bias, 0.7, 3.0)
        return linear_cross_entropy(x, output, targets, weights, label_smoothing=0.2, chunk=chunk)[
            0
        ]

    inputs = (x, ("batch", None, None)), (table, ("vocab", "embed")), (bias, ("vocab",))
    one, all_ = on_one_and_on_all(function, jnp.float32(1), mesh, *inputs)
    chex.assert_trees_all_close(all_, one, atol=1e-5, rtol=1e-5)


def test_no_device_has_a_whole_table_or_all_logits():
    mesh = make_mesh(data=1, fsdp=2, tensor=4)
    x, table = normals((8, 3, 16), (23, 16))
    spec = partition_spec(("vocab", "embed"), table.shape, mesh.shape)
    assert spec == P(None, ("tensor", "fsdp"))
    targets = jnp.zeros((8, 3), jnp.int32)

    def loss_of_one(x, table):
        return linear_cross_entropy(x, OutputTable(table), targets)[0]

    def loss(x, table):
        with on_mesh(mesh):
            return loss_of_one(x, table)

    expected = jax.jit(loss_of_one)(x, table)
    placed = jax.device_put(table, NamedSharding(mesh, spec))
    for program in (jax.jit(jax.grad(loss, argnums=1)), jax.jit(loss)):
        text = program.lower(x, placed).compile().as_text()
        # A quarter of 23 tokens is 6, and a device has half of the 24 rows.
        assert "f32[12,6]" in text
        assert "f32[12,23]" not in text
        assert "f32[24,23]" not in text
        assert "f32[23,16]" not in text
    # Where nothing is differentiated only the loss is computed, by another program.
    np.testing.assert_allclose(jax.block_until_ready(program(x, placed)), expected, rtol=1e-6)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.quick("1x2x4-2")
def test_attention_of_heads_that_are_on_different_devices(mesh, kv_heads):
    config = TransformerConfig(
        vocab_size=11, d_model=16, encoder_layers=1, decoder_layers=1,
        attention=AttentionConfig(num_heads=4, num_kv_heads=kv_heads, head_dim=4, value_dim=6),
        feed_forward=FeedForwardConfig(d_ff=8),
    )  # fmt: skip
    make = lambda: Attention(config, rngs=nnx.Rngs(0))
    graph, params = drawn(make)
    x, g = normals((8, 5, 16), (8, 5, 16))

    def run(params, x):
        call = lambda params, x: nnx.merge(graph, params)(x, masks.causal())[0]
        y, back = jax.vjp(call, params, x)
        return y, back(g)

    def run_on_mesh(params, x):
        with on_mesh(mesh):
            return run(params, x)

    placed = jax.device_put(params, shardings(parameters(nnx.eval_shape(make)), mesh))
    program = jax.jit(run_on_mesh).lower(placed, x).compile()
    on_all = jax.block_until_ready(program(placed, x))
    chex.assert_trees_all_close(on_all, jax.jit(run)(params, x), atol=1e-5)
    if kv_heads % mesh.shape["tensor"] == 0:
        assert "all-to-all" not in program.as_text()
        assert "collective-permute" not in program.as_text()


@pytest.mark.parametrize("name", ["causal", "lengths", "segments"])
@pytest.mark.parametrize("mesh", ["2x2x2", "1x8x1", "1x2x4"], indirect=True)
@pytest.mark.slow
def test_a_fused_kernel_runs_on_each_devices_rows_and_heads(mesh, name, monkeypatch):
    B, N, K, T, H = 8, 4, 2, 128, 8
    inputs = normals((B, N, T, H), (B, K, T, H), (B, K, T, H))
    ids = jnp.asarray(np.sort(np.random.default_rng(1).integers(0, 3, (B, T)), 1)[:, ::-1].copy())
    mask = {
        "causal": masks.causal(),
        "lengths": masks.length_mask(jnp.arange(B) * 16),
        "segments": masks.causal() & masks.segment_mask(ids, ids),
    }[name]
    shapes = []

    def interpreted(q, *arguments):
        shapes.append(q.shape)
        return splash.run(q, *arguments, interpret=True)

    fused = kernels.KERNELS["splash"]._replace(run=interpreted)
    run = lambda q, k, v: kernels.run_kernel(fused, q, k, v, Scores(mask))
    assert_formula(run, mesh, ("batch", "heads", None, None), inputs, mask)
    tensor = mesh.shape["tensor"] if K % mesh.shape["tensor"] == 0 else 1
    part = (B // (mesh.shape["data"] * mesh.shape["fsdp"]), N // tensor, T, H)
    assert part in shapes, shapes


def causal_segments(B, T):
    ids = jnp.asarray(np.sort(np.random.default_rng(1).integers(0, 3, (B, T)), 1)[:, ::-1].copy())
    return masks.causal() & masks.segment_mask(ids, ids)


MASKS = {
    "none": lambda B, T: None,
    "causal": lambda B, T: masks.causal(),
    "window": lambda B, T: masks.causal() & masks.sliding_window_mask(T // 3),
    "lengths": lambda B, T: masks.length_mask(jnp.arange(B) * T // B, jnp.arange(B)[::-1] * T // B),
    "segments": causal_segments,
    "dense": lambda B, T: masks.dense_mask(jnp.arange(4 * T * T).reshape(1, 4, T, T) % 3 > 0),
}


DIVIDED = [
    *itertools.product(("context2", "context8"), ("xla", "chunked", "ring"), MASKS),
    # Splash needs 128 queries on each device, and no dense mask.
    *itertools.product(("context2",), ("splash",), MASKS.keys() - {"dense"}),
]


@pytest.mark.parametrize(("where", "kernel", "name"), sorted(DIVIDED))
@pytest.mark.quick("context2-ring-segments")
def test_attention_to_a_text_that_is_on_several_devices(where, kernel, name, monkeypatch):
    mesh, B, K, T, H = mesh_of(where), 8, 2, 256, 8
    T = T if kernel == "splash" else 48
    inputs = normals((B, 4, T, H), (B, K, T, H), (B, K, T, H))
    scores = Scores(MASKS[name](B, T), None, ScaledDot(softcap=2.0))
    interpreted = {
        name: functools.partial(getattr(splash, name), interpret=True)
        for name in ("run", "run_part")
    }
    fused = kernels.KERNELS["splash"]._replace(**interpreted)
    monkeypatch.setitem(kernels.KERNELS, "splash", fused)

    def run(q, k, v):
        chosen = kernels.select_kernel(kernel, q, k, v, scores)
        assert chosen.name == kernel or current_mesh() is None
        return kernels.run_kernel(chosen, q, k, v, scores)

    axes = ("batch", "heads", "sequence", None)
    assert_formula(run, mesh, axes, inputs, scores.mask, score=scores.score)


@pytest.mark.parametrize("kernel", ["chunked", "ring"])
@pytest.mark.slow
def test_cross_attention_to_a_text_that_is_on_several_devices(kernel):
    inputs = normals((8, 4, 6, 8), (8, 4, 22, 8), (8, 4, 22, 6))
    mask, axes = masks.length_mask(jnp.arange(8) * 3), ("batch", "heads", "sequence", None)
    run = lambda *x: kernels.run_kernel(kernels.KERNELS[kernel], *x, Scores(mask))
    assert_formula(run, mesh_of("context2"), axes, inputs, mask)


@pytest.mark.parametrize("name", ["ring", "chunked"])
def test_keys_go_round_the_ring_and_are_never_gathered(name):
    mesh, x = mesh_of("context8"), jax.ShapeDtypeStruct((1, 2, 64, 8), jnp.float32)

    def loss(q, k, v):
        with on_mesh(mesh):
            y = kernels.run_kernel(kernels.KERNELS[name], q, k, v, Scores(masks.causal()))
            return (y**2).sum()

    there = NamedSharding(mesh, P(None, None, "context"))
    x = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there)
    text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile().as_text()
    assert ("collective-permute" in text) == (name == "ring")
    assert ("all-gather" in text) == (name == "chunked")
    assert ("f32[1,2,64,8]" in text) == (name == "chunked")


def test_a_text_that_does_not_divide_is_whole_on_each_device_and_that_is_logged_once(caplog):
    kernels._log_once.cache_clear()
    mesh = mesh_of("context2")
    x, g = normals((2, 4, 7, 8), (2, 4, 7, 8))
    axes = ("batch", "heads", "sequence", None)

    def run(x):
        scores = Scores(masks.causal())
        return kernels.run_kernel(kernels.select_kernel("ring", x, x, x, scores), x, x, x, scores)

    one, all_ = on_one_and_on_all(run, g, mesh, (x, axes))
    chex.assert_trees_all_close(all_, one, atol=1e-5)
    lines = [line for line in caplog.messages if "7 queries and 7 keys" in line]
    assert len(lines) == 1
    assert "multiples of 2" in lines[0]
    assert "attention by xla instead of ring: the text is on one device" in caplog.text


def test_without_a_mesh_nothing_changes():
    x = jnp.ones((4, 4))
    one = make_mesh(devices=jax.devices()[:1])
    with on_mesh(one):
        assert current_mesh() is None
        assert constrain(x, ("batch", None)) is x
        assert unshard_fsdp(x, ("embed", None), x.dtype) is x


def test_each_device_has_no_mesh_inside_a_shard_map():
    mesh = make_mesh(data=8)
    spec = partition_spec(("batch",), (8,), mesh.shape)
    found = []

    def part(x):
        found.append(current_mesh())
        return x

    with on_mesh(mesh):
        jax.eval_shape(jax.shard_map(part, in_specs=spec, out_specs=spec), jnp.ones(8))
    assert found == [None]
