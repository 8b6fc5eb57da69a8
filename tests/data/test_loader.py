"""Batches hold the planned sentences, from any step, the same for any number of processes."""

import itertools
import os
import pathlib
import threading
import time

import jax
import numpy as np
import pytest

from transformer_jax.data.loader import batches, make_batch
from transformer_jax.data.plan import BucketPlan
from transformer_jax.data.sources import Files, read_pairs
from transformer_jax.data.store import PairStore, TokenStore, build_store
from transformer_jax.data.tokenizer import train_tokenizer


def tokens(draw, count):
    lengths = draw.integers(1, 20, count)
    ids = draw.integers(4, 90, lengths.sum()).astype(np.uint16)
    offsets = np.concatenate([[0], lengths.cumsum()])
    ids[offsets[1:] - 1] = 3
    return TokenStore(ids, offsets)


@pytest.fixture(scope="module")
def store():
    draw = np.random.default_rng(0)
    return PairStore(tokens(draw, 150), tokens(draw, 150), np.arange(150), {})


@pytest.fixture(scope="module")
def plan(store):
    return BucketPlan(
        store.source_lengths,
        store.target_lengths,
        max_tokens=160,
        num_buckets=3,
        required_batch_size_multiple=4,
    )


def whole_batch(store, planned, pad=0):
    return make_batch(store, planned.indices, planned.S, planned.T, pad)


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_batch_is_its_sentences_and_padding(store, plan):
    for planned in plan.epoch(0):
        batch = whole_batch(store, planned, pad=7)
        inputs = batch["inputs"]
        assert {array.dtype for array in jax.tree.leaves(batch)} == {np.dtype(np.int32)}
        assert inputs["source"].shape == (len(planned.indices), planned.S)
        assert batch["target"].shape == (len(planned.indices), planned.T)
        for row, index in enumerate(planned.indices):
            for ids, lengths, side in (
                (inputs["source"], inputs["source_lengths"], store.source),
                (batch["target"], batch["lengths"], store.target),
            ):
                wanted = [] if index < 0 else side[index].tolist()
                assert lengths[row] == len(wanted)
                padding = [7] * (ids.shape[1] - len(wanted))
                assert ids[row].tolist() == wanted + padding


@pytest.mark.parametrize("prefetch", [0, 4])
def test_batches_are_those_of_the_plan_from_any_step(store, plan, prefetch):
    whole = [whole_batch(store, plan.batch(step)) for step in range(2 * plan.steps_per_epoch)]
    for start in (0, 1, plan.steps_per_epoch, len(whole) - 2, len(whole), len(whole) + 1):
        read = list(batches(store, plan, start=start, stop=len(whole), prefetch=prefetch))
        for a, b in zip(read, whole[start:], strict=True):
            equal(a, b)
    endless = batches(store, plan, start=3, prefetch=prefetch)
    for a, b in zip(itertools.islice(endless, 5), whole[3:8], strict=True):
        equal(a, b)
    endless.close()


def test_nothing_is_left_of_a_loader_that_was_closed(store, plan):
    before = threading.active_count()
    for _ in range(3):
        reader = batches(store, plan)
        next(reader)
        reader.close()
    for _ in range(100):  # a thread ends when it next looks at its orders
        if threading.active_count() <= before:
            return
        time.sleep(0.05)
    pytest.fail(f"still running: {threading.enumerate()}")


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_together_read_each_example_once(store, plan, processes):
    def part(process):
        # Not contiguous: a mesh may put the rows of a process anywhere.
        return lambda rows: np.arange(process, rows, processes)

    parts = [
        list(batches(store, plan, stop=plan.steps_per_epoch, rows=part(p), prefetch=2 * (p % 2)))
        for p in range(processes)
    ]
    assert len({len(steps) for steps in parts}) == 1
    read = []
    for step, pieces in enumerate(zip(*parts, strict=True)):
        whole = whole_batch(store, plan.batch(step))
        joined = jax.tree.map(np.empty_like, whole)
        for process, piece in enumerate(pieces):
            for array, rows in zip(jax.tree.leaves(joined), jax.tree.leaves(piece), strict=True):
                array[process::processes] = rows
        equal(joined, whole)
        source = whole["inputs"]["source"]
        valid = whole["inputs"]["source_lengths"] > 0
        read += [tuple(row) for row in np.concatenate([source, whole["target"]], 1)[valid]]
    assert len(read) == len(store)


def test_a_real_corpus_fills_four_fifths_of_its_batches():
    root = os.environ.get("TRANSFORMER_JAX_DATA")
    folder = pathlib.Path(root or "") / "multi30k_en_de"
    if root is None or not folder.is_dir():
        pytest.skip("set TRANSFORMER_JAX_DATA to a folder that holds multi30k_en_de")
    pairs = read_pairs(Files(str(folder / "train.de.gz"), str(folder / "train.en.gz")))
    assert len(pairs) == 29_000
    tokenizer = train_tokenizer("bpe", [*pairs.sources, *pairs.targets], 8000)
    store = build_store(pairs, tokenizer)
    assert (
        tokenizer.decode_batch(store.source[i][:-1] for i in range(0, 29_000, 50))
        == pairs.sources[::50]
    )
    for tokens in (1024, 4096):
        plan = BucketPlan(store.source_lengths, store.target_lengths, max_tokens=tokens)
        assert plan.non_padding_fraction >= 0.82
