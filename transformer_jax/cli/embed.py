"""``transformer-jax embed``: embeddings of the lines of a file."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from transformer_jax.cli.output import note_unknown, wrote
from transformer_jax.cli.support.run_command import PictureFlags, PredictionCommand
from transformer_jax.core.config_fields import Count, OutputPath, Range
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.recipes.generation_flags import LanguageFlags

__all__ = ["EmbedCommand"]


@dataclasses.dataclass(frozen=True)
class EmbedCommand(LanguageFlags, PictureFlags, PredictionCommand):
    """Write embeddings of lines of text, their tokens, or pictures: .npz or .safetensors."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of an encoder, a translator, an image model, or a model
    of images and texts."""
    file: tyro.conf.Positional[Path]
    """Text file of any size; - is standard input. For an image model: a folder of pictures, or a
    file with one path of a picture per line. For a model of images and texts: a folder of pictures
    or a text file."""
    output: OutputPath = Path("vectors.npz")
    """Output file with "vectors"; without pooling, also "offsets" of lines and token "ids"."""
    layers: str = "last"
    """Layers: last, all, sum4 or concat4 (the last four), or a number; 0 is the embedding layer."""
    pool: Literal["mean", "cls", "none"] | None = None
    """Pooling: mean over all tokens with [CLS] and [SEP], the first token ([CLS]), or none (one
    vector per token). None is the configuration of a sentence encoder, with its default prompt,
    final linear layer and normalization, or else the mean."""
    prompt_name: str | None = None
    """Name of a sentence encoder's prompt, put before each line; None is its default prompt, unless
    --pool is given."""
    prompt: str | None = None
    """Text to put before each line, instead of a prompt of the encoder."""
    width: Count | None = None
    """Number of first components to write, for an encoder that was trained so (Matryoshka), scaled
    to length 1 again if the encoder does so; None is all."""
    max_tokens: Annotated[int, Range(1, 1_000_000)] | None = None
    """Maximum number of tokens in a batch, with padding; None depends on the device."""
    buffer_size: Annotated[int, Range(1, 10_000_000)] = 4096
    """Number of lines to read at a time, and to hold in memory."""

    def __call__(self) -> int:
        """Writes the file, and prints a summary line."""
        from transformer_jax.cli.support.input_lines import check_lines, file_lines, layers_of
        from transformer_jax.cli.support.pictures import PICTURE_FAMILIES, embed_pictures
        from transformer_jax.inference.encoders import (
            EMBEDDING_FAMILIES,
            first_components,
            pools_of,
            prompt_of,
            skip_of,
            vectors_of,
        )
        from transformer_jax.inference.pretrained import Pretrained, read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        self.check_width(pictures=facts.kind in PICTURE_FAMILIES)
        if facts.kind in PICTURE_FAMILIES:
            return embed_pictures(self, facts)
        self.refuse_skipping("lines of text")
        layers = layers_of(self.layers)
        import numpy as np

        from transformer_jax.inference.encoding.saving import VectorFile

        check_lines(self.file, "embed")
        pool, own = pools_of(facts, self.pool), self.pool is None
        file = VectorFile(self.output)
        prompt = prompt_of(facts, self.prompt_name, text=self.prompt, usual=own)
        opened = Pretrained.load(facts, *EMBEDDING_FAMILIES)
        vectors = vectors_of(opened, tokens=self.max_tokens, direction=self.direction)
        vectors.dense = opened.sentence_layer if own else None
        if self.width is not None:
            vectors.dense = first_components(facts, vectors.dense, self.width)
        skip = skip_of(facts, vectors, prompt) if own else 0
        vectors.check(layers, pool)
        lengths, ids = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
        with file:
            how: Any = {"layers": layers, "pool": pool, "prompt": prompt, "skip": skip}
            lines = file_lines(self.file, "embed")
            blocks = vectors.embed(lines, **how, block=self.buffer_size)
            for made in blocks:
                file.add(made.vectors)
                if pool == "none":
                    lengths.append(made.lengths)
                    ids.append(made.ids.astype(np.int32))
            if not vectors.counts["lines"]:
                raise DataError(f"embed {self.file}: no lines: it is empty")
            if pool == "none":
                offsets = np.cumsum(np.concatenate(lengths))
                file.others = {"offsets": offsets, "ids": np.concatenate(ids)}
        note_unknown(vectors.counts, "line", "lines")
        cut = vectors.counts["cut"]
        shape = " × ".join(f"{n:,}" for n in (file.rows, *file.shape))
        said = f", {cut:,} of them truncated to {plural(vectors.length, 'token')}" if cut else ""
        read = plural(vectors.counts["lines"], "line")
        wrote(self.output, what=f"vectors {shape} of {read}{said}")
        return 0

    def check_width(self, *, pictures: bool) -> None:
        """Refuses ``width`` for other vectors than one of the last layer for each text.

        Raises:
            ConfigError: It is given.
        """
        if self.width and (pictures or self.layers != "last" or self.pool == "none"):
            raise ConfigError("--width is for one vector of the last layer for each text")
