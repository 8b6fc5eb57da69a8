"""Objectives of encoders: rows B35, B36, H18, H19."""

import dataclasses
import functools
import zlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import compiled
from transformer_jax.data.bert_pretraining import (
    BertPretrainingPlan,
    PackedPretrainingPlan,
    PairBatch,
)
from transformer_jax.data.masking import MLMMasking
from transformer_jax.data.plan import Batching
from transformer_jax.data.sentences import SentenceStore
from transformer_jax.models.config import AttentionConfig
from transformer_jax.models.heads import EncoderForMaskedLM
from transformer_jax.models.presets import bert, modernbert
from transformer_jax.training.objectives import (
    masked_lm,
    question_answering,
    regression,
    sequence_classification,
    span_scores,
    token_classification,
)

V, D, B, T, P = 20, 16, 4, 8, 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_packed_texts_have_the_loss_and_the_gradients_of_texts_alone(seed):
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 12, 40))])
    documents = np.array([0, *np.sort(rng.choice(np.arange(1, 40), 16, replace=False)), 40])
    ids = rng.integers(5, V, offsets[-1]).astype(np.int32)
    store = SentenceStore(ids, offsets, documents, {})
    masking = MLMMasking(mask=4, plain=np.arange(5, V), mlm_probability=0.3)
    batching = Batching(96, required_batch_size_multiple=1, seed=seed)
    texts = BertPretrainingPlan(
        store, masking, (2, 3, 0), batching, length=24, sentence_objective="none"
    )
    plan = PackedPretrainingPlan(texts, batching, length=24)
    config = modernbert(D, 2, 24, vocab_size=V, max_length=24, window=6)
    graph, params = nnx.split(EncoderForMaskedLM(config, next_sentence=False, rngs=nnx.Rngs(seed)))
    loss = masked_lm(sentence_objective="none")
    run = jax.jit(jax.value_and_grad(lambda p, batch: loss(nnx.merge(graph, p), batch)["loss"][0]))
    for step in range(plan.steps_per_epoch):
        batch = plan.batch(step)
        alone = texts.make(PairBatch(batch.texts[batch.texts >= 0], 24, batch.epoch))
        made = {name: jnp.asarray(value) for name, value in plan.make(batch).items()}
        other = {name: jnp.asarray(value) for name, value in alone.items()}
        one, two = run(params, made), run(params, other)
        chex.assert_trees_all_close(one, two, rtol=1e-4, atol=1e-4)
        # What stands at padding is not read.
        made["tokens"] = jnp.where(made["segments"] == 0, 7, made["tokens"])
        chex.assert_trees_all_equal(run(params, made), one)


BERT = dataclasses.replace(
    bert(D, 1, vocab_size=V, max_length=T, dropout=0.0), attention=AttentionConfig(num_heads=4)
)


class Shallow(EncoderForMaskedLM):
    """The heads over vectors that compile in no time, made of all real tokens and their types."""

    def __call__(self, tokens, lengths, types, *, key=None):
        real = (jnp.arange(tokens.shape[1])[None] < lengths[:, None])[..., None]
        x = jnp.where(real, self.embedding(tokens) + self.encoder.segments(types), 0.0)
        return x + x.mean(1, keepdims=True)


@functools.lru_cache
def parts(pairs=True):
    """Graph and parameters that depend on their names alone: zeros and ones hide mistakes."""
    make = lambda: Shallow(BERT, next_sentence=pairs, rngs=nnx.Rngs(0))
    graph, state = nnx.split(nnx.eval_shape(make))

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        noise = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(leaf.shape)
        return jnp.asarray(1 + 0.2 * noise if "gain" in name else 0.3 * noise, leaf.dtype)

    return graph, jax.tree_util.tree_map_with_path(fill, nnx.to_pure_dict(state))


def rows_of(seed=0):
    """Four rows: one has a single hidden token, one nothing hidden, and the last is padding."""
    rng = np.random.default_rng(seed)
    weights = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]], np.float32)
    return {
        "tokens": rng.integers(5, V, (B, T)).astype(np.int32),
        "lengths": np.array([8, 6, 5, 0], np.int32),
        "types": (np.arange(T) > np.array([3, 2, 2, 9])[:, None]).astype(np.int32),
        "masked_positions": np.array([[1, 4, 6], [2, 0, 0], [0, 0, 0], [0, 0, 0]], np.int32),
        "targets": (rng.integers(5, V, (B, P)) * weights).astype(np.int32),
        "weights": weights,
        "next_sentence_label": np.array([1, 0, 1, -1], np.int32),
    }


def parted(sums):
    """The loss, its weight, and the other sums, which all have that weight."""
    total, weight = sums["loss"]
    others = {name: value for name, (value, _) in sums.items() if name != "loss"}
    return total, weight, others


@functools.lru_cache
def loss(accuracy=False, pairs=True):
    """``(params, batch) -> gradients, (total, weight, extra)``, compiled whole."""
    objective, graph = masked_lm(accuracy=accuracy), parts(pairs)[0]

    def run(params, batch):
        sums = objective(nnx.merge(graph, params), batch, None)
        return sums["loss"][0], parted(sums)

    return jax.jit(jax.grad(run, has_aux=True))


@functools.lru_cache
def scores():
    """Scores of words at every place, and of pairs."""
    graph, params = parts()
    batch = rows_of()

    @jax.jit
    def run(params):
        model = nnx.merge(graph, params)
        hidden = model(*(jnp.asarray(batch[name]) for name in ("tokens", "lengths", "types")))
        return model.mlm_logits(hidden), model.nsp_logits(hidden)

    return jax.device_get(run(params))


def nats(logits, target):
    logits = np.asarray(logits, np.float64)
    return np.log(np.exp(logits).sum()) - logits[target]


def by_hand(batch):
    words, follows = scores()
    masked = pair = hits = right = 0.0
    for b in range(B):
        for p in range(P):
            if batch["weights"][b, p]:
                logits, target = words[b, batch["masked_positions"][b, p]], batch["targets"][b, p]
                masked += nats(logits, target)
                hits += logits.argmax() == target
                # A pair counts once for every masked token of its row.
                pair += nats(follows[b], batch["next_sentence_label"][b])
                right += follows[b].argmax() == batch["next_sentence_label"][b]
    return {
        "mlm_loss": masked, "nsp_loss": pair, "mlm_accuracy": hits, "nsp_accuracy": right,
    }  # fmt: skip


@pytest.mark.parametrize("accuracy", [False, True])
@pytest.mark.quick("True")
def test_h18_h19_mlm_and_pairs_are_weighted_by_masked_tokens(accuracy):
    batch = rows_of()
    # Some words and pairs have to be right, for sums of hits that are not 0.
    batch["targets"][0, 1] = scores()[0][0, 4].argmax()
    total, weight, extra = loss(accuracy)(parts()[1], batch)[1]
    wanted = by_hand(batch)
    if not accuracy:
        wanted.pop("mlm_accuracy")
    assert weight == 4
    assert extra.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(extra[name], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(total, wanted["mlm_loss"] + wanted["nsp_loss"], rtol=1e-5)
    assert wanted.get("mlm_accuracy", 1) >= 1


def test_without_pairs_only_words_count():
    params = {name: part for name, part in parts()[1].items() if name != "next_sentence"}
    total, weight, extra = loss(pairs=False)(params, rows_of())[1]
    assert extra.keys() == {"mlm_loss"}
    np.testing.assert_allclose(total, by_hand(rows_of())["mlm_loss"], rtol=1e-5)
    assert weight == 4


def test_h18_only_masked_tokens_matter():
    """Targets, places and pairs of what has no weight: neither sums nor gradients."""
    batch, other = rows_of(), rows_of()
    nothing = other["weights"] == 0
    other["targets"][nothing], other["masked_positions"][nothing] = 9, 5
    other["next_sentence_label"][2:] = [0, 1]
    other["tokens"][2:], other["types"][2:] = 7, 1
    wanted, found = (loss()(parts()[1], each) for each in (batch, other))
    chex.assert_trees_all_close(found, wanted, atol=1e-6, rtol=1e-6)
    assert np.abs(wanted[0]["next_sentence"]["kernel"]).max() > 0.01
    assert np.abs(wanted[0]["transform"]["kernel"]).max() > 0.01


@pytest.mark.parametrize("cut", [[[0], [1], [2], [3]], [[3, 0], [2, 1]]])
def test_the_sums_do_not_depend_on_how_a_batch_is_cut(cut):
    whole = rows_of()
    sums = None
    for rows in cut:
        batch = {name: array[rows] for name, array in whole.items()}
        padded = {
            name: np.concatenate([a, np.zeros((B - len(rows), *a.shape[1:]), a.dtype)])
            for name, a in batch.items()
        }
        found = loss()(parts()[1], padded)
        sums = found if sums is None else jax.tree.map(jnp.add, sums, found)
    chex.assert_trees_all_close(sums, loss()(parts()[1], whole), atol=1e-4, rtol=1e-4)


class Given:
    """A model that says what it is given, whatever it reads."""

    def __init__(self, scores):
        self.scores = scores

    def __call__(self, tokens, lengths, types, *, key=None):
        return self.scores


def of_given(objective, scores, **batch):
    """The gradient with respect to the scores, and the sums."""
    batch = rows_of() | batch

    def run(scores):
        sums = objective(Given(scores), batch, None)
        return sums["loss"][0], parted(sums)

    return jax.device_get(jax.jit(jax.grad(run, has_aux=True))(jnp.asarray(scores, jnp.float32)))


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("objective", [sequence_classification, token_classification])
def test_b36_classes_and_tags_are_cross_entropies_of_what_is_labeled(objective):
    shape = (B,) if objective is sequence_classification else (B, T)
    logits, rng = 2 * drawn(*shape, 3), np.random.default_rng(1)
    labels = rng.integers(0, 3, shape).astype(np.int32)
    labels[rng.random(shape) < 0.4] = -1
    labels[3] = -1
    known = labels >= 0
    gradient, (total, weight, extra) = of_given(objective(), logits, labels=labels)
    pairs = list(zip(logits[known], labels[known], strict=True))
    np.testing.assert_allclose(total, sum(nats(row, label) for row, label in pairs), rtol=1e-5)
    assert weight == known.sum() == len(pairs) > 0
    assert extra == {"accuracy": sum(row.argmax() == label for row, label in pairs)}
    assert not gradient[~known].any()
    assert gradient[known].all()
    logits[~known] = np.nan
    again = of_given(objective(), logits, labels=labels)
    chex.assert_trees_all_equal(again, (gradient, (total, weight, extra)))


def test_b36_numbers_are_squared_errors_of_what_is_labeled():
    numbers, labels = drawn(B, 1), np.array([1.5, np.nan, -2.0, np.nan], np.float32)
    gradient, (total, weight, extra) = of_given(regression(), numbers, labels=labels)
    known = np.array([0, 2])
    np.testing.assert_allclose(total, ((numbers[known, 0] - labels[known]) ** 2).sum(), rtol=1e-5)
    assert (float(weight), extra) == (2.0, {})
    wanted = np.where(np.isnan(labels), 0, 2 * (numbers[:, 0] - np.nan_to_num(labels)))
    np.testing.assert_allclose(gradient[:, 0], wanted, rtol=1e-5)


ALLOWED = np.array([[1, 0, 0, 1, 1, 1, 1, 0]] * 3 + [[0] * T], bool)


def test_b36_spans_are_half_of_each_end_among_what_is_allowed():
    found, labels = 2 * drawn(B, T, 2), np.array([[4, 6], [0, 0], [-1, -1], [-1, -1]], np.int32)
    found[1, 0] = 9  # "not here" is right
    found[:, 7] = 99  # forbidden
    gradient, (total, weight, extra) = of_given(
        question_answering(), found, labels=labels, allowed=ALLOWED
    )
    may = np.flatnonzero(ALLOWED[0])
    wanted = 0.0
    for b in (0, 1):
        for end in (0, 1):
            wanted += nats(found[b, may, end], may.tolist().index(labels[b, end])) / 2
    np.testing.assert_allclose(total, wanted, rtol=1e-5)
    assert weight == 2
    right = sum(
        all(may[found[b, may, end].argmax()] == labels[b, end] for end in (0, 1)) for b in (0, 1)
    )
    assert extra == {"accuracy": right}
    assert right >= 1
    assert not gradient[2:].any()
    assert not gradient[~ALLOWED].any()
    assert gradient[:2][ALLOWED[:2]].all()


def test_a_span_is_right_only_if_both_its_ends_are():
    found = np.zeros((B, T, 2), np.float32)
    found[:, 4, 0] = found[:, 6, 1] = 5.0
    labels = np.array([[4, 6], [4, 5], [3, 6], [-1, -1]], np.int32)
    extra = of_given(question_answering(), found, labels=labels, allowed=ALLOWED)[1][2]
    assert extra == {"accuracy": 1.0}


def test_what_is_not_allowed_never_wins():
    raw = np.where(ALLOWED[..., None], -50.0, 50.0).astype(np.float32) + drawn(B, T, 2)
    batch = rows_of() | {"allowed": ALLOWED}
    found = np.asarray(span_scores(Given(jnp.asarray(raw)), batch))
    assert found.shape == (B, 2, T)
    best = found.argmax(-1)
    assert ALLOWED[np.arange(3)[:, None], best[:3]].all()
    np.testing.assert_array_equal(found[0, 1, ALLOWED[0]], raw[0, ALLOWED[0], 1])
    assert (found[~np.repeat(ALLOWED[:, None], 2, 1)] == -1e30).all()


def test_every_sum_of_an_encoder_objective_has_the_weight_of_its_loss():
    sums = compiled(nnx.merge(*parts()), masked_lm(accuracy=True))(rows_of(), None)
    assert set(sums) == {"loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    assert len({float(weight) for _, weight in sums.values()}) == 1


def test_sums_of_pairs_are_named_after_the_sentence_objective():
    model, batch = nnx.merge(*parts()), rows_of()
    of = lambda kind: compiled(model, masked_lm(accuracy=True, sentence_objective=kind))(
        batch, None
    )
    nsp, sop, none = of("nsp"), of("sop"), of("none")
    assert {name.replace("sop", "nsp"): value for name, value in sop.items()} == nsp
    assert set(none) == {"loss", "mlm_loss", "mlm_accuracy"}
    assert none["loss"][0] == none["mlm_loss"][0]
