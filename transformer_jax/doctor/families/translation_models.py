"""Encoder-decoders of texts, features and images."""

import numpy as np
from jaxtyping import Array, Bool

from transformer_jax.doctor.checks import (
    Check,
    causality_check,
    decoding_checks,
    loss_checks,
    row_checks,
    source_check,
)
from transformer_jax.doctor.families.inputs import (
    Layers,
    lengths_of,
    named_sums,
    random_images,
    random_texts,
)
from transformer_jax.doctor.maps import Sight, map_checks
from transformer_jax.doctor.outputs import Outputs, few
from transformer_jax.doctor.search_law import search_check
from transformer_jax.models.captioner import Captioner
from transformer_jax.models.recurrent_config import ModelConfig, RecurrentConfig
from transformer_jax.models.recurrent_translator import RecurrentEncoderDecoder
from transformer_jax.models.transformer.models import TransformerEncoderDecoder
from transformer_jax.training import objectives

__all__ = ["captioner_checks", "translator_checks"]

Translator = TransformerEncoderDecoder | RecurrentEncoderDecoder
Given = dict[str, Array]  # a batch


def translator_checks(model: Translator) -> list[Check]:
    """Returns the laws of a translator or speech recognizer, a Transformer or recurrent."""
    config = model.config
    target, real = random_texts(config.decoder().vocab_size, config.max_length)
    if config.features.num_features:
        shape = (*target.shape, config.features.width)
        source = np.random.default_rng(1).standard_normal(shape, np.float32)
    else:
        source, _ = random_texts(config.vocab_size, config.max_length, seed=1)
    inputs = {"source": source, "target": target}
    args = (inputs, real)
    outputs = Outputs(model, _translated, args)
    layered = isinstance(model, TransformerEncoderDecoder)
    layers = Outputs(model, _translator_layers, args) if layered else None
    with_target = lambda target: ({"source": source, "target": target}, real)
    whole = lambda target: outputs(*with_target(target))["logits"]
    row = np.zeros(len(target), int)

    def of_first(target: np.ndarray) -> np.ndarray:
        logits = outputs({"source": source[row], "target": target}, real[row])["logits"]
        return np.asarray(logits * outputs.sizes["logits"])

    given = {"source": source, "source_lengths": real.sum(1).astype(np.int32)}
    sized = outputs.sized("logits")
    return [
        *row_checks(outputs, layers, real),
        source_check(outputs, layers, args),
        causality_check(outputs, layers, target, with_target),
        *map_checks(model, _translator_maps, args, _sights(config, real)),
        *decoding_checks(model, whole, given, target, sized),
        *search_check(model, of_first, given, target, config.decoder().vocab_size),
        *loss_checks(model, _translation, inputs, real),
    ]


def _sights(config: ModelConfig, real: Bool[np.ndarray, "B T"]) -> dict[str, Sight]:
    """The keys that are visible in each attention layer of a translator."""
    if isinstance(config, RecurrentConfig):
        has_none = config.attention.score == "none"
        return {} if has_none else {"cross": Sight(real)}
    windows = config.scores.window_of
    return {
        "encoder": Sight(real, windows=windows),
        "decoder": Sight(causal=True, windows=windows),
        "cross": Sight(real),
    }


def _conditions(inputs: Given, real: Array) -> Given:
    return {"source": inputs["source"], "source_lengths": lengths_of(real)}


def _translated(model: Translator, inputs: Given, real: Array) -> dict[str, Array]:
    given = _conditions(inputs, real)
    logits = few(model.logits(model.hidden(given, inputs["target"])))
    return {"encoder": model.encoded(given).states, "logits": logits}


def _translator_layers(
    model: TransformerEncoderDecoder, inputs: Given, real: Array
) -> dict[str, Array]:
    return _layers(model, _conditions(inputs, real), inputs["target"])


def _layers(
    model: TransformerEncoderDecoder | Captioner, given: Given, target: Array
) -> dict[str, Array]:
    encoder, decoder = Layers("encoder"), Layers("decoder")
    encoded = model.encoded({**given, "on_hidden": encoder})
    model.as_decoder().hidden(encoded, target, on_hidden=decoder)
    return encoder.states | decoder.states


def _translator_maps(model: Translator, inputs: Given, real: Array) -> dict[str, Array]:
    return model.attention_maps(inputs["source"], inputs["target"], lengths_of(real))


def _translation(model: Translator, batch: Given, real: Array) -> dict[str, Array]:
    given = {
        "inputs": _conditions(batch, real),
        "target": batch["target"],
        "lengths": lengths_of(real),
    }
    return named_sums(objectives.sequence_to_sequence(bos=0)(model, given, None))


def captioner_checks(model: Captioner) -> list[Check]:
    """Returns the laws of a captioner, whose images have no padding."""
    config, image = model.config, model.encoder.config.image
    target, real = random_texts(config.vocab_size, config.max_length)
    images = random_images(image)
    args = ({"images": images, "target": target},)
    outputs, layers = Outputs(model, _captioned, args), Outputs(model, _captioner_layers, args)
    with_target = lambda target: ({"images": images, "target": target},)
    whole = lambda target: outputs(*with_target(target))["logits"]
    given, row = {"images": images}, np.zeros(len(target), int)

    def of_first(target: np.ndarray) -> np.ndarray:
        logits = outputs({"images": images[row], "target": target})["logits"]
        return np.asarray(logits * outputs.sizes["logits"])

    maps = lambda model, inputs: model.attention_maps(inputs["images"], inputs["target"])
    decoder = Sight(causal=True, windows=config.scores.window_of)
    sized = outputs.sized("logits")
    return [
        *row_checks(outputs, layers, None),
        causality_check(outputs, layers, target, with_target),
        *map_checks(model, maps, args, {"encoder": Sight(), "decoder": decoder, "cross": Sight()}),
        *decoding_checks(model, whole, given, target, sized),
        *search_check(model, of_first, given, target, config.vocab_size),
        *loss_checks(model, _caption, {**args[0], "real": real}, None),
    ]


def _captioned(model: Captioner, inputs: Given) -> dict[str, Array]:
    given = {"images": inputs["images"]}
    logits = few(model.logits(model.hidden(given, inputs["target"])))
    return {"encoder": model.encoded(given).states, "logits": logits}


def _captioner_layers(model: Captioner, inputs: Given) -> dict[str, Array]:
    return _layers(model, {"images": inputs["images"]}, inputs["target"])


def _caption(model: Captioner, batch: Given, _: None) -> dict[str, Array]:
    given = {
        "inputs": {"images": batch["images"]},
        "target": batch["target"],
        "lengths": lengths_of(batch["real"]),
    }
    return named_sums(objectives.sequence_to_sequence(bos=0)(model, given, None))
