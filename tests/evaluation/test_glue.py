"""GLUE's table and its scores (row H22)."""

import numpy as np
import pytest

from transformer_jax.core.errors import ConfigError, DataError
from transformer_jax.evaluation import glue
from transformer_jax.evaluation.glue import COLUMNS, TABLE, TASKS, average, glue_metrics

# As the table prints them. BiLSTM+ELMo+Attn says 71.0, an erratum: its columns give 70.9.
AVERAGES = {
    "Pre-OpenAI SOTA": 74.0,
    "BiLSTM+ELMo+Attn": 70.9,
    "OpenAI GPT": 75.1,
    "BERT_BASE": 79.6,
    "BERT_LARGE": 82.1,
}


def test_h22_the_averages_follow_from_the_columns():
    assert {name: round(average(row), 1) for name, row in TABLE.items()} == AVERAGES


def test_h22_mnli_counts_twice():
    row = TABLE["OpenAI GPT"]
    assert average({**row, "MNLI-mm": row["MNLI-mm"] + 9}) == pytest.approx(average(row) + 1)
    once = (row["MNLI-m"] + row["MNLI-mm"]) / 2 + sum(row[name] for name in COLUMNS[2:])
    assert round(once / 8, 1) != 75.1


def test_h22_columns_and_sizes_in_the_tables_order():
    names = ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE")
    assert names == COLUMNS
    assert all(tuple(row) == names for row in TABLE.values())
    sizes = [task.training for task in TASKS.values()]
    assert sizes == [392_000, 363_000, 108_000, 67_000, 8_500, 5_700, 3_500, 2_500]


def test_h22_the_metric_of_each_task():
    first = {name: task.metrics[0] for name, task in TASKS.items()}
    assert {name for name, metric in first.items() if metric == "f1"} == {"QQP", "MRPC"}
    assert first["CoLA"] == "matthews"
    assert first["STS-B"] == "spearman"
    assert {first[name] for name in ("MNLI", "QNLI", "SST-2", "RTE")} == {"accuracy"}


def test_h22_measured_by_hand():
    given, wanted = np.array([1, 1, 1, 0]), np.array([1, 1, 0, 0])
    assert glue_metrics("QQP", given, wanted) == {"f1": pytest.approx(4 / 5), "accuracy": 0.75}
    assert glue_metrics("CoLA", given, wanted) == {"matthews": pytest.approx(2 / np.sqrt(12))}
    assert glue_metrics("MNLI", np.array([2, 1, 0]), np.array([2, 2, 0])) == {
        "accuracy": pytest.approx(2 / 3)
    }
    scores = glue_metrics("STS-B", np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 3.0, 2.0, 10.0]))
    assert scores == {"spearman": pytest.approx(0.8), "pearson": pytest.approx(13 / np.sqrt(250))}


def test_every_metric_named_is_one():
    assert {name for task in TASKS.values() for name in task.metrics} == set(glue.METRICS)


def test_an_average_over_other_columns_is_refused():
    row = dict(TABLE["BERT_BASE"])
    with pytest.raises(DataError, match=r"without MNLI-m, RTE:.*no published average"):
        average({name: row[name] for name in COLUMNS[1:-1]})
    with pytest.raises(DataError, match=r"with unknown WNLI: it is over MNLI-m, MNLI-mm, QQP"):
        average({**row, "WNLI": 65.1})
    with pytest.raises(DataError, match=r"without MNLI-m and with unknown MNLI:"):
        average({("MNLI" if name == "MNLI-m" else name): score for name, score in row.items()})


def test_unknown_tasks_are_refused():
    with pytest.raises(ConfigError, match=r"unknown GLUE task 'WNLI': allowed are MNLI, QQP"):
        glue_metrics("WNLI", np.zeros(1), np.zeros(1))
