"""Labels of runs that start from a model with a head: each label keeps its row."""

import dataclasses
import json

import pytest

from tests.parity import layouts
from transformer_jax.data.labeled import LabeledData, open_labeled
from transformer_jax.recipes.finetuning import Finetuning, labels_of
from transformer_jax.recipes.freezing import load_pretrained


@pytest.mark.parametrize("anew", [False, True])
def test_a_fine_tuned_text_classifier_keeps_the_rows_of_its_labels(tmp_path, anew):
    layouts.write("bert_cls", tmp_path / "bert")
    config = tmp_path / "bert" / "config.json"
    fields = json.loads(config.read_text())
    names = ("good", "so-so", "bad")
    fields["id2label"] = {str(i): name for i, name in enumerate(names)}
    fields["label2id"] = {name: i for i, name in enumerate(names)}
    config.write_text(json.dumps(fields))
    rows = "".join(f"a text {i}\t{names[i % 3]}\n" for i in range(30))
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + rows)
    recipe = Finetuning()
    run = recipe.runs["classify"][1]
    run = dataclasses.replace(
        run,
        data=LabeledData(train=str(tmp_path / "train.tsv")),
        task=dataclasses.replace(run.task, init_from=str(tmp_path / "bert"), reinit_head=anew),
    )
    start = load_pretrained(str(tmp_path / "bert"), recipe.starts)
    found = labels_of(run, open_labeled(run.data, "classify"), start)
    assert found == (tuple(sorted(names)) if anew else names)
