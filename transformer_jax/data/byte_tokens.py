"""Tokens that stand for single bytes of characters that a vocabulary lacks (byte fallback)."""

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["has_byte_fallback", "repair_byte_runs"]

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def has_byte_fallback(decoder: Any) -> bool:
    """Whether a decoder of a ``tokenizer.json`` joins tokens of bytes to characters.

    Example:
        >>> has_byte_fallback({"type": "Sequence", "decoders": [{"type": "ByteFallback"}]})
        True
    """
    if not isinstance(decoder, dict):
        return False
    parts = decoder.get("decoders", ())
    return decoder.get("type") == "ByteFallback" or any(map(has_byte_fallback, parts))


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
