"""Tokens that stand for single bytes of characters that a vocabulary lacks (byte fallback)."""

import json
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["repair_byte_runs", "skipped_ids"]

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def skipped_ids(text: str) -> frozenset[int] | None:
    """Returns the ids of special tokens, if the decoder joins tokens of bytes to characters.

    Args:
        text: The content of a ``tokenizer.json``.

    Returns:
        None for any other decoder.
    """
    if '"ByteFallback"' not in text:
        return None  # most files are long, and need not be taken apart again
    file = json.loads(text)
    if not _has_byte_fallback(file.get("decoder")):
        return None
    return frozenset(one["id"] for one in file.get("added_tokens") or () if one.get("special"))


def _has_byte_fallback(decoder: Any) -> bool:
    if not isinstance(decoder, dict):
        return False
    parts = decoder.get("decoders", ())
    return decoder.get("type") == "ByteFallback" or any(map(_has_byte_fallback, parts))


def repair_byte_runs(tokens: Sequence[str]) -> list[str]:
    r"""Puts U+FFFD for the bytes that are no character of UTF-8, so that all others are kept.

    The decoder of Hugging Face ``tokenizers`` replaces every byte of a run of byte tokens if one of
    them is part of no character, such as the last of a text that a limit cuts.

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
    """A run of byte tokens, in which U+FFFD stands for bytes that are no character."""
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
