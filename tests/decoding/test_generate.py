"""Laws of greedy decoding and sampling, over Markov chains given as tables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.decoding.finding import SearchRows, find
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.search_state import Steps, row_keys

V, EOS, PAD, T = 6, 1, 0, 7
SPECIAL = SpecialTokens(EOS, PAD)


@pytest.fixture(scope="module")
def table():
    return jnp.asarray(np.random.default_rng(0).normal(0, 1.5, (V, V)), jnp.float32)


def chain(table):
    return lambda tokens, state: (table[tokens], state)


def make(table, first, special=SPECIAL, config=None, *, limits=None, keys=None, **values):
    config = config or GenerationConfig()
    rows, model = SearchRows(first, limits, keys), Steps(chain(table))
    out = find(model, None, rows, special, config, vocab=V, length=T, **values)
    return jax.tree.map(lambda part: part[:, 0], out)


def sample(table, first, config, key, seeds=None, limits=None, **values):
    keys = row_keys(key, jnp.arange(len(first)) if seeds is None else seeds)
    return make(table, first, config=config, keys=keys, limits=limits, **values)


draw = jax.jit(sample, static_argnames="config")


def test_greedy_takes_the_most_probable_token_until_eos_or_the_limit(table):
    first = jnp.arange(V)
    limits = jnp.array([7, 7, 2, 0, 1, 5])
    out = make(table, first, limits=limits)
    log_p = np.asarray(jax.nn.log_softmax(table, axis=-1))
    for r in range(V):
        tokens, total, last = [], 0.0, r
        while len(tokens) < limits[r] and (not tokens or last != EOS):
            best = int(np.argmax(log_p[last]))
            total += log_p[last, best]
            tokens.append(last := best)
        assert out.tokens[r].tolist() == tokens + [PAD] * (T - len(tokens))
        assert out.lengths[r] == len(tokens)
        assert out.ended[r] == (bool(tokens) and tokens[-1] == EOS)
        assert out.log_probs[r] == pytest.approx(total, abs=1e-5)


def test_a_row_of_two_equals_takes_the_lower_token():
    assert make(jnp.zeros((V, V)), jnp.array([3])).tokens[0, 0] == 0


def test_suppressed_tokens_and_min_length_hold_and_log_probs_stay_the_models_own(table):
    first = jnp.arange(V)
    special = SPECIAL._replace(suppress_tokens=(2, 3))
    limits, least = jnp.array([7, 7, 7, 7, 2, 7]), GenerationConfig(min_length=4)
    out = make(table, first, special, least, limits=limits)
    assert not jnp.isin(out.tokens, jnp.array([2, 3])).any()
    assert (jnp.where(out.ended, out.lengths, 4) >= jnp.minimum(4, out.lengths)).all()
    for r in range(V):
        n = int(out.lengths[r])
        tokens = out.tokens[r, :n].tolist()
        assert EOS not in tokens[: min(3, n - 1)]
        log_p = jax.nn.log_softmax(table, axis=-1)[jnp.array([r, *tokens[:-1]]), jnp.array(tokens)]
        assert out.log_probs[r] == pytest.approx(float(log_p.sum()), abs=1e-5)


def test_the_loop_stops_when_all_rows_have():
    calls = []

    def step(tokens, state):
        jax.debug.callback(lambda: calls.append(1))
        return jnp.where(jnp.arange(V)[None] == tokens[:, None] - 1, 5.0, jnp.zeros((1, V))), state

    rows = SearchRows(jnp.array([4, 3]))
    out = find(Steps(step), None, rows, SPECIAL, vocab=V, length=50)
    jax.effects_barrier()
    assert out.tokens[:, 0, :3].tolist() == [[3, 2, 1], [2, 1, 0]]
    assert len(calls) == 3


def test_the_state_is_carried():
    step = lambda tokens, count: (jax.nn.one_hot(count % V, V), count + 1)
    rows = SearchRows(jnp.zeros(2, jnp.int32))
    out = find(Steps(step), jnp.array([2, 3]), rows, SPECIAL, vocab=V, length=4)
    assert out.tokens[:, 0].tolist() == [[2, 3, 4, 5], [3, 4, 5, 0]]


def test_a_sample_depends_on_its_own_seed_alone(table, key):
    """Not on batch mates, their order, their limits or their settings."""
    first = jnp.array([0, 2, 3, 4, 5, 2])
    seeds = jnp.array([5, 9, 2, 7, 1, 3])
    hot = jnp.array([0.5, 1.0, 1.5, 2.0, 3.0, 1.0])
    together = draw(table, first, GenerationConfig(), key, seeds, temperature=hot)
    order = jnp.array([3, 0, 5, 1, 4, 2])
    shuffled = draw(
        table, first[order], GenerationConfig(), key, seeds[order], temperature=hot[order]
    )
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), together, shuffled)
    for r in (0, 4):
        one = slice(r, r + 1)
        alone = draw(table, first[one], GenerationConfig(), key, seeds[one], temperature=hot[one])
        np.testing.assert_array_equal(together.tokens[one], alone.tokens)
    other = draw(table, first, GenerationConfig(), key, seeds + 100, temperature=hot)
    assert (other.tokens != together.tokens).any()
    twins = draw(table, jnp.full(6, 2), GenerationConfig(), key, jnp.full(6, 8))
    assert (twins.tokens == twins.tokens[0][None]).all()


def test_draws_differ_from_step_to_step(key):
    out = draw(jnp.zeros((V, V)).at[:, EOS].set(-jnp.inf), jnp.full(50, 2), GenerationConfig(), key)
    assert (out.tokens[:, 1:] != out.tokens[:, :-1]).mean() > 0.6


@pytest.mark.parametrize(
    "sampling",
    [
        GenerationConfig(),
        GenerationConfig(temperature=0.5),
        GenerationConfig(top_k=3),
        GenerationConfig(temperature=2.0, top_p=0.8),
        GenerationConfig(min_p=0.2),
    ],
    ids=["plain", "cold", "top_k", "hot_top_p", "min_p"],
)
@pytest.mark.slow
def test_samples_follow_the_distribution_they_should(table, key, sampling):
    """Chi-square against the analytic probabilities (rows B32, B33, B34)."""
    n, last = 20_000, 3
    limits = jnp.ones(n, jnp.int32)
    out = draw(table, jnp.full(n, last), sampling, key, None, limits)
    p = np.exp(np.asarray(table[last], np.float64) / sampling.temperature)
    p /= p.sum()
    order = np.argsort(-p)
    keep = np.ones(V, bool)
    if sampling.top_k is not None:
        keep[order[sampling.top_k :]] = False
    if sampling.top_p is not None:
        keep[order[np.cumsum(p[order]) - p[order] >= sampling.top_p]] = False
    if sampling.min_p is not None:
        keep &= p >= sampling.min_p * p.max()
    p = np.where(keep, p, 0) / p[keep].sum()
    seen = np.bincount(np.asarray(out.tokens[:, 0]), minlength=V)
    assert (seen[~keep] == 0).all()
    assert stats.chisquare(seen[keep], n * p[keep]).pvalue > 1e-3


@pytest.mark.slow
def test_settings_of_rows_are_their_own(table, key):
    n = 3000
    first, limits = jnp.full(3 * n, 3), jnp.ones(3 * n, jnp.int32)
    row = jnp.repeat(jnp.arange(3), n)
    own = {"temperature": jnp.array([0.0, 1.0, 1.0])[row], "top_k": jnp.array([V, 2, V])[row]}
    out = draw(table, first, GenerationConfig(top_k=2), key, None, limits, **own)
    out = np.asarray(out.tokens[:, 0]).reshape(3, n)
    kinds = [len(set(part.tolist())) for part in out]
    assert kinds[0] == 1
    assert kinds[1] == 2
    assert kinds[2] == V
    assert out[0, 0] == int(jnp.argmax(table[3]))  # temperature 0 is greedy


def test_padding_that_looks_like_eos_does_not_finish_a_row(table):
    first, limits = jnp.array([2, 3, 4, 5]), jnp.array([1, 2, 7, 7])
    apart = make(table, first, SpecialTokens(EOS, PAD, (EOS,)), limits=limits)
    same = make(table, first, SpecialTokens(EOS, EOS, (EOS,)), limits=limits)
    np.testing.assert_array_equal(same.lengths, apart.lengths)
    assert not same.ended.any()
