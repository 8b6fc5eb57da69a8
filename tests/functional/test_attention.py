import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads

from tests.drawing import normals
from tests.platforms import trace_for
from transformer_jax import laws
from transformer_jax.core.errors import UserError
from transformer_jax.functional import attention, masks
from transformer_jax.functional.attention import check_shapes, dot_product_self_attention
from transformer_jax.functional.scores import ScaledDot, Scores

# Compiled, because op by op they take ten times as long to test.
OPTIONS = ("score", "implementation")
attend = jax.jit(attention.attend, static_argnames=OPTIONS)
attend_heads_first = jax.jit(attention.attend_heads_first, static_argnames=OPTIONS[1:])
attention_weights = jax.jit(attention.attention_weights, static_argnames=OPTIONS[:1])

# Tables of small numbers, as column t of batch 1 and head 1.
row = lambda x: jnp.asarray(x, jnp.float32)[None, :, None, :]


def arrays(seed=0, B=2, T=5, S=7, N=4, K=2, H=8, U=6, dtype=jnp.float32):
    return normals((B, T, N, H), (B, S, K, H), (B, S, K, U), seed=seed, dtype=dtype)


def oracle(q, k, v, mask=None, **options):
    """Weights and outputs in float64."""
    B, S, K, _ = k.shape
    units = np.broadcast_to(np.eye(S)[None, :, None], (B, S, K, S))

    def formula(*args):
        q, k, v = (np.asarray(x, np.float64).swapaxes(1, 2) for x in args)
        cotangent = np.zeros((*q.shape[:3], v.shape[3]))
        return laws.attention_formula(q, k, v, cotangent, mask, **options)[0]

    return formula(q, k, units), formula(q, k, v).swapaxes(1, 2)


@pytest.mark.parametrize(("U", "K"), [(1, 4), (3, 2), (8, 1)])
def test_equals_the_float64_oracle(U, K):
    # Rows L8, L9: values of any size; grouped heads; more keys than queries.
    q, k, v = arrays(U=U, K=K)
    mask = masks.causal(offset=1) & masks.length_mask(jnp.array([6, 0]), jnp.array([3, 5]))
    [bias] = normals((1, 4, 5, 7), seed=9)
    weights, out = oracle(q, k, v, mask, bias=bias)
    chex.assert_shape(attend(q, k, v, mask, bias=bias), (2, 5, 4, U))
    chex.assert_type(attention_weights(q, k, mask, bias=bias), jnp.float32)
    np.testing.assert_allclose(attention_weights(q, k, mask, bias=bias), weights, atol=1e-6)
    np.testing.assert_allclose(attend(q, k, v, mask, bias=bias), out, atol=1e-6)


def test_options_equal_the_float64_oracle():
    q, k, v = arrays()
    [bias] = normals((2, 1, 5, 7), seed=3)
    mask, options = masks.sliding_window_mask(3), {"score": ScaledDot(1.0, 2.0), "bias": bias}
    weights, out = oracle(q, k, v, mask, **options)
    np.testing.assert_allclose(attention_weights(q, k, mask, **options), weights, atol=1e-6)
    np.testing.assert_allclose(attend(q, k, v, mask, **options), out, atol=2e-6)


@pytest.mark.parametrize("platform", ["cuda", None])
def test_a_few_queries_of_float64_have_the_products_of_any_others(monkeypatch, platform):
    """Forms of all platforms are traced together, so they have one dtype."""
    with jax.enable_x64():
        q, k, v = arrays(T=2, dtype=jnp.float64)
        wanted = oracle(q, k, v)[1]
        if platform is not None:
            trace_for(monkeypatch, platform)
        found = jax.jit(lambda *x: attention.attend(*x))(q, k, v)
        assert found.dtype == jnp.float64
        np.testing.assert_allclose(found, wanted, atol=2e-6)


HIDDEN = (-np.inf, float(jnp.finfo(jnp.float32).min))


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.quick("8")
def test_a_few_queries_on_a_gpu_equal_the_float64_oracle(monkeypatch, seed):
    """Steps of decoding of any kind, with texts of no key, and the gradients of each."""
    trace_for(monkeypatch, "cuda")
    draw = np.random.default_rng(seed)
    K, T, S = (int(draw.integers(1, size)) for size in (4, 9, 20))
    dtype = draw.choice([jnp.float32, jnp.bfloat16])
    q, k, v = arrays(seed, T=T, S=S, N=K * int(draw.integers(1, 4)), K=K, dtype=dtype)
    seen = draw.random((2, 1, T, S)) < draw.choice([0.2, 0.8])
    seen[0, :, 0] = False
    options = {"score": ScaledDot(None, draw.choice([None, 2.0]))}
    if draw.random() < 0.5:
        [bias] = normals((1, q.shape[2], T, S), seed=seed)
        hides = jnp.asarray(draw.random((1, 1, T, S)) < 0.3)
        options["bias"] = jnp.where(hides, draw.choice(HIDDEN), bias)
    mask = None if draw.random() < 0.2 else jnp.asarray(seen)
    wanted = oracle(q, k, v, mask, **options)[1]
    found, back = jax.vjp(jax.jit(lambda *x: attention.attend(*x, mask, **options)), q, k, v)
    narrow = dtype == jnp.bfloat16
    assert found.dtype == dtype
    np.testing.assert_allclose(found.astype(jnp.float32), wanted, atol=3e-2 if narrow else 2e-6)
    if mask is not None:
        np.testing.assert_array_equal(found[0, 0], 0)
    ours = back(jnp.ones_like(found))
    trace_for(monkeypatch, "tpu")
    plain = jax.vjp(jax.jit(lambda *x: attention.attend(*x, mask, **options)), q, k, v)[1]
    for a, b in zip(ours, plain(jnp.ones_like(found)), strict=True):
        a, b = (x.astype(jnp.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=3e-2 if narrow else 3e-6)


def test_half_precision_stays_near_the_oracle():
    q, k, v = arrays(dtype=jnp.bfloat16)
    weights, out = oracle(q, k, v)
    found = attend(q, k, v)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found.astype(jnp.float32), out, atol=2e-2)
    np.testing.assert_allclose(attention_weights(q, k), weights, atol=2e-2)


def test_equals_jax_nn_where_no_row_is_fully_masked():
    q, k, v = arrays(U=8)
    mask = masks.causal() & masks.length_mask(jnp.array([4, 7]))
    theirs = jax.nn.dot_product_attention(q, k, v, mask=mask.array(5, 7))
    np.testing.assert_allclose(attend(q, k, v, mask), theirs, atol=1e-6)


def test_row_b10_heads_in_a_loop_equal_heads_at_once():
    q, k, v = arrays(K=4)
    one = lambda n: attend(*(x[:, :, n : n + 1] for x in (q, k, v)), masks.causal())
    loop = jnp.concatenate([one(n) for n in range(4)], axis=2)
    np.testing.assert_allclose(attend(q, k, v, masks.causal()), loop, atol=1e-6)


def test_heads_first_is_the_same_transposed():
    q, k, v = arrays()
    first = attend_heads_first(*(x.swapaxes(1, 2) for x in (q, k, v)), Scores(masks.causal()))
    whole = attend(q, k, v, masks.causal())
    np.testing.assert_allclose(whole, first.swapaxes(1, 2), atol=1e-6)


def test_row_u5_shapes_and_large_logits():
    q, k, v = arrays(B=1, T=15, S=13, N=1, K=1, H=8, U=5)
    assert attend(q, k, v).shape == (1, 15, 1, 5)
    y, back = jax.vjp(lambda *x: attend(*x, score=ScaledDot(1e4)), q, k, v)
    assert all(np.isfinite(x).all() for x in (y, *back(y)))
    laws.weights_sum_to_one(attention_weights(q, k, score=ScaledDot(1e4))).require()


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 2**30), half=st.booleans(), size=st.sampled_from([0.1, 1.0, 100.0]))
def test_row_b4_weights_are_a_partition_of_unity(seed, half, size):
    q, k, _ = arrays(seed, dtype=jnp.bfloat16 if half else jnp.float32)
    allowed = jnp.asarray(np.random.default_rng(seed).random((2, 1, 5, 7)) < 0.3)
    weights = attention_weights(q * size, k, masks.dense_mask(allowed))
    assert weights.dtype == np.float32
    laws.weights_sum_to_one(weights, allowed).require()


def test_row_b5_attention_without_parameters():
    golden = [[0.731059, 0.268941], [0.268941, 0.731059]]
    np.testing.assert_allclose(dot_product_self_attention(jnp.eye(2)), golden, atol=1e-6)


def test_row_b7_scale_of_one_is_unscaled():
    q, k, v = arrays()
    unscaled = {"score": ScaledDot(1.0)}
    np.testing.assert_allclose(
        attend(q, k, v, **unscaled), oracle(q, k, v, **unscaled)[1], atol=1e-6
    )


@pytest.mark.parametrize(("D", "variance"), [(16, 16.02), (64, 63.4), (256, 250.7)])
def test_row_b8_the_default_scale_keeps_the_variance(D, variance):
    # Read back from the weights: log ratios of a softmax are differences of scores, and the
    # variance of a difference is twice that of a score.
    q, k, _ = arrays(B=1, T=64, S=2048, N=1, K=1, H=D)

    def scores_variance(scale):
        logs = jnp.log(attention_weights(q, k, score=ScaledDot(scale)))[0, 0]
        return float(jnp.var(logs[:, 0::2] - logs[:, 1::2])) / 2

    assert scores_variance(None) == pytest.approx(1.0, rel=0.1)
    # Small enough not to underflow, then undone.
    assert scores_variance(D**-1.0) * D**2 == pytest.approx(variance, rel=0.1)


def test_row_l17_masked_numbers_as_they_should_be():
    # Scores are the products themselves: a query per row, keys the unit vectors.
    product = [[31, 27, 22], [27, 42, 31], [22, 31, 37]]
    weights = attention_weights(
        row(product), row(np.eye(3)), masks.causal(), score=ScaledDot(3**-0.5)
    )
    golden = [[1, 0, 0], [1.733e-4, 0.999827, 0], [1.681e-4, 0.030346, 0.969486]]
    np.testing.assert_allclose(weights[0, 0], golden, atol=1e-6)


def test_rows_h2_to_h4_numbers_as_they_should_be():
    scores, values = row([[92, 124, 22, 8]]), row(np.eye(4))
    golden = [0.017986, 0.982010, 2.85e-6, 4.95e-7]
    weights = attention_weights(scores, values, score=ScaledDot(64**-0.5))[0, 0, 0]
    np.testing.assert_allclose(weights, golden, atol=1e-6)
    # With unit vectors for values, what comes out are the weights.
    np.testing.assert_array_equal(
        attend(scores, values, values, score=ScaledDot(64**-0.5))[0, 0, 0], weights
    )


def test_row_u4_cold_attention_is_a_dictionary():
    keys = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    stored = np.random.default_rng(1).normal(size=(6, 3))
    found = attend(row(keys[[4, 1]]), row(keys), row(stored), score=ScaledDot(1e3))
    np.testing.assert_allclose(found[0, :, 0], stored[[4, 1]], atol=1e-6)


def test_row_l15_permuted_tokens_give_permuted_outputs():
    [x] = normals((1, 9, 2, 4))
    order = np.random.default_rng(0).permutation(9)
    laws.permutation(lambda x: attend(x, x, x), x).require()
    # Keys and values may come in any order of their own.
    np.testing.assert_allclose(attend(x, x[:, order], x[:, order]), attend(x, x, x), atol=1e-6)


@pytest.mark.parametrize("implementation", ["xla", "chunked"])
def test_row_l16_no_gradient_comes_from_the_future(implementation):
    def look(x):
        q, k, v = jnp.split(x[:, :, None], 3, axis=-1)
        return attend(q, k, v, masks.causal(), implementation=implementation)

    laws.causality_by_gradient(look, normals((1, 6, 24))[0]).require()


def test_row_h10_the_first_query_sees_itself():
    q, k, _ = arrays(S=5)
    np.testing.assert_array_equal(attention_weights(q, k, masks.causal())[:, :, 0, 0], 1.0)


def test_row_b28_weights_are_renormalised_not_zeroed():
    q, k, _ = arrays()
    full = np.asarray(attention_weights(q, k))
    masked = np.asarray(attention_weights(q, k, masks.causal()))
    kept = np.where(np.tri(5, 7, dtype=bool), full, 0)
    np.testing.assert_allclose(masked, kept / kept.sum(-1, keepdims=True), atol=1e-6)


def test_a_hidden_key_is_as_good_as_absent():
    q, k, v = arrays()
    lengths = jnp.array([4, 4])
    short = attend(q, k[:, :4], v[:, :4])
    np.testing.assert_allclose(attend(q, k, v, masks.length_mask(lengths)), short, atol=1e-6)
    other = attend(q, k.at[:, 4:].add(50.0), v.at[:, 4:].set(1e6), masks.length_mask(lengths))
    np.testing.assert_array_equal(other, attend(q, k, v, masks.length_mask(lengths)))


def test_decoding_one_query_at_a_time_equals_all_at_once():
    q, k, v = arrays(T=7)
    whole = attend(q, k, v, masks.causal())
    step = jax.jit(lambda q, at: attend(q, k, v, masks.causal(offset=at)))
    for at in range(7):
        np.testing.assert_allclose(step(q[:, at : at + 1], at)[:, 0], whole[:, at], atol=1e-6)


def test_a6_fully_masked_row_is_zero_unlike_jax_nn_mean():
    v = row([[1], [2]])
    nothing = masks.dense_mask(jnp.zeros((1, 1, 1, 2), bool))
    one = row([[1]])
    theirs = jax.nn.dot_product_attention(one, v, v, mask=jnp.zeros((1, 1, 1, 2), bool))
    assert theirs.item() == 1.5
    assert attend(one, v, v, nothing).item() == 0.0


@pytest.mark.parametrize("low", [-np.inf, float(jnp.finfo(jnp.float32).min)])
def test_a_bias_that_hides_everything_is_a_mask(low):
    q, k, v = arrays()
    bias = jnp.zeros((1, 1, 5, 7)).at[:, :, 2].set(low).at[:, :, :, 5].set(low)
    y, back = jax.vjp(lambda *x: attend(*x[:3], bias=x[3]), q, k, v, bias)
    assert (y[:, 2] == 0).all()
    gradients = back(y)
    assert all(np.isfinite(x).all() for x in gradients)
    assert (gradients[0][:, 2] == 0).all()


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradients_equal_finite_differences(softcap):
    q, k, v = arrays(T=3, S=4, H=3, U=2)
    [bias] = normals((1, 4, 3, 4), seed=5)
    mask = masks.causal(offset=1) & masks.length_mask(jnp.array([4, 0]))
    f = jax.jit(
        lambda q, k, v, bias: attend(q, k, v, mask, bias=bias, score=ScaledDot(softcap=softcap))
    )
    check_grads(f, (q, k, v, bias), order=1, modes=["rev"], atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("shape", [(2, 4, 5, 7), (1, 4, 5, 7), (2, 1, 5, 7), (1, 4, 1, 7)])
def test_a_bias_broadcasts_and_its_gradient_sums(shape):
    q, k, v = arrays()
    [bias] = normals(shape, seed=5)
    square = jax.grad(lambda bias: (attend(q, k, v, masks.causal(), bias=bias) ** 2).sum())
    found = square(bias)
    assert found.shape == shape
    whole = square(jnp.broadcast_to(bias, (2, 4, 5, 7)))
    axes = tuple(i for i, n in enumerate(shape) if n == 1)
    np.testing.assert_allclose(found, whole.sum(axes, keepdims=True), atol=1e-5)


def test_dropout_happens_with_a_key_and_keeps_the_mean(key):
    q, k, v = arrays()
    plain = attend(q, k, v, masks.causal())

    @functools.partial(jax.jit, static_argnames="rate")
    def drop_at(q, k, v, key, rate=0.5):
        return attention.attend(q, k, v, masks.causal(), dropout=(rate, key))

    np.testing.assert_array_equal(drop_at(q, k, v, None), plain)
    np.testing.assert_array_equal(drop_at(q, k, v, key, rate=0.0), plain)
    drop = lambda key: drop_at(q, k, v, key)
    many = jax.jit(jax.vmap(drop))(jax.random.split(key, 2000))
    error = np.abs(many.mean(0) - plain) / np.maximum(many.std(0), 1e-3)
    assert error.max() < 5 / np.sqrt(2000)
    np.testing.assert_array_equal(drop(key), drop(key))


def test_row_l9_sizes_that_do_not_fit_are_named():
    fits = (1, 4, 5, 8), (1, 2, 7, 8), (1, 2, 7, 3)
    check_shapes("attend", *fits)
    for which, shape, words in [
        (1, (1, 2, 7, 6), "attend: k has head size 6, q has 8"),
        (1, (1, 3, 7, 8), "attend: v has 2 heads, k has 3"),
        (0, (1, 5, 5, 8), "attend: q has 5 heads, not a multiple of the 2 of k"),
        (0, (2, 4, 5, 8), "attend: q, k and v have batch sizes 2, 1 and 1"),
        (2, (1, 2, 6, 3), "attend: v has length 6, k has 7"),
    ]:
        shapes = [*fits]
        shapes[which] = shape
        with pytest.raises(UserError, match=f"^{words}$"):
            check_shapes("attend", *shapes)
    q, k, v = arrays()
    with pytest.raises(UserError, match=r"^attend: k has head size 4, q has 8$"):
        attention.attend(q, k[..., :4], v)
    with pytest.raises(UserError, match=r"^attention_weights: k has head size 4, q has 8$"):
        attention.attention_weights(q, k[..., :4])
