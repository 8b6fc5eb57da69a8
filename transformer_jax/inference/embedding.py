"""Sentence vectors by the encoder of a model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.inference.attention import TextAttention, encoder_attention, one_text
from transformer_jax.inference.base import listed, warn_of_texts
from transformer_jax.inference.encoders import load_vectors, pool_of, prompt_of, prompted, skip_of
from transformer_jax.inference.encoding.vectors import Layers, Pool, Pools
from transformer_jax.inference.runs import open_directory

__all__ = ["Embedding"]


class Embedding:
    """Sentence vectors by the encoder of a model.

    Args:
        path: Run directory or Hugging Face checkpoint.
        loaded: Pair of graph and parameters, and the tokenizer.
        direction: The languages, for the encoder of a multilingual translator.
    """

    def __init__(self, path: Path, loaded: Any, direction: Direction = DEFAULT_DIRECTION):
        self._vectors, self._line = load_vectors(
            path, sentences=True, loaded=loaded, direction=direction
        )
        self._encoder = open_directory(path)
        # Applied below, for certain calls only.
        self._dense, self._vectors.dense = self._vectors.dense, None
        self._pool: Pools | ConfigError
        try:
            self._pool = pool_of(path, None)
        except ConfigError as error:
            self._pool = error

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        layers: Layers = "last",
        pooling: Pool | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
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

        Raises:
            ConfigError: A layer, pooling or prompt is unknown.
        """
        if pooling == "none":
            raise ConfigError("pooling is none: choose mean or cls, for one vector per text")
        pool = pooling or self._pool
        if isinstance(pool, ConfigError):
            raise pool
        vectors, run = self._vectors, self._encoder
        before = prompt_of(run, prompt_name, text=prompt, usual=pooling is None)
        prepare = prompted(run, self._line, before)
        skip = skip_of(run, vectors, before) if pooling is None else 0
        lines = [prepare(text) for text in listed(texts)]
        with warn_of_texts(vectors.counts):
            made = vectors.embed(lines, layers=layers, pool=pool, skip=skip)
            blocks = [block.vectors for block in made]
        found = np.concatenate(blocks) if blocks else np.zeros((0, vectors.width), np.float32)
        if self._dense is not None and pooling is None and layers == "last" and len(found):
            found = self._dense(found)
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
        return encoder_attention(self._vectors, [self._line(each) for each in given])
