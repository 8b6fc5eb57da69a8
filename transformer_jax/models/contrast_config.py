"""The configuration of what two towers, of images and of texts, have in common."""

import dataclasses
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Configuration, Range

__all__ = ["ContrastConfig"]


@dataclasses.dataclass(frozen=True)
class ContrastConfig(Configuration, group="contrast"):
    """Vectors that images and texts have in common, and the loss that compares them."""

    # softmax: each image chooses among the texts of a batch and each text among the images (CLIP);
    # sigmoid: each pair of a batch is a match or none (SigLIP).
    loss: Literal["softmax", "sigmoid"] = "softmax"
    projection_dim: Annotated[int, Range(1, 1 << 20)] = 512  # numbers of a vector in common
    # A linear map without bias from the vector of an image; without it that is the vector in common
    # (SigLIP).
    image_projection: bool = True
    text_projection_bias: bool = False  # of the linear map from the vector of a text (SigLIP: True)
    # The vector of a text: that of its last token, or of the last position of the model, up to
    # which texts are filled with padding that the model reads (SigLIP).
    text_pooling: Literal["end", "last"] = "end"
