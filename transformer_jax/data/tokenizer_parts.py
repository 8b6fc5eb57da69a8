"""Parts of a tokenizer file: normalization, template, special tokens, byte tokens."""

import itertools
import json
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tokenizers

from transformer_jax.core.errors import DataError
from transformer_jax.core.json_types import Json
from transformer_jax.data.backends import SENTINEL
from transformer_jax.data.preparation import TextNormalization
from transformer_jax.data.tokenizer_kind import LARGEST_VOCABULARY

__all__ = [
    "ROLES",
    "SpecialNames",
    "SpecialTokensTemplate",
    "character_ids",
    "end_ids",
    "plain_end",
    "readable",
    "repair_byte_runs",
    "role_ids",
    "sentinel_ids",
    "skipped_ids",
    "target_file",
    "template_of",
    "text_normalization",
    "trimmed",
    "vocabulary_size",
]

_COMPOSING = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}


class SpecialTokensTemplate(NamedTuple):
    """The special tokens around a text, and between the two texts of a pair."""

    prefix_ids: tuple[int, ...]
    separator_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]


def text_normalization(backend: tokenizers.Tokenizer) -> TextNormalization:
    """Returns ``nfc`` for a tokenizer that first composes characters, otherwise ``none``."""
    if backend.normalizer is None:
        return "none"
    steps = json.loads(backend.normalizer.__getstate__())
    first = steps.get("normalizers", [steps])[:1]
    return "nfc" if first == [{"type": "NFC"}] else "none"


def character_ids(text: str) -> np.ndarray | None:
    """Maps code points to ids, if the tokenizer is a plain lookup of characters."""
    if '"WordLevel"' not in text:
        return None  # most files are long, so parsing them again is avoided
    file = json.loads(text)
    model, alone = file["model"], {"Regex": r"[\s\S]"}
    parts = file.get("pre_tokenizer") or {}
    if model.get("type") != "WordLevel" or parts.get("pattern") != alone:
        return None
    if file.get("normalizer") not in (None, _COMPOSING):
        return None
    if parts.get("behavior") != "Isolated" or parts.get("invert"):
        return None
    vocab, unknown = model["vocab"], model["vocab"].get(model["unk_token"])
    if unknown is None or not all(token["special"] for token in file.get("added_tokens", ())):
        return None
    ids = np.full(sys.maxunicode + 1, unknown, np.int32)
    for token, id in vocab.items():
        if len(token) == 1:
            ids[ord(token)] = id
    return ids


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Removes leading blanks from a span, unless it is all blank."""
    if start < end and text[start].isspace():
        kept = text[start:end].lstrip()
        return (end - len(kept), end) if kept else (start, end)
    return start, end


def template_of(backend: tokenizers.Tokenizer) -> SpecialTokensTemplate | None:
    """The special-tokens template of the file; None if it has none, or it cannot be determined."""
    plain = backend.encode("a", add_special_tokens=False).ids
    framed = backend.encode("a", add_special_tokens=True).ids
    where = [i for i in range(len(framed)) if framed[i : i + len(plain)] == plain]
    if not plain or len(framed) == len(plain) or not where:
        return None
    at = where[0]
    before, after = tuple(framed[:at]), tuple(framed[at + len(plain) :])
    both = backend.encode("a", "a", add_special_tokens=True).ids
    between = both[at + len(plain) :][: len(both) - 2 * len(plain) - len(before) - len(after)]
    return SpecialTokensTemplate(before, tuple(between), after)


def readable(backend: tokenizers.Tokenizer, id: int, special: frozenset[int]) -> str:
    """Returns a readable name of an id: its text, unless it is a part of a character."""
    token = backend.id_to_token(id) or f"#{id}"
    if id in special:
        return token
    # Alone, a byte-level token may be part of a character, which decodes to U+FFFD.
    text = backend.decode([id], skip_special_tokens=False)
    if text and "\ufffd" not in text:
        return token if token.startswith("##") else text
    return token


_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def skipped_ids(text: str) -> frozenset[int] | None:
    """Returns the ids of special tokens, if the decoder joins byte tokens into characters.

    Args:
        text: The content of a ``tokenizer.json``.

    Returns:
        None for any other decoder.
    """
    if '"ByteFallback"' not in text:
        return None  # most files are long, so parsing them again is avoided
    file = json.loads(text)
    if not _has_byte_fallback(file.get("decoder")):
        return None
    return frozenset(one["id"] for one in file.get("added_tokens") or () if one.get("special"))


def _has_byte_fallback(decoder: Json) -> bool:
    if not isinstance(decoder, dict):
        return False
    parts = decoder.get("decoders", ())
    return decoder.get("type") == "ByteFallback" or any(map(_has_byte_fallback, parts))


def repair_byte_runs(tokens: Sequence[str]) -> list[str]:
    r"""Replaces bytes that are not UTF-8 by U+FFFD, so that all other bytes are kept.

    The decoder of Hugging Face ``tokenizers`` replaces every byte of a run of byte tokens if one of
    them is not part of a character, for example at the end of a truncated text.

    Example:
        >>> repair_byte_runs(["a", "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>", "b"])
        ['a', '<0xC3>', '<0xA9>', '\ufffd', 'b']
    """
    repaired: list[str] = []
    run: list[str] = []
    for token in (*tokens, ""):
        if _BYTE.fullmatch(token):
            run.append(token)
            continue
        repaired += _repair(run)
        run = []
        repaired.append(token)
    return repaired[:-1]


def _repair(run: list[str]) -> list[str]:
    """A run of byte tokens in which invalid bytes are replaced by U+FFFD."""
    data, repaired, at = bytes(int(token[3:5], 16) for token in run), list[str](), 0
    while at < len(data):
        try:
            data[at:].decode()
        except UnicodeDecodeError as error:
            repaired += [*run[at : at + error.start], "\ufffd"]
            at += error.end
        else:
            repaired += run[at:]
            break
    return repaired


ROLES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "bos": ("<bos>", "<s>", "[BOS]", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "</s>", "[EOS]", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "forced_bos": (),
}
"""Names of the token of each role, in order of preference; a role without has a given name only."""


# Names by role; under "ends" names of further tokens that end a text, and under "languages" the
# stored form of LanguageTags.
SpecialNames = Mapping[str, Any]


def end_ids(vocab: Mapping[str, int], eos: int, given: SpecialNames) -> tuple[int, ...]:
    """Returns the ids of all tokens that end a text, starting with the one that training uses.

    Args:
        vocab: Ids by token.
        eos: The id of the role ``eos``.
        given: Names by role; ``ends`` lists further tokens.

    Raises:
        DataError: A name is not in the vocabulary.

    Example:
        >>> end_ids({"</s>": 1, "<stop>": 2}, 1, {"ends": ["<stop>", "</s>"]})
        (1, 2)
    """
    names = given.get("ends", ())
    absent = [name for name in names if name not in vocab]
    if absent:
        raise DataError(f"the tokenizer has no token {absent[0]!r} to end a text")
    return tuple(dict.fromkeys((eos, *(vocab[name] for name in names))))


def role_ids(vocab: Mapping[str, int], given: SpecialNames) -> dict[str, int]:
    """The id of the token of each role that the vocabulary has a token for.

    Args:
        vocab: Ids by token.
        given: Names by role, which take precedence; ``ends`` and ``languages`` are not roles.

    Raises:
        DataError: An unknown role, or a name that is not in the vocabulary.

    Example:
        >>> role_ids({"<s>": 0, "</s>": 1, "<stop>": 2}, {"eos": "<stop>"})
        {'bos': 0, 'eos': 2}
    """
    given = {role: name for role, name in given.items() if role not in ("ends", "languages")}
    unknown = sorted(set(given) - set(ROLES))
    if unknown:
        raise DataError(f"special token {unknown[0]!r}: the roles are {', '.join(ROLES)}")
    found = {}
    for role, names in ROLES.items():
        if role in given and given[role] not in vocab:
            raise DataError(f"the tokenizer has no token {given[role]!r} to be {role}")
        for name in (str(given[role]),) if role in given else names:
            if name in vocab:
                found[role] = vocab[name]
                break
    return found


def vocabulary_size(vocab: Mapping[str, int]) -> int:
    """Returns the largest id plus one.

    Args:
        vocab: Ids by token.

    Raises:
        DataError: There is no token, or an id is larger than any vocabulary's.

    Example:
        >>> vocabulary_size({"<unk>": 0, "a": 7})
        8
    """
    size = max(vocab.values(), default=-1) + 1
    if not 0 < size <= LARGEST_VOCABULARY:
        last = LARGEST_VOCABULARY - 1
        raise DataError(f"the tokenizer's last id is {size - 1:,}: 0 to {last:,} are allowed")
    return size


def plain_end(backend: tokenizers.Tokenizer, eos: int, given: SpecialNames) -> frozenset[int]:
    """Returns the end token if it is plain text, such as a line end, which prompts may contain.

    Args:
        backend: The tokenizer of the library.
        eos: The id of the role ``eos``.
        given: Names by role, given in addition to the file.

    Example:
        >>> backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({".": 0, "</s>": 1}))
        >>> plain_end(backend, 0, {"eos": "."}), plain_end(backend, 1, {"eos": "</s>"})
        (frozenset({0}), frozenset())
    """
    usual = given.get("eos", ROLES["eos"][0]) in ROLES["eos"]
    listed = eos in backend.get_added_tokens_decoder()
    return frozenset() if usual or listed else frozenset((eos,))


def sentinel_ids(vocab: Mapping[str, int]) -> tuple[int, ...]:
    """The ids of T5's ``<extra_id_0>``, ``<extra_id_1>``, ..., as many as exist.

    Example:
        >>> sentinel_ids({"a": 0, "<extra_id_1>": 1, "<extra_id_0>": 2})
        (2, 1)
    """
    names = itertools.takewhile(vocab.__contains__, map(SENTINEL.format, itertools.count()))
    return tuple(vocab[name] for name in names)


def target_file(path: pathlib.Path) -> pathlib.Path:
    """Returns the path of the file for targets, next to a tokenizer's file.

    Example:
        >>> target_file(pathlib.Path("run/tokenizer.json")).name
        'target_tokenizer.json'
    """
    return path.parent / f"target_{path.name}"  # of "." and "/", too, which have no name
