"""Laws of beam search (rows B30, B31), over language models that are tables of random numbers."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.finding import SearchRows, find
from transformer_jax.decoding.exhaustive import exhaustive_search
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.length_penalty import length_penalty
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.search_plan import penalty_table
from transformer_jax.decoding.search_state import Steps

EOS, PAD = 0, -1
ALPHAS = np.array([0.0, 0.3, 0.6, 1.0, 1.5], np.float32)  # taken in turn, one a sentence


def nodes(vocab, length):
    """Counts the prefixes shorter than ``length``; node n has children ``V n + 1 + token``."""
    return sum(vocab**t for t in range(length))


def random_trees(seed, sentences, vocab, length, spread=1.5):
    """Logits after every prefix, for each of many language models: [B nodes V]."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, spread, (sentences, nodes(vocab, length), vocab)).astype(np.float32)


def tree_step(trees, beams):
    """The step of a model that knows a row's whole past: its state is the prefix's number."""
    B, _, V = trees.shape
    row = jnp.arange(B * beams) // beams

    def step(tokens, state):
        at, started = state
        at = jnp.where(started, V * at + 1 + tokens, at)
        at = jnp.minimum(at, trees.shape[1] - 1)  # finished rows continue, ignored
        return trees[row, at], (at, jnp.ones_like(started))

    return step, (jnp.zeros(B * beams, jnp.int32), jnp.zeros(B * beams, bool))


def tree_reorder(state, parents):
    B, M = parents.shape
    rows = (jnp.arange(B)[:, None] * M + parents).reshape(-1)
    return jax.tree.map(lambda leaf: leaf[rows], state)


def alphas(sentences):
    return np.resize(ALPHAS, sentences)


@functools.partial(
    jax.jit,
    static_argnames=(
        *("beams", "length", "normalization", "num_return_sequences", "min_length"),
        "suppress_tokens",
    ),
)
def search(trees, table, limits, patient, beams, length, suppress_tokens=(), **options):
    step, state = tree_step(trees, beams)
    special = SpecialTokens(EOS, PAD, suppress_tokens)
    config = TRANSLATION.changed(num_beams=beams, **options)
    rows, model = SearchRows(jnp.zeros(len(trees), jnp.int32), limits), Steps(step, tree_reorder)
    how = {"vocab": trees.shape[2], "length": length, "penalties": table, "patient": patient}
    return find(model, state, rows, special, config, **how)


def run(trees, beams, length, alphas=0.6, limits=None, **options):
    """Beam search of trees; ``alphas`` are an exponent, or one a row."""
    table = penalty_table(options.get("normalization", "gnmt"), alphas, length)
    patient = options.pop("patient", False)
    return search(jnp.asarray(trees), table, limits, patient, beams, length, **options)


def greedy(trees, length):
    """Greedy search of trees, without the axis of texts."""
    step, state = tree_step(jnp.asarray(trees), 1)
    rows, special = SearchRows(jnp.zeros(len(trees), jnp.int32)), SpecialTokens(EOS, PAD)
    found = find(Steps(step), state, rows, special, vocab=trees.shape[2], length=length)
    return jax.tree.map(lambda part: part[:, 0], found)


def tree_scorer(tree):
    """The same model as logits of whole prefixes, which is what exhaustive search asks for."""
    V = tree.shape[1]

    def scorer(inputs):
        at = np.zeros(inputs.shape, np.int64)
        for t in range(1, inputs.shape[1]):
            at[:, t] = V * at[:, t - 1] + 1 + inputs[:, t]
        return tree[at]

    return scorer


@pytest.mark.quick("3")
@pytest.mark.parametrize("beams", [2, 3])
def test_a_hypothesis_that_the_limit_cut_is_told_from_one_that_ended(beams):
    """EOS (token 0) is chosen at once by the first model, never by the second, then by the third.

    A limit forces EOS on the second one, whose beams have ``beams`` better continuations.
    """
    V, length = beams + 2, 3
    trees = np.zeros((3, nodes(V, length), V), np.float32)
    trees[0, :, EOS] = 9.0
    trees[1, :, EOS] = -9.0
    trees[2, :, EOS] = np.where(np.arange(trees.shape[1]) < nodes(V, length - 1), -9.0, 9.0)
    found = run(trees, beams, length)
    assert found.ended[:, 0].tolist() == [True, False, True]
    assert found.lengths[1:, 0].tolist() == [length, length]
    assert found.tokens[1, 0, length - 1] == EOS
    # A shorter limit cuts the third one too.
    assert run(trees, beams, 2).ended[:, 0].tolist() == [True, False, False]


def lists(found, b):
    """Sentence b's hypotheses as (tokens, score), without those that do not exist."""
    rows = zip(found.tokens[b], found.lengths[b], found.scores[b], strict=True)
    return [(tuple(tokens[:n].tolist()), float(s)) for tokens, n, s in rows if n]


def penalty(length, normalization, alpha):
    base = {"none": 1.0, "power": float(length), "gnmt": (5 + length) / 6}[normalization]
    return base**alpha


def slow_beam(tree, beams, length, keep, normalization, alpha, minimum=1):
    """Beam search as one would explain it: dictionaries, sorting, and never stopping early."""
    V = tree.shape[1]
    wide = tree.astype(np.float64)
    table = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    live, finished = {(): (0.0, 0)}, []
    for n in range(1, length + 1):
        ways = []
        for prefix, (log_prob, at) in live.items():
            for token in range(V):
                ways.append((log_prob + table[at, token], (*prefix, token), V * at + 1 + token))
        ways.sort(key=lambda way: -way[0])
        for rank, (log_prob, tokens, _) in enumerate(ways):
            last = n == length
            if tokens[-1] == EOS and (last or (rank < beams and n >= minimum)):
                finished.append((log_prob / penalty(n, normalization, alpha), tokens))
        going = [way for way in ways if way[1][-1] != EOS][:beams]
        live = {tokens: (log_prob, at) for log_prob, tokens, at in going}
    finished.sort(key=lambda way: -way[0])
    return finished[:keep]


@pytest.mark.parametrize(
    ("vocab", "length", "normalization"), [(3, 4, "power"), (4, 3, "gnmt"), (2, 5, "power")]
)
@pytest.mark.quick("3-4-power")
def test_a_beam_of_all_prefixes_is_exhaustive_search(vocab, length, normalization):
    """B >= K^(N-1) on 1,002 random tables in all, the three best of each (row B31)."""
    beams, B = vocab ** (length - 1), 334
    trees = random_trees(length * 10 + len(normalization), B, vocab, length)
    found = run(
        trees, beams, length, alphas(B), normalization=normalization, num_return_sequences=3
    )
    found = jax.tree.map(np.asarray, found)
    for b, (tree, alpha) in enumerate(zip(trees, alphas(B).tolist(), strict=True)):
        exact = exhaustive_search(
            tree_scorer(tree),
            SpecialTokens(EOS, PAD),
            start=0,
            vocab_size=vocab,
            length=length,
            config=TRANSLATION.changed(
                num_return_sequences=3, normalization=normalization, length_penalty=alpha
            ),
        )
        assert [tokens for tokens, _ in lists(found, b)] == [e.tokens for e in exact]
        np.testing.assert_allclose(found.scores[b], [e.score for e in exact], atol=1e-5)
        np.testing.assert_allclose(found.log_probs[b], [e.log_prob for e in exact], atol=1e-5)


@pytest.mark.parametrize(
    ("beams", "nbest", "min_length", "normalization"),
    [(2, 2, 1, "gnmt"), (3, 1, 1, "power"), (4, 4, 3, "gnmt")],
)
@pytest.mark.quick("2-2-1-gnmt", "4-4-3-gnmt")
def test_beam_search_equals_a_slow_reference(beams, nbest, min_length, normalization):
    """1,000 random models in all; the reference never stops before the limit."""
    V, N, B = 5, 5, 250
    trees = random_trees(beams * 10 + len(normalization), B, V, N)
    options = {
        "normalization": normalization,
        "num_return_sequences": nbest,
        "min_length": min_length,
    }
    found = jax.tree.map(np.asarray, run(trees, beams, N, alphas(B), **options))
    for b, (tree, alpha) in enumerate(zip(trees, alphas(B).tolist(), strict=True)):
        slow = slow_beam(tree, beams, N, nbest, normalization, alpha, min_length)
        fast = lists(found, b)
        assert [tokens for tokens, _ in fast] == [tokens for _, tokens in slow]
        np.testing.assert_allclose([s for _, s in fast], [s for s, _ in slow], atol=1e-5)


@pytest.mark.slow
def test_stopping_early_changes_nothing():
    trees = random_trees(7, 200, 5, 6)
    limits = jnp.arange(200) % 6 + 1
    both = [
        run(
            trees,
            3,
            6,
            alphas(200),
            limits,
            normalization="power",
            num_return_sequences=2,
            patient=patient,
        )
        for patient in (True, False)
    ]
    jax.tree.map(np.testing.assert_array_equal, *both)


def test_the_loop_ends_as_soon_as_nothing_can_be_beaten():
    calls = []
    logits = jnp.array([[1.0, 0.0, 0.0]])

    def step(tokens, state):
        jax.debug.callback(lambda: calls.append(1))
        return jnp.tile(logits, (tokens.shape[0], 1)), state

    model, config = Steps(step), TRANSLATION.changed(num_beams=2, normalization="power")
    rows, how = SearchRows(jnp.zeros(3, jnp.int32)), {"vocab": 3, "length": 50}

    @jax.jit
    def search(table):
        return find(model, None, rows, SpecialTokens(EOS, PAD), config, penalties=table, **how)

    def steps(alpha):
        calls.clear()
        search(penalty_table("power", alpha, 50))
        jax.effects_barrier()
        return len(calls)

    # The best ends at once. Others of n tokens have n times the log-probability of one letter,
    # and could keep that up to 50 tokens.
    end, letter = jax.nn.log_softmax(logits)[0, :2].tolist()
    assert steps(0.0) == 1
    assert steps(1.0) == next(n for n in range(1, 51) if n * letter / 50 <= end) > 10


def test_rows_do_not_influence_one_another():
    alpha = 1.0
    trees = random_trees(3, 12, 5, 6)
    limits = jnp.arange(12) % 6 + 1
    together = run(trees, 3, 6, alpha, limits, normalization="power", num_return_sequences=3)
    order = np.random.default_rng(0).permutation(12)
    shuffled = run(
        trees[order], 3, 6, alpha, limits[order], normalization="power", num_return_sequences=3
    )
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), together, shuffled)
    for b in (0, 5, 11):
        alone = run(
            trees[b : b + 1],
            3,
            6,
            alpha,
            limits[b : b + 1],
            normalization="power",
            num_return_sequences=3,
        )
        jax.tree.map(lambda a, c: np.testing.assert_array_equal(a[b : b + 1], c), together, alone)  # noqa: B023


def two_step_model():
    """Row B30: p(a)=.5, p(b)=.4, p(a|b)=.9; whatever starts with a continues at .4 at most."""
    E, a, b, c = range(4)
    p = np.full((nodes(4, 3), 4), 1e-30)
    p[0, [a, b, c]] = 0.5, 0.4, 0.1
    for first, follow in ((a, (0.4, 0.3, 0.3)), (b, (0.9, 0.05, 0.05)), (c, (0.4, 0.3, 0.3))):
        p[1 + first, [a, b, c]] = follow
    for node in range(5, len(p)):
        p[node, E] = 1.0
    return np.log(p).astype(np.float32)[None]


@pytest.mark.slow
def test_greedy_is_far_from_optimal_and_a_beam_of_two_is_not():
    trees = two_step_model()
    a, b = 1, 2
    first = greedy(trees, 3)
    assert first.tokens[0].tolist() == [a, a, EOS]
    np.testing.assert_allclose(jnp.exp(first.log_probs), 0.20, atol=1e-6)
    best = run(trees, 2, 3, 0.0, normalization="none")
    assert best.tokens[0, 0].tolist() == [b, a, EOS]
    np.testing.assert_allclose(jnp.exp(best.log_probs[0, 0]), 0.36, atol=1e-6)
    exact = exhaustive_search(
        tree_scorer(trees[0]),
        SpecialTokens(EOS, PAD),
        TRANSLATION.changed(normalization="none"),
        start=0,
        vocab_size=4,
        length=3,
    )
    assert exact[0].tokens == (b, a, EOS)
    assert math.exp(exact[0].log_prob) == pytest.approx(0.36, abs=1e-6)


def test_every_hypothesis_is_complete_and_scored_as_it_is():
    V, N, B = 6, 5, 20
    trees = random_trees(5, B, V, N)
    limits = jnp.arange(B) % N + 1
    found = jax.tree.map(
        np.asarray, run(trees, 4, N, 1.0, limits, normalization="power", num_return_sequences=4)
    )
    table = np.asarray(jax.nn.log_softmax(trees, axis=-1))
    for b in range(B):
        kept = lists(found, b)
        assert len({tokens for tokens, _ in kept}) == len(kept)
        for m, (tokens, score) in enumerate(kept):
            assert tokens[-1] == EOS
            assert EOS not in tokens[:-1]
            assert len(tokens) <= limits[b]
            at, total = 0, 0.0
            for token in tokens:
                total += table[b, at, token]
                at = V * at + 1 + token
            assert found.log_probs[b, m] == pytest.approx(total, abs=1e-5)
            assert score == pytest.approx(total / len(tokens), abs=1e-5)
            assert (found.tokens[b, m, len(tokens) :] == PAD).all()
        scores = [score for _, score in kept]
        assert scores == sorted(scores, reverse=True)


def test_hypotheses_that_do_not_exist_are_said_to_be_missing():
    trees = random_trees(5, 3, 3, 1)
    found = run(
        trees, 4, 1, 0.0, jnp.array([1, 0, 1]), normalization="none", num_return_sequences=3
    )
    assert found.lengths.tolist() == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]
    assert jnp.isneginf(found.scores[:, 1:]).all()
    assert found.tokens[1].tolist() == [[PAD]] * 3


@pytest.mark.slow
def test_suppressed_tokens_are_never_chosen_and_cost_nothing():
    trees = random_trees(5, 30, 5, 4)
    free, bound = (
        run(trees, 3, 4, suppress_tokens=f, num_return_sequences=3) for f in ((), (2, 4))
    )
    assert (free.tokens == 2).any()
    assert not jnp.isin(bound.tokens, jnp.array([2, 4])).any()
    for b, tree in enumerate(trees[:5]):
        exact = exhaustive_search(
            tree_scorer(tree), SpecialTokens(EOS, PAD, (2, 4)), start=0, vocab_size=5, length=4
        )
        wide = run(trees[b : b + 1], 27, 4, suppress_tokens=(2, 4))
        assert tuple(wide.tokens[0, 0, : wide.lengths[0, 0]].tolist()) == exact[0].tokens
        np.testing.assert_allclose(wide.log_probs[0, 0], exact[0].log_prob, atol=1e-5)


@pytest.mark.slow
def test_ties_are_settled_the_same_way_every_time():
    trees = np.zeros((4, nodes(4, 4), 4), np.float32)
    found = run(trees, 3, 4, 0.0, normalization="none", num_return_sequences=3)
    assert all((found.tokens[b] == found.tokens[0]).all() for b in range(4))
    assert found.tokens[0, 0].tolist() == [EOS, PAD, PAD, PAD]  # the shorter first


@pytest.mark.parametrize("beams", [2, 5])
@pytest.mark.slow
def test_wide_beams_and_many_sentences_read_back_their_own_tokens(beams):
    """Hypotheses of neighbours would show: every sentence may only use its own two letters."""
    B, N = 6, 5
    V = 2 * B + 1
    own = np.full((B, V), -np.inf, np.float32)
    for b in range(B):
        own[b, [EOS, 2 * b + 1, 2 * b + 2]] = -2.0, 0.3, 0.0
    row = jnp.arange(B * beams) // beams
    step = lambda tokens, state: (jnp.asarray(own)[row], state)
    config = TRANSLATION.changed(
        num_beams=beams, num_return_sequences=beams, normalization="power", length_penalty=1.0
    )
    rows = SearchRows(jnp.zeros(B, jnp.int32))
    found = find(Steps(step), None, rows, SpecialTokens(EOS, PAD), config, vocab=V, length=N)
    for b, m in itertools.product(range(B), range(beams)):
        tokens = set(found.tokens[b, m, : found.lengths[b, m]].tolist())
        assert tokens <= {EOS, 2 * b + 1, 2 * b + 2}


def test_the_golden_numbers_of_length_normalisation():
    """A6: log p = -1.0 of 2 tokens against -1.4 of 4, GNMT."""
    for alpha, short, long in (
        (0, -1.0, -1.4),
        (0.6, -0.911658, -1.097674),
        (1, -0.857143, -0.933333),
    ):
        np.testing.assert_allclose(-1.0 / length_penalty(2, "gnmt", alpha), short, atol=1e-6)
        np.testing.assert_allclose(-1.4 / length_penalty(4, "gnmt", alpha), long, atol=1e-6)
    np.testing.assert_allclose(length_penalty(np.array([1, 4]), "power", 0.5), [1, 2])
    np.testing.assert_allclose(length_penalty(np.array([1, 4]), "none", 0.5), [1, 1])


@pytest.mark.parametrize("beams", [2, 3])
def test_large_logits_lose_no_digits(beams):
    """An addition to all logits of a step changes no probability, up to the logits' own digits.

    Sixteenths are exact beside 2 ** 14, where numbers of the size of a log-probability are not.
    """
    trees = np.round(random_trees(3, 4, 5, 4) * 16) / 16
    plain = run(jnp.asarray(trees), beams, 4, num_return_sequences=beams)
    moved = run(jnp.asarray(trees + 2.0**14), beams, 4, num_return_sequences=beams)
    np.testing.assert_array_equal(moved.tokens, plain.tokens)
    np.testing.assert_allclose(moved.log_probs, plain.log_probs, rtol=0, atol=2e-6)
    np.testing.assert_allclose(moved.scores, plain.scores, rtol=0, atol=2e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_logit_that_is_no_number_is_told_of_its_sentence_alone(value):
    trees = random_trees(4, 3, 5, 4)
    whole = run(jnp.asarray(trees), 2, 4, num_return_sequences=2)
    trees[1, 0, 3] = value
    found = run(jnp.asarray(trees), 2, 4, num_return_sequences=2)
    assert np.isnan(found.log_probs[1]).all()
    assert not found.lengths[1].any()
    for b in (0, 2):
        np.testing.assert_array_equal(found.tokens[b], whole.tokens[b])
        np.testing.assert_array_equal(found.log_probs[b], whole.log_probs[b])
