"""Scores given translations token by token, by teacher forcing."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.functional.logits import normalizer, take_logit

__all__ = ["TargetScore", "TeacherForced", "TraceStep", "teacher_forced_log_probs", "trace_steps"]


class TeacherForced(NamedTuple):
    """Log-probabilities of given tokens, and of the most probable alternatives."""

    log_probs: Float[Array, "B T"]
    best: Float[Array, "B T K"]
    best_tokens: Int[Array, "B T K"]


@dataclasses.dataclass(frozen=True)
class TargetScore:
    """The log-probability of a translation under the model."""

    log_prob: float  # of all tokens, including EOS
    tokens: tuple[int, ...]  # including EOS
    log_probs: tuple[float, ...]  # of each token, given the tokens before it


@dataclasses.dataclass(frozen=True)
class TraceStep:
    """One step of a translation: the written token, and the model's probabilities."""

    piece: str
    token: int
    log_prob: float
    best: tuple[tuple[str, float], ...]  # the most probable tokens, and their log-probabilities


def teacher_forced_log_probs(
    logits: Float[Array, "B T V"], target: Int[Array, "B T"], best: int = 0
) -> TeacherForced:
    """Log-probabilities of ``target``, and of the ``best`` most probable tokens at each position.

    They are NaN if a logit is NaN or infinite.

    Example:
        >>> import jax.numpy as jnp
        >>> logits = jnp.log(jnp.array([[[0.7, 0.2, 0.1]]]))
        >>> out = teacher_forced_log_probs(logits, jnp.array([[1]]), best=2)
        >>> jnp.exp(out.log_probs).round(3), out.best_tokens
        (Array([[0.2]], dtype=float32), Array([[[0, 1]]], dtype=int32))
    """
    peak, rest = (part[:, :, None] for part in normalizer(logits))
    chosen = take_logit(logits, target)[:, :, None]
    values, tokens = lax.top_k(logits, min(best, logits.shape[-1]))
    return TeacherForced(((chosen - peak) - rest)[:, :, 0], (values - peak) - rest, tokens)


def trace_steps(
    tokenizer: TextTokenizer, tokens: Sequence[int], forced: Iterable[np.ndarray]
) -> list[TraceStep]:
    """Returns the steps of one text.

    Args:
        tokenizer: Tokenizer that names tokens.
        tokens: Tokens of the text.
        forced: The fields of their :class:`TeacherForced`: ``[T]``, ``[T K]`` and ``[T K]``.
    """
    steps = []
    for token, log_prob, best, others in zip(
        tokens, *(part.tolist() for part in forced), strict=True
    ):
        piece, *names = tokenizer.convert_ids_to_tokens([token, *others])
        steps.append(TraceStep(piece, token, log_prob, tuple(zip(names, best, strict=True))))
    return steps
