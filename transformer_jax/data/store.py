"""Sentences encoded once as ids: a flat array of ids and the offsets of sentences."""

import dataclasses
import hashlib
import itertools
import json
import mmap
import operator
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias

import numpy as np
from jaxtyping import Int, Integer

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.output_files import draft_folder
from transformer_jax.data.files import open_file, read_file
from transformer_jax.data.languages import DEFAULT_DIRECTION
from transformer_jax.data.languages import Frame as DirectionFrame
from transformer_jax.data.pairs import Pairs
from transformer_jax.data.row_offsets import row_offsets
from transformer_jax.data.tokenizer import Tokenizer

__all__ = [
    "PairStore",
    "TokenStore",
    "build_store",
    "encode_targets",
    "encode_texts",
    "id_dtype",
    "open_arrays",
    "release_pages",
    "write_arrays",
]

_CHUNK = 8192  # texts encoded at a time, which bounds the memory of Python lists
_NAMES = ("source_ids", "source_offsets", "target_ids", "target_offsets", "kept")


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Sentences of ids: number ``i`` is ``ids[offsets[i]:offsets[i + 1]]``, end token included."""

    ids: Integer[np.ndarray, " total"]
    offsets: Int[np.ndarray, " ends"]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: SupportsIndex) -> Integer[np.ndarray, " length"]:
        i = operator.index(index)
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    @property
    def lengths(self) -> Int[np.ndarray, " count"]:
        """Number of tokens of each sentence, including its end token."""
        return np.diff(self.offsets)


@dataclasses.dataclass(frozen=True)
class PairStore:
    """Both sides of sentence pairs as ids.

    Attributes:
        source: Source sentences.
        target: Their translations.
        pair_indices: Index of each pair in the input, from which pairs that are too long may have
            been dropped.
        counts: Numbers of dropped and truncated pairs.
    """

    source: TokenStore
    target: TokenStore
    pair_indices: Int[np.ndarray, " count"]
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.source)

    @property
    def source_lengths(self) -> Int[np.ndarray, " count"]:
        """Number of tokens of each source sentence, including its end token."""
        return self.source.lengths

    @property
    def target_lengths(self) -> Int[np.ndarray, " count"]:
        """Number of tokens of each target sentence, including its end token."""
        return self.target.lengths


def build_store(
    pairs: Pairs,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    *,
    max_length: int = 256,
    too_long: Literal["drop", "truncate"] = "drop",
    cache: str | pathlib.Path | None = None,
) -> PairStore:
    """Encodes sentence pairs, each sentence with its end token.

    A source has all special tokens of its tokenizer's template, such as BART's ``<s>``, as in
    translation; a target begins with the fixed first token of its tokenizer, if any. Pairs of
    several directions have the tags of their languages.

    Args:
        pairs: Sentences and their translations.
        tokenizer: Tokenizer of the sources, and of the targets unless they have their own.
        target_tokenizer: Tokenizer of the targets.
        max_length: Longest sentence in tokens, including its end token.
        too_long: Whether a pair with a longer side is dropped, or that side is truncated, keeping
            its end token.
        cache: A folder that keeps the arrays, memory-mapped, under a name made from the texts, the
            tokenizers and the limits; damaged ones are rebuilt. None keeps them in memory.

    Raises:
        DataError: The cache cannot be written.
    """
    target_tokenizer = target_tokenizer or tokenizer
    if cache is None:
        return _encode_pairs(pairs, tokenizer, target_tokenizer, max_length, too_long)
    how = "cut" if too_long == "truncate" else too_long  # as earlier versions named their caches
    settings = [tokenizer.sha256, target_tokenizer.sha256, str(max_length), how]
    if pairs.directions is None:
        settings += ["template"] if _frame(tokenizer) != ((), (tokenizer.eos,)) else []
        settings += [f"target {id}" for id in _frame_of_targets(target_tokenizer)[0]]
    else:
        frames = itertools.groupby(_frames(pairs, tokenizer))
        settings += [f"{frame} {sum(1 for _ in same)}" for frame, same in frames]
    key = _key(pairs, *settings)
    folder = pathlib.Path(cache) / key
    store = _open(folder)
    if store is None:
        made = _encode_pairs(pairs, tokenizer, target_tokenizer, max_length, too_long)
        _write(made, folder)
        store = _open(folder) or made
    return store


def id_dtype(tokenizer: Tokenizer) -> np.dtype:
    """The smallest integer type that holds all ids: uint16 or int32."""
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32)


def _encode_pairs(
    pairs: Pairs, first: Tokenizer, second: Tokenizer, max_length: int, too_long: str
) -> PairStore:
    if pairs.directions is None:
        source = encode_texts(pairs.sources, first, _frame(first))
        target = encode_targets(pairs.targets, second)
    else:
        frames, end = _frames(pairs, first), (first.eos,)
        source = encode_texts(pairs.sources, first, [(one.before, one.after) for one in frames])
        target = encode_texts(pairs.targets, second.targets, [(one.begins, end) for one in frames])
    sides = {"sources": source.lengths > max_length, "targets": target.lengths > max_length}
    long = sides["sources"] | sides["targets"]
    counts = {}
    kept = np.arange(len(long))
    if long.any():
        if too_long == "drop":
            counts["dropped as too long"] = int(long.sum())
            kept = np.flatnonzero(~long)
        else:
            counts = {
                f"{name} truncated": int(cut.sum()) for name, cut in sides.items() if cut.any()
            }
        source = _shortened(source, kept, max_length)
        target = _shortened(target, kept, max_length)
    return PairStore(source, target, kept, counts)


Frame: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # ids before and after a text


def _frame(tokenizer: Tokenizer) -> Frame:
    if tokenizer.languages is not None:
        return tokenizer.languages.frame(DEFAULT_DIRECTION)[:2]
    return tokenizer.prefix_ids, tokenizer.suffix_ids


def _frames(pairs: Pairs, tokenizer: Tokenizer) -> list[DirectionFrame]:
    """Returns the special tokens of each pair of several directions."""
    if tokenizer.languages is None:
        raise ConfigError("the tokenizer knows no languages: add them with tag_languages")
    directions = pairs.directions or []
    known = {way: tokenizer.languages.frame(way) for way in dict.fromkeys(directions)}
    return [known[way] for way in directions]


def _frame_of_targets(tokenizer: Tokenizer) -> Frame:
    if tokenizer.languages is not None:
        return tokenizer.languages.frame(DEFAULT_DIRECTION).begins, (tokenizer.eos,)
    return tokenizer.target_prefix_ids, (tokenizer.eos,)


def encode_targets(texts: Sequence[str], tokenizer: Tokenizer) -> TokenStore:
    """Encodes targets, with the fixed first tokens and the end token."""
    return encode_texts(texts, tokenizer.targets, _frame_of_targets(tokenizer))


def encode_texts(
    texts: Sequence[str], tokenizer: Tokenizer, frame: Frame | list[Frame]
) -> TokenStore:
    """Encodes texts.

    Args:
        texts: The texts.
        tokenizer: Tokenizer of the texts.
        frame: Ids before and after every text, or a list with those of each.
    """
    dtype = id_dtype(tokenizer)
    frames: Iterator[Any] = iter(frame) if isinstance(frame, list) else itertools.repeat(frame)
    parts: list[np.ndarray] = []
    lengths: list[int] = []
    for start in range(0, len(texts), _CHUNK):
        encoded = tokenizer.encode_batch(texts[start : start + _CHUNK])
        framed = zip(encoded, frames, strict=False)
        rows = [(*before, *row, *after) for row, (before, after) in framed]
        lengths.extend(map(len, rows))
        parts.append(np.array([id for row in rows for id in row], dtype))
    ids = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return TokenStore(ids, row_offsets(np.array(lengths, np.int64)))


def _shortened(store: TokenStore, kept: Int[np.ndarray, " kept"], limit: int) -> TokenStore:
    rows = [store[i] for i in kept]
    rows = [row if len(row) <= limit else np.append(row[: limit - 1], row[-1]) for row in rows]
    ids = np.concatenate(rows) if rows else store.ids[:0]
    return TokenStore(ids, row_offsets(np.array([len(row) for row in rows], np.int64)))


def _key(pairs: Pairs, *settings: str) -> str:
    digest = hashlib.sha256("\0".join(settings).encode())
    for side in (pairs.sources, pairs.targets):
        for start in range(0, len(side), _CHUNK):
            # No text contains a NUL, so it separates them unambiguously.
            digest.update("\0".join(side[start : start + _CHUNK]).encode() + b"\0")
        digest.update(b"\0\0")
    return digest.hexdigest()[:24]


def _write(store: PairStore, folder: pathlib.Path) -> None:
    arrays = (store.source.ids, store.source.offsets, store.target.ids, store.target.offsets)

    def fill(draft: pathlib.Path) -> dict[str, int]:
        for name, array in zip(_NAMES, (*arrays, store.pair_indices), strict=True):
            np.save(draft / f"{name}.npy", array)
        return store.counts

    write_arrays(folder, (), fill)


def _open(folder: pathlib.Path) -> PairStore | None:
    found = open_arrays(folder, _NAMES)
    if found is None:
        return None
    arrays, counts = found
    return PairStore(TokenStore(*arrays[:2]), TokenStore(*arrays[2:4]), arrays[4], counts)


def write_arrays(
    folder: pathlib.Path, names: Sequence[str], fill: Callable[[pathlib.Path], dict[str, int]]
) -> tuple[list[np.ndarray], dict[str, int]]:
    """Writes a folder under a temporary name and renames it, so that it is always complete.

    Args:
        folder: Path of the folder.
        names: Names of the arrays that are returned, as by :func:`open_arrays`.
        fill: Writes ``*.npy`` files to the given folder, and returns counts to store.

    Raises:
        DataError: The folder cannot be written.
    """
    try:
        with draft_folder(folder) as draft:
            counts = fill(draft)
            files = {path.name: _sha256(path) for path in sorted(draft.glob("*.npy"))}
            note = {"files": files, "counts": counts}
            (draft / "store.json").write_text(json.dumps(note, indent=1), encoding="utf-8")
            if open_arrays(folder, ()) is None:  # otherwise another process wrote the same first
                shutil.rmtree(folder, ignore_errors=True)
                draft.rename(folder)
    except OSError as error:
        if open_arrays(folder, ()) is None:
            raise DataError(f"{folder}: cannot be written: {error.strerror or error}") from None
    found = open_arrays(folder, names)
    if found is None:
        raise DataError(f"{folder}: cannot be read after it was written")
    return found


def open_arrays(
    folder: pathlib.Path, names: Sequence[str]
) -> tuple[list[np.ndarray], dict[str, int]] | None:
    """Memory-maps the arrays of a folder, with its counts; None if it is missing or damaged."""
    try:
        note = json.loads(read_file(folder / "store.json").decode("utf-8"))
        if any(_sha256(folder / name) != digest for name, digest in note["files"].items()):
            return None
        arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in names]
        return arrays, note["counts"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def release_pages(array: np.ndarray) -> None:
    """Releases the memory of the pages read from a memory-mapped array.

    Example:
        >>> release_pages(np.zeros(3))
    """
    held = getattr(array, "base", None)
    # Other systems release it when memory is needed.
    if isinstance(held, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        held.madvise(mmap.MADV_DONTNEED)


def _sha256(path: pathlib.Path) -> str:
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
