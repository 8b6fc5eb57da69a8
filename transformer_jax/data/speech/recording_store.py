"""Recordings with their texts as arrays: selection of those that fit a model, and batches."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int

from transformer_jax.data.loader import Batch, pad_rows
from transformer_jax.data.speech.features import Normalization
from transformer_jax.data.speech.recordings import FeatureStore, Recordings
from transformer_jax.data.store import TokenStore, encode_targets
from transformer_jax.data.tokenizer import Tokenizer

__all__ = ["SpeechStore", "build_speech_store", "fill_positions", "make_speech_batch"]


@dataclasses.dataclass(frozen=True)
class SpeechStore:
    """Features and texts of recordings.

    Attributes:
        features: Features of all recordings.
        target: Token ids of all texts.
        kept: Indices of the recordings in use; all others are too long.
        normalization: Applied to features when a batch is made.
        stacked_frames: Frames per position.
        counts: Numbers of dropped recordings by reason.
    """

    features: FeatureStore
    target: TokenStore
    kept: Int[np.ndarray, " count"]
    normalization: Normalization
    stacked_frames: int
    counts: dict[str, int]

    def __len__(self) -> int:
        return len(self.kept)

    @property
    def source_lengths(self) -> Int[np.ndarray, " count"]:
        """Number of positions of each recording."""
        return np.asarray(-(-self.features.frames[self.kept] // self.stacked_frames))

    @property
    def target_lengths(self) -> Int[np.ndarray, " count"]:
        """Number of tokens of each text, including its end token."""
        return np.asarray(self.target.lengths[self.kept])


def build_speech_store(
    features: FeatureStore,
    recordings: Recordings,
    tokenizer: Tokenizer,
    normalization: Normalization,
    *,
    stacked_frames: int,
    max_length: int,
) -> SpeechStore:
    """Keeps recordings of 1 to ``max_length`` positions whose texts have at most as many tokens.

    Args:
        features: Features of the recordings.
        recordings: The recordings with their texts.
        tokenizer: Tokenizer of the texts.
        normalization: Normalization of the features.
        stacked_frames: Frames per position.
        max_length: Largest number of positions, and of tokens including the end token.
    """
    target = encode_targets(recordings.texts, tokenizer)
    positions = -(-features.frames // stacked_frames)
    long, wordy, bad = positions > max_length, target.lengths > max_length, positions == 0
    found = {
        "bad": int(bad.sum()),
        "recording_too_long": int(long.sum()),
        "text_too_long": int((wordy & ~long & ~bad).sum()),
    }
    counts = {reason: count for reason, count in found.items() if count}
    kept = np.flatnonzero(~(long | wordy | bad))
    return SpeechStore(features, target, kept, normalization, stacked_frames, counts)


def make_speech_batch(
    store: SpeechStore, indices: Int[np.ndarray, " B"], S: int, T: int, pad: int = 0
) -> Batch:
    """Returns the arrays of one batch: normalized and stacked features, and texts, padded.

    A row of index -1 is only padding and has length 0.

    Returns:
        ``inputs``, a dictionary of ``source`` float32 ``[B S W]`` and ``source_lengths`` int32
        ``[B]``; ``target`` int32 ``[B T]`` and its ``lengths`` int32 ``[B]``.
    """
    rows = np.where(indices < 0, -1, store.kept[np.maximum(indices, 0)])
    width = store.features.features.shape[1]
    empty = np.zeros((0, width), np.float32)
    features = [store.normalization(store.features[i]) if i >= 0 else empty for i in rows.tolist()]
    source, source_lengths = fill_positions(features, len(rows), S, store.stacked_frames)
    target, lengths = pad_rows(store.target, rows, T, pad)
    inputs = {"source": source, "source_lengths": source_lengths}
    return {"inputs": inputs, "target": target, "lengths": lengths}


def fill_positions(
    features: Sequence[Float32[np.ndarray, "_ F"]], rows: int, S: int, stacked_frames: int
) -> tuple[Float32[np.ndarray, "{rows} {S} W"], Int[np.ndarray, " {rows}"]]:
    """Stacks the frames of recordings as rows of one array, zero-padded; returns the lengths too.

    Each row equals the result of :func:`.stack_frames`. On the host, NumPy computes it, so a new
    length needs no compilation.

    Args:
        features: Normalized features of the first rows.
        rows: Number of rows.
        S: Number of positions.
        stacked_frames: Frames per position.

    Example:
        >>> fill_positions([np.array([[1], [2], [3]], np.float32)], 1, 2, 2)
        (array([[[1., 2.],
                [3., 0.]]], dtype=float32), array([2], dtype=int32))
    """
    width = features[0].shape[1]
    filled = np.zeros((rows, S * stacked_frames, width), np.float32)
    lengths = np.zeros(rows, np.int32)
    for row, frames in enumerate(features):
        filled[row, : len(frames)] = frames
        lengths[row] = -(-len(frames) // stacked_frames)
    return filled.reshape(rows, S, stacked_frames * width), lengths
