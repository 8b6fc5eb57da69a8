"""A function from recordings to texts: a trained model, with normalization and tokenizer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float32

from transformer_jax.core.errors import DataError, plural
from transformer_jax.data.languages import Frame
from transformer_jax.data.preparation import Preparation
from transformer_jax.data.speech.features import Normalization
from transformer_jax.data.speech.recording_store import fill_positions
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import TranslationBatching
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.decoding.translator import Translator
from transformer_jax.parallel.placement import split_model

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
        """Creates a name with features."""
        made = super().__new__(cls, name)
        made.features = features
        return made


class Transcriber(Translator):
    """A :class:`.Translator` of recordings: its lines are :class:`Recording` objects.

    Batches, search, scores and order are the same as for lines. A recording that is too long for
    the model is refused, not truncated.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: TextTokenizer,
        normalization: Normalization,
        *,
        search: GenerationConfig = TRANSLATION,
        batching: TranslationBatching | None = None,
        preparation: Preparation | None = None,
    ):
        """Initializes it with a model of features, a module or a pair ``(graph, params)``.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        config = nnx.merge(*split_model(model)).config
        if batching is None:
            doubled = [16 << i for i in range(1 + config.max_length.bit_length())]
            batching = TranslationBatching(source_lengths=tuple(doubled))
        super().__init__(
            model, tokenizer, search=search, batching=batching, preparation=preparation
        )
        self.room = self.longest  # a recording has no special tokens
        self.normalization = normalization
        self.reads = config.features

    def prepared(self, line: str) -> str:
        """Returns the recording, which is normalized when it is encoded."""
        return line

    def source_names(self, source: Any) -> list[str]:
        """Returns the first frame of each position, counted from 0."""
        frames = range(0, len(source) * self.reads.stacked_frames, self.reads.stacked_frames)
        return list(map(str, frames))

    def encode(
        self, lines: Sequence[str], frames: Sequence[Frame] | None = None, earlier: int = 0
    ) -> tuple[list[Any], list[bool]]:
        """Returns the normalized and stacked frames of each recording.

        Raises:
            DataError: A recording has frames of the wrong size, or is too long.
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
                f"{recording}: frames of {plural(width, 'feature')}, but this model reads {wanted}"
            )
        if count > self.longest * together:
            raise DataError(
                f"{recording}: {plural(count, 'frame')}, but this model reads at most "
                f"{self.longest * together:,}: split the recording"
            )
        normal = self.normalization(recording.features)
        return np.asarray(fill_positions([normal], 1, -(-count // together), together)[0][0])

    def fill_sources(
        self, sources: Sequence[Any], rows: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns recordings as rows of one array, and their lengths, 0 for padding."""
        return fill_positions(sources, rows, size, 1)
