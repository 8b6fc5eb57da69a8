"""Images and texts as vectors in one space: a Vision Transformer and a text Transformer."""

import math

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Int, Key

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.contrastive import unit_vectors
from transformer_jax.functional.masks import padding_mask
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.contrast_config import ContrastConfig
from transformer_jax.models.layers.basic import Embed, Linear, check_tokens
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import at_depth
from transformer_jax.models.transformer.layers import Stack
from transformer_jax.models.vision import VisionEncoder

__all__ = ["TextTower", "TwoTowers"]

# Initial temperatures: Radford et al. 2021, section 2.5; Zhai et al. 2023, section 3.2.
_SCALES = {"softmax": math.log(1 / 0.07), "sigmoid": math.log(10.0)}
_BIAS = -10.0


class TextTower(Module):
    """Computes a vector for each text.

    A configuration with ``decoder_layers`` reads left to right (CLIP), one with ``encoder_layers``
    in both directions (SigLIP).

    Args:
        config: Configuration of the Transformer.
        pooling: ``end`` or ``last``: see :class:`.ContrastConfig`.
        rngs: Random streams of the parameters.

    Raises:
        ConfigError: The configuration has layers of both kinds, or none.
    """

    def __init__(self, config: TransformerConfig, pooling: str = "end", *, rngs: nnx.Rngs):
        if (config.encoder_layers > 0) == (config.decoder_layers > 0) or config.image.image_size:
            raise ConfigError(
                f"model.encoder_layers is {config.encoder_layers} and model.decoder_layers "
                f"{config.decoder_layers}: the model of texts has one of them above 0: decoder "
                f"layers read from left to right, encoder layers in both directions; the model of "
                f"images has its own settings"
            )
        self.config, self.pooling = config, pooling
        E, causal = config.embedding_size, config.decoder_layers > 0
        spread = E**-0.5 if config.embedding.scale is None else 0.02
        dtype = config.compute.dtype
        self.embedding = Embed(config.vocab_size, E, scale=spread, dtype=dtype, rngs=rngs)
        at_depth(self.embedding, 0)
        layers = config.encoder_layers or config.decoder_layers
        self.stack = Stack(config, layers, decoder=causal, cross=False, rngs=rngs)

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float[Array, "B D"]:
        """Returns the vector of each text.

        Args:
            tokens: The texts; if the pooling is ``last``, each is filled up to the model's last
                position with the padding token.
            lengths: Number of non-padding tokens in each row.
            key: Random key of dropout; None is no dropout.
        """
        check_tokens(tokens)
        ends, T = self.pooling == "end", tokens.shape[1]
        x = self.embedding(tokens) * self.config.embedding_scale
        hidden = self.stack(x, padding_mask(lengths) if ends else None, key=key)
        last = jnp.maximum(lengths - 1, 0) if ends else jnp.full(len(tokens), T - 1)
        return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]


class TwoTowers(Module):
    """Unit vectors of images and texts, whose products measure how well they match.

    Radford et al. 2021 (CLIP), figure 3; Zhai et al. 2023 (SigLIP).

    Args:
        encoder: Configuration of the Vision Transformer.
        config: Configuration of the text Transformer.
        contrast: Settings of the shared vectors.
        rngs: Random streams of the parameters.

    Raises:
        ConfigError: The configurations do not fit together.
    """

    def __init__(
        self,
        encoder: TransformerConfig,
        config: TransformerConfig,
        contrast: ContrastConfig,
        *,
        rngs: nnx.Rngs,
    ):
        size = contrast.projection_dim
        if not contrast.image_projection and encoder.d_model != size:
            raise ConfigError(
                f"contrast.projection_dim is {size} and encoder.d_model {encoder.d_model}: they "
                f"are equal without contrast.image_projection"
            )
        self.config, self.contrast = config, contrast
        self.encoder = VisionEncoder(encoder, rngs=rngs)
        self.text = TextTower(config, contrast.text_pooling, rngs=rngs)
        project = lambda width, bias: Linear(width, size, ("embed", None), bias=bias, rngs=rngs)
        projects = contrast.image_projection
        self.image_projection = project(encoder.d_model, False) if projects else None
        self.text_projection = project(config.d_model, contrast.text_projection_bias)
        number = lambda value: nnx.Param(jnp.full(1, value), axes=(None,))
        self.logit_scale = number(_SCALES[contrast.loss])
        self.logit_bias = number(_BIAS) if contrast.loss == "sigmoid" else None

    def embed_images(
        self, images: Float[Array, "B height width channels"], *, key: Key[Array, ""] | None = None
    ) -> Float32[Array, "B P"]:
        """Returns the vector of each image, of length 1.

        Args:
            images: Pixels, normalized as in training; channels last.
            key: Random key of dropout; None is no dropout.
        """
        vectors = self.encoder.pooled(self.encoder(images, key=key))
        if self.image_projection is not None:
            vectors = self.image_projection(vectors)
        return unit_vectors(vectors.astype(jnp.float32))

    def embed_texts(
        self,
        tokens: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float32[Array, "B P"]:
        """Returns the vector of each text, of length 1; arguments as for :class:`TextTower`."""
        vectors = self.text_projection(self.text(tokens, lengths, key=key))
        return unit_vectors(vectors.astype(jnp.float32))

    def similarities(
        self,
        images: Float32[Array, "B P"],
        texts: Float32[Array, "C P"],
        limit: float | None = None,
    ) -> Float32[Array, "B C"]:
        """Returns how well each image matches each text: ``exp(scale) i · t + bias``.

        The softmax over texts is the probability that each belongs to an image (CLIP); with a bias,
        the sigmoid of an entry is the probability that the two are a pair (SigLIP).

        Args:
            images: Vectors of images.
            texts: Vectors of texts.
            limit: The largest ``exp(scale)``; None is no limit.
        """
        scale = jnp.exp(self.logit_scale[0])
        found = (scale if limit is None else jnp.minimum(scale, limit)) * (images @ texts.T)
        return found if self.logit_bias is None else found + self.logit_bias[0]
