"""word2vec compared with gensim: words per second, and quality of the vectors.

    python -m benchmarks word-vectors --text FILE --questions FOLDER --peers PYTHON

The text has words between blanks and a sentence per line. Speed is for one epoch, without reading
the text but with writing the vectors. Quality is after ``--epochs`` epochs: the accuracy on
Google's analogies, and Spearman's correlation on word-similarity sets, as mean over ``--seeds``
runs and for every run.
"""

import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from benchmarks.harness import TREE, Bench, Row, environment, table
from transformer_jax.core.errors import DataError

__all__ = ["main"]

SIMILARITIES = ("EN-WS-353-ALL", "EN-MEN-TR-3k", "EN-SIMLEX-999", "EN-RW-STANFORD")


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """Time word2vec against gensim, and compare the vectors."""

    text: Path
    """Text file with words between blanks, a sentence per line."""
    questions: Path
    """Folder of questions-words.txt and of word-similarity files."""
    peers: Path
    """Python interpreter with gensim."""
    rounds: int = 5
    """Number of timed rounds."""
    epochs: int = 5
    """Epochs for the comparison of quality; 0 is no comparison."""
    seeds: int = 3
    """Number of seeds for the comparison of quality."""
    threads: int = 1
    """Number of threads."""
    size: int = 300
    """Size of the vectors."""
    window: int = 5
    """Maximum distance of words that predict each other."""
    output: Path = TREE / "benchmarks/results/word_vectors_cpu.json"
    """Output file of the figures."""


def main(arguments: Sequence[str]) -> None:
    """Measures, prints a table and writes the figures."""
    asked = tyro.cli(WordVectors, args=list(arguments), prog="python -m benchmarks word-vectors")
    _check_files(asked)
    found: dict[str, Any] = {
        "command": f"python -m benchmarks word-vectors --rounds {asked.rounds} --epochs "
        f"{asked.epochs} --seeds {asked.seeds} --threads {asked.threads} --size {asked.size} "
        f"--window {asked.window}",
        "environment": environment(("jax", "jaxlib", "numpy")),
        "text": {"file": asked.text.name, "bytes": asked.text.stat().st_size},
    }
    with tempfile.TemporaryDirectory() as folder:
        for method in ("skip-gram", "cbow"):
            rows, quality = _measured(asked, method, Path(folder))
            print(table(f"word2vec, {method}", rows, "words"))
            print(json.dumps(quality, indent=1))
            found[method] = {
                "rows": [dataclasses.asdict(row) for row in rows],
                "quality": quality,
            }
    asked.output.write_text(json.dumps(found, indent=1) + "\n")
    print(f"wrote {asked.output}", file=sys.stderr)


def _check_files(asked: WordVectors) -> None:
    """Refuses files that are missing, before anything is measured."""
    names = ("questions-words", *SIMILARITIES) if asked.epochs else ()
    questions = [("--questions", asked.questions / f"{name}.txt") for name in names]
    for flag, path in [("--text", asked.text), *questions]:
        if not path.is_file():
            raise DataError(f"{flag} {path}: no such file (looked from {Path.cwd()})")


def _measured(
    asked: WordVectors, method: str, folder: Path
) -> tuple[list[Row], dict[str, dict[str, Any]]]:
    """Measures rows of speed, and figures of quality by name of the case."""
    bench = Bench(asked.threads, f"word2vec, {method}")
    shared = {
        "text": str(asked.text.absolute()),
        "method": method,
        "size": asked.size,
        "window": asked.window,
        "sample": 1e-3,
    }
    files = {name: folder / f"{method}-{name}.bin" for name in ("gensim", "transformer_jax")}
    bench.add(
        "gensim",
        "train",
        {**shared, "output": str(files["gensim"]), "workers": asked.threads},
        python=str(asked.peers),
        module="benchmarks.peers_words",
    )
    facts = bench.add(
        "transformer_jax",
        "train",
        {**shared, "output": str(files["transformer_jax"]), "loss": "negative-sampling"},
        module="benchmarks.ours_words",
    )
    assert facts is not None
    rows = bench.measure(asked.rounds, facts["words"], "gensim")
    runs: dict[str, list[dict[str, float]]] = {
        name: [] for name in (case.name for case in bench.cases)
    }
    for _ in range(asked.seeds if asked.epochs else 0):
        for case in bench.cases:
            case.worker.ask(do="run", id=case.token, times=asked.epochs)
            runs[case.name].append(_quality(files[case.name], asked.questions))
            print(f"{method}, {case.name}: {runs[case.name][-1]}", file=sys.stderr)
    bench.close()
    return rows, {name: _over_seeds(found) for name, found in runs.items() if found}


def _over_seeds(runs: list[dict[str, float]]) -> dict[str, Any]:
    """Returns the mean of each figure, and the figure of each run."""
    return {
        name: {
            "mean": round(statistics.mean(run[name] for run in runs), 4),
            "runs": [run[name] for run in runs],
        }
        for name in runs[0]
    }


def _quality(vectors: Path, folder: Path) -> dict[str, float]:
    from transformer_jax.word_vectors.formats import load_embeddings
    from transformer_jax.word_vectors.questions import (
        answer_analogies,
        correlate_similarities,
        read_analogies,
        read_similarities,
    )

    made = load_embeddings(vectors)
    sections = answer_analogies(made, read_analogies(folder / "questions-words.txt"))
    answered = sum(one.answered for one in sections)
    found: dict[str, float] = {
        "analogies_answered": answered,
        "analogies": round(sum(one.correct for one in sections) / answered, 4),
    }
    for name in SIMILARITIES:
        one = correlate_similarities(made, read_similarities(folder / f"{name}.txt"))
        found[name] = round(one.spearman, 4)
    return found
