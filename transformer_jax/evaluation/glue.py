"""GLUE's tasks, their metrics, and the table of Devlin et al. 2019."""

import dataclasses
from collections.abc import Mapping

from transformer_jax.core.errors import DataError

__all__ = ["COLUMNS", "TABLE", "TASKS", "GlueTask", "average"]


@dataclasses.dataclass(frozen=True)
class GlueTask:
    """A task of GLUE."""

    training: int  # number of examples, rounded as in the table
    metrics: tuple[str, ...]  # the first is used in the table; GLUE's own site averages all
    columns: tuple[str, ...]  # columns of the table, one per test set


# Wang et al. 2018, without WNLI, which Devlin et al. 2019 omit.
TASKS: dict[str, GlueTask] = {
    "MNLI": GlueTask(392_000, ("accuracy",), ("MNLI-m", "MNLI-mm")),
    "QQP": GlueTask(363_000, ("f1", "accuracy"), ("QQP",)),
    "QNLI": GlueTask(108_000, ("accuracy",), ("QNLI",)),
    "SST-2": GlueTask(67_000, ("accuracy",), ("SST-2",)),
    "CoLA": GlueTask(8_500, ("matthews",), ("CoLA",)),
    "STS-B": GlueTask(5_700, ("spearman", "pearson"), ("STS-B",)),
    "MRPC": GlueTask(3_500, ("f1", "accuracy"), ("MRPC",)),
    "RTE": GlueTask(2_500, ("accuracy",), ("RTE",)),
}

COLUMNS: tuple[str, ...] = tuple(column for task in TASKS.values() for column in task.columns)


def _row(*scores: float) -> dict[str, float]:
    return dict(zip(COLUMNS, scores, strict=True))


# Devlin et al. 2019, table 1: in percent, on the test sets.
TABLE: dict[str, dict[str, float]] = {
    "Pre-OpenAI SOTA": _row(80.6, 80.1, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7),
    "BiLSTM+ELMo+Attn": _row(76.4, 76.1, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8),
    "OpenAI GPT": _row(82.1, 81.4, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0),
    "BERT_BASE": _row(84.6, 83.4, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4),
    "BERT_LARGE": _row(86.7, 85.9, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1),
}


def average(scores: Mapping[str, float]) -> float:
    """Returns the mean over the table's nine columns, including MNLI-m and MNLI-mm, not rounded.

    This is the average in the table, 74.0, 75.1, 79.6 and 82.1, except for BiLSTM+ELMo+Attn: its
    columns give 70.9, but the table has 71.0.

    Args:
        scores: A score for each of `COLUMNS`, all in the same unit.

    Raises:
        DataError: Columns are missing or unknown; the message names them.

    Example:
        >>> round(average(TABLE["BERT_LARGE"]), 1)
        82.1
        >>> round(average(TABLE["BiLSTM+ELMo+Attn"]), 1)
        70.9
    """
    wrong = [
        f"{what} {', '.join(names)}"
        for what, names in (
            ("without", [name for name in COLUMNS if name not in scores]),
            ("with unknown", [name for name in scores if name not in COLUMNS]),
        )
        if names
    ]
    if wrong:
        raise DataError(
            f"no GLUE average {' and '.join(wrong)}: it is over {', '.join(COLUMNS)}, "
            f"and no published average has fewer columns"
        )
    return sum(scores[name] for name in COLUMNS) / len(COLUMNS)
