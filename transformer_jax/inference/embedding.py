"""Sentence vectors by the encoder of a model."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from transformer_jax.core.errors import ConfigError
from transformer_jax.data.languages import DEFAULT_DIRECTION, Direction
from transformer_jax.inference.attention import TextAttention, encoder_attention, one_text
from transformer_jax.inference.base import listed, truncation
from transformer_jax.inference.encoders import load_vectors, pool_of, prompt_of, prompted, skip_of
from transformer_jax.inference.encoding.vectors import Layers, Pool, Pools
from transformer_jax.inference.runs import open_directory

__all__ = ["Embedding"]


class Embedding:
    """Sentence vectors by the encoder of a model.

    Args:
        path: The run directory or Hugging Face checkpoint.
        loaded: Pair of graph and parameters, and the tokenizer.
        direction: The languages, for the encoder of a translator of several.
    """

    def __init__(self, path: Path, loaded: Any, direction: Direction = DEFAULT_DIRECTION):
        self._vectors, self._line = load_vectors(
            path, sentences=True, loaded=loaded, direction=direction
        )
        self._encoder = open_directory(path)
        # Applied below, for some calls only.
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
        """The vector of a text, or an array with that of each text.

        Args:
            texts: One text or many; longer ones than the model reads are truncated.
            layers: ``last``, ``all``, ``sum4`` or ``concat4`` of the last four, or a layer's
                number, 0 being the embeddings.
            pooling: ``mean`` over tokens, ``cls`` or another; None is all that a sentence encoder
                does, with its default prompt, and the mean otherwise.
            prompt_name: The prompt of the sentence encoder that goes before each text.
            prompt: The prompt itself.

        Raises:
            ConfigError: There is no such layer, pooling or prompt.
        """
        if pooling == "none":
            raise ConfigError("pooling is none: mean or cls, one vector for each text")
        pool = pooling or self._pool
        if isinstance(pool, ConfigError):
            raise pool
        vectors, run = self._vectors, self._encoder
        before = prompt_of(run, prompt_name, text=prompt, usual=pooling is None)
        prepare = prompted(run, self._line, before)
        skip = skip_of(run, vectors, before) if pooling is None else 0
        lines = [prepare(text) for text in listed(texts)]
        with truncation(lambda: vectors.counts["cut"]):
            made = vectors.embed(lines, layers=layers, pool=pool, skip=skip)
            blocks = [block.vectors for block in made]
        found = np.concatenate(blocks) if blocks else np.zeros((0, vectors.width), np.float32)
        if self._dense is not None and pooling is None and layers == "last" and len(found):
            found = self._dense(found)
        return np.asarray(found[0] if isinstance(texts, str) else found)

    def attention(self, text: str, text_pair: str | None = None) -> TextAttention:
        """Returns the attention weights of every layer and head over a text or a pair of texts.

        Args:
            text: The text.
            text_pair: The second text of a pair.

        Raises:
            ArgumentError: A text is no string, or empty.
            DataError: The texts are longer than the model reads.
        """
        given = [one_text(text), *([] if text_pair is None else [one_text(text_pair)])]
        return encoder_attention(self._vectors, [self._line(each) for each in given])
