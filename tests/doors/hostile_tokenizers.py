"""Hostile tokenizers and SentencePiece models."""

import json
import os
import struct
from pathlib import Path

from tests.doors.changed_models import (
    DEEP,
    Prepare,
    huge,
    linked,
    model,
    rewritten,
    text_of,
    with_fields,
)
from transformer_jax.data.tokenizer import load_tokenizer

__all__ = ["SENTENCEPIECE", "TOKENIZERS"]


def _split(pattern: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _grow(times: int, length: int) -> dict[str, object]:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": length * "a"}
    return {"type": "Sequence", "normalizers": [step] * times}


def tokenizer(**fields: object) -> Prepare:
    """A model whose tokenizer has other parts."""
    return rewritten("tokenizer.json", with_fields(**fields))


TOKENIZERS = {
    "an expression that backtracks": tokenizer(pre_tokenizer=_split("(a+)+$")),
    "alternatives that backtrack": tokenizer(pre_tokenizer=_split("(a|aa)+$")),
    "an expression that takes its time": tokenizer(
        pre_tokenizer=_split(r"(([a-z])+.)+[A-Z]([a-z])+$")
    ),
    "a decoder that backtracks": tokenizer(
        decoder={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
    ),
    "replacements of replacements": tokenizer(normalizer=_grow(2, 1000)),
    "many small replacements": tokenizer(normalizer=_grow(40, 2)),
    "a prefix of 10 MB": tokenizer(normalizer={"type": "Prepend", "prepend": 10**7 * "x"}),
    "a long suffix of words": rewritten(
        "tokenizer.json",
        lambda old: {**old, "model": {**old["model"], "continuing_subword_prefix": 10**6 * "#"}},
    ),
    "an id of four billion": rewritten(
        "tokenizer.json",
        lambda old: {
            **old,
            "model": {**old["model"], "vocab": {**old["model"]["vocab"], "zz": 2**32 - 1}},
        },
    ),
    "deep JSON": text_of("tokenizer.json", '{"normalizer": ' + DEEP),
    "a gigabyte": huge("tokenizer.json", 10**9),
    "a link to itself": linked("tokenizer.json", "itself"),
    "a pipe": model("bert", lambda folder: _pipe(folder, "tokenizer.json")),
    "a path of another door": model(
        "bert",
        lambda folder: _pipe(folder, "tokenizer.json"),
        lambda folder: load_tokenizer(folder / "tokenizer.json"),
    ),
    "a file of settings": model(
        "bert",
        lambda folder: (folder / "tokenizer.json").write_text(
            json.dumps({"pre_tokenizer": _split("(a+)+$"), "model": {"vocab": {"[SEP]": 0}}})
        ),
        lambda folder: load_tokenizer(folder / "tokenizer.json"),
    ),
}


def _pipe(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def _sentencepiece(content: bytes) -> Prepare:
    def write(folder: Path) -> None:
        (folder / "tokenizer.json").unlink()
        (folder / "spiece.model").write_bytes(content)

    return model("t5", write)


def _field(number: int, content: bytes) -> bytes:
    size, value = b"", len(content)
    while True:
        size += bytes([value % 128 | (128 if value > 127 else 0)])
        value //= 128
        if not value:
            return bytes([number << 3 | 2]) + size + content


def _piece(text: str, kind: int = 1) -> bytes:
    return _field(1, _field(1, text.encode()) + b"\x15" + struct.pack("<f", -1) + bytes([24, kind]))


SENTENCEPIECE = {
    "zeros": _sentencepiece(bytes(1000)),
    "a field of exabytes": _sentencepiece(b"\x0a" + b"\xff" * 9 + b"\x01"),
    "an endless number": _sentencepiece(b"\xff" * 1000),
    "a piece of a megabyte": _sentencepiece(_piece("<unk>", 2) + _piece(10**6 * "a")),
    "a repeated piece": _sentencepiece(_piece("<unk>", 2) + _piece("a") * 2),
    "no unknown piece": _sentencepiece(_piece("a") + _piece("b")),
    "a long replacement": _sentencepiece(
        _piece("<unk>", 2)
        + _piece("a")
        + _field(3, _field(2, struct.pack("<I", 4) + b"trie" + 10**6 * b"x" + b"\0"))
    ),
    "a table beyond its end": _sentencepiece(
        _piece("<unk>", 2) + _piece("a") + _field(3, _field(2, struct.pack("<I", 2**32 - 1)))
    ),
}
