"""``transformer-jax report``: published figures next to figures of your runs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from transformer_jax.cli.output import check_file, note, write_json, writing, wrote
from transformer_jax.core.config_fields import Configuration, OutputPath
from transformer_jax.core.errors import CheckpointError
from transformer_jax.core.text_tables import aligned

if TYPE_CHECKING:
    from transformer_jax.evaluation.bleu_results import OwnScore

__all__ = ["Report"]


@dataclasses.dataclass(frozen=True)
class Report(Configuration, group="--"):
    """Print a table of published figures next to figures of your runs: report bleu RUN ...

    bleu: BLEU and training FLOPs of ten translators, table 2 of Vaswani et al. 2017.
    """

    table: tyro.conf.Positional[Literal["bleu"]]
    """The table."""
    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Run directories of finished translators with test sets."""
    results: Path | None = None
    """Folder of JSON files with results, such as benchmarks/results."""
    json: OutputPath | None = None
    """Output file of all figures."""
    output: OutputPath | None = None
    """Output file of BLEU against training FLOPs: .png, .svg or .html."""

    def __call__(self) -> int:
        """Prints the tables, and writes the requested files."""
        check_file("--json", self.json, (".json",))
        from transformer_jax.visual.figures import SUFFIXES

        check_file("--output", self.output, SUFFIXES)
        own = self.own()
        from transformer_jax.evaluation.bleu_results import CAVEATS

        print(_published())
        if own:
            print(f"\n{_own(own)}")
        for caveat in CAVEATS:
            note(caveat)
        if any(one.flops is None for one in own):
            note("FLOPs are unknown where metrics.jsonl lacks those of a step, as in runs of "
                 "earlier versions")  # fmt: skip
        if self.json is not None:
            write_json("--json", self.json, _content(own))
        if self.output is not None:
            from transformer_jax.visual.bleu_chart import plot_bleu

            with writing("--output", self.output):
                plot_bleu(self.output, own)
        if written := [path for path in (self.json, self.output) if path is not None]:
            wrote(*written)
        return 0

    def own(self) -> "list[OwnScore]":
        """Returns the scores of the runs, followed by the scores in the folder.

        Raises:
            CheckpointError: A run is not a finished translator with a test set.
            DataError: The folder has no results.
        """
        from transformer_jax.evaluation.bleu_results import results_in, scores_of_run
        from transformer_jax.inference.pretrained import facts_of, open_directory

        found: list[OwnScore] = []
        for path in self.runs:
            run = open_directory(path)
            if facts_of(run).kind != "encoder-decoder":
                raise CheckpointError(f"{path}: not a translator: only translators have BLEU")
            found += scores_of_run(run, str(path))
        return found + ([] if self.results is None else results_in(self.results))


def _flops(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}".replace("e+", "e")


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _published() -> str:
    """Returns table 2, with the estimate of the costs of the Transformers."""
    from transformer_jax.evaluation.bleu_results import TABLE

    head = ("system", "published", "BLEU en-de", "BLEU en-fr", "FLOPs en-de", "FLOPs en-fr",
            "time × FLOP/s")  # fmt: skip
    rows = [
        (
            row.name,
            row.source,
            _score(row.bleu_de),
            _score(row.bleu_fr),
            _flops(row.flops_de),
            _flops(row.flops_fr),
            "" if row.time is None else f"{row.time.flops:.3e}".replace("e+", "e"),
        )
        for row in TABLE
    ]
    return aligned([head, *rows], left=2)


def _own(own: "list[OwnScore]") -> str:
    """Returns a row per test set of your runs."""
    head = ("own", "test set", "signature", "search", "sacreBLEU", "parameters", "steps", "FLOPs")
    count = lambda value: "–" if value is None else f"{value:,}"
    rows = [
        (
            one.source,
            one.test,
            one.signature,
            one.search,
            f"{one.bleu:.1f}",
            count(one.parameters),
            count(one.steps),
            _flops(one.flops),
        )
        for one in own
    ]
    return aligned([head, *rows], left=4)


def _content(own: "list[OwnScore]") -> dict[str, Any]:
    """Returns all figures for JSON."""
    from transformer_jax.evaluation.bleu_results import CAVEATS, TABLE

    published = [
        dataclasses.asdict(row) | {"flops_by_time": None if row.time is None else row.time.flops}
        for row in TABLE
    ]
    return {
        "test_set": "newstest2014",
        "caveats": list(CAVEATS),
        "published": published,
        "own": [dataclasses.asdict(one) for one in own],
    }
