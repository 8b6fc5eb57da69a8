"""Randomness has one root for each purpose, and none is another's."""

import typing

import jax
import numpy as np
from flax import nnx

from transformer_jax.core.keys import Purpose, key_for, training_key


def data(key):
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_no_draw_of_a_parameter_is_the_dropout_of_a_step():
    """The n-th key that initialization uses, and the root of step n (of micro-batch m)."""
    steps = range(200)
    rngs = nnx.Rngs(key_for(1, "initialization"))
    drawn = {data(rngs.params()) for _ in steps}
    root = key_for(1, "dropout")
    dropped = {data(jax.random.fold_in(root, n)) for n in steps}
    assert len(drawn) == len(dropped) == len(steps)
    assert not drawn & dropped
    # What this mends: earlier code had one stream for both.
    rngs, root = nnx.Rngs(1), training_key(1, None)
    old = {data(rngs.params()) for _ in steps}
    assert old & {data(jax.random.fold_in(root, n)) for n in steps}


def test_purposes_and_seeds_have_roots_of_their_own():
    purposes = typing.get_args(Purpose)
    roots = {data(key_for(seed, purpose)) for seed in range(20) for purpose in purposes}
    assert len(roots) == 20 * len(purposes)
    assert not roots & {data(jax.random.key(seed)) for seed in range(20)}


def test_the_roots_never_change():
    """A run keeps what it began with, in every version to come."""
    found = {purpose: data(key_for(7, purpose)) for purpose in typing.get_args(Purpose)}
    assert found == {purpose: data(jax.random.fold_in(jax.random.key(7), number))
                     for purpose, number in
                     (("initialization", 1), ("dropout", 2), ("sampling", 3),
                      ("partition", 4))}  # fmt: skip
    assert data(training_key(7)) == found["dropout"]
