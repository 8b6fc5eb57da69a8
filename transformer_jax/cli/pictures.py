"""Pictures where commands take texts: their files are given instead of lines."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.core.errors import ConfigError, DataError

__all__ = ["classify_pictures", "embed_pictures", "reads_pictures"]

_BATCH = 64  # pictures at a time


def reads_pictures(run: Path) -> bool:
    """Returns whether the model of a run or of a Hugging Face folder reads pictures alone.

    Raises:
        CheckpointError: There is no such run, or it is damaged.
    """
    from transformer_jax.inference.runs import family, open_directory

    return family(open_directory(run)) == "image"


def classify_pictures(command: Any) -> int:
    """Prints a line with the label and its probability for each picture.

    Args:
        command: The flags of ``classify``.
    """
    from transformer_jax.cli.encoders import given_lines, windows, write
    from transformer_jax.inference.images import ImagePredictor

    command.check_task("classify")
    predictor = ImagePredictor(command.run, command.checkpoint)
    if command.all:
        write("label", "probability", *predictor.labels)
    for window in windows(given_lines(command.texts), min(command.buffer_size, _BATCH)):
        paths = [_named(name, text) for name, text in window]
        for row in predictor.probabilities(paths):
            write(*command.cells("classify", predictor.labels, row))
        sys.stdout.buffer.flush()
    return 0


def _named(name: str, path: str) -> str:
    if not path.strip():
        raise DataError(f"{name}: no picture: the path of a file is needed")
    return path.strip()


def embed_pictures(command: Any) -> int:
    """Writes the vector of each picture, and prints a line about them.

    Args:
        command: The flags of ``embed``.

    Raises:
        ConfigError: A flag for texts is given.
    """
    from transformer_jax.cli.output import wrote
    from transformer_jax.inference.encoding.saving import VectorFile
    from transformer_jax.inference.images import ImagePredictor

    for name, usual in (("layers", "last"), ("pool", None), ("prompt_name", None),
                        ("prompt", None), ("max_tokens", None), ("from_language", None),
                        ("to", None)):  # fmt: skip
        if getattr(command, name) != usual:
            flag = name.removesuffix("_language").replace("_", "-")
            raise ConfigError(f"--{flag} is for texts: {command.run} reads pictures")
    file, predictor = VectorFile(command.output), ImagePredictor(command.run, command.checkpoint)
    with file:
        for paths in _batches(_paths(command.file)):
            file.add(predictor.embed(paths))
        if not file.rows:
            raise DataError(f"embed {command.file}: no pictures: it is empty")
    wrote(command.output, what=f"vectors {file.rows:,} × {file.shape[0]:,} of pictures")
    return 0


def _paths(file: Path) -> Iterator[str]:
    """The pictures of a folder in the order of their names, or those that a file lists."""
    from transformer_jax.cli.encoders import file_lines
    from transformer_jax.data.images.sources import find_pictures

    if file.is_dir():
        return iter(find_pictures(str(file)))
    return (path for line in file_lines(file, "embed") if (path := line.strip()))


def _batches(paths: Iterator[str]) -> Iterator[list[Any]]:
    from transformer_jax.cli.encoders import windows

    return windows(paths, _BATCH)
