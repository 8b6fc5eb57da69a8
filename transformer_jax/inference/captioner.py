"""Pictures in, captions out: a trained captioner, its preprocessing and its tokenizer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float32

from transformer_jax.core.errors import DataError
from transformer_jax.data.languages import Frame
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import TranslationBatching
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.decoding.translator import Translator
from transformer_jax.parallel.inference import split_model

__all__ = ["ImageCaptioner", "Picture"]

_ROWS = (1, 8, 32)  # pictures at once


class Picture(str):
    """The name of a picture, with its pixels as the model reads them.

    Example:
        >>> one = Picture("a.png", np.zeros((4, 4, 3), np.float32))
        >>> one, one.pixels.shape
        ('a.png', (4, 4, 3))
    """

    pixels: Float32[np.ndarray, "height width C"]

    def __new__(cls, name: str, pixels: Float32[np.ndarray, "height width C"]) -> "Picture":
        """A name that has these pixels."""
        made = super().__new__(cls, name)
        made.pixels = pixels
        return made


class ImageCaptioner(Translator):
    """A :class:`.Translator` of pictures: each is a :class:`Picture` in place of a line.

    Batches, search, scores and order are those of lines. A picture counts as one source token, of
    whose number length limits are multiples.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: TextTokenizer,
        *,
        search: GenerationConfig = TRANSLATION,
        batching: TranslationBatching | None = None,
    ):
        """Takes a captioner, whole or as the pair ``(graph, params)``.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        batching = TranslationBatching(rows=_ROWS) if batching is None else batching
        super().__init__(model, tokenizer, search=search, batching=batching)
        self.room = self.longest  # nothing frames a picture
        self.image = nnx.merge(*split_model(model)).encoder.config.image

    def source_names(self, source: Any) -> list[str]:
        """Returns the row and column of each patch, counted from 1, behind other embeddings."""
        side = self.image.image_size // self.image.patch_size
        places = [f"{row},{column}" for row in range(1, side + 1) for column in range(1, side + 1)]
        return [*("[CLS]", "[DIST]")[: self.image.num_prefixes], *places]

    def encode(
        self, lines: Sequence[str], frames: Sequence[Frame] | None = None, earlier: int = 0
    ) -> tuple[list[Any], list[bool]]:
        """The pixels of each picture, with a first axis of one position.

        Raises:
            DataError: A picture has another size than the model reads.
        """
        found = []
        for line in lines:
            assert isinstance(line, Picture)
            image = self.image
            wanted = (image.image_size, image.image_size, image.num_channels)
            if line.pixels.shape != wanted:
                raise DataError(
                    f"{line}: pixels {list(line.pixels.shape)}, and this model reads {list(wanted)}"
                )
            found.append(line.pixels[None])
        return found, [False] * len(found)

    def fill_sources(
        self, sources: Sequence[Any], rows: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pictures as one array, and 1 for each of them, 0 for rows of padding."""
        del size  # pictures are all of one size
        filled = np.zeros((rows, *sources[0].shape[1:]), np.float32)
        filled[: len(sources)] = np.concatenate(sources)
        return filled, (np.arange(rows) < len(sources)).astype(np.int32)

    def inputs(self, source: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arguments of the encoder by name."""
        del lengths
        return {"images": source}
