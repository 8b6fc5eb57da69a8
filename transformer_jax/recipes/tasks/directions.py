"""Translation in several directions: batches, and means over directions."""

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from transformer_jax.core.errors import plural
from transformer_jax.core.task_progress import log
from transformer_jax.data.plan import Batching, BucketPlan, MixedPlan, repeats
from transformer_jax.data.sources import Pairs, Splits
from transformer_jax.data.store import PairStore

__all__ = ["mean_of", "mean_scores", "named", "plan_of", "sampled_texts", "store_lacks"]


def plan_of(store: PairStore, pairs: Pairs, batching: Batching, temperature: float) -> BucketPlan:
    """Returns the plan of training batches over the pairs of all directions.

    Logs how often the pairs of each direction occur in an epoch.

    Args:
        store: The pairs as ids; some pairs may have been dropped.
        pairs: The pairs.
        batching: Batching of pairs.
        temperature: Temperature of sampling directions, see :class:`.MixedPlan`.
    """
    if pairs.directions is None:
        return batching.plan(store.source_lengths, store.target_lengths)
    numbers = {way: i for i, way in enumerate(dict.fromkeys(pairs.directions))}
    groups = np.array([numbers[pairs.directions[i]] for i in store.pair_indices])
    present, groups = np.unique(groups, return_inverse=True)
    counts = np.bincount(groups)
    names = [str(way) for way, i in numbers.items() if i in present]
    shares = zip(names, counts, repeats(counts, temperature), strict=True)
    told = (f"{name} {plural(int(n), 'pair')} x {rate:.3g}" for name, n, rate in shares)
    log(f"per epoch, temperature {temperature:g}: {', '.join(told)}")
    lengths = store.source_lengths, store.target_lengths
    return MixedPlan(*lengths, groups, temperature, **batching.settings())


def store_lacks(store: PairStore, pairs: Pairs) -> str | None:
    """Returns the end of the name of pairs that were all dropped; None if there are none.

    A direction without training pairs would count as trained, so each needs one. Copies, from a
    language to itself, are no direction.

    Args:
        store: The pairs as ids; some of them may have been dropped.
        pairs: The pairs.
    """
    if not len(store):
        return ""
    ways = pairs.directions or []
    left = {ways[i] for i in store.pair_indices} if ways else set()
    lost = (way for way in dict.fromkeys(ways) if way not in left and way.source != way.target)
    return next((f" {way}" for way in lost), None)


def named(pairs: Pairs) -> dict[str, Pairs]:
    """Returns the pairs of each direction, by the suffix of their metrics.

    Example:
        >>> list(named(Pairs(["um"], ["one"], "example")))
        ['']
    """
    return {f"_{way}": part for way, part in pairs.by_direction().items()} or {"": pairs}


def mean_of(splits: Splits) -> list[str]:
    """Returns the suffixes of metrics whose means rank checkpoints.

    These are trained directions with validation pairs, or all directions if none is trained.
    """
    if splits.valid is None:
        return []
    own = dict.fromkeys(splits.valid.directions or ())
    trained = set(splits.train.directions or ())
    return [f"_{way}" for way in own if way in trained] or [f"_{way}" for way in own]


def mean_scores(tests: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a line about the means of sacreBLEU and chrF over test sets.

    Example:
        >>> scores = {"sacrebleu": 20.0, "chrf": 40.0}, {"sacrebleu": 30.0, "chrf": 50.0}
        >>> mean_scores(dict(zip("ab", scores)))
        'sacreBLEU 25.0 chrF 45.0'
    """
    mean = lambda name: sum(one[name] for one in tests.values()) / len(tests)
    return f"sacreBLEU {mean('sacrebleu'):.1f} chrF {mean('chrf'):.1f}"


def sampled_texts(
    pairs: Pairs, temperature: float, without: Container[str | None] = ()
) -> list[str]:
    """Returns the texts of both sides, with languages sampled by temperature.

    A language of ``n`` texts occurs in proportion to ``n^(1/T)``, each of its texts at least once.

    Args:
        pairs: Pairs of several directions.
        temperature: ``T``.
        without: Languages whose texts are left out.

    Example:
        >>> from transformer_jax.data.languages import Direction
        >>> pairs = Pairs(list("abcd"), ["x"] * 4, "example", {}, [Direction("d", "e")] * 4)
        >>> sampled_texts(pairs, 2.0)
        ['a', 'b', 'c', 'd', 'x', 'x']
        >>> sampled_texts(pairs, 2.0, without=["d", "e"])
        []
    """
    texts: dict[str | None, list[str]] = {}
    for way, source, target in zip(
        pairs.directions or (), pairs.sources, pairs.targets, strict=True
    ):
        texts.setdefault(way.source, []).append(source)
        texts.setdefault(way.target, []).append(target)
    # A sentence shared by several directions counts as one text of its language.
    own = [list(dict.fromkeys(texts[name])) for name in texts if name not in without]
    if not own:
        return []
    rates = repeats(np.array([len(each) for each in own]), temperature)
    chosen = (
        each[i % len(each)]
        for each, rate in zip(own, rates, strict=True)
        for i in range(round(rate * len(each)))
    )
    return list(chosen)
