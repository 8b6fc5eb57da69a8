"""Texts of ``generate()`` of transformers, token for token, with tiny models of each layout.

The references are stored: ``remake_generation.py`` makes them anew, and tells how often two
hypotheses were so near to one another that the case was drawn again.
"""

import functools
import json

import jax
import numpy as np
import pytest
from flax import nnx

from tests.parity import layouts
from transformer_jax.decoding.hf_config import from_generation_config
from transformer_jax.decoding.hf_generate import HFGenerator
from transformer_jax.interop.hf_checkpoint import abstract_model, open_hf_checkpoint

CASES = json.loads((layouts.REFERENCES / "generation.json").read_text())["cases"]
OUT = -1e8  # scores below are of hypotheses that do not exist
PROGRAMS = sorted({(case["layout"], case["rules"]["num_beams"]) for case in CASES})
QUICK = {("bart", 5), ("t5_gated", 1), ("gpt2", 2), ("gemma2", 5)}


def cases(layout, num_beams=None):
    mine = [case for case in CASES if case["layout"] == layout]
    return [case for case in mine if num_beams in (None, case["rules"]["num_beams"])]


def rules_of(case):
    """The generation config of a folder: the configuration, with the settings of the case."""
    return from_generation_config(layouts.LAYOUTS[case["layout"]]["config"] | case["rules"])


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    @functools.cache
    def make(layout):
        folder = open_hf_checkpoint(
            layouts.write(layout, tmp_path_factory.mktemp("published") / layout)
        )
        model = nnx.split(abstract_model(folder.model))[0], folder.load()
        first, *others = map(rules_of, cases(layout))
        # One shape, and room for all rules: each number of beams is one program.
        return HFGenerator(model, first, others=others, rows=(3,), lengths=(20,))

    return make


def differs(generator, case):
    """The result, if it is not the stored one."""
    rules = rules_of(case)
    with jax.default_matmul_precision("highest"):
        found = generator.generate(case["ids"], case["mask"], rules)
    known = 1 if generator.encodes else len(case["ids"][0])
    tokens, wanted = found.tokens[:, known:], np.array(case["tokens"])
    if "scores" not in case:
        return None if np.array_equal(tokens, wanted) else found
    scores, real = np.array(case["scores"]), np.array(case["scores"]) > OUT
    if real.all() and tokens.shape != wanted.shape:
        return found
    # What stands in for hypotheses that do not exist may be of any length.
    wide = max(tokens.shape[1], wanted.shape[1])
    tokens, wanted = (
        np.pad(t, ((0, 0), (0, wide - t.shape[1])), constant_values=rules.fill)[real]
        for t in (tokens, wanted)
    )
    same = np.array_equal(tokens, wanted) and np.array_equal(real, found.scores > OUT)
    near = np.allclose(found.scores[real], scores[real], rtol=2e-4, atol=2e-4)
    return None if same and near else found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "num_beams"),
    [
        pytest.param(*which, marks=[] if which in QUICK else [pytest.mark.slow])
        for which in PROGRAMS
    ],
)
def test_texts_are_those_of_transformers(generator, layout, num_beams):
    """Every case of the layout with so many beams: rules, lengths, padding and ends at random."""
    asked = cases(layout, num_beams)
    wrong = [(found, c) for c in asked if (found := differs(generator(layout), c)) is not None]
    assert len(asked) > 5
    assert not wrong, f"{len(wrong)} of {len(asked)}, such as {wrong[0]}"


def test_the_cases_are_many_and_of_all_kinds():
    assert len(CASES) > 450
    assert sum(len(cases(*which)) for which in QUICK) >= 60
    assert sum("scores" in case for case in CASES) > 300
    assert sum(0 in row for case in CASES for row in case["mask"]) > 200
    names = {name for case in CASES for name in case["rules"]}
    assert len(names) > 20
    assert all(sum(name in case["rules"] for case in CASES) > 30 for name in names)
