"""The probabilities of ``evaluate --output predictions.csv`` are those of transformers."""

import csv

import numpy as np
import pytest

from tests.interop.test_folder_settings import WORDPIECE, write_tokenizer
from tests.parity import layouts
from transformer_jax.cli.main import main

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

TEXTS = ["a b", "ab a, c", '"a" é', "c " * 20, "B 中文"]


@pytest.mark.parametrize("layout", ["bert_cls", "distilbert_cls", "electra_cls"])
def test_probabilities_are_those_of_transformers(layout, tmp_path):
    folder, data, found = (tmp_path / name for name in ("model", "data.csv", "found.csv"))
    layouts.write(layout, folder)
    write_tokenizer(folder, lowercase=True, tokenizer_class="BertTokenizer", **WORDPIECE)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    labels = list(model.config.id2label.values())
    with data.open("w", newline="", encoding="utf-8") as file:
        rows = [(text, labels[i % len(labels)]) for i, text in enumerate(TEXTS)]
        csv.writer(file).writerows([("text", "label"), *rows])
    assert main(["evaluate", str(folder), "--data", str(data), "--output", str(found)]) == 0
    with found.open(newline="", encoding="utf-8") as file:
        told = [*csv.DictReader(file)]
    plain, more = tmp_path / "plain.csv", tmp_path / "more.csv"
    with plain.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(TEXTS)])
    assert main(["classify", str(folder), "--data", str(plain), "--output", str(more)]) == 0
    with more.open(newline="", encoding="utf-8") as file:
        kept = {"id", "place", "text", "label"}
        assert [{k: v for k, v in row.items() if k not in kept} for row in told] == [
            {k: v for k, v in row.items() if k not in kept} for row in csv.DictReader(file)
        ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits
    shares = [[float(row[f"probability of {label}"]) for label in labels] for row in told]
    np.testing.assert_allclose(shares, torch.softmax(logits, -1).numpy(), atol=2e-6)
    assert [row["predicted"] for row in told] == [labels[i] for i in logits.argmax(-1)]
