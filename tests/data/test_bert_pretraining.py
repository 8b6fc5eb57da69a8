"""Laws of pairs of texts: rows B35, H18, H19."""

import itertools

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.bert_pretraining import (
    BertPretrainingPlan,
    PackedPretrainingPlan,
    PackedTexts,
    PairBatch,
)
from transformer_jax.data.loader import prefetched
from transformer_jax.data.masking import MLMMasking
from transformer_jax.data.plan import Batching
from transformer_jax.data.sentences import SentenceStore

PAD, UNK, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4, 5
LENGTHS = {
    "many": [np.random.default_rng(i).integers(1, 12, 1 + i % 9).tolist() for i in range(36)],
    "single sentences": [[1 + i % 13] for i in range(31)],
    "single tokens": [[1]] * 25,
    "long sentences": [[50, 3, 70], [41], [1, 90, 1, 1], [2, 2]],
    "two documents": [[4, 3, 5], [6]],
}
OBJECTIVES = ("nsp", "sop", "none")
corpora = pytest.mark.parametrize("name", LENGTHS)
objectives = pytest.mark.parametrize("objective", OBJECTIVES)


def counting(lengths):
    """Token number i of all is 5 + i, so that every token tells where it was."""
    flat = [size for sizes in lengths for size in sizes]
    offsets = np.concatenate([[0], np.cumsum(flat)]).astype(np.int64)
    documents = np.concatenate([[0], np.cumsum([len(sizes) for sizes in lengths])])
    ids = np.arange(FIRST, FIRST + offsets[-1], dtype=np.int32)
    return SentenceStore(ids, offsets, documents.astype(np.int64), {})


def masking(store, **fields):
    return MLMMasking(MASK, np.arange(FIRST, FIRST + len(store.ids)), **fields)


def pairs_of(lengths, objective="nsp", length=30, **options):
    store = counting(lengths)
    shuffle = options.pop("shuffle", True)
    usual = {"max_tokens": 8 * length, "seed": 3, "num_buckets": 4}
    options = usual | {"required_batch_size_multiple": 1} | options
    made = BertPretrainingPlan(
        store,
        masking(store),
        (CLS, SEP, PAD),
        Batching(**options),
        length=length,
        sentence_objective=objective,
        shuffle=shuffle,
    )
    return made, store


def epoch(made, number=0):
    """All rows of an epoch: (text, tokens as they were, types, next_sentence_label)."""
    found = []
    for step in range(number * made.steps_per_epoch, (number + 1) * made.steps_per_epoch):
        batch = made.batch(step)
        for row, text in zip(arrays(made.make(batch)), batch.indices.tolist(), strict=True):
            if text >= 0:
                found.append((text, *row))
    return sorted(found, key=lambda row: row[0])


def arrays(made):
    """Rows with their hidden tokens put back, as lists without padding."""
    for b, length in enumerate(made["lengths"].tolist()):
        tokens = made["tokens"][b].copy()
        real = made["weights"][b] > 0
        tokens[made["masked_positions"][b][real]] = made["targets"][b][real]
        assert (tokens[length:] == PAD).all()
        assert not made["types"][b, length:].any()
        yield (
            tokens[:length].tolist(),
            made["types"][b, :length].tolist(),
            int(made["next_sentence_label"][b]),
        )


def parts_of(tokens):
    """The tokens between the special tokens."""
    assert tokens[0] == CLS
    assert tokens[-1] == SEP
    ends = [0, *(i for i, id in enumerate(tokens) if id == SEP)]
    return [tokens[a + 1 : b] for a, b in itertools.pairwise(ends)]


def document(store, id):
    ends = store.offsets[store.documents[1:]]
    return int(np.searchsorted(ends, id - FIRST, side="right"))


def contiguous(part):
    return part == list(range(part[0], part[0] + len(part)))


@corpora
@objectives
@pytest.mark.parametrize("length", [9, 30, 64])
def test_h19_parts_are_whole_never_empty_and_as_their_label_says(name, objective, length):
    made, store = pairs_of(LENGTHS[name], objective, length)
    begins = set((store.offsets + FIRST).tolist())
    for number in (0, 1):
        rows = epoch(made, number)
        assert [row[0] for row in rows] == list(range(len(made)))
        for _, tokens, types, follows in rows:
            assert len(tokens) <= length
            parts = parts_of(tokens)
            assert all(map(len, parts))
            assert all(map(contiguous, parts))
            assert len(parts) == (1 if objective == "none" else 2)
            # The second part with its [SEP] has type 1.
            assert sum(types) == (0 if objective == "none" else len(parts[1]) + 1)
            assert types == sorted(types)
            homes = [{document(store, id) for id in (part[0], part[-1])} for part in parts]
            assert all(len(home) == 1 for home in homes)
            if objective == "none":
                assert follows == -1
                continue
            first, second = parts
            if objective == "sop":
                assert follows in (0, 1)
                first, second = (second, first) if follows else (first, second)
            if follows == 0 or objective == "sop":
                assert second[0] == first[-1] + 1 or (first == second and len(first) == 1)
            else:
                assert homes[0] != homes[1]
            if max(map(max, LENGTHS[name])) <= 3:  # no sentence had to be cut
                assert {first[0], second[0]} <= begins


@corpora
@pytest.mark.parametrize("objective", ["nsp", "sop"])
def test_h19_half_of_the_texts_are_labeled_in_every_epoch(name, objective):
    made, _ = pairs_of(LENGTHS[name], objective, 64)
    drawn = set()
    for number in range(3):
        follows = np.array([row[3] for row in epoch(made, number)])
        single = 0
        if objective == "nsp":  # a text of one sentence has no second part of its own
            single = sum(len(sizes) == 1 for sizes in LENGTHS[name])
        if single <= len(made) // 2 and name != "long sentences":
            assert abs(2 * follows.sum() - len(made)) <= 1
        else:
            assert follows.sum() >= len(made) // 2
        drawn.add(tuple(follows.tolist()))
    assert len(drawn) == 3 or name != "many"


def test_h19_every_place_of_the_cut_and_every_other_document_come():
    lengths = [[2] * 5, [3, 4], [5], [1, 1, 1]]
    made, store = pairs_of(lengths, "nsp", 64)
    cuts, others = set(), set()
    for number in range(80):
        for text, tokens, _, follows in epoch(made, number):
            first, second = parts_of(tokens)
            if text == 0:
                cuts.add(len(first))
                if follows:
                    others.add(second[0])
    assert cuts == {2, 4, 6, 8}
    # The second part begins at any sentence of the others, as likely as at any other.
    assert others == set((store.offsets[5:-1] + FIRST).tolist())


@corpora
@objectives
def test_every_sentence_is_once_part_of_a_text_of_its_own_in_every_epoch(name, objective):
    made, store = pairs_of(LENGTHS[name], objective, 20)
    starts, ends, own = [], [], []
    for _, tokens, _, follows in epoch(made):
        parts = parts_of(tokens)
        if objective == "nsp" and follows:
            own += parts[0]  # at least its beginning, the rest made room
            starts.append(parts[0][0])
            continue
        both = sorted(parts)
        if objective == "sop" and both[0] == both[-1]:
            both = both[:1]
        starts.append(both[0][0])
        ends.append(both[-1][-1])
        own += [id for part in both for id in part]
    assert len(own) == len(set(own))
    assert len(starts) == len(set(starts))
    if objective != "nsp":
        assert sorted(own) == store.ids.tolist()
    # Texts follow each other without a gap: where one ends, another begins.
    assert {end + 1 for end in ends} <= set(starts) | {FIRST + len(store.ids)}
    assert min(starts) == FIRST


@objectives
def test_rows_are_functions_of_seed_epoch_and_number_alone(objective):
    made, _ = pairs_of(LENGTHS["many"], objective, required_batch_size_multiple=2)
    for step in (0, 1, made.steps_per_epoch - 1, made.steps_per_epoch + 1):
        batch = made.batch(step)
        whole = made.make(batch)
        for rows in (np.array([0]), np.array([1, 0]), np.arange(len(batch.indices))[::-1]):
            part = made.make(batch.select(rows))
            for name, array in whole.items():
                np.testing.assert_array_equal(part[name], array[rows])


@pytest.mark.quick("True-nsp", "True-sop", "False-none")
@objectives
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_fresh_plan_goes_on_where_another_stopped(objective, shuffle):
    options = {"shuffle": shuffle, "length": 24}
    made, _ = pairs_of(LENGTHS["many"], objective, **options)
    stop = 2 * made.steps_per_epoch + 2
    whole = [made.make(made.batch(step)) for step in range(stop)]
    for start in (1, made.steps_per_epoch, stop - 1):
        fresh, _ = pairs_of(LENGTHS["many"], objective, **options)
        assert fresh.fingerprint == made.fingerprint
        read = list(prefetched(fresh, fresh.make, start=start, stop=stop, prefetch=3))
        for a, b in zip(read, whole[start:], strict=True):
            assert a.keys() == b.keys()
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])
    one, other = epoch(made), epoch(made, 1)
    assert (one == other) == (not shuffle or objective == "none")


@objectives
def test_another_epoch_or_seed_hides_other_tokens(objective):
    found = []
    for seed, number in ((0, 0), (0, 1), (1, 0)):
        made, _ = pairs_of(LENGTHS["many"], objective, seed=seed)
        steps = range(number * made.steps_per_epoch, (number + 1) * made.steps_per_epoch)
        batches = [made.make(made.batch(step)) for step in steps]
        found.append(frozenset(int(i) for b in batches for i in b["targets"][b["weights"] > 0]))
    assert len(set(found)) == 3


@objectives
def test_arrays_are_those_of_their_shape(objective):
    made, _ = pairs_of(LENGTHS["many"], objective, length=32, max_tokens=128)
    shapes = set()
    for step in range(made.steps_per_epoch):
        batch = made.batch(step)
        arrays = made.make(batch)
        B, T = len(batch.indices), batch.T
        shapes.add((B, T))
        P = max(1, round(0.15 * T))
        forms = dict.fromkeys(("tokens", "types"), (B, T)) | {
            "lengths": (B,),
            "next_sentence_label": (B,),
        }
        forms |= dict.fromkeys(("masked_positions", "targets", "weights"), (B, P))
        assert {name: array.shape for name, array in arrays.items()} == forms
        kinds = {name: array.dtype == np.float32 for name, array in arrays.items()}
        assert [name for name, real in kinds.items() if real] == ["weights"]
        assert all(array.dtype in (np.int32, np.float32) for array in arrays.values())
        nothing = batch.indices < 0
        assert (arrays["tokens"][nothing] == PAD).all()
        assert (arrays["next_sentence_label"][nothing] == -1).all()
        for name in ("lengths", "types", "masked_positions", "targets", "weights"):
            assert not arrays[name][nothing].any()
    assert shapes <= {(shape.rows, shape.T) for shape in made.shapes}
    assert 0.5 < made.non_padding_fraction <= 1


def test_h18_special_unknown_and_filling_tokens_are_never_hidden():
    store = counting(LENGTHS["many"])
    ids = np.where(store.ids % 3 == 0, UNK, store.ids)
    store = SentenceStore(ids, store.offsets, store.documents, {})
    batching = Batching(240, num_buckets=4, required_batch_size_multiple=1, seed=0)
    made = BertPretrainingPlan(
        store, masking(store, mlm_probability=1.0), (CLS, SEP, PAD), batching, length=30
    )
    hidden = total = 0
    for step in range(made.steps_per_epoch):
        arrays = made.make(made.batch(step))
        targets = arrays["targets"][arrays["weights"] > 0]
        assert (targets >= FIRST).all()
        hidden, total = hidden + len(targets), total + arrays["lengths"].sum()
    assert 0.4 * total < hidden < 0.67 * total


def test_the_fingerprint_follows_what_decides_the_batches():
    make = lambda lengths=LENGTHS["many"], **options: pairs_of(lengths, **options)[0]
    made = [make(), make(LENGTHS["many"][1:]), make(length=31), make(seed=4), make(max_tokens=500)]
    made += [
        make(objective="sop"),
        make(objective="none"),
        make(shuffle=False),
        make(num_buckets=1),
    ]
    assert len({plan.fingerprint for plan in made}) == len(made)
    assert make().fingerprint == made[0].fingerprint
    store = counting(LENGTHS["many"])
    words = np.zeros(FIRST + len(store.ids), bool)
    batching = Batching(240, num_buckets=4, required_batch_size_multiple=1, seed=3)
    for changed in (
        {"is_continuation": words},
        {"mlm_probability": 0.2},
        {"mask_replace_prob": 1.0, "random_replace_prob": 0.0},
        {"random_replace_prob": 0.2},
    ):
        other = BertPretrainingPlan(
            store, masking(store, **changed), (CLS, SEP, PAD), batching, length=30
        )
        assert other.fingerprint != made[0].fingerprint


def test_what_cannot_be_is_named():
    with pytest.raises(DataError, match=r"needs two documents, found one.*sop or none"):
        pairs_of([[3, 4, 5]])
    for objective in ("sop", "none"):
        assert len(epoch(pairs_of([[3, 4, 5]], objective)[0])) == 1
    for objective, least in (("nsp", 5), ("sop", 5), ("none", 4)):
        with pytest.raises(ConfigError, match=f"length is {least - 1}: .* at least {least}"):
            pairs_of(LENGTHS["many"], objective, least - 1)
        made, _ = pairs_of(LENGTHS["single tokens"], objective, least)
        assert max(len(row[1]) for row in epoch(made)) <= least


def packed_of(lengths, length=30, **options):
    texts, _ = pairs_of(lengths, "none", length, **options)
    usual = {"max_tokens": 8 * length, "seed": 3, "required_batch_size_multiple": 1}
    batching = Batching(**usual | {k: v for k, v in options.items() if k != "shuffle"})
    shuffle = options.get("shuffle", True)
    return PackedPretrainingPlan(texts, batching, length=length, shuffle=shuffle), texts


@pytest.mark.parametrize("name", LENGTHS)
def test_each_text_is_in_one_packed_row_as_it_is_alone(name):
    """With its masks, whatever is around it; rows are full, and padding is of no text."""
    plan, texts = packed_of(LENGTHS[name])
    T, seen = plan.shapes[0].T, []
    for step in range(2 * plan.steps_per_epoch):
        batch = plan.batch(step)
        made = plan.make(batch)
        assert made["weights"].shape == made["targets"].shape == made["masked_positions"].shape
        np.testing.assert_array_equal((made["segments"] > 0).sum(1), made["lengths"])
        assert (made["tokens"][made["segments"] == 0] == PAD).all()
        for row, numbers in enumerate(batch.texts):
            chosen = np.flatnonzero(made["weights"][row])
            places, found = made["masked_positions"][row, chosen], 0
            for column, text in enumerate(numbers[numbers >= 0]):
                alone = texts.make(PairBatch(np.array([text]), T, batch.epoch))
                real = alone["lengths"][0]
                at = np.flatnonzero(made["segments"][row] == column + 1)
                np.testing.assert_array_equal(made["tokens"][row, at], alone["tokens"][0, :real])
                np.testing.assert_array_equal(made["positions"][row, at], np.arange(real))
                own = np.flatnonzero(np.isin(places, at))
                hidden = alone["weights"][0] > 0
                wanted = alone["masked_positions"][0][hidden]
                np.testing.assert_array_equal(made["positions"][row, places[own]], wanted)
                np.testing.assert_array_equal(
                    made["targets"][row, chosen[own]], alone["targets"][0][hidden]
                )
                found += len(own)
                seen.append((batch.epoch, int(text)))
            assert found == len(chosen)
    assert sorted(seen) == [(epoch, text) for epoch in (0, 1) for text in range(len(texts))]


def test_packed_rows_have_no_pairs_and_a_size_that_fits():
    pairs, _ = pairs_of(LENGTHS["many"], "sop")
    with pytest.raises(ConfigError, match=r"sentence_objective is sop: .* packed it is none"):
        PackedPretrainingPlan(pairs, Batching(), length=30)
    with pytest.raises(ConfigError, match="no room for"):
        packed_of(LENGTHS["many"], max_tokens=40, required_batch_size_multiple=2)
    wide, _ = packed_of(LENGTHS["many"], pad_to_multiple_of=64, max_tokens=512)
    assert wide.shapes[0].T == 64
    plans = [packed_of(LENGTHS["many"], **more)[0] for more in ({}, {"seed": 4}, {"length": 31})]
    assert len({plan.fingerprint for plan in plans}) == 3
    empty = plans[0].make(PackedTexts(np.full((2, 3), -1), 0))
    assert not empty["weights"].any()
    assert not empty["segments"].any()
