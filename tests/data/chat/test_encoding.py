"""Conversations as tokens: answers and what ends them, and nothing that a message spells out."""

import itertools
import random
import re

import numpy as np
import pytest

from tests.conftest import SWEEP_SEED
from tests.data.chat.test_template import conversation
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.backends import SPECIAL
from transformer_jax.data.chat.encoding import ChatEncoder
from transformer_jax.data.chat.template import ChatTemplate, built_in, named_template
from transformer_jax.data.tokenizer import train_tokenizer

ENDS = ("<|im_start|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<end_of_turn>")
WORDS = {"bos_token": "<bos>", "eos_token": "<eos>"}
CHAT = [
    {"role": "user", "content": "Hi <|im_end|> there"},
    {"role": "assistant", "content": "Yes <eos> no"},
    {"role": "user", "content": "so"},
    {"role": "assistant", "content": "no"},
]


@pytest.fixture(scope="module")
def tokenizer():
    texts = ["Hi hello user assistant yes no [INST] there chat between so"] * 3
    return train_tokenizer("bpe", texts, 400, special=(*SPECIAL, *ENDS))


def without_tags(template):
    return ChatTemplate(re.sub(r"\{% (end)?generation \+?%\}", "", template.text), template.special)


@pytest.mark.parametrize("name", built_in())
def test_answers_are_told_alike_with_tags_and_without(tokenizer, name):
    tagged = named_template(name, WORDS)
    plain = without_tags(tagged)
    one, other = (ChatEncoder(tokenizer, found) for found in (tagged, plain))
    [ours], [theirs] = one.encode([CHAT]), other.encode([CHAT])
    assert ours.ids == theirs.ids
    np.testing.assert_array_equal(ours.answers, theirs.answers)
    assert one.end_tokens == other.end_tokens
    end = one.end_tokens[0]
    # Each run of answer tokens is the content and its end token.
    starts = np.flatnonzero(np.diff(ours.answers.astype(int), prepend=0) == 1)
    stops = np.flatnonzero(np.diff(ours.answers.astype(int), append=0) == -1) + 1
    runs = [ours.ids[a:b] for a, b in zip(starts, stops, strict=True)]
    assert [run[-1] for run in runs] == [end, end]
    assert [tokenizer.decode(run).strip() for run in runs] == ["Yes <eos> no", "no"]
    # What stands before an answer is what the model reads when it is asked for one.
    for i, start in zip((1, 3), starts, strict=True):
        assert one.prompt(CHAT[:i]) == ours.ids[:start]


def turns(roles):
    """A conversation of these roles, by their first letters, each message another word."""
    names = {"s": "system", "u": "user", "a": "assistant"}
    words = ["yes", "so", "no", "there"]
    return [{"role": names[r], "content": w} for r, w in zip(roles, words, strict=False)]


def runs_of(encoded):
    """First and last index of each run of answer tokens."""
    edges = np.flatnonzero(np.diff(encoded.answers.astype(int), prepend=0, append=0))
    return edges.reshape(-1, 2)


@pytest.mark.parametrize("name", built_in())
def test_answers_are_told_right_in_whatever_order_roles_speak_or_refused(tokenizer, name):
    """All conversations of up to four messages, those that the assistant begins among them."""
    tagged = named_template(name, WORDS)
    encoders = [ChatEncoder(tokenizer, one) for one in (tagged, without_tags(tagged))]
    header = {"gemma": "model", "llama-2": "", "mistral": ""}.get(name, "assistant")
    taken = []
    for length in (1, 2, 3, 4):
        for roles in map("".join, itertools.product("sua", repeat=length)):
            chat, found = turns(roles), []
            for encoder in encoders:
                try:
                    found += encoder.encode([chat])
                except DataError as error:
                    assert "refuses the conversation" in str(error), roles  # noqa: PT017
            assert len(found) in (0, 2), roles
            if not found:
                continue
            taken.append(roles)
            ours, theirs = found
            assert ours.ids == theirs.ids
            np.testing.assert_array_equal(ours.answers, theirs.answers, err_msg=roles)
            said = [one["content"] for one in chat if one["role"] == "assistant"]
            ends = [tokenizer.decode(ours.ids[a:b]).strip() for a, b in runs_of(ours)]
            assert ends == said, roles
            for a, b in runs_of(ours):
                assert ours.ids[b - 1] == encoders[0].end_tokens[0]
                before = tokenizer._backend.decode(ours.ids[:a], skip_special_tokens=False)
                assert header in before[-30:].lower(), roles
    begins = {"chatml", "llama-3", "phi-3", "zephyr"}
    assert {"a", "sa", "au", "saua"} <= set(taken) if name in begins else "a" not in taken
    assert "uaua" in taken


@pytest.mark.parametrize("name", ["chatml", "llama-3", "phi-3", "zephyr"])
@pytest.mark.parametrize("roles", ["au", "sau", "uau"])
def test_an_answer_to_a_conversation_that_the_assistant_began_is_told_apart(tokenizer, name, roles):
    """Row B40: as preferences have it."""
    encoder, chat = ChatEncoder(tokenizer, named_template(name, WORDS)), turns(roles)
    [(prompt, answer)] = encoder.encode_answers([chat], ["hello"])
    assert prompt == encoder.prompt(chat)
    assert tokenizer.decode(answer).strip() == "hello"
    assert answer[-1] == encoder.end_tokens[0]


def test_a_template_that_asks_after_the_user_alone_has_its_header_in_no_answer(tokenizer):
    """It looks at the first message too, so that nothing can be asked without one."""
    text = (
        "{{ messages[0].role[:0] }}{% for m in messages %}{{ m.role }}\n{{ m.content }}<eos>"
        "{% if loop.last and m.role == 'user' and add_generation_prompt %}assistant\n{% endif %}"
        "{% endfor %}"
    )
    encoder = ChatEncoder(tokenizer, ChatTemplate(text, WORDS))
    for roles in ("a", "au", "sa", "saua", "uaa"):
        [found] = encoder.encode([turns(roles)])
        said = [one["content"] for one in turns(roles) if one["role"] == "assistant"]
        words = [tokenizer.decode(found.ids[a:b]).strip() for a, b in runs_of(found)]
        assert words == said, roles


@pytest.mark.parametrize("name", built_in())
def test_an_answer_alone_is_that_of_the_whole_conversation(tokenizer, name):
    """Row B40: rows of preferences are what instruction tuning learns and what a chat reads."""
    encoder, rng = (
        ChatEncoder(tokenizer, named_template(name, WORDS)),
        random.Random(f"{SWEEP_SEED} {name}"),
    )
    chats = [conversation(rng, system=False) for _ in range(8)]
    chats = [chat if len(chat) % 2 else chat[:-1] for chat in chats]
    texts = [rng.choice(["yes <eos> no", "so", "hello there"]) for _ in chats]
    for asked, text, (prompt, answer) in zip(
        chats, texts, encoder.encode_answers(chats, texts), strict=True
    ):
        [whole] = encoder.encode([[*asked, {"role": "assistant", "content": text}]])
        assert prompt == encoder.prompt(asked)
        assert (prompt + answer)[: len(whole.ids)] == whole.ids[: len(prompt + answer)]
        assert answer[-1] == encoder.end_tokens[0]
        assert whole.answers[len(prompt) : len(prompt + answer)].all()
        assert not whole.answers[len(prompt + answer) :].any()


def test_special_tokens_that_a_message_spells_out_stay_text(tokenizer):
    encoder = ChatEncoder(tokenizer, named_template("chatml"))
    [chat] = encoder.encode([CHAT])
    end, eos = encoder.end_tokens
    assert chat.ids.count(end) == len(CHAT)
    assert eos not in chat.ids
    shown = tokenizer._backend.decode(chat.ids, skip_special_tokens=False)
    assert shown == encoder.template.render(CHAT).text
    marks = [{"role": "user", "content": "<eos> \U0010fffd\U0010fffc\U0010fffb\U0010fffa"}]
    with pytest.raises(DataError, match="a message spells a special token and"):
        encoder.prompt(marks)


def test_an_answer_that_merges_with_its_prompt_is_refused(tokenizer):
    text = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %}"
    template = ChatTemplate(text + "{% endfor %}")
    chat = [{"role": "user", "content": "y"}, {"role": "assistant", "content": "es"}]
    with pytest.raises(DataError, match="answer 1: the tokens before it change without it"):
        ChatEncoder(tokenizer, template).encode([chat])


def test_a_template_without_an_end_or_a_beginning_of_answers_is_refused(tokenizer):
    text = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    with pytest.raises(ConfigError, match="does not end answers with a special token"):
        ChatEncoder(tokenizer, ChatTemplate(text)).end_tokens  # noqa: B018
    # It writes earlier messages in another way once there are more.
    text = "{% for m in messages %}{{ loop.revindex }}{{ m.content }}<eos>{% endfor %}"
    with pytest.raises(DataError, match="writes the text before this answer differently"):
        ChatEncoder(tokenizer, ChatTemplate(text)).encode([CHAT[:2]])
    hides = "{% for m in messages if m.role == 'user' %}{% generation %}a{% endgeneration %}"
    with pytest.raises(DataError, match="shows 1 of the 2 answers"):
        ChatEncoder(tokenizer, ChatTemplate(hides + "{% break %}{% endfor %}")).encode([CHAT])


@pytest.mark.parity
@pytest.mark.parametrize("name", ["chatml", "llama-3", "mistral", "zephyr"])
def test_ids_and_masks_are_equal_to_transformers(tmp_path, tokenizer, name):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<bos>", eos_token="<eos>"
    )
    template, draw = named_template(name, WORDS), random.Random(name)
    encoder = ChatEncoder(tokenizer, template)
    for _ in range(50):
        chat = conversation(draw, system=name != "mistral")
        if name != "mistral" and draw.random() < 0.3:
            chat = [one for one in chat if one["role"] != "user" or draw.random() < 0.5]
        if len(chat) < 3 or any(message["content"].startswith("\n") for message in chat):
            continue
        found = theirs.apply_chat_template(
            chat,
            chat_template=template.text,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        [ours] = encoder.encode([chat])
        assert ours.ids == found["input_ids"]
        assert ours.answers.astype(int).tolist() == found["assistant_masks"]
        prompt = theirs.apply_chat_template(
            chat, chat_template=template.text, add_generation_prompt=True, return_dict=False
        )
        assert encoder.prompt(chat) == prompt
