"""Encoders on a mesh: the same vectors, classes and tokens as on one device."""

import dataclasses
import functools

import numpy as np
import pytest
from flax import nnx

from tests.decoding.test_sharded import every_mesh, sharded
from tests.drawing import drawn
from transformer_jax.data.tokenizer import BERT_SPECIAL, train_tokenizer
from transformer_jax.inference.encoding.masked import MaskFiller
from transformer_jax.inference.encoding.task_runner import TaskRunner
from transformer_jax.inference.encoding.vectors import Embedder
from transformer_jax.models.config import AttentionConfig
from transformer_jax.models.heads import EncoderForMaskedLM, SequenceClassifier
from transformer_jax.models.presets import bert

TEXTS = ["i sat on the bank of the river", "the river ran", "cash", "cash cash bank of the river"]
TOKENIZER = train_tokenizer("wordpiece", TEXTS, 90, special=BERT_SPECIAL)
CONFIG = dataclasses.replace(
    bert(16, 2, vocab_size=TOKENIZER.vocab_size, max_length=20, dropout=0.0),
    attention=AttentionConfig(num_heads=2),
)


@functools.cache
def parts(head):
    if head == "classes":
        return drawn(lambda: SequenceClassifier(CONFIG, labels=3, rngs=nnx.Rngs(0)))
    return drawn(lambda: EncoderForMaskedLM(CONFIG, next_sentence=False, rngs=nnx.Rngs(0)))


def vectors(name):
    embedder = Embedder(sharded(parts("words"), name), TOKENIZER)
    return np.concatenate([block.vectors for block in embedder.embed(TEXTS, layers="all")])


def classes(name):
    model = sharded(parts("classes"), name)
    return TaskRunner(model, TOKENIZER, kind="classify", length=20).classes(TEXTS)


def words(name):
    fill = MaskFiller(sharded(parts("words"), name), TOKENIZER, length=20)
    found = fill(["the [MASK] ran", "cash [MASK] [MASK]"], top=3)
    return np.array([word.probability for text in found for mask in text for word in mask])


@pytest.mark.slow
@every_mesh
@pytest.mark.parametrize("made", [vectors, classes, words], ids=lambda made: made.__name__)
def test_what_an_encoder_makes_is_that_of_one_device(name, made):
    np.testing.assert_allclose(made(name), made(None), atol=1e-5)
