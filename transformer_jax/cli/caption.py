"""``transformer-jax caption``: the captions of pictures."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from transformer_jax.cli.output import TextOutput, check_file, note, tsv, wrote
from transformer_jax.cli.support.run_command import PictureFlags, PredictionCommand
from transformer_jax.core.config_fields import OutputPath, Range
from transformer_jax.core.errors import ConfigError, plural
from transformer_jax.decoding.generation_config import TRANSLATION
from transformer_jax.recipes.generation_flags import generation_flags

if TYPE_CHECKING:
    from transformer_jax.decoding.requests import Continuation
    from transformer_jax.inference.captions import CaptionPredictor

__all__ = ["Caption"]

_DRAWN = ("temperature", "top_k", "top_p", "min_p", "seed")

CaptionFlags: Any = generation_flags(
    TRANSLATION,
    *("num_beams", "normalization", "length_penalty", "num_return_sequences", "max_len_b", *_DRAWN),
    num_return_sequences="more than one needs --tsv; None is 1",
    length_penalty="None is that of the run (0.6 if unset)",
    max_len_b="None is the limit of the run",
)


@dataclasses.dataclass(frozen=True)
class Caption(CaptionFlags, PictureFlags, PredictionCommand):
    """Describe pictures with a captioner: one line of text per picture."""

    run: tyro.conf.Positional[Path]
    """Run directory of a captioner, or Hugging Face folder."""
    images: tyro.conf.Positional[tuple[str, ...]]
    """Pictures, or folders of them with their subfolders."""
    input: Path | None = None
    """Text file with one path of a picture per line, .gz allowed."""
    output: OutputPath | None = None
    """Output file, .gz allowed; None is standard output."""
    tsv: bool = False
    """Write a table with one row per caption: path, rank, score, text (\\t, \\n and \\\\ stand for
    a tab, a line end and a backslash)."""
    heat_maps: OutputPath | None = None
    """HTML file with a heat map per word: the cross-attention over the picture. For a single
    picture, a plot is also written, with the suffix .png."""
    batch_size: Annotated[int, Range(1, 65_536)] = 32
    """Maximum number of pictures in a batch."""
    sample: bool = False
    """Sample instead of beam search."""

    def __call__(self) -> int:
        """Writes one line per picture, in input order."""
        search = self.search()
        given = self.given_pictures()
        from transformer_jax.cli.support.pictures import readable_pictures
        from transformer_jax.core.task_progress import show_progress, tracked
        from transformer_jax.inference.captions import CaptionPredictor
        from transformer_jax.inference.pretrained import open_pretrained

        predictor = CaptionPredictor(
            open_pretrained(self.run, self.checkpoint, "captioner", opening=self.opening())
        )
        [paths] = readable_pictures(self, predictor.form.max_pixels, given)
        by_folder = predictor.follows_folder(None, search)
        describe, captioner = self.describe(predictor, by_folder, search), predictor.captioner
        with TextOutput(self.output, self.input) as out:
            out.write(tsv("path", "rank", "score", "text") if self.tsv else b"")
            pictures = [
                predictor.picture(path, i)
                for i, path in enumerate(tracked(paths, "reading pictures"), 1)
            ]
            texts, limited = list[str](), 0
            with show_progress(f"describing {plural(len(pictures), 'picture')}"):
                for picture, hypotheses in zip(pictures, describe(pictures), strict=True):
                    texts.append(hypotheses[0].text)
                    limited += by_folder and hypotheses[0].finish_reason == "length"
                    rows = enumerate(hypotheses, 1)
                    table = [tsv(picture, rank, one.score, one.text) for rank, one in rows]
                    out.write(b"".join(table) if self.tsv else texts[-1].encode() + b"\n")
        if limited:
            said = f"{limited:,} of {plural(len(pictures), 'caption')}"
            note(f"{said} reached the length limit of the generation config and may be truncated: "
                 f"raise its max_length, or give --max-len-b")  # fmt: skip
        if limited := captioner.counts["limited"]:
            said = captioner.limit_note(limited, len(pictures))
            note(f"{said}: raise --max-len-b")
        if self.heat_maps is not None:
            self.write_heat_maps(self.heat_maps, predictor, paths, texts)
        return 0

    def describe(
        self, predictor: "CaptionPredictor", by_folder: bool, search: dict[str, Any]
    ) -> Callable[[list[Any]], Iterator[Sequence["Continuation"]]]:
        """Returns the function from pictures to the captions of each, best first.

        Args:
            predictor: The captioner.
            by_folder: Whether it follows the generation config of a folder.
            search: The settings of the flags.
        """
        if by_folder:
            predictor.batch_size = self.batch_size
            return lambda pictures: predictor.folder_generator(pictures, search)
        captioner = predictor.captioner
        captioner.search = predictor.search(None, search)
        captioner.batching = dataclasses.replace(
            captioner.batching,
            rows=tuple(sorted({n for n in (1, 8) if n < self.batch_size} | {self.batch_size})),
        )
        return lambda pictures: (found.hypotheses for found in captioner.stream(pictures))

    def write_heat_maps(
        self, page: Path, predictor: "CaptionPredictor", paths: list[str], texts: list[str]
    ) -> None:
        """Writes the heat maps of captions over their pictures."""
        from transformer_jax.visual.heat_maps import heat_map_page

        empty = [path for path, text in zip(paths, texts, strict=True) if not text.strip()]
        if empty:
            note(f"the caption of {empty[0]} is empty: its heat maps are left out")
        maps = [
            predictor.heat_maps(path, text)
            for path, text in zip(paths, texts, strict=True)
            if text.strip()
        ]
        if not maps:
            return
        try:
            heat_map_page(maps, page)
            if len(maps) == 1:
                maps[0].png(page.with_suffix(".png"), layer=-1)
        except ConfigError as error:
            raise ConfigError(f"--heat-maps {error}") from None
        wrote(page, *([page.with_suffix(".png")] if len(maps) == 1 else []))

    def search(self) -> dict[str, Any]:
        """Returns the settings of beam search or of sampling, as flags choose.

        Raises:
            ConfigError: Flags exclude each other, or the page has the wrong suffix.
        """
        check_file("--heat-maps", self.heat_maps, (".html",))
        given = self.given()
        drawn = [name for name in _DRAWN if name in given]
        if not self.sample:
            if drawn:
                raise ConfigError(f"--{drawn[0].replace('_', '-')} is for sampling: add --sample")
            if given.get("num_return_sequences", 1) > 1 and not self.tsv:
                raise ConfigError("--num-return-sequences: several captions are rows of --tsv")
            return given
        if given.get("num_beams", 1) > 1:
            raise ConfigError("--sample and --num-beams exclude each other: leave one of them out")
        if given.get("num_return_sequences", 1) > 1:
            raise ConfigError("--num-return-sequences is for beam search: leave it or --sample out")
        return {**given, "num_beams": 1, "do_sample": True}

    def given_pictures(self) -> list[tuple[str, str]]:
        """Returns the paths of all pictures, each after its place; see :func:`.picture_paths`.

        Raises:
            ConfigError: No pictures are given.
            DataError: A folder has no pictures, or the list cannot be read.
        """
        from transformer_jax.cli.support.pictures import picture_paths
        from transformer_jax.data.text import read_lines

        given = [(f"picture {n}", path) for n, path in enumerate(self.images, 1)]
        listed = [] if self.input is None else [*read_lines(self.input, "--input")]
        lines = [(f"{self.input}:{n}", line) for n, line in enumerate(listed, 1) if line.strip()]
        found = [*picture_paths(given), *picture_paths(lines, listed=True)]
        if not found:
            raise ConfigError("caption needs pictures: caption RUN a.png b.jpg, or --input LIST")
        return found
