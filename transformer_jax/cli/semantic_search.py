"""``transformer-jax semantic-search``: semantic search in the lines of a file."""

import dataclasses
import heapq
from pathlib import Path
from typing import Literal

import tyro

from transformer_jax.cli.output import note
from transformer_jax.cli.run_command import PredictionCommand
from transformer_jax.errors import ConfigError, DataError, plural

__all__ = ["SemanticSearch"]


@dataclasses.dataclass(frozen=True)
class SemanticSearch(PredictionCommand):
    """Print the lines of a file with the highest cosine similarity to a query, as TSV."""

    run: tyro.conf.Positional[Path]
    """Run directory or Hugging Face folder of an encoder or a translator."""
    file: tyro.conf.Positional[Path]
    """Text file of any size; - is standard input. Empty lines are ignored."""
    query: tyro.conf.Positional[str]
    """Query text."""
    top: int = 5
    """Number of lines to print."""
    layers: str = "last"
    """Layers: last, sum4 or concat4 (the last four), or a number; 0 is the embeddings."""
    pool: Literal["mean", "cls"] | None = None
    """Pooling: mean over all tokens with [CLS] and [SEP], or the first token ([CLS]). None is the
    pooling of a sentence encoder's own configuration, and else the mean."""
    checkpoint: str = "best"
    """Checkpoint: best, last, a step number, or average:N (mean of the last N)."""

    def __call__(self) -> int:
        """Prints cosine, number and text of the most similar lines, in descending order."""
        from transformer_jax.cli.encoders import file_lines, layers_of, write
        from transformer_jax.predictors.encoders import load_vectors, pool_of

        layers = layers_of(self.layers)
        if layers == "all":
            raise ConfigError("--layers all: lines are compared by one vector: choose one layer")
        if self.top < 1:
            raise ConfigError(f"--top is {self.top}: at least 1")
        if not self.query.strip():
            raise ConfigError("the query is empty: there is nothing to compare with")
        from transformer_jax.data.text import check_readable

        if str(self.file) != "-":
            check_readable(self.file, "semantic-search")
        pool = pool_of(self.run, self.pool)
        vectors, prepare = load_vectors(self.run, self.checkpoint, sentences=self.pool is None)
        from transformer_jax.encoding.vectors import cosine

        [asked] = vectors.embed([prepare(self.query)], layers=layers, pool=pool)
        vectors.counts.update(lines=0, cut=0)
        kept: list[tuple[int, str]] = []  # of the current window

        def lines():
            for number, line in enumerate(file_lines(self.file, "semantic-search"), 1):
                if prepared := prepare(line):
                    kept.append((number, line))
                    yield prepared

        # A heap with the smallest first; of equal lines the later one is dropped.
        heap: list[tuple[float, int, str]] = []
        for made in vectors.embed(lines(), layers=layers, pool=pool):
            worth = cosine(made.vectors, asked.vectors)
            for value, (number, line) in zip(worth.tolist(), kept, strict=True):
                heapq.heappush(heap, (value, -number, line))
                if len(heap) > self.top:
                    heapq.heappop(heap)
            kept.clear()
        if not heap:
            raise DataError(f"semantic-search {self.file}: no lines: it is empty")
        write("cosine", "line", "text")
        for value, number, line in sorted(heap, reverse=True):
            write(f"{value:.4f}", str(-number), line)
        if cut := vectors.counts["cut"]:
            total, length = plural(vectors.counts["lines"], "line"), plural(vectors.length, "token")
            note(f"{cut:,} of {total} truncated to {length}")
        return 0
