"""Captions with a folder's generation config, like ``generate()`` of transformers."""

from collections.abc import Sequence

import numpy as np

from transformer_jax.data.languages import Direction
from transformer_jax.decoding.generation_config import GenerationConfig
from transformer_jax.decoding.partial_text import GenerationSequence
from transformer_jax.decoding.requests import GenerationRequest
from transformer_jax.inference.captioner import Picture
from transformer_jax.inference.hf_generation import HFTextGenerator

__all__ = ["HFCaptionGenerator"]


class HFCaptionGenerator(HFTextGenerator):
    """A captioner with its generation config, as a function of :class:`.Picture` objects."""

    def _sequence(
        self, index: int, text: str, config: GenerationConfig, direction: Direction
    ) -> GenerationSequence:
        del direction
        assert isinstance(text, Picture)
        return GenerationSequence(
            GenerationRequest(str(text)),
            index=index,
            sample=0,
            prompt_ids=[],
            tokenizer=self.tokenizer,
            prompt_text="",
            source=text.pixels[None],
            end_tokens=config.eos_token_id,
        )

    def inputs(
        self, batch: Sequence[GenerationSequence]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Returns a token per picture, which is not read, its mask, and the pictures."""
        ones = np.ones((len(batch), 1), np.int32)
        return 0 * ones, ones, np.stack([sequence.source[0] for sequence in batch])
