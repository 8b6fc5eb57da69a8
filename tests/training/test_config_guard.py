"""A run's configuration is that of its checkpoints, or is refused field by field."""

import copy
import dataclasses
import json
import logging

import pytest

from transformer_jax.core.errors import CheckpointError, DataError
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.models.presets import PRESETS
from transformer_jax.recipes.finetuning import FinetuneRun
from transformer_jax.recipes.language_model import LanguageRun
from transformer_jax.recipes.masked_lm import PretrainRun
from transformer_jax.recipes.translation import Run
from transformer_jax.runs import manifest
from transformer_jax.runs.config_guard import differences, leaves
from transformer_jax.runs.run_directory import RunDirectory

RUNS = {"translator": Run, "language": LanguageRun, "encoder": PretrainRun, "task": FinetuneRun}


def as_json(run):
    return json.loads(json.dumps(dataclasses.asdict(run)))


def sealed_run(folder, fields, said=None, schema=manifest.SCHEMA):
    """A run with a configuration and what the manifests of two checkpoints say of it."""
    run = RunDirectory.create(folder)
    tokenizer = train_tokenizer("bytes", ["a"], 300)
    tokenizer.save(run.tokenizer)
    run.write(run.config, fields)
    for step, config in ((1, {"model": {}}), (2, fields if said is None else said)):
        path = run.checkpoints / f"step_{step:08d}"
        path.mkdir(parents=True)
        rest = {"step": step, "files": {}, "schema": schema, "tokenizer": tokenizer.sha256}
        manifest.rewrite(path, {"config": config, **rest})
    return run


def another(value):
    """A value of the same type, where there is one."""
    kinds = {bool: lambda: not value, int: lambda: value + 1, float: lambda: value * 2 + 1}
    kinds |= {str: lambda: value + "x", list: lambda: [*value, 1]}
    return kinds.get(type(value), lambda: 3)()


def with_leaf(fields, path, value):
    """A deep copy with one value changed, or with an ellipsis left out."""
    fields = copy.deepcopy(fields)
    *outer, last = path.split(".")
    inner = fields
    for name in outer:
        inner = inner[name]
    inner[last] = value
    if value is ...:
        del inner[last]
    return fields


@pytest.mark.parametrize("kind", RUNS)
def test_every_field_that_is_changed_is_named_with_both_values(kind):
    fields = as_json(RUNS[kind]())
    said = {"config": fields, "schema": manifest.SCHEMA}
    assert differences(fields, said) == []
    for path, value in leaves(fields).items():
        new = another(value)
        found = differences(with_leaf(fields, path, new), said)
        # A changed model may be none that there can be; what is wrong is named all the same.
        assert f"{path} is {json.dumps(new)} ({json.dumps(value)} in training)" in found


def test_a_field_that_is_left_out_has_its_default_in_a_model_and_is_missed_elsewhere():
    fields = as_json(Run(model=PRESETS["vaswani_base"]))
    said = {"config": fields, "schema": manifest.SCHEMA}
    without = with_leaf(fields, "model.norm.eps", ...)
    assert differences(without, said) == []
    assert differences(fields, {**said, "config": without}) == []
    changed = with_leaf(fields, "model.norm.eps", 0.5)
    assert differences(changed, {**said, "config": without}) != []
    assert differences(with_leaf(fields, "data.read.lowercase", ...), said) == [
        "data.read.lowercase is absent (false in training)"
    ]


def test_numbers_are_what_they_count_and_truth_is_no_number():
    said = {"config": {"a": 1.0, "b": True, "c": [1, 2]}, "schema": manifest.SCHEMA}
    assert differences({"a": 1, "b": True, "c": (1, 2)}, said) == []
    assert differences({"a": 1, "b": 1, "c": (1, 2)}, said) == ["b is 1 (true in training)"]


def test_a_changed_run_is_refused_wherever_it_is_read_unless_that_is_meant(tmp_path, caplog):
    fields = as_json(Run())
    run = sealed_run(tmp_path / "run", fields)
    assert run.read_config() == fields
    run.write(run.config, with_leaf(fields, "model.attention.num_heads", 4))
    heads = r"config.json: changed after training: model.attention.num_heads is 4 \(8 in training\)"
    with pytest.raises(CheckpointError, match=f"{heads}: change it back$"):
        run.read_config()
    refused = pytest.raises(CheckpointError, match=f"{heads}.*give --allow-changed-config")
    with refused:
        RunDirectory.open(run.path, False).read_config()
    meant = RunDirectory.open(run.path, True)
    with caplog.at_level(logging.WARNING):
        assert meant.read_config()["model"]["attention"]["num_heads"] == 4
        meant.read_config()
    assert sum("num_heads is 4" in record.message for record in caplog.records) == 1
    with pytest.raises(CheckpointError, match=heads):
        run.read_config()
    assert run.read_config(check=False)["model"]["attention"]["num_heads"] == 4


def test_many_differences_are_counted(tmp_path):
    fields = as_json(Run())
    run = sealed_run(tmp_path / "run", fields)
    run.write(run.config, {"model": fields["model"]})
    with pytest.raises(CheckpointError, match=r"in training\), and \d+ more: change it back"):
        run.read_config()


def test_a_damaged_manifest_leaves_the_word_to_the_one_before(tmp_path):
    run = sealed_run(tmp_path / "run", {"model": {"a": 1}}, said={"model": {"a": 2}})
    with pytest.raises(CheckpointError, match=r"model.a is 1 \(2 in training\)"):
        run.read_config()
    (run.checkpoints / "step_00000002" / manifest.MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match=r"model.a is 1 \(absent in training\)"):
        run.read_config()
    (run.checkpoints / "step_00000001" / manifest.MANIFEST).unlink()
    assert run.read_config() == {"model": {"a": 1}}  # nobody knows better


def test_what_a_resumed_run_was_told_by_earlier_code_is_no_change(tmp_path):
    """It recorded settings of the resumption, which config.json does not know."""
    fields = as_json(Run())
    told = with_leaf(with_leaf(fields, "loop.keep_last", 9), "mesh.data", 2)
    told = with_leaf(told, "output", "elsewhere")
    assert sealed_run(tmp_path / "old", fields, told, schema=1).read_config() == fields
    with pytest.raises(CheckpointError, match="keep_last"):
        sealed_run(tmp_path / "new", fields, told).read_config()
    lower = with_leaf(told, "data.read.lowercase", True)
    with pytest.raises(CheckpointError, match="lowercase"):
        sealed_run(tmp_path / "other", fields, lower, schema=1).read_config()


def test_another_tokenizer_is_refused(tmp_path):
    run = sealed_run(tmp_path / "run", as_json(Run()))
    assert run.load_tokenizer().vocab_size
    train_tokenizer("bytes", ["b"], 300).save(run.tokenizer)
    run.tokenizer.write_text(run.tokenizer.read_text() + " ")
    with pytest.raises(DataError, match="not the tokenizer that is expected"):
        run.load_tokenizer()
