"""PPO and GRPO: samples, batches, control of KL, resumption, row B40."""

import dataclasses
import functools
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.drawing import compiled
from tests.training.small_decoder import CONFIG, TOKENIZER
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.preferences import Preferences, PreferenceSplits
from transformer_jax.decoding.options import special_tokens
from transformer_jax.models.heads import DecoderSequenceClassifier, ValuedDecoder
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.recipes.tasks import on_policy_task, preference_task, rewards
from transformer_jax.runs.checkpoint_reader import load_params
from transformer_jax.training import on_policy
from transformer_jax.training.on_policy import KLControl
from transformer_jax.training.preference_objectives import (
    FrozenModel,
    Policies,
    beside_reference,
    token_log_probs,
)
from transformer_jax.training.settings import LoopConfig, OnPolicy
from transformer_jax.training.state import split
from transformer_jax.training.trainer import Trainer

SPECIAL = special_tokens(TOKENIZER, TOKENIZER.vocab_size)
A = TOKENIZER.encode_batch(["a"])[0][0]


ROWS = on_policy_task.PromptRows(TOKENIZER.bos, batch_size=8, max_length=16)


def prompts(count=32):
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 6))) for _ in range(count)]
    return Preferences("prompts", "prompts", words, [()] * count, [], list(range(1, count + 1)))


def batch(count=4):
    data = ROWS.data(prompts(), TOKENIZER)
    return jax.tree.map(lambda x: jnp.asarray(x[:count]), data.make_batch(data.plan.batch(0)))


def count_of_a(model, samples):
    """A reward that has an obvious way of being hacked."""
    del model
    return (samples.inside & (samples.tokens == A)).sum(1).astype(jnp.float32)


@functools.cache
def policies(kind=Decoder):
    made = [kind(CONFIG, rngs=nnx.Rngs(seed)) for seed in range(2)]
    return Policies(*made)


def draw_samples(given=None, group=1):
    return _samples(group)(batch() if given is None else given, jax.random.key(0))


@functools.cache
def _samples(group):
    how = {"length": 6, "group": group}
    sample = lambda model, given, key: on_policy.sample(model, given, key, SPECIAL, **how)
    return compiled(policies().policy, sample)


def collect(model, how):
    """A batch of samples and its sums, with the reward that counts one letter."""
    own = {"how": how, "reward": count_of_a, "special": SPECIAL}
    program = compiled(model, functools.partial(on_policy.collect, **own))
    return program(batch(), jax.random.key(1), jnp.float32(0.3))


@pytest.mark.slow
def test_samples_begin_with_their_prompts_and_end_with_padding():
    given, found = batch(), draw_samples()
    for row in range(4):
        prompt = given["tokens"][row, int(given["starts"][row]) :]
        start, end = int(found.starts[row]), int(found.lengths[row])
        assert found.tokens[row, :start].tolist() == prompt.tolist()
        assert (found.tokens[row, end:] == TOKENIZER.pad).all()
        assert bool(found.finished[row]) == (int(found.tokens[row, end - 1]) == TOKENIZER.eos)
        assert found.inside[row].tolist() == [start <= t < end for t in range(14)]
        assert not np.isin(found.tokens[row, start:end], SPECIAL.suppress_tokens).any()


@pytest.mark.slow
def test_completions_of_a_prompt_lie_side_by_side_and_differ():
    found = draw_samples(group=4)
    rows = found.tokens.reshape(4, 4, -1)
    for prompt in range(4):
        start = int(found.starts[4 * prompt])
        assert (rows[prompt, :, :start] == rows[prompt, :1, :start]).all()
    assert len({tuple(row) for row in found.tokens.tolist()}) > 8


@pytest.mark.slow
def test_more_padding_before_the_prompts_changes_no_sample():
    given = batch()
    more = {
        "tokens": jnp.pad(given["tokens"], ((0, 0), (3, 0)), constant_values=TOKENIZER.pad),
        "starts": given["starts"] + 3,
    }
    one, two = draw_samples(), draw_samples(given=more)
    width = one.tokens.shape[1]
    assert one.tokens.tolist() == two.tokens[:, :width].tolist()
    assert one.lengths.tolist() == two.lengths.tolist()


@pytest.mark.parametrize("method", ["grpo", "ppo"])
@pytest.mark.slow
def test_the_first_update_is_on_the_policy_that_wrote_the_samples(method):
    """Ratios are 1: the loss is what the formulas leave of it."""
    how = OnPolicy(method, length=6, group_size=4)
    model = policies(ValuedDecoder if method == "ppo" else Decoder)
    made, sums = collect(model, how)
    mask = np.asarray(made["mask"])
    never = SPECIAL.suppress_tokens
    objective = (on_policy.grpo if method == "grpo" else on_policy.ppo)(suppressed=never)
    found = objective(model, made)
    assert float(found["clipped"][0]) == 0
    scored = functools.partial(token_log_probs, tokens=made["tokens"], suppressed=never)
    log_probs = np.asarray(scored(model.policy), np.float64)
    away = log_probs - np.asarray(scored(model.reference))
    assert float(sums["kl"][0]) == pytest.approx(away[mask].sum(), rel=1e-4)
    advantages = np.asarray(made["advantages"])
    if method == "grpo":
        k3 = np.where(mask, np.exp(-away) - 1 + away, 0)
        rows = ((0.3 * k3 - advantages) * mask).sum(1) / mask.sum(1)
        assert float(found["loss"][0]) == pytest.approx(rows.sum(), rel=1e-3, abs=1e-4)
        per_row = advantages.max(1) + advantages.min(1)  # one number a row, or 0
        np.testing.assert_allclose(per_row.reshape(4, 4).sum(1), 0, atol=1e-4)
    else:
        errors = 0.5 * (np.asarray(made["values"]) - np.asarray(made["returns"])) ** 2
        wanted = (-advantages + 0.5 * errors)[mask].sum()
        assert float(found["loss"][0]) == pytest.approx(wanted, rel=1e-3, abs=1e-3)
        assert advantages[mask].mean() == pytest.approx(0, abs=1e-5)


@pytest.mark.slow
def test_probability_on_tokens_that_are_never_sampled_escapes_no_penalty():
    """A policy that moves all others to them still writes as before, and its KL is 0."""
    model, never = policies().policy, np.array(SPECIAL.suppress_tokens)
    logits = model(jnp.asarray(draw_samples().tokens))
    likely = jnp.asarray(np.isin(np.arange(TOKENIZER.vocab_size), never))[None, None]
    moved = jnp.where(likely, logits + 30.0, logits)
    renormalized = lambda x: jax.nn.log_softmax(jnp.where(likely, -1e9, x))
    np.testing.assert_allclose(renormalized(moved), renormalized(logits), atol=1e-5)
    tokens = draw_samples().tokens
    found = token_log_probs(model, tokens, suppressed=SPECIAL.suppress_tokens)
    wanted = jnp.take_along_axis(renormalized(logits)[:, :-1], tokens[:, 1:, None], 2)[..., 0]
    np.testing.assert_allclose(found[:, 1:], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_validation_counts_each_prompt_once():
    rows = dataclasses.replace(ROWS, batch_size=4)
    data = rows.data(prompts(6), TOKENIZER, shuffle=False)
    how = {"how": OnPolicy("grpo", length=6, group_size=2), "special": SPECIAL}
    of_prompt = lambda model, samples: samples.starts.astype(jnp.float32)
    total = np.zeros(2)
    for step in range(data.plan.steps_per_epoch):
        given = jax.tree.map(jnp.asarray, data.make_batch(data.plan.batch(step)))
        measured = on_policy.evaluation(
            functools.partial(on_policy.collect, reward=of_prompt, **how)
        )
        total += np.array(measured(policies(), given)["reward"])
    lengths = [1 + len(text) for text in prompts(6).prompts]
    assert total.tolist() == [2.0 * sum(lengths), 12.0]


@pytest.mark.slow
def test_returns_of_ppo_are_the_reward_at_the_end_less_the_penalties_before():
    how = OnPolicy("ppo", length=6, group_size=1, gae_decay=1.0)
    made, _ = collect(policies(ValuedDecoder), how)
    for row, mask in enumerate(np.asarray(made["mask"])):
        inside = np.flatnonzero(mask)
        earned = float((made["tokens"][row][mask] == A).sum())
        penalty = 0.3 * np.asarray(made["old"] - made["reference"])[row]
        for t in inside:
            wanted = earned - penalty[t : inside[-1] + 1].sum()
            assert float(made["returns"][row, t]) == pytest.approx(wanted, abs=1e-4)


def test_the_weight_of_the_penalty_follows_the_budget_and_nothing_else():
    control = KLControl(0.1, target=2.0)
    weight = jnp.float32(0.1)
    assert control.next(weight, jnp.float32(4.0)) > weight
    assert control.next(weight, jnp.float32(1.0)) < weight
    assert control.next(weight, jnp.float32(2.0)) == weight
    assert control.next(weight, jnp.float32(jnp.nan)) == weight
    assert KLControl(0.1).next(weight, jnp.float32(9.0)) == weight


@pytest.mark.parametrize(
    ("field", "value"),
    [("length", 0), ("group_size", 1), ("clip", 0.0), ("discount", 1.5), ("gae_decay", -0.1)],
)
def test_numbers_out_of_range_are_refused(field, value):
    with pytest.raises(ConfigError, match=rf"align\.{field} is"):
        OnPolicy("grpo", **{field: value})
    with pytest.raises(ConfigError, match=r"align\.updates is 0"):
        on_policy.on_policy(lambda *parts: parts, updates=0)


CONTROL = KLControl(0.1, 2.0)


def trainer(path, method, reward=count_of_a, *, control=CONTROL, seed=0, **how):
    rate = how.pop("rate", 5e-3)
    loop = LoopConfig(evaluate_every=how.pop("every", 2), checkpoint_every=how.pop("saved", 2))
    learning = on_policy_task.Learning(
        OnPolicy(method, length=6, group_size=4), reward, control, updates=2, **how
    )
    data = PreferenceSplits(prompts(), prompts().select(range(8)))
    task = on_policy_task.from_samples(data, CONFIG, TOKENIZER, ROWS, learning)
    tx = on_policy.adaptive_kl(optax.adam(rate), control.initial)
    return Trainer(task, path, tx, make_mesh(data=4, devices=jax.devices()[:4]), seed, loop=loop)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_a_resumed_run_ends_with_the_bits_of_one_that_was_not_interrupted(tmp_path, method):
    trainer(tmp_path / "whole", method).fit(steps=4)
    trainer(tmp_path / "parts", method).fit(steps=2)
    trainer(tmp_path / "parts", method).fit(steps=4)
    digests = [
        json.loads((tmp_path / name / "results.json").read_text())["state_sha256"]
        for name in ("whole", "parts")
    ]
    assert digests[0] == digests[1]
    params = load_params(tmp_path / "parts", "last").params
    assert set(params) == {"embedding", "decoder"} | ({"value"} if method == "ppo" else set())


@pytest.mark.slow
def test_samples_rewards_and_losses_do_not_depend_on_the_mesh(tmp_path):
    found = []
    for i, (count, sizes) in enumerate(
        [(1, {"data": 1}), (4, {"data": 1, "fsdp": 2, "tensor": 2})]
    ):
        reward = rewards.PythonReward(lambda p, c: c.count("a") / 10, TOKENIZER, "r.py")
        run = trainer(tmp_path / str(i), "grpo", reward)
        run.on = make_mesh(devices=jax.devices()[:count], **sizes)
        run.fit(steps=2)
        rows = map(json.loads, (tmp_path / str(i) / "metrics.jsonl").read_text().splitlines())
        found.append(
            [[row[key] for key in ("reward", "kl", "loss")] for row in rows if "kl" in row]
        )
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_python_reward_gets_the_texts_of_each_row_on_any_mesh(tmp_path):
    seen = []

    def reward(prompt, completion):
        seen.append((prompt, completion))
        return completion.count("a") / 10

    found = rewards.PythonReward(reward, TOKENIZER, "r.py")
    one = trainer(tmp_path / "one", "grpo", found)
    result = one.fit(steps=1)
    assert result.step == 1
    assert {prompt for prompt, _ in seen} <= set(prompts().prompts)
    assert len(seen) >= 32
    samples = draw_samples()
    values = jax.jit(found)(policies(), samples)
    for row in range(4):
        ids = samples.tokens[row].tolist()
        end = int(samples.lengths[row])
        text = TOKENIZER.decode(ids[int(samples.starts[row]) : end])
        assert float(values[row]) == pytest.approx(text.count("a") / 10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def reward(p, c):\n    return 1 / 0", "raised ZeroDivisionError: division by zero"),
        ("def reward(p, c):\n    return float('nan')", "returned nan: a finite number is needed"),
        ("def reward(p, c):\n    exit(0)", "raised SystemExit: 0"),
        ("def reward(p, c):\n    return 1e39", "returned 1e+39: a finite number is needed"),
        (
            "def reward(p, c):\n    return 9**9999",
            "returned an integer that is too large: a finite number is needed",
        ),
        ("def reward(p, c):\n    return 'good'", "returned good: a finite number is needed"),
    ],
)
def test_a_reward_that_fails_says_so_in_one_line(tmp_path, text, said):
    path = tmp_path / "reward.py"
    path.write_text(text + "\n")
    found = rewards.PythonReward(rewards.load_reward(str(path)), TOKENIZER, str(path))
    with pytest.raises(DataError) as error:
        found.value("one", "two\nlines")
    assert str(error.value) == found.failure == f"{path}: reward('one', 'two\\nlines') {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file"),
        ("x = 1", "no function reward"),
        ("import missing_x", "No module"),
        ("raise SystemExit", "SystemExit"),
    ],
)
def test_a_file_without_a_reward_is_refused(tmp_path, text, said):
    path = tmp_path / "reward.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        rewards.load_reward(str(path))


@pytest.mark.slow
def test_a_reward_model_stands_frozen_beside_the_policies():
    config = preference_task.reward_config(CONFIG)
    make = lambda rngs: DecoderSequenceClassifier(config, labels=1, rngs=rngs)
    grader = make(nnx.Rngs(7))
    frozen = FrozenModel(make, jax.device_get(split(grader)[1]), jax.devices()[0])
    part = beside_reference(reward=frozen)
    graph, params = split(Decoder(CONFIG, rngs=nnx.Rngs(0)))
    trainable, still = part.split(params, nnx.Rngs(0))
    still["reward"] = jax.tree.map(
        lambda param: jnp.asarray(param[...]), still["reward"], is_leaf=is_param
    )
    model = part.merge(graph, trainable, still, None)
    samples = draw_samples()
    found = rewards.model_reward(model, samples)
    np.testing.assert_allclose(found, grader(samples.tokens, samples.lengths)[:, 0], rtol=1e-5)


def is_param(node):
    return isinstance(node, nnx.Variable)


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "ppo"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_known_reward_rises_within_the_budget_and_without_it_is_hacked(tmp_path, method, seed):
    """Completions of six tokens; the budget is 2 nats of each. The hack is to write only a."""
    how = {"seed": seed, "every": 0, "saved": 0, "rate": 2e-3}
    measured = {}
    for name, control in (("kept", KLControl(0.6, 2.0)), ("free", KLControl(0.0))):
        trainer(tmp_path / name, method, control=control, **how).fit(steps=150)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        records = [row for row in map(json.loads, lines) if "reward" in row]
        mean = lambda key, rows: float(np.mean([row[key] for row in rows]))
        measured[name] = {
            "before": records[0]["reward"],
            "reward": mean("reward", records[-40:]),
            "kl": mean("kl", records[-40:]),
        }
    kept, free = measured["kept"], measured["free"]
    assert kept["reward"] > kept["before"] + 1
    assert kept["kl"] < 2.0 * 1.25
    assert free["reward"] > 5.5
    assert free["kl"] > 4 * kept["kl"]
