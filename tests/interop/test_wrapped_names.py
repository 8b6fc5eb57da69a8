"""Weights saved from a wrapped model are those of the model: transformers#28041, at each reader.

``torch.compile`` and FSDP put a component into names, DDP a first one.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.interop import test_peft_folders as adapters
from tests.interop.test_hf_checkpoint import equal, folder_of
from transformer_jax.core.errors import CheckpointError
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint
from transformer_jax.interop.sentence_dense import read_dense
from transformer_jax.interop.tensor_files import INDEX

WRAPPED = {
    "compiled": lambda name: f"_orig_mod.{name}",
    "DDP": lambda name: f"module.{name}",
    "both": lambda name: f"module._orig_mod.{name}",
    "compiled layers": lambda name: name.replace(".layer.", ".layer._orig_mod."),
    "FSDP": lambda name: name.replace(".encoder.", ".encoder._fsdp_wrapped_module."),
}
wrapped = pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)


def with_names(wrap):
    """Returns a function of tensors to those of a wrapped model."""
    return lambda found: {wrap(name): array for name, array in found.items()}


@wrapped
@pytest.mark.parametrize("shards", [1, 2])
def test_of_a_model(tmp_path, wrap, shards):
    plain = open_hf_checkpoint(folder_of("bert_mlm", tmp_path / "plain"))
    folder = folder_of("bert_mlm", tmp_path / "wrapped", tensors=with_names(wrap))
    if shards > 1:
        split(folder, with_names(wrap)(adapters.layouts.weights("bert_mlm")))
    found = open_hf_checkpoint(folder)
    assert found.model == plain.model
    equal(found.load(), plain.load())


def split(folder: Path, tensors):
    """Replaces the file of weights by two shards and their index."""
    (folder / "model.safetensors").unlink()
    names, where = sorted(tensors), {}
    for part, chosen in enumerate((names[::2], names[1::2])):
        file = f"model-{part}.safetensors"
        save_file({name: tensors[name] for name in chosen}, folder / file)
        where |= dict.fromkeys(chosen, file)
    (folder / INDEX).write_text(json.dumps({"weight_map": where}))


def test_a_name_that_occurs_with_and_without_a_prefix_is_refused(tmp_path):
    name = "bert.pooler.dense.bias"
    double = lambda found: {**found, f"module.{name}": found[name]}
    with pytest.raises(CheckpointError, match=rf"'{name}' and 'module\.{name}' are one without"):
        open_hf_checkpoint(folder_of("bert_cls", tmp_path, tensors=double))


@pytest.mark.parametrize(
    "wrap",
    [
        WRAPPED["DDP"],
        WRAPPED["both"],
        lambda name: name.replace("model.transformer", "model._orig_mod.transformer"),
        lambda name: name.replace("model.transformer", "model.module.transformer"),
    ],
)
def test_of_an_adapter(tmp_path, wrap):
    plain = adapters.tensors_of("gpt2", adapters.FIELDS)
    expected = adapters.merged("gpt2", adapters.write(tmp_path / "a", adapters.FIELDS, plain))
    found = adapters.write(tmp_path / "b", adapters.FIELDS, with_names(wrap)(plain))
    assert with_names(wrap)(plain).keys().isdisjoint(plain)
    equal(adapters.merged("gpt2", found), expected)


@wrapped
def test_of_the_dense_layer_of_a_sentence_encoder(tmp_path, wrap):
    tensors = {"linear.weight": np.ones((3, 4), np.float32), "linear.bias": np.ones(3, np.float32)}
    (tmp_path / "2_Dense").mkdir()
    save_file(with_names(wrap)(tensors), tmp_path / "2_Dense/model.safetensors")
    found = read_dense(tmp_path, {"path": "2_Dense", "tanh": False}, 4)
    equal(dataclasses.astuple(found)[:2], (tensors["linear.weight"].T, tensors["linear.bias"]))
