"""Similarities of texts: losses are those of sentence-transformers; equal texts are no negatives.

The references are stored by ``python -m tests.parity.sentence_losses``.
"""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.parity.sentence_losses import CASES, STORED, drawn
from transformer_jax.data.examples import EncodedExamples
from transformer_jax.data.store import TokenStore
from transformer_jax.inference.encoding.batching import PackedRows, make_packed_inputs
from transformer_jax.models.partition import merging
from transformer_jax.models.presets import bert
from transformer_jax.models.sentence_encoder import DenseForm, SentenceEncoder, SentenceForm
from transformer_jax.training import objectives
from transformer_jax.training.micro_batches import cached
from transformer_jax.training.state import split


def of_pairs(count, K):
    """The numbers of different texts, and the partners of each anchor."""
    texts = np.arange(count * K, dtype=np.int32).reshape(count, 1, K)
    return {"texts": texts, "partners": texts[..., :2]}


@pytest.mark.quick("cosent", "hard negatives")
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_of_sentence_transformers(name):
    """Each example has a row of its own."""
    settings, K, scored = CASES[name]
    vectors, labels = drawn(name)
    batch = {"labels": labels[:, None]} if scored else of_pairs(6, K)

    def loss(vectors):
        total, weight = objectives.similarity(**settings).compare(None, vectors, batch)["loss"]
        return total / weight

    value, slope = jax.value_and_grad(loss)(jnp.asarray(vectors))
    expected, gradient = json.loads(STORED.read_text("utf-8"))[name]
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, gradient, rtol=1e-5, atol=1e-5)


@functools.cache
def encoder():
    """Graph and parameters of a small sentence encoder."""
    config = bert(16, 1, vocab_size=40, max_length=16, dropout=0.0)
    form = SentenceForm(("mean", "max"), DenseForm(8, tanh=True), True)
    return split(SentenceEncoder(config, form, rngs=nnx.Rngs(0)))


TEXTS = [[5, 6], [7, 8, 9], [10], [5, 6, 7, 8], [11, 12], [13, 5, 14]]


def packed(rows, T, labels=(0.2, 0.9, 0.5)):
    """A batch of the three pairs of TEXTS, as the rows say; -1 is none."""
    numbers = np.array(rows)
    texts = np.where(numbers[..., None] < 0, -1, 2 * numbers[..., None] + np.arange(2))
    store = TokenStore(np.concatenate(TEXTS), np.cumsum([0, *map(len, TEXTS)]))
    made = make_packed_inputs(
        EncodedExamples(store, store.lengths), PackedRows(texts.reshape(len(rows), -1), T), 0
    )
    made["labels"] = np.where(numbers < 0, np.nan, np.array(labels)[numbers]).astype(np.float32)
    made["texts"] = texts.astype(np.int32)
    return made | {"partners": made["texts"]}


@functools.cache
def gradients_of(kind, parts=1):
    """A function from a batch to the mean loss, and the gradient, in parts."""
    objective = objectives.similarity(kind, scale=2.0)
    differentiated = cached(objective, merging(encoder()[0]), parts)

    @jax.jit
    def run(params, batch):
        sums, slope = differentiated(params, {}, batch, None)
        total, weight = sums["loss"]
        return total / weight, jax.tree.map(lambda leaf: leaf / weight, slope)

    return lambda batch: run(encoder()[1], batch)


@pytest.mark.quick("ranking")
@pytest.mark.parametrize("kind", ["cosine", "cosent", "ranking"])
def test_neither_padding_nor_the_arrangement_of_rows_nor_parts_change_loss_and_gradients(kind):
    """Cached gradients of two micro-batches are those of the whole batch."""
    value, slope = gradients_of(kind)(packed([[0], [1], [2]], 8))
    for parts, batch in (
        (1, packed([[2, 0, -1], [-1, -1, 1]], 16)),
        (2, packed([[0, -1], [1, -1], [2, -1], [-1, -1]], 12)),
    ):
        found, other = gradients_of(kind, parts)(batch)
        np.testing.assert_allclose(found, value, rtol=1e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-6), other, slope
        )


def ranking(texts, partners, vectors):
    """The loss of each anchor by hand: among its positive and what may be a negative."""
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    total = 0.0
    for i, (anchor, positive, *_) in enumerate(texts):
        others = []
        for j, (a, p, *negatives) in enumerate(texts):
            if j != i and not {anchor, positive} & {a, p} and p not in partners[i]:
                others.append(unit[j, 1])
            hard = enumerate(negatives, 2)
            others += [unit[j, k] for k, n in hard if n >= 0 and n not in partners[i]]
        logits = np.array([unit[i, 0] @ other for other in (unit[i, 1], *others)])
        total += np.log(np.exp(logits).sum()) - logits[0]
    return total / len(texts)


def test_rows_that_share_a_text_are_no_negatives():
    """Equal anchors, equal positives, a pair turned round, and a positive of another row."""
    texts = [(0, 1, 7), (0, 2, 8), (3, 1, -1), (1, 0, 9), (4, 5, 2), (6, 7, 5), (10, 11, 1)]
    positives = {a: {p for b, p, _ in texts if a == b} for a, *_ in texts}
    partners = [[a, *positives[a], *[-1] * (2 - len(positives[a]))] for a, *_ in texts]
    vectors = np.random.default_rng(0).normal(size=(7, 3, 4)).astype(np.float32)
    batch = {"texts": np.array(texts)[:, None], "partners": np.array(partners)[:, None]}
    objective = objectives.similarity("ranking", scale=1.0)
    sums = objective.compare(None, jnp.asarray(vectors), batch)
    total, weight = sums["loss"]
    np.testing.assert_allclose(total / weight, ranking(texts, partners, vectors), rtol=1e-5)
    batch["texts"] = np.arange(21).reshape(7, 1, 3)  # without shared texts the loss is another
    batch["partners"] = batch["texts"][..., :2]
    alone, _ = objective.compare(None, jnp.asarray(vectors), batch)["loss"]
    assert abs(alone - total) / weight > 0.1
