"""Vectors of frames of features, in place of those of tokens."""

from flax import nnx
from jaxtyping import Array, Float

from transformer_jax.config import FeatureConfig
from transformer_jax.errors import DataError
from transformer_jax.modules.layers import Linear

__all__ = ["FeatureProjection"]


class FeatureProjection(nnx.Module):
    """``x W + b`` of each position, the frames of which are stacked: see ``stack_frames``."""

    def __init__(self, config: FeatureConfig, width: int, *, dtype: str, rngs: nnx.Rngs):
        self.config = config
        self.dtype = dtype  # features are rounded to it
        self.projection = Linear(config.width, width, (None, "embed"), rngs=rngs)

    def __call__(self, features: Float[Array, "B S W"]) -> Float[Array, "B S D"]:
        """A vector for each position.

        Raises:
            DataError: The positions have another width than the model reads.
        """
        if features.shape[-1] != self.config.width:
            raise DataError(
                f"positions of {features.shape[-1]} numbers: this model reads {self.config.width}, "
                f"{self.config.stacked_frames} frames of {self.config.num_features} each"
            )
        return self.projection(features.astype(self.dtype))
