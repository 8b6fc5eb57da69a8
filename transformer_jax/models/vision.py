"""The Vision Transformer: reads an image as a sequence of patches."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Float32, Key

from transformer_jax.core.errors import ConfigError
from transformer_jax.functional.layers import ACTIVATIONS
from transformer_jax.functional.patches import patchify
from transformer_jax.models.config import TransformerConfig
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.layers.embedding import Embed
from transformer_jax.models.layers.parameters import at_depth
from transformer_jax.models.layers.stack import OnHidden, Stack
from transformer_jax.models.layers.summary import Summarized

__all__ = ["ImageClassifier", "VisionEncoder"]


class VisionEncoder(Summarized):
    """A contextual vector for each patch of an image, and before them one for the whole of it.

    A linear map makes a vector of the pixels of each patch; a learned one, the same for all
    images, goes first. From there on it is an encoder like that of words, except that nothing is
    padding. Dosovitskiy et al. 2021, equations 1 to 4.
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
        self.embedding = Linear(
            image.patch_size**2 * image.num_channels, D, (None, "embed"), rngs=rngs
        )
        self.class_embedding = Embed(1, D, scale=spread, rngs=rngs)
        at_depth(self.embedding, 0)
        at_depth(self.class_embedding, 0)
        self.encoder = Stack(config, config.encoder_layers, decoder=False, cross=False, rngs=rngs)
        self.pooler = Linear(D, D, ("embed", None), rngs=rngs) if config.head.pooler else None

    def __call__(
        self,
        images: Float[Array, "B height width channels"],
        *,
        key: Key[Array, ""] | None = None,
        on_weights=None,
        on_hidden: OnHidden | None = None,
    ) -> Float[Array, "B T D"]:
        """A contextual vector for the whole of each image, and for each of its patches.

        Args:
            images: Pixels, normalised as they were in training; channels last.
            key: Dropout, if given.
            on_weights: Called with the weights of each block's self-attention.
            on_hidden: Called with the first block's input and each block's output.

        Raises:
            ConfigError: The images have another size than the model's.
        """
        return self.encoder(self.embed(images), key=key, on_weights=on_weights, on_hidden=on_hidden)

    def embed(
        self, images: Float[Array, "B height width channels"]
    ) -> Float[Array, "B {self.config.image.sequence_length} D"]:
        """The vectors that the first block sees, without positions.

        Raises:
            ConfigError: The images have another size than the model's.
        """
        image, compute = self.config.image, self.config.compute
        wanted = (image.image_size, image.image_size, image.num_channels)
        if images.shape[1:] != wanted:
            raise ConfigError(
                f"images of shape {list(images.shape[1:])}: this model reads {list(wanted)}, "
                f"channels last: resize them"
            )
        pieces = patchify(images, image.patch_size).astype(compute.dtype)
        x = self.embedding(pieces).astype(jnp.float32)
        first = jnp.broadcast_to(self.class_embedding.table[...], (len(x), 1, x.shape[-1]))
        return jnp.concatenate([first, x], axis=1) * self.config.embedding_scale

    def pooled(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B D"]:
        """Returns a vector for each image: ``act(W h₁ + b)``, or ``h₁`` without a pooler."""
        first = hidden[:, 0]
        if self.pooler is None:
            return first
        return ACTIVATIONS[self.config.head.pooler_activation](self.pooler(first))

    def attention_maps(
        self, images: Float[Array, "B height width channels"]
    ) -> Float32[Array, "L B N T T"]:
        """The weights of every layer and head, exact whichever kernel runs."""
        maps: list[Array] = []
        see = lambda weights: maps.append(weights)
        VisionEncoder.__call__(self, images, on_weights=(see, see))
        return jnp.stack(maps)


class ImageClassifier(VisionEncoder):
    """Scores of classes for each image: a linear map of what stands for the whole of it."""

    def __init__(self, config: TransformerConfig, *, labels: int, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.labels = Linear(config.d_model, labels, ("embed", "label"), rngs=rngs)

    def __call__(  # type: ignore[override]
        self,
        images: Float[Array, "B height width channels"],
        *,
        key: Key[Array, ""] | None = None,
    ) -> Float32[Array, "B V"]:
        """``W h₁ + b`` for each image, in float32.

        Raises:
            ConfigError: The images have another size than the model's.
        """
        return self.labels(self.pooled(super().__call__(images, key=key))).astype(jnp.float32)
