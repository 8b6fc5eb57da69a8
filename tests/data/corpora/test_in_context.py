"""Documents of one rule each: what an ideal reader makes of them, and that splits are apart."""

import collections
import inspect
import itertools
import random

import pytest

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.corpora.in_context import (
    LINES,
    SequenceRule,
    examples,
    generate,
    split_of,
)
from transformer_jax.evaluation.few_shot import select_demonstrations

SPLITS = ("train", "valid", "test")


def pairs(document):
    return [tuple(line.split(">")) for line in document.splitlines()]


def oracle(shown, asked):
    """The answer that follows from the examples alone: each kind of rule that they allow, in turn.

    Letters that no example maps become "?".
    """
    if shown and all(a == b for a, b in shown):
        if any(a != a[::-1] for a, _ in shown):
            return asked
    elif shown and all(a == b[::-1] for a, b in shown):
        return asked[::-1]
    elif shown:
        table = dict(itertools.chain.from_iterable(zip(a, b, strict=True) for a, b in shown))
        return "".join(table.get(letter, "?") for letter in asked)
    return asked  # the best guess without anything to go by


@pytest.mark.parametrize("split", SPLITS)
def test_a_document_follows_one_rule_on_different_inputs(split):
    kinds = collections.Counter()
    for document in generate(split, 200):
        lines = pairs(document)
        assert len(lines) == len({a for a, _ in lines}) == LINES
        assert document == "".join(f"{a}>{b}\n" for a, b in lines)
        letters = {letter for a, _ in lines for letter in a}
        assert len(letters) <= 4
        if all(a == b for a, b in lines):
            kinds["copy"] += 1
        elif all(a == b[::-1] for a, b in lines):
            kinds["reverse"] += 1
        else:
            kinds["map"] += 1
            table = {x: y for a, b in lines for x, y in zip(a, b, strict=True)}
            assert all("".join(table[x] for x in a) == b for a, b in lines)
            images = set(table.values())
            assert len(images) == len(table)
            assert not images & letters
    assert kinds["map"] > 70
    assert min(kinds["copy"], kinds["reverse"]) > 25


def test_documents_depend_on_split_seed_and_number_alone():
    assert generate("train", 9, 3)[:5] == generate("train", 5, 3)
    assert not set(generate("train", 20, 3)) & set(generate("train", 20, 4))
    assert generate("valid", 0) == []
    pool, queries = examples("test", 6, 1)
    fewer, first = examples("test", 4, 1)
    assert (pool[: len(fewer)], queries[:4]) == (fewer, first)


def test_rules_of_different_splits_are_different():
    rules = {split: set() for split in SPLITS}
    for split in SPLITS:
        pool, queries = examples(split, 300, seed=5)
        assert len(pool) == 300 * LINES
        rules[split] = {query["rule"] for query in queries}
        assert len(rules[split]) == len(queries) == 300
        for text in rules[split]:
            assert split_of(SequenceRule(*text.split())) == split
    for one, other in itertools.combinations(SPLITS, 2):
        assert not rules[one] & rules[other]


def test_letters_are_mapped_in_any_order():
    _, queries = examples("train", 2000)
    rules = [SequenceRule(*query["rule"].split()) for query in queries]
    orders = collections.Counter(
        tuple(sorted(rule.images).index(x) for x in rule.images) for rule in rules if rule.images
    )
    assert len(orders) == 24
    assert max(orders.values()) < 3 * min(orders.values())


def test_splits_have_their_shares():
    draw = random.Random(0)
    found = collections.Counter(
        split_of(SequenceRule("map", "".join(draw.sample("abcdefgh", 4)), "wxyz"))
        for _ in range(3000)
    )
    assert 0.07 < found["test"] / 3000 < 0.13
    assert 0.07 < found["valid"] / 3000 < 0.13


def test_examples_are_of_the_rule_of_their_query_and_never_its_input():
    pool, queries = examples("valid", 50)
    by_rule = collections.defaultdict(list)
    for example in pool:
        by_rule[example["rule"]].append(example)
    for query in queries:
        rule = SequenceRule(*query["rule"].split())
        assert query["output"] == rule.apply(query["input"])
        alike = by_rule[query["rule"]]
        assert len({example["input"] for example in alike}) == len(alike) == LINES
        assert all(example["output"] == rule.apply(example["input"]) for example in alike)
        assert query["input"] not in {example["input"] for example in alike}


def test_b41_an_ideal_reader_does_better_with_more_examples():
    pool, queries = examples("test", 400)
    by_rule = collections.defaultdict(list)
    for example in pool:
        by_rule[example["rule"]].append(example)
    right = {}
    for k in (0, 1, 2, 4, 8):
        right[k] = 0.0
        for index, query in enumerate(queries):
            shown = select_demonstrations(by_rule[query["rule"]], k, query, index=index)
            known = [(example["input"], example["output"]) for example in shown]
            right[k] += (oracle(known, query["input"]) == query["output"]) / len(queries)
    assert 0.1 < right[0] < 0.3
    assert right[0] + 0.2 < right[1] < right[2] - 0.05
    assert right[2] + 0.05 < right[4] < right[8]
    assert right[8] > 0.98


def test_what_cannot_be_is_refused():
    for make in (generate, examples):
        with pytest.raises(ConfigError, match="the splits are train, valid, test"):
            inspect.unwrap(make)("dev", 1)  # before types are checked
        with pytest.raises(ConfigError, match="a count is 0 or more"):
            make("train", -1)
