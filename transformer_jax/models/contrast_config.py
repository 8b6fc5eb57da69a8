"""The configuration shared by the image tower and the text tower."""

import dataclasses
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Configuration, Range

__all__ = ["ContrastConfig"]


@dataclasses.dataclass(frozen=True)
class ContrastConfig(Configuration, group="contrast"):
    """The shared vector space of images and texts, and the loss that compares them."""

    # softmax: each image chooses among the texts of a batch, and each text among the images (CLIP);
    # sigmoid: each image and text of a batch match or do not (SigLIP).
    loss: Literal["softmax", "sigmoid"] = "softmax"
    projection_dim: Annotated[int, Range(1, 1 << 20)] = 512  # size of the shared vectors
    # Project image vectors by a linear map without bias; otherwise they are the shared vectors
    # (SigLIP).
    image_projection: bool = True
    text_projection_bias: bool = False  # bias in the projection of text vectors (SigLIP: True)
    # Vector of a text: from its last token, or from the model's last position, up to which texts
    # are padded with tokens that the model reads (SigLIP).
    text_pooling: Literal["end", "last"] = "end"
