"""Chat templates: those of Hugging Face, rendered as it renders them, and nothing beyond."""

import json
import os
import random

import pytest

from tests.data.chat.hostile import HOSTILE, REFUSED
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.chat.template import ChatTemplate, built_in, find_template, named_template

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Ok"},
]


def processor_time():
    """Seconds of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.mark.quick(*REFUSED, "loops", "product", "printf by name")
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_template_that_never_ends_or_escapes_is_refused_in_two_seconds(name):
    began = processor_time()
    with pytest.raises(ConfigError, match=r"is refused: it "):
        ChatTemplate(HOSTILE[name]).render(CHAT)
    assert processor_time() - began < 2
    assert ChatTemplate("{{ messages | length }}").render(CHAT).text == "3"


def test_what_a_template_may_compute_grows_with_the_conversation_alone():
    with pytest.raises(ConfigError, match=r"it has 100,006 characters, and a layout of .* 100,000"):
        ChatTemplate("{# " + "x" * 100_000 + " #}").render(CHAT)
    special = {"eos_token": "x" * 10_001}
    with pytest.raises(ConfigError, match=r"special tokens have 10,001 characters, .* most 10,000"):
        ChatTemplate(HOSTILE["macros"], special).render(CHAT)


def test_a_long_conversation_is_within_the_budget():
    words = "some words of a message " * 40
    chat = [{"role": ("user", "assistant")[i % 2], "content": words} for i in range(2000)]
    for name in built_in():
        assert words.strip() in named_template(name, SPECIAL).render(chat).text


@pytest.mark.parametrize("name", built_in())
def test_the_spans_of_answers_are_their_content_and_end_token(name):
    found = named_template(name, SPECIAL).render(CHAT)
    [(start, end)] = found.answers
    ends = {"chatml": "<|im_end|>", "llama-3": "<|eot_id|>", "gemma": "<end_of_turn>"}
    last = ends.get(name, "<|end|>" if name == "phi-3" else "</s>")
    assert (
        found.text[start:end].split() == ["Yes?", last]
        if name == "llama-2"
        else (found.text[start:end].strip() == "Yes?" + last)
    )
    # What stands before an answer is what it is asked for with.
    asked = named_template(name, SPECIAL).render(CHAT[:1], add_generation_prompt=True).text
    assert found.text[:start].rstrip("\n") == asked.rstrip("\n")


def test_a_template_refuses_a_conversation_in_one_line():
    system = [{"role": "system", "content": "Be brief."}, *CHAT]
    with pytest.raises(DataError, match="gemma refuses the conversation: System role not"):
        named_template("gemma").render(system)
    with pytest.raises(ConfigError, match=r"t\.jinja:1: "):
        ChatTemplate("{% for %}", name="t.jinja").render(CHAT)
    with pytest.raises(DataError, match="fails on the conversation: 'nothing' is undefined"):
        ChatTemplate("{{ nothing.at_all }}").render(CHAT)


def test_templates_are_found_where_hugging_face_keeps_them(tmp_path):
    assert find_template(tmp_path) is None
    fields = {"chat_template": "a{{ eos_token }}", "eos_token": {"content": "<e>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields))
    assert find_template(tmp_path).render(CHAT).text == "a<e>"
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(fields | {"chat_template": several}))
    assert find_template(tmp_path).text == "d"
    (tmp_path / "chat_template.jinja").write_text("b{{ eos_token }}")
    assert find_template(tmp_path).render(CHAT).text == "b<e>"
    assert named_template(str(tmp_path)).render(CHAT).text == "b<e>"
    assert named_template(str(tmp_path / "chat_template.jinja"), SPECIAL).render(CHAT).text == (
        "b</s>"
    )
    with pytest.raises(ConfigError, match="no such file, and the built-in ones are chatml, gemma"):
        named_template("chatlm")
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer_config\.json: not JSON"):
        find_template(tmp_path)


WORDS = ["Hello", "<b>&'\"", "  spaced  ", "\n", "naïve 你好", "{{ x }}", "[INST]", "a" * 50, ""]


def conversation(draw, system):
    said = lambda: " ".join(draw.choices(WORDS, k=draw.randint(1, 5)))
    chat = [{"role": "system", "content": said()}] if system else []
    for turn in range(draw.randint(1, 6)):
        chat.append({"role": ("user", "assistant")[turn % 2], "content": said()})
    return chat


@pytest.mark.parity
@pytest.mark.parametrize("name", built_in())
def test_equal_to_transformers(name):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    template, draw = named_template(name, SPECIAL), random.Random(name)
    for number in range(200):
        chat = conversation(draw, system=name not in ("gemma", "mistral") and number % 3 == 0)
        prompt = number % 2 == 0
        [theirs], [spans] = utils.render_jinja_template(
            [chat],
            chat_template=template.text,
            return_assistant_tokens_mask=True,
            add_generation_prompt=prompt,
            **SPECIAL,
        )
        ours = template.render(chat, add_generation_prompt=prompt)
        assert ours.text == theirs
        assert list(ours.answers) == spans


# What the templates of newer families use.
FEATURES = {
    "tools": "{% if tools %}{% for tool in tools %}{{ tool | tojson(indent=4) }}\n{% endfor %}"
    "{% endif %}{{ messages | length }}",
    "namespace": "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}"
    "{% if ns.last < 0 and m.role == 'user' %}{% set ns.last = messages | length - 1 - loop.index0 "
    "%}{% endif %}{% endfor %}{{ ns.last }}{%- for m in messages if m.content is string %}"
    "{% if loop.last %}{% break %}{% endif %} {{ m.content.split('e')[-1].lstrip('\\n') }}"
    "{% endfor %}",
    "macro": "{% macro show(m, end='!') -%}{{ '%s: %s' % (m.role, m.content) ~ end }}{%- endmacro "
    "%}{% for m in messages %}{{ show(m) }}{{ show(m, end='') | upper }}\n   {% endfor %}",
    "filters": "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') "
    "| join(' | ') }}{{ (messages | first)['content'] | replace('l', 'LL') | indent(2) }}"
    "{{ messages | rejectattr('role', '==', 'user') | list | length }}{{ 'x' * 3 + 'y' }}",
    "items": "{% for k, v in messages[0].items() %}{{ k }}={{ v | tojson }};{% endfor %}"
    "{{ {'a': [1, 2.5, none, true]} | tojson }}{{ dict(a=1).a }}{{ undefined_thing }}"
    "{{ 'yes' if messages[0].tool_calls is defined else 'no' }}",
}


@pytest.mark.parity
@pytest.mark.parametrize("name", sorted(FEATURES))
def test_features_of_published_templates_are_equal_to_transformers(name):
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    draw = random.Random(name)
    tools = [{"name": "f", "description": "<é>", "parameters": {"x": {"type": "number"}}}]
    for _ in range(40):
        chat = conversation(draw, system=True)
        [theirs], _ = utils.render_jinja_template(
            [chat], tools=tools, chat_template=FEATURES[name], **SPECIAL
        )
        assert ChatTemplate(FEATURES[name], SPECIAL).render(chat, tools=tools).text == theirs


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer_config.json", b"[" * 200_000, "not JSON"),
        ("tokenizer_config.json", b" " * (1 << 20) + b"{}", "1,048,578 bytes, but at most 1"),
    ],
)
def test_a_file_that_is_no_template_is_refused_at_once(tmp_path, monkeypatch, name, content, says):
    monkeypatch.setattr("transformer_jax.data.chat.token_names._LARGEST_FILE", 1 << 20)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name}: .*{says}"):
        named_template(str(tmp_path))
