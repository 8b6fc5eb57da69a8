"""Objectives: ``(model, batch, key) -> {"loss": (sum, weight), name: (sum, weight), ...}``."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.errors import ConfigError
from transformer_jax.functional.losses import cross_entropy, fused_linear_cross_entropy
from transformer_jax.models.protocol import Scorer
from transformer_jax.training.step import Objective

__all__ = ["language_model", "length_weights", "shift_tokens_right", "translation"]


def shift_tokens_right(target: Int[Array, "B T"], bos: int) -> Int[Array, "B T"]:
    """What the decoder reads while it predicts ``target``: ``bos``, then all but the last token.

    The only place where targets are shifted. Position t reads token t - 1, so that under a causal
    mask, diagonal included, it sees exactly the tokens before the one it predicts (row U10).

    Example:
        >>> shift_tokens_right(jnp.array([[5, 6, 2]]), bos=1)
        Array([[1, 5, 6]], dtype=int32)
    """
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=bos)


def length_weights(lengths: Int[Array, "B"], length: int) -> Float[Array, "B T"]:
    """1 where a target is a token and 0 where it is padding; a row of length 0 weighs nothing.

    Example:
        >>> length_weights(jnp.array([2, 0]), 3)
        Array([[1., 1., 0.],
               [0., 0., 0.]], dtype=float32)
    """
    return (jnp.arange(length)[None] < lengths[:, None]).astype(jnp.float32)


def translation(bos: int, smoothing: float = 0.0, chunk: int | None = None) -> Objective:
    """The cross-entropy of a target text given its source, in nats, as sum and number of tokens.

    Args:
        bos: The token that decoder inputs begin with.
        smoothing: Probability spread evenly over the vocabulary (Vaswani et al. 2017: 0.1).
        chunk: Tokens whose scores are held at a time; 0 holds those of the whole batch, None lets
            the loss choose.

    Returns:
        ``objective(model, batch, key)``. The batch holds ``source``, ``source_lengths``,
        ``target`` (without BOS, with EOS) and ``target_lengths``.

    Raises:
        ConfigError: Smoothing outside [0, 1) or a negative chunk.
    """
    _check(smoothing, chunk)

    def objective(model: Scorer, batch: dict[str, Any], key: Array | None = None):
        names = "source", "source_lengths", "target", "target_lengths"
        source, source_lengths, target, lengths = (jnp.asarray(batch[name]) for name in names)
        weights = length_weights(lengths, target.shape[1])
        inputs = {"source": source, "source_lengths": source_lengths}
        hidden = model.hidden(inputs, shift_tokens_right(target, bos), key=key)
        if chunk == 0:
            logits = model.output_table().logits(hidden)
            return {"loss": cross_entropy(logits, target, weights, smoothing)}
        return {"loss": _fused(model, hidden, target, weights, smoothing, chunk)}

    return objective


def language_model(smoothing: float = 0.0, chunk: int | None = None) -> Objective:
    """The cross-entropy of texts, in nats, as sum and number of tokens (row B27).

    Args:
        smoothing: Probability spread evenly over the vocabulary.
        chunk: Tokens whose scores are held at a time; 0 holds those of the whole batch, None lets
            the loss choose.

    Returns:
        ``objective(model, batch, key)``. The batch holds ``tokens``, the ``targets`` that follow
        each of them and their ``weights``; and of packed rows ``segments`` and ``positions``.

    Raises:
        ConfigError: Smoothing outside [0, 1) or a negative chunk.
    """
    _check(smoothing, chunk)

    def objective(model: Scorer, batch: dict[str, Any], key: Array | None = None):
        tokens, targets, weights = (jnp.asarray(batch[n]) for n in ("tokens", "targets", "weights"))
        inputs = {"segment_ids": batch.get("segments"), "positions": batch.get("positions")}
        hidden = model.hidden(inputs, tokens, key=key)
        if chunk == 0:
            logits = model.output_table().logits(hidden)
            return {"loss": cross_entropy(logits, targets, weights, smoothing)}
        return {"loss": _fused(model, hidden, targets, weights, smoothing, chunk)}

    return objective


def _check(smoothing: float, chunk: int | None) -> None:
    if not 0.0 <= smoothing < 1.0:
        raise ConfigError(f"label smoothing is {smoothing}: allowed are 0 up to, not including, 1")
    if chunk is not None and chunk < 0:
        raise ConfigError(f"loss chunk is {chunk}: allowed are 0 (everything at once) and more")


def _fused(model, hidden, target, weights, smoothing, chunk):
    table, bias, scale, softcap = model.output_table()
    return fused_linear_cross_entropy(
        hidden, table, target, weights,
        bias=bias, scale=scale, softcap=softcap, label_smoothing=smoothing, chunk=chunk,
    )  # fmt: skip
