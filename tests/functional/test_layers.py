"""Formulas and the functions that compute them: equal in value and gradients, behind one door."""

import re
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import pytest

from tests.drawing import normals, value_and_pullback
from tests.functional.test_shapes import CASES
from tests.platforms import trace_for
from transformer_jax import functional

PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "tpu"])
FORMULAS = [name for name, case in CASES.items() if hasattr(case[0], "formula")]


def test_these_functions_have_a_formula():
    chex.assert_trees_all_equal(
        sorted(FORMULAS),
        sorted([
            *("linear", "linear_transposed", "layer_norm", "rms_norm", "gelu", "gelu_tanh"),
            "token_cross_entropy",
        ]),
    )  # fmt: skip


@PLATFORMS
@pytest.mark.parametrize("name", FORMULAS)
def test_function_is_its_formula(monkeypatch, platform, name):
    trace_for(monkeypatch, platform)
    function, shapes, rest, result = CASES[name]
    with jax.enable_x64(), jax.numpy_rank_promotion("allow"):
        *arrays, cotangent = normals(*shapes, result, seed=5, dtype=jnp.float64)
        ours = value_and_pullback(lambda *a: function(*a, **rest), cotangent, *arrays)
        plain = value_and_pullback(lambda *a: function.formula(*a, **rest), cotangent, *arrays)
        chex.assert_trees_all_close(ours, plain, rtol=1e-12, atol=1e-12)


def test_forms_for_one_platform_stand_behind_one_door():
    """Forms for XLA:CPU are in ``kernels``; sums over devices of a TPU in ``reduce_scatter.py``."""
    root = Path(functional.__file__).parent
    text = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    there = {name for name, source in text.items() if "platform_dependent(" in source}
    assert there == {"kernels/cpu.py", "kernels/products.py", "reduce_scatter.py"}
    assert not re.search(r"cpu=", text["reduce_scatter.py"])
