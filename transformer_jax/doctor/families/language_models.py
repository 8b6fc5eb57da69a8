"""Language models: decoders, and n-gram models."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from transformer_jax import laws
from transformer_jax.doctor.checks import (
    Check,
    causality_check,
    decoding_checks,
    loss_checks,
    packing_checks,
    row_checks,
)
from transformer_jax.doctor.families.inputs import Layers, named_sums, random_texts
from transformer_jax.doctor.maps import Sight, map_checks
from transformer_jax.doctor.outputs import Outputs, few
from transformer_jax.doctor.search_law import search_check
from transformer_jax.models.ngram import NgramModel
from transformer_jax.models.transformer.models import Decoder
from transformer_jax.training import objectives

__all__ = ["decoder_checks", "ngram_checks"]


def decoder_checks(model: Decoder) -> list[Check]:
    """Returns the laws of a decoder: single texts, packed texts, and decoding token by token."""
    config = model.config
    texts = random_texts(config.vocab_size, config.max_length)
    args = (texts.tokens,)
    outputs, layers = Outputs(model, _logits, args), Outputs(model, _layers, args)
    whole, sized = outputs.part("logits"), outputs.sized("logits")
    exact = lambda tokens: whole(tokens) * outputs.sizes["logits"]
    maps = lambda model, tokens: {"": model.attention_maps(tokens)}
    sight = Sight(causal=True, windows=config.scores.window_of)
    return [
        *row_checks(outputs, layers, None),
        causality_check(outputs, layers, texts.tokens, lambda tokens: (tokens,)),
        *map_checks(model, maps, args, {"": sight}),
        *packing_checks(model, whole, texts.tokens, sized),
        *decoding_checks(model, whole, None, texts.tokens, sized),
        *search_check(model, exact, None, texts.tokens, config.vocab_size),
        *loss_checks(model, _loss, {"tokens": texts.tokens}, texts.real),
    ]


def _logits(model: Decoder, tokens: Array) -> dict[str, Array]:
    return {"logits": few(model.logits(model.hidden(None, tokens)))}


def _layers(model: Decoder, tokens: Array) -> dict[str, Array]:
    layers = Layers()
    model.hidden(None, tokens, on_hidden=layers)
    return layers.states


def _loss(model: Decoder, batch: dict[str, Array], real: Array) -> dict[str, Array]:
    tokens = batch["tokens"]
    # No token follows the last one.
    weights = jnp.pad(real[:, 1:], ((0, 0), (0, 1))).astype(jnp.float32)
    targets = jnp.roll(tokens, -1, axis=1)
    given = {"tokens": tokens, "targets": targets, "weights": weights}
    return named_sums(objectives.language_model()(model, given, None))


def ngram_checks(model: NgramModel) -> list[Check]:
    """Returns the laws of an n-gram model, which has neither layers nor padding."""
    allowed = np.setdiff1d(np.arange(model.vocab_size), model.excluded)
    picked = random_texts(len(allowed), 8).tokens % len(allowed)
    tokens = allowed[picked]
    follow = np.unique(tokens)[:4]
    scores = lambda tokens: _probabilities(model, tokens)

    def whole(tokens: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "B T _"]:
        likely = np.empty((*tokens.shape, len(follow)))
        for t in range(tokens.shape[1]):
            for n, token in enumerate(follow):
                after = np.full_like(tokens[:, :1], token)
                text = np.concatenate([tokens[:, : t + 1], after], axis=1)
                likely[:, t, n] = _probabilities(model, text)[:, -1]
        return likely

    def step(
        token: Int[np.ndarray, " B"], history: Int[np.ndarray, "B t"]
    ) -> tuple[np.ndarray, np.ndarray]:
        history = np.concatenate([history, token[:, None]], axis=1)
        return np.stack([model.distribution(row)[follow] for row in history.tolist()]), history

    empty = tokens[:, :0]
    rows = lambda: np.stack([model.distribution(row) for row in tokens[:, :3].tolist()])
    bound = lambda law, *args: lambda t: law(*args, tolerance=t)
    return [
        Check("repeatability", bound(laws.repeatability, scores, tokens)),
        Check("batch_mates", bound(laws.batch_mates, scores, tokens)),
        Check("batch_of_one", bound(laws.batch_of_one, scores, tokens)),
        Check("cached", bound(laws.cached, whole, step, empty, tokens)),
        Check("weights_sum_to_one", lambda t: laws.weights_sum_to_one(rows(), tolerance=t)),
    ]


def _probabilities(model: NgramModel, tokens: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "B T"]:
    """The probability of each token of documents, which are scored in turn."""
    B, T = tokens.shape
    offsets = np.arange(0, B * T + 1, T)
    return np.exp(model.log_probs(tokens.reshape(-1), offsets)).reshape(B, T)
