"""GLUE's table and its scores (row H22)."""

import pytest

from transformer_jax.core.errors import DataError
from transformer_jax.evaluation.glue import COLUMNS, TABLE, TASKS, average

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


def test_an_average_over_other_columns_is_refused():
    row = dict(TABLE["BERT_BASE"])
    with pytest.raises(DataError, match=r"without MNLI-m, RTE:.*no published average"):
        average({name: row[name] for name in COLUMNS[1:-1]})
    with pytest.raises(DataError, match=r"with unknown WNLI: it is over MNLI-m, MNLI-mm, QQP"):
        average({**row, "WNLI": 65.1})
    with pytest.raises(DataError, match=r"without MNLI-m and with unknown MNLI:"):
        average({("MNLI" if name == "MNLI-m" else name): score for name, score in row.items()})
