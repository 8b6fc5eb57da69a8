"""Chat templates: those of Hugging Face, rendered as it renders them, and nothing beyond."""

import json
import random
import time

import pytest

from transformer_jax.chat.template import (
    ChatTemplate,
    built_in,
    find_template,
    named_template,
)
from transformer_jax.errors import ConfigError, DataError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Ok"},
]

# Each would compute for hours, take all memory, or reach what it may not.
HOSTILE = {
    "loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "skips": "{% for i in range(9999) %}{% for j in range(9999) if 0 %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "product": "{{ 'a' * 10**9 }}",
    "filter": "{{ 'a' | center(10**9) }}",
    "method": "{{ 'a'.ljust(10**9) }}",
    "doubled": "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
    "{% endfor %}",
    "added": "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}"
    "{% endfor %}",
    "block": "{% set n = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set n.x %}{{ n.x }}{{ n.x }}{% endset %}{% endfor %}",
    "nested, printed": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "nested, as JSON": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
    "nested, compared": "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
    "joined": "{{ range(9999) | map('string') | join('b' * 9999) }}",
    "replaced": "{{ 'ab' | replace('', 'x' * 90000) }}",
    "indented": "{{ ('a\n' * 40000) | indent(9000) }}",
    "indented JSON": "{{ ([0] * 40000) | tojson(indent=9000) }}",
    "translated": "{{ 'b'.translate({98: 'c' * 9000}) }}",
    "sliced": "{% set a = range(9000) | list %}{% for i in range(9000) %}{% set b = a[1:] %}"
    "{% endfor %}",
    "compared": "{% set a = range(9000) | list %}{% for i in range(9000) %}{{ a == a[0:] }}"
    "{% endfor %}",
    "written": "{% for i in range(9999) %}" + "x" * 50_000 + "{% endfor %}",
    "printf": "{{ '%999999999d' % 1 }}",
    "format": "{{ '{:999999999}'.format(1) }}",
    "computed width": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "power": "{{ 9 ** 9 ** 9 }}",
    "squares": "{% set n = namespace(x=7) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}"
    "{% endfor %}",
    "range": "{{ range(10**9) | list }}",
    "deep": "{{ " + "(" * 3000 + " }}",
    "class": "{{ ''.__class__ }}",
    "class by filter": "{{ messages | attr('__class__') }}",
    "class by format": "{{ '{0.__class__}'.format(1) }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "context": "{{ self._TemplateReference__context }}",
    "namespace": "{{ namespace(__class__=1) }}",
    "append": "{{ messages.append(1) }}",
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_template_that_never_ends_or_escapes_is_refused_in_a_second(name):
    began = time.thread_time()
    with pytest.raises(ConfigError, match=r"is refused: it |too deeply nested"):
        ChatTemplate(HOSTILE[name]).render(CHAT)
    assert time.thread_time() - began < 1


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
