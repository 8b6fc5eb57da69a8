"""Random masks for masked-language modelling."""

import dataclasses
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int, Int32

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.plan import uniform
from transformer_jax.data.tokenizer import Tokenizer

__all__ = ["MLMMasking", "MaskedTokens", "mask_tokens"]


class MaskedTokens(NamedTuple):
    """Rows with masked tokens, and the tokens to predict.

    Attributes:
        tokens: The input tokens.
        masked_positions: Positions of the masked tokens, in order; 0 beyond the last.
        targets: The original tokens.
        weights: 1 for a masked token, 0 beyond the last.
    """

    tokens: Int32[np.ndarray, "B T"]
    masked_positions: Int32[np.ndarray, "B P"]
    targets: Int32[np.ndarray, "B P"]
    weights: Float32[np.ndarray, "B P"]


@dataclasses.dataclass(frozen=True)
class MLMMasking:
    """The choice of masked tokens and their replacements (Devlin et al. 2019).

    Attributes:
        mask: The id of ``[MASK]``.
        plain: The ids of text tokens, from which random replacements are drawn.
        is_continuation: Whether each id continues a word, for whole-word masking. None masks single
            tokens.
        mlm_probability: Fraction of the tokens of a row to mask.
        mask_replace_prob: Fraction of these that become ``mask``.
        random_replace_prob: Fraction of these that become a random id of ``plain``; the rest do not
            change.
    """

    mask: int
    plain: Int[np.ndarray, " plain"]
    is_continuation: Bool[np.ndarray, " V"] | None = None
    mlm_probability: float = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, *, whole_word_mask: bool = False, **shares: float
    ) -> "MLMMasking":
        """BERT's masking with the ids of a tokenizer.

        Args:
            tokenizer: Tokenizer with a mask token.
            whole_word_mask: Mask all tokens of a word together.
            **shares: ``mlm_probability``, ``mask_replace_prob`` and ``random_replace_prob``, if
                they differ from BERT's.

        Raises:
            ConfigError: The tokenizer has no mask token, or ``whole_word_mask`` is set but its ids
                do not show where words begin.
        """
        if tokenizer.mask is None:
            raise ConfigError(
                "the tokenizer has no [MASK] token: train one with this run, or give a "
                "tokenizer.json that has [MASK] or <mask>"
            )
        if whole_word_mask and not tokenizer.is_continuation.any():
            raise ConfigError(
                "masking.whole_word_mask: the ids of this tokenizer do not show where words begin: "
                "choose tokenizer.kind wordpiece"
            )
        ids = np.arange(tokenizer.vocab_size)
        plain = ids[~np.isin(ids, list(tokenizer.special_ids))]
        return cls(
            tokenizer.mask, plain, tokenizer.is_continuation if whole_word_mask else None, **shares
        )

    def room(self, T: int) -> int:
        """``P``: the largest number of masked tokens in a row of ``T``."""
        return max(1, round(self.mlm_probability * T))


def mask_tokens(
    tokens: Int[np.ndarray, "B T"],
    allowed: Bool[np.ndarray, "B T"],
    masking: MLMMasking,
    numbers: Int[np.ndarray, " B"],
    seed: int,
    epoch: int,
) -> MaskedTokens:
    """Masks tokens at random; the choice depends only on seed, epoch and row number.

    Of ``n`` allowed tokens, ``round(mlm_probability · n)`` are masked, at least one; whole words
    are taken in random order as long as they fit into that number.

    Args:
        tokens: The rows.
        allowed: Which tokens may be masked: no special tokens and no padding.
        masking: Probabilities and replacements.
        numbers: The index of each row in its data set.
        seed: Random seed.
        epoch: Index of the epoch; each epoch masks different tokens.

    Example:
        >>> masking = MLMMasking(
        ...     mask=4, plain=np.arange(5, 10), mlm_probability=0.5,
        ...     mask_replace_prob=1.0, random_replace_prob=0.0,
        ... )
        >>> row = np.array([[2, 7, 8, 9, 6, 3]])
        >>> masked = mask_tokens(row, row > 4, masking, np.array([0]), seed=1, epoch=0)
        >>> masked.tokens, masked.masked_positions, masked.targets
        (array([[2, 7, 4, 9, 4, 3]], dtype=int32),
         array([[2, 4, 0]], dtype=int32),
         array([[8, 6, 0]], dtype=int32))
    """
    B, T = tokens.shape
    P = min(masking.room(T), T)
    draw = lambda stream: uniform(numbers[:, None] * T + np.arange(T), seed, 4 * epoch + stream)
    count = allowed.sum(1)
    wanted = np.where(count, np.clip(np.rint(masking.mlm_probability * count), 1, P), 0).astype(int)
    order = np.where(allowed, draw(0), 2.0)
    if masking.is_continuation is None:
        first = np.argsort(order, axis=1, kind="stable")[:, :P]
        picked = np.arange(P) < wanted[:, None]
    else:
        first, picked = _whole_words(order, allowed, masking.is_continuation[tokens], wanted, P)
    # In order of position, with unmasked tokens last.
    places = np.sort(np.where(picked, first, T), axis=1)
    picked = places < T
    places = np.where(picked, places, 0)
    targets = np.take_along_axis(tokens, places, 1)
    fate = np.take_along_axis(draw(1), places, 1)
    other = np.take_along_axis(draw(2), places, 1)
    random = masking.plain[(other * len(masking.plain)).astype(int)]
    shown = np.where(
        fate < masking.mask_replace_prob + masking.random_replace_prob, random, targets
    )
    shown = np.where(fate < masking.mask_replace_prob, masking.mask, shown)
    corrupted = tokens.astype(np.int32)
    rows = np.broadcast_to(np.arange(B)[:, None], places.shape)
    corrupted[rows[picked], places[picked]] = shown[picked]
    return MaskedTokens(
        corrupted,
        places.astype(np.int32),
        np.where(picked, targets, 0).astype(np.int32),
        picked.astype(np.float32),
    )


def _whole_words(
    order: np.ndarray, allowed: np.ndarray, inside: np.ndarray, wanted: np.ndarray, P: int
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of random words with the required number of tokens in total, or fewer."""
    first = np.zeros((len(order), P), int)
    picked = np.zeros((len(order), P), bool)
    before = np.pad(allowed, ((0, 0), (1, 0)))[:, :-1]
    begins = allowed & ~(inside & before)  # a truncated word begins with its first remaining token
    for row, (starts, keys) in enumerate(zip(begins, order, strict=True)):
        at = np.flatnonzero(starts)
        # The candidate tokens of a word follow its first token without a gap.
        sizes = np.add.reduceat(allowed[row].astype(int), at) if len(at) else at
        chosen: list[int] = []
        for word in np.argsort(keys[at], kind="stable"):
            if len(chosen) + sizes[word] <= wanted[row]:
                chosen.extend(range(at[word], at[word] + sizes[word]))
        first[row, : len(chosen)] = chosen
        picked[row, : len(chosen)] = True
    return first, picked
