import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.functional import positions
from transformer_jax.functional.positions import (
    alibi_bias,
    alibi_slopes,
    apply_rotary_embedding,
    relative_position_bucket,
    rotary_frequencies,
    sinusoidal,
    sinusoidal_2d,
    sinusoidal_float64,
)

LAYOUTS = ("interleaved", "halves")


def pairs(table, layout):
    """Sines and cosines apart, of an even width."""
    if layout == "interleaved":
        return table[:, 0::2], table[:, 1::2]
    return np.split(table, 2, axis=1)


def test_goldens_of_row_l14():
    golden = [
        [0, 1, 0, 1],
        [0.841471, 0.540302, 0.01, 0.99995],
        [0.909297, -0.416147, 0.019999, 0.9998],
    ]
    np.testing.assert_allclose(sinusoidal(3, 4), golden, atol=1e-6)
    halves = np.array(golden)[:, [0, 2, 1, 3]]
    np.testing.assert_allclose(sinusoidal(3, 4, "halves"), halves, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1, 2, 5, 8, 9])
def test_formula_in_float64_and_any_width(layout, width):
    table = np.asarray(sinusoidal(40, width, layout, start=1000))
    chex.assert_shape(table, (40, width))
    chex.assert_type(table, jnp.float32)
    for column in range(width):
        if layout == "interleaved":
            i, cosine = column // 2, column % 2
        else:
            sines = (width + 1) // 2
            i, cosine = column % sines, column >= sines
        angle = np.arange(1000, 1040) / 10_000 ** (2 * i / width)
        wave = np.cos(angle) if cosine else np.sin(angle)
        np.testing.assert_allclose(table[:, column], wave, atol=1e-7)


@pytest.mark.parametrize("width", [1, 2, 5, 8, 9])
def test_wavelengths_of_fairseq_end_at_the_base(width):
    """Sines, cosines, and a zero where the width is odd; angles are those of float32."""
    table = np.asarray(sinusoidal(40, width, "fairseq", start=1000))
    chex.assert_shape(table, (40, width))
    chex.assert_type(table, jnp.float32)
    half, at = width // 2, np.arange(1000, 1040)
    for column in range(2 * half):
        exponent = (column % half) / max(half - 1, 1)
        angle = at / 10_000**exponent
        wave = np.cos(angle) if column >= half else np.sin(angle)
        np.testing.assert_allclose(table[:, column], wave, atol=2e-4)
    np.testing.assert_array_equal(table[:, 2 * half :], np.zeros((40, width % 2)))
    np.testing.assert_array_equal(sinusoidal(20, width, "fairseq", start=1020), table[20:])


def test_row_b16_is_row_l14():
    D, L = 6, 10_000
    n, i = np.arange(9)[:, None], np.arange(D)[None]
    book = np.where(i % 2 == 0, np.sin(n / L ** (i / D)), np.cos(n / L ** ((i - 1) / D)))
    np.testing.assert_allclose(sinusoidal(9, D), book, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_start_continues_the_table(layout):
    table = sinusoidal(50, 6, layout)
    np.testing.assert_array_equal(sinusoidal(20, 6, layout, start=30), table[30:])


def test_row_b15_bounded_and_unique_to_a_hundred_thousand():
    table = np.asarray(sinusoidal(100_000, 64))
    assert np.abs(table).max() <= 1.0
    assert len(np.unique(table, axis=0)) == 100_000
    # Late positions are exact too: an angle made in float32 is off by 4e-3 here.
    angle = np.float64(99_999)
    np.testing.assert_allclose(table[-1, :2], [np.sin(angle), np.cos(angle)], atol=1e-7)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_b15_offsets_are_rotations(layout):
    D, k = 8, 5
    sines, cosines = pairs(np.asarray(sinusoidal(60, D, layout)), layout)
    turn = k / 10_000 ** (np.arange(0, D, 2) / D)
    ahead = sines[:-k] * np.cos(turn) + cosines[:-k] * np.sin(turn)
    np.testing.assert_allclose(sines[k:], ahead, atol=1e-6)
    table = np.asarray(sinusoidal(60, D, layout))
    products = (table[:-k] * table[k:]).sum(1)
    np.testing.assert_allclose(products, products[0], atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_b15_in_float64_offsets_are_rotations_to_the_last_digit(layout):
    """Row B15: r[t+k] = M_k r[t] to 7e-16; r[t]·r[t+k] depends on k alone, to 8.9e-16."""
    D, k = 8, 5
    table = sinusoidal_float64(60, D, layout)
    np.testing.assert_array_equal(sinusoidal(60, D, layout), table.astype(np.float32))
    sines, cosines = pairs(table, layout)
    turn = k / 10_000 ** (np.arange(0, D, 2) / D)
    ahead = sines[:-k] * np.cos(turn) + cosines[:-k] * np.sin(turn)
    assert np.abs(sines[k:] - ahead).max() < 7e-16
    assert np.ptp((table[:-k] * table[k:]).sum(1)) < 8.9e-16


@pytest.mark.parametrize(("rows", "columns", "width"), [(3, 5, 12), (4, 4, 4), (1, 7, 20)])
def test_positions_of_a_grid_say_row_and_column(rows, columns, width):
    """Against the definition, place by place: columns in the first half, rows in the second."""
    table = np.asarray(sinusoidal_2d(rows, columns, width, 100.0)).reshape(rows, columns, width)
    quarter = width // 4
    for row, column in np.ndindex(rows, columns):
        turns = [100.0 ** (-i / max(quarter - 1, 1)) for i in range(quarter)]
        wanted = [f(n * w) for n in (column, row) for f in (np.sin, np.cos) for w in turns]
        np.testing.assert_allclose(table[row, column], wanted, atol=1e-6)


def test_unknown_layout_is_refused():
    with pytest.raises(Exception, match="layout"):
        sinusoidal(2, 4, "zigzag")


def test_rotary_is_a_rotation_of_halves():
    x = np.random.default_rng(0).normal(size=(2, 5, 3, 6)).astype(np.float32)
    at = np.array([[0, 1, 2, 3, 4], [7, 0, 9, 2, 30]])
    out = np.asarray(
        apply_rotary_embedding(jnp.asarray(x), jnp.asarray(at), rotary_frequencies(6, 100.0))
    )
    chex.assert_equal_shape((out, x))
    z = x[..., :3] + 1j * x[..., 3:]
    rotated = z * np.exp(1j * at[:, :, None, None] * 100.0 ** (-np.arange(3) / 3))
    np.testing.assert_allclose(out, np.concatenate([rotated.real, rotated.imag], -1), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(out, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5)


@settings(deadline=None, max_examples=20)
@given(t=st.integers(0, 500), s=st.integers(0, 500), shift=st.integers(0, 500))
def test_rotary_products_depend_on_distance_alone(t, s, shift):
    q, k = np.random.default_rng(1).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)

    def product(t, s):
        at = jnp.array([[t]]), jnp.array([[s]])
        return float(
            (
                apply_rotary_embedding(jnp.asarray(q), at[0])
                * apply_rotary_embedding(jnp.asarray(k), at[1])
            ).sum()
        )

    assert product(t, s) == pytest.approx(product(t + shift, s + shift), abs=2e-3)


def test_rotary_keeps_the_dtype_and_refuses_odd_heads():
    x = jnp.ones((1, 2, 1, 4), jnp.bfloat16)
    assert jax.eval_shape(apply_rotary_embedding, x, jnp.array([[0, 1]])).dtype == jnp.bfloat16
    with pytest.raises(ValueError, match="even head size, not H = 3"):
        apply_rotary_embedding(jnp.ones((1, 1, 1, 3)), jnp.array([[0]]))


def test_llama_3_scaling():
    # As Hugging Face computes it, in its order.
    factor, low, high, old = scaling = (8.0, 1.0, 4.0, 8192)
    plain = rotary_frequencies(128, 500_000.0)
    wave = 2 * np.pi / plain
    stretched = np.where(wave > old / low, plain / factor, plain)
    smooth = (old / wave - low) / (high - low)
    between = (1 - smooth) * stretched / factor + smooth * stretched
    middle = ~(wave < old / high) & ~(wave > old / low)
    assert middle.any()
    expected = np.where(middle, between, stretched)
    np.testing.assert_allclose(rotary_frequencies(128, 500_000.0, scaling), expected, rtol=1e-12)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 16, 20])
def test_alibi_slopes(heads):
    def published(n):  # the authors' code
        if (n & (n - 1)) == 0:
            start = 2 ** (-(2 ** -(np.log2(n) - 3)))
            return [start * start**i for i in range(n)]
        below = 2 ** int(np.log2(n))
        return published(below) + published(2 * below)[0::2][: n - below]

    np.testing.assert_allclose(alibi_slopes(heads), published(heads), rtol=1e-12)


def test_alibi_bias_falls_with_distance_at_any_offset():
    whole = alibi_bias(6, 6, 4)
    t, s = np.mgrid[:6, :6]
    np.testing.assert_allclose(whole[0, 1], -np.abs(t - s) * alibi_slopes(4)[1], rtol=1e-6)
    step = jax.jit(lambda at: alibi_bias(1, 6, 4, offset=at))
    np.testing.assert_array_equal(step(4)[0, :, 0], whole[0, :, 4])


def t5_bucket(ahead, bidirectional, buckets, most):
    """Raffel et al.'s code, as Hugging Face has it, in float32."""
    out = np.zeros_like(ahead)
    if bidirectional:
        buckets //= 2
        out += (ahead > 0) * buckets
        distance = np.abs(ahead)
    else:
        distance = -np.minimum(ahead, 0)
    exact = buckets // 2
    with np.errstate(divide="ignore"):
        far = np.log(distance.astype(np.float32) / np.float32(exact))
    far = far / np.float32(np.log(most / exact)) * np.float32(buckets - exact)
    far = exact + np.where(distance < exact, 0, far).astype(int)
    return out + np.where(distance < exact, distance, np.minimum(far, buckets - 1))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (4, 500), (32, 32), (32, 17)])
def test_relative_buckets_are_t5s(bidirectional, buckets, most):
    T, S = 300, 310
    ahead = np.arange(S)[None] - np.arange(T)[:, None]
    found = np.asarray(
        jax.jit(lambda: relative_position_bucket(T, S, bidirectional, buckets, most))()
    )
    np.testing.assert_array_equal(found, t5_bucket(ahead, bidirectional, buckets, most))
    assert found.min() == 0
    # Without keys ahead the first of the upper half stays empty, so all but one are in use.
    assert found.max() == buckets - 1


@pytest.mark.parametrize("bidirectional", [True, False])
def test_a_traced_offset_falls_into_the_same_buckets(bidirectional):
    whole = jax.jit(lambda: relative_position_bucket(200, 200, bidirectional))()
    step = jax.jit(lambda at: relative_position_bucket(1, 200, bidirectional, offset=at))
    for at in (0, 1, 17, 128, 199):
        np.testing.assert_array_equal(step(at)[0], whole[at])
    np.testing.assert_array_equal(
        jax.jit(lambda: relative_position_bucket(5, 200, bidirectional, offset=100))(),
        whole[100:105],
    )


def test_too_few_buckets_are_refused():
    for few in (
        {"buckets": 2},
        {"buckets": 1, "bidirectional": False},
        {"max_distance": 8},
        {"max_distance": 16, "bidirectional": False},
    ):
        with pytest.raises(ValueError, match="buckets"):
            positions.relative_position_bucket(2, 2, **few)
