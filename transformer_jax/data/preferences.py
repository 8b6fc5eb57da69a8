"""Preferences from tables: pairs of completions, labeled completions, or only prompts.

One JSON object per line, or rows of CSV or Parquet with the same columns::

    {"prompt": "The film was", "chosen": " a joy.", "rejected": " ok."}
    {"prompt": "The film was", "completion": " a joy.", "label": true}
    {"prompt": "The film was"}

Instead of the text of a prompt, a line may have a conversation, as ``"messages"`` or as
``"prompt"``; completions are then answers to it, as texts or as lists of one message::

    {"messages": [{"role": "user", "content": "And?"}], "chosen": "A joy.", "rejected": "Ok."}
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from transformer_jax.core.config_fields import Configuration, Range
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.bad_rows import BadRows, Unread
from transformer_jax.data.conversations import Message, check_asked, check_messages
from transformer_jax.data.data_sets import missing_splits
from transformer_jax.data.preparation import Preparation, ReadSettings
from transformer_jax.data.splits import HELD_OUT, DataSplits, held_by_hash
from transformer_jax.data.tables import JsonRow, json_rows

__all__ = [
    "PreferenceData",
    "PreferenceKind",
    "PreferenceOptions",
    "PreferenceSplits",
    "Preferences",
    "Prompt",
    "answer_text",
    "open_preferences",
    "prompt_text",
    "read_preferences",
]

PreferenceKind = Literal["pairs", "labels", "prompts"]
# A text, or a conversation whose last message is not from the assistant.
Prompt: TypeAlias = str | list[Message]

# The fields of each kind, in addition to the prompt.
_FIELDS: dict[PreferenceKind, tuple[str, ...]] = {
    "pairs": ("chosen", "rejected"),
    "labels": ("completion",),
    "prompts": (),
}


def prompt_text(prompt: "Prompt | tuple[Message, ...]") -> str:
    """Returns the prompt text for rules and rewards: the text, or a conversation's last message.

    Example:
        >>> prompt_text("Why?"), prompt_text([{"role": "user", "content": "And?"}])
        ('Why?', 'And?')
    """
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def answer_text(text: str) -> str:
    r"""Strips an answer as chat templates do, for conversations and rules.

    Example:
        >>> answer_text(" Yes.\n")
        'Yes.'
    """
    return text.strip()


@dataclasses.dataclass(frozen=True)
class PreferenceOptions(ReadSettings):
    """Options for reading preferences."""

    # Fraction of training held out if no validation file is given, 0 to 0.5.
    validation_size: Annotated[float, Range(0, 0.5)] = 0.1


@dataclasses.dataclass(frozen=True)
class PreferenceData(Configuration, group="data"):
    """The source of preferences or prompts."""

    train: str | None = None  # training file: .jsonl, .csv or .parquet; .gz too
    valid: str | None = None  # validation file; without it, a part of training is held out
    read: PreferenceOptions = PreferenceOptions()


@dataclasses.dataclass(frozen=True)
class Preferences:
    """Prompts with completions.

    Attributes:
        name: Name of the file, for messages.
        kind: Kind of the lines.
        prompts: The prompts: all texts, or all conversations.
        completions: Of each prompt: the chosen and the rejected one, or the one with a label, or
            none.
        labels: Whether the completion of each prompt is desirable; empty for other kinds.
        lines: Line number of each prompt, for messages.
    """

    name: str
    kind: PreferenceKind
    prompts: list[Prompt]
    completions: list[tuple[str, ...]]
    labels: list[bool]
    lines: list[int]

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def conversational(self) -> bool:
        """Returns whether the prompts are conversations, and the completions answers."""
        return not isinstance(self.prompts[0], str)

    @property
    def texts(self) -> list[str]:
        """The prompts, if they are texts.

        Raises:
            ConfigError: They are conversations.
        """
        if self.conversational:
            raise ConfigError(f"{self.name}: holds conversations: give prompts that are texts")
        return [prompt for prompt in self.prompts if isinstance(prompt, str)]

    def place(self, i: int) -> str:
        """File and line of prompt ``i``, for messages."""
        return f"{self.name.removesuffix(HELD_OUT)}:{self.lines[i]}"

    def select(self, which: Sequence[int], mark: str = "") -> "Preferences":
        """Selects examples, and appends a mark to the name.

        Args:
            which: Their indices.
            mark: Appended to the name.
        """
        take = lambda items: [items[i] for i in which] if items else []
        return Preferences(
            self.name + mark,
            self.kind,
            take(self.prompts),
            take(self.completions),
            take(self.labels),
            take(self.lines),
        )


@dataclasses.dataclass(frozen=True)
class PreferenceSplits(DataSplits[Preferences]):
    """The preferences of a run."""


def open_preferences(data: PreferenceData, kind: PreferenceKind) -> PreferenceSplits:
    """Loads training and validation preferences.

    Without ``data.valid``, a part of training is held out, chosen by a hash of the prompt,
    independent of the order of lines: all completions of one prompt stay together.

    Raises:
        ConfigError: The settings name no file.
        DataError: A file cannot be read, or has only one prompt and so none to hold out.
    """
    if data.train is None:
        fields = ", ".join(f'"{name}"' for name in ("prompt", *_shown(kind)))
        raise ConfigError(
            f"no training data: give data.train, a .jsonl file with the fields {fields}"
        )
    data = dataclasses.replace(data, **missing_splits(data))
    train = read_preferences(data.train or "", kind, data.read, "data.train")
    if data.valid is not None:
        valid = read_preferences(data.valid, kind, data.read, "data.valid")
        return PreferenceSplits(train, valid)
    if data.read.validation_size == 0:
        return PreferenceSplits(train, None)
    return _hold_out(train, data.read.validation_size)


def read_preferences(
    path: str | pathlib.Path,
    kind: PreferenceKind,
    read: PreferenceOptions = PreferenceOptions(),
    where: str = "data.train",
) -> Preferences:
    """Reads the preferences of a table (:func:`.object_rows`); empty lines are skipped.

    A line names the fields that are not read.

    Args:
        path: The file.
        kind: Kind of the lines, which determines the required fields.
        read: Options for reading.
        where: Name of the setting with ``path``, for messages; without ``data``, of a command that
            has no setting to skip bad rows.

    Raises:
        DataError: A line is not JSON, lacks a field, has an empty or two equal completions, or a
            label that is not a boolean; or there are no lines. The message has ``path:line``.
    """
    found, prepare = Preferences(str(path), kind, [], [], [], []), Preparation.of(read)
    policy = read.bad_rows if "data" in where else None
    bad, unread = BadRows(str(path), policy), Unread(str(path), "key")
    used = ("prompt", "messages", *_shown(kind))
    for number, row in json_rows(path, where, bad):
        with bad:
            unread.note(row.fields, used)
            _add(found, row, number, prepare)
    bad.report(len(found))
    unread.report()
    if not found.prompts:
        raise DataError(f"{path}: no {kind}: it is empty")
    return found


def _add(found: Preferences, row: JsonRow, number: int, prepare: Preparation) -> None:
    """Adds a line to preferences."""
    kind = found.kind
    hint = f"needed are {', '.join(map(repr, ('prompt', *_shown(kind))))}"
    prompt = _prompt(row, hint)
    if found.prompts and isinstance(prompt, str) == found.conversational:
        raise DataError(
            f"{row.place}: the lines before have {_form(found.prompts[0])}, and this one "
            f"{_form(prompt)}: give all lines one form"
        )
    take = JsonRow.text if isinstance(prompt, str) else _answer
    completions = [take(row, name, hint) for name in _FIELDS[kind]]
    _check(completions, row.place, kind)
    labels = [_label(row, hint)] if kind == "labels" else []
    found.prompts.append(_prepared(prompt, prepare))
    found.completions.append(tuple(map(prepare.text, completions)))
    found.labels.extend(labels)
    found.lines.append(number)


def _prompt(row: JsonRow, hint: str) -> Prompt:
    """The prompt of a line: the text ``prompt``, or a conversation to answer."""
    fields = row.fields
    if "messages" not in fields and not isinstance(fields.get("prompt"), list):
        return row.text("prompt", hint)
    if "messages" in fields and "prompt" in fields:
        raise DataError(f"{row.place}: has both 'messages' and 'prompt': leave one out")
    try:
        return check_asked(fields.get("messages", fields.get("prompt")))
    except ConfigError as error:
        raise DataError(f"{row.place}: {error}") from None


def _answer(row: JsonRow, name: str, hint: str) -> str:
    """The text of an answer, which may be given as a list with one message."""
    given = row.fields.get(name)
    if not isinstance(given, list):
        return row.text(name, hint)
    try:
        messages = check_messages(given)
    except ConfigError as error:
        raise DataError(f"{row.place}: field {name!r}: {error}") from None
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise DataError(
            f"{row.place}: field {name!r}: {plural(len(messages), 'message')}, and one message "
            f"from the assistant is needed: earlier messages belong to the prompt"
        )
    return str(messages[0]["content"])


def _form(prompt: Prompt) -> str:
    return "texts" if isinstance(prompt, str) else "conversations"


def _prepared(prompt: Prompt, prepare: Preparation) -> Prompt:
    if isinstance(prompt, str):
        return prepare.text(prompt)
    return [{**message, "content": prepare.text(message["content"])} for message in prompt]


def _shown(kind: PreferenceKind) -> tuple[str, ...]:
    return (*_FIELDS[kind], "label") if kind == "labels" else _FIELDS[kind]


def _check(completions: Sequence[str], place: str, kind: PreferenceKind) -> None:
    for name, text in zip(_FIELDS[kind], completions, strict=True):
        if not text:
            raise DataError(f"{place}: the field {name!r} is empty: fill it in, or remove the line")
    if len(completions) == 2 and completions[0] == completions[1]:
        raise DataError(
            f"{place}: 'chosen' and 'rejected' are equal, which is no preference: remove the line"
        )


def _label(row: JsonRow, hint: str) -> bool:
    if "label" not in row.fields:
        raise DataError(f"{row.place}: no field 'label': {hint}")
    label = row.fields["label"]
    if isinstance(label, str):  # of CSV, which has no other values
        label = {"true": True, "1": True, "false": False, "0": False}.get(label.lower(), label)
    if label not in (True, False):
        raise DataError(
            f"{row.place}: the label is {str(label)[:40]!r}: true (desirable) or false is needed"
        )
    return bool(label)


def _hold_out(whole: Preferences, size: float) -> PreferenceSplits:
    alone = f"{whole.name}: all {plural(len(whole), 'line')} have one prompt"
    inside = held_by_hash([_bytes(one) for one in whole.prompts], size, alone)
    held = [i for i, chosen in enumerate(inside) if chosen]
    kept = [i for i, chosen in enumerate(inside) if not chosen]
    return PreferenceSplits(whole.select(kept), whole.select(held, HELD_OUT))


def _bytes(prompt: Prompt) -> bytes:
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    return text.encode()
