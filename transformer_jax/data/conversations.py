"""Conversations as JSON lines: ``{"messages": [{"role": "user", "content": "..."}, ...]}``."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.data.bad_rows import BadRows, Unread
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.tables import JsonRow, json_rows
from transformer_jax.data.text import flaw_of

__all__ = [
    "ROLES",
    "Conversation",
    "Message",
    "check_answered",
    "check_asked",
    "check_messages",
    "read_conversations",
]

Message: TypeAlias = Mapping[str, Any]
ROLES = ("system", "user", "assistant")
_KEYS = ("messages", "prompt", "completion", "tools")


class Conversation(NamedTuple):
    """The messages of one line of a file."""

    messages: list[Message]
    where: str  # file:line, for messages about it


def read_conversations(
    path: str | Path,
    flag: str = "",
    read: ReadSettings = ReadSettings(),
    bad: BadRows | None = None,
    unread: Unread | None = None,
) -> Iterator[Conversation]:
    """Reads conversations from a file with one JSON object per line; empty lines are skipped.

    A line holds ``messages``, or a ``prompt`` and its ``completion``, which stand for a user
    message and its answer. Nothing follows a bad line that is refused; the error lists all.

    Args:
        path: The file; ``.gz`` is unpacked.
        flag: The setting of the file, for messages.
        read: Options for reading.
        bad: Collects and counts bad rows; None stands for a new one.
        unread: Collects keys that are not read.

    Raises:
        DataError: The file cannot be read, or a line is not a conversation with an answer; the
            message begins with ``path:line``.
    """
    bad = bad or BadRows(str(path), read.bad_rows)
    unread = unread or Unread(str(path), "key")
    return bad.checked(_conversations(path, flag, Preparation.of(read), bad, unread))


def _conversations(
    path: str | Path, flag: str, prepare: Preparation, bad: BadRows, unread: Unread
) -> Iterator[Conversation]:
    for _, row in json_rows(path, flag, bad):
        with bad:
            unread.note(row.fields, _KEYS)
            messages = _messages(row)
            messages = [{**one, "content": prepare.text(one["content"])} for one in messages]
            yield Conversation(messages, row.place)


def _messages(row: JsonRow) -> list[Message]:
    """Returns the messages of a line.

    Raises:
        DataError: It is not a conversation with an answer, or has tools, which are not read.
    """
    fields, where = row.fields, row.place
    if fields.get("tools"):
        raise DataError(f"{where}: has tools, which templates are not given here: remove the row")
    if "messages" in fields and "prompt" in fields:
        raise DataError(f"{where}: has both 'messages' and 'prompt': leave one out")
    if "messages" not in fields and "prompt" in fields:
        hint = 'a line holds "messages", or a "prompt" and its "completion"'
        asked, answer = (row.text(name, hint) for name in ("prompt", "completion"))
        fields["messages"] = [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": answer},
        ]
    if "messages" not in fields:
        raise DataError(
            f'{where}: no field "messages", only {", ".join(map(repr, fields)) or "none"}: a line '
            f'is {{"messages": [{{"role": "user", "content": "..."}}, ...]}}'
        )
    try:
        messages = check_messages(fields["messages"])
    except ConfigError as error:
        raise DataError(f"{where}: {error}") from None
    if all(message["role"] != "assistant" for message in messages):
        raise DataError(f"{where}: no assistant message: there is nothing to learn")
    if any(message.get("weight", 1) != 1 for message in messages):
        raise DataError(
            f"{where}: a message has a weight other than 1, and every answer is learned: leave it "
            f"out, or end the conversation before it"
        )
    return messages


def check_asked(messages: object) -> list[Message]:
    """Returns the messages of a conversation that ends with a message to answer.

    Raises:
        ConfigError: The last message is from the assistant, or :func:`check_messages` refuses one.

    Example:
        >>> check_asked([{"role": "assistant", "content": "Yes?"}])
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: the last message is from the assistant: ...
    """
    checked = check_messages(messages)
    if checked[-1]["role"] == "assistant":
        raise ConfigError("the last message is from the assistant: there is nothing to answer")
    return checked


def check_answered(messages: object) -> list[Message]:
    """Returns the messages of a conversation that ends with a non-empty answer.

    Raises:
        ConfigError: It does not, or :func:`check_messages` refuses a message.

    Example:
        >>> check_answered([{"role": "user", "content": "Why?"}])
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: the last message is from the user; it ...
    """
    checked = check_messages(messages)
    if (role := checked[-1]["role"]) != "assistant":
        raise ConfigError(f"the last message is from the {role}; it must be from the assistant")
    if len(checked) < 2:
        raise ConfigError("the answer has nothing before it: put the message that it answers first")
    if not checked[-1]["content"]:
        raise ConfigError("the last message is empty: fill it in, or leave the conversation out")
    return checked


def check_messages(messages: object) -> list[Message]:
    """Returns the messages of a conversation, each with a known role and text.

    Raises:
        ConfigError: There are none, or a message has no role, an unknown role, or no text.

    Example:
        >>> check_messages([{"role": "user", "content": "Hi"}])
        [{'role': 'user', 'content': 'Hi'}]
        >>> check_messages([{"role": "users", "content": "Hi"}])
        Traceback (most recent call last):
        ...
        transformer_jax.core.errors.ConfigError: message 1: role 'users': allowed are system, ...
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise ConfigError(f"messages is {type(messages).__name__}; a list is needed")
    if not messages:
        raise ConfigError("the conversation has no messages")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise ConfigError(
                f"message {number} is {type(message).__name__}; an object with role and "
                f"content is needed"
            )
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise ConfigError(f"message {number}: role {role!r}: allowed are {', '.join(ROLES)}")
        if not isinstance(content, str):
            found = type(content).__name__ if "content" in message else "missing"
            raise ConfigError(f"message {number}: content is {found}; text is needed")
        if (flaw := flaw_of(content)) is not None:
            raise ConfigError(f"message {number}: content {flaw}")
    return list(messages)
