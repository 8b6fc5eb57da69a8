"""Image models, and two towers of images and texts."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from transformer_jax.doctor.checks import Check, loss_checks, row_checks
from transformer_jax.doctor.families.inputs import (
    ROWS,
    Layers,
    lengths_of,
    named_sums,
    random_images,
    random_texts,
    spread,
)
from transformer_jax.doctor.maps import Sight, map_checks
from transformer_jax.doctor.outputs import Outputs
from transformer_jax.models.two_towers import TwoTowers
from transformer_jax.models.vision import ImageClassifier, VisionEncoder
from transformer_jax.training import objectives

__all__ = ["image_checks", "two_tower_checks"]


def image_checks(model: VisionEncoder) -> list[Check]:
    """Returns the laws of an image model, which has no padding."""
    images = random_images(model.config.image)
    vectors = lambda model, images: {"vectors": model(images)}
    outputs, layers = Outputs(model, vectors, (images,)), Outputs(model, _layers, (images,))
    maps = lambda model, images: {"": model.attention_maps(images)}
    labels = np.arange(ROWS, dtype=np.int32) % 2
    classifies = isinstance(model, ImageClassifier)
    losses = loss_checks(model, _loss, {"images": images, "labels": labels}, None)
    return [
        *row_checks(outputs, layers, None),
        *map_checks(model, maps, (images,), {"": Sight()}),
        *(losses if classifies else []),
    ]


def _layers(model: VisionEncoder, images: Array) -> dict[str, Array]:
    layers = Layers()
    VisionEncoder.__call__(model, images, on_hidden=layers)
    return layers.states


def _loss(model: ImageClassifier, batch: dict[str, Array], _: None) -> dict[str, Array]:
    return named_sums(objectives.image_classification()(model, batch, None))


def two_tower_checks(model: TwoTowers) -> list[Check]:
    """Returns the laws of both towers, without those of padding if the model reads it."""
    tokens, real = random_texts(model.config.vocab_size, model.config.max_length)
    images = random_images(model.encoder.config.image)
    pictures = lambda model, images: {"images": model.embed_images(images)}
    fills = model.text.pooling == "last"
    args = (tokens,) if fills else (tokens, real)
    towers = (
        (Outputs(model, pictures, (images,)), None),
        (Outputs(model, _texts, args), None if fills else real),
    )
    return [check for outputs, real in towers for check in row_checks(outputs, None, real)]


def _texts(model: TwoTowers, tokens: Array, real: Array | None = None) -> dict[str, Array]:
    real = jnp.ones(tokens.shape, bool) if real is None else real
    return {"texts": spread(model.embed_texts(tokens, lengths_of(real)), tokens.shape[1])}
