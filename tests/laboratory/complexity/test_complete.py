"""Complete layers: attention with its projections next to recurrent cells, rows H14 and B13."""

import typing

import pytest

from transformer_jax.laboratory.complexity.complete import (
    Complete,
    complete_flops,
    complete_multiply_adds,
)

KINDS = typing.get_args(Complete)


@pytest.mark.parametrize("kind", KINDS)
def test_flops_by_xla_are_those_of_the_formula(kind):
    """Two FLOPs for each multiply-add, and the work on single elements, which is below 5 %."""
    exact = 2 * complete_multiply_adds(kind, 64, 256)
    assert exact <= complete_flops(kind, 64, 256) < 1.05 * exact


def test_h14_attention_with_projections_is_dearer_than_a_tanh_layer():
    millions = {kind: complete_multiply_adds(kind, 128, 512) / 1e6 for kind in KINDS}
    assert round(millions["self-attention"]) == 151
    assert round(millions["tanh"]) == 67
    assert round(millions["lstm"]) == 268
    for n in (1, 32, 512, 5000):
        attention, tanh, lstm = (
            complete_multiply_adds(kind, n, 512) for kind in ("self-attention", "tanh", "lstm")
        )
        assert attention > tanh
        assert (attention < lstm) == (n < 2 * 512)
