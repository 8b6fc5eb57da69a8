"""The families of Hugging Face models: names of tensors, and configurations in both directions.

Each family is a file with ``FAMILIES``; its name below registers it.
"""

import importlib
from collections.abc import Mapping

from transformer_jax.core.json_types import Json
from transformer_jax.interop.family import ModelFamily

__all__ = ["FAMILIES", "family_of"]

# In the order in which an export tries them.
_MODULES = (
    "bert",
    "roberta",
    "distilbert",
    "electra",
    "mpnet",
    "modernbert",
    "bart",
    "m2m_100",
    "t5",
    "gpt2",
    "llama",
    "gemma2",
    "phi3",
    "stablelm",
    "starcoder2",
    "opt",
    "vit",
    "vision_encoder_decoder",
    "clip",
    "siglip",
)
FAMILIES: tuple[ModelFamily, ...] = tuple(
    family for name in _MODULES for family in importlib.import_module(f"{__name__}.{name}").FAMILIES
)


def family_of(fields: Mapping[str, Json]) -> ModelFamily:
    """Returns the family of a published configuration, which must be a known one.

    Example:
        >>> family_of({"model_type": "camembert"}).types
        ('roberta', 'xlm-roberta', 'camembert')
    """
    return next(family for family in FAMILIES if fields.get("model_type") in family.types)
