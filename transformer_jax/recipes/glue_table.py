"""GLUE's table, with runs on its tasks as a row: ``encoder_only glue``."""

from collections.abc import Sequence

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.core.text_tables import aligned
from transformer_jax.evaluation.glue import COLUMNS, TABLE, TASKS, average
from transformer_jax.inference.pretrained import open_directory

__all__ = ["glue"]


def glue(pairs: Sequence[str]) -> str:
    """Returns the published rows (Devlin et al. 2019, table 1) and a row of runs, in percent.

    Runs are scored on their validation examples, the published rows on GLUE's hidden test sets. The
    average is over all nine columns, and missing if any of them is.

    Args:
        pairs: ``COLUMN=RUN``, such as ``SST-2=runs/sst``.

    Raises:
        ConfigError: A column is unknown, or has no run.
        DataError: A run has no score for the task.
    """
    ours = {}
    for pair in pairs:
        column, equals, path = pair.partition("=")
        if not equals or column not in COLUMNS:
            raise ConfigError(
                f"{pair}: give COLUMN=RUN, such as SST-2=runs/sst; the columns are "
                f"{', '.join(COLUMNS)}"
            )
        ours[column] = 100 * _score(column, path)
    rows = [["", *COLUMNS, "average"]]
    for name, scores in TABLE.items():
        rows.append([name, *(f"{scores[c]:.1f}" for c in COLUMNS), f"{average(scores):.1f}"])
    if ours:
        mean = f"{average(ours):.1f}" if len(ours) == len(COLUMNS) else ""
        rows.append(["these runs", *(f"{ours[c]:.1f}" if c in ours else "" for c in COLUMNS), mean])
    return aligned(rows)


def _score(column: str, path: str) -> float:
    [task] = [task for task in TASKS.values() if column in task.columns]
    directory = open_directory(path)
    scores = directory.read_results().get("scores", {}).get("valid", {})
    measure = task.metrics[0]
    if not isinstance(scores.get(measure), int | float):
        raise DataError(
            f"{path}: has no {measure} on validation examples, the metric of {column}: "
            f"is it the run of another task, or not finished?"
        )
    return float(scores[measure])
