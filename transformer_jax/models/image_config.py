"""The configuration of image inputs."""

import dataclasses
import itertools
from typing import Annotated, Literal

from transformer_jax.core.config_fields import Configuration, Range
from transformer_jax.core.errors import ConfigError

__all__ = ["ImageConfig"]


@dataclasses.dataclass(frozen=True)
class ImageConfig(Configuration, group="image"):
    """Images as sequences of a class embedding and patch embeddings (ViT)."""

    image_size: Annotated[int, Range(0, 1 << 16)] = 0  # pixels per side; 0 is a text model
    patch_size: Annotated[int, Range(1, 1 << 16)] = 16  # pixels per side of a patch
    num_channels: Annotated[int, Range(1, 1 << 16)] = 3  # channels of a pixel
    # Map from pixels to patch vectors: linear, or log2(patch_size) convolutions, each of which
    # halves the sides (Hassani et al. 2021).
    stem: Literal["linear", "convolutions"] = "linear"
    # Channels of all convolutions except the last.
    stem_channels: Annotated[int, Range(1, 1 << 16)] = 64
    patch_bias: bool = True  # bias in the linear map (CLIP: False); convolutions have none
    # Vector of the image: from a class embedding before the patches, a weighted sum of the patches
    # (Hassani et al. 2021), or a learned query that attends to them, followed by a feed-forward
    # layer (Zhai et al. 2022).
    pooling: Literal["class", "sequence", "attention"] = "class"
    # DeiT's second embedding before the patches: none, the embedding alone, or with a second
    # classification head, whose logits are averaged with the first's.
    distillation: Literal["none", "embedding", "head"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise ConfigError(
                f"image.patch_size {self.patch_size} does not divide image.image_size "
                f"{self.image_size}: choose a divisor"
            )
        if self.stem == "convolutions" and (self.patch_size < 2 or not _is_power(self.patch_size)):
            raise ConfigError(
                f"image.patch_size is {self.patch_size}: with image.stem convolutions it is 2, 4, "
                f"8 and so on, as each convolution halves the sides"
            )
        if self.pooling != "class" and self.distillation != "none":
            raise ConfigError(
                f"image.distillation {self.distillation} is for image.pooling class, but that is "
                f"{self.pooling}: leave one of them out"
            )

    @property
    def num_prefixes(self) -> int:
        """The number of embeddings before the patches."""
        return (self.pooling == "class") + (self.distillation != "none")

    @property
    def num_patches(self) -> int:
        """The number of patches."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def sequence_length(self) -> int:
        """Length of the sequence: the embeddings before the patches, and all patches."""
        return self.num_prefixes + self.num_patches

    @property
    def convolutions(self) -> tuple[tuple[int, int], ...]:
        """Input and output channels of each convolution but the last, whose output is the model's.

        Example:
            >>> ImageConfig(32, 4, stem="convolutions").convolutions
            ((3, 64), (64, 0))
        """
        widths = [self.num_channels, *[self.stem_channels] * (self.patch_size.bit_length() - 2), 0]
        return tuple(itertools.pairwise(widths)) if self.stem == "convolutions" else ()


def _is_power(number: int) -> bool:
    return number & (number - 1) == 0
