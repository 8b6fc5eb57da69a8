"""Steps that a batch of translations computes for rows whose text has ended, counted.

    python -m benchmarks finished-rows NAME SOURCE TARGET

Batches are those of ``translate`` for the lines of SOURCE, and the search of a line takes as many
steps as TARGET has tokens, by a tokenizer of 8,000 subwords of both files. Counted are the steps of
all loops, and the part of the steps of their rows that writes a token: as the loop is on a GPU and
with beams; where rows that have ended are left out, as in greedy search on a CPU; and if a waiting
line of the same padded length replaced each of them at once. Adds a case to
``benchmarks/results/finished_rows.json``.
"""

import argparse
import collections
import heapq
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flax import nnx

from benchmarks import ours
from benchmarks.harness import TREE, environment
from transformer_jax.data.text import read_lines
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.translator import Translator, compaction_sizes
from transformer_jax.models.transformer.models import TransformerEncoderDecoder

__all__ = ["main", "row_steps"]


def main(arguments: Sequence[str]) -> None:
    """Runs ``python -m benchmarks finished-rows``."""
    parser = argparse.ArgumentParser("python -m benchmarks finished-rows", description=__doc__)
    parser.add_argument("name", help="name of the case")
    parser.add_argument("source", type=Path, help="lines to translate")
    parser.add_argument("target", type=Path, help="their translations")
    output = TREE / "benchmarks" / "results" / "finished_rows.json"
    parser.add_argument("--output", type=Path, default=output, help="file of the figures")
    asked = parser.parse_args(arguments)
    texts = [list(read_lines(file)) for file in (asked.source, asked.target)]
    tokenizer = train_tokenizer("bpe", [*texts[0], *texts[1]], 8000)
    config = ours.configuration(tokenizer.vocab_size, 16, 1, 1, 16)
    translator = Translator(TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)), tokenizer)
    longest = translator.longest
    read, written = (
        [min(1 + len(ids), longest) for ids in tokenizer.encode_batch(lines)] for lines in texts
    )
    found: dict[str, Any] = {"lines": len(read), "tokens": sum(written)}
    for beams in (1, 4):
        found[f"{beams} beams"] = _counts(translator, read, written, beams)
    stored = json.loads(asked.output.read_text())["cases"] if asked.output.exists() else {}
    result = {"what": __doc__, **environment(), "cases": stored | {asked.name: found}}
    asked.output.write_text(json.dumps(result, indent=1) + "\n")
    print(asked.name, json.dumps(found))


def _counts(
    translator: Translator, read: list[int], written: list[int], beams: int
) -> dict[str, float]:
    """Returns the counts of one search, given the lengths of all lines and of their results."""
    steps = collections.Counter[str]()
    rows_used = collections.Counter[str]()
    window = translator.batching.window
    for first in range(0, len(read), window):
        waiting: dict[tuple[int, int], list[int]] = collections.defaultdict(list)
        which = range(first, min(first + window, len(read)))
        for lines, (rows, size) in translator.batches(which, read, beams):
            lengths = [written[line] for line in lines]
            waiting[rows, size] += lengths
            steps["now"] += max(lengths)
            rows_used["now"] += row_steps(lengths, rows, ())
            rows_used["left_out"] += row_steps(lengths, rows, compaction_sizes(rows, {}))
        for (rows, _), lengths in waiting.items():
            ends = [0] * rows
            for length in lengths:
                heapq.heapreplace(ends, ends[0] + length)
            steps["replaced"] += max(ends)
            rows_used["replaced"] += rows * max(ends)
    useful = {f"useful_{way}": round(sum(written) / n, 3) for way, n in rows_used.items()}
    return useful | {f"steps_{way}": n for way, n in steps.items()}


def row_steps(lengths: Sequence[int], rows: int, sizes: Sequence[int]) -> int:
    """Returns the steps of all rows of a batch that shrinks to ``sizes`` as its texts end.

    Example:
        >>> row_steps([5, 2, 1], 4, ()), row_steps([5, 2, 1], 4, (1,))
        (20, 11)
    """
    longest, done, total = sorted(lengths, reverse=True), 0, 0
    for size, after in zip((rows, *sizes), (*sizes, 0), strict=True):
        until = max(done, longest[after] if after < len(longest) else 0)
        total, done = total + size * (until - done), until
    return total
