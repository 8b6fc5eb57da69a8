"""Batches of prompts, with settings for each row; translators have :meth:`.Translator.batches`."""

from collections.abc import Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from transformer_jax.core.keys import key_for
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.decoding.search_plan import SearchPlan, SearchValues, plan_of, with_special

__all__ = ["batch_by_length", "is_plain", "left_pad", "row_settings", "sampling_keys"]


def batch_by_length(
    sequences: Iterable[GenerationSequence], most: int, *, alone: bool
) -> Iterator[list[GenerationSequence]]:
    """Yields batches of at most ``most`` prompts, similar in length and either greedy or not.

    Args:
        sequences: The sequences.
        most: Largest number of rows in a batch.
        alone: Whether greedy texts get their own batch each, as speculation needs.
    """
    single = lambda sequence: alone and is_plain(sequence.request)
    kind = lambda sequence: (single(sequence), sequence.request.samples)
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
    """Returns texts as rows that end in the last column, and the index at which each begins.

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
    """Returns whether a request is plain greedy search."""
    return (
        request.greedy
        and request.repetition_penalty == 1
        and not request.no_repeat_ngram_size
        and not request.min_new_tokens
    )


def row_settings(
    sequences: Sequence[GenerationSequence], rows: int, special: SpecialTokens, vocab: int
) -> tuple[SearchPlan, SearchValues]:
    """Returns the search plan of a batch, and the settings of each row.

    Settings that no row uses are left out of the computation.

    Args:
        sequences: The sequences.
        rows: Number of rows of the batch; rows beyond the sequences have no effect.
        special: End tokens, padding and suppressed tokens.
        vocab: Number of tokens that the model can write.
    """
    requests = [sequence.request for sequence in sequences]

    each = lambda name: [getattr(request, name) for request in requests]
    sampled = any(request.samples for request in requests)
    plan = plan_of(requests, sampled=sampled)
    temperature = [one.temperature if one.samples else 0.0 for one in requests]
    shortest = [
        1 + (sequence.request.min_new_tokens or 0) - len(sequence.tokens) for sequence in sequences
    ]
    # By processor: function of a request to its value, and a value without effect.
    given: dict[str, tuple[str, Sequence[float | None], float | int]] = {
        "repetition_penalty": ("repetition", each("repetition_penalty"), 1.0),
        "no_repeat_ngram_size": ("ngram", each("no_repeat_ngram_size"), 0),
        "min_length": ("min_length", shortest, 0),
        "temperature": ("temperature", temperature, 1.0),
        "top_k": ("top_k", each("top_k"), vocab),
        "top_p": ("top_p", each("top_p"), 1.0),
        "min_p": ("min_p", each("min_p"), 0.0),
    }

    def column(numbers: Sequence[float | int | None], nothing: float | int) -> np.ndarray:
        numbers = [nothing if number is None else number for number in numbers]
        dtype = np.int32 if isinstance(nothing, int) else np.float32
        return np.array([*numbers, *[nothing] * (rows - len(numbers))], dtype)

    values = SearchValues(np.array(special.ends, np.int32), np.int32(special.pad))._replace(
        **{
            field: column(numbers, nothing)
            for name, (field, numbers, nothing) in given.items()
            if name in plan.processors
        }
    )
    return with_special(plan, values, special, vocab)


def sampling_keys(
    sequences: Sequence[GenerationSequence], rows: int
) -> Key[Array, " {rows}"] | None:
    """Returns a key for each row; None if all rows are greedy.

    It is derived from the request's seed and index, and the index of the sample.
    """
    if not any(sequence.request.samples for sequence in sequences):
        return None
    seeds, numbers, samples = np.zeros((3, rows), np.uint32)
    for row, sequence in enumerate(sequences):
        seeds[row] = sequence.request.seed % 2**32
        numbers[row], samples[row] = sequence.request.number or 0, sequence.sample
    return jax.vmap(_row_key)(*map(jnp.asarray, (seeds, numbers, samples)))


def _row_key(seed: Array, number: Array, sample: Array) -> Key[Array, ""]:
    return jax.random.fold_in(jax.random.fold_in(key_for(seed, "sampling"), number), sample)
