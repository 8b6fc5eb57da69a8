import itertools
import math

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.decoding.exhaustive import exhaustive_search, num_sequences
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.options import SpecialTokens


def test_how_many_sequences_there_are():
    """Row B30: K=5, N=4 is 625; K=37000, N=25 is 10^114.2, which is refused."""
    assert num_sequences(5, 4) == 625
    with pytest.raises(ConfigError, match=r"37000\^25 = 10\^114\.2 sequences: at most 1000000"):
        num_sequences(37_000, 25)
    with pytest.raises(ConfigError, match=r"5\^4"):
        num_sequences(5, 4, limit=624)
    special = SpecialTokens(eos=1, pad=0)
    with pytest.raises(ConfigError, match="use beam search"):
        exhaustive_search(lambda inputs: None, special, start=0, vocab_size=100, length=10)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_it_sees_every_sequence_once_and_its_whole_probability(length):
    """All complete sequences, and what was cut at the limit, hold probability 1."""
    V, eos, first = 4, 2, 1
    table = np.random.default_rng(0).normal(size=(V, V))
    scorer = lambda inputs: table[inputs]
    found = exhaustive_search(
        scorer,
        SpecialTokens(eos, pad=0),
        TRANSLATION.changed(num_beams=1000, num_return_sequences=1000, normalization="none"),
        start=first,
        vocab_size=V,
        length=length,
        rows=5,
    )
    letters = [v for v in range(V) if v != eos]
    expected = {
        (*prefix, eos) for n in range(length) for prefix in itertools.product(letters, repeat=n)
    }
    assert {e.tokens for e in found} == expected
    assert len(found) == len(expected)
    p = np.exp(table) / np.exp(table).sum(-1, keepdims=True)
    open_ended = sum(
        math.prod(p[a, b] for a, b in itertools.pairwise((first, *prefix)))
        for prefix in itertools.product(letters, repeat=length)
    )
    assert sum(math.exp(e.log_prob) for e in found) + open_ended == pytest.approx(1, abs=1e-12)
    assert [e.score for e in found] == sorted((e.score for e in found), reverse=True)


def test_with_nothing_but_eos_allowed_the_answer_is_empty():
    scorer = lambda inputs: np.zeros((*inputs.shape, 2))
    special, config = (
        SpecialTokens(1, 0, suppress_tokens=(0,)),
        TRANSLATION.changed(num_return_sequences=3),
    )
    found = exhaustive_search(scorer, special, config, start=0, vocab_size=2, length=5)
    assert [e.tokens for e in found] == [(1,)]
