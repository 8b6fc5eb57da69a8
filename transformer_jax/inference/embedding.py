"""Sentence vectors by the encoder of a model."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from transformer_jax.core.config_fields import Count
from transformer_jax.core.errors import ConfigError
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.inference.attention import TextAttention, encoder_attention, one_text
from transformer_jax.inference.base import listed, warn_of_texts
from transformer_jax.inference.encoders import (
    first_components,
    pools_of,
    prompt_of,
    skip_of,
    vectors_of,
)
from transformer_jax.inference.encoding.vectors import Layers, Pool

if TYPE_CHECKING:
    from transformer_jax.inference.pretrained import Pretrained

__all__ = ["Embedding"]


class Embedding:
    """Sentence vectors by the encoder of a model.

    Args:
        opened: The opened model.
        direction: The languages, for the encoder of a multilingual translator.
    """

    def __init__(self, opened: "Pretrained", direction: Direction = DEFAULT_DIRECTION):
        self.opened, self.vectors = opened, vectors_of(opened, direction=direction)

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        layers: Layers = "last",
        pooling: Pool | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        width: Count | None = None,
    ) -> Float[np.ndarray, "*B_and_layers D"]:
        """Returns the vector of a text, or an array of the vectors of texts.

        Args:
            texts: One text or many; texts longer than the model's length are truncated.
            layers: ``last``, ``all``, ``sum4`` or ``concat4`` (the last four), or the number of a
                layer, where 0 is the embedding layer.
            pooling: ``mean`` over tokens, ``cls`` or another; None is the configuration of a
                sentence encoder, with its default prompt, or else the mean.
            prompt_name: Name of the sentence encoder's prompt to put before each text.
            prompt: Text of the prompt.
            width: Number of first components of the last layer's vectors, for encoders that were
                trained so (Matryoshka), scaled to length 1 again if the encoder does so; None is
                all.

        Raises:
            ConfigError: A layer, pooling or prompt is unknown, or vectors have fewer components.
            CheckpointError: The last layer of the sentence encoder is damaged.
        """
        if pooling == "none":
            raise ConfigError("pooling is none: choose mean or cls, for one vector per text")
        vectors, facts, own = self.vectors, self.opened.facts, pooling is None
        pool = pools_of(facts, pooling)
        before = prompt_of(facts, prompt_name, text=prompt, usual=own)
        skip = skip_of(facts, vectors, before) if own else 0
        with warn_of_texts(vectors.counts):
            made = vectors.embed(listed(texts), layers=layers, pool=pool, prompt=before, skip=skip)
            blocks = [block.vectors for block in made]
        found = np.concatenate(blocks) if blocks else np.zeros((0, vectors.width), np.float32)
        dense = self.opened.sentence_layer if own and layers == "last" else None
        if width is not None:
            if layers != "last":
                raise ConfigError(f"width is for the last layer, not {layers}: leave one out")
            dense = first_components(facts, dense, width)
        if dense is not None and len(found):
            found = dense(found)
        return np.asarray(found[0] if isinstance(texts, str) else found)

    def attention(self, text: str, text_pair: str | None = None) -> TextAttention:
        """Returns the attention weights of every layer and head for a text or a pair of texts.

        Args:
            text: The text.
            text_pair: The second text of a pair.

        Raises:
            ArgumentError: A text is not a string, or empty.
            DataError: The texts are longer than the model's length.
        """
        given = [one_text(text), *([] if text_pair is None else [one_text(text_pair)])]
        return encoder_attention(self.vectors, given)
