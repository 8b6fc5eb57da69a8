"""Conversations for training: token ids with answers marked, and rows of several conversations."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int, UInt8

from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.data.bad_rows import BadRows, Unread
from transformer_jax.data.chat.encoding import ChatEncoder, EncodedChat
from transformer_jax.data.conversations import Conversation, read_conversations
from transformer_jax.data.data_sets import table_files
from transformer_jax.data.documents import file_identity
from transformer_jax.data.language_model_plans import PackingPlan, RowBatch, make_rows
from transformer_jax.data.preparation import ReadSettings
from transformer_jax.data.row_offsets import row_offsets
from transformer_jax.data.store import TokenStore, id_dtype, open_arrays, write_arrays
from transformer_jax.data.text import local_data

__all__ = ["ChatPlan", "ChatStore", "TooLong", "build_chats", "chat_rows", "split_chats"]

TooLong = Literal["truncate", "error", "skip"]

_NAMES = ("ids", "answers", "offsets")
_AT_ONCE = 512  # conversations encoded at a time


@dataclasses.dataclass(frozen=True)
class ChatStore(TokenStore):
    """Conversations of ids: conversation ``i`` is ``ids[offsets[i]:offsets[i + 1]]``.

    Attributes:
        answers: 1 for ids of answers and their end tokens, otherwise 0.
        counts: ``conversations``, ``answers`` (tokens), ``truncated``, ``skipped``, ``bad`` (rows),
            and ``empty`` (answers without text, from which a model learns to end at once).
    """

    answers: UInt8[np.ndarray, " total"]
    counts: dict[str, int]


def build_chats(
    path: str,
    encoder: ChatEncoder,
    *,
    limit: int,
    too_long: TooLong = "truncate",
    read: ReadSettings = ReadSettings(),
    cache: Path | None = None,
    writes: bool = True,
    flag: str = "data.train",
) -> ChatStore:
    """Encodes the conversations of a file.

    Args:
        path: A file for :func:`~transformer_jax.data.conversations.read_conversations`.
        encoder: Encoder with the chat template.
        limit: Largest number of tokens in a conversation.
        too_long: For longer conversations: ``truncate`` drops their first tokens, ``skip`` drops
            them, ``error`` refuses them. A conversation without a remaining answer is skipped.
        read: Options for reading.
        cache: Folder that keeps the arrays, memory-mapped; None keeps them in memory.
        writes: Whether missing arrays are added to the cache.
        flag: The setting of the file, for messages.

    Raises:
        ConfigError: The chat template is refused.
        DataError: A line is not a conversation that the template accepts; with file and line.
    """
    files = [local_data(file, flag) for file in table_files(path, flag)]
    template = encoder.template
    written = (template.text, sorted((template.special or {}).items()), encoder.tokenizer.sha256)
    identity = file_identity(files, flag, "chats", written, limit, too_long, *_identity(read))
    folder = None if cache is None else cache / f"chats-{identity[:24]}"
    found = None if folder is None else open_arrays(folder, _NAMES)
    if found is None:
        encoder.end_tokens  # noqa: B018  (refuses the template before a long file is read)
        counts = dict.fromkeys(("conversations", "answers", "truncated", "skipped", "empty"), 0)
        bad, unread = BadRows(path, read.bad_rows), Unread(path, "key")
        given = _counting_empty(read_conversations(path, flag, read, bad, unread), counts)
        chats, dtype = bad.checked(_encoded(given, encoder, bad)), id_dtype(encoder.tokenizer)
        store = _collect(f"{flag} {path}", chats, dtype, limit, too_long, counts)
        unread.report()
        counts["bad"] = bad.count
        if folder is None or not writes:
            return store
        found = write_arrays(folder, _NAMES, lambda draft: _write(draft, store))
    (ids, answers, offsets), kept = found
    return ChatStore(ids, offsets, answers, kept)


def _identity(read: ReadSettings) -> list[object]:
    """The options for a checksum; earlier versions did not normalize or skip rows."""
    more = (read.normalization, "none"), (read.bad_rows, "refuse")
    return [read.lowercase, *(value for value, default in more if value != default)]


def _write(draft: Path, store: ChatStore) -> dict[str, int]:
    for name in _NAMES:
        np.save(draft / f"{name}.npy", getattr(store, name))
    return store.counts


def _collect(
    name: str,
    chats: Iterator[tuple[str, EncodedChat]],
    dtype: np.dtype,
    limit: int,
    too_long: TooLong,
    counts: dict[str, int],
) -> ChatStore:
    ids: list[np.ndarray] = []
    answers: list[np.ndarray] = []
    for where, chat in chats:
        kept = chat
        if len(chat.ids) > limit:
            if too_long == "error":
                raise DataError(
                    f"{where}: the conversation has {plural(len(chat.ids), 'token')}, and a row "
                    f"{limit}: give a longer training.sequence_length, or data.too_long truncate "
                    f"or skip"
                )
            kept = EncodedChat(chat.ids[-limit:], chat.answers[-limit:])
            counts["truncated"] += too_long == "truncate"
        # The first token is not a target: nothing precedes it.
        if not kept.answers[1:].any() or (len(chat.ids) > limit and too_long == "skip"):
            counts["skipped"] += 1
            continue
        counts["conversations"] += 1
        counts["answers"] += int(kept.answers[1:].sum())
        ids.append(np.array(kept.ids, dtype))
        answers.append(kept.answers.astype(np.uint8))
    if not ids:
        why = "no conversation is left" if counts["skipped"] else "no conversations, it is empty"
        raise DataError(f"{name}: {why}")
    offsets = row_offsets(np.array([len(row) for row in ids], np.int64))
    return ChatStore(np.concatenate(ids), offsets, np.concatenate(answers), counts)


def _counting_empty(
    chats: Iterator[Conversation], counts: dict[str, int]
) -> Iterator[Conversation]:
    """Yields the conversations, and counts their answers without text."""
    for chat in chats:
        said = [message for message in chat.messages if message["role"] == "assistant"]
        counts["empty"] += sum(not message["content"].strip() for message in said)
        yield chat


def _encoded(
    chats: Iterator[Conversation], encoder: ChatEncoder, bad: BadRows
) -> Iterator[tuple[str, EncodedChat]]:
    """Yields each conversation as ids, with its file and line.

    Conversations that the template refuses are bad rows, too.
    """
    group: list[Conversation] = []

    def flush() -> Iterator[tuple[str, EncodedChat]]:
        try:
            found = encoder.encode([chat.messages for chat in group])
        except DataError:
            for chat in group:  # again one by one, to name the line
                with bad:
                    yield chat.where, _alone(chat, encoder)
            return
        yield from zip([chat.where for chat in group], found, strict=True)

    for chat in chats:
        group.append(chat)
        if len(group) == _AT_ONCE:
            yield from flush()
            group = []
    yield from flush()


def _alone(chat: Conversation, encoder: ChatEncoder) -> EncodedChat:
    try:
        return encoder.encode([chat.messages])[0]
    except DataError as error:
        raise DataError(f"{chat.where}: {error}") from None


def split_chats(
    store: ChatStore, share: float
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " valid"]]:
    """Splits conversations into training and validation; returns their indices, in order.

    The conversations with the smallest hashes are held out, at least one and never all, so the
    choice does not depend on the order of lines; equal conversations stay together.

    Args:
        store: The conversations.
        share: Fraction to hold out; 0 holds out none.
    """
    count = len(store)
    everything = np.arange(count)
    if not share:
        return everything, everything[:0]
    keys = [hashlib.sha256(store[i].tobytes()).digest() for i in range(count)]
    bound = sorted(keys)[min(max(round(share * count), 1), count) - 1]
    held = np.array([key <= bound for key in keys])
    if held.all():
        raise ConfigError(
            f"data.validation_size is {share}, and all conversations are equal: give data.valid, "
            f"or 0"
        )
    return everything[~held], everything[held]


class ChatPlan(PackingPlan):
    """Conversations packed into rows, several per row if they fit, which do not see each other.

    Every token of a conversation but the first is a target once per epoch; :func:`chat_rows` sets
    their weights. A conversation is at most as long as a row plus the token before it.
    """

    def __init__(
        self,
        store: ChatStore,
        chosen: Int[np.ndarray, " chosen"] | Sequence[int],
        *,
        length: int,
        rows: int,
        seed: int = 0,
        shuffle: bool = True,
    ):
        """Makes a plan for the ``chosen`` conversations of ``store``; see ``PackingPlan``."""
        chosen = np.asarray(chosen, np.int64)
        targets = store.lengths[chosen] - 1
        super().__init__(targets, length=length, rows=rows, seed=seed, shuffle=shuffle)
        # Where the targets of a conversation begin in the store, given where they would begin
        # without the conversations that were not chosen.
        self._packed = np.cumsum(targets) - targets
        self._places = store.offsets[chosen] + 1

    def _rows(self, indices: np.ndarray, epoch: int) -> RowBatch:
        found = super()._rows(indices, epoch)
        chat = np.searchsorted(self._packed, found.begins, "right") - 1
        begins = np.where(found.lengths > 0, self._places[chat], 0)
        # The first input of each conversation is its own first token, not BOS.
        fresh = np.zeros_like(found.starts_document)
        return dataclasses.replace(found, begins=begins, starts_document=fresh)


def chat_rows(store: ChatStore, batch: RowBatch, T: int, pad: int) -> dict[str, np.ndarray]:
    """Returns the arrays of one batch, in which only answers have weight.

    Args:
        store: The conversations.
        batch: Rows of the batch, from ``ChatPlan.batch``.
        T: Length of the rows.
        pad: The id of padding.

    Returns:
        As for :func:`~transformer_jax.data.language_model_plans.make_rows`; ``weights`` are 1 if
        the target is part of an answer or ends it.
    """
    rows = make_rows(store, batch, T, pad, pad)
    marked = TokenStore(store.answers, store.offsets)
    answers = make_rows(marked, batch, T, 0, 0)["targets"]
    return rows | {"weights": rows["weights"] * answers.astype(np.float32)}
