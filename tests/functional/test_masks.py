import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import laws
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional import masks
from transformer_jax.functional.attention import attend, attend_heads_first, attention_weights
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import Scores

B, T, S = 2, 5, 7

_rng = np.random.default_rng(0)
CATALOGUE = {
    "nothing": Mask(),
    "causal": masks.causal(),
    "causal_later": masks.causal(offset=2),
    "window": masks.sliding_window_mask(3),
    "lengths": masks.length_mask(jnp.array([3, 0])),
    "both_lengths": masks.length_mask(jnp.array([7, 4]), jnp.array([2, 5])),
    "segments": masks.segment_mask(
        jnp.array([[1, 1, 2, 2, 0], [1, 2, 3, 0, 0]]),
        jnp.array([[1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 2, 3, 0]]),
    ),
    "dense": masks.dense_mask(jnp.asarray(_rng.random((B, 1, T, S)) < 0.5)),
    "dense_heads": masks.dense_mask(jnp.asarray(_rng.random((1, 3, T, S)) < 0.5)),
    "dense_keys": masks.dense_mask(jnp.asarray(_rng.random((B, 1, 1, S)) < 0.5)),
}


PAIRS = list(itertools.combinations_with_replacement(CATALOGUE, 2))


def whole(mask, t=T, s=S, heads=3):
    """The mask as a full array, all ones where nothing is forbidden."""
    found = mask.array(t, s)
    return np.broadcast_to(True if found is None else found, (B, heads, t, s))


def definition(mask, b, n, t, s):
    """The documented meaning of Mask, one cell at a time."""
    ahead = s - (t + int(mask.offset))
    may = not (mask.causal and ahead > 0)
    may &= mask.window is None or abs(ahead) < mask.window
    may &= mask.kv_lengths is None or s < mask.kv_lengths[b]
    may &= mask.q_lengths is None or t < mask.q_lengths[b]
    if mask.q_segments is not None:
        may &= mask.q_segments[b, t] == mask.kv_segments[b, s] and mask.q_segments[b, t] != 0
    if mask.dense is not None:
        may &= np.broadcast_to(mask.dense, (B, 3, T, S))[b, n, t, s]
    return bool(may)


@pytest.mark.parametrize("name", CATALOGUE)
def test_array_is_the_definition(name):
    mask = jax.tree.map(np.asarray, CATALOGUE[name])
    cells = itertools.product(range(B), range(3), range(T), range(S))
    expected = np.array([definition(mask, *cell) for cell in cells]).reshape(B, 3, T, S)
    np.testing.assert_array_equal(whole(CATALOGUE[name]), expected)
    found = CATALOGUE[name].array(T, S)
    if found is not None:
        chex.assert_shape(found, (None, None, T, S))
        chex.assert_type(found, bool)
        seen = CATALOGUE[name].any_visible(T, S)
        assert (seen is None) == (name in ("causal", "causal_later", "window"))
        chex.assert_shape([] if seen is None else [seen], (None, None, T, 1))


def test_true_means_visible():
    # A wrong polarity would let the first query see only what comes after it.
    assert whole(masks.causal(), 3, 3)[0, 0].tolist() == np.tri(3, dtype=bool).tolist()
    assert whole(masks.length_mask(jnp.array([1, 2])), 1, 3)[1, 0].tolist() == [[True, True, False]]


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("kernel", ["xla", "chunked"])
@pytest.mark.quick("xla-segments")
def test_a_query_attends_where_its_mask_is_true(name, kernel):
    draw = np.random.default_rng(1)
    q, k = (draw.standard_normal((B, 3, length, 4), np.float32) for length in (T, S))

    @jax.jit
    def run(q, k, v, mask):
        return attend_heads_first(q, k, v, Scores(mask), implementation=kernel)

    laws.mask_polarity(run, q, k, CATALOGUE[name]).require()


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_and_allows_what_both_allow(a, b):
    one, other = CATALOGUE[a], CATALOGUE[b]
    if {a, b} == {"causal_later", "window"}:
        with pytest.raises(ValueError, match="two offsets"):
            one & other
        return
    np.testing.assert_array_equal(whole(one & other), whole(one) & whole(other))
    np.testing.assert_array_equal(whole(other & one), whole(one) & whole(other))


def test_and_keeps_structure():
    both = masks.causal() & masks.length_mask(jnp.array([3, 4])) & masks.sliding_window_mask(4)
    both = (
        both
        & masks.length_mask(jnp.array([4, 2]), jnp.array([1, 2]))
        & masks.sliding_window_mask(9)
    )
    assert both.causal
    assert both.window == 4
    assert both.dense is None
    assert both.kv_lengths.tolist() == [3, 2]
    assert both.q_lengths.tolist() == [1, 2]
    assert (masks.causal(5) & masks.length_mask(jnp.array([1, 1]))).offset == 5
    assert (masks.length_mask(jnp.array([1, 1])) & masks.causal(5)).offset == 5


def test_two_segmentations_fall_back_to_an_array():
    ids = CATALOGUE["segments"]
    other = masks.segment_mask(jnp.array([[1, 2, 2, 2, 2]] * B), jnp.array([[2] * S] * B))
    assert (ids & other).dense is not None
    np.testing.assert_array_equal(whole(ids & other), whole(ids) & whole(other))


def test_traced_offset_is_a_row_of_the_whole():
    def row(mask, at):
        mask = mask & masks.causal(at)
        return mask.array(1, S)

    lengths = CATALOGUE["lengths"]
    full = whole(masks.causal() & lengths, S, S)
    step = jax.jit(row)
    for at in range(S):
        np.testing.assert_array_equal(step(lengths, at)[:, 0, 0], full[:, 0, at])


def test_window_follows_a_traced_offset():
    full = whole(masks.sliding_window_mask(2), S, S)
    step = jax.jit(lambda at: Mask(window=2, offset=at).array(1, S))
    np.testing.assert_array_equal(step(4)[0, 0, 0], full[0, 0, 4])


def test_structure_survives_transformations():
    mask = masks.causal(offset=3) & masks.sliding_window_mask(2, offset=3) & CATALOGUE["lengths"]

    @jax.jit
    @jax.checkpoint
    def look(mask, x):
        assert (mask.causal, mask.window, mask.offset) == (True, 2, 3)
        return x + mask.kv_lengths.sum()

    assert look(mask, 1) == 4
    leaves, tree = jax.tree.flatten(mask)
    assert len(leaves) == 1
    chex.assert_trees_all_equal(jax.tree.unflatten(tree, leaves), mask)
    assert len(jax.tree.leaves(masks.causal(jnp.int32(3)))) == 1


def test_nothing_forbidden_is_none():
    assert Mask().array(T, S) is None
    assert Mask().any_visible(T, S) is None


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.parametrize("skip", [0, 3])
def test_later_queries_see_what_they_saw(name, skip):
    found = whole(CATALOGUE[name].skip_queries(skip), t=T - skip)
    np.testing.assert_array_equal(found, whole(CATALOGUE[name])[:, :, skip:])


PLACES = {
    f"{causal}, {window}, {offset}": Mask(causal=causal, window=window, offset=offset)
    for causal, window, offset in itertools.product((False, True), (None, 1, 3), (-1, 0, 2, 9))
}


@pytest.mark.parametrize("name", [*CATALOGUE, *PLACES])
def test_seeing_is_a_row_with_any_key(name):
    mask = CATALOGUE.get(name) or PLACES[name]
    for s in (1, S):
        if name in PLACES or s == S:
            found = mask.any_visible(T, s)
            found = True if found is None else np.asarray(found)[..., 0]
            expected = whole(mask, s=s).any(-1)
            np.testing.assert_array_equal(np.broadcast_to(found, expected.shape), expected)


@pytest.mark.parametrize("name", CATALOGUE)
def test_blocks_tile_the_whole_and_padding_is_hidden(name):
    mask = CATALOGUE[name]
    more = mask.padded(T, S, 1, 2)
    block = jax.jit(lambda mask, t0, s0: mask.block(t0, 3, s0, 3))
    tiles = np.zeros((B, 3, T + 1, S + 2), bool)
    for t0, s0 in itertools.product((0, 3), (0, 3, 6)):
        tiles[:, :, t0 : t0 + 3, s0 : s0 + 3] = block(more, t0, s0)
    np.testing.assert_array_equal(tiles[:, :, :T, :S], whole(mask))
    assert not tiles[..., S:].any()


def test_window_must_hold_the_query():
    with pytest.raises(ValueError, match="at least 1"):
        masks.sliding_window_mask(0)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (jnp.ones((2, 5, 7), bool), r"an array with 3 dimensions .* use array\[:, None\]"),
        (jnp.ones((5, 7), bool), r"an array with 2 dimensions .* use array\[None, None\]"),
        (jnp.ones((1, 1, 5, 7)), r"an array of float32, not bool"),
    ],
)
def test_an_array_that_is_no_mask_says_how_to_make_it_one(array, message):
    with pytest.raises(ArgumentError, match=message):
        masks.as_mask(array)
    with pytest.raises(ArgumentError, match=message):
        masks.causal() & array


def test_an_array_is_a_dense_mask_wherever_a_mask_is():
    allowed = jnp.arange(B * T * T).reshape(B, 1, T, T) % 3 > 0
    q, k, v = (jax.random.normal(jax.random.key(i), (B, T, 2, 4)) for i in range(3))
    expected = attend(q, k, v, masks.dense_mask(allowed))
    np.testing.assert_array_equal(attend(q, k, v, allowed), expected)
    both = masks.causal() & allowed
    np.testing.assert_array_equal(
        attend(q, k, v, both), attend(q, k, v, allowed & jnp.tri(T, dtype=bool)[None, None])
    )
    np.testing.assert_array_equal(
        attention_weights(q, k, allowed), attention_weights(q, k, masks.dense_mask(allowed))
    )
