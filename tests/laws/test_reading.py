"""Laws find planted faults, and say where."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import laws
from transformer_jax.core.errors import ArgumentError

TOKENS = np.random.default_rng(0).integers(3, 9, (2, 5))
VECTORS = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)
REAL = np.arange(5)[None] < np.array([[5], [3]])


def attention(allowed, x):
    """Single-head attention without parameters; ``allowed`` is [B T T]."""
    scores = jnp.where(allowed, jnp.einsum("BTD,BSD->BTS", x, x), -jnp.inf)
    return jnp.einsum("BTS,BSD->BTD", jax.nn.softmax(scores), x)


def causal(x, offset=0):
    return attention(np.tri(5, k=offset, dtype=bool)[None], x)


def padded(tokens, real):
    """Attention of token vectors to real positions."""
    vectors = np.random.default_rng(1).standard_normal((9, 4)).astype(np.float32)
    return attention(jnp.asarray(real)[:, None], jnp.asarray(vectors)[tokens])


READS = r"row \d: position \d reads position \d$"
# What keeps each law, and faults that break it with the place that is reported.
CAUSAL = {
    "kept": (causal, ""),
    "one position ahead": (
        lambda x: causal(x, 1),
        r"(0 reads position 1|1 reads position 2|2 reads position 3|3 reads position 4)$",
    ),
    "upside down": (
        lambda x: causal(x[:, ::-1])[:, ::-1],
        READS,
    ),
    "blind": (lambda x: 0 * x, "row 0: position 0 does not read position 0"),
    "shifted": (lambda x: jnp.pad(x[:, :-1], ((0, 0), (1, 0), (0, 0))), "does not read"),
    "normalized over time": (
        lambda x: x - x.mean(1, keepdims=True),
        READS,
    ),
}


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("check", [laws.causality, laws.causality_by_gradient])
def test_causality(check, name):
    run, where = CAUSAL[name]
    found = check(run, VECTORS)
    assert found.holds == (name == "kept")
    assert re.search(where, found.where), found


def test_visibility():
    look = lambda allowed: lambda x: attention(allowed, x)
    allowed = np.random.default_rng(2).random((2, 5, 5)) < 0.5
    allowed |= np.eye(5, dtype=bool)
    laws.visibility(look(allowed), VECTORS, allowed).require()
    more, less = allowed.copy(), allowed.copy()
    more[1, 3, np.flatnonzero(~allowed[1, 3])[0]] = True
    assert "row 1: position 3 reads" in laws.visibility(look(more), VECTORS, allowed).where
    less[1, 2, np.flatnonzero(allowed[1, 2])[0]] = False
    assert "row 1: position 2 does not read" in laws.visibility(look(less), VECTORS, allowed).where
    assert not laws.visibility(look(~allowed | np.eye(5, dtype=bool)), VECTORS, allowed).holds


PADDED = {
    "kept": (padded, ""),
    "mask never passed": (lambda x, real: padded(x, np.ones_like(real)), "row 1, position"),
    "one too long": (lambda x, real: padded(x, np.roll(real, 1, 1) | real), "row 1, position"),
    "mask flipped": (lambda x, real: padded(x, ~real | (real.sum(1) == 5)[:, None]), "row 1"),
    "lengths of the longest": (lambda x, real: padded(x, real.any(0)[None]), "row 1, position"),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding(name):
    run, where = PADDED[name]
    for check in (laws.padding, laws.padding_length):
        found = check(run, TOKENS, REAL)
        assert found.holds == (name == "kept")
        assert where in found.where


def test_positions_that_count_from_the_end_break_the_length_of_padding_alone():
    run = lambda x, real: padded(x, real) + np.arange(x.shape[1])[None, ::-1, None]
    laws.padding(run, TOKENS, REAL).require()
    assert laws.padding_length(run, TOKENS, REAL).where == "row 1, position 0"


def test_rows_of_a_batch():
    for check in (laws.batch_mates, laws.batch_of_one):
        check(causal, VECTORS).require()
        found = check(lambda x: causal(x) - x.mean(0, keepdims=True), VECTORS)
        assert found.where.startswith("row ")
        assert not check(lambda x: causal(x - x.min()), VECTORS + VECTORS[::-1] * 0.5).holds
    swapped = lambda x: causal(x[::-1])
    assert laws.batch_mates(swapped, VECTORS).error > 0.1


def test_an_output_that_is_no_number_breaks_a_law():
    found = laws.batch_of_one(lambda x: x / jnp.float32(len(x) - 1), VECTORS)
    assert found.error == np.inf
    with pytest.raises(laws.LawBroken, match=r"batch_of_one: A row .* Error inf, tolerance 1e-05"):
        found.require()


SOURCES = {
    "kept": lambda source, real, target: target + attend_to(source, real),
    "mask never passed": lambda source, real, target: target + attend_to(source, real | True),
    "mask of the longest": lambda source, real, target: (
        target + attend_to(source, real.any(0)[None])
    ),
    "divided by the length": lambda source, real, target: (
        target + attend_to(source, real) / real.shape[1]
    ),
}


def attend_to(source, real):
    return padded(source, real)[:, 0, :1]


@pytest.mark.parametrize("name", SOURCES)
def test_padding_of_a_source(name):
    given = TOKENS, REAL, np.ones((2, 3), np.float32)
    for check in (laws.source_padding, laws.source_length):
        found = check(SOURCES[name], *given)
        keeps = name == "kept" or (check, name[:7]) == (laws.source_padding, "divided")
        assert found.holds == keeps
        assert found.where.startswith("" if keeps else "row 1, position ")


def test_inputs_that_show_nothing_are_refused():
    run, everything = lambda *args: args[0], np.ones_like(REAL)
    for check in (laws.padding, laws.padding_length, laws.loss_padding, laws.loss_length):
        with pytest.raises(ArgumentError, match="give a batch with padding"):
            check(run, TOKENS, everything)
    with pytest.raises(ArgumentError, match="give two that differ"):
        laws.batch_mates(run, TOKENS[[0, 0]])
    with pytest.raises(ArgumentError, match="give two rows or more"):
        laws.batch_of_one(run, TOKENS[:1])
    for behind in (laws.padding_length, laws.loss_length):
        with pytest.raises(ArgumentError, match="row 1 does not begin with its real positions"):
            behind(run, TOKENS, REAL | (np.arange(5) == 4))
        with pytest.raises(ArgumentError, match="row 0 does not begin with its real positions"):
            behind(run, TOKENS, REAL & np.array([[False], [True]]))
    with pytest.raises(ArgumentError, match="visible is False everywhere"):
        laws.visibility(run, VECTORS, np.zeros((2, 5, 5), bool))
    for parts in (1, 2, 7):
        with pytest.raises(ArgumentError, match="parts that divide its rows, 2 or more"):
            laws.loss_split(run, np.ones(5), parts=parts)
    for starts in ([0, 0], [0, 3]):
        with pytest.raises(ArgumentError, match="give one above 0, and all below the 3 tokens"):
            laws.prompt_padding(run, run, run, None, TOKENS, np.array(starts))
    with pytest.raises(ArgumentError, match="one document has no others around it"):
        laws.packed_mates(run, [TOKENS[0]], length=6)
    with pytest.raises(ArgumentError, match="all inputs of a row are equal"):
        laws.permutation(run, TOKENS[:, :1])
    with pytest.raises(ArgumentError, match="no placement"):
        laws.sharded(run, [])
    with pytest.raises(ArgumentError, match="no run stops"):
        laws.resumed(run, [()])
    with pytest.raises(ArgumentError, match="give an input with two values or more"):
        laws.causality(run, np.ones((1, 3)))


def test_the_page_of_laws_has_them_all_and_its_code_prints_what_it_says(capsys):
    page = (Path(__file__).parents[2] / "docs/laws.md").read_text()
    rows = re.findall(r"^\| (`\w+`.*?) \| .* \| (.*) \|$", page, re.MULTILINE)
    listed = {}
    for names, tolerances in rows:
        names = re.findall(r"`(\w+)`", names)
        listed |= dict(zip(names, map(float, tolerances.split(", ")), strict=True))
    assert listed == {name: law.tolerance for name, law in laws.ALL.items()}
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    exec(code, {})
    said = code.rpartition("# ")[2].strip().removesuffix("...")
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize("name", laws.ALL)
def test_each_law_has_a_sentence_and_a_tolerance(name):
    law = laws.ALL[name]
    assert law.check is getattr(laws, name)
    assert law.sentence[0].isupper()
    assert law.sentence.endswith(".")
    assert law.tolerance >= 0
