"""Dropout is unbiased, independent from place to place, and the same on any devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.drawing import normals, value_and_pullback
from transformer_jax.functional.layers import dropout, dropout_mask


def signs(key, shape, rate=0.5):
    """Kept or not as numbers of mean 0 and variance 1."""
    keep = np.asarray(dropout_mask(key, shape, rate), np.float64)
    return (keep - (1 - rate)) / np.sqrt(rate * (1 - rate))


def test_without_a_key_or_at_rate_0_it_is_the_identity(key):
    x = jnp.arange(4.0)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, key) is x


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5])
def test_other_rates_are_refused(key, rate):
    with pytest.raises(ValueError, match="at least 0 and below 1"):
        dropout(jnp.ones(3), rate, key)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.quick("float32-0.1", "bfloat16-0.9")
def test_kept_values_are_scaled_and_the_rest_are_0(key, rate, dtype):
    [x] = normals((64, 32), dtype=dtype)
    y, [gradient] = value_and_pullback(lambda x: dropout(x, rate, key), jnp.ones_like(x), x)
    keep = dropout_mask(key, x.shape, rate)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, jnp.where(keep, x / (1 - rate), 0))
    np.testing.assert_array_equal(gradient, dropout(jnp.ones_like(x), rate, key))


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.9])
def test_the_mean_is_kept_within_five_deviations(key, rate):
    z = signs(key, (512, 512), rate)
    assert abs(z.sum()) < 5 * np.sqrt(z.size)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4, 5), (0, 4)])
@pytest.mark.quick("shape0", "shape3")
def test_every_shape_works(key, shape):
    assert dropout_mask(key, shape, 0.5).shape == shape
    assert jax.eval_shape(lambda x: dropout(x, 0.5, key), jnp.ones(shape)).shape == shape


def test_places_are_independent_of_their_neighbours(key):
    z = signs(key, (1024, 256))
    for axis in (0, 1):
        for shift in (1, 2, 3, 4, 8, 16, 64, 128):
            a, b = np.roll(z, shift, axis), z
            assert abs((a * b).sum()) < 5 * np.sqrt(z.size), (axis, shift)


def test_sums_of_rows_and_columns_vary_as_chance_does(key):
    z = signs(key, (1024, 1024))
    for axis in (0, 1):
        sums = z.sum(axis) / np.sqrt(z.shape[axis])
        assert abs((sums**2).mean() - 1) < 5 * np.sqrt(2 / sums.size)


def test_no_two_rows_are_alike(key):
    z = signs(key, (512, 512))
    between = z @ z.T / np.sqrt(z.shape[1])
    np.fill_diagonal(between, 0)
    assert np.abs(between).max() < 6


@pytest.mark.parametrize(
    ("a", "b"),
    [(jax.random.key(0), jax.random.key(1)), *[tuple(jax.random.split(jax.random.key(5)))]],
)
def test_keys_give_independent_masks(a, b):
    x, y = signs(a, (512, 256)), signs(b, (512, 256))
    for shift in range(3):
        assert abs((np.roll(x, shift) * y).sum()) < 5 * np.sqrt(x.size)


def test_keys_folded_with_the_step_give_independent_masks(key):
    masks = np.stack([signs(jax.random.fold_in(key, i), (4096,)) for i in range(24)])
    between = masks @ masks.T / 64
    np.fill_diagonal(between, 0)
    assert np.abs(between).max() < 5


@pytest.mark.slow
def test_the_mask_is_the_same_however_it_is_sharded(key):
    x = jnp.ones((16, 8, 24))
    whole = dropout(x, 0.3, key)
    np.testing.assert_array_equal(jax.jit(lambda x, k: dropout(x, 0.3, k))(x, key), whole)
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Auto,) * 3)
    for spec in (P("a", "b", "c"), P(("a", "b", "c")), P(None, None, ("a", "c"))):
        sharding = NamedSharding(mesh, spec)
        split = jax.jit(lambda x, k: dropout(x, 0.3, k), out_shardings=sharding)
        np.testing.assert_array_equal(split(jax.device_put(x, sharding), key), whole)


def test_maps_over_keys(key):
    keys = jax.random.split(key, 3)
    draw = lambda k: dropout_mask(k, (5, 4), 0.5)
    one, together = jax.jit(draw), jax.jit(jax.vmap(draw))(keys)
    for k, mask in zip(keys, together, strict=True):
        np.testing.assert_array_equal(one(k), mask)
