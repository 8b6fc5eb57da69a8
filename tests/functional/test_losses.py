"""Cross-entropy, plain and fused, equals its formula and plain autodiff."""

import contextlib
import dataclasses
import functools
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.drawing import normals
from tests.platforms import trace_for
from transformer_jax.functional.kernels.cross_entropy import (
    LogitsStorage,
    logits_limit,
    num_chunks,
)
from transformer_jax.functional.losses import (
    OutputTable,
    cross_entropy,
    linear_cross_entropy,
    token_cross_entropy,
)
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.parallel.device_catalog import DEVICES
from transformer_jax.parallel.mesh import make_mesh


def formula(logits, targets, weights, label_smoothing):
    """−Σ w q log p, with the wanted distribution q written out."""
    V = logits.shape[-1]
    q = (1 - label_smoothing) * jax.nn.one_hot(targets, V, dtype=logits.dtype) + label_smoothing / V
    return -(weights * (q * jax.nn.log_softmax(logits)).sum(-1)).sum()


def problem(rows=(3, 4), D=5, V=7, dtype=jnp.float64):
    x, table, bias = normals((*rows, D), (V, D), (V,), seed=7, dtype=dtype)
    rng = np.random.default_rng(7)
    targets, weights = rng.integers(0, V, rows), rng.random(rows)
    weights[..., -1] = 0
    return x, table, bias, jnp.asarray(targets, jnp.int32), jnp.asarray(weights, dtype)


def close(a, b, tolerance=1e-12):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), a, b
    )


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 1.0])
@pytest.mark.quick("0.1")
def test_value_and_gradient_are_those_of_the_formula(label_smoothing):
    with jax.enable_x64():
        x, table, bias, targets, weights = problem()
        logits = 3 * OutputTable(table, bias).logits(x)
        ours = lambda z: cross_entropy(z, targets, weights, label_smoothing)[0]
        plain = lambda z: formula(z, targets, weights, label_smoothing)
        ours, plain = (jax.jit(jax.value_and_grad(f)) for f in (ours, plain))
        close(ours(logits), plain(logits))
        close(cross_entropy(logits, targets, weights)[1], weights.sum())
        close(cross_entropy(logits, targets)[1], jnp.asarray(12.0))


def test_gradient_in_the_weights_is_the_loss_of_each_row():
    with jax.enable_x64():
        x, table, _, targets, weights = problem()
        weights = weights + 0.1
        logits = OutputTable(table).logits(x)
        losses = jax.jit(token_cross_entropy)(logits, targets)
        close(jax.jit(jax.grad(lambda w: cross_entropy(logits, targets, w)[0]))(weights), losses)
        close(
            jax.jit(jax.grad(lambda w: linear_cross_entropy(x, OutputTable(table), targets, w)[0]))(
                weights
            ),
            losses,
        )


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
@pytest.mark.parametrize(
    ("options", "biased"),
    [
        ({}, False),
        ({"chunk": 5}, False),
        ({"chunk": 4, "label_smoothing": 0.1, "scale": 0.3, "softcap": 2.0}, True),
        ({"label_smoothing": 0.2, "scale": 1.7, "softcap": 5.0}, True),
        ({"chunk": 1000}, True),
        ({"chunk": 1}, True),
    ],
)
@pytest.mark.quick("options3-True-tpu", "options2-True-cuda")
def test_fused_equals_unfused_in_value_and_gradients(monkeypatch, platform, options, biased):
    trace_for(monkeypatch, platform)
    with jax.enable_x64():
        x, table, bias, targets, weights = problem()
        how = dict(options)
        scale, softcap = how.pop("scale", 1.0), how.pop("softcap", None)

        def fused(x, table, bias):
            bias = bias if biased else None
            output = OutputTable(table, bias, scale, softcap)
            total = linear_cross_entropy(x, output, targets, weights, **how)
            return 2 * total[0] / total[1]

        def plain(x, table, bias):
            z = scale * jnp.einsum("...D,VD->...V", x, table)
            z = z + bias if biased else z
            z = z if softcap is None else softcap * jnp.tanh(z / softcap)
            return (
                2
                * formula(z, targets, weights, options.get("label_smoothing", 0.0))
                / weights.sum()
            )

        with jax.numpy_rank_promotion("allow"):
            wanted = jax.jit(jax.value_and_grad(plain, (0, 1, 2)))(x, table, bias)
        close(jax.jit(jax.value_and_grad(fused, (0, 1, 2)))(x, table, bias), wanted)
        close(jax.jit(fused)(x, table, bias), wanted[0])


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.quick("4")
def test_a_row_of_weight_0_adds_exactly_nothing_even_if_it_is_not_a_number(chunk):
    x, table, bias, targets, weights = problem(dtype=jnp.float32)
    targets = targets.at[:, -1].set(-100)

    def fused(x, table, bias):
        return linear_cross_entropy(x, OutputTable(table, bias), targets, weights, chunk=chunk)[0]

    total, (dx, _, _) = jax.jit(jax.value_and_grad(fused, (0, 1, 2)))(x, table, bias)
    assert (dx[:, -1] == 0).all()
    short = (x[:, :-1], OutputTable(table, bias), targets[:, :-1], weights[:, :-1])
    alone = jax.jit(lambda *args: linear_cross_entropy(*args)[0])
    close(total, alone(*short), 1e-6)

    logits = OutputTable(table).logits(x).at[:, -1].set(jnp.nan)
    total, dz = jax.jit(jax.value_and_grad(lambda z: cross_entropy(z, targets, weights)[0]))(logits)
    assert jnp.isfinite(total)
    assert jnp.isfinite(dz).all()
    assert (dz[:, -1] == 0).all()


def test_large_logits_are_held_in_chunks():
    x, table, bias, targets, weights = problem(dtype=jnp.float32)
    rows, V = targets.size, len(table)

    def fused(x, storage):
        output = OutputTable(table, bias, storage=storage)
        return linear_cross_entropy(x, output, targets, weights)[0]

    whole = jax.jit(jax.value_and_grad(fused), static_argnums=1)(x, LogitsStorage())
    for storage in (LogitsStorage(most=4 * V * (rows // 2)), LogitsStorage(chunk=rows // 2)):
        half = jax.jit(jax.value_and_grad(functools.partial(fused, storage=storage)))
        text = half.lower(x).as_text()
        assert f"tensor<{rows // 2}x{V}xf32>" in text
        assert f"tensor<{rows}x{V}xf32>" not in text
        jax.tree.map(lambda a, b: close(a, b, 1e-6), half(x), whole)


def rounding_bounds(output, x, targets, weights, label_smoothing):
    """Loss and gradients in float64, and how far rounded logits may change them.

    A logit changes by at most e, a 256th of the row's largest product. So the logarithm of the
    normalizer changes by at most e, a loss by 2 e, and a probability by a factor within exp(±2 e).
    """
    x, table, weights = (np.asarray(a, np.float64) for a in (x, output.table, weights))
    products, cap = output.scale * x @ table.T, output.softcap or np.inf
    bias = 0 if output.bias is None else np.asarray(output.bias, np.float64)
    z = products + bias
    slope = np.ones_like(z)
    if output.softcap is not None:
        z = cap * np.tanh(z / cap)
        slope = 1 - np.square(z / cap)
    V = z.shape[-1]
    q = (1 - label_smoothing) * np.eye(V)[targets] + label_smoothing / V
    log_p = np.asarray(jax.nn.log_softmax(z))
    p, w = np.exp(log_p), weights[..., None]
    e = np.abs(products).max(-1, keepdims=True) / 256
    loss = -(w * q * log_p).sum()
    change = w * (p * np.expm1(2 * e) + np.exp(2 * e) * np.abs(p - q) * 2 * e / cap)
    d = w * (p - q) * slope

    def gradients(d, x, table):
        rows = d.reshape(-1, V)
        dx = output.scale * d @ table
        return dx, output.scale * rows.T @ x.reshape(-1, x.shape[-1]), rows.sum(0)

    bounds = gradients(change, np.abs(x), np.abs(table))
    return (loss, *gradients(d, x, table)), ((w * 2 * e).sum(), *bounds)


def loss_and_gradients(output, x, targets, weights, label_smoothing, devices=None):
    def loss(x, table, bias):
        with contextlib.nullcontext() if devices is None else on_mesh(devices):
            used = dataclasses.replace(output, table=table, bias=bias)
            how = {"label_smoothing": label_smoothing}
            return linear_cross_entropy(x, used, targets, weights, **how)[0]

    bias = jnp.zeros(len(output.table), x.dtype) if output.bias is None else output.bias
    given = x, output.table, bias
    if devices is not None:
        given = jax.device_put(given, NamedSharding(devices, P()))
    total, gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*given)
    return total, *gradients


def check_rounded_logits(output, x, targets, weights, label_smoothing, devices=None):
    """Losses of logits in bfloat16 are within the bounds of rounding, and are rounded at all."""
    given = x, targets, weights, label_smoothing
    rounded = dataclasses.replace(output, storage=output.storage._replace(dtype="bfloat16"))
    exact, bounds = rounding_bounds(output, *given)
    plain, ours = (loss_and_gradients(one, *given, devices) for one in (output, rounded))
    for a, b, wanted, bound in zip(plain, ours, exact, bounds, strict=True):
        close(a, wanted, 1e-11)
        assert (np.abs(b - wanted) <= bound + 1e-11).all()
        assert np.abs(b - wanted).max() > 1e-9  # 100 times what float64 leaves


@pytest.mark.parametrize("chunk", [None, 5, 0])
@pytest.mark.quick("5")
def test_logits_in_bfloat16_change_loss_and_gradients_within_the_bounds_of_rounding(chunk):
    with jax.enable_x64():
        x, table, bias, targets, weights = problem()
        output = OutputTable(table, bias, 0.7, 3.0, storage=LogitsStorage(chunk=chunk))
        check_rounded_logits(output, x, targets, weights, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(12))
def test_logits_in_bfloat16_of_any_shape_on_any_mesh(attempt):
    seed = int.from_bytes(os.urandom(4))
    rng, note = np.random.default_rng(seed), f"seed {seed}"
    pick = lambda *values: values[rng.integers(len(values))]
    rows, D, V = (4, int(rng.integers(1, 30))), int(rng.integers(1, 40)), int(rng.integers(2, 400))
    storage = LogitsStorage(chunk=pick(None, 1, 7, 4 * rows[1]))
    sizes = pick((2, 1, 4, 1), (1, 2, 4, 1), (2, 2, 1, 2))
    named = dict(zip(("data", "fsdp", "tensor", "context"), sizes, strict=True))
    devices = make_mesh(**named) if attempt % 2 else None
    with jax.enable_x64():
        x, table, bias = normals((*rows, D), (V, D), (V,), seed=seed, dtype=jnp.float64)
        x = pick(0.1, 1.0, 4.0) * x
        targets = jnp.asarray(rng.integers(0, V, rows), jnp.int32)
        weights = jnp.asarray(rng.random(rows) * (rng.random(rows) > 0.2))
        head = pick(None, bias), pick(1.0, 0.3), pick(None, 3.0)
        print(note, rows, D, V, storage, devices, head[1:])
        check_rounded_logits(
            OutputTable(table, *head, storage=storage), x, targets, weights, pick(0.0, 0.1), devices
        )


def test_logits_held_by_a_device_are_its_32nd_part_and_at_least_1_gib():
    """On GPUs of known memory; all others hold 1 GiB."""
    for kind in (kind for one in DEVICES.values() for kind in one.kinds):
        [known] = [one for one in DEVICES.values() if kind in one.kinds]
        part = known.memory // 32 if known.platform == "gpu" else 0
        assert logits_limit(kind) == max(2**30, part)
    assert logits_limit("cpu") == logits_limit("") == 2**30


@pytest.mark.parametrize("most", [2**30, 5 * 10**9])
def test_chunks_are_within_the_limit_and_divide_the_rows_if_they_can(most):
    for rows in (1, 7, 8192, 16_384, 24_576, 65_537):
        for V in (32, 37_000, 50_257, 50_257 // 2):
            count = num_chunks(rows, V, LogitsStorage(most=most))
            least = -(-4 * rows * V // most)
            assert least <= count <= max(1, 2 * least - 1)
            dividing = [n for n in range(least, 2 * least) if rows % n == 0]
            assert count == min(dividing, default=least)


def test_b27_loss_at_the_start_is_log_of_the_vocabulary():
    V = 1000
    x, table = normals((256, 16), (V, 16), seed=3)
    targets = np.random.default_rng(3).integers(0, V, 256)
    total, weight = jax.jit(linear_cross_entropy)(x, OutputTable(0.02 * table), targets)
    assert float(total / weight) == pytest.approx(np.log(V), abs=0.01)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("size", [1e4, 1e30])
@pytest.mark.quick("10000.0-cpu", "1e+30-cuda")
def test_huge_logits_are_finite(monkeypatch, platform, size):
    trace_for(monkeypatch, platform)
    logits = jnp.array([[size, -size, 0.0]])
    loss, dz = jax.jit(jax.value_and_grad(lambda z: cross_entropy(z, jnp.array([0]))[0]))(logits)
    assert float(loss) == 0
    assert jnp.isfinite(dz).all()


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_forbidden_tokens_do_not_disturb_the_others(monkeypatch, platform):
    trace_for(monkeypatch, platform)
    logits = jnp.array([[1.0, -jnp.inf, 2.0]])
    loss, dz = jax.jit(jax.value_and_grad(lambda z: cross_entropy(z, jnp.array([0]))[0]))(logits)
    assert float(loss) == pytest.approx(np.log(1 + np.e), rel=1e-6)
    assert dz[0, 1] == 0
    assert jnp.isfinite(dz).all()


def test_smoothed_loss_is_least_at_the_smoothed_distribution():
    q = 0.9 * np.eye(5, dtype=np.float32)[[2]] + np.float32(0.1 / 5)
    loss = lambda z: cross_entropy(z, jnp.array([2]), label_smoothing=0.1)[0]
    slope = jax.jit(jax.grad(loss))(np.log(q))
    close(slope, jnp.zeros((1, 5)), 1e-6)


@pytest.mark.parametrize("chunk", [None, 4])
def test_bfloat16_is_scored_in_float32_and_gradients_keep_their_dtypes(chunk):
    x, table, bias, targets, weights = problem(dtype=jnp.float32)

    def fused(x, table, bias):
        return linear_cross_entropy(x, OutputTable(table, bias), targets, weights, chunk=chunk)[0]

    low = (x.astype(jnp.bfloat16), table, bias)
    both = jax.jit(jax.value_and_grad(fused, (0, 1, 2)))
    total, gradients = both(*low)
    assert total.dtype == jnp.float32
    assert [g.dtype for g in gradients] == [jnp.bfloat16, jnp.float32, jnp.float32]
    wanted, plain = both(x, table, bias)
    close(total, wanted, 2e-2)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a, b.dtype), b, atol=3e-2),
        gradients,
        plain,
    )
    losses = jax.jit(cross_entropy)(OutputTable(table).logits(x).astype(jnp.bfloat16), targets)
    assert losses[0].dtype == jnp.float32


def test_chunks_never_hold_all_logits():
    rows, V, chunk = 64, 1009, 8
    x, table, _, targets, _ = problem((rows,), 4, V, jnp.float32)

    def fused(x, table):
        return linear_cross_entropy(x, OutputTable(table), targets, chunk=chunk)[0]

    text = str(jax.make_jaxpr(jax.grad(fused, (0, 1)))(x, table))
    assert f"f32[{chunk},{V}]" in text
    assert f"f32[{rows},{V}]" not in text


def test_undifferentiated_it_computes_no_gradient():
    x, table, _, targets, _ = problem((8,), 4, 9, jnp.float32)
    loss = lambda x, t: linear_cross_entropy(x, OutputTable(t), targets)[0]
    text = jax.jit(loss).lower(x, table).as_text()
    assert text.count("dot_general") == 1


@pytest.mark.parametrize("spec", [P("data"), P(("data", "tensor"))])
@pytest.mark.parametrize("chunk", [None, 8])
@pytest.mark.quick("8-spec0")
def test_sharded_it_is_the_same(spec, chunk):
    x, table, bias, targets, weights = problem((16, 4), 8, 32, jnp.float32)

    def fused(x, table, bias, targets, weights):
        return linear_cross_entropy(x, OutputTable(table, bias), targets, weights, chunk=chunk)[0]

    f = jax.jit(jax.value_and_grad(fused, (0, 1, 2)))
    wanted = f(x, table, bias, targets, weights)
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    put = lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec))
    args = put(x, spec), put(table, P("tensor")), put(bias, P("tensor"))
    close(f(*args, put(targets, spec), put(weights, spec)), wanted, 1e-5)


def test_a_vocabulary_split_over_devices_is_not_gathered():
    logits, targets = jnp.ones((8, 64)), jnp.arange(8)
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    logits = jax.device_put(logits, NamedSharding(mesh, P("data", "tensor")))
    targets = jax.device_put(targets, NamedSharding(mesh, P("data")))
    f = jax.jit(jax.value_and_grad(lambda z, t: cross_entropy(z, t)[0]))
    text = f.lower(logits, targets).compile().as_text()
    assert not re.findall(r"f32\[\d+,64\]", text)
