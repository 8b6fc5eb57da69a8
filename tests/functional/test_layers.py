"""Functions with a backward pass of their own equal their formulas in value and gradients."""

import re
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import pytest

from tests.drawing import normals, value_and_pullback
from tests.functional.formulas import FORMULAS
from tests.functional.test_shapes import CASES
from tests.platforms import trace_for
from transformer_jax import functional

PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])


@PLATFORMS
@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_function_is_its_formula(monkeypatch, platform, name):
    trace_for(monkeypatch, platform)
    function, shapes, rest, result = CASES[name]
    with jax.enable_x64(), jax.numpy_rank_promotion("allow"):
        *arrays, cotangent = normals(*shapes, result, seed=5, dtype=jnp.float64)
        ours = value_and_pullback(lambda *a: function(*a, **rest), cotangent, *arrays)
        plain = value_and_pullback(lambda *a: FORMULAS[name](*a, **rest), cotangent, *arrays)
        chex.assert_trees_all_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_forms_for_one_platform_stand_behind_one_door():
    """XLA:CPU's are in two files; what only a TPU or a GPU does otherwise is with its formula."""
    root = Path(functional.__file__).parent
    text = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    there = {name for name, source in text.items() if "platform_dependent(" in source}
    others = {"reduce_scatter.py", "scores.py", "logits.py"}
    assert there == {"layers.py", "kernels/products.py", *others}
    assert not any(re.search(r"cpu=", text[name]) for name in others)
