"""Signatures are enforced while tests run: their shapes, and types where there are none."""

import jax.numpy as jnp
import pytest
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import TypeCheckError

from transformer_jax.data.corpora import phrasebook
from transformer_jax.functional.linear import linear
from transformer_jax.parallel.mesh import MeshConfig
from transformer_jax.training.loop import LoopConfig


def test_shapes_are_enforced():
    with pytest.raises(TypeCheckError, match="linear"):
        linear(jnp.ones((2, 3)), jnp.ones((4, 5)))
    with pytest.raises(TypeCheckError, match="MeshConfig"):
        MeshConfig(data="two")


def test_types_without_shapes_are_enforced():
    with pytest.raises(BeartypeCallHintViolation, match="translate"):
        phrasebook.translate(3)
    with pytest.raises((BeartypeCallHintViolation, TypeCheckError), match="LoopConfig"):
        LoopConfig(best_checkpoint_metric=3)
