"""Objectives of preferences, and tasks of them, row B40."""

import dataclasses
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.training.small_decoder import CONFIG, TOKENIZER
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.plan import Batching
from transformer_jax.data.preferences import Preferences, PreferenceSplits
from transformer_jax.models.partition import EVERYTHING
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.recipes.tasks import preference_task
from transformer_jax.training import preference_objectives as objectives
from transformer_jax.training.settings import LoopConfig, adamw
from transformer_jax.training.state import TrainState, split
from transformer_jax.training.step import add_sums, make_step, means
from transformer_jax.training.trainer import Trainer

ROWS = preference_task.CompletionRows(TOKENIZER.bos, 16, Batching(256, num_buckets=2))


def planted(count, seed, kind="pairs"):
    """Words that are worth the more, the more ``a`` they have and the fewer ``b``."""
    draw = random.Random(seed)
    word = lambda: "".join(draw.choice("abcdefgh") for _ in range(draw.randint(2, 6)))
    worth = lambda text: text.count("a") - text.count("b")
    prompts, completions, labels = [], [], []
    while len(prompts) < count:
        one, two = sorted((word(), word()), key=worth, reverse=True)
        if kind == "pairs" and worth(one) > worth(two):
            prompts.append(word())
            completions.append((one, two))
        if kind == "labels" and worth(one):
            prompts.append(word())
            completions.append((one,))
            labels.append(worth(one) > 0)
    return Preferences("planted", kind, prompts, completions, labels, list(range(count)))


def encoded(count=60, kind="pairs"):
    parts = PreferenceSplits(planted(count, 0, kind), planted(count, 1, kind))
    return preference_task.encode_splits(parts, TOKENIZER, ROWS)


def model(seed=0):
    return Decoder(CONFIG, rngs=nnx.Rngs(seed))


def batch_of(store, step=0):
    data = ROWS.data(store, TOKENIZER.pad)
    return jax.tree.map(jnp.asarray, data.make_batch(data.plan.batch(step)))


def references(start, found):
    _, params = split(start)
    make = lambda rngs: Decoder(CONFIG, rngs=rngs)
    arguments = ROWS, TOKENIZER.pad, make_mesh(data=1, devices=jax.devices()[:1])
    return {
        name: preference_task.reference_log_probs(make, params, store, *arguments)
        for name, store in found.parts().items()
    }


@pytest.mark.slow
def test_the_log_probability_of_a_completion_is_that_of_its_tokens_one_by_one():
    found, policy = encoded(8), model()
    batch = batch_of(found.train)
    total, count = objectives.completion_log_probs(policy, batch)
    data = ROWS.data(found.train, TOKENIZER.pad)
    one = jax.jit(lambda ids: jax.nn.log_softmax(policy(ids))[0])
    for row, example in enumerate(data.plan.batch(0).indices):
        for side in range(2):
            if example < 0:
                assert (total[row, side], count[row, side]) == (0, 0)
                continue
            ids = found.train.store[2 * example + side]
            padded = np.zeros(
                (1, batch["tokens"].shape[2]), np.int32
            )  # padding behind it is invisible
            padded[0, : len(ids)] = ids
            log_probs = np.asarray(one(jnp.asarray(padded)))
            start = found.train.starts[2 * example + side]
            wanted = sum(float(log_probs[t - 1, ids[t]]) for t in range(start, len(ids)))
            assert total[row, side] == pytest.approx(wanted, abs=1e-4)
            assert count[row, side] == len(ids) - start


@pytest.mark.slow
def test_logits_computed_a_few_positions_at_a_time_give_the_same():
    batch = batch_of(encoded(20).train)

    def both(chunk):
        compute = dataclasses.replace(CONFIG.compute, logits_chunk=chunk)
        config = dataclasses.replace(CONFIG, compute=compute)
        graph, params = split(Decoder(config, rngs=nnx.Rngs(0)))
        total = lambda p: objectives.completion_log_probs(nnx.merge(graph, p), batch)[0].sum()
        found = jax.jit(jax.value_and_grad(total)).lower(params).compile()
        return found(params), found.as_text().count(" while(")

    (whole, once), (parts, several) = both(None), both(16)
    assert several > once, "the program of parts has a loop"
    for one, two in zip(*map(jax.tree.leaves, (whole, parts)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpo", "ipo", "kto"])
def test_a_precomputed_reference_and_a_frozen_one_give_equal_losses_and_gradients(method):
    found = encoded(kind="labels" if method == "kto" else "pairs")
    start, policy = model(0), model(1)
    graph, params = split(policy)
    _, reference = split(start)
    plain, known = found.train, found.with_reference(references(start, found)).train
    objective = objectives.preference(method)
    part = objectives.beside_reference()

    def frozen(p):
        pair = part.merge(graph, p, {"policy": {}, "reference": reference}, None)
        return means(objective(pair, batch_of(plain)))["loss"]

    def precomputed(p):
        return means(objective(nnx.merge(graph, p), batch_of(known)))["loss"]

    one, two = (jax.jit(jax.value_and_grad(f))(params) for f in (frozen, precomputed))
    assert abs(float(one[0]) - float(two[0])) < 1e-6 * max(1, abs(float(one[0])))
    for a, b in zip(*map(jax.tree.leaves, (one[1], two[1])), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.slow
def test_without_a_reference_the_objective_says_what_it_needs():
    with pytest.raises(ConfigError, match="needs a reference"):
        objectives.preference("dpo")(model(), batch_of(encoded(8).train))
    for how in ({"beta": 0.0}, {"label_smoothing": 0.5}, {"margin": -1.0}):
        with pytest.raises(ConfigError, match=r"align\.beta"):
            objectives.preference("dpo", **how)


@pytest.mark.slow
def test_the_policy_begins_as_its_reference_and_the_reference_stays(tmp_path):
    found = encoded(40)
    task = preference_task.preference(found, CONFIG, TOKENIZER, ROWS)
    objective, part = objectives.preference("dpo"), objectives.beside_reference(EVERYTHING)
    graph, params = split(model())
    trainable, frozen = part.split(params, nnx.Rngs(0))
    step = make_step(objective, optax.adam(1e-2), lambda p, f, key: part.merge(graph, p, f, key))
    state = TrainState.create(trainable, optax.adam(1e-2))
    state, metrics = jax.jit(step)(state, frozen, batch_of(found.train))
    assert float(metrics["loss"]) == pytest.approx(np.log(2), abs=1e-6)
    assert task.partition.merge is not EVERYTHING.merge
    state, metrics = jax.jit(step)(state, frozen, batch_of(found.train))
    assert float(metrics["loss"]) < np.log(2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpo", "ipo", "simpo"])
def test_sums_do_not_depend_on_how_examples_are_batched(method):
    found = encoded(30)
    known, policy = found.with_reference(references(model(0), found)).train, model(1)
    objective, (graph, params) = objectives.preference(method), nnx.split(policy)
    sums_of = jax.jit(lambda params, batch: objective(nnx.merge(graph, params), batch))

    def total(batching):
        rows = dataclasses.replace(ROWS, batching=batching)
        data = rows.data(known, TOKENIZER.pad)
        plan = data.plan
        batches = (data.make_batch(plan.batch(i)) for i in range(plan.steps_per_epoch))
        return add_sums(sums_of(params, batch) for batch in batches)

    one, two = total(Batching(256, num_buckets=2)), total(Batching(1024, num_buckets=1))
    for name, (value, weight) in one.items():
        assert weight == two[name][1] == 30
        assert value == pytest.approx(two[name][0], rel=1e-4)


def test_kto_refuses_micro_batches_for_its_reference_point_is_that_of_a_batch():
    objective = objectives.preference("kto")
    with pytest.raises(ConfigError, match="compares all rows"):
        make_step(objective, optax.adam(1e-2), lambda *parts: None, accumulation=2)


def test_the_tokens_of_preferences_are_told_as_a_mean(capsys):
    preference_task.encode_splits(PreferenceSplits(planted(18, 0), None), TOKENIZER, ROWS)
    assert re.search(r": 18 pairs of \d+ tokens on average,", capsys.readouterr().err.strip())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpo", "ipo", "kto", "simpo", "reward"])
def test_a_planted_preference_is_recovered(tmp_path, method):
    kind = "labels" if method == "kto" else "pairs"
    parts = PreferenceSplits(planted(1500, 0, kind), planted(200, 1, kind))
    found = preference_task.encode_splits(parts, TOKENIZER, ROWS)
    if method == "reward":
        config = preference_task.reward_config(CONFIG)
        task = preference_task.reward_model(found, config, TOKENIZER, ROWS)
    else:
        task = preference_task.preference(found, CONFIG, TOKENIZER, ROWS, method=method)
    loop = LoopConfig(
        evaluate_every=150, checkpoint_every=300, best_checkpoint_metric="valid_accuracy"
    )
    result = Trainer(task, tmp_path / "run", adamw(3e-3), loop=loop).fit(steps=300)
    assert result.best.value > (0.85 if method == "kto" else 0.95)
