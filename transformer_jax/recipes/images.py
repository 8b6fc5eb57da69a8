"""Image models, which come as Hugging Face folders: a recipe to use them, not to train them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.recipes.recipe import Recipe

__all__ = ["Images"]


class Images(Recipe):
    """Pictures, a Vision Transformer."""

    name = "images"
    title = "an image model"
    family = "image"

    def predictor(self, path: Path, checkpoint: str) -> Any:
        """Returns a function of images."""
        from transformer_jax.inference.images import ImagePredictor

        return ImagePredictor(path, checkpoint)

    def model(self, config: Any, fields: Mapping[str, Any], rngs: Any) -> Any:
        """Returns an encoder of images, with a head of labels if it classifies."""
        from transformer_jax.models.making import make_model

        task = fields.get("task")
        if not task:
            return make_model("image", config, rngs=rngs)
        labels = len(task.get("labels", []))
        return make_model("image", config, task="classify", labels=labels, rngs=rngs)
