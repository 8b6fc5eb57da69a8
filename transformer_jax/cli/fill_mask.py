"""``transformer-jax fill-mask``: masked-token prediction."""

import dataclasses
import sys
from pathlib import Path

import tyro

from transformer_jax.cli.output import note_unknown
from transformer_jax.cli.run_command import PredictionCommand
from transformer_jax.core.config_fields import Count
from transformer_jax.core.errors import ConfigError, command

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
    checkpoint: str = "best"
    """Checkpoint: best, last, a step number, or average:N (mean of the last N)."""

    def __call__(self) -> int:
        """Prints one row per prediction, the most probable first."""
        from transformer_jax.inference.load_run import load
        from transformer_jax.inference.runs import (
            as_trained,
            open_directory,
            refuse_others,
            task_of,
        )

        run = open_directory(self.run)
        if refuse_others(run, ("encoder", "encoder-task")) == "encoder-task":
            task = task_of(run)
            begun = task.get("init_from")
            hint = f"use the run that it was initialized from, {begun}" if begun else "pre-train"
            raise ConfigError(
                f"{self.run}: fine-tuned for the task {task['kind']}, it no longer has a masked-LM "
                f"head: {hint}"
            )
        if run.read_config().get("masking", {}) is None:
            raise ConfigError(
                f"{self.run}: this checkpoint has an encoder without a masked-LM head: "
                f"try {command('embed', self.run)}"
            )
        from transformer_jax.cli.encoders import given_lines, windows, write
        from transformer_jax.inference.encoders import read_length, template_of
        from transformer_jax.inference.encoding import masked

        prepare = as_trained(self.run, trim=False)
        model, tokenizer = load(self.run, self.checkpoint, kind="encoder")
        length, template = read_length(run), template_of(run, tokenizer)
        fill = masked.MaskFiller(
            model, tokenizer, length=length, prepare=prepare, template=template
        )
        number = 0
        for window in windows(given_lines(self.texts), READ_AHEAD):
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
