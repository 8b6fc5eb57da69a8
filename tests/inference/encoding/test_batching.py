"""Every example once, in few shapes, as if alone."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_jax.data.examples import EncodedExamples, collate
from transformer_jax.data.store import TokenStore
from transformer_jax.inference.encoding.batching import Batches, length_buckets

STEPS = {4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256}
STEPS |= {320, 384, 448, 512}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1500), max_size=60), st.sampled_from([1, 64, 600, 4096]))
@example([1, 1, 21], 64)  # two short texts would have filled the batch of the long one
def test_every_example_comes_once_and_fits(lengths, tokens):
    lengths = np.array(lengths, np.int64)
    seen, shapes = [], []
    for rows, T in length_buckets(lengths, tokens):
        real = rows[rows >= 0]
        assert T in STEPS or T % 512 == 0
        assert (lengths[real] <= T).all()
        # At least one would not have fitted into the next shorter shape.
        shorter = max((step for step in STEPS if step < T), default=0) if T <= 512 else T - 512
        assert (lengths[real] > shorter).any()
        most = max(1, tokens // T)
        assert len(rows) == most or len(rows) in (1 << k for k in range(13) if 1 << k < most)
        assert len(real) > len(rows) / 2
        assert (rows[len(real) :] == -1).all()
        assert lengths[real].tolist() == sorted(lengths[real].tolist(), reverse=True)
        seen += real.tolist()
        shapes.append((len(rows), T))
    assert sorted(seen) == list(range(len(lengths)))
    assert [T for _, T in shapes] == sorted((T for _, T in shapes), reverse=True)


def test_little_is_padding_in_texts_of_real_lengths():
    lengths = np.random.default_rng(0).geometric(1 / 12, 2000) + 2
    batches = list(length_buckets(lengths, 1024))
    assert lengths.sum() > 0.84 * sum(len(rows) * T for rows, T in batches)
    assert len({(len(rows), T) for rows, T in batches}) < 24


def examples_of(lengths):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.random.default_rng(0).integers(5, 99, offsets[-1]).astype(np.int32)
    return EncodedExamples(
        TokenStore(ids, offsets), np.maximum(np.array(lengths, np.int64) // 2, 1)
    )


def program(params, batch):
    """Something of each row: its length, and sums over its real tokens and types."""
    tokens, types = batch["tokens"], batch["types"]
    return {
        "length": batch["lengths"],
        "sums": (tokens * (tokens != 0)).sum(1) * params + types.sum(1),
    }


@pytest.mark.parametrize("tokens", [8, 40, 256])
def test_results_are_those_of_one_by_one(tokens):
    lengths = [3, 20, 9, 8, 1, 16, 17, 9, 30, 2]
    examples = examples_of(lengths)
    seen = []
    for indices, made in Batches(program, tokens=tokens, pad=0)(3, examples):
        assert len(indices) == len(made["length"]) == len(made["sums"])
        assert isinstance(made["sums"], np.ndarray)
        for index, length, sums in zip(indices, made["length"], made["sums"], strict=True):
            alone = program(3, collate(examples, np.array([index]), lengths[index], 0))
            assert (length, sums) == (lengths[index], alone["sums"][0])
        seen += indices.tolist()
    assert sorted(seen) == list(range(len(lengths)))


def test_each_shape_is_compiled_once():
    traced = []

    def remember(params, batch):
        traced.append(batch["tokens"].shape)
        return batch["lengths"]

    examples = examples_of([3, 5, 6, 20, 21, 22, 9, 60, 61] * 3)
    run = Batches(remember, tokens=64, pad=0)
    for _ in range(2):
        assert sum(len(indices) for indices, _ in run(0, examples)) == 27
    assert len(traced) == len(set(traced))


def test_no_examples_are_no_batches():
    assert list(Batches(program, tokens=64, pad=0)(1, examples_of([]))) == []
