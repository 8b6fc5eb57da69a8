"""Rows of conversations: packed as apart, with weight on answers alone, pure in the step."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.data.chat.test_encoding import tokenizer  # noqa: F401  (a fixture)
from tests.drawing import drawn
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.chat.conversation_store import (
    ChatPlan,
    build_chats,
    chat_rows,
    split_chats,
)
from transformer_jax.data.chat.encoding import ChatEncoder
from transformer_jax.data.chat.template import named_template
from transformer_jax.data.preparation import ReadSettings
from transformer_jax.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.recipes.tasks.instruction_task import log_chats
from transformer_jax.training.objectives import language_model

T, PAD = 96, 0


def chat(number, turns):
    said = [f"yes {number} " + "no hello " * ((number + turn) % 4) for turn in range(2 * turns)]
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text.strip()} for i, text in enumerate(said)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "chats.jsonl"
    rows = [{"messages": chat(number, 1 + number % 2)} for number in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def encoder(tokenizer):  # noqa: F811
    return ChatEncoder(tokenizer, named_template("chatml"))


@pytest.fixture
def store(path, encoder):
    return build_chats(str(path), encoder, limit=T + 1)


def test_answers_without_text_are_counted_and_said(tmp_path, encoder, capsys):
    path = tmp_path / "chats.jsonl"
    rows = [[*chat(1, 2), {"role": "assistant", "content": " "}], chat(2, 1), chat(3, 1)]
    rows[1][1]["content"] = ""
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    for cache in (None, tmp_path / "cache", tmp_path / "cache"):
        store = build_chats(str(path), encoder, limit=T + 1, cache=cache)
        assert store.counts["empty"] == 2
        log_chats("chats.jsonl", store, ["a"], encoder.tokenizer, time.monotonic())
    assert capsys.readouterr().err.count(", 2 answers without text") == 3


def test_the_store_holds_conversations_as_the_encoder_writes_them(store, encoder):
    assert store.counts["conversations"] == len(store) == 20
    for number in range(20):
        [expected] = encoder.encode([chat(number, 1 + number % 2)])
        assert store[number].tolist() == expected.ids
        span = slice(store.offsets[number], store.offsets[number + 1])
        np.testing.assert_array_equal(store.answers[span], expected.answers)


def test_each_answer_token_is_a_target_once_an_epoch_after_the_token_before_it(store):
    chosen = np.arange(3, 20)
    plan = ChatPlan(store, chosen, length=T, rows=3, seed=1)
    found = []
    for step in range(plan.steps_per_epoch):
        rows = chat_rows(store, plan.batch(step), T, PAD)
        for row, column in zip(*np.nonzero(rows["weights"]), strict=True):
            segment = rows["segments"][row] == rows["segments"][row, column]
            at = int(rows["positions"][row, column])
            inputs = rows["tokens"][row][segment]
            found.append((tuple(inputs[: at + 1].tolist()), int(rows["targets"][row, column])))
    expected = []
    for i in chosen:
        ids, start = store[i].tolist(), store.offsets[i]
        expected += [
            (tuple(ids[:at]), ids[at]) for at in range(1, len(ids)) if store.answers[start + at]
        ]
    assert sorted(found) == sorted(expected)


def test_a_batch_is_a_function_of_the_step(store):
    one, other = (ChatPlan(store, range(20), length=T, rows=3, seed=4) for _ in range(2))
    last = 2 * one.steps_per_epoch - 1
    for step in (last, 0, 1):
        here, there = (chat_rows(store, plan.batch(step), T, PAD) for plan in (one, other))
        for name, array in here.items():
            np.testing.assert_array_equal(array, there[name])
    assert one.fingerprint == other.fingerprint


@pytest.fixture(scope="module")
def loss():
    config = TransformerConfig(
        vocab_size=400,
        d_model=16,
        encoder_layers=0,
        decoder_layers=2,
        positions=PositionConfig(kind="learned", max_length=T),
        attention=AttentionConfig(num_heads=2),
        feed_forward=FeedForwardConfig(d_ff=32),
    )
    graph, params = drawn(lambda: Decoder(config, rngs=nnx.Rngs(0)))

    @jax.jit
    def value_and_gradient(batch):
        objective = lambda params: language_model()(nnx.merge(graph, params), batch)["loss"]
        (total, weight), back = jax.vjp(objective, params)
        return total, weight, back((jnp.float32(1), jnp.float32(0)))[0]

    return value_and_gradient


def rows_of(store, chosen, rows):
    plan = ChatPlan(store, chosen, length=T, rows=rows, shuffle=False)
    assert plan.steps_per_epoch == 1
    return chat_rows(store, plan.batch(0), T, PAD)


@pytest.mark.slow
def test_packed_conversations_have_the_loss_and_gradient_of_each_alone(store, loss):
    total, weight, gradient = loss(rows_of(store, [0, 2, 4], 3))
    alone = [loss(rows_of(store, [i], 3)) for i in (0, 2, 4)]
    assert rows_of(store, [0, 2, 4], 3)["segments"].max() > 1
    np.testing.assert_allclose(total, sum(one[0] for one in alone), rtol=1e-5)
    assert weight == sum(one[1] for one in alone)
    summed = jax.tree.map(lambda *parts: sum(parts), *(one[2] for one in alone))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), gradient, summed
    )


@pytest.mark.slow
def test_targets_that_are_no_answers_change_nothing(store, loss):
    batch = rows_of(store, [0, 2, 4], 3)
    other = batch | {"targets": np.where(batch["weights"] > 0, batch["targets"], 7)}
    assert (other["targets"] != batch["targets"]).sum() > 20
    for one, same in zip(*(jax.tree.leaves(loss(rows)) for rows in (batch, other)), strict=True):
        np.testing.assert_array_equal(one, same)
    # And those that are do.
    changed = batch | {"targets": np.where(batch["weights"] > 0, 7, batch["targets"])}
    assert loss(changed)[0] != loss(batch)[0]


def test_a_cache_gives_the_same_store_and_follows_template_and_length(
    tmp_path, path, tokenizer, encoder, store  # noqa: F811
):  # fmt: skip
    cache = tmp_path / "store"
    for _ in range(2):
        kept = build_chats(str(path), encoder, limit=T + 1, cache=cache)
        for name in ("ids", "offsets", "answers"):
            np.testing.assert_array_equal(getattr(kept, name), getattr(store, name))
        assert kept.counts == store.counts
    assert isinstance(kept.ids, np.memmap)
    other = ChatEncoder(tokenizer, named_template("zephyr", {"eos_token": "<eos>"}))
    assert len(build_chats(str(path), other, limit=999, cache=cache).ids) != (len(kept.ids))


def test_what_is_longer_than_a_row_is_truncated_skipped_or_refused(
    path, tokenizer, encoder, store  # noqa: F811
):  # fmt: skip
    limit = int(np.median(store.lengths))
    build = lambda how: build_chats(str(path), encoder, limit=limit, too_long=how)
    longer = store.lengths > limit
    cut, left = build("truncate"), build("skip")
    assert cut.counts["truncated"] == longer.sum()
    assert left.counts["skipped"] == longer.sum()
    for i in range(20):
        assert cut[i].tolist() == store[i][-limit:].tolist()
    assert left.lengths.tolist() == store.lengths[~longer].tolist()
    first = int(np.flatnonzero(longer)[0]) + 1
    with pytest.raises(DataError, match=rf"chats\.jsonl:{first}: the conversation has .* tokens"):
        build("error")


def test_a_mistake_deep_in_a_file_is_named(path, encoder):
    with path.open("a") as file:
        marks = "<eos> \U0010fffd\U0010fffc\U0010fffb\U0010fffa"
        bad = [{"role": "user", "content": marks}, {"role": "assistant", "content": "b"}]
        file.write(json.dumps({"messages": bad}) + "\n")
    with pytest.raises(DataError, match=r"chats\.jsonl:21: a message spells a special"):
        build_chats(str(path), encoder, limit=T)
    path.write_text("\n")
    with pytest.raises(DataError, match="no conversations, it is empty"):
        build_chats(str(path), encoder, limit=T)


@pytest.mark.parametrize("policy", ["refuse", "skip"])
def test_conversations_that_the_template_all_refuses_are_listed(path, encoder, policy):
    marks = "<eos> \U0010fffd\U0010fffc\U0010fffb\U0010fffa"
    bad = [{"role": "user", "content": marks}, {"role": "assistant", "content": "b"}]
    path.write_text(2 * (json.dumps({"messages": bad}) + "\n"))
    with pytest.raises(DataError, match=r"2 bad rows(.|\n)*:1: a message(.|\n)*:2: a message"):
        build_chats(str(path), encoder, limit=T, read=ReadSettings(bad_rows=policy))


def test_held_out_conversations_do_not_depend_on_the_order_of_lines(path, encoder):
    def held():
        store = build_chats(str(path), encoder, limit=T)
        train, valid = split_chats(store, 0.2)
        assert sorted([*train, *valid]) == list(range(20))
        assert 1 <= len(valid) <= 6
        return {store[i].tobytes() for i in valid}

    before = held()
    path.write_text("".join(sorted(path.read_text().splitlines(keepends=True), reverse=True)))
    assert held() == before
    path.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match="all conversations are equal"):
        split_chats(build_chats(str(path), encoder, limit=T), 0.2)
