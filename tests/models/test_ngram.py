"""N-gram models are exact: against hand counts, and against their formulas written out slowly."""

import itertools
import json
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from transformer_jax.core.errors import CheckpointError, ConfigError, DataError
from transformer_jax.models import ngram, ngram_counts
from transformer_jax.models.ngram import AddK, KneserNey, NgramModel, discounts
from transformer_jax.models.ngram_counts import add_start_symbols, count_ngrams

START = "start"
SMOOTHINGS = [KneserNey(), AddK(1.0), AddK(0.01)]


def flat(documents):
    ids = np.array([i for document in documents for i in document], np.uint16)
    return ids, np.cumsum([0, *map(len, documents)])


def train(documents, order, vocab_size, smoothing=None, excluded=()):
    ids, offsets = flat(documents)
    return NgramModel.train(
        ids,
        offsets,
        order=order,
        vocab_size=vocab_size,
        smoothing=smoothing,
        excluded=excluded,
    )


def corpus(seed, V, documents=8, longest=30):
    """Documents in which tokens prefer some successors, so that there is something to count."""
    draw = random.Random(seed)
    made = [[] for _ in range(documents)]
    for document in made:
        for _ in range(draw.randint(0, longest)):
            last = document[-1] if document else 0
            document.append((last + draw.choice([1, 1, 1, 2, 3])) % V if draw.random() < 0.8 else 0)
    return made


def runs(documents, n):
    """All runs of n symbols, the beginning of a document being one."""
    found = Counter()
    for document in documents:
        symbols = (START, *document)
        found.update(symbols[i : i + n] for i in range(len(symbols) - n + 1))
    return found


def context_of(order, before):
    return tuple((START, *before)[1 - order :]) if order > 1 else ()


class SlowAddK:
    def __init__(self, documents, order, V, k):
        self.order, self.V, self.k = order, V, Fraction(k)
        self.counts = {n: runs(documents, n) for n in range(1, order + 1)}

    def __call__(self, w, before):
        h = context_of(self.order, before)
        counts = self.counts[len(h) + 1]
        total = sum(counts[(*h, v)] for v in range(self.V))
        if not self.k and not total:
            return Fraction(1, self.V)
        return (counts[(*h, w)] + self.k) / (total + self.k * self.V)


class SlowKneserNey:
    """Chen and Goodman 1999, equations 24 to 26, in exact fractions."""

    def __init__(self, documents, order, V):
        self.order, self.V = order, V
        raw = {n: runs(documents, n) for n in range(1, order + 2)}
        self.counts = {}
        for n in range(1, order + 1):
            followed = Counter(run[1:] for run in raw[n + 1])
            self.counts[n] = {
                run: count if n == order or run[0] == START else followed[run]
                for run, count in raw[n].items()
                if run != (START,)
            }
        self.discounts = {n: self.estimate(self.counts[n].values()) for n in self.counts}

    @staticmethod
    def estimate(counts):
        n1, n2, n3, n4 = (sum(c == i for c in counts) for i in (1, 2, 3, 4))
        if n1 == 0 or n2 == 0:
            return [0, Fraction(1, 2), Fraction(1), Fraction(3, 2)]
        Y = Fraction(n1, n1 + 2 * n2)
        if n3 and n4:
            three = [1 - 2 * Y * n2 / n1, 2 - 3 * Y * n3 / n2, 3 - 4 * Y * n4 / n3]
            if all(d > 0 for d in three):
                return [0, *three]
        return [0, Y, Y, Y]

    def __call__(self, w, before):
        return self.level(w, context_of(self.order, before))

    def level(self, w, h):
        n = len(h) + 1
        below = self.level(w, h[1:]) if h else Fraction(1, self.V)
        D = self.discounts[n]
        seen = {v: self.counts[n].get((*h, v), 0) for v in range(self.V)}
        total = sum(seen.values())
        if not total:
            return below
        gamma = sum(D[min(count, 3)] for count in seen.values()) / Fraction(total)
        return (seen[w] - D[min(seen[w], 3)]) / Fraction(total) + gamma * below


def contexts(V, longest):
    return itertools.chain.from_iterable(
        itertools.product(range(V), repeat=n) for n in range(longest + 1)
    )


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_kneser_ney_is_its_formulas(order, seed):
    V = 4
    documents = corpus(seed, V, longest=12 * (seed + 1))
    fast, slow = train(documents, order, V), SlowKneserNey(documents, order, V)
    for context in contexts(V, order if order < 4 else 3):
        wanted = [float(slow(w, context)) for w in range(V)]
        np.testing.assert_allclose(fast.distribution(context), wanted, rtol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("k", [0, 0.25, 1])
def test_add_k_is_its_formula(order, k):
    V = 4
    documents = corpus(5, V)
    fast, slow = train(documents, order, V, AddK(k)), SlowAddK(documents, order, V, k)
    for context in contexts(V, order):
        wanted = [float(slow(w, context)) for w in range(V)]
        np.testing.assert_allclose(fast.distribution(context), wanted, rtol=1e-12)


def test_all_kinds_of_discounts_are_met():
    """The small corpora above fall back now and then; a larger one has all three."""
    documents = corpus(0, 12, documents=60)
    fast, slow = train(documents, 3, 12), SlowKneserNey(documents, 3, 12)
    three = slow.discounts[3][1:]
    assert len(set(three)) == 3
    counts = np.array(list(slow.counts[3].values()))
    assert discounts(counts) == pytest.approx([float(d) for d in three], rel=1e-12)
    for context in [(), (0,), (1, 2), (11, 11), (5, 6, 7)]:
        wanted = [float(slow(w, context)) for w in range(12)]
        np.testing.assert_allclose(fast.distribution(context), wanted, rtol=1e-12)


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ([], (0.5, 1.0, 1.5)),
        ([1, 1], (0.5, 1.0, 1.5)),
        ([2, 2, 9], (0.5, 1.0, 1.5)),
        ([1, 2], (1 / 3,) * 3),
        ([1, 2, 3], (1 / 3,) * 3),
        ([1, 1, 2, 3, 3, 3, 4], (0.5,) * 3),  # 2 - 3 Y n3 / n2 would be below 0
    ],
)
def test_discounts_fall_back(counts, wanted):
    assert discounts(np.array(counts, np.int64)) == pytest.approx(wanted)


def test_b23_a_bag_of_words_ignores_order_and_is_the_counts():
    documents = [[0, 1, 1, 2], [1, 3, 1], []]
    model = train(documents, 1, 5, AddK(0))
    np.testing.assert_allclose(model.distribution([]), np.array([1, 4, 1, 1, 0]) / 7, rtol=1e-15)
    np.testing.assert_array_equal(model.distribution([2, 3]), model.distribution([]))
    document = [0, 1, 2, 3, 1, 1]
    for smoothing in [AddK(0), *SMOOTHINGS]:
        model = train(documents, 1, 5, smoothing)
        totals = [
            model.log_probs(np.array(order), np.array([0, 6])).sum()
            for order in itertools.permutations(document)
        ]
        np.testing.assert_allclose(totals, totals[0], rtol=1e-13)
    # Of order 2, the order of words counts.
    pair = train(documents, 2, 5)
    a, b = (pair.log_probs(np.array(x), np.array([0, 2])).sum() for x in ([0, 1], [1, 0]))
    assert abs(a - b) > 0.1


def test_b24_a_b_c_by_hand():
    """L = 2: p(a) p(b | a) p(c | a, b), counted in "a b c", "a b b", "b c a" without smoothing."""
    a, b, c = 0, 1, 2
    documents = [[a, b, c], [a, b, b], [b, c, a]]
    each = np.exp(train(documents, 3, 3, AddK(0)).log_probs(np.array([a, b, c]), np.array([0, 3])))
    np.testing.assert_allclose(each, [2 / 3, 1, 1 / 2], rtol=1e-12)
    each = np.exp(train(documents, 3, 3, AddK(1)).log_probs(np.array([a, b, c]), np.array([0, 3])))
    np.testing.assert_allclose(each, [3 / 6, 3 / 5, 2 / 5], rtol=1e-12)
    # L = 1 looks back at one only: "b" is followed by c, b, c and an end.
    each = np.exp(train(documents, 2, 3, AddK(0)).log_probs(np.array([a, b, c]), np.array([0, 3])))
    np.testing.assert_allclose(each, [2 / 3, 1, 2 / 3], rtol=1e-12)


@pytest.mark.parametrize("smoothing", [AddK(0), *SMOOTHINGS], ids=str)
@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_b24_probabilities_sum_to_one_after_every_context(smoothing, order):
    V = 9
    model = train(corpus(1, 6), order, V, smoothing, excluded=(7, 8))  # 6 never occurs
    draw = random.Random(0)
    for _ in range(150):
        context = [draw.randrange(V) for _ in range(draw.randint(0, 7))]
        p = model.distribution(context)
        assert abs(p.sum() - 1) < 1e-12
        assert p.shape == (V,)
        assert (p[7:] == 0).all()
        assert smoothing == AddK(0) or (p[:7] > 0).all()


@pytest.mark.parametrize("smoothing", [AddK(0), *SMOOTHINGS], ids=str)
@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("chunk", [1, 7, ngram.CHUNK])
def test_log_probs_are_the_logs_of_distributions(monkeypatch, smoothing, order, chunk):
    monkeypatch.setattr(ngram, "CHUNK", chunk)
    model = train(corpus(2, 5), order, 6, smoothing)
    documents = [[], *corpus(3, 6), [], [5]]
    found = model.log_probs(*flat(documents))
    with np.errstate(divide="ignore"):
        wanted = [
            np.log(model.distribution(document[:i])[token])
            for document in documents
            for i, token in enumerate(document)
        ]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("chunk", [1, 5, ngram_counts.CHUNK])
def test_counts_are_exact_however_they_are_cut(monkeypatch, chunk):
    monkeypatch.setattr(ngram_counts, "CHUNK", chunk)
    V, order = 5, 4
    documents = [[], *corpus(4, V), [], [1], []]
    counts = count_ngrams(*flat(documents), order=order, vocab_size=V)
    for n in range(1, order + 1):
        wanted = runs(documents, n)
        assert counts.counts[n - 1].sum() == wanted.total()
        assert n == 1 or len(counts.keys[n - 1]) == len(wanted)
        for run, count in wanted.items():
            place = counts.index([V if s == START else s for s in run])
            assert counts.counts[n - 1][place] == count
    assert counts.index([0, 0, V]) == -1


@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=str)
def test_documents_do_not_see_one_another(smoothing):
    documents = corpus(6, 5)
    model = train(documents, 4, 5, smoothing)
    together = model.log_probs(*flat(documents))
    alone = [model.log_probs(*flat([document])) for document in documents]
    np.testing.assert_array_equal(together, np.concatenate(alone))
    shuffled = train(documents[::-1], 4, 5, smoothing)
    np.testing.assert_array_equal(shuffled.log_probs(*flat(documents)), together)
    # Joined into one, they are another text.
    joined = model.log_probs(*flat([[i for document in documents for i in document]]))
    assert (joined != together).any()


def test_a_long_context_counts_by_its_end_alone():
    model = train(corpus(7, 5), 3, 5)
    long = model.distribution([4, 3, 2, 1, 0])
    np.testing.assert_array_equal(long, model.distribution([1, 0]))
    # A context that a document begins with is another.
    assert (model.distribution([0]) != model.distribution([1, 0])).any()


def test_more_context_helps_where_there_is_something_to_learn():
    documents = corpus(8, 6, documents=400)
    held_out = flat(corpus(9, 6, documents=50))
    one, two = (train(documents, n, 6).log_probs(*held_out).mean() for n in (1, 2))
    assert two > one + 0.3


def test_no_documents_make_a_uniform_model():
    for smoothing in SMOOTHINGS:
        model = train([], 3, 4, smoothing, excluded=(0,))
        np.testing.assert_allclose(model.distribution([1]), [0, 1 / 3, 1 / 3, 1 / 3])


def test_what_cannot_be_is_refused():
    ids, offsets = np.array([0, 1]), np.array([0, 2])
    with pytest.raises(ConfigError, match="order of 0: at least 1"):
        NgramModel.train(ids, offsets, order=0, vocab_size=2)
    with pytest.raises(ConfigError, match=r"k = -1: 0 or more"):
        AddK(-1)
    with pytest.raises(ConfigError, match="leave one to predict"):
        NgramModel.train(ids[:0], offsets[:1], order=1, vocab_size=2, excluded=(0, 1))
    with pytest.raises(DataError, match="token 1 is never predicted"):
        NgramModel.train(ids, offsets, order=1, vocab_size=2, excluded=(1,))
    with pytest.raises(DataError, match="tokens from 0 to 1 in a vocabulary of 1"):
        NgramModel.train(ids, offsets, order=1, vocab_size=1)
    model = NgramModel.train(ids, offsets, order=2, vocab_size=2)
    for wrong in ([0, 1], [1, 2], [0, 2, 1, 2], []):
        with pytest.raises(DataError, match="offsets must ascend from 0"):
            model.log_probs(ids, np.array(wrong, np.int64))


def test_documents_are_laid_out_behind_their_beginnings():
    stream, age = add_start_symbols(*flat([[], [1, 2], [], [3]]), 4)
    assert stream.tolist() == [4, 4, 1, 2, 4, 4, 3]
    assert age.tolist() == [0, 0, 1, 2, 0, 0, 1]


@pytest.mark.parametrize("smoothing", SMOOTHINGS, ids=str)
def test_a_saved_model_is_the_same(tmp_path, smoothing):
    documents = corpus(10, 5)
    model = train(documents, 4, 7, smoothing, excluded=(5,))
    model.save(tmp_path / "model.npz")
    again = NgramModel.load(tmp_path / "model.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["model.npz"]
    assert (again.order, again.vocab_size, again.smoothing) == (4, 7, smoothing)
    assert again.excluded == (5,)
    np.testing.assert_array_equal(
        again.log_probs(*flat(documents)), model.log_probs(*flat(documents))
    )


def test_damaged_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "model.npz"
    model = train(corpus(11, 4), 3, 4)
    model.save(path)
    whole = path.read_bytes()
    held_out = flat(corpus(12, 4))
    refused = 0
    for at in range(0, len(whole), 41):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        message = None
        try:
            again = NgramModel.load(path)
        except CheckpointError as error:
            message = str(error)
        if message is None:  # such as a flipped bit of a date, which nothing reads
            np.testing.assert_array_equal(again.log_probs(*held_out), model.log_probs(*held_out))
        else:
            assert message.startswith(f"{path}: ")
            assert "\n" not in message
            refused += 1
    assert refused > len(whole) / 41 / 2
    for content in (b"", b"text", whole[:-30], whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="not an n-gram model, or a damaged one"):
            NgramModel.load(path)
    with pytest.raises(CheckpointError, match="No such file"):
        NgramModel.load(tmp_path / "none.npz")
    with pytest.raises(CheckpointError, match="cannot be written"):
        model.save(tmp_path / "none" / "model.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"format": 2}}, "format is 2, this version reads 1"),
        ({"settings": {"order": 4}}, "keys_4"),
        ({"settings": {"vocab_size": 5}}, "do not match its vocabulary"),
        ({"settings": {"smoothing": {"kind": "Other"}}}, "Other"),
        ({"keys_2": lambda x: x[::-1]}, "counts of 2 tokens are out of order"),
        ({"keys_3": lambda x: x + 10_000}, "runs of 3 tokens have no beginning"),
        ({"counts_2": lambda x: x[:-1]}, "counts of 2 tokens are out of order"),
        ({"counts_2": lambda x: -x}, "counts of 2 tokens are out of order"),
        ({"counts_2": lambda x: x.astype(object)}, "of object does not hold numbers"),
    ],
)
def test_files_that_make_no_sense_are_refused(tmp_path, change, message):
    path = tmp_path / "model.npz"
    train(corpus(11, 4), 3, 4).save(path)
    arrays = dict(np.load(path))
    for name, how in change.items():
        if name == "settings":
            settings = json.loads(arrays[name].tobytes()) | how
            arrays[name] = np.frombuffer(json.dumps(settings).encode(), np.uint8)
        else:
            arrays[name] = how(arrays[name])
    np.savez(path, **arrays)
    with pytest.raises(CheckpointError, match=message):
        NgramModel.load(path)


def test_probabilities_are_those_of_the_definition_of_perplexity():
    """A uniform model over V tokens has perplexity V."""
    model = train([], 2, 8)
    mean = model.log_probs(*flat([[1, 2, 3]])).mean()
    assert math.exp(-mean) == pytest.approx(8)
