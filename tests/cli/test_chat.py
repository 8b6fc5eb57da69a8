"""``chat``, and conversations in ``generate`` and in Python: the same answers by each."""

import json
import shutil

import pytest

from tests.cli.conftest import language_run
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.chat.template import named_template
from transformer_jax.data.tokenizer import SPECIAL
from transformer_jax.inference.loading import load

ENDS = ("<|im_start|>", "<|im_end|>")
GREEDY = {"temperature": 0, "max_new_tokens": 12}
FLAGS = ("--temperature", 0, "--max-new-tokens", 12)
SAID = ["a cab", "bad dad"]


@pytest.fixture(scope="module")
def chat_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "chat"
    run = language_run(folder, "bytes", "rope", "bos", context=192, special=(*SPECIAL, *ENDS))
    fields = {"chat_template": named_template("chatml").text, "eos_token": "<eos>"}
    (run / "tokenizer_config.json").write_text(json.dumps(fields))
    return run


@pytest.fixture(scope="module")
def answers(chat_run):
    """Greedy answers to what is said, one after the other."""
    model, messages = load(chat_run), []
    for text in SAID:
        messages.append({"role": "user", "content": text})
        found = model.chat(messages, **GREEDY)
        messages.append({"role": "assistant", "content": str(found)})
    return messages


@pytest.mark.slow
def test_each_line_is_answered(chat_run, answers, run_command, tmp_path):
    saved = tmp_path / "chat.jsonl"
    text = "".join(f"{line}\n" for line in (*SAID, f"/save {saved}", "/quit", "fed"))
    code, lines, err = run_command("chat", chat_run, *FLAGS, text=text)
    assert code == 0, err
    assert json.loads(saved.read_text())["messages"] == answers
    shown = [answer["content"].lstrip() for answer in answers[1::2]]
    assert "\n".join(lines) == "".join(f"{one}\n" for one in shown)
    cut = "note: the answer is truncated: it has 12 tokens, the limit of --max-new-tokens"
    assert err.count("note: the answer is truncated") == err.count(cut) == 2
    assert f"wrote {saved}: 4 messages" in err
    saved.write_text(saved.read_text().rstrip())
    run_command("chat", chat_run, *FLAGS, text=f"{SAID[0]}\n/save {saved}\n")
    rows = [json.loads(line)["messages"] for line in saved.read_text().splitlines()]
    assert rows == [answers, answers[:2]]  # nothing is lost


@pytest.mark.slow
def test_a_full_context_is_told_from_the_limit_of_tokens(chat_run, run_command):
    flags = ("--temperature", 0, "--max-new-tokens", 500)
    code, _, err = run_command("chat", chat_run, *flags, text=f"{'a cab ' * 20}\n")
    assert code == 0, err
    assert "note: the answer is truncated: the context of 192 tokens is full: /reset starts" in err
    assert "--max-new-tokens" not in err


@pytest.mark.slow
def test_commands_change_the_conversation(chat_run, answers, run_command):
    text = "fed\n/reset\na cab\n/system be a cab\na cab\n/system\na cab\n/help\n"
    code, lines, err = run_command("chat", chat_run, *FLAGS, text=text)
    assert code == 0, err
    model = load(chat_run)
    said = [{"role": "user", "content": "a cab"}]
    system = model.chat([{"role": "system", "content": "be a cab"}, *said], **GREEDY)
    first = answers[1]["content"]
    expected = "\n".join(one.lstrip() for one in (first, system, first))
    assert "\n".join(lines).endswith(f"\n{expected}\n")
    assert "/save FILE " in err
    code, _, _ = run_command("chat", chat_run, "--system", "be a cab", *FLAGS, text="a cab\n")
    assert code == 0


@pytest.mark.slow
def test_two_slashes_are_a_message_with_one(chat_run, run_command):
    _, one, _ = run_command("chat", chat_run, *FLAGS, text="//a cab\n")
    found = load(chat_run).chat([{"role": "user", "content": "/a cab"}], **GREEDY)
    assert "\n".join(one) == found.lstrip() + "\n"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("/sav x\n", 3, "/sav: unknown command: there are /reset, /system, /save, "),
        ("/save\n", 3, "/save needs a file: /save chat.jsonl"),
        ("/save x\n", 3, "/save x: the conversation is empty"),
        ("/reset it\n", 3, "/reset takes no argument, found 'it'"),
        ("a" * 400 + "\n", 3, "the message has 4"),
        (b"caf\xe9\n", 3, "<stdin>:1: not UTF-8"),
        ("a\n/save /no/such/folder/x\n", 2, "/save /no/such/folder/x: cannot be written"),
    ],
)
def test_mistakes_are_one_line(chat_run, run_command, text, code, message):
    found, _, err = run_command("chat", chat_run, *FLAGS, text=text)
    assert found == code
    assert f"error: {message}" in err


def test_a_model_without_a_chat_template_is_refused(decoder_run, ngram_run, run_command):
    code, _, err = run_command("chat", decoder_run, text="a\n")
    assert code == 2
    assert "has no chat template: name one with --template (chatml, gemma" in err
    assert err.count("\n") == 1
    with pytest.raises(ConfigError, match="has no chat template"):
        load(decoder_run).chat([{"role": "user", "content": "a"}])
    code, _, err = run_command("chat", decoder_run, "--template", "llama-3", text="a\n")
    assert code == 2
    assert "llama-3 does not end answers with a special token of the tokenizer" in err
    code, _, err = run_command("chat", ngram_run, text="a\n")
    assert code == 2
    assert "the run of an n-gram model, which this command does not support" in err
    with pytest.raises(
        ConfigError, match="n-gram models and CTranslate2 cannot answer conversations"
    ):
        load(ngram_run).chat([{"role": "user", "content": "a"}])


@pytest.mark.slow
def test_a_named_template_is_used(chat_run, run_command, tmp_path):
    plain = shutil.copytree(chat_run, tmp_path / "plain")
    (plain / "tokenizer_config.json").unlink()
    code, lines, err = run_command("chat", plain, "--template", "zephyr", *FLAGS, text="a cab\n")
    assert code == 0, err
    (plain / "chat_template.jinja").write_text(named_template("zephyr").text)
    assert run_command("chat", plain, *FLAGS, text="a cab\n")[1] == lines


@pytest.mark.slow
def test_requests_hold_conversations(chat_run, answers, run_command, tmp_path):
    rows = [{"messages": answers[:1]}, {"messages": answers[:3]}]
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, lines, err = run_command("generate", chat_run, "--requests", path, "--json", *FLAGS)
    assert code == 0, err
    found = [json.loads(line) for line in lines[:-1]]
    assert found[0]["messages"] == answers[:1]
    assert found[0]["texts"][0]["text"] == answers[1]["content"]
    assert found[1]["texts"][0]["text"] == answers[3]["content"]
    path.write_text(json.dumps({"messages": answers[:2]}) + "\n")
    code, _, err = run_command("generate", chat_run, "--requests", path)
    assert code == 3
    assert "requests.jsonl:1: the last message is from the assistant" in err
    path.write_text(json.dumps({"messages": answers[:1], "num_beams": 2}) + "\n")
    code, _, err = run_command("generate", chat_run, "--requests", path)
    assert code == 3
    assert "requests.jsonl:1: num_beams is 2: an answer to messages is sampled or greedy" in err
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "a cab"}]))
    code, _, err = run_command("generate", chat_run, "--requests", path)
    assert code == 2
    assert "some lines have a prompt, some have messages" in err


def test_mistakes_of_conversations_in_python(chat_run):
    model = load(chat_run)
    said = [{"role": "user", "content": "a"}]
    for messages, message in (
        ([], "the conversation has no messages"),
        ([{"role": "me", "content": "a"}], "message 1: role 'me'"),
        ([*said, {"role": "assistant", "content": "b"}], "the last message is from the assistant"),
    ):
        with pytest.raises(ConfigError, match=message):
            model.chat(messages)
    for setting in ("num_beams", "num_return_sequences"):
        with pytest.raises(
            ConfigError, match=f"{setting}: an answer is one text, sampled or greedy"
        ):
            model.chat(said, **{setting: 2})
    with pytest.raises(DataError, match=r"the message has .* tokens"):
        model.chat([{"role": "user", "content": "a" * 500}])
