"""``transformer-jax fill-mask``: masked-token prediction."""

import dataclasses
import sys
from pathlib import Path

import tyro

from transformer_jax.cli.output import note_unknown
from transformer_jax.cli.support.run_command import PredictionCommand
from transformer_jax.core.config_fields import Count

__all__ = ["FillMask"]

HEADER = ("line", "mask", "word", "probability")
READ_AHEAD = 1024


@dataclasses.dataclass(frozen=True)
class FillMask(PredictionCommand):
    """Predict the tokens at [MASK] with a pre-trained encoder, as TSV."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of a pre-trained encoder."""
    texts: tyro.conf.Positional[tuple[str, ...]] = ()
    """Texts with at least one [MASK]; without any, the lines of standard input."""
    top: Count = 5
    """Number of predictions per mask."""

    def __call__(self) -> int:
        """Prints one row per prediction, the most probable first."""
        from transformer_jax.cli.support.input_lines import given_texts, windows, write
        from transformer_jax.inference.encoders import check_masks, mask_filler
        from transformer_jax.inference.pretrained import Pretrained, read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        check_masks(facts)
        fill = mask_filler(Pretrained.load(facts))
        number = 0
        for window in windows(given_texts(self.texts), READ_AHEAD):
            for name, text in window:
                fill.encode(text, name)  # errors name the line, before any output
            found = fill([text for _, text in window], top=self.top)
            for masks in found:
                if not number:
                    write(*HEADER)
                number += 1
                for place, words in enumerate(masks, 1):
                    for word in words:
                        share = f"{word.probability:.4f}"
                        write(str(number), str(place), word.text.strip(" ") or word.text, share)
            sys.stdout.buffer.flush()
        note_unknown(fill.counts, total="lines")
        return 0
