"""Mean encoder states of sentences to translate, with the tags of their direction."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from transformer_jax.core.numerics import refuse_nonfinite
from transformer_jax.core.task_progress import log
from transformer_jax.data.languages import Direction
from transformer_jax.decoding.translator import Translator
from transformer_jax.parallel.placement import MeshProgram

__all__ = ["EncoderMeans"]


class EncoderMeans:
    """The encoder of a translator as a function from sentences to vectors.

    Args:
        translator: The translator.
    """

    def __init__(self, translator: Translator):
        self._translator = translator
        self._program = MeshProgram(self._means)

    def __call__(self, sentences: Sequence[str], direction: Direction) -> Float[np.ndarray, "B D"]:
        """Returns the mean of the encoder states over the tokens of each sentence.

        The encoder reads the tags of the direction and the end token; the mean excludes them.

        Args:
            sentences: Nonempty sentences in the source language of the direction.
            direction: The languages.

        Raises:
            ConfigError: A language is unknown.
            NumericsError: The model computed NaN or infinity.
        """
        translator = self._translator
        frames = translator.frames(direction, len(sentences))
        sources, cut = translator.encode(sentences, frames)
        if any(cut):
            log(translator.cut_note(sum(cut), len(cut)))
        lengths = [len(ids) for ids in sources]
        vectors: dict[int, np.ndarray] = {}
        for which, (rows, size) in translator.batches(range(len(sources)), lengths):
            tokens, count = translator.fill_sources([sources[i] for i in which], rows, size)
            inside = np.zeros((rows, size), bool)
            for row, i in enumerate(which):
                inside[row, len(frames[i].before) : lengths[i] - len(frames[i].after)] = True
            means = np.asarray(self._program(translator.params, tokens, count, inside))
            refuse_nonfinite(means[: len(which)])
            vectors.update(zip(which, means, strict=False))
        return np.stack([vectors[i] for i in range(len(sources))])

    def _means(self, params: Any, tokens: Any, lengths: Any, inside: Any) -> Any:
        model = nnx.merge(self._translator.graph, params)
        states = model.encoded({"source": tokens, "source_lengths": lengths}).states
        weights = inside[..., None].astype(jnp.float32)
        return (states * weights).sum(1) / jnp.maximum(weights.sum(1), 1)
