"""Which sequences are generated together, and the settings of each row of their batch."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, Key

from transformer_jax.decoding.generate import SamplingConfig
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.writing import GenerationSequence
from transformer_jax.keys import key_for

__all__ = ["batch_by_length", "is_plain", "left_pad", "sampling_config", "sampling_keys"]


def batch_by_length(
    sequences: Iterable[GenerationSequence], most: int, *, alone: bool
) -> Iterator[list[GenerationSequence]]:
    """Batches of at most ``most``: prompts of like length, and alike in being greedy.

    Args:
        sequences: The sequences.
        most: Rows of a batch.
        alone: Whether greedy texts come one by one, as speculation writes them.
    """
    single = lambda sequence: alone and is_plain(sequence.request)
    kind = lambda sequence: (single(sequence), sequence.request.temperature > 0)
    batch: list[GenerationSequence] = []
    for sequence in sorted(
        sequences, key=lambda sequence: (kind(sequence), len(sequence.prompt_ids))
    ):
        full = len(batch) == most or single(sequence)
        if batch and (full or kind(batch[0]) != kind(sequence)):
            yield batch
            batch = []
        batch.append(sequence)
    if batch:
        yield batch


def left_pad(
    texts: Sequence[Sequence[int]], rows: int, width: int, pad: int
) -> tuple[Int[np.ndarray, "{rows} {width}"], Int[np.ndarray, " {rows}"]]:
    """Texts as rows that end in the last column, and where each begins.

    Example:
        >>> left_pad([[5, 6], [7]], 2, 3, pad=0)
        (array([[0, 5, 6],
               [0, 0, 7]], dtype=int32), array([1, 2], dtype=int32))
    """
    tokens = np.full((rows, width), pad, np.int32)
    starts = np.full(rows, width - 1, np.int32)
    for row, ids in enumerate(texts):
        tokens[row, width - len(ids) :], starts[row] = ids, width - len(ids)
    return tokens, starts


def is_plain(request: GenerationRequest) -> bool:
    """Whether a request is greedy and nothing else."""
    return (
        request.temperature == 0
        and request.repetition_penalty == 1
        and not request.no_repeat_ngram_size
        and request.num_beams == 1
    )


def sampling_config(
    sequences: Sequence[GenerationSequence], rows: int, vocab: int
) -> SamplingConfig:
    """Each row's settings; a setting that no row has is None, and left out of the computation."""

    def column(name: str, nothing: float | int, dtype: Any = np.float32) -> np.ndarray | None:
        values = [getattr(sequence.request, name) for sequence in sequences]
        values = [nothing if value is None else value for value in values]
        if all(value == nothing for value in values):
            return None
        return np.array(values + [nothing] * (rows - len(values)), dtype)

    temperature = [sequence.request.temperature for sequence in sequences]
    return SamplingConfig(
        temperature=np.array(temperature + [1.0] * (rows - len(sequences)), np.float32),
        top_k=column("top_k", vocab, np.int32),
        top_p=column("top_p", 1.0),
        min_p=column("min_p", 0.0),
        repetition_penalty=column("repetition_penalty", 1.0),
        no_repeat_ngram_size=column("no_repeat_ngram_size", 0, np.int32),
    )


def sampling_keys(
    sequences: Sequence[GenerationSequence], rows: int
) -> Key[Array, " {rows}"] | None:
    """A key for each row; None if all rows are greedy.

    It follows from the seed of its request, the number of the request, and that of the sample.
    """
    if all(sequence.request.temperature == 0 for sequence in sequences):
        return None
    seeds, numbers, samples = np.zeros((3, rows), np.uint32)
    for row, sequence in enumerate(sequences):
        seeds[row] = sequence.request.seed % 2**32
        numbers[row], samples[row] = sequence.request.number or 0, sequence.sample
    return jax.vmap(_row_key)(seeds, numbers, samples)


def _row_key(seed: Any, number: Any, sample: Any) -> Key[Array, ""]:
    return jax.random.fold_in(jax.random.fold_in(key_for(seed, "sampling"), number), sample)
