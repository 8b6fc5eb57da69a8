"""``transformer-jax compare``: paired significance tests of two systems on the same examples."""

import dataclasses
import os
import tempfile
from pathlib import Path

import tyro

from transformer_jax.cli.output import note, write_json, wrote
from transformer_jax.cli.support.output_flags import OutputFlags, signatures
from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.text_tables import aligned
from transformer_jax.evaluation.output_scores import (
    OutputTask,
    PairedMethod,
    paired_tests,
    task_metrics,
)
from transformer_jax.evaluation.system_outputs import SystemOutputs, read_outputs

__all__ = ["Compare"]


@dataclasses.dataclass(frozen=True)
class Compare(OutputFlags):
    """Compare two systems on the same examples by sacreBLEU's paired tests."""

    first: tyro.conf.Positional[Path]
    """Outputs of the baseline, as for score-file; or its run, which evaluates its own test data."""
    second: tyro.conf.Positional[Path]
    """Outputs of the other system, or its run."""
    references: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Files of references, line by line; none for runs and for the predictions.csv of evaluate."""
    method: PairedMethod = "bootstrap"
    """Paired test: bootstrap draws the examples anew 1,000 times; randomization exchanges outputs
    of the two at random 10,000 times."""

    def __call__(self) -> int:
        """Prints a row for each metric, with the p-value of the difference."""
        self.check()
        ours, theirs = (self._outputs(path) for path in (self.first, self.second))
        if ours.task != theirs.task:
            raise ConfigError(f"{self.first} is of the task {ours.task}, and {self.second} of "
                              f"{theirs.task}: one task is compared")  # fmt: skip
        self._check_same(ours, theirs)
        metrics = task_metrics(
            ours.task,
            [ours.texts, theirs.texts],
            ours.references,
            tokenize=self.tokenize,
            lowercase=self.lowercase,
        )
        names = [str(self.first), str(self.second)]
        if names[0] == names[1]:
            names[1] += " again"
        systems = dict(zip(names, (ours.texts, theirs.texts), strict=True))
        rows = paired_tests(systems, ours.references, metrics, self.method)
        number = lambda value: self.figures(ours.task, value)
        table: list[tuple[str, ...]] = [("metric", *names, "difference", "p")]
        for row in rows:
            scores = [number(score) for score in row.scores]
            if row.intervals is not None:
                both = zip(scores, row.intervals, strict=True)
                scores = [f"{score} ± {number(half)}" for score, half in both]
            difference = row.scores[1] - row.scores[0]
            sign = "+" * (difference > 0)
            cells = *scores, f"{sign}{number(difference)}", f"{row.p_value:.4f}"
            table.append((row.metric, *cells))
        print(aligned(table))
        print(f"\n{signatures((row.metric, row.signature) for row in rows)}")
        note(
            "p is the probability of a difference as large between systems that are equally good"
            + ("; ± is half of a 95% interval" if self.method == "bootstrap" else "")
        )
        if self.json is not None:
            about = {"task": ours.task, "outputs": len(ours.texts), "systems": names}
            figures = {"method": self.method, "metrics": [row._asdict() for row in rows]}
            write_json("--json", self.json, about | figures)
            wrote(self.json)
        return 0

    def _outputs(self, path: Path) -> SystemOutputs:
        """Returns the outputs of a file, or of a run on its test data."""
        if not os.path.isdir(path):
            return read_outputs(path, self.references, self.task)
        if self.references:
            raise ConfigError(f"{path} is a run, which has references: leave those files out")
        from transformer_jax.cli.evaluation import evaluate
        from transformer_jax.inference.pretrained import read_facts
        from transformer_jax.recipes.registry import RECIPES

        task = self.task or _task_of_recipe(read_facts(path).recipe)
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "predictions.csv"
            print(f"{path}:", flush=True)
            evaluate("evaluate", [str(path), "--output", str(table)], tuple(RECIPES))
            print(flush=True)
            return read_outputs(table, (), task)

    def _check_same(self, ours: SystemOutputs, theirs: SystemOutputs) -> None:
        """Refuses tables of predictions for different examples."""
        if len(ours.texts) != len(theirs.texts):
            raise DataError(
                f"{self.first} has {len(ours.texts):,} outputs, and {self.second} "
                f"{len(theirs.texts):,}: both must have one for each example, in the same order"
            )
        both = zip(ours.references, theirs.references, strict=True)
        for number, (one, other) in enumerate(both, 1):
            if one != other:
                raise DataError(
                    f"example {number}: the reference of {self.first} is {one[0][:60]!r}, and that "
                    f"of {self.second} {other[0][:60]!r}: both must be evaluated on the same data"
                )


def _task_of_recipe(name: str) -> OutputTask | None:
    """Returns the task of texts that a recipe evaluates; None is told by the table."""
    from transformer_jax.recipes.registry import get_recipe

    tasks: dict[str, OutputTask] = {"rouge1": "summarize", "wer": "transcribe", "cider": "caption"}
    return next((tasks[one] for one in get_recipe(name).metrics if one in tasks), None)
