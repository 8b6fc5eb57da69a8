"""Laws of decoding: caches and searches give the same as complete texts."""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from transformer_jax.core.errors import ArgumentError
from transformer_jax.decoding.exhaustive import exhaustive_search
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.laws.changes import replace_where
from transformer_jax.laws.finding import Finding, Place, difference, errors, finding, law, worst

__all__ = ["beam_search", "cached", "prefilled", "prompt_padding", "reordered"]

AXES = ("row", "position")
Tokens = Int[Array | np.ndarray, "B T"]
# Logits [B T V] of complete texts [B T]: teacher forcing, without a cache.
Whole = Callable[[Int[np.ndarray, "B T"]], PyTree]
# Logits [B V] after one more token [B] per row, and the next cache.
Step = Callable[[Int[np.ndarray, " B"], PyTree], tuple[PyTree, PyTree]]
# Logits [B V] after a prompt [B P], or after its last tokens [B n V], and the next cache.
Prefill = Callable[[Int[np.ndarray, "B P"], PyTree], tuple[PyTree, PyTree]]


@law("Decoding one token at a time with a cache gives the outputs of the full text.")
def cached(
    whole: Whole, step: Step, cache: PyTree, tokens: Tokens, *, tolerance: float = 1e-5
) -> Finding:
    """Checks that stepwise decoding gives the logits of teacher forcing at every position.

    Args:
        whole: Maps tokens ``[B T]`` to logits ``[B T V]``.
        step: Maps one token per row ``[B]`` and a cache to logits ``[B V]`` and the next cache.
        cache: The empty cache of ``B`` rows.
        tokens: Texts ``[B T]``.
        tolerance: Largest difference of a logit.

    Example:
        >>> count = lambda tokens: np.cumsum(np.eye(9)[tokens], axis=1)
        >>> step = lambda token, cache: 2 * (cache + np.eye(9)[token],)
        >>> cached(count, step, np.zeros((1, 9)), np.array([[3, 4, 3]])).holds
        True
        >>> late = lambda token, cache: (cache, cache + np.eye(9)[token])
        >>> cached(count, late, np.zeros((1, 9)), np.array([[3, 4, 3]])).where
        'row 0, position 0'
    """
    tokens = _several(tokens)
    found = _steps(step, cache, tokens)
    return finding("cached", difference(found, whole(tokens), AXES), tolerance)


@law("Reading a prompt at once and continuing step by step gives the outputs of the full text.")
def prefilled(
    whole: Whole,
    prefill: Prefill,
    step: Step,
    cache: PyTree,
    tokens: Tokens,
    length: int,
    *,
    tolerance: float = 1e-5,
) -> Finding:
    """Checks that a cache filled with a prompt at once continues like the complete text.

    Args:
        whole: Maps tokens ``[B T]`` to logits ``[B T V]``.
        prefill: Maps a prompt ``[B P]`` and a cache to logits after it ``[B V]``, or after each of
            its last tokens ``[B n V]``, and the next cache.
        step: Maps one token per row ``[B]`` and a cache to logits ``[B V]`` and the next cache.
        cache: The empty cache of ``B`` rows.
        tokens: Texts ``[B T]``.
        length: Number of tokens in the prompt, ``P``; the rest follow one at a time.
        tolerance: Largest difference of a logit.

    Example:
        >>> count = lambda tokens: np.cumsum(np.eye(9)[tokens], axis=1)
        >>> step = lambda token, cache: 2 * (cache + np.eye(9)[token],)
        >>> read = lambda tokens, cache: 2 * (cache + np.eye(9)[tokens].sum(1),)
        >>> prefilled(count, read, step, np.zeros((1, 9)), np.array([[3, 4, 3]]), 2).holds
        True
        >>> forgets = lambda tokens, cache: (read(tokens, cache)[0], cache)
        >>> prefilled(count, forgets, step, np.zeros((1, 9)), np.array([[3, 4, 3]]), 2).where
        'row 0, position 2'
    """
    tokens = _several(tokens)
    if not 0 < length < tokens.shape[1]:
        raise ArgumentError(
            f"laws: the prompt has length {length}, the text {tokens.shape[1]}: give a prompt of "
            f"at least 1 that is shorter than the text"
        )
    found = _continued(prefill, step, cache, tokens, length)
    place = _from(tokens.shape[1] - found.shape[1], found, np.asarray(whole(tokens)))
    return finding("prefilled", place, tolerance)


@law("Padding before a prompt changes no output after it.")
def prompt_padding(
    whole: Whole,
    prefill: Callable[
        [Int[np.ndarray, "B P"], PyTree, Int[np.ndarray, " B"]], tuple[PyTree, PyTree]
    ],
    step: Step,
    cache: PyTree,
    tokens: Tokens,
    starts: Int[Array | np.ndarray, " B"],
    *,
    tolerance: float = 1e-5,
) -> Finding:
    """Checks that left-padded prompts continue like the texts without padding.

    Other tokens at padding must change nothing.

    Args:
        whole: Maps tokens ``[B T]`` to logits ``[B T V]``, without reading later tokens
            (:func:`causality`).
        prefill: Maps prompts ``[B P]``, a cache and ``starts`` to logits after them ``[B V]`` and
            the next cache.
        step: Maps one token per row ``[B]`` and a cache to logits ``[B V]`` and the next cache.
        cache: The empty cache of ``B`` rows.
        tokens: Texts ``[B T]``. The prompts are all but the last two tokens.
        starts: Index of the first token of each row; arbitrary tokens precede it.
        tolerance: Largest difference of a logit.

    Raises:
        ArgumentError: No prompt has padding, or one is only padding.

    Example:
        >>> count = lambda tokens: np.cumsum(np.eye(9)[tokens], axis=1)
        >>> step = lambda token, cache: 2 * (cache + np.eye(9)[token],)
        >>> def read(tokens, cache, starts):
        ...     real = np.arange(tokens.shape[1]) >= starts[:, None]
        ...     return 2 * (cache + (np.eye(9)[tokens] * real[..., None]).sum(1),)
        >>> given = np.zeros((1, 9)), np.array([[3, 4, 3, 5]]), np.array([1])
        >>> prompt_padding(count, read, step, *given).holds
        True
        >>> blind = lambda tokens, cache, starts: read(tokens, cache, 0 * starts)
        >>> prompt_padding(count, blind, step, *given).where
        'row 0, position 1 reads its padding'
    """
    tokens, starts = _several(tokens), np.asarray(starts)
    T, length = tokens.shape[1], tokens.shape[1] - 2
    if not starts.any() or starts.min() < 0 or starts.max() >= length:
        raise ArgumentError(
            f"laws: starts are {starts.tolist()}: give one above 0, and all below the {length} "
            "tokens of prompts"
        )
    fill = lambda prompt, cache: prefill(prompt, cache, starts)
    found = _continued(fill, step, cache, tokens, length)
    places = np.arange(T)[None] + starts[:, None]
    alone = np.asarray(whole(np.take_along_axis(tokens, places % T, axis=1)))
    at = (np.arange(T - found.shape[1], T)[None] - starts[:, None])[:, :, None]
    fits = _from(T - found.shape[1], found, np.take_along_axis(alone, at, axis=1))
    changed = replace_where(tokens, np.arange(T)[None] < starts[:, None])
    change, where = _from(T - found.shape[1], _continued(fill, step, cache, changed, length), found)
    reads = (math.inf, f"{where} reads its padding") if change else (0.0, "")
    return finding("prompt_padding", worst(reads, fits), tolerance)


@law("A beam gives the outputs of its own history, however beams are reordered.")
def reordered(
    whole: Whole,
    step: Step,
    reorder: Callable[[PyTree, Int[np.ndarray, "B M"]], PyTree],
    cache: PyTree,
    tokens: Int[Array | np.ndarray, "B M T"],
    *,
    tolerance: float = 1e-5,
) -> Finding:
    """Checks that caches follow the ancestors of beams.

    After each step, every beam continues from a random beam of its row.

    Args:
        whole: Maps tokens ``[B T]`` to logits ``[B T V]``, without reading later tokens
            (:func:`causality`).
        step: Maps one token per beam ``[B · M]`` and a cache to logits ``[B · M, V]`` and the next
            cache.
        reorder: Maps a cache and the parents of beams ``[B M]`` to the cache of their children.
        cache: The empty cache of ``B · M`` rows, with beams of one row adjacent.
        tokens: The token of each beam at each step.
        tolerance: Largest difference of a logit.

    Example:
        >>> count = lambda tokens: np.cumsum(np.eye(9)[tokens], axis=1)
        >>> step = lambda token, cache: 2 * (cache + np.eye(9)[token],)
        >>> take = lambda cache, parents: cache.reshape(1, 2, 9)[0, parents[0]]
        >>> tokens = np.array([[[3, 4, 5], [6, 7, 8]]])
        >>> reordered(count, step, take, np.zeros((2, 9)), tokens).holds
        True
        >>> reordered(count, step, lambda cache, _: cache, np.zeros((2, 9)), tokens).where
        'row 0, beam 0, step 1'
    """
    tokens = _several(tokens)
    B, M, T = tokens.shape
    if M < 2:
        raise ArgumentError("laws: one beam has no others to continue from: give two or more")
    draw, history, places = np.random.default_rng(0), tokens.copy(), []
    for t in range(T):
        history[:, :, t] = tokens[:, :, t]
        logits, cache = step(tokens[:, :, t].reshape(-1), cache)
        found = np.asarray(logits).reshape(B, M, -1)
        wanted = [np.asarray(whole(history[:, m]))[:, t] for m in range(M)]
        error, where = difference(found, np.stack(wanted, axis=1), ("row", "beam"))
        places.append((error, f"{where}, step {t}"))
        parents = draw.integers(0, M, (B, M)).astype(np.int32)
        history = np.take_along_axis(history, parents[:, :, None], axis=1)
        cache = reorder(cache, parents)
    return finding("reordered", worst(*places), tolerance)


@law("A beam that holds every prefix finds the texts of exhaustive search.")
def beam_search(
    search: Callable[[], Sequence[tuple[Sequence[int], float]]],
    scorer: Callable[[Int[np.ndarray, "R T"]], PyTree],
    special: SpecialTokens,
    config: GenerationConfig,
    *,
    start: int,
    vocab_size: int,
    length: int,
    tolerance: float = 1e-4,
) -> Finding:
    """Checks the texts and scores of a search against the scores of all possible texts.

    Args:
        search: Returns texts, as tokens including the end token, and their scores, best first.
        scorer: Maps prefixes ``[R T]``, including the first token, to logits ``[R T V]``.
        special: Ids of end tokens and suppressed tokens.
        config: ``num_return_sequences``, ``normalization`` and ``length_penalty`` are used.
        start: The token that starts every text.
        vocab_size: Number of tokens.
        length: Largest number of tokens in a text, including its end.
        tolerance: Largest difference of a score.

    Example:
        >>> config = GenerationConfig(num_beams=4, num_return_sequences=2, do_sample=False)
        >>> scorer = lambda prefixes: np.log([0.5, 0.2, 0.3]) + np.zeros((*prefixes.shape, 3))
        >>> law = lambda search: beam_search(
        ...     search, scorer, SpecialTokens(eos=0, pad=9), config, start=1, vocab_size=3, length=2
        ... )
        >>> law(lambda: [([0], np.log(0.5)), ([2, 0], np.log(0.15) / 2)]).holds
        True
        >>> law(lambda: [([2, 0], np.log(0.15) / 2), ([0], np.log(0.5))]).where
        'text 0: [2, 0] instead of [0]'
    """
    exact = exhaustive_search(
        lambda prefixes: np.asarray(scorer(prefixes)), special, config,
        start=start, vocab_size=vocab_size, length=length,
    )  # fmt: skip
    found, places = list(search()), []
    for n in range(max(len(found), len(exact))):
        tokens, score = ([], math.nan) if n >= len(found) else found[n]
        wanted = list(exact[n].tokens) if n < len(exact) else []
        if list(map(int, tokens)) != wanted:
            places.append((math.inf, f"text {n}: {list(map(int, tokens))} instead of {wanted}"))
        else:
            error = errors(np.array(float(score)), np.array(exact[n].score))
            places.append((float(error), f"score of text {n}"))
    return finding("beam_search", worst(*places), tolerance)


def _several(tokens: Int[Array | np.ndarray, "*rows T"]) -> Int[np.ndarray, "*rows T"]:
    """Returns texts as a NumPy array; refuses texts that need no cache."""
    if not tokens.size or tokens.shape[-1] < 2:
        raise ArgumentError(
            f"laws: the texts have shape {list(tokens.shape)}: give texts of two tokens or more, "
            f"which need a cache"
        )
    return np.asarray(tokens)


def _steps(step: Step, cache: PyTree, tokens: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "B T V"]:
    logits = []
    for t in range(tokens.shape[1]):
        out, cache = step(tokens[:, t], cache)
        logits.append(np.asarray(out))
    return np.stack(logits, axis=1)


def _continued(
    prefill: Prefill, step: Step, cache: PyTree, tokens: Int[np.ndarray, "B T"], length: int
) -> Float[np.ndarray, "B n V"]:
    """Returns logits after the end of a prompt and after each following token."""
    first, cache = prefill(tokens[:, :length], cache)
    first = np.asarray(first)
    first = first if first.ndim == 3 else first[:, None]
    return np.concatenate([first, _steps(step, cache, tokens[:, length:])], axis=1)


def _from(
    first: int, found: Float[np.ndarray, "B n V"], wanted: Float[np.ndarray, "B m V"]
) -> Place:
    """The largest difference from the last logits of a text; ``found`` begins at ``first``."""
    error = errors(found, wanted[:, -found.shape[1] :])
    row, t, _ = np.unravel_index(int(np.argmax(error)), error.shape)
    return float(error.max()), f"row {row}, position {first + t}"
