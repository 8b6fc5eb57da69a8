"""A function from pictures to captions: a trained captioner, with preprocessing and tokenizer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float32

from transformer_jax.core.errors import DataError
from transformer_jax.data.languages import Frame
from transformer_jax.data.preparation import Preparation
from transformer_jax.decoding.generation_config import TRANSLATION, GenerationConfig
from transformer_jax.decoding.options import TranslationBatching
from transformer_jax.decoding.text_tokenizer import TextTokenizer
from transformer_jax.decoding.translator import Translator
from transformer_jax.parallel.placement import split_model

__all__ = ["ImageCaptioner", "Picture"]

_ROWS = (1, 8, 32)  # pictures per batch


class Picture(str):
    """The name of a picture, with its preprocessed pixels.

    Example:
        >>> one = Picture("a.png", np.zeros((4, 4, 3), np.float32))
        >>> one, one.pixels.shape
        ('a.png', (4, 4, 3))
    """

    pixels: Float32[np.ndarray, "height width C"]

    def __new__(cls, name: str, pixels: Float32[np.ndarray, "height width C"]) -> "Picture":
        """Creates a name with pixels."""
        made = super().__new__(cls, name)
        made.pixels = pixels
        return made


class ImageCaptioner(Translator):
    """A :class:`.Translator` of pictures: its lines are :class:`Picture` objects.

    Batches, search, scores and order are the same as for lines. A picture counts as one source
    token for length limits.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: TextTokenizer,
        *,
        search: GenerationConfig = TRANSLATION,
        batching: TranslationBatching | None = None,
        preparation: Preparation | None = None,
    ):
        """Initializes it with a captioner, a module or a pair ``(graph, params)``.

        Raises:
            ConfigError: The tokenizer has more tokens than the model.
        """
        batching = TranslationBatching(rows=_ROWS) if batching is None else batching
        super().__init__(
            model, tokenizer, search=search, batching=batching, preparation=preparation
        )
        self.room = self.longest  # a picture has no special tokens
        self.image = nnx.merge(*split_model(model)).encoder.config.image

    def prepared(self, line: str) -> str:
        """Returns the picture, whose pixels are preprocessed."""
        return line

    def source_names(self, source: Any) -> list[str]:
        """Returns the row and column of each patch, from 1, after the names of other embeddings."""
        side = self.image.image_size // self.image.patch_size
        places = [f"{row},{column}" for row in range(1, side + 1) for column in range(1, side + 1)]
        return [*("[CLS]", "[DIST]")[: self.image.num_prefixes], *places]

    def encode(
        self, lines: Sequence[str], frames: Sequence[Frame] | None = None, earlier: int = 0
    ) -> tuple[list[Any], list[bool]]:
        """Returns the pixels of each picture, with a first axis of one position.

        Raises:
            DataError: A picture does not have the model's size.
        """
        found = []
        for line in lines:
            assert isinstance(line, Picture)
            image = self.image
            wanted = (image.image_size, image.image_size, image.num_channels)
            if line.pixels.shape != wanted:
                raise DataError(
                    f"{line}: pixels {list(line.pixels.shape)}, but this model reads {list(wanted)}"
                )
            found.append(line.pixels[None])
        return found, [False] * len(found)

    def fill_sources(
        self, sources: Sequence[Any], rows: int, size: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns pictures as one array, and lengths: 1 for a picture, 0 for padding."""
        del size  # all pictures have one size
        filled = np.zeros((rows, *sources[0].shape[1:]), np.float32)
        filled[: len(sources)] = np.concatenate(sources)
        return filled, (np.arange(rows) < len(sources)).astype(np.int32)

    def inputs(self, source: np.ndarray, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arguments of the encoder by name."""
        del lengths
        return {"images": source}
