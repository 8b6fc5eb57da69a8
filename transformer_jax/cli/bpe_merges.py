"""``transformer-jax bpe-merges``: byte-pair encoding of a text, merge by merge."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from transformer_jax.cli.output import check_file, writing, wrote
from transformer_jax.core.config_fields import Configuration, OutputPath, Range
from transformer_jax.core.errors import DataError
from transformer_jax.core.text_tables import aligned

__all__ = ["BPEMerges"]


@dataclasses.dataclass(frozen=True)
class BPEMerges(Configuration, group="--"):
    """Print a text after each merge of byte-pair encoding, and draw it.

    Each step merges the most frequent pair of adjacent symbols within words; ties go to the first
    pair in the order of code points.
    """

    text: tyro.conf.Positional[str]
    """The text, or - for standard input."""
    merges: Annotated[int, Range(0, 1000)] = 5
    """Number of merges. The picture shows the first 60."""
    output: OutputPath | None = None
    """Output file of the picture: .png, .svg or .html."""

    def __call__(self) -> int:
        """Prints a line per step, and writes the picture."""
        from transformer_jax.visual.figures import SUFFIXES

        check_file("--output", self.output, SUFFIXES)
        from transformer_jax.cli.support.input_lines import file_lines
        from transformer_jax.data.merges import merge_steps
        from transformer_jax.data.preparation import compose
        from transformer_jax.data.words import blank_words

        given = [self.text] if self.text != "-" else [*file_lines(Path("-"))]
        text = " ".join(blank_words(compose(" ".join(given))))
        if not text:
            raise DataError("the text is empty: give one with words")
        steps = merge_steps(text, self.merges)
        rows = [
            (str(n), " ".join(step.pair or ()), str(step.times or ""), step.line)
            for n, step in enumerate(steps)
        ]
        print(aligned([("merge", "pair", "times", "text"), *rows], left=4))
        if self.output is not None:
            from transformer_jax.visual.merge_pictures import plot_merges

            with writing("--output", self.output):
                plot_merges(steps, self.output)
            wrote(self.output)
        return 0
