"""Table 1 (rows H14, L2): formulas are what is counted and measured, at every size."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.attention import attend
from transformer_jax.functional.jacobian_paths import dependence
from transformer_jax.functional.masks import Mask
from transformer_jax.laboratory.complexity.layer_formulas import GROWTH, KINDS, Layer
from transformer_jax.laboratory.complexity.measure import (
    Clock,
    count_flops,
    function_of,
    inputs_of,
    measure,
    measured_path,
    recurrent_step,
)

EXTENTS = {"restricted self-attention": 9, "convolution": 3, "dilated convolution": 2}
LAYERS = [(kind, EXTENTS.get(kind)) for kind in KINDS]


@pytest.mark.quick("8-8")
@pytest.mark.parametrize(("w", "length"), [(1, 63), (4, 16), (8, 8)])
def test_paths_of_restricted_attention(w, length):
    layer = Layer("restricted self-attention", 64, 512, 2 * w + 1)
    assert measured_path(layer) == layer.path_length == length  # row H14


@pytest.mark.quick("64-4-3")
@pytest.mark.parametrize(("n", "k", "length"), [(64, 2, 6), (64, 4, 3), (81, 3, 4)])
def test_paths_of_dilated_convolutions_are_logarithmic(n, k, length):
    layer = Layer("dilated convolution", n, 512, k)
    assert measured_path(layer) == layer.path_length == length  # row H14


@pytest.mark.parametrize(("k", "length"), [(2, 63), (4, 21), (64, 1)])
def test_paths_of_contiguous_convolutions_are_not(k, length):
    layer = Layer("convolution", 64, 512, k)
    assert measured_path(layer) == layer.path_length == length  # the footnote that H14 restores


@pytest.mark.quick("self-attention-None-5", "restricted self-attention-9-32", "recurrent-None-5")
@pytest.mark.parametrize("n", [1, 2, 5, 32])
@pytest.mark.parametrize(("kind", "extent"), LAYERS)
def test_paths_and_depths_are_those_of_the_formulas(kind, extent, n):
    found = measure(Layer(kind, n, 8, extent))
    assert found.path == found.layer.path_length
    assert found.depth == found.layer.sequential_depth


def test_steps_of_the_recurrence_are_those_of_the_layer():
    layer = Layer("recurrent", 7, 4)
    x, W, U = inputs_of(layer)
    late = lambda h: jnp.concatenate([jnp.zeros((1, 4)), h[:-1]])  # the state before each position
    np.testing.assert_allclose(recurrent_step(x, W, U), jnp.tanh(x @ W + late(x) @ U), atol=1e-6)
    h = function_of(layer)(x, W, U)
    np.testing.assert_allclose(h, jnp.tanh(x @ W + late(h) @ U), atol=1e-6)


SIZES = [(64, 64), (96, 128), (200, 64)]


@pytest.mark.quick(
    "self-attention-None-96-128",
    "restricted self-attention-9-96-128",
    "recurrent-None-96-128",
    "convolution-3-96-128",
    "dilated convolution-2-96-128",
)
@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize(("kind", "extent"), LAYERS)
def test_counted_flops_are_those_of_the_formula(kind, extent, n, d):
    layer = Layer(kind, n, d, extent)
    assert count_flops(layer) == pytest.approx(layer.flops, rel=0.01)  # row H14
    assert layer.flops >= 2 * layer.multiply_adds


@pytest.mark.parametrize(
    ("kind", "extent", "more"),
    [("self-attention", None, 0.05), ("recurrent", None, 0.01), ("convolution", 3, 0.01)],
)
def test_flops_are_two_of_each_multiply_add(kind, extent, more):
    layer = Layer(kind, 128, 64, extent)
    assert count_flops(layer) == pytest.approx(2 * layer.multiply_adds, rel=more)


def test_a_step_counts_as_often_as_it_is_taken():
    """The recurrence written out, without a loop, has as many FLOPs."""
    layer = Layer("recurrent", 6, 32)
    x, W, U = inputs_of(layer)

    def unrolled(x, W, U):
        h, out = jnp.zeros((1, 32)), []
        for now in jnp.split(x @ W, 6):
            out.append(h := jnp.tanh(now + h @ U))
        return jnp.concatenate(out)

    np.testing.assert_allclose(unrolled(x, W, U), function_of(layer)(x, W, U), atol=1e-6)
    counted = jax.jit(unrolled).lower(x, W, U).cost_analysis()["flops"]
    # The first step has no state to multiply: XLA may leave that product out.
    assert count_flops(layer) == pytest.approx(counted, abs=2 * 32 * 32 + 64)


@pytest.mark.parametrize("dilated", [False, True])
def test_multiply_adds_of_convolutions_are_pairs_of_places_inside(dilated):
    layer = Layer("dilated convolution" if dilated else "convolution", 10, 5, 4)
    step = 4 if dilated else 1
    places = [t - j * step >= 0 for t, j in itertools.product(range(10), range(4))]
    assert layer.multiply_adds == 25 * sum(places)


@pytest.mark.parametrize(("n", "w"), [(10, 1), (10, 4), (10, 9), (10, 20), (1, 3)])
def test_multiply_adds_of_restricted_attention_are_pairs_within_reach(n, w):
    layer = Layer("restricted self-attention", n, 5, 2 * w + 1)
    pairs = np.abs(np.subtract.outer(np.arange(n), np.arange(n))) <= w
    assert layer.multiply_adds == 2 * 5 * pairs.sum()


@pytest.mark.slow
def test_layers_are_those_of_the_library():
    layer = Layer("restricted self-attention", 50, 4, 7)
    q, k, v = inputs_of(layer)
    heads = lambda x: x[None, :, None]
    wanted = attend(heads(q), heads(k), heads(v), Mask(window=4), implementation="xla")[0, :, 0]
    np.testing.assert_allclose(function_of(layer)(q, k, v), wanted, atol=1e-5)
    layer = Layer("dilated convolution", 20, 1, 2)
    x, kernel = inputs_of(layer)
    found = dependence(lambda x: function_of(layer, 8)(x, kernel), x)
    apart = np.subtract.outer(np.arange(20), np.arange(20))
    np.testing.assert_array_equal(found, (apart == 0) | (apart == 8))


@pytest.mark.parametrize(
    ("kind", "n", "d", "extent", "says"),
    [
        ("self-attention", 0, 4, None, "n is 0: at least 1"),
        ("recurrent", 4, 0, None, "d is 0: at least 1"),
        ("self-attention", 4, 4, 3, "extent is 3: only restricted"),
        ("convolution", 4, 4, None, "extent is None: only restricted"),
        ("convolution", 4, 4, 1, "k is 1: at least 2"),
        ("dilated convolution", 4, 4, 0, "k is 0: at least 2"),
        ("restricted self-attention", 4, 4, 4, "r is 4: an odd number"),
        ("restricted self-attention", 4, 4, 1, "r is 1: an odd number from 3 on"),
    ],
)
def test_sizes_that_cannot_be_are_refused(kind, n, d, extent, says):
    with pytest.raises(ArgumentError, match=says):
        Layer(kind, n, d, extent)


def test_every_kind_has_its_growth():
    assert set(GROWTH) == set(KINDS)
    at = lambda kind, n, d: Layer(kind, n, d, EXTENTS.get(kind)).multiply_adds
    for kind, growth in GROWTH.items():
        by_length, by_size = at(kind, 8192, 64) / at(kind, 4096, 64), at(kind, 4096, 128)
        assert by_length == pytest.approx(4 if "n²" in growth.operations else 2, rel=0.01)
        assert by_size / at(kind, 4096, 64) == 4 if "d²" in growth.operations else 2


@pytest.mark.slow
def test_repetitions_take_turns_and_each_layer_has_its_times():
    layers = [Layer("recurrent", 4096, 8), Layer("self-attention", 4, 8)]
    ticks = []
    # More than a few, as a machine at other work may stop two of them for milliseconds.
    long, short = Clock(layers, lambda: ticks.append(1)).medians(15)
    assert len(ticks) == 2 + 15
    assert long.forward > 2 * short.forward > 0
    assert long.backward > 2 * short.backward > 0
