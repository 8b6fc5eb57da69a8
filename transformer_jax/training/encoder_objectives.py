"""What training an encoder minimises: ``(model, batch, key) -> (sum, weight, further sums)``."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from transformer_jax.functional.losses import cross_entropy, fused_linear_cross_entropy
from transformer_jax.models.heads import gather_positions

__all__ = [
    "answer_spans",
    "inputs",
    "masked_words",
    "span_scores",
    "text_classes",
    "text_numbers",
    "token_tags",
]

Objective = Callable[..., tuple[Array, Array, dict[str, Array]]]


def inputs(batch: dict[str, Any]) -> tuple[Array, Array, Array]:
    """What every encoder reads of a batch: tokens, lengths and types."""
    tokens, lengths, types = (jnp.asarray(batch[name]) for name in ("tokens", "lengths", "types"))
    return tokens, lengths, types


def masked_words(*, accuracy: bool = False) -> Objective:
    """The cross-entropy of hidden tokens, and that of telling pairs, in nats (rows H18, H19).

    ``Σ_rows (Σ words + m · pair)`` over ``Σ m``, where ``m`` is how many tokens of a row are
    hidden: the mean over words plus the mean over pairs, each pair counting as much as its row
    has masked tokens, so that the loss does not change with how a batch is cut up. The scores over
    the vocabulary are computed at the hidden places alone.

    Args:
        accuracy: Whether ``masked_accuracy`` is among the further sums, which needs all scores at
            once.

    Returns:
        ``objective(model, batch, key)``. The batch holds what :func:`inputs` reads,
        ``masked_positions``, ``targets``, ``weights`` and ``next_sentence_label``
        (``BertPretrainingPlan.make``). Further sums: ``masked_loss``, and with pairs
        ``pair_loss`` and ``pair_accuracy``.
    """

    def objective(model: Any, batch: dict[str, Any], key: Array | None = None):
        targets, weights = jnp.asarray(batch["targets"]), jnp.asarray(batch["weights"])
        hidden = model(*inputs(batch), key=key)
        vectors = model.mlm_transform(
            gather_positions(hidden, jnp.asarray(batch["masked_positions"]))
        )
        extra: dict[str, Array] = {}
        if accuracy:
            logits = model.output_table().logits(vectors)
            total, weight = cross_entropy(logits, targets, weights)
            extra["masked_accuracy"] = _correct(logits, targets, weights)
        else:
            table, bias, scale, softcap = model.output_table()
            total, weight = fused_linear_cross_entropy(
                vectors, table, targets, weights, bias=bias, scale=scale, softcap=softcap
            )
        extra["masked_loss"] = total
        if model.next_sentence is not None:
            logits = model.nsp_logits(hidden)
            follows, counts = jnp.asarray(batch["next_sentence_label"]), weights.sum(1)
            loss, _ = cross_entropy(logits, jnp.maximum(follows, 0), counts)
            extra |= {"pair_loss": loss, "pair_accuracy": _correct(logits, follows, counts)}
            total = total + loss
        return total, weight, extra

    return objective


def text_classes() -> Objective:
    """The cross-entropy of the class of each text, in nats, and ``accuracy`` (row B36).

    The batch holds what :func:`inputs` reads and ``labels`` int32 ``[B]``, -1 for a row without.
    """
    return _classes


def token_tags() -> Objective:
    """The cross-entropy of the tag of each word, in nats, and ``accuracy`` (row B36).

    A word is told from its first token. The batch holds what :func:`inputs` reads, and ``labels``
    int32 ``[B T]``, -1 at every token that is no first token of a word.
    """
    return _classes


def _classes(model: Any, batch: dict[str, Any], key: Array | None = None):
    labels = jnp.asarray(batch["labels"])
    weights = (labels >= 0).astype(jnp.float32)
    logits = model(*inputs(batch), key=key)
    total, weight = cross_entropy(logits, jnp.maximum(labels, 0), weights)
    return total, weight, {"accuracy": _correct(logits, labels, weights)}


def text_numbers() -> Objective:
    """The squared error of the number of each text, where ``labels`` float ``[B]`` is not NaN."""

    def objective(model: Any, batch: dict[str, Any], key: Array | None = None):
        labels = jnp.asarray(batch["labels"])
        known = jnp.isfinite(labels)
        errors = jnp.where(known, model(*inputs(batch), key=key)[:, 0] - labels, 0.0)
        return jnp.square(errors).sum(), known.sum().astype(jnp.float32), {}

    return objective


def answer_spans() -> Objective:
    """Half the cross-entropy of where answers begin, plus half that of where they end, in nats.

    Only tokens in ``allowed`` can be either: the context, and [CLS] for "not here". The batch
    holds what :func:`inputs` reads, ``allowed`` bool ``[B T]``, and ``labels`` int32 ``[B 2]``,
    -1 for a row without. Devlin et al. 2019, section 4.2.
    """

    def objective(model: Any, batch: dict[str, Any], key: Array | None = None):
        labels = jnp.asarray(batch["labels"])
        weights = (labels >= 0).astype(jnp.float32)
        scores = span_scores(model, batch, key)
        total, weight = cross_entropy(scores, jnp.maximum(labels, 0), weights)
        exact = (scores.argmax(-1) == labels).all(-1) & (labels[:, 0] >= 0)
        return total / 2, weight / 2, {"accuracy": exact.sum().astype(jnp.float32)}

    return objective


def span_scores(
    model: Any, batch: dict[str, Any], key: Array | None = None
) -> Float[Array, "B 2 T"]:
    """Scores of each token for being the first and the last of an answer; -1e30 is never."""
    allowed = jnp.asarray(batch["allowed"])
    scores = model(*inputs(batch), key=key).transpose(0, 2, 1)
    return jnp.where(allowed[:, None], scores, -1e30)


def _correct(
    logits: Float[Array, "*rows V"], targets: Int[Array, "*rows"], weights: Float[Array, "*rows"]
) -> Float[Array, ""]:
    hits = (logits.argmax(-1) == targets).astype(jnp.float32)
    return jax.lax.stop_gradient((hits * weights).sum())
