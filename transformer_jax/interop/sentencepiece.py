"""Converts SentencePiece models to ``tokenizers``: the same pieces with the same ids."""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from transformer_jax.core.errors import DataError
from transformer_jax.data.piece_rules import UNKNOWN_TEXT, name_guard, others_pattern
from transformer_jax.data.tokenizer_files.limits import longest_replacement

__all__ = ["BLANK", "PieceModel", "SentencePiece", "parse_model", "piece_tokenizer"]

BLANK = "▁"
_MOST_PIECES = 2_000_000
_LONGEST_PIECE = 1_000  # characters
_LONGEST_REPLACEMENT = 100  # characters
_NORMAL, _UNKNOWN, _USER, _UNUSED, _BYTE = 1, 2, 4, 5, 6
_KINDS = range(1, 7)
_COMPOSING = (b"nmt_nfkc", b"nfkc", b"nmt_nfkc_cf", b"nfkc_cf")
# A prefix that makes pieces unreachable from text: a noncharacter, which no text contains.
_HIDDEN = "\uffff"


class SentencePiece(NamedTuple):
    """A piece of text, its score, and its kind: 1 is text, 2 the unknown, 3 control."""

    text: str
    score: float
    kind: int


class PieceModel(NamedTuple):
    """The parts of a SentencePiece model that determine the ids of a text."""

    pieces: tuple[SentencePiece, ...]
    merges: bool  # whether by byte-pair encoding, or else unigram
    byte_fallback: bool
    charsmap: bytes
    composes: bool  # the table composes characters like NFC, as all named tables do
    dummy_prefix: bool
    single_blanks: bool

    @property
    def unknown(self) -> int:
        """The index of the unknown piece."""
        return next(i for i, piece in enumerate(self.pieces) if piece.kind == _UNKNOWN)


def parse_model(data: bytes) -> PieceModel:
    """Parses a ``.model`` or ``.spm`` file.

    Raises:
        DataError: The file is damaged, or not supported by ``tokenizers``; the message does not
            name the file.
    """
    try:
        parts: dict[int, list[bytes]] = {}
        for number, value in _fields(data):
            if isinstance(value, bytes):
                parts.setdefault(number, []).append(value)
            if len(parts.get(1, ())) > _MOST_PIECES:
                raise ValueError("it has too many pieces")
        pieces = tuple(_piece(value) for value in parts.get(1, ()))
        trainer = _last(b"".join(parts.get(2, ())))
        rules = _last(b"".join(parts.get(3, ())))
        back = _last(b"".join(parts.get(5, ())))
        charsmap = rules.get(2, b"")
        if not isinstance(charsmap, bytes):
            raise ValueError("its normalization is not a table")
    except (ValueError, struct.error) as error:  # includes invalid Unicode
        raise DataError(f"is not a SentencePiece model, or damaged: {error}") from None
    if not pieces:
        raise DataError("is not a SentencePiece model: it has no pieces")
    _check_pieces(pieces)
    kind = trainer.get(3, 1)
    if kind not in (1, 2):
        raise DataError("is a model of words or characters, not of unigrams or merges")
    if trainer.get(24, 0) or not rules.get(5, 1) or back.get(2):
        raise DataError("treats blanks or decoded text in a way that tokenizers does not support")
    if charsmap and not 4 <= struct.unpack("<I", charsmap[:4].ljust(4))[0] <= len(charsmap) - 4:
        raise DataError("is damaged: its table of normalization is truncated")
    if longest_replacement(charsmap) > _LONGEST_REPLACEMENT:
        raise DataError(
            f"normalizes a character to more than {_LONGEST_REPLACEMENT} characters, which no "
            f"writing needs"
        )
    return PieceModel(
        pieces,
        kind == 2,
        bool(trainer.get(35, 0)),
        charsmap,
        rules.get(1) in _COMPOSING,
        bool(rules.get(3, 1)),
        bool(rules.get(4, 1)),
    )


def piece_tokenizer(
    model: PieceModel, *, numbers: Mapping[str, int] | None = None, extra: Sequence[str] = ()
) -> tokenizers.Tokenizer:
    """Returns a tokenizer with the same ids as SentencePiece.

    Control pieces spelled out in text remain text. The only difference: an accent without a
    composed form is lost after a character that the table of normalization replaces.

    Args:
        model: The pieces.
        numbers: Ids of pieces and further tokens, from 0, instead of the order of the pieces
            (Marian, M2M100). Pieces without an id are not used; text falls back to the next most
            likely ones.
        extra: Special tokens that follow the pieces.

    Raises:
        DataError: ``tokenizers`` does not support the model.
    """
    backend = (_merging if model.merges else _likeliest)(model, numbers, extra)
    rules: list[normalizers.Normalizer] = []
    if model.charsmap:
        # The library looks up one character at a time, or the beginning of a short cluster, so
        # decomposed letters would lose their accents.
        if model.composes:
            rules.append(normalizers.NFC())
        rules.append(normalizers.Precompiled(model.charsmap))
    if model.single_blanks:
        rules.append(normalizers.Replace(tokenizers.Regex(r"\A +| +\z"), ""))
        rules.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    if numbers is not None and not model.byte_fallback:
        # SentencePiece merges consecutive characters without pieces into one unknown; alone, such a
        # character may be a piece of the other language.
        texts = (piece.text for piece in model.pieces if piece.kind == _NORMAL)
        letters = {letter for text in (" ", BLANK, *texts) for letter in text}
        unknown = tokenizers.Regex(others_pattern(letters))
        rules.append(normalizers.Replace(unknown, UNKNOWN_TEXT))
    if model.dummy_prefix:
        rules.append(normalizers.Prepend(BLANK))
    rules.append(normalizers.Replace(" ", BLANK))
    if model.single_blanks:
        rules.append(normalizers.Replace(tokenizers.Regex(BLANK + r"+\z"), ""))
    backend.normalizer = normalizers.Sequence(rules)
    backend.decoder = decoders.Sequence(_decoders(model))
    vocab = backend.get_vocab()
    silent = [piece.text for piece in model.pieces if piece.kind not in (_NORMAL, _BYTE)]
    names = [*(name for name in silent if name in vocab), *extra]
    backend.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in names])
    return backend


def _likeliest(
    model: PieceModel, numbers: Mapping[str, int] | None, extra: Sequence[str]
) -> tokenizers.Tokenizer:
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind == _NORMAL}
    # Pieces that are not text have a score that does not lower the unknown's.
    least = min(scores.values())
    names = [piece.text for piece in model.pieces] if numbers is None else [*numbers]
    known = {piece.text for piece in model.pieces}
    if numbers is not None:
        # Pieces of only the other language cannot come from this language's text, except single
        # characters in no piece of this side, which Marian also looks up.
        names = [name if name in known or _may_come(name) else _HIDDEN + name for name in names]
    names += extra
    vocab = [(name, scores.get(name, least)) for name in names]
    unknown = names.index(model.pieces[model.unknown].text)
    backend = tokenizers.Tokenizer(models.Unigram(vocab, unknown, model.byte_fallback))
    silent = [name for name in names if name not in scores and name[0] != _HIDDEN]
    if guard := name_guard(silent):
        backend.pre_tokenizer = pre_tokenizers.Split(
            tokenizers.Regex(guard), "merged_with_previous"
        )
    return backend


def _may_come(name: str) -> bool:
    return len(name) == 1 or name.startswith((">>", "<"))


def _merging(
    model: PieceModel, numbers: Mapping[str, int] | None, extra: Sequence[str]
) -> tokenizers.Tokenizer:
    names = [piece.text for piece in model.pieces] if numbers is None else numbers
    vocab = {name: i for i, name in enumerate([*names, *extra])}
    normal = {piece.text for piece in model.pieces if piece.kind == _NORMAL}
    known = normal & vocab.keys()
    if any(piece.kind == _UNUSED for piece in model.pieces):
        raise DataError("has unused pieces, which byte-pair encoding would take apart again")
    merges = []
    # More likely pieces are merged first, regardless of how they are formed.
    for piece in sorted(model.pieces, key=lambda piece: -piece.score):
        if piece.text not in known or len(piece.text) == 1:
            continue
        if not normal.issuperset(piece.text):
            raise DataError(f"has a piece {piece.text!r} with characters without pieces")
        halves = [(piece.text[:i], piece.text[i:]) for i in range(1, len(piece.text))]
        halves = [pair for pair in halves if pair[0] in known and pair[1] in known]
        merges += sorted(halves, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    unknown = model.pieces[model.unknown].text
    return tokenizers.Tokenizer(
        models.BPE(
            vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback
        )
    )


def _decoders(model: PieceModel) -> list[decoders.Decoder]:
    steps: list[decoders.Decoder] = [decoders.Replace(_HIDDEN, ""), decoders.Replace(BLANK, " ")]
    if model.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if model.dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return steps


def _check_pieces(pieces: Sequence[SentencePiece]) -> None:
    texts = [piece.text for piece in pieces]
    if len(set(texts)) != len(texts):
        raise DataError("is damaged: a piece is repeated")
    if sum(piece.kind == _UNKNOWN for piece in pieces) != 1:
        raise DataError("is damaged: there must be one unknown piece")
    if not any(piece.kind == _NORMAL for piece in pieces):
        raise DataError("is damaged: no piece is text")
    for piece in pieces:
        if not piece.text or piece.text.startswith(_HIDDEN) or not math.isfinite(piece.score):
            raise DataError(f"is damaged: {piece.text[:40]!r} is not a piece with a score")
        if len(piece.text) > _LONGEST_PIECE:
            raise DataError(f"has a piece of {len(piece.text):,} characters, which is too long")
        if piece.kind not in _KINDS:
            raise DataError(f"is damaged: {piece.text[:40]!r} is of kind {piece.kind}")
        if piece.kind == _USER:
            raise DataError(
                f"has user-defined symbols, such as {piece.text[:40]!r}, around which tokenizers "
                f"would treat blanks differently"
            )


def _piece(data: bytes) -> SentencePiece:
    fields = _last(data)
    text, score, kind = fields.get(1, b""), fields.get(2, 0.0), fields.get(3, 1)
    if not isinstance(text, bytes) or not isinstance(score, float) or not isinstance(kind, int):
        raise ValueError("a piece has fields of other types")
    return SentencePiece(text.decode("utf-8"), score, kind)


def _last(data: bytes) -> dict[int, int | float | bytes]:
    """Returns the fields of a message by number; the last occurrence counts."""
    return dict(_fields(data))


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yields the fields of a message in the wire format of protocol buffers."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key >> 3 == 0:
            raise ValueError("a field has no number")
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(key & 7, -1)
        if not 0 <= size <= len(data) - at:
            raise ValueError("a field is longer than its message")
        raw = data[at : at + size]
        at += size
        yield key >> 3, struct.unpack("<f", raw)[0] if key & 7 == 5 else raw


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise ValueError("a number does not end")
