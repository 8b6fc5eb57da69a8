"""A model made with ``Shapes`` is the abstract model of one with random parameters."""

import dataclasses
import functools

import jax
import pytest
from flax import nnx

from tests.models import test_captioner
from tests.models.cases import KINDS
from transformer_jax.models.build import make_model
from transformer_jax.models.config import ComputeConfig
from transformer_jax.models.layers.parameters import Shapes
from transformer_jax.models.presets import PRESETS, bert

TASKS = ("classify", "multi_label", "pair", "regress", "replaced", "tag", "qa")
SCANNED = dataclasses.replace(bert(64, 2), compute=ComputeConfig(scan_layers=True))
IMAGES = test_captioner.ENCODER


def others():
    """Makers of the kinds of models that do not decode, by name."""
    made = lambda *arguments, **how: lambda: make_model(*arguments, rngs=nnx.Rngs(0), **how)
    yield "encoder", made("encoder", bert(64, 1))
    yield "encoder scanned", made("encoder", SCANNED, next_sentence=False)
    yield "encoder alone", made("encoder", bert(64, 1), mlm_head=False)
    for task in TASKS:
        yield f"encoder {task}", made("encoder-task", bert(64, 1), task=task, labels=3)
    decoder = dataclasses.replace(PRESETS["gpt2_small"], decoder_layers=1)
    yield "decoder task", made("decoder-task", decoder, task="classify", labels=3)
    yield "decoder valued", made("decoder", decoder, valued=True)
    yield "image", made("image", IMAGES)
    yield "image classes", made("image", IMAGES, task="classify", labels=3)


MAKERS = {name: kind.make for name, kind in KINDS.items()} | dict(others())
QUICK = ("decoder window", "encoder pair")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MAKERS],
)
def test_shapes_are_those_of_drawn_parameters(name, monkeypatch):
    graph, state = nnx.split(nnx.eval_shape(MAKERS[name]))
    monkeypatch.setattr(nnx, "Rngs", Shapes)
    other, shapes = nnx.split(nnx.eval_shape(MAKERS[name]))
    assert graph == other
    assert jax.tree.structure(state) == jax.tree.structure(shapes)
    assert jax.tree.leaves(state) == jax.tree.leaves(shapes)


def test_nothing_is_drawn(monkeypatch):
    def refuse(self):
        raise AssertionError("a key was taken")

    monkeypatch.setattr(nnx.RngStream, "__call__", refuse)
    make = functools.partial(make_model, "encoder", bert(64, 1))
    nnx.eval_shape(lambda: make(rngs=Shapes(0)))
    with pytest.raises(AssertionError, match="a key was taken"):
        nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
