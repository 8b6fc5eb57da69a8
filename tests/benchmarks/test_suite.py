"""The encoders' comparisons compare the same texts, and speeds of the same unit."""

import collections
import sys

import numpy as np
import pytest

from benchmarks import encoder_texts as data
from benchmarks import suite
from benchmarks.harness import TREE, Bench, Case, Worker
from benchmarks.settings import Settings

TINY = Settings("embed", tiny=True).size(**suite.BERT_SMALL)


@pytest.mark.parametrize("kind", ["reviews", "sst2"])
def test_every_length_comes_as_often_as_it_was_measured(kind):
    found = data.texts(kind, 400, vocab=50)
    counted = collections.Counter(map(len, found))
    assert counted == {n: 4 * count for n, count in collections.Counter(data.LENGTHS[kind]).items()}
    again = data.texts(kind, 400, vocab=50)
    assert all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    for text in found:
        assert text[0] == data.CLS
        assert text[-1] == data.SEP
        assert text[1:-1].min() >= data.FIRST
        assert text.max() < 50


def test_few_texts_have_the_mean_length_of_many():
    for kind, measured in data.LENGTHS.items():
        mean = np.mean([len(text) for text in data.texts(kind, 64, vocab=50)])
        assert mean == pytest.approx(np.mean(measured), rel=0.03)


def test_texts_come_in_no_order_of_length():
    lengths = np.array([len(text) for text in data.texts("reviews", 640, vocab=50)])
    assert abs(np.corrcoef(lengths[1:], lengths[:-1])[0, 1]) < 0.15
    longest = lengths.reshape(-1, 32).max(1)
    assert longest.min() > 1.5 * lengths.mean()


@pytest.mark.parametrize(("batches", "count"), [(20, 4), (21, 4), (3, 4), (1, 1)])
def test_every_batch_is_of_exactly_one_part(batches, count):
    sizes = np.random.default_rng(0).integers(1, 100, batches).tolist()
    dealt = data.parts(range(batches), sizes, count)
    assert sorted(i for part in dealt for i in part) == list(range(batches))
    assert len(dealt) == min(batches, count)
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1


class Scripted(Worker):
    """A worker of known speed."""

    def __init__(self, seconds, done):
        self.samples = iter(zip(seconds, done, strict=True))

    def ask(self, within=None, **request):
        seconds, done = next(self.samples)
        return {"wall": seconds, "cpu": seconds, "result": done}


def test_speeds_are_compared_by_unit_where_runs_differ_in_size():
    bench = Bench()
    # The first round does not count. After it ours does half the work in a quarter of the time.
    bench.cases = [
        Case("theirs", Scripted([9, 8, 4, 2], [1, 4000, 2000, 1000]), "0", {}, 1),
        Case("ours", Scripted([9, 2, 1, 0.5], [1, 2000, 1000, 500]), "1", {}, 1),
    ]
    theirs, ours = bench.measure(3, None, "theirs")
    assert (theirs.ratio, ours.ratio, ours.quartiles) == (1.0, 2.0, (2.0, 2.0))
    assert (theirs.ms, ours.ms) == (2000.0, 1000.0)
    assert (theirs.units_per_s, ours.units_per_s) == (500.0, 1000.0)


def test_speeds_of_runs_of_one_size_stay_as_they_were():
    bench = Bench()
    bench.cases = [
        Case("theirs", Scripted([9, 2, 2, 2], [0.1] * 4), "0", {}, 2),
        Case("ours", Scripted([9, 1, 1, 1], [0.1] * 4), "1", {}, 2),
    ]
    theirs, ours = bench.measure(3, 100, "theirs")
    assert (ours.ratio, theirs.ms, ours.units_per_s) == (2.0, 1000.0, 200.0)


@pytest.mark.slow
def test_ours_takes_every_text_once_in_as_many_runs_as_there_are_parts():
    worker = Worker(sys.executable, suite.OURS_ENCODER, 1, TREE)
    arguments = {**TINY, "texts": 64, "batch": 32, "deals": 2}
    try:
        for case, kind in (("pretrain", "reviews"), ("finetune", "sst2")):
            texts = data.texts(kind, 64, TINY["vocab"])
            facts = worker.ask(do="setup", id=case, case=case, arguments=arguments)
            real = sum(map(len, texts))
            assert (facts["texts"], facts["real_tokens"]) == (64, real)
            done = sum(worker.ask(do="run", id=case, times=1)["result"] for _ in range(2))
            assert done == (real if case == "pretrain" else 64)
            if case == "pretrain":
                assert facts["masked_tokens"] == sum(data.hidden(len(text)) for text in texts)
        plain = {**TINY, "texts": 64, "tokens": 1024}
        worker.ask(do="setup", id="embed", case="embed", arguments=plain)
        assert worker.ask(do="run", id="embed", times=1)["result"] == 64
    finally:
        worker.close()


def test_a_program_in_two_processes_is_one_row_with_the_median_of_each():
    bench, lines = Bench(), []
    bench._record = lambda **values: lines.append(values)
    bench.cases = [
        Case("theirs", Scripted([9, 4, 4, 8], [0] * 4), "0", {}, 1),
        Case("ours", Scripted([9, 2, 2, 2], [0] * 4), "1", {"first": True}, 1),
        Case("ours", Scripted([9, 1, 1, 1], [0] * 4), "2", {}, 1),
    ]
    theirs, ours = bench.measure(3, 100, "theirs")
    assert theirs.process_ms == (4000.0,)
    assert ours.process_ms == (2000.0, 1000.0)
    assert (ours.ms, ours.rounds, ours.facts) == (1500.0, 3, {"first": True})
    assert sorted([2, 2, 4, 4, 4, 8])[2:4] == [4, 4]
    assert ours.ratio == 4.0
    # Nine samples, each as soon as it is measured.
    assert [line["round"] for line in lines] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert {line["process"] for line in lines if line["case"] == "ours"} == {"1", "2"}
    # The base has the median of its processes in each round: 1.5 seconds.
    bench.cases = [
        Case("ours", Scripted([9, 2], [0] * 2), "1", {}, 1),
        Case("ours", Scripted([9, 1], [0] * 2), "2", {}, 1),
        Case("theirs", Scripted([9, 3], [0] * 2), "0", {}, 1),
    ]
    assert bench.measure(1, 100, "ours")[1].ratio == 0.5
