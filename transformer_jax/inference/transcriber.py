"""Recordings in, texts out: a trained model of features, its normalization and its tokenizer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float32

from transformer_jax.core.errors import DataError, plural
from transformer_jax.data.languages import Frame
from transformer_jax.data.speech.features import Normalization
from transformer_jax.data.speech.store import fill_positions
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import TranslationBatching
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.decoding.translator import Translator
from transformer_jax.parallel.inference import split_model

__all__ = ["Recording", "Transcriber"]


class Recording(str):
    """The name of a recording, with its features before normalization.

    Example:
        >>> one = Recording("a.wav", np.zeros((98, 80), np.float32))
        >>> one, one.features.shape
        ('a.wav', (98, 80))
    """

    features: Float32[np.ndarray, "T F"]

    def __new__(cls, name: str, features: Float32[np.ndarray, "T F"]) -> "Recording":
        """A name that has these features."""
        made = super().__new__(cls, name)
        made.features = features
        return made


class Transcriber(Translator):
    """A :class:`.Translator` of recordings: each is a :class:`Recording` in place of a line.

    Batches, search, scores and order are those of lines. A recording that is longer than the model
    reads is refused, never cut.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: TextTokenizer,
        normalization: Normalization,
        *,
        search: GenerationConfig = TRANSLATION,
        batching: TranslationBatching | None = None,
    ):
        """Takes a model of features, whole or as the pair ``(graph, params)``.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        config = nnx.merge(*split_model(model)).config
        if batching is None:
            doubled = [16 << i for i in range(1 + config.max_length.bit_length())]
            batching = TranslationBatching(source_lengths=tuple(doubled))
        super().__init__(model, tokenizer, search=search, batching=batching)
        self.room = self.longest  # nothing frames a recording
        self.normalization = normalization
        self.reads = config.features

    def source_names(self, source: Any) -> list[str]:
        """Returns the first frame of each position, counted from 0."""
        frames = range(0, len(source) * self.reads.stacked_frames, self.reads.stacked_frames)
        return list(map(str, frames))

    def encode(
        self, lines: Sequence[str], frames: Sequence[Frame] | None = None, earlier: int = 0
    ) -> tuple[list[Any], list[bool]]:
        """The normalized and stacked frames of each recording; none is cut.

        Raises:
            DataError: A recording has frames of another width than the model reads, or is too long.
        """
        stacked = []
        for line in lines:
            assert isinstance(line, Recording)
            stacked.append(self._positions(line))
        return stacked, [False] * len(stacked)

    def _positions(self, recording: Recording) -> np.ndarray:
        count, width = recording.features.shape
        wanted, together = self.reads.num_features, self.reads.stacked_frames
        if width != wanted:
            raise DataError(
                f"{recording}: frames of {plural(width, 'number')}, and this model reads {wanted}"
            )
        if count > self.longest * together:
            raise DataError(
                f"{recording}: {plural(count, 'frame')}, and this model reads at most "
                f"{self.longest * together:,}: split the recording"
            )
        normal = self.normalization(recording.features)
        return np.asarray(fill_positions([normal], 1, -(-count // together), together)[0][0])

    def fill_sources(
        self, sources: Sequence[Any], rows: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions of recordings as rows of one array, and their numbers, 0 for padding."""
        return fill_positions(sources, rows, size, 1)
