"""Rows hold every token as a target once, and nothing of another document or another step."""

import dataclasses
import time

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.document_stream import DocumentStream, TextChunk
from transformer_jax.data.language_model_plans import ContiguousPlan, PackingPlan, make_rows
from transformer_jax.data.loader import make_batch, prefetched
from transformer_jax.data.plan import BucketPlan
from transformer_jax.data.store import PairStore, TokenStore
from transformer_jax.data.token_file import build_tokens
from transformer_jax.data.tokenizer import train_tokenizer

BOS, PAD, EOS = 1, 0, 3


def counting(lengths):
    """A store whose token at place i is 10 + i, so that every token tells where it was."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenStore(np.arange(10, 10 + offsets[-1], dtype=np.int32), offsets)


def stream(total):
    return counting([total])


def epoch(plan, store, epoch=0):
    T = plan.shapes[0].T
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    return [make_rows(store, plan.batch(step), T, BOS, PAD) for step in steps]


def targets(batches):
    """The targets that have weight."""
    return np.concatenate([b["targets"][b["weights"] > 0] for b in batches])


def check_arrays(batches, rows, T, names=("tokens", "targets", "weights")):
    for batch in batches:
        assert batch.keys() == set(names)
        for name, array in batch.items():
            assert array.shape == (rows, T)
            assert array.dtype == (np.float32 if name == "weights" else np.int32)


@pytest.mark.parametrize("total", [9, 16, 17, 24, 25, 100, 1001])
@pytest.mark.parametrize("rows", [1, 4])
def test_shuffled_blocks_are_whole_and_each_target_comes_at_most_once(total, rows):
    T = 8
    plan = ContiguousPlan(total, length=T, rows=rows, seed=3)
    phases = set()
    for number in range(6):
        batches = epoch(plan, stream(total), number)
        check_arrays(batches, rows, T)
        found = np.sort(targets(batches))
        # A contiguous stretch of the stream, without its first token.
        np.testing.assert_array_equal(found, np.arange(found[0], found[0] + len(found)))
        assert found[0] >= 11
        assert len(found) > max(0, total - 2 * T)
        phases.add(found[0])
        for batch in batches:
            real = batch["weights"] > 0
            np.testing.assert_array_equal(real.all(1), real.any(1))
            np.testing.assert_array_equal(batch["targets"][real], batch["tokens"][real] + 1)
            assert not batch["tokens"][~real].any()
            assert not batch["targets"][~real].any()
    assert len(phases) > 1 or total == 9
    assert plan.non_padding_fraction == pytest.approx(
        len(found) / (plan.steps_per_epoch * rows * T)
    )


def test_blocks_come_in_another_order_in_every_epoch_and_for_every_seed():
    def orders(seed):
        plan = ContiguousPlan(1000, length=8, rows=4, seed=seed)
        return [np.concatenate([plan.batch(step).indices for step in range(start, start + 31)])
                for start in (0, plan.steps_per_epoch)]  # fmt: skip

    found = [tuple(order.tolist()) for seed in (0, 1) for order in orders(seed)]
    assert len(set(found)) == 4
    assert all(sorted(order) == list(range(124)) != list(order) for order in found)


@pytest.mark.parametrize("total", [2, 8, 9, 10, 17, 100])
@pytest.mark.parametrize("stride", [None, 8, 3, 1])
def test_blocks_in_order_hold_every_target_but_the_first_token_once(total, stride):
    T = 8
    plan = ContiguousPlan(total, length=T, rows=3, shuffle=False, stride=stride)
    for number in (0, 1):
        batches = epoch(plan, stream(total), number)
        np.testing.assert_array_equal(targets(batches), np.arange(11, 10 + total))
    assert plan.non_padding_fraction == pytest.approx((total - 1) / (plan.steps_per_epoch * 3 * T))
    for batch in batches:
        for tokens, wanted, weights in zip(*batch.values(), strict=True):
            for t in np.flatnonzero(weights):
                begin = tokens[0] - 10
                np.testing.assert_array_equal(tokens[: t + 1], np.arange(begin, begin + t + 1) + 10)
                assert wanted[t] == tokens[t] + 1
                # What is before the token's own input, as far as there is any.
                assert t >= min(T - (stride or T), wanted[t] - 11)


LENGTHS = np.random.default_rng(0).integers(1, 60, 100)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("T", [2, 8, 32, 100])
def test_packed_rows_hold_every_token_as_a_target_once(T, seed):
    store = counting(LENGTHS)
    plan = PackingPlan(store.lengths, length=T, rows=4, seed=seed)
    orders = []
    for number in (0, 1):
        batches = epoch(plan, store, number)
        check_arrays(batches, 4, T, ("tokens", "targets", "weights", "segments", "positions"))
        orders.append(targets(batches).tolist())
        np.testing.assert_array_equal(np.sort(orders[-1]), store.ids)
    assert orders[0] != orders[1]
    assert plan.non_padding_fraction == pytest.approx(
        LENGTHS.sum() / (plan.steps_per_epoch * 4 * T)
    )


@pytest.mark.parametrize("T", [2, 8, 32, 100])
def test_a_segment_is_one_piece_of_one_document(T):
    store = counting(LENGTHS)
    document = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    begins = set((store.offsets[:-1] + 10).tolist())
    seen = 0
    for batch in epoch(PackingPlan(store.lengths, length=T, rows=4), store):
        padding = batch["segments"] == 0
        np.testing.assert_array_equal(padding, batch["weights"] == 0)
        for name in ("tokens", "targets", "positions"):
            assert not batch[name][padding].any()
        for tokens, wanted, _, segments, positions in zip(*batch.values(), strict=True):
            assert (np.diff(segments[segments > 0]) >= 0).all()
            assert not segments[np.argmin(segments) :].any() or segments.all()
            for segment in range(1, segments.max(initial=0) + 1):
                at = segments == segment
                piece = wanted[at]
                np.testing.assert_array_equal(piece, np.arange(piece[0], piece[0] + at.sum()))
                assert len(set(document[piece - 10])) == 1
                np.testing.assert_array_equal(positions[at], np.arange(at.sum()))
                first = BOS if piece[0] in begins else piece[0] - 1
                np.testing.assert_array_equal(tokens[at], [first, *piece[:-1]])
                seen += 1
    # Only documents longer than a row are cut.
    assert seen == (-(-LENGTHS // T)).sum()


def test_documents_come_back_from_packed_rows():
    rows = ["Ela mora no Rio.", "é", "Lucas irá viajar ao Rio em Dezembro." * 3, "Sim."]
    tokenizer = train_tokenizer("bytes", [])
    texts = DocumentStream("example", "1", lambda: [TextChunk(row, True) for row in rows])
    store = build_tokens(texts, tokenizer, ends=True)
    plan = PackingPlan(store.lengths, length=128, rows=2)
    found = []
    for step in range(plan.steps_per_epoch):
        batch = make_rows(store, plan.batch(step), 128, tokenizer.bos, tokenizer.pad)
        for tokens, targets, _, segments, _ in zip(*batch.values(), strict=True):
            for segment in range(1, segments.max() + 1):
                piece = targets[segments == segment].tolist()
                assert piece[-1] == tokenizer.eos
                assert tokens[segments == segment].tolist() == [tokenizer.bos, *piece[:-1]]
                found.append(tokenizer.decode(piece))
    assert sorted(found) == sorted(rows)


def first_principles_best_fit(sizes, limit):
    rooms = []
    for size in sorted(sizes, reverse=True):
        fitting = [i for i, room in enumerate(rooms) if room >= size]
        if fitting:
            rooms[min(fitting, key=lambda i: rooms[i])] -= size
        else:
            rooms.append(limit - size)
    return sorted(rooms)


@pytest.mark.parametrize("seed", range(10))
def test_packing_is_best_fit_decreasing(seed):
    draw = np.random.default_rng(seed)
    T = int(draw.integers(4, 60))
    lengths = draw.integers(1, T + 1, 200)
    store = counting(lengths)
    plan = PackingPlan(lengths, length=T, rows=1)
    rows = np.concatenate([b["weights"].sum(1) for b in epoch(plan, store)])
    assert sorted((T - rows).astype(int).tolist()) == first_principles_best_fit(lengths, T)


def plans():
    yield ContiguousPlan(500, length=8, rows=4, seed=5), stream(500)
    yield ContiguousPlan(500, length=8, rows=4, shuffle=False, stride=3), stream(500)
    yield PackingPlan(LENGTHS, length=32, rows=4, seed=5), counting(LENGTHS)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("prefetch", [0, 3])
def test_batches_are_the_same_from_any_step(number, prefetch):
    plan, store = list(plans())[number]
    T = plan.shapes[0].T

    def make(batch):
        return make_rows(store, batch, T, BOS, PAD)

    stop = 2 * plan.steps_per_epoch + 1
    whole = [make(plan.batch(step)) for step in range(stop)]
    for start in (0, 1, plan.steps_per_epoch, stop - 1, stop):
        fresh = list(plans())[number][0]  # nothing that another one has seen
        read = list(prefetched(fresh, make, start=start, stop=stop, prefetch=prefetch))
        for a, b in zip(read, whole[start:], strict=True):
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])


def test_any_plan_and_any_make_may_be_prefetched():
    sides = counting([3, 4, 5])
    plan = BucketPlan(sides.lengths, sides.lengths, max_tokens=16)
    store = PairStore(sides, sides, np.arange(3), {})
    made = prefetched(
        plan,
        lambda batch: make_batch(store, batch.indices, batch.S, batch.T),
        stop=plan.steps_per_epoch,
    )
    assert sum((batch["inputs"]["source_lengths"] > 0).sum() for batch in made) == 3


@pytest.mark.parametrize("number", range(3))
def test_processes_together_hold_the_rows_of_the_whole(number):
    plan, store = list(plans())[number]
    T = plan.shapes[0].T
    for step in range(plan.steps_per_epoch):
        batch = plan.batch(step)
        whole = make_rows(store, batch, T, BOS, PAD)
        for rows in (np.array([0, 2]), np.array([3])):
            part = make_rows(store, batch.select(rows), T, BOS, PAD)
            for name, array in whole.items():
                np.testing.assert_array_equal(part[name], array[rows])


def test_rows_of_nothing_are_padding():
    for plan, store in plans():
        batch = plan.batch(plan.steps_per_epoch - 1)
        nothing = batch.select(np.flatnonzero(batch.indices < 0))
        for rows in (nothing, dataclasses.replace(nothing, begins=nothing.begins[:, :0],
                                               lengths=nothing.lengths[:, :0],
                                               context_only=nothing.context_only[:, :0],
                                               starts_document=nothing.starts_document[:, :0],
                                               )):  # fmt: skip
            made = make_rows(store, rows, 8, BOS, 7)
            assert (made.pop("tokens") == 7).all()
            assert (made.pop("targets") == 7).all()
            assert not any(array.any() for array in made.values())


def test_the_fingerprint_follows_what_decides_the_batches():
    def block(total=500, length=8, rows=4, **options):
        return ContiguousPlan(total, length=length, rows=rows, **options)

    def pack(lengths=LENGTHS, length=32, rows=4, **options):
        return PackingPlan(lengths, length=length, rows=rows, **options)

    made = [block(), block(501), block(length=9), block(rows=5), block(seed=1)]
    made += [block(shuffle=False), block(shuffle=False, stride=4)]
    made += [pack(), pack(LENGTHS[::-1]), pack(length=33), pack(rows=5), pack(seed=1)]
    assert len({plan.fingerprint for plan in made}) == len(made)
    assert (block().fingerprint, pack().fingerprint) == (made[0].fingerprint, made[7].fingerprint)
    assert made[0].shapes == [(4, 0, 8)]


def test_what_cannot_be_is_named():
    with pytest.raises(DataError, match="has 8 tokens and a block of 8 needs 9"):
        ContiguousPlan(8, length=8, rows=1)
    with pytest.raises(DataError, match="has 1 token and a block of 8 needs 2"):
        ContiguousPlan(1, length=8, rows=1, shuffle=False)
    with pytest.raises(ConfigError, match="stride is 9: 1 to 8"):
        ContiguousPlan(99, length=8, rows=1, shuffle=False, stride=9)
    with pytest.raises(ConfigError, match="stride is 4: shuffled blocks do not overlap"):
        ContiguousPlan(99, length=8, rows=1, stride=4)
    with pytest.raises(ConfigError, match="rows is 0: at least 1"):
        ContiguousPlan(99, length=8, rows=0)
    with pytest.raises(ConfigError, match="length is 0: at least 1"):
        PackingPlan(LENGTHS, length=0, rows=1)
    with pytest.raises(DataError, match="no documents to pack"):
        PackingPlan(np.zeros(2, int), length=8, rows=1)


@pytest.mark.slow
def test_rows_are_made_fast_enough():
    store = counting(np.random.default_rng(0).geometric(1 / 200, 20_000))
    for plan in (
        ContiguousPlan(len(store.ids), length=512, rows=32),
        PackingPlan(store.lengths, length=512, rows=32),
    ):
        best = 0.0
        for step in range(20):
            began = time.perf_counter()
            make_rows(store, plan.batch(step), 512, BOS, PAD)
            best = max(best, 32 * 512 / (time.perf_counter() - began))
        assert best > 2e6
