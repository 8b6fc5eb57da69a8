"""Laws of decoding, sequences, losses and runs find planted faults, and say where."""

import itertools

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax import laws
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.decoding.options import SpecialTokens

B, T, V = 3, 6, 9
draw = np.random.default_rng(0)
TABLE = draw.standard_normal((V, V))
TOKENS = draw.integers(3, V, (B, T))


def logits(tokens):
    """A model whose outputs depend on the order of the past: a decaying sum of token vectors."""
    state, found = np.zeros((len(tokens), V)), []
    for token in tokens.T:
        state = 0.5 * state + TABLE[token]
        found.append(state)
    return np.stack(found, axis=1)


def step(token, cache):
    cache = 0.5 * cache + TABLE[token]
    return cache, cache


def prefill(tokens, cache, starts=None, decay=0.5):
    for t, token in enumerate(tokens.T):
        new = decay * cache + TABLE[token]
        cache = new if starts is None else np.where(t >= starts[:, None], new, cache)
    return cache, cache


EMPTY = np.zeros((B, V))
STEPS = {
    "cache off by one": (lambda token, cache: (cache, step(token, cache)[1]), "position [0-5]"),
    "cache never written": (lambda token, cache: (step(token, cache)[0], cache), "position [1-5]"),
    "cache decays twice": (lambda token, cache: step(token, cache / 2), "position [1-5]"),
    "rows mixed up": (lambda token, cache: step(token, cache[::-1]), "row [02], position [1-5]"),
}


@pytest.mark.parametrize("name", STEPS)
def test_cached(name):
    laws.cached(logits, step, EMPTY, TOKENS).require()
    run, where = STEPS[name]
    found = laws.cached(logits, run, EMPTY, TOKENS)
    with pytest.raises(laws.LawBroken, match=where):
        found.require()


PREFILLS = {
    "the last token forgotten": (
        lambda tokens, cache: prefill(tokens[:, :-1], cache), "position [234]"
    ),
    "the cache forgotten": (
        lambda tokens, cache: (prefill(tokens, cache)[0], cache), "position [345]"
    ),
    "another decay": (lambda tokens, cache: prefill(tokens, cache, decay=0.4), "position"),
}  # fmt: skip


@pytest.mark.parametrize("name", PREFILLS)
def test_prefilled(name):
    laws.prefilled(logits, prefill, step, EMPTY, TOKENS, 3).require()
    whole = lambda tokens, cache: (logits(tokens)[:, -2:], prefill(tokens, cache)[1])
    laws.prefilled(logits, whole, step, EMPTY, TOKENS, 3).require()
    run, where = PREFILLS[name]
    with pytest.raises(laws.LawBroken, match=rf"row \d, {where}"):
        laws.prefilled(logits, run, step, EMPTY, TOKENS, 3).require()


def test_prompt_padding():
    starts = np.array([0, 2, 1])
    law = lambda run: laws.prompt_padding(logits, run, step, EMPTY, TOKENS, starts)
    law(prefill).require()
    visible = law(lambda tokens, cache, starts: prefill(tokens, cache))
    assert visible.error == np.inf
    assert visible.where == "row 1, position 3 reads its padding"
    late = law(lambda tokens, cache, starts: prefill(tokens, cache, starts + (starts > 0)))
    assert late.where.startswith(("row 1, position", "row 2, position"))


REORDERS = {
    "never": lambda cache, parents: cache,
    "to the children": lambda cache, parents: take(cache, parents.argsort(1)),
    "within the first row": lambda cache, parents: take(cache, 0 * parents + parents[:1]),
}


def take(cache, parents):
    beams = cache.reshape(*parents.shape, V)
    return np.take_along_axis(beams, parents[:, :, None], axis=1).reshape(cache.shape)


@pytest.mark.parametrize("name", REORDERS)
def test_reordered(name):
    tokens, empty = draw.integers(3, V, (B, 2, 4)), np.zeros((2 * B, V))
    laws.reordered(logits, step, take, empty, tokens).require()
    found = laws.reordered(logits, step, REORDERS[name], empty, tokens)
    with pytest.raises(laws.LawBroken, match=r"row \d, beam \d, step [123]"):
        found.require()


def test_beam_search():
    config = TRANSLATION.changed(num_return_sequences=3, normalization="none")
    table = np.log(np.array([[0.5, 0.2, 0.3], [0.3, 0.4, 0.3], [0.1, 0.6, 0.3]]))
    given = lambda prefixes: table[prefixes], SpecialTokens(eos=0, pad=9), config
    law = lambda search: laws.beam_search(search, *given, start=1, vocab_size=3, length=3)
    best = []
    for n in range(3):
        for way in itertools.product((1, 2), repeat=n):
            path = (1, *way, 0)
            best.append((path[1:], sum(table[a, b] for a, b in itertools.pairwise(path))))
    best = sorted(best, key=lambda one: -one[1])[:3]
    law(lambda: best).require()
    assert law(lambda: best[1:]).where.startswith("text 0: ")
    assert law(lambda: best[:2]).where.startswith("text 2: [] instead of ")
    normalized = [(text, score / len(text)) for text, score in best]
    assert law(lambda: normalized).where.startswith("score of text ")


def packed(tokens, segments, positions, *, causal=True):
    """Sums of the token vectors of a document so far, each times a number of its position."""
    same = segments[:, :, None] == segments[:, None]
    same = same & np.tri(tokens.shape[1], dtype=bool)[None] if causal else same
    return same @ (TABLE[tokens] * np.cos(positions)[..., None])


def alone(tokens):
    return packed(tokens, np.ones_like(tokens), np.arange(tokens.shape[1])[None])


PACKED = {
    "segments ignored": lambda tokens, segments, positions: packed(tokens, 0 * tokens, positions),
    "segments off by one": lambda tokens, segments, positions: packed(
        tokens, np.roll(segments, 1), positions
    ),
    "positions go on": lambda tokens, segments, positions: packed(
        tokens, segments, np.arange(tokens.shape[1])[None]
    ),
    "both directions": lambda *args: packed(*args, causal=False),
}


@pytest.mark.parametrize("name", PACKED)
def test_packing(name):
    documents, run = [TOKENS[0, :3], TOKENS[1, :4]], PACKED[name]
    laws.packing(packed, alone, documents, length=9).require()
    laws.packed_mates(packed, documents, length=9).require()
    with pytest.raises(laws.LawBroken, match=r"document [01], position"):
        laws.packing(run, alone, documents, length=9).require()
    mates = laws.packed_mates(run, documents, length=9)
    assert mates.holds == (not name.startswith("segments"))
    assert mates.holds or mates.where.startswith("document ")


def test_permutation():
    x = draw.standard_normal((2, 5, 3))
    laws.permutation(lambda x: x - x.mean(1, keepdims=True), x).require()
    for fault in (lambda x: x + np.arange(5.0)[None, :, None], lambda x: x - x[:, :1]):
        assert laws.permutation(fault, x).where.startswith("row 0, place ")


LOSSES, REAL = draw.random((2, 5)), np.arange(5)[None] < np.array([[5], [3]])


def total(losses, real):
    return {
        "loss": (losses * real).sum(),
        "weight": real.sum(),
        "gradient": 1.0 * real[:, :1].sum(),
    }


TOTALS = {
    "loss over padding": (
        lambda x, real: total(x, real) | {"loss": x.sum() - x[:, 0].mean()}, "loss: []", True
    ),
    "weight over padding": (
        lambda x, real: total(x, real) | {"weight": real.size}, "weight: []", False
    ),
    "a mean": (lambda x, real: total(x, real) | {"loss": x[real].mean()}, "loss: []", False),
    "a mean by row": (
        lambda x, real: total(x, real) | {"loss": ((x * real).sum(1) / real.shape[1]).sum()},
        "loss: []", False,
    ),
    "not a number": (
        lambda x, real: total(x, real) | {"loss": (x * np.where(real, 1, np.nan)).sum()},
        "loss: []", True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TOTALS)
def test_losses(name):
    laws.loss_padding(total, LOSSES, REAL).require()
    laws.loss_length(total, LOSSES, REAL).require()
    run, where, reads = TOTALS[name]
    found = laws.loss_padding(run, LOSSES, REAL)
    assert (found.holds, found.where) == ((False, where) if reads else (True, ""))
    assert laws.loss_length(run, LOSSES, REAL).where == where


def test_losses_of_parts():
    run = lambda batch: {"loss": batch["x"].sum(), "gradient": batch["x"].sum(0)}
    laws.loss_split(run, {"x": LOSSES}).require()
    found = laws.loss_split(lambda batch: {"loss": batch["x"].mean()}, {"x": LOSSES})
    assert found.where == "loss: []"
    parts = laws.loss_split(lambda x: x.max(0), LOSSES, parts=2)
    assert not parts.holds


def test_dropout_in_evaluation_is_found():
    keys = iter(jax.random.split(jax.random.key(0), 4))
    drop = lambda x: x * jax.random.bernoulli(next(keys), 0.9, x.shape)
    laws.repeatability(lambda x: x * x, LOSSES).require()
    assert laws.repeatability(drop, np.ones((4, 50))).where.startswith("row ")


def test_sharded():
    mesh = jax.make_mesh((8,), ("data",))
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    centred = lambda x: x - x.mean(0, keepdims=True)
    rows = PartitionSpec("data")
    # Each device takes the mean of its own rows.
    local = jax.shard_map(centred, mesh=mesh, in_specs=rows, out_specs=rows)
    spread = lambda axis: jax.jit(centred)(
        jax.device_put(x, axis and NamedSharding(mesh, PartitionSpec(axis)))
    )
    laws.sharded(spread, ["data"]).require()
    found = laws.sharded(
        lambda axis: {
            "rows": local(jax.device_put(x, NamedSharding(mesh, rows))) if axis else centred(x)
        },
        ["data"],
    )
    assert found.where.startswith("data: rows: [")


def train(stops, lost=()):
    """A few steps of momentum on a drawn series; what is lost is forgotten at each stop."""
    state = {"x": 0.0, "momentum": 0.0, "seed": 0}
    for n in range(8):
        if n in stops:
            state |= dict.fromkeys(lost, 0)
        noise = float(np.random.default_rng(state["seed"]).standard_normal())
        momentum = 0.9 * state["momentum"] + noise
        state = {"x": state["x"] - momentum, "momentum": momentum, "seed": state["seed"] + 1}
    return state


@pytest.mark.parametrize("lost", ["x", "momentum", "seed"])
def test_resumed(lost):
    laws.resumed(train, [(3,), (2, 5)]).require()
    found = laws.resumed(lambda stops: train(stops, [lost]), [(3,), (2, 5)])
    with pytest.raises(laws.LawBroken, match=r"Error .* stopped after step [325, ]+: (x|mom|seed)"):
        found.require()
    rounded = lambda stops: {"x": np.float32(train(stops)["x"]) + 1e-6 * bool(stops)}
    assert not laws.resumed(rounded, [(3,)]).holds


def test_other_leaves_are_a_difference():
    found = laws.resumed(lambda stops: {"x": 1} if stops else {"x": 1, "y": 2}, [(1,)])
    assert found.where == "stopped after step 1: leaves ['x'] instead of ['x', 'y']"
    texts = laws.resumed(lambda stops: {"hash": "ab" if stops else "cd"}, [(1,)])
    assert texts.error == np.inf
