"""Shapes, types and gradients of every public function of attention, masks and encodings.

Each function is traced, not run: a row of the table costs milliseconds. A new public function of
these files needs a row.
"""

import inspect

import chex
import jax
import jax.numpy as jnp
import pytest

from tests.drawing import normals
from transformer_jax.functional import (
    alignment_scores,
    attention,
    layers,
    local_attention,
    losses,
    masks,
    positions,
    scores,
)
from transformer_jax.functional.kernels import chunked, cross_entropy, products, xla
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import ScaledDot, Scores

B, T, S, N, K, H, J, U, A, D, F, V = 2, 5, 7, 4, 2, 6, 8, 3, 9, 12, 10, 11
MODULES = attention, scores, alignment_scores, local_attention, masks, positions, layers, losses

x, y, rows = (B, T, N, H), (B, N, T, H), (B, T, D)
kv = (B, S, K, H), (B, S, K, U)
heads_first = (B, K, S, H), (B, K, S, U)
aligned = (B, N, T, H), (B, N, S, J)
WEIGHTS, TOKENS = (B, N, T, S), jnp.zeros((B, T), jnp.int32)

# Function, shapes of its arrays of floats, further arguments, and the shape of its result.
CASES = {
    "attend": (attention.attend, (x, *kv), {}, (B, T, N, U)),
    "attend.mask": (attention.attend, (x, *kv), {"mask": Mask(causal=True)}, (B, T, N, U)),
    "attend_heads_first": (attention.attend_heads_first, (y, *heads_first), {}, (B, N, T, U)),
    "attention_weights": (attention.attention_weights, (x, kv[0]), {}, WEIGHTS),
    "dot_product_self_attention": (attention.dot_product_self_attention, ((T, D),), {}, (T, D)),
    "ScaledDot": (ScaledDot(softcap=2.0), (y, heads_first[0]), {}, WEIGHTS),
    "Scores": (Scores(Mask(causal=True)).weights, (y, heads_first[0]), {}, WEIGHTS),
    "masked_softmax": (scores.masked_softmax, (WEIGHTS,), {}, WEIGHTS),
    "mix": (scores.mix, (WEIGHTS, heads_first[1]), {}, (B, N, T, U)),
    "query_key_product": (scores.query_key_product, (y, heads_first[0]), {}, WEIGHTS),
    "transposed_value_product": (
        scores.transposed_value_product, (WEIGHTS, (B, N, T, U), heads_first[0]), {}, (B, K, S, U),
    ),
    "general_scores": (alignment_scores.general_scores, (*aligned, (H, J)), {}, WEIGHTS),
    "additive_scores": (
        alignment_scores.additive_scores, (*aligned, (H, A), (J, A), (A,)), {}, WEIGHTS,
    ),
    "projected_additive_scores": (
        alignment_scores.projected_additive_scores, ((B, N, T, A), (B, N, S, A), (A,)), {}, WEIGHTS,
    ),
    "concat_scores": (alignment_scores.concat_scores, (*aligned, (H + J, A), (A,)), {}, WEIGHTS),
    "location_scores": (alignment_scores.location_scores, (*aligned, (H, S + 1)), {}, WEIGHTS),
    "local_attention": (
        local_attention.local_attention, (x, x, (B, T, N, U)), {"reach": 1}, (B, T, N, U),
    ),
    "apply_rotary_embedding": (
        positions.apply_rotary_embedding, (x,), {"positions": TOKENS}, x,
    ),
    "linear": (layers.linear, (rows, (D, F), (F,)), {}, (B, T, F)),
    "linear_maps": (
        lambda x, kernel, bias: layers.linear_maps(x, (kernel,) * 2, (bias, None))[0],
        (rows, (D, F), (F,)), {}, (B, T, F),
    ),
    "linear_transposed": (layers.linear_transposed, (rows, (F, D), (F,)), {}, (B, T, F)),
    "layer_norm": (layers.layer_norm, (rows, (D,), (D,)), {"eps": 1e-5}, rows),
    "rms_norm": (layers.rms_norm, (rows, (D,)), {"eps": 1e-5}, rows),
    "dropout": (layers.dropout, (rows,), {"rate": 0.5, "key": jax.random.key(0)}, rows),
    "soft_cap": (layers.soft_cap, (rows,), {"bound": 3.0}, rows),
    "soft_cap_slope": (layers.soft_cap_slope, (rows,), {"bound": 3.0}, rows),
    "gather_positions": (
        layers.gather_positions, (rows,), {"positions": TOKENS[:, :3]}, (B, 3, D),
    ),
    **{name: (function, (rows,), {}, rows) for name, function in layers.ACTIVATIONS.items()},
    "token_cross_entropy": (
        losses.token_cross_entropy, ((B, T, V),), {"targets": TOKENS}, (B, T),
    ),
    "cross_entropy": (losses.cross_entropy, ((B, T, V),), {"targets": TOKENS}, ((), ())),
    "linear_cross_entropy": (
        lambda x, table: losses.linear_cross_entropy(x, losses.OutputTable(table), TOKENS),
        (rows, (V, D)), {}, ((), ()),
    ),
    "OutputTable": (
        lambda x, table: losses.OutputTable(table).logits(x), (rows, (V, D)), {}, (B, T, V),
    ),
    "xla": (xla.run, (y, *heads_first), {}, (B, N, T, U)),
    "chunked": (chunked.run, (y, *heads_first), {"block": 2}, (B, N, T, U)),
    "kernel_gradient": (products.kernel_gradient, ((T, D), (T, F)), {}, (D, F)),
    "transposed_matmul": (products.transposed_matmul, ((T, D), (T, F)), {}, (D, F)),
    "sum_rows": (products.sum_rows, (rows,), {}, (D,)),
    "weighted": (cross_entropy.weighted, ((B, T), (B, T)), {}, (B, T)),
}  # fmt: skip
# Results that are float32 whatever their arguments are; the others keep the type of the first.
WIDE = {
    *("attention_weights", "ScaledDot", "Scores", "mix", "query_key_product", "OutputTable"),
    *("transposed_value_product", "general_scores", "additive_scores", "concat_scores"),
    *("projected_additive_scores", "location_scores", "token_cross_entropy", "cross_entropy"),
    *("linear_cross_entropy", "kernel_gradient", "transposed_matmul", "sum_rows"),
}
# Functions without arrays of floats, whose shapes the test below states.
TABLES = {
    "dropout_mask": (lambda: layers.dropout_mask(jax.random.key(0), (T, D), 0.5), (T, D), bool),
    "sinusoidal": (lambda: positions.sinusoidal(T, D), (T, D), "float32"),
    "sinusoidal_float64": (lambda: positions.sinusoidal_float64(T, D), (T, D), "float64"),
    "sinusoidal_2d": (lambda: positions.sinusoidal_2d(T, S, D), (T * S, D), "float32"),
    "alibi_bias": (lambda: positions.alibi_bias(T, S, N), (1, N, T, S), "float32"),
    "alibi_slopes": (lambda: positions.alibi_slopes(N), (N,), "float64"),
    "relative_position_bucket": (
        lambda: positions.relative_position_bucket(T, S), (T, S), "int32",
    ),
    "rotary_frequencies": (lambda: positions.rotary_frequencies(H), (H // 2,), "float64"),
    "yarn_frequencies": (
        lambda: positions.yarn_frequencies(H, 100.0, 4.0, 32.0, 1.0, 64), (H // 2,), "float64",
    ),
    "causal": (lambda: masks.causal().array(T, S), (1, 1, T, S), bool),
    "length_mask": (lambda: masks.length_mask(jnp.ones(B, int)).array(T, S), (B, 1, T, S), bool),
    "padding_mask": (lambda: masks.padding_mask(jnp.ones(B, int)).array(T, S), (B, 1, T, S), bool),
    "segment_mask": (lambda: masks.segment_mask(TOKENS, TOKENS).array(T, T), (B, 1, T, T), bool),
    "sliding_window_mask": (
        lambda: masks.sliding_window_mask(2).array(T, S), (1, 1, T, S), bool,
    ),
    "dense_mask": (lambda: masks.dense_mask(jnp.ones(WEIGHTS, bool)).array(T, S), WEIGHTS, bool),
    "as_mask": (
        lambda: masks.as_mask(jnp.ones((B, 1, 1, S), bool)).array(T, S), (B, 1, T, S), bool,
    ),
    "Mask": (lambda: Mask(kv_lengths=jnp.ones(B, int)).any_visible(T, S), (B, 1, T, 1), bool),
}  # fmt: skip
# They give numbers of Python.
PLAIN = {"dynamic_base", "local_blocks"}


def is_pair(shape):
    return bool(shape) and isinstance(shape[0], tuple)


def called(name, dtype):
    function, shapes, rest, _ = CASES[name]
    arrays = normals(*shapes, dtype=dtype)
    return (lambda *arrays: function(*arrays, **rest)), arrays


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_result_has_its_shape_and_type(name, dtype):
    function, arrays = called(name, dtype)
    found, shape = jax.eval_shape(function, *arrays), CASES[name][3]
    results = found if is_pair(shape) else (found,)
    for one, wanted in zip(results, shape if is_pair(shape) else (shape,), strict=True):
        chex.assert_shape(one, wanted)
        chex.assert_type(one, jnp.float32 if name in WIDE else dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_have_shapes_and_types_of_arguments(name, dtype):
    function, arrays = called(name, dtype)
    total = lambda arrays: jax.tree.leaves(function(*arrays))[0].astype("float32").sum()
    grads = jax.eval_shape(jax.grad(total), arrays)
    chex.assert_trees_all_equal_shapes_and_dtypes(grads, arrays)


@pytest.mark.parametrize("name", CASES)
def test_functions_map_over_one_more_axis(name):
    function, arrays = called(name, "float32")
    more = jax.tree.map(lambda a: jnp.stack([a] * 3), arrays)
    found = jax.eval_shape(jax.vmap(function), *more)
    alone = jax.eval_shape(function, *arrays)
    chex.assert_tree_shape_prefix(found, (3,))
    drop = lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype)
    chex.assert_trees_all_equal_shapes_and_dtypes(jax.tree.map(drop, found), alone)


@pytest.mark.parametrize("name", TABLES)
def test_tables_and_masks_have_their_shape_and_type(name):
    make, shape, dtype = TABLES[name]
    found = make()
    chex.assert_shape(found, shape)
    assert found.dtype == dtype


def test_every_public_function_has_a_row():
    there = CASES.keys() | TABLES.keys() | PLAIN
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            own = inspect.isfunction(value) and value.__module__ == module.__name__
            assert not own or name in there, f"{module.__name__}.{name}"
