"""Conversations of JSON lines, and one line about each mistake in them."""

import json

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.data.conversations import read_conversations

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}


def write(tmp_path, *rows):
    path = tmp_path / "chats.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def test_messages_and_pairs_are_read_in_their_order(tmp_path):
    pair = {"prompt": "2+2?", "completion": "4"}
    path = write(tmp_path, {"messages": [USER, ANSWER]}, "", pair)
    first, second = read_conversations(path)
    assert first.messages == [USER, ANSWER]
    assert first.where == f"{path}:1"
    assert [message["content"] for message in second.messages] == ["2+2?", "4"]
    assert second.where == f"{path}:3"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON: .*"),
        ("[1]", "a JSON object is needed, found a list"),
        ({"text": "a"}, "no field \"messages\", only 'text': a line is .*"),
        ({"prompt": "a"}, "no field 'completion', only 'prompt': .*"),
        ({"messages": []}, "the conversation has no messages"),
        ({"messages": "a"}, "messages is str; a list is needed"),
        ({"messages": [1]}, "message 1 is int; an object with role and content is needed"),
        ({"messages": [USER]}, "no assistant message: there is nothing to learn"),
        (
            {"messages": [USER, {"role": "bot", "content": "a"}]},
            "message 2: role 'bot': allowed are system, user, assistant",
        ),
        ({"messages": [{"content": "a"}]}, "message 1: role None: allowed are .*"),
        ({"messages": [{"role": "user"}]}, "message 1: content is missing; text is needed"),
        ({"messages": [{"role": "user", "content": [1]}]}, "message 1: content is list; .*"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "message 1: .*lone surrogate.*"),
        ({"messages": [{"role": "user", "content": "\0"}]}, "message 1: content holds NUL"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(tmp_path, row, message):
    path = write(tmp_path, {"messages": [USER, ANSWER]}, row)
    with pytest.raises(DataError, match=rf"chats\.jsonl:2: {message}; or leave out") as caught:
        list(read_conversations(path))
    assert "\n" not in str(caught.value)
