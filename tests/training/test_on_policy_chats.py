"""PPO and GRPO on conversations: what is sampled, rewarded and resumed, row B40."""

import dataclasses
import json
import random
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.conftest import SWEEP_SEED
from tests.data.chat.test_encoding import ENDS, WORDS
from tests.data.chat.test_template import conversation
from tests.training.small_decoder import CONFIG
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.backends import SPECIAL
from transformer_jax.data.chat.encoding import ChatEncoder
from transformer_jax.data.chat.template import ChatTemplate, built_in, named_template
from transformer_jax.data.preferences import Preferences, PreferenceSplits
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.language import DecoderLanguageModel
from transformer_jax.decoding.options import special_tokens
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.inference.chat_session import ChatModel
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.recipes.tasks import on_policy_task
from transformer_jax.recipes.tasks.rewards import PythonReward
from transformer_jax.training import on_policy
from transformer_jax.training.on_policy import KLControl
from transformer_jax.training.preference_objectives import Policies
from transformer_jax.training.settings import LoopConfig, OnPolicy
from transformer_jax.training.trainer import Trainer

SAID = ["yes <eos> no", "so", "hello there", "between\n\nthere", "Hi <|im_end|>"]


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["Hi hello user assistant yes no [INST] there chat between so"] * 3
    return train_tokenizer("bpe", texts, 400, special=(*SPECIAL, *ENDS))


class Scripted:
    """A policy that writes given tokens, whatever it has read."""

    def __init__(self, rows, vocab_size):
        self.rows, self.config = jnp.asarray(rows), SimpleNamespace(vocab_size=vocab_size)

    def init_cache(self, inputs, rows, size, *, beams=1):
        return jnp.int32(0)

    def prefill(self, tokens, cache, starts=None):
        return None, cache

    def step(self, tokens, cache):
        return 1e4 * jax.nn.one_hot(self.rows[:, cache], self.config.vocab_size), cache + 1

    def reorder(self, cache, parents):
        return cache

    def take(self, cache, rows):
        return cache


def asked_of(chats):
    count = len(chats)
    return Preferences("asked", "prompts", chats, [()] * count, [], list(range(1, count + 1)))


@pytest.mark.slow
@pytest.mark.parametrize("name", built_in())
def test_a_sampled_answer_is_what_the_template_writes_of_its_text(tokenizer, name):
    """Prompt and answer are the tokens of the conversation, and the reward is given its texts."""
    rng = random.Random(f"{SWEEP_SEED} {name}")
    encoder = ChatEncoder(tokenizer, named_template(name, WORDS))
    chats = [conversation(rng, system=False) for _ in range(8)]
    chats = [chat if len(chat) % 2 else chat[:-1] for chat in chats]
    said = [rng.choice(SAID) for _ in chats]
    answers = [answer for _, answer in encoder.encode_answers(chats, said)]
    # The last one ends with EOS, as a policy may also of a template with an end of its own.
    answers[-1][-1] = tokenizer.eos
    length, junk = max(map(len, answers)) + 2, tokenizer.encode("so")[0]
    script = [[*answer, *[junk] * (length - len(answer))] for answer in answers]

    rows = on_policy_task.PromptRows(tokenizer.bos, len(chats), 4096, chats=encoder)
    data = rows.data(asked_of(chats), tokenizer, shuffle=False)
    batch = jax.tree.map(jnp.asarray, data.make_batch(data.plan.batch(0)))
    special = special_tokens(tokenizer, tokenizer.vocab_size, end_tokens=encoder.end_tokens)
    policy = Scripted(script, tokenizer.vocab_size)
    found = on_policy.sample(policy, batch, jax.random.key(0), special, length=length)
    assert found.finished.all()
    given = []
    rewarding = PythonReward(
        lambda *texts: given.append(texts) or 0, tokenizer, "r.py",
        on_policy_task.reward_prompts(PreferenceSplits(asked_of(chats), None)),
    )  # fmt: skip
    jax.block_until_ready(jax.jit(rewarding)(Policies(None, None), found))
    for row, (chat, text, (prompt, completion)) in enumerate(zip(chats, said, given, strict=True)):
        written = found.tokens[row, : int(found.lengths[row])].tolist()
        assert prompt == chat[-1]["content"]
        assert completion.strip() == text
        whole = [*chat, {"role": "assistant", "content": completion}]
        [wanted] = encoder.encode([whole])
        if row == len(chats) - 1:
            assert written.pop() == tokenizer.eos
        assert written == wanted.ids[: len(written)]
        assert wanted.answers[int(found.starts[row]) : len(written)].all()
        assert not wanted.answers[int(found.lengths[row]) :].any()


LETTERS = train_tokenizer("characters", ["abcdefgh"], 13, special=(*SPECIAL, "<end>"))
LAYOUT = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'assistant' %}g{{ m.content }}<end>{% else %}"
    "{{ m.content }}h{% endif %}{% endfor %}{% if add_generation_prompt %}g{% endif %}"
)
CHATS = ChatEncoder(LETTERS, LAYOUT)
SMALL = dataclasses.replace(CONFIG, vocab_size=LETTERS.vocab_size)
ROWS = on_policy_task.PromptRows(LETTERS.bos, batch_size=8, max_length=16, chats=CHATS)


def conversations(count=32):
    rng = random.Random(0)
    word = lambda: "".join(rng.choices("abcdef", k=rng.randint(1, 4)))
    roles = ("user", "assistant", "user")
    return [
        [{"role": role, "content": word()} for role in roles[rng.choice((0, 2)) :]]
        for _ in range(count)
    ]


def count_of_a(prompt, completion):
    return completion.count("a") + len(prompt) / 10


CONTROL = KLControl(0.1, 2.0)


def trainer(path, method, *, control=CONTROL, every=2, rate=5e-3, mesh=None, seed=0):
    data = PreferenceSplits(asked_of(conversations()), asked_of(conversations(8)))
    reward = PythonReward(count_of_a, LETTERS, "r.py", on_policy_task.reward_prompts(data))
    learning = on_policy_task.Learning(
        OnPolicy(method, length=6, group_size=4), reward, control, updates=2
    )
    task = on_policy_task.from_samples(data, SMALL, LETTERS, ROWS, learning)
    tx = on_policy.adaptive_kl(optax.adam(rate), control.initial)
    mesh = mesh or make_mesh(data=4, devices=jax.devices()[:4])
    loop = LoopConfig(evaluate_every=every, checkpoint_every=every)
    return Trainer(task, path, tx, mesh, seed, loop=loop)


def records(path):
    rows = map(json.loads, (path / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "kl" in row]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_a_resumed_run_on_conversations_ends_with_the_same_bits(tmp_path, method):
    trainer(tmp_path / "whole", method).fit(steps=4)
    for steps in (2, 4):
        trainer(tmp_path / "parts", method).fit(steps=steps)
    one, two = (
        json.loads((tmp_path / name / "results.json").read_text())["state_sha256"]
        for name in ("whole", "parts")
    )
    assert one == two


@pytest.mark.slow
def test_answers_and_their_rewards_do_not_depend_on_the_mesh(tmp_path):
    found = []
    for count, sizes in ((1, {"data": 1}), (4, {"data": 1, "fsdp": 2, "tensor": 2})):
        mesh = make_mesh(devices=jax.devices()[:count], **sizes)
        trainer(tmp_path / str(count), "grpo", mesh=mesh).fit(steps=2)
        rows = records(tmp_path / str(count))
        found.append([[row[key] for key in ("reward", "kl", "loss", "finished")] for row in rows])
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_the_reward_of_answers_rises_within_the_budget(tmp_path, method):
    """Answers of six tokens at most, and 2 nats of each."""
    control = KLControl(0.6, 2.0)
    trainer(tmp_path, method, control=control, every=0, rate=2e-3).fit(steps=150)
    rows = records(tmp_path)
    mean = lambda key: float(np.mean([row[key] for row in rows[-40:]]))
    assert mean("reward") > rows[0]["reward"] + 1
    assert mean("kl") < 2.0 * 1.25


@pytest.mark.slow
def test_a_sample_ends_where_a_chat_ends_and_has_its_text():
    """Any of the end tokens ends it; the text is that of a conversation with the model."""
    chat = ChatModel(DecoderLanguageModel(Decoder(SMALL, rngs=nnx.Rngs(0)), LETTERS), CHATS)
    special = special_tokens(LETTERS, LETTERS.vocab_size, end_tokens=CHATS.end_tokens)
    assert set(special.suppress_tokens) == set(chat.language.run.special.suppress_tokens)
    data = ROWS.data(asked_of(conversations()), LETTERS, shuffle=False)
    batch = jax.tree.map(jnp.asarray, data.make_batch(data.plan.batch(0)))
    policy = Decoder(SMALL, rngs=nnx.Rngs(0))
    found = on_policy.sample(policy, batch, jax.random.key(0), special, length=10, group=4)
    given, ends = [], set()
    reward = PythonReward(lambda *texts: given.append(texts) or 0, LETTERS, "r.py", ["x"] * 32)
    jax.block_until_ready(jax.jit(reward)(Policies(None, None), found))
    for row, (_, text) in enumerate(given):
        ids = found.tokens[row, : int(found.lengths[row])].tolist()
        start = int(found.starts[row])
        request = GenerationRequest("", max_new_tokens=10)
        known = LETTERS.decode(ids[:start])
        sequence = GenerationSequence(request, 0, 0, ids[:start], LETTERS, known)
        sequence.end_tokens = chat.language.end_tokens
        for token in ids[start:]:
            assert sequence.finish_reason is None
            sequence.add([token], 0.0)
        assert sequence.finish_reason == ("end" if bool(found.finished[row]) else "length")
        assert sequence.text == text
        ends |= {ids[-1]} & set(CHATS.end_tokens)
    assert ends == set(CHATS.end_tokens)


@pytest.mark.slow
def test_prompts_keep_their_numbers_in_every_part_and_group():
    train, valid = asked_of(conversations()), asked_of(conversations(5))
    texts = on_policy_task.reward_prompts(PreferenceSplits(train, valid))
    data = ROWS.data(valid, LETTERS, shuffle=False, number=len(train))
    batch = jax.tree.map(jnp.asarray, data.make_batch(data.plan.batch(0)))
    script = Scripted(np.full((24, 2), CHATS.end_tokens[0]), LETTERS.vocab_size)
    special = special_tokens(LETTERS, LETTERS.vocab_size, end_tokens=CHATS.end_tokens)
    key = jax.random.key(0)
    found = on_policy.sample(script, batch, key, special, length=2, group=3)
    for row, number in enumerate(found.numbers.tolist()):
        chat = valid.prompts[row // 3 % 5]
        assert texts[number] == chat[-1]["content"]
        assert found.tokens[row, : int(found.starts[row])].tolist() == CHATS.prompt(chat)


@pytest.mark.slow
def test_a_task_ends_answers_as_its_template_and_gives_each_prompt_to_its_reward():
    data = PreferenceSplits(asked_of(conversations()), asked_of(conversations(40)[32:]))
    given = []
    asked = PythonReward(
        lambda prompt, _: given.append(prompt) or 0, LETTERS, "r.py",
        on_policy_task.reward_prompts(data),
    )  # fmt: skip
    end = CHATS.end_tokens[0]

    def ends_before_the_last(model, samples):
        last = jnp.arange(samples.tokens.shape[1])[None] == samples.lengths[:, None] - 1
        early = samples.inside & ~last & (samples.tokens == end)
        return early.sum(1) + asked(model, samples)

    how = OnPolicy("grpo", length=6, group_size=4)
    learning = on_policy_task.Learning(how, ends_before_the_last)
    task = on_policy_task.from_samples(data, SMALL, LETTERS, ROWS, learning)
    held = task.valid["valid"]
    batch = jax.tree.map(jnp.asarray, held.make_batch(held.plan.batch(0)))
    policy = task.model(nnx.Rngs(0))
    sums = task.eval_objective(Policies(policy, policy), batch)
    assert float(sums["reward"][0]) == 0
    assert float(sums["finished"][0]) > 8
    assert given == [chat[-1]["content"] for chat in data.valid.prompts for _ in range(4)]


def test_long_conversations_lose_their_beginning_and_the_run_says_so(capsys):
    data = dataclasses.replace(ROWS, max_length=4).data(asked_of(conversations()), LETTERS)
    batch = data.make_batch(data.plan.batch(0))
    for row, start, number in zip(
        *(batch[k] for k in ("tokens", "starts", "numbers")), strict=True
    ):
        assert row[start:].tolist() == CHATS.prompt(conversations()[number])[-4:]
    assert "truncated to 4 tokens" in capsys.readouterr().err


def test_conversations_without_an_encoder_or_that_the_template_refuses_are_refused():
    bare = dataclasses.replace(ROWS, chats=None)
    with pytest.raises(ConfigError, match="asked: holds conversations"):
        bare.data(asked_of(conversations()), LETTERS)
    text = (
        LAYOUT.text + "{% if messages[0].content == 'bad' %}{{ raise_exception('no') }}{% endif %}"
    )
    rows = dataclasses.replace(ROWS, chats=ChatEncoder(LETTERS, ChatTemplate(text)))
    chats = [*conversations(2), [{"role": "user", "content": "bad"}]]
    with pytest.raises(DataError, match="asked:3: the chat template refuses the conversation: no"):
        rows.data(asked_of(chats), LETTERS)
