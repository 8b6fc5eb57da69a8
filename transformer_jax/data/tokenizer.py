"""Text to ids and back, with Hugging Face ``tokenizers``: training, loading, encoding, decoding."""

import copy
import functools
import hashlib
import os
import pathlib
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, SupportsInt, get_args

import numpy as np
from jaxtyping import Bool
from tokenizers import normalizers

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.output_files import draft_file
from transformer_jax.data import backends
from transformer_jax.data.backends import BERT_SPECIAL, SPECIAL
from transformer_jax.data.files import read_file
from transformer_jax.data.languages import LanguageTags
from transformer_jax.data.preparation import TextNormalization, compose
from transformer_jax.data.tokenizer_files.opening import guarded, open_backend
from transformer_jax.data.tokenizer_kind import LARGEST_VOCABULARY, Permission, TokenizerKind
from transformer_jax.data.tokenizer_parts import (
    ROLES,
    SpecialNames,
    SpecialTokensTemplate,
    character_ids,
    end_ids,
    plain_end,
    readable,
    repair_byte_runs,
    role_ids,
    sentinel_ids,
    skipped_ids,
    target_file,
    template_of,
    text_normalization,
    trimmed,
    vocabulary_size,
)

__all__ = [
    "BERT_SPECIAL",
    "SPECIAL",
    "SpecialTokensTemplate",
    "Tokenizer",
    "load_tokenizer",
    "train_tokenizer",
]

_LARGEST_FILE = 1 << 28  # bytes


class Tokenizer:
    """Text to ids and back.

    Encoded text never contains special tokens, even if the text spells one out (``"</s>"``): it
    becomes ``unk``, or is dropped if there is no ``unk``.

    Attributes:
        vocab_size: Largest id plus one.
        pad: Padding; the id of ``eos`` if the file has no such token.
        unk: The unknown token, or None.
        bos: The first input of a decoder; the id of ``pad`` if the file has none (T5, Marian).
        eos: The end token of every training sentence.
        end_tokens: Tokens that end a generated text; ``eos`` is the first.
        roles: The roles that have their own token, which ``pad`` and ``bos`` may lack.
        mask: The mask token, or None.
        sentinels: T5's ``<extra_id_0>``, ``<extra_id_1>``, ..., as many as exist.
        prefix_ids: Special tokens before a source text, from the file's template (BART's ``<s>``).
        suffix_ids: Special tokens after it; only ``eos`` without a template.
        target_prefix_ids: The fixed first token of every target, if there is one (BART's ``<s>``
            after the start token ``</s>``): the role ``forced_bos``.
        num_separators: Number of ``eos`` between the two texts of a pair (RoBERTa: 2).
        template: The special-tokens template of the file, or None.
        normalization: ``nfc`` if the file first composes characters, like files trained here;
            otherwise ``none``.
        text: Content of the file.
        languages: Language tags of a multilingual translator, or None.
        special: Names of special tokens that were given in addition to the file.
        sha256: Checksum of the file that :meth:`save` writes, or of both files.
        targets: Tokenizer of targets: this one, or another with the same ids (Marian).
        allowed: What a data set may have although the model cannot read or write it, see
            :meth:`allowing`.
    """

    vocab_size: int
    pad: int
    unk: int | None
    bos: int
    eos: int
    end_tokens: tuple[int, ...]
    roles: frozenset[str]
    mask: int | None
    sentinels: tuple[int, ...]
    prefix_ids: tuple[int, ...]
    suffix_ids: tuple[int, ...]
    target_prefix_ids: tuple[int, ...]
    num_separators: int
    template: SpecialTokensTemplate | None
    normalization: TextNormalization
    languages: LanguageTags | None
    text: str
    special: dict[str, Any]
    sha256: str
    targets: "Tokenizer"
    allowed: frozenset[Permission] = frozenset()

    def __init__(self, text: str, special: SpecialNames | None = None, target: str | None = None):
        """Makes the tokenizer described by a ``tokenizer.json``, without truncation and padding.

        Args:
            text: Content of the file; stored unchanged, because serializing it again may change
                numbers.
            special: Names of special tokens by role (pad, unk, bos, eos, mask, forced_bos), if
                unusual; under ``ends``, names of further tokens that end a text, and under
                ``languages``, the stored form of :class:`.LanguageTags`.
            target: Content of the file that splits targets, if it is a different one with the same
                ids (Marian).

        Raises:
            DataError: The text is not a tokenizer's, or exceeds the limits of
                :mod:`.tokenizer_files.limits`; there is no token that ends sentences; a named token
                is missing; or targets have different ids.
        """
        backend = open_backend(text)
        self.text, self.special = text, dict(special or {})
        # Not part of the file: text that spells out special tokens stays text.
        backend.encode_special_tokens = True
        self._backend = backend
        vocab = backend.get_vocab()
        found = role_ids(vocab, self.special)
        if "eos" not in found:
            raise DataError(
                f"the tokenizer has no token that ends a sentence (looked for "
                f"{', '.join(ROLES['eos'])}): name it with special={{'eos': ...}}"
            )
        self.vocab_size = vocabulary_size(vocab)
        self.roles = frozenset(found)
        self.eos = found["eos"]
        self.end_tokens = end_ids(vocab, self.eos, self.special)
        self.pad = found.get("pad", self.eos)
        self.bos = found.get("bos", self.pad)
        self.unk = found.get("unk")
        self.mask = found.get("mask")
        parts = [part.encode() for part in (text, target) if part is not None]
        self.sha256 = hashlib.sha256(b"\0".join(parts)).hexdigest()
        self.targets = self if target is None else Tokenizer(target, special)
        if self.targets.vocab_size != self.vocab_size or self.targets.eos != self.eos:
            raise DataError("the tokenizers of sources and targets have different ids")
        self.sentinels = sentinel_ids(vocab)
        self.target_prefix_ids = (found["forced_bos"],) if "forced_bos" in found else ()
        stored = self.special.get("languages")
        self.languages = None if stored is None else LanguageTags.of(stored, self.token_id)
        tags = self.languages.ids if self.languages else ()
        self._special = frozenset({*found.values(), *self.sentinels, *tags} - {self.unk})
        self._never_text = self._special - plain_end(backend, self.eos, self.special)
        self.normalization = text_normalization(backend)
        self._characters = character_ids(text)
        self._skipped = skipped_ids(text)
        with guarded():
            self.template = template_of(backend)
        self.prefix_ids, between, self.suffix_ids = self.template or SpecialTokensTemplate(
            (), (), ()
        )
        self.suffix_ids = self.suffix_ids or (self.eos,)
        self.num_separators = max(1, between.count(self.eos))

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, sha256={self.sha256[:12]!r})"

    def allowing(self, *names: Permission) -> "Tokenizer":
        """Returns this tokenizer for data sets that tasks would otherwise refuse.

        Args:
            *names: ``unknown``: more than half of a text may be unknown; ``lossy``: decoding may
                change more than half of the targets.
        """
        lenient = copy.copy(self)
        lenient.allowed = frozenset(names)
        lenient.targets = lenient if self.targets is self else self.targets.allowing(*names)
        return lenient

    def encode(self, text: str) -> list[int]:
        """Encodes a text, without special tokens."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes many texts, without special tokens, each as if it were alone."""
        if self._characters is not None:  # 100 times as fast
            texts = [compose(text) for text in texts] if self.normalization == "nfc" else texts
            raw = [np.frombuffer(text.encode("utf-32-le"), "<u4") for text in texts]
            return [self._only_text(self._characters[row].tolist()) for row in raw]
        with guarded():
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._only_text(encoding.ids) for encoding in encodings]

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Encodes many texts; returns ids and the character span of each, end excluded.

        The blank before a word is not part of its token's span. All tokens that are bytes of one
        character have that character's span.

        Example:
            >>> train_tokenizer("bytes", []).encode_spans(["né"])[0][1]
            [(0, 1), (1, 2), (1, 2)]
        """
        found = []
        with guarded():
            encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            ids, spans = encoding.ids, [self._span(text, *span) for span in encoding.offsets]
            if not self._never_text.isdisjoint(ids):
                kept = [(self._only_text([id]), span) for id, span in zip(ids, spans, strict=True)]
                spans = [span for only, span in kept if only]
                ids = [only[0] for only, _ in kept if only]
            found.append((ids, spans))
        return found

    @property
    def marks_continuations(self) -> bool:
        """Returns whether tokens within a word begin with a mark, such as ``##``."""
        return bool(getattr(self._backend.model, "continuing_subword_prefix", None))

    def word_spans(self, text: str) -> dict[tuple[int, int], tuple[int, int]]:
        """Returns the character span of the word of each token, by the token's own span.

        Words are those into which the tokenizer splits a text before it makes tokens; a token
        outside of words is a word.
        """
        with guarded():
            encoding = self._backend.encode(text, add_special_tokens=False)
        spans = [self._span(text, *span) for span in encoding.offsets]
        words = [encoding.word_to_chars(word) if word is not None else None
                 for word in encoding.word_ids]  # fmt: skip
        return {
            span: span if word is None else self._span(text, *word)
            for span, word in zip(spans, words, strict=True)
        }

    def _span(self, text: str, start: int, end: int) -> tuple[int, int]:
        # The library maps a composed character only to its first part.
        while self.normalization == "nfc" and end < len(text) and unicodedata.combining(text[end]):
            end += 1
        return trimmed(text, start, end)

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """Decodes ids, without special tokens."""
        return self.decode_batch([ids])[0]

    def decode_batch(self, rows: Iterable[Iterable[SupportsInt]]) -> list[str]:
        """Decodes many rows of ids, without special tokens."""
        kept = [[int(i) for i in ids if int(i) not in self._special] for ids in rows]
        with guarded():
            if self._skipped is None:  # nothing is lost
                return [self._backend.decode(ids, skip_special_tokens=True) for ids in kept]
            return [self._decode_bytes(ids, self._skipped) for ids in kept]

    def _decode_bytes(self, ids: list[int], skipped: frozenset[int]) -> str:
        """Decodes ids, some of which may be single bytes."""
        named = (self._backend.id_to_token(id) for id in ids if id not in skipped)
        return str(self._backend.decoder.decode(repair_byte_runs([*filter(None, named)])))

    def normalize(self, text: str) -> str:
        """Applies the file's normalizer, which changes text before it is split into tokens."""
        normalizer = self._backend.normalizer
        with guarded():
            return text if normalizer is None else str(normalizer.normalize_str(text))

    def convert_ids_to_tokens(self, ids: Iterable[SupportsInt]) -> list[str]:
        """Returns a readable name for each id, for example for the axes of a plot."""
        return [readable(self._backend, int(i), self._special) for i in ids]

    def name(self, id: int) -> str:
        """The name of an id in the file, such as ``</s>``.

        Raises:
            DataError: There is no such id.
        """
        if (token := self._backend.id_to_token(id)) is None:
            last = self.vocab_size - 1
            raise DataError(f"the tokenizer has no token {id}: its ids end at {last}")
        return str(token)

    def join(self, tokens: Sequence[str]) -> str:
        """Returns the text of tokens, given their names in the file.

        Example:
            >>> train_tokenizer("bytes", []).join(["h", "i"])
            'hi'
        """
        decoder = self._backend.decoder
        with guarded():
            return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    def token_id(self, token: str) -> int:
        """Returns the id of a token, given its name in the file.

        Raises:
            DataError: There is no such token.
        """
        if (id := self._backend.token_to_id(token)) is None:
            raise DataError(f"the tokenizer has no token {token!r}: add it when a run begins")
        return int(id)

    @functools.cached_property
    def is_continuation(self) -> Bool[np.ndarray, " V"]:
        """Returns whether each id continues the word of the id before it.

        Recognized by WordPiece's ``##``, by the blank before a word in byte-level BPE, or by
        SentencePiece's ``▁``; special tokens continue nothing. A vocabulary with none of these
        marks has no words.
        """
        tokens = [self._backend.id_to_token(id) or "" for id in range(self.vocab_size)]
        marks = [mark for mark in ("Ġ", "▁") if any(token.startswith(mark) for token in tokens)]
        if any(token.startswith("##") and len(token) > 2 for token in tokens):
            inside = [token.startswith("##") for token in tokens]
        else:
            inside = [bool(marks) and not token.startswith(marks[0]) for token in tokens]
        found = np.array(inside)
        found[list(self.special_ids)] = False
        return found

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens: padding, start, end, unknown and mask."""
        return self._special | ({self.unk} if self.unk is not None else set())

    @property
    def never_text(self) -> frozenset[int]:
        """The special tokens that a text never contains, even if it spells them out."""
        return self._never_text

    def save(self, path: str | pathlib.Path) -> None:
        """Writes ``tokenizer.json``, and next to it the file for targets if there is one."""
        path = pathlib.Path(path)
        if self.targets is not self:
            self.targets.save(target_file(path))
        try:
            with draft_file(path) as draft:
                draft.write_bytes(self.text.encode())
        except OSError as error:
            raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None

    def _only_text(self, ids: list[int]) -> list[int]:
        if self._never_text.isdisjoint(ids):
            return ids
        instead = [] if self.unk is None else [self.unk]
        return [j for i in ids for j in (instead if i in self._never_text else [i])]


def train_tokenizer(
    kind: TokenizerKind,
    texts: Iterable[str],
    vocab_size: int = 8000,
    *,
    special: tuple[str, ...] = SPECIAL,
    normalization: TextNormalization = "nfc",
) -> Tokenizer:
    """Trains a tokenizer on texts; the special tokens, ``SPECIAL`` or others, have the first ids.

    - ``bpe``: merges of frequent pairs over bytes (Sennrich et al. 2016; Radford et al. 2019).
      ``decode(encode(text))`` is the normalized text, for every text. Ties are broken by ids.
    - ``unigram``: the most probable subwords over bytes (Kudo 2018); equally lossless.
    - ``bytes``: equally lossless, nothing to learn; the ids follow those of the special tokens.
    - ``wordpiece``: subwords, prefixed with ``##`` unless they begin a word, by merges of frequent
      pairs (Schuster and Nakajima 2012). Words are separated by whitespace and punctuation. With
      the special tokens of encoders, decoding loses double blanks and blanks at punctuation;
      otherwise blanks are marked as in SentencePiece, and white space missing from the texts is
      read as a blank.
    - ``wordpiece_likelihood``: the same with the merges of :func:`.likelihood_merges`.
    - ``words``: the most frequent words, marked as in ``wordpiece``; all others become ``unk``.
    - ``characters``: the most frequent characters; all others become ``unk``.

    The result depends only on the texts. It has fewer than ``vocab_size`` tokens if the texts do
    not provide more. With ``normalization="nfc"``, canonically equal texts have the same tokens:
    the file specifies that text is composed (NFC) before tokenization.

    Raises:
        ConfigError: ``vocab_size`` is too small for the kind or too large, or there is no text.

    Example:
        >>> tokenizer = train_tokenizer("bpe", ["low lower lowest"] * 3, 270)
        >>> tokenizer.decode(tokenizer.encode("the  lowest étude"))
        'the  lowest étude'
    """
    if kind not in (kinds := get_args(TokenizerKind)):
        raise ConfigError(f"tokenizer kind {kind!r}: allowed are {', '.join(kinds)}")
    least = len(special) + (256 if kind in ("bpe", "unigram", "bytes") else 1)
    if not least <= vocab_size <= LARGEST_VOCABULARY:
        allowed = f"{least} to {LARGEST_VOCABULARY} are allowed"
        raise ConfigError(f"a {kind} vocabulary of size {vocab_size}: {allowed}")
    if normalization == "nfc":
        texts = map(compose, texts)
    backend = backends.MAKE[kind](texts, vocab_size, special)
    if normalization == "nfc":
        own = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), *own])
    tokenizer = Tokenizer(backend.to_str())
    if tokenizer.vocab_size > vocab_size and kind != "bytes":
        raise ConfigError(
            f"a {kind} vocabulary of {vocab_size}: the characters of the text alone need "
            f"{tokenizer.vocab_size}"
        )
    return tokenizer


def load_tokenizer(
    path: str | pathlib.Path, *, sha256: str | None = None, special: SpecialNames | None = None
) -> Tokenizer:
    """Loads a ``tokenizer.json``, whether trained here or not.

    The file :func:`target_file` next to it, if there is one, splits targets.

    Args:
        path: The file.
        sha256: The expected checksum of the files, if known: a damaged file may still load and
            silently encode text differently.
        special: Names of special tokens by role (pad, unk, bos, eos, mask), if unusual.

    Raises:
        DataError: The file is missing, is not a tokenizer, or has the wrong checksum.
    """
    path = pathlib.Path(path)
    target = target_file(path)
    paths = [path, target] if os.path.lexists(target) else [path]
    try:
        raw = [read_file(path, _LARGEST_FILE) for path in paths]
    except FileNotFoundError:
        raise DataError(f"{path}: no such tokenizer file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from None
    found = hashlib.sha256(b"\0".join(raw)).hexdigest()
    if sha256 is not None and found != sha256:
        raise DataError(
            f"{' and '.join(map(str, paths))}: this is not the tokenizer that is expected, or it "
            f"is damaged: its sha256 begins {found[:12]}, and should {sha256[:12]}"
        )
    try:
        with guarded("not a usable tokenizer.json"):
            text, *others = (part.decode("utf-8") for part in raw)
        return Tokenizer(text, special, *others)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
