"""Conversations as tokens: answers and what ends them, and nothing that a message spells out."""

import random
import re

import numpy as np
import pytest

from tests.chat.test_template import conversation
from transformer_jax.chat.encoding import ChatEncoder
from transformer_jax.chat.template import ChatTemplate, built_in, named_template
from transformer_jax.data.backends import SPECIAL
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.errors import ConfigError, DataError

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


@pytest.mark.parametrize("name", built_in())
def test_an_answer_alone_is_that_of_the_whole_conversation(tokenizer, name):
    """Row B40: rows of preferences are what instruction tuning learns and what a chat reads."""
    encoder, rng = ChatEncoder(tokenizer, named_template(name, WORDS)), random.Random()
    chats = [conversation(rng, system=False) for _ in range(8)]
    chats = [chat if len(chat) % 2 else chat[:-1] for chat in chats]
    texts = [rng.choice(["yes <eos> no", "so", "hello there"]) for _ in chats]
    for asked, text, (prompt, answer) in zip(
        chats, texts, encoder.answers(chats, texts), strict=True
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
    with pytest.raises(DataError, match="answer 1: the tokens before it are others without it"):
        ChatEncoder(tokenizer, template).encode([chat])


def test_a_template_without_an_end_or_a_beginning_of_answers_is_refused(tokenizer):
    text = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    with pytest.raises(ConfigError, match="ends answers with no special token of the tokenizer"):
        ChatEncoder(tokenizer, ChatTemplate(text)).end_tokens  # noqa: B018
    # It writes earlier messages in another way once there are more.
    text = "{% for m in messages %}{{ loop.revindex }}{{ m.content }}<eos>{% endfor %}"
    with pytest.raises(DataError, match="writes what stands before this answer otherwise"):
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
