"""Encoders, with and without heads, and decoders that classify texts."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from transformer_jax.doctor.checks import Check, causality_check, loss_checks, row_checks
from transformer_jax.doctor.families.inputs import (
    Layers,
    lengths_of,
    named_sums,
    random_texts,
    spread,
)
from transformer_jax.doctor.maps import Sight, map_checks
from transformer_jax.doctor.outputs import Outputs, few
from transformer_jax.models.heads import (
    DecoderSequenceClassifier,
    EncoderForMaskedLM,
    ReplacedTokenDetector,
    SequenceClassifier,
    TokenClassifier,
)
from transformer_jax.models.transformer.models import Encoder
from transformer_jax.training import objectives
from transformer_jax.training.step import Objective

__all__ = ["classifier_checks", "encoder_checks"]

Given = dict[str, Array]  # a batch


def encoder_checks(model: Encoder) -> list[Check]:
    """Returns the laws of an encoder: bare, with masked-LM heads, or fine-tuned."""
    config = model.config
    tokens, real = random_texts(config.vocab_size, config.max_length)
    inputs = {"tokens": tokens}
    if config.embedding.type_vocab_size > 1:
        inputs["types"] = (np.arange(tokens.size).reshape(tokens.shape) % 3 > 1).astype(np.int32)
    args = (inputs, real)
    outputs, layers = Outputs(model, _outputs, args), Outputs(model, _layers, args)
    maps = lambda model, *args: {"": model.attention_maps(*_arguments(*args))}
    return [
        *row_checks(outputs, layers, real),
        *map_checks(model, maps, args, {"": Sight(real, windows=config.scores.window_of)}),
        *_losses(model, inputs, real),
    ]


def _arguments(inputs: Given, real: Array) -> tuple[Array, Array, Array | None]:
    return inputs["tokens"], lengths_of(real), inputs.get("types")


def _outputs(model: Encoder, inputs: Given, real: Array) -> dict[str, Array]:
    args, T = _arguments(inputs, real), real.shape[1]
    found = model(*args)
    if isinstance(model, SequenceClassifier | TokenClassifier):
        return {"scores": spread(found, T)}
    parts = {"vectors": found}
    if isinstance(model, EncoderForMaskedLM):
        parts["logits"] = few(model.mlm_logits(found))
        if model.next_sentence is not None:
            parts["pairs"] = spread(model.nsp_logits(found), T)
    return parts


def _layers(model: Encoder, inputs: Given, real: Array) -> dict[str, Array]:
    layers = Layers()
    Encoder.__call__(model, *_arguments(inputs, real), on_hidden=layers)
    return layers.states


def classifier_checks(model: DecoderSequenceClassifier) -> list[Check]:
    """Returns the laws of a decoder that classifies texts."""
    config = model.config
    tokens, real = random_texts(config.vocab_size, config.max_length)
    args = ({"tokens": tokens}, real)
    outputs, states = Outputs(model, _scores, args), Outputs(model, _states, args)
    with_tokens = lambda tokens: ({"tokens": tokens}, real)
    return [
        *row_checks(outputs, None, real),
        causality_check(states, None, tokens, with_tokens),
        *_losses(model, {"tokens": tokens}, real),
    ]


def _scores(model: DecoderSequenceClassifier, inputs: Given, real: Array) -> dict[str, Array]:
    return {"scores": spread(model(inputs["tokens"], lengths_of(real)), real.shape[1])}


def _states(model: DecoderSequenceClassifier, inputs: Given, real: Array) -> dict[str, Array]:
    return {"vectors": model.states(inputs["tokens"], lengths_of(real))}


def _losses(
    model: Encoder | DecoderSequenceClassifier,
    inputs: Mapping[str, np.ndarray],
    real: Bool[np.ndarray, "B T"],
) -> list[Check]:
    """Returns the laws of the loss that trains a model, if it has one."""
    if isinstance(model, ReplacedTokenDetector) or type(model) is Encoder:
        return []
    labels = np.random.default_rng(2).integers(0, 2, real.shape).astype(np.int32)
    return loss_checks(model, _loss, {**inputs, "labels": labels}, real)


def _loss(
    model: Encoder | DecoderSequenceClassifier, batch: Given, real: Array
) -> dict[str, Array]:
    types, labels = batch.get("types", jnp.zeros_like(batch["tokens"])), batch["labels"]
    given = {"tokens": batch["tokens"], "lengths": lengths_of(real), "types": types}
    objective: Objective
    if isinstance(model, EncoderForMaskedLM):
        objective = objectives.masked_lm()
        given |= {
            "masked_positions": jnp.broadcast_to(jnp.arange(real.shape[1]), real.shape),
            "targets": batch["tokens"],
            "weights": real.astype(jnp.float32),
            "next_sentence_label": labels[:, 0],
        }
    elif isinstance(model, TokenClassifier):
        objective, given["labels"] = objectives.token_classification(), jnp.where(real, labels, -1)
    elif isinstance(model, SequenceClassifier | DecoderSequenceClassifier) and (
        model.labels.kernel.shape[-1] == 1
    ):
        objective, given["labels"] = objectives.regression(), labels[:, 0].astype(jnp.float32)
    else:
        objective, given["labels"] = objectives.sequence_classification(), labels[:, 0]
    return named_sums(objective(model, given, None))
