"""The Vision Transformer, which reads an image as a sequence of patches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Key

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.layers import ACTIVATIONS
from transformer_jax.functional.partitioning import constrain, unshard_fsdp
from transformer_jax.functional.patches import convolve, max_pool, patchify, sequence_pool
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.basic import Embed, Linear, Norm
from transformer_jax.models.layers.module import Module
from transformer_jax.models.layers.parameters import at_depth, logical_axes
from transformer_jax.models.transformer.layers import (
    Attention,
    FeedForward,
    OnHidden,
    OnWeights,
    Stack,
)

__all__ = ["ImageClassifier", "VisionEncoder"]


class AttentionPool(Module):
    """The vector of a sequence: a learned query attends to it, then ``y + FFN(norm(y))``.

    Zhai et al. 2022 (Scaling Vision Transformers), section 3.2; Zhai et al. 2023 (SigLIP).
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.query = Embed(1, config.d_model, scale=config.d_model**-0.5, rngs=rngs)
        self.attention = Attention(config, rngs=rngs)
        self.norm = Norm(config.norm, config.d_model)
        self.feed_forward = FeedForward(config, rngs=rngs)

    def __call__(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        """Returns a vector for each sequence."""
        B, _, D = hidden.shape
        query = jnp.broadcast_to(self.query.table[...].astype(hidden.dtype), (B, 1, D))
        y, _ = self.attention(query, memory=self.attention.project_memory(hidden))
        return (y + self.feed_forward(self.norm(y)))[:, 0]


class VisionEncoder(Module):
    """Computes a contextual vector for each patch of an image, after one for the complete image.

    A linear map turns the pixels of each patch into a vector; a learned vector, the same for all
    images, comes first. The rest is an encoder as for words, except that nothing is padding.
    Dosovitskiy et al. 2021, equations 1 to 4. A second learned vector is DeiT's (Touvron et al.
    2021, section 4).

    For small datasets the linear map may be convolutions, each followed by a max pooling that
    halves the sides, and the image vector a weighted sum of the patches (Hassani et al. 2021,
    section 3).
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        image = config.image
        if config.encoder_layers < 1 or not image.image_size:
            raise ConfigError(
                f"encoder_layers is {config.encoder_layers} and image.image_size "
                f"{image.image_size}: an image model needs at least 1 of both"
            )
        self.config = config
        D = config.d_model
        spread = D**-0.5 if config.embedding.scale is None else 0.02
        single = lambda use: Embed(1, D, scale=spread, rngs=rngs) if use else None
        linear, axes = image.stem == "linear", (None, "embed")
        pixels = image.patch_size**2 * image.num_channels
        bias = image.patch_bias
        self.embedding = Linear(pixels, D, axes, bias=bias, rngs=rngs) if linear else None
        self.convolutions = nnx.List(
            Linear(9 * inputs, outputs or D, axes, bias=False, rngs=rngs)
            for inputs, outputs in image.convolutions
        )
        self.class_embedding = single(image.pooling == "class")
        self.distillation_embedding = single(image.distillation != "none")
        pools: dict[str, Callable[[], Linear | AttentionPool]] = {
            "sequence": lambda: Linear(D, 1, ("embed", None), rngs=rngs),
            "attention": lambda: AttentionPool(config, rngs=rngs),
        }
        self.pool = pools[image.pooling]() if image.pooling in pools else None
        learned = self.class_embedding, self.distillation_embedding
        for part in (self.embedding, *self.convolutions, *learned):
            if part is not None:
                at_depth(part, 0)
        self.encoder = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        self.pooler = Linear(D, D, ("embed", None), rngs=rngs) if config.head.pooler else None

    def __call__(
        self,
        images: Float[Array, "B height width channels"],
        *,
        key: Key[Array, ""] | None = None,
        on_weights: tuple[OnWeights, OnWeights] | None = None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns a contextual vector for each complete image, then one for each of its patches.

        Args:
            images: Pixels, normalized as in training; channels last.
            key: Random key of dropout; None is no dropout.
            on_weights: Called with the weights of each block's self-attention.
            on_hidden: Called with the first block's input and each block's output.

        Raises:
            ConfigError: The images do not have the model's size.
        """
        return self.encoder(self.embed(images), key=key, on_weights=on_weights, on_hidden=on_hidden)

    def embed(
        self, images: Float[Array, "B height width channels"]
    ) -> Float[Array, "B {self.config.image.sequence_length} D"]:
        """Returns the input of the first block, without positions.

        Raises:
            ConfigError: The images do not have the model's size.
        """
        image, compute = self.config.image, self.config.compute
        wanted = (image.image_size, image.image_size, image.num_channels)
        if images.shape[1:] != wanted:
            raise ConfigError(
                f"images of shape {list(images.shape[1:])}: this model reads {list(wanted)}, "
                f"channels last: resize them"
            )
        if self.embedding is not None:
            x = self.embedding(patchify(images, image.patch_size).astype(compute.dtype))
        else:
            x = images.astype(compute.dtype)
            for layer in self.convolutions:
                kernel = unshard_fsdp(layer.kernel[...], logical_axes(layer.kernel), compute.dtype)
                # Split over devices by image alone. If a context axis, which splits the patches
                # later, splits each image too, XLA may double the kernel's gradient (JAX 0.10.2
                # and 0.12.0).
                x = constrain(convolve(x, kernel), ("batch", None, None, None))
                x = max_pool(jax.nn.relu(x))
            x = x.reshape(len(x), -1, x.shape[-1])
        x = x.astype(jnp.float32)
        learned = [
            jnp.broadcast_to(part.table[...], (len(x), 1, x.shape[-1]))
            for part in (self.class_embedding, self.distillation_embedding)
            if part is not None
        ]
        return jnp.concatenate([*learned, x], axis=1) * self.config.embedding_scale

    def summary(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        """Returns a vector for each image: ``h₁``, or the pooled patches."""
        if self.pool is None:
            return hidden[:, 0]
        if isinstance(self.pool, AttentionPool):
            return self.pool(hidden)
        return sequence_pool(hidden, self.pool(hidden)[..., 0])

    def pooled(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        """Returns the input of the heads: ``act(W h + b)`` per image, or ``h`` without a pooler.

        ``h`` is the :meth:`summary`.
        """
        first = self.summary(hidden)
        if self.pooler is None:
            return first
        return ACTIVATIONS[self.config.head.pooler_activation](self.pooler(first))

    def attention_maps(
        self, images: Float[Array, "B height width channels"]
    ) -> Float32[Array, "L B N T T"]:
        """The attention weights of every layer and head, exact with any kernel."""
        maps: list[Array] = []
        see = lambda weights: maps.append(weights)
        VisionEncoder.__call__(self, images, on_weights=(see, see))
        return jnp.stack(maps)


class ImageClassifier(VisionEncoder):
    """Class scores of each image: a linear map of the image vector.

    With a second head, on the vector of DeiT's second embedding, they are the mean of both heads.
    """

    def __init__(self, config: TransformerConfig, *, labels: int, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        head = lambda: Linear(config.d_model, labels, ("embed", "label"), rngs=rngs)
        self.labels = head()
        self.distilled_labels = head() if config.image.distillation == "head" else None

    def __call__(  # type: ignore[override]
        self, images: Float[Array, "B height width channels"], *, key: Key[Array, ""] | None = None
    ) -> Float32[Array, "B V"]:
        """``W h₁ + b`` for each image, in float32.

        Raises:
            ConfigError: The images do not have the model's size.
        """
        hidden = super().__call__(images, key=key)
        scores = self.labels(self.pooled(hidden)).astype(jnp.float32)
        if self.distilled_labels is None:
            return scores
        return (scores + self.distilled_labels(hidden[:, 1]).astype(jnp.float32)) / 2
