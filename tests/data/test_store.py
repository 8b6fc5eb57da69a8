"""Stores hold the ids of all pairs, count what was over-long, and notice damage."""

import numpy as np
import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data.sources import Pairs
from transformer_jax.data.store import build_store
from transformer_jax.data.tokenizer import train_tokenizer

BYTES = train_tokenizer("bytes", [])


def example(count=30):
    return Pairs(["é" * (i % 7) + "x" for i in range(count)], ["y" * i for i in range(count)], "e")


def rows(side):
    return [side[i].tolist() for i in range(len(side))]


def test_every_sentence_is_its_ids_and_an_end():
    pairs = example()
    store = build_store(pairs, BYTES)
    assert rows(store.source) == [[*BYTES.encode(text), BYTES.eos] for text in pairs.sources]
    assert rows(store.target) == [[*BYTES.encode(text), BYTES.eos] for text in pairs.targets]
    assert store.source_lengths.tolist() == [len(row) for row in rows(store.source)]
    assert store.target_lengths.tolist() == list(range(1, 31))
    assert (store.counts, store.pair_indices.tolist(), len(store)) == ({}, list(range(30)), 30)


def test_two_tokenizers_take_a_side_each():
    other = train_tokenizer("characters", ["yx"], 9)
    store = build_store(example(), BYTES, other)
    assert store.target[3].tolist() == [*other.encode("yyy"), other.eos]


def test_over_long_pairs_are_dropped_and_counted():
    store = build_store(example(), BYTES, max_length=10)
    # Sources have 2 i + 2 tokens for i = 0 ... 6, targets i + 1.
    wanted = [i for i in range(30) if 2 * (i % 7) + 2 <= 10 and i + 1 <= 10]
    assert store.pair_indices.tolist() == wanted
    assert store.counts == {"dropped as too long": 30 - len(wanted)}
    assert rows(store.target) == [[*BYTES.encode("y" * i), BYTES.eos] for i in wanted]


def test_over_long_sides_are_cut_and_keep_their_end():
    store = build_store(example(), BYTES, max_length=10, too_long="truncate")
    whole = build_store(example(), BYTES)
    for side, full in ((store.source, whole.source), (store.target, whole.target)):
        for row, all_of_it in zip(rows(side), rows(full), strict=True):
            assert row == (all_of_it if len(all_of_it) <= 10 else [*all_of_it[:9], BYTES.eos])
    assert len(store) == 30
    assert store.counts == {"sources truncated": 8, "targets truncated": 20}


def same(a, b):
    assert rows(a.source) == rows(b.source)
    assert rows(a.target) == rows(b.target)
    assert a.pair_indices.tolist() == b.pair_indices.tolist()
    assert a.counts == b.counts


def test_a_cache_is_memory_mapped_and_equal(tmp_path):
    plain = build_store(example(), BYTES, max_length=20)
    for _ in range(2):
        store = build_store(example(), BYTES, max_length=20, cache=tmp_path)
        same(store, plain)
        assert isinstance(store.source.ids, np.memmap)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cache_is_used_again_only_for_the_same_thing(tmp_path, monkeypatch):
    build_store(example(), BYTES, cache=tmp_path)
    other = train_tokenizer("characters", ["xyé"], 9)
    changed = example()
    changed.targets[3] = "z"
    moved = Pairs([*example().sources[:-1], "a"], [*example().targets], "e")
    for count, arguments in enumerate(
        [
            ((changed, BYTES), {}),
            ((moved, BYTES), {}),
            ((example(), other), {}),
            ((example(), BYTES, other), {}),
            ((example(), BYTES), {"max_length": 9}),
            ((example(), BYTES), {"max_length": 9, "too_long": "truncate"}),
        ],
        2,
    ):
        build_store(*arguments[0], **arguments[1], cache=tmp_path)
        assert len(list(tmp_path.iterdir())) == count
    monkeypatch.setattr(type(BYTES), "encode_batch", lambda self, texts: pytest.fail("encoded"))
    build_store(example(), BYTES, cache=tmp_path)


@pytest.mark.parametrize("file", ["source_ids.npy", "target_offsets.npy", "kept.npy", "store.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "delete"])
def test_a_damaged_cache_is_made_anew(tmp_path, file, damage):
    plain = build_store(example(), BYTES)
    build_store(example(), BYTES, cache=tmp_path)
    path = next(tmp_path.glob(f"*/{file}"))
    data = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    else:
        data[len(data) // 2] ^= 16
        path.write_bytes(data[:-9] if damage == "cut" else data)
    same(build_store(example(), BYTES, cache=tmp_path), plain)
    same(build_store(example(), BYTES, cache=tmp_path), plain)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"file/.*: cannot be written"):
        build_store(example(), BYTES, cache=tmp_path / "file")
