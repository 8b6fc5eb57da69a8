"""word2vec's losses and gradients, and what is drawn: rows B18 and B19."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.functional import word2vec, word2vec_blocks

V, D, T, REACH, X = 7, 5, 6, 2, 4
S = T + 2 * REACH


@pytest.fixture
def tables():
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=(V, D)), jnp.float32) for _ in range(2))


@pytest.fixture
def block():
    """Words with repetitions, a window of each, and negatives of which some are center words."""
    rng = np.random.default_rng(1)
    words = jnp.asarray(rng.integers(0, V, S))
    mask = word2vec_blocks.window_mask(
        jnp.array([1, 2, 0, 2, 1, 2]), jnp.array([0] * 5 + [1] * 5), REACH
    )
    return words, mask, jnp.asarray(rng.integers(0, V, X))


def pairs_of(words, mask):
    """The pairs (word of the context, center word) of a block, one at a time."""
    return [
        (int(words[s]), int(words[t + REACH]))
        for t in range(T)
        for s in range(S)
        if bool(mask[t, s])
    ]


def log_softmax(scores):
    scores = scores - scores.max()
    return scores - np.log(np.exp(scores).sum())


def test_skip_gram_is_the_cross_entropy_of_the_full_softmax(tables):
    inputs, outputs = (np.asarray(table, np.float64) for table in tables)
    pairs = [(0, 3), (3, 0), (6, 6)]
    expected = -sum(log_softmax(outputs @ inputs[word])[target] for word, target in pairs)
    words, targets = (jnp.array(side) for side in zip(*pairs, strict=True))
    np.testing.assert_allclose(word2vec.skip_gram_loss(*tables, words, targets), expected, 1e-5)


def test_cbow_predicts_from_the_mean_of_the_words_that_are_visible(tables):
    inputs, outputs = (np.asarray(table, np.float64) for table in tables)
    hidden = (inputs[2] + inputs[5]) / 2
    expected = -log_softmax(outputs @ hidden)[4]
    contexts = jnp.array([[2, 1, 5], [0, 0, 0]])
    mask = jnp.array([[True, False, True], [False] * 3])
    found = word2vec.cbow_loss(*tables, contexts, mask, jnp.array([4, 4]))
    np.testing.assert_allclose(found, expected, 1e-5)


@pytest.mark.slow
def test_gradients_of_the_full_softmax_are_those_of_the_formula(tables):
    """``∂/∂v = Σ (p − 1_target) v'`` and ``∂/∂v'_w = (p_w − 1_target) v``, row B19."""
    inputs, outputs = tables
    word, target = 2, 5
    found = jax.grad(word2vec.skip_gram_loss, (0, 1))(
        inputs, outputs, jnp.array([word]), jnp.array([target])
    )
    slope = jax.nn.softmax(outputs @ inputs[word]) - jax.nn.one_hot(target, V)
    expected = jnp.zeros_like(inputs).at[word].set(slope @ outputs)
    np.testing.assert_allclose(found[0], expected, atol=1e-6)
    np.testing.assert_allclose(found[1], slope[:, None] * inputs[word][None], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["skip_gram", "cbow"])
def test_block_gradients_are_those_of_autodiff_through_the_tables(tables, block, kind):
    """Words that occur twice, and negatives that are center words, get the sum of their rows."""
    words, mask, negatives = block
    loss = getattr(word2vec_blocks, f"{kind}_block_loss")
    predicted = jnp.concatenate([words[REACH : REACH + T], negatives])

    def of_tables(inputs, outputs):
        return loss(inputs[words], outputs[predicted], mask, 5.0)

    expected = jax.grad(of_tables, (0, 1))(*tables)
    gradients = getattr(word2vec_blocks, f"{kind}_block_gradients")
    rows = gradients(tables[0][words], tables[1][predicted], mask, 5.0)
    zeros = jnp.zeros((V, D))
    np.testing.assert_allclose(zeros.at[words].add(rows.inputs), expected[0], atol=1e-5)
    np.testing.assert_allclose(zeros.at[predicted].add(rows.outputs), expected[1], atol=1e-5)


@pytest.mark.slow
def test_a_block_has_the_skip_gram_loss_of_its_pairs(tables, block):
    """With weight 1 for each negative: as many as a pair has in formula (4)."""
    words, mask, negatives = block
    pairs = pairs_of(words, mask)
    assert len(pairs) == int(mask.sum()) > T
    contexts, centers = (jnp.array(side) for side in zip(*pairs, strict=True))
    shared = jnp.broadcast_to(negatives, (len(pairs), X))
    expected = word2vec.skip_gram_sampled_loss(*tables, contexts, centers, shared)
    predicted = jnp.concatenate([words[REACH : REACH + T], negatives])
    found = word2vec_blocks.skip_gram_block_loss(
        tables[0][words], tables[1][predicted], mask, float(X)
    )
    np.testing.assert_allclose(found, expected, 1e-5)


@pytest.mark.slow
def test_a_block_has_the_cbow_loss_of_its_center_words(tables, block):
    words, mask, negatives = block
    assert not bool(mask.any(-1).all())  # a center word without context adds nothing
    contexts = jnp.broadcast_to(words, (T, S))
    shared = jnp.broadcast_to(negatives, (T, X))
    centers = words[REACH : REACH + T]
    expected = word2vec.cbow_sampled_loss(*tables, contexts, mask, centers, shared)
    predicted = jnp.concatenate([centers, negatives])
    found = word2vec_blocks.cbow_block_loss(tables[0][words], tables[1][predicted], mask, float(X))
    np.testing.assert_allclose(found, expected, 1e-5)


@pytest.mark.slow
def test_a_block_has_the_softmax_loss_of_its_pairs(tables, block):
    words, mask, _ = block
    contexts, targets = (jnp.array(side) for side in zip(*pairs_of(words, mask), strict=True))
    centers = words[REACH : REACH + T]
    skip_gram = word2vec_blocks.skip_gram_block_softmax_loss(
        tables[0][words], tables[1], centers, mask
    )
    expected = word2vec.skip_gram_loss(*tables, contexts, targets)
    np.testing.assert_allclose(skip_gram, expected, 1e-5)
    cbow = word2vec_blocks.cbow_block_softmax_loss(tables[0][words], tables[1], centers, mask)
    expected = word2vec.cbow_loss(*tables, jnp.broadcast_to(words, (T, S)), mask, centers)
    np.testing.assert_allclose(cbow, expected, 1e-5)


@pytest.mark.slow
def test_the_weight_of_shared_negatives_keeps_their_sum(tables, block):
    """Twice the same negatives are the same loss: only their weight in all counts."""
    words, mask, negatives = block
    loss = [
        word2vec_blocks.skip_gram_block_loss(
            tables[0][words],
            tables[1][jnp.concatenate([words[REACH : REACH + T], *[negatives] * times])],
            mask,
            5.0,
        )
        for times in (1, 2)
    ]
    np.testing.assert_allclose(*loss, 1e-6)


def test_a_window_reaches_no_further_than_its_sentence():
    mask = np.asarray(
        word2vec_blocks.window_mask(jnp.array([2, 2, 0]), jnp.array([5, 5, 5, 6, 6, 6, 6]), 2)
    )
    expected = np.zeros((3, 7), bool)
    expected[0, [0, 1]] = True  # center word 2; what follows is of another sentence
    expected[1, [4, 5]] = True  # center word 3; what comes before is of another sentence
    np.testing.assert_array_equal(mask, expected)


def test_subsampling_is_word2vecs():
    """``word2vec.c``: ``ran = (sqrt(cn / (sample * N)) + 1) * (sample * N) / cn``."""
    counts, sample = np.array([900_000.0, 90_000.0, 9_900.0, 100.0]), 1e-3
    N = counts.sum()
    expected = np.minimum(1, (np.sqrt(counts / (sample * N)) + 1) * (sample * N) / counts)
    found = word2vec.keep_probability(jnp.asarray(counts, jnp.float32), sample)
    np.testing.assert_allclose(found, expected, 1e-5)
    assert expected[0] < 0.05
    assert expected[-1] == 1
    np.testing.assert_array_equal(word2vec.keep_probability(jnp.array([5.0, 1.0]), 0.0), 1.0)


def test_noise_is_the_unigram_distribution_to_the_power_three_quarters():
    counts = np.array([1000.0, 10.0, 1.0, 0.0])
    expected = counts**0.75 / (counts**0.75).sum()
    found = word2vec.noise_distribution(jnp.asarray(counts, jnp.float32))
    np.testing.assert_allclose(found, expected, 1e-5)
    uniform = word2vec.noise_distribution(jnp.asarray(counts, jnp.float32), 0.0)
    np.testing.assert_allclose(uniform, [1 / 3, 1 / 3, 1 / 3, 0], 1e-6)
