"""Parts of a tokenizer's file: normalization, template, names of tokens."""

import json
import sys
from typing import NamedTuple

import numpy as np
import tokenizers

from transformer_jax.data.preparation import TextNormalization

__all__ = [
    "SpecialTokensTemplate",
    "character_ids",
    "readable",
    "template_of",
    "text_normalization",
    "trimmed",
]

_COMPOSING = {"type": "Sequence", "normalizers": [{"type": "NFC"}]}


class SpecialTokensTemplate(NamedTuple):
    """The special tokens around a text, and those between the two texts of a pair."""

    prefix_ids: tuple[int, ...]
    separator_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]


def text_normalization(backend: tokenizers.Tokenizer) -> TextNormalization:
    """Returns ``nfc`` for a tokenizer that composes characters before it does anything else."""
    if backend.normalizer is None:
        return "none"
    steps = json.loads(backend.normalizer.__getstate__())
    first = steps.get("normalizers", [steps])[:1]
    return "nfc" if first == [{"type": "NFC"}] else "none"


def character_ids(text: str) -> np.ndarray | None:
    """The id of every character by its code point, if the tokenizer is a plain lookup."""
    if '"WordLevel"' not in text:
        return None  # most files are long, and need not be taken apart again
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
    """A span without leading blanks, unless it is all blank."""
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
    """Returns the readable name of an id: its text, where it is not a part of a character."""
    token = backend.id_to_token(id) or f"#{id}"
    if id in special:
        return token
    # Alone, a piece of a byte-level vocabulary may be half a character, which decodes to U+FFFD.
    text = backend.decode([id], skip_special_tokens=False)
    if text and "\ufffd" not in text:
        return token if token.startswith("##") else text
    return token
