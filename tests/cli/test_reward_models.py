"""Reward models as functions of texts and of conversations: what training computes, row B40."""

import dataclasses
import json
import random
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.cli.conftest import TEXT
from tests.conftest import SWEEP_SEED
from tests.data.chat.test_encoding import ENDS, WORDS
from tests.data.chat.test_template import conversation
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.backends import SPECIAL
from transformer_jax.data.chat.encoding import ChatEncoder
from transformer_jax.data.chat.template import built_in, named_template
from transformer_jax.data.plan import BatchPlan
from transformer_jax.data.preference_examples import encode_preferences
from transformer_jax.data.preferences import Preferences
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.inference.loading import load
from transformer_jax.models.config import PositionConfig, TransformerConfig
from transformer_jax.models.heads import DecoderSequenceClassifier
from transformer_jax.runs.checkpoint import Checkpointer
from transformer_jax.runs.run_directory import RunDirectory
from transformer_jax.training.preference_objectives import rewards
from transformer_jax.training.state import TrainState, split

MOST = 40  # tokens of a row: some conversations are longer
ASKED = [{"role": "user", "content": "a bad cab"}]
GOOD = [*ASKED, {"role": "assistant", "content": "a dad"}]


def make_run(folder, tokens="characters"):
    """A reward model of nothing in particular, as ``align reward`` leaves it."""
    letters = [chr(code) for code in range(32, 127)]
    texts = [TEXT, "".join(letters), "héllo wörld – €"]
    tokenizer = train_tokenizer(tokens, texts, 300, special=(*SPECIAL, *ENDS))
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        encoder_layers=0,
        decoder_layers=1,
        positions=PositionConfig(kind="rope", max_length=64),
    )
    config = dataclasses.replace(
        config,
        attention=dataclasses.replace(config.attention, num_heads=2),
        feed_forward=dataclasses.replace(config.feed_forward, d_ff=32),
    )
    run = RunDirectory.create(folder)
    tokenizer.save(run.tokenizer)
    align = {"method": "reward", "max_length": MOST}
    data = {"read": {"lowercase": True}}
    fields = {"model": dataclasses.asdict(config), "first": "newline", "align": align, "data": data}
    run.write(run.config, fields)
    params = split(DecoderSequenceClassifier(config, labels=1, rngs=nnx.Rngs(1)))[1]
    checkpointer = Checkpointer(run.checkpoints)
    checkpointer.save(7, TrainState(jnp.int32(7), params, {}))
    checkpointer.wait()
    checkpointer.close()
    return run.path


@pytest.fixture
def reward_run(shared, tmp_path):
    """A run on conversations: a folder whose template tests may change."""
    folder = tmp_path / "reward"
    shutil.copytree(shared("reward_model", make_run), folder)
    return folder


def with_template(run, name):
    (run / "chat_template.jinja").write_text(named_template(name).text)
    return run


def of_training(predictor, prompts, sides, encode=None, first=0):
    """The rewards that the objective computes of pairs."""
    data = Preferences("pairs", "pairs", prompts, sides, [], list(range(1, len(prompts) + 1)))
    store = encode_preferences(data, predictor.tokenizer, first, MOST, encode)
    items = BatchPlan(np.arange(len(prompts)), int(store.lengths.max()), 0)
    batch = store.batch(items, predictor.tokenizer.pad)
    return np.asarray(rewards(predictor.model, batch))


def printed(run_command, run, *texts, text=""):
    code, lines, err = run_command("classify", run, *texts, text=text)
    assert code == 0, err
    return [float(line) for line in lines if line], err


@pytest.mark.slow
@pytest.mark.parametrize("name", built_in())
def test_the_reward_of_a_conversation_is_that_of_training(reward_run, run_command, name):
    predictor = load(with_template(reward_run, name))
    encoder = ChatEncoder(predictor.tokenizer, named_template(name, WORDS))
    rng = random.Random(f"{SWEEP_SEED} {name}")
    lower = lambda chat: [{**one, "content": one["content"].lower()} for one in chat]
    chats = [lower(conversation(rng, system=False)) for _ in range(6)]
    chats = [chat if len(chat) % 2 else chat[:-1] for chat in chats]
    chats.insert(0, [{"role": "user", "content": "a cab " * MOST}])
    sides = [("yes <eos> no", rng.choice(["So", "hello\n\nthere"]).lower()) for _ in chats]
    wanted = of_training(predictor, chats, sides, encoder.encode_answers)
    answer = lambda text: {"role": "assistant", "content": text.upper()}
    whole = [
        [*chat, answer(text)] for chat, pair in zip(chats, sides, strict=True) for text in pair
    ]
    with pytest.warns(UserWarning, match="longer than the model reads"):
        found, first = predictor(whole), predictor(whole[0])
    np.testing.assert_allclose(found, wanted.ravel(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(first, wanted[0, :1], rtol=1e-4, atol=1e-5)
    lines = "\n".join(json.dumps({"messages": chat, "other": 1}) for chat in whole)
    shown, err = printed(run_command, reward_run, text=lines)
    np.testing.assert_allclose(shown, wanted.ravel(), atol=1e-4)
    assert f"truncated to {MOST} tokens (the beginning of the prompt first), as in training" in err


@pytest.mark.slow
def test_the_reward_of_a_text_is_that_of_training(reward_run, run_command):
    """Its start token, its end and what a text that is too long loses, too."""
    predictor = load(reward_run)
    tokenizer = predictor.tokenizer
    [[newline]] = tokenizer.encode_batch(["\n"])
    prompts, sides = ["a cab", "bad " * 12], [(" a dad", " fed"), (" a dad", "a cafe")]
    wanted = of_training(predictor, prompts, sides, first=newline).ravel()
    texts = [prompt + text for prompt, pair in zip(prompts, sides, strict=True) for text in pair]
    with pytest.warns(UserWarning, match="2 texts were longer"):
        found = predictor(texts)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert predictor(texts[0]) == pytest.approx(wanted[:1], abs=1e-5)
    shown, _ = printed(run_command, reward_run, *texts)
    np.testing.assert_allclose(shown, wanted, atol=1e-4)
    assert predictor([]).shape == (0,)


@pytest.mark.slow
def test_the_reward_of_a_prompt_with_its_completion_is_that_of_training(tmp_path, run_command):
    """Training tokenizes them apart: in one text a token may have letters of both."""
    run = make_run(tmp_path / "reward", "bpe")
    predictor = load(run)
    tokenizer = predictor.tokenizer
    [[newline]] = tokenizer.encode_batch(["\n"])
    prompts, sides = ["a ca", "bad " * 40], [("b fed a dad", "fe"), ("a dad", "a cafe")]
    wanted = of_training(predictor, prompts, sides, first=newline).ravel()
    rows = [
        {"prompt": prompt.upper(), "completion": text}
        for prompt, pair in zip(prompts, sides, strict=True)
        for text in pair
    ]
    with pytest.warns(UserWarning, match="2 texts were longer"):
        found = predictor(rows)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert predictor(rows[0]) == pytest.approx(wanted[:1], abs=1e-5)
    whole = predictor(rows[0]["prompt"].lower() + rows[0]["completion"])
    assert abs(whole - wanted[:1]) > 1e-4
    shown, err = printed(run_command, run, text="\n".join(map(json.dumps, rows)))
    np.testing.assert_allclose(shown, wanted, atol=1e-4)
    assert f"2 texts truncated to {MOST} tokens (the beginning of the prompt first), as in" in err
    for row, said in (
        ({"prompt": "a cab"}, "no field 'completion': give a text, "),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "no field 'completion'"),
        ({"prompt": "a", "completion": 3}, "completion is int; text is needed"),
        ({"prompt": "\ud800", "completion": "b"}, "prompt holds half a character"),
        ({"prompt": "a", "completion": "\0"}, "completion holds NUL"),
        ({"prompt": "a", "completion": ""}, "the completion is empty"),
    ):
        with pytest.raises(DataError, match=f"text 2: {said}"):
            predictor([rows[0], row])
        code, _, err = run_command("classify", run, text=f"a cab\n{json.dumps(row)}\n")
        assert (code, f"error: <stdin>:2: {said}" in err) == (3, True)
    with pytest.raises(DataError, match="text 1: messages is str; a list is needed"):
        predictor({"messages": "a cab"})
    with_template(run, "chatml")
    with pytest.raises(DataError, match="text 1: a prompt with a completion, but this reward mod"):
        load(run)(rows[0])


@pytest.mark.slow
def test_completions_of_one_long_prompt_are_rewarded_after_the_same_tokens(reward_run, run_command):
    predictor = load(reward_run)
    [[newline]] = predictor.tokenizer.encode_batch(["\n"])
    prompt, pair = "bad cab " * MOST, ("a", "a dad fed a cab")
    wanted = of_training(predictor, [prompt], [pair], first=newline).ravel()
    rows = [{"prompt": prompt, "completion": text} for text in pair]
    other = {"prompt": "a cab", "completion": "a dad"}
    with pytest.warns(UserWarning, match="2 texts were longer"):
        found = predictor([rows[0], other, rows[1]])
    np.testing.assert_allclose(found[[0, 2]], wanted, rtol=1e-4, atol=1e-5)
    with pytest.warns(UserWarning, match="1 text was longer"):
        alone = predictor(rows[0])
    assert abs(alone - wanted[:1]) > 1e-4  # it keeps more of the prompt
    shown, _ = printed(run_command, reward_run, text="\n".join(map(json.dumps, rows)))
    np.testing.assert_allclose(shown, wanted, atol=1e-4)


@pytest.mark.slow
def test_texts_and_conversations_may_stand_side_by_side(reward_run, run_command):
    predictor = load(with_template(reward_run, "chatml"))
    found = predictor([GOOD, "a cab", GOOD])
    assert found[0] == pytest.approx(found[2], abs=1e-6)
    assert found[1] == pytest.approx(predictor("a cab")[0], abs=1e-6)
    shown, _ = printed(run_command, reward_run, "a cab", json.dumps({"messages": GOOD}))
    np.testing.assert_allclose(shown, found[1:], atol=1e-4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": [', "text 1: not JSON: "),
        ('{"message": []}', "text 1: no field 'messages': a conversation is "),
        ('{"messages": "a cab"}', "text 1: messages is str; a list is needed"),
        (
            {"messages": ASKED},
            "text 1: the last message is from the user; it must be from",
        ),
        ({"messages": GOOD[1:]}, "text 1: the answer has nothing before it"),
        ({"messages": [*ASKED, {**GOOD[1], "content": ""}]}, "text 1: the last message is empty"),
        ({"messages": [*ASKED, *GOOD]}, "text 1: the chat template gemma refuses the conversation"),
    ],
)
def test_what_is_no_answered_conversation_is_refused_in_one_line(
    reward_run, run_command, line, said
):
    run = with_template(reward_run, "gemma")
    line = line if isinstance(line, str) else json.dumps(line)
    said = said.replace("the chat template gemma", f"{run / 'chat_template.jinja'}")
    code, _, err = run_command("classify", run, line)
    assert code == 3
    assert err.strip().splitlines()[-1].startswith(f"error: {said}")
    code, _, err = run_command("classify", run, text=f"a cab\n{line}\n")
    assert code == 3
    assert "error: <stdin>:2: " in err


def test_conversations_are_refused_by_a_reward_model_of_texts(reward_run, run_command):
    code, _, err = run_command("classify", reward_run, json.dumps({"messages": GOOD}))
    assert code == 3
    assert f"error: text 1: a conversation, and {reward_run} was trained on texts" in err
    shown, _ = printed(run_command, reward_run, '{"a": 1}', "{a cab")  # texts with a brace
    assert len(shown) == 2
    predictor = load(reward_run)
    with pytest.raises(ConfigError, match="was trained on texts, and reads no conversations"):
        predictor(GOOD)
    with pytest.raises(DataError, match="leave text_pairs out"):
        predictor("a", "b")


def test_a_conversation_that_cannot_be_rewarded_is_named_by_its_place(reward_run):
    predictor = load(with_template(reward_run, "chatml"))
    with pytest.raises(DataError, match="text 2: the last message is from the user"):
        predictor([GOOD, ASKED])
