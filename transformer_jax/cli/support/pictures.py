"""Pictures as input of commands that read texts: paths instead of lines."""

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformer_jax.data.images.picture_store import Pictures
    from transformer_jax.inference.facts import Facts

__all__ = [
    "PICTURE_FAMILIES",
    "classify_pictures",
    "embed_pictures",
    "picture_paths",
    "readable_pictures",
    "search_pictures",
]

PICTURE_FAMILIES = ("image", "two-tower")
_BATCH = 64  # pictures at a time


def search_pictures(command: Any, facts: "Facts") -> int:
    """Prints similarity and path of the pictures most similar to a text, in descending order.

    Args:
        command: The flags of ``semantic-search``.
        facts: Facts of a model of images and texts.

    Raises:
        ConfigError: The folder or the query is missing, or a flag is for texts.
        DataError: The folder has no pictures, or one cannot be read.
    """
    import numpy as np

    from transformer_jax.data.images.folders import find_pictures
    from transformer_jax.inference.image_texts import ImageTextPredictor
    from transformer_jax.inference.pretrained import Pretrained

    for name, usual in (
        ("layers", "last"), ("pool", None), ("rerank", None), ("candidates", None),
        ("from_language", None), ("to", None),
    ):  # fmt: skip
        if getattr(command, name) != usual:
            flag = name.removesuffix("_language")
            raise ConfigError(f"--{flag} is for encoders: {command.run} has one vector per text")
    query = command.file
    if command.images is None or command.query is not None:
        raise ConfigError(
            f"{command.run} searches pictures: semantic-search {command.run} --images FOLDER QUERY"
        )
    if not query.strip():
        raise ConfigError("the query is empty: give a text")
    found = [("", path) for path in find_pictures(command.images)]
    predictor = ImageTextPredictor(Pretrained.load(facts))
    [paths] = readable_pictures(command, predictor.form.max_pixels, found)
    worth = predictor.embed_images(paths) @ predictor.embed_texts(query)
    order = np.argsort(-worth, kind="stable")[: command.top].tolist()
    rows = [(float(worth[i]), paths[i]) for i in order]
    return int(command.show(("cosine", "picture"), rows))


def classify_pictures(command: Any, facts: "Facts") -> int:
    """Prints a line per picture with its label and the probability.

    The pictures of a folder are in the order of their paths.

    Args:
        command: The flags of ``classify``.
        facts: Facts of one of :data:`PICTURE_FAMILIES`.
    """
    from transformer_jax.cli.support.input_lines import given_lines, windows, write

    command.check_task("classify")
    labels, tell, form = _labels(command, facts)
    if command.all:
        write("label", "probability", *labels)
    given = ((name, _named(name, text)) for name, text in given_lines(command.texts))
    paths = picture_paths(given, listed=not command.texts)
    size = min(command.buffer_size, _BATCH)
    streamed = None if command.texts else size
    for several in readable_pictures(command, form.max_pixels, paths, streamed):
        for window in windows(several, size):
            for row in tell(window):
                write(*command.cells("classify", labels, row))
            sys.stdout.buffer.flush()
    return 0


def _labels(
    command: Any, facts: "Facts"
) -> tuple[Sequence[str], Callable[[list[str]], Any], "Pictures"]:
    """Returns the labels, a function from paths to their probabilities, and the form of pictures.

    Raises:
        ConfigError: ``--labels`` is missing for a model of images and texts, or given for another
            model.
    """
    from transformer_jax.inference.pretrained import Pretrained

    if facts.kind == "two-tower":
        from transformer_jax.inference.image_texts import TEMPLATE, ImageTextPredictor, check_labels

        if not command.labels:
            raise ConfigError(f"{command.run} has no labels: give --labels")
        template = TEMPLATE if command.template is None else command.template
        check_labels(command.labels, template)
        texts = ImageTextPredictor(Pretrained.load(facts))
        tell = lambda paths: texts.probabilities(paths, command.labels, template)
        return command.labels, tell, texts.form
    from transformer_jax.inference.images import ImagePredictor

    command.check_labels()
    predictor = ImagePredictor(Pretrained.load(facts))
    return predictor.labels, predictor.probabilities, predictor.form


def _named(name: str, path: str) -> str:
    if not path.strip():
        raise DataError(f"{name}: no picture: the path of a file is needed")
    return path.strip()


def embed_pictures(command: Any, facts: "Facts") -> int:
    """Writes the vector of each picture or each line of a text, and prints a summary line.

    A model of images and texts reads the pictures of a folder and the lines of a file.

    Args:
        command: The flags of ``embed``.
        facts: Facts of one of :data:`PICTURE_FAMILIES`.

    Raises:
        ConfigError: A flag for texts is given.
        DataError: There is no input, a picture cannot be read, or a line of text is the path of a
            picture.
    """
    from transformer_jax.cli.output import wrote
    from transformer_jax.inference.encoding.saving import VectorFile

    for name, usual in (("layers", "last"), ("pool", None), ("prompt_name", None),
                        ("prompt", None), ("max_tokens", None), ("from_language", None),
                        ("to", None)):  # fmt: skip
        if getattr(command, name) != usual:
            flag = name.removesuffix("_language").replace("_", "-")
            raise ConfigError(f"--{flag} is for texts: {command.run} reads pictures")
    (what, embed, given), file = _embedded(command, facts), VectorFile(command.output)
    with file:
        for several in _batches(given):
            file.add(embed(several))
        if not file.rows:
            raise DataError(f"embed {command.file}: no {what}: it is empty")
    wrote(command.output, what=f"vectors {file.rows:,} × {file.shape[0]:,} of {what}")
    return 0


def _embedded(
    command: Any, facts: "Facts"
) -> tuple[str, Callable[[list[Any]], Any], Iterator[str]]:
    """Returns the kind of input, its embedding function, and paths of pictures or lines of text."""
    from transformer_jax.inference.pretrained import Pretrained

    if facts.kind != "two-tower":
        from transformer_jax.inference.images import ImagePredictor

        predictor = ImagePredictor(Pretrained.load(facts))
        return "pictures", predictor.embed, _paths(command, predictor.form)
    from transformer_jax.cli.support.input_lines import file_lines
    from transformer_jax.inference.image_texts import ImageTextPredictor

    both = ImageTextPredictor(Pretrained.load(facts))
    if command.file.is_dir():
        return "pictures", both.embed_images, _paths(command, both.form)
    command.refuse_skipping("lines of text")
    return "lines", both.embed_texts, _texts(file_lines(command.file, "embed"), command.file)


def _texts(lines: Iterable[str], file: Path) -> Iterator[str]:
    """Yields lines of text.

    Raises:
        DataError: A line is the path of a picture, whose vector would be that of its name.
    """
    from transformer_jax.data.images.pixel_decoding import SUFFIXES

    for n, line in enumerate(lines, 1):
        path = line.strip()
        if path.lower().endswith(SUFFIXES) and os.path.isfile(path):
            raise DataError(
                f"{file}:{n}: {path} is a picture, and lines are read as texts: give a folder of "
                f"pictures instead of a list"
            )
        yield line


def _paths(command: Any, form: "Pictures") -> Iterator[str]:
    """Yields the pictures of a folder, sorted by name, or the paths listed in a file."""
    from transformer_jax.cli.support.input_lines import file_lines

    file, streamed = command.file, None
    if file.is_dir():
        paths = picture_paths([("", str(file))])
    else:
        lines = enumerate(file_lines(file, "embed"), 1)
        given = ((f"{file}:{n}", path) for n, line in lines if (path := line.strip()))
        paths = picture_paths(given, listed=True)
        streamed = _BATCH if str(file) == "-" else None
    return itertools.chain.from_iterable(
        readable_pictures(command, form.max_pixels, paths, streamed)
    )


def picture_paths(
    given: Iterable[tuple[str, str]], *, listed: bool = False
) -> Iterator[tuple[str, str]]:
    """Yields the paths of pictures; those of a folder are sorted, with its subfolders.

    Args:
        given: Paths of pictures and folders, each after the place where it is listed.
        listed: Whether they come from a file or from standard input, which name no other machine.

    Yields:
        The paths, each after its place, which is empty for the pictures of a folder.

    Raises:
        DataError: A folder has no pictures; the message names the place.
    """
    from transformer_jax.data.files import listed_path
    from transformer_jax.data.images.folders import find_pictures

    for place, path in given:
        path = listed_path(path, "", place) if listed else path
        if os.path.isdir(path):
            yield from (("", one) for one in find_pictures(path))
        else:
            yield place, path


def readable_pictures(
    command: Any, max_pixels: int, given: Iterable[tuple[str, str]], streamed: int | None = None
) -> Iterator[list[str]]:
    """Yields the pictures that can be read, after all of them are decoded once.

    So bad pictures come at once, before any work; with ``--skip-bad-pictures`` they are left out,
    named and counted.

    Args:
        command: The flags of a command with pictures.
        max_pixels: Largest number of pixels in a picture.
        given: Paths of pictures, each after its place; see :func:`picture_paths`.
        streamed: Number of pictures to read at a time from standard input; None reads all of them.

    Raises:
        ListedError: Pictures are missing, damaged, of unknown format or too large.
    """
    from transformer_jax.cli.output import note
    from transformer_jax.cli.support.input_lines import windows
    from transformer_jax.data.bad_rows import BadRows
    from transformer_jax.data.images.picture_sources import PictureFiles, check_pictures

    policy: Any = "skip" if command.skip_bad_pictures else "refuse"
    bad, count = BadRows("pictures", policy, "picture", "--skip-bad-pictures"), 0
    for several in [list(given)] if streamed is None else windows(given, streamed):
        places, paths = [place for place, _ in several], [path for _, path in several]
        good = check_pictures(PictureFiles(paths, places), max_pixels, bad, decoded=True)
        count += len(good)
        if bad.refused:
            bad.check(count)
        for i in sorted({*range(len(paths))} - {*good}):
            note(f"{paths[i]} is left out")
        yield [paths[i] for i in good]
    bad.report(count)


def _batches(paths: Iterator[str]) -> Iterator[list[Any]]:
    from transformer_jax.cli.support.input_lines import windows

    return windows(paths, _BATCH)
