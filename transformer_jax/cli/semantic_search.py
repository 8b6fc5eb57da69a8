"""``transformer-jax semantic-search``: semantic search in the lines of a file, or in pictures."""

import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import check_file, note, note_unknown, write_json
from transformer_jax.cli.support.run_command import PictureFlags, PredictionCommand
from transformer_jax.core.config_fields import Count, OutputPath
from transformer_jax.core.errors import ConfigError, DataError, plural
from transformer_jax.recipes.generation_flags import LanguageFlags

if TYPE_CHECKING:
    from transformer_jax.inference.encoding.vectors import Embedder
    from transformer_jax.inference.facts import Facts

__all__ = ["SemanticSearch"]

_CANDIDATES = 100


@dataclasses.dataclass(frozen=True)
class SemanticSearch(LanguageFlags, PictureFlags, PredictionCommand):
    """Print the lines or pictures with the highest cosine similarity to a query, as TSV.

    A sentence encoder with prompts "query" and "document" puts them before the query and the lines,
    and compares by dot products if its configuration specifies so.
    """

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of an encoder or a translator, or of a model of images
    and texts."""
    file: tyro.conf.Positional[str]
    """Text file of any size; - is standard input. Empty lines are ignored. With --images, the
    query."""
    query: tyro.conf.Positional[str | None] = None
    """Query text."""
    images: str | None = None
    """Folder of pictures to search, instead of a file."""
    top: Count = 5
    """Number of lines or pictures to print."""
    layers: str = "last"
    """Layers: last, sum4 or concat4 (the last four), or a number; 0 is the embedding layer."""
    pool: Literal["mean", "cls"] | None = None
    """Pooling: mean over all tokens with [CLS] and [SEP], or the first token ([CLS]). None is the
    pooling of a sentence encoder's own configuration, and else the mean."""
    rerank: Path | None = None
    """Run directory or Hugging Face folder of a cross-encoder. It reads the query together with
    each of the nearest lines, which are sorted by its scores."""
    candidates: Count | None = None
    """Number of nearest lines that the cross-encoder scores; None is 100, or --top if that is
    more."""
    json: OutputPath | None = None
    """Output file of the results, with all digits and with texts as they are."""

    def __call__(self) -> int:
        """Prints the most similar lines or pictures with their similarity, in descending order."""
        check_file("--json", self.json, (".json",))
        from transformer_jax.cli.support.pictures import search_pictures
        from transformer_jax.inference.pretrained import read_facts

        facts = read_facts(self.run, self.checkpoint, self.opening())
        if facts.kind == "two-tower":
            return search_pictures(self, facts)
        if self.images is not None:
            raise ConfigError(f"--images: {self.run} is not a model of images and texts")
        self.refuse_skipping("lines of text")
        return self.search_lines(facts)

    def search_lines(self, facts: "Facts") -> int:
        """Prints score, similarity, number and text of the best lines of the file."""
        scorer = self.scorer()
        name, found = self.nearest(facts, self.top if scorer is None else self.number_to_score())
        if scorer is None:
            return self.show((name, "line", "text"), found)
        scores = _scores(scorer, str(self.query), [line for *_, line in found])
        order = sorted(range(len(found)), key=lambda i: -scores[i])[: self.top]
        return self.show(("score", name, "line", "text"), [(scores[i], *found[i]) for i in order])

    def show(self, names: Sequence[str], rows: Sequence[Sequence[float | str]]) -> int:
        """Prints rows below the names of their columns, and writes them as JSON if asked to."""
        from transformer_jax.cli.support.input_lines import write

        write(*names)
        for row in rows:
            write(*(f"{one:.4f}" if isinstance(one, float) else str(one) for one in row))
        if self.json is not None:
            write_json("--json", self.json, [dict(zip(names, row, strict=True)) for row in rows])
        return 0

    def scorer(self) -> "Facts | None":
        """Returns the facts of the cross-encoder, or None without ``--rerank``.

        Raises:
            ConfigError: It gives no numbers for pairs, or another flag needs it.
        """
        from transformer_jax.inference.encoders import check_scorer
        from transformer_jax.inference.pretrained import read_facts

        if self.rerank is None:
            if self.candidates is not None:
                raise ConfigError("--candidates is for --rerank CROSS_ENCODER: leave it out")
            return None
        if self.candidates is not None and self.candidates < self.top:
            raise ConfigError(
                f"--candidates is {self.candidates}, and --top {self.top}: only candidates are "
                f"printed, so there must be at least as many"
            )
        facts = read_facts(self.rerank, opening=self.opening())
        check_scorer(facts)
        return facts

    def number_to_score(self) -> int:
        """Returns the number of lines for the cross-encoder."""
        return max(_CANDIDATES, self.top) if self.candidates is None else self.candidates

    def nearest(self, facts: "Facts", count: int) -> tuple[str, list[tuple[float, int, str]]]:
        """Returns similarity, number and text of the nearest lines, and the similarity's name."""
        from transformer_jax.cli.support.input_lines import check_lines, file_lines, layers_of
        from transformer_jax.core.numerics import cosine
        from transformer_jax.inference.encoders import (
            EMBEDDING_FAMILIES,
            pools_of,
            prompt_of,
            similarity_of,
            skip_of,
            vectors_of,
        )
        from transformer_jax.inference.pretrained import Pretrained

        layers = layers_of(self.layers)
        if layers == "all":
            raise ConfigError("--layers all: lines are compared by one vector: choose one layer")
        if self.query is None or not self.query.strip():
            raise ConfigError("the query is empty: give a text")
        check_lines(Path(self.file), "semantic-search")
        pool, own = pools_of(facts, self.pool), self.pool is None
        name, compare = similarity_of(facts) if own else ("cosine", cosine)
        opened = Pretrained.load(facts, *EMBEDDING_FAMILIES)
        vectors = vectors_of(opened, direction=self.direction)
        vectors.dense = opened.sentence_layer if own else None
        prompts = [prompt_of(facts, kind) if own else "" for kind in ("query", "document")]
        how: Any = {"layers": layers, "pool": pool}
        query: dict[str, Any]
        query, document = (
            how | {"prompt": one, "skip": skip_of(facts, vectors, one)} for one in prompts
        )
        [asked] = vectors.embed([self.query], **query)
        _note_query(vectors)
        kept: list[tuple[int, str]] = []  # lines of the current window

        def lines() -> Iterator[str]:
            for number, line in enumerate(file_lines(Path(self.file), "semantic-search"), 1):
                if vectors.prepared(line):
                    kept.append((number, line))
                    yield line

        # A min-heap; on ties, the later line is dropped.
        heap: list[tuple[float, int, str]] = []
        for made in vectors.embed(lines(), **document):
            worth = compare(made.vectors, asked.vectors)
            for value, (number, line) in zip(worth.tolist(), kept, strict=True):
                heapq.heappush(heap, (value, -number, line))
                if len(heap) > count:
                    heapq.heappop(heap)
            kept.clear()
        if not heap:
            raise DataError(f"semantic-search {self.file}: no lines: it is empty")
        _note_lines(vectors)
        return name, [(value, -number, line) for value, number, line in sorted(heap, reverse=True)]


def _scores(facts: "Facts", query: str, lines: Sequence[str]) -> list[float]:
    """Returns the score of each line with a query, by a cross-encoder."""
    from transformer_jax.inference.encoders import task_runner
    from transformer_jax.inference.pretrained import Pretrained

    runner = task_runner(Pretrained.load(facts))
    scores = runner.numbers([query] * len(lines), lines)
    note_unknown(runner.counts)
    if cut := runner.counts["cut"]:
        pairs, length = plural(len(lines), "pair"), plural(facts.head.length, "token")
        note(f"{facts.source}: {cut:,} of {pairs} truncated to {length}")
    return scores.tolist()


def _note_query(vectors: "Embedder") -> None:
    """Prints notes about the query if it was not read as it is, and counts anew."""
    if vectors.counts["cut"]:
        note(f"the query is truncated to {plural(vectors.length, 'token')}")
    note_unknown(vectors.counts, "query")
    vectors.counts.clear()


def _note_lines(vectors: "Embedder") -> None:
    """Prints notes about lines that were not read as they are, if there are any."""
    note_unknown(vectors.counts, "line", "lines")
    if cut := vectors.counts["cut"]:
        total, length = plural(vectors.counts["lines"], "line"), plural(vectors.length, "token")
        note(f"{cut:,} of {total} truncated to {length}")
