"""Every text once, in rows of a few shapes with little padding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_jax.data.examples import EncodedExamples
from transformer_jax.data.store import TokenStore
from transformer_jax.inference.encoding.batching import PackedBatches, make_packed_inputs, pack

LENGTHS = {64, 128, 256, 512}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1500), max_size=60), st.sampled_from([1, 64, 600, 4096]))
def test_every_text_comes_once_and_fits(lengths, tokens):
    lengths = np.array(lengths, np.int64)
    seen, rows_of = [], []
    for numbers, T in pack(lengths, tokens):
        assert T in LENGTHS or T % 512 == 0
        most = max(1, tokens // T)
        assert numbers.shape[1] == T // 2
        assert len(numbers) == most or len(numbers) in (1 << k for k in range(13) if 1 << k < most)
        for row in numbers.tolist():
            real = [n for n in row if n >= 0]
            assert row == real + [-1] * (len(row) - len(real))
            assert lengths[real].sum() <= T
            seen += real
        rows_of.append(T)
    assert sorted(seen) == list(range(len(lengths)))
    assert rows_of == sorted(rows_of, reverse=True)


@pytest.mark.parametrize("tokens", [512, 1024, 8192])
def test_little_is_padding_in_texts_of_real_lengths(tokens):
    lengths = np.random.default_rng(0).geometric(1 / 12, 4096) + 2
    batches = list(pack(lengths, tokens))
    sizes = [len(numbers) * T for numbers, T in batches]
    assert lengths.sum() > (0.97 if tokens < 8192 else 0.85) * sum(sizes)
    assert len({(len(numbers), T) for numbers, T in batches}) < 8


def test_texts_stand_where_it_is_said():
    lengths = np.array([5, 70, 3, 3, 61])
    offsets = np.append(0, np.cumsum(lengths))
    store = TokenStore(np.arange(1, offsets[-1] + 1, dtype=np.int32), offsets)
    examples = EncodedExamples(store, lengths // 2)

    def program(params, batch):
        return batch["tokens"] * params

    found = {}
    for rows, made in PackedBatches(program, tokens=128, pad=0)(1, examples):
        batch = make_packed_inputs(examples, rows, 0)
        for b, numbers in enumerate(rows.numbers.tolist()):
            for s, number in enumerate(n for n in numbers if n >= 0):
                start, length = batch["starts"][b, s], batch["lengths"][b, s]
                here = slice(start, start + length)
                found[number] = made[b, here].tolist()
                assert (batch["segments"][b, here] == s + 1).all()
                assert batch["positions"][b, here].tolist() == list(range(length))
                assert batch["types"][b, here].sum() == length - length // 2
        assert ((batch["segments"] == 0) == (batch["tokens"] == 0)).all()
    assert [found[n] for n in range(5)] == [row.tolist() for row in store]


def test_no_texts_are_no_batches():
    assert list(pack(np.zeros(0, np.int64), 512)) == []
