"""Published weights go straight to where they belong, and take no more memory than they must."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks.loading import begin_at
from tests.parity import layouts
from transformer_jax.core.trees import path_name
from transformer_jax.interop.hf_checkpoint import abstract_model, open_hf_checkpoint
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.parallel.sharding import shardings


@pytest.mark.parametrize("name", ["bart", "gpt2", "llama"])
def test_each_device_holds_its_part(tmp_path, name):
    folder = open_hf_checkpoint(layouts.write(name, tmp_path / name))
    whole = folder.load()
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    declared = shardings(parameters(abstract_model(folder.model)), mesh)
    where = {path_name(path): on for path, on in jax.tree_util.tree_leaves_with_path(declared)}
    place = lambda name, array: jax.make_array_from_callback(
        array.shape, where[name], lambda index: array[index]
    )
    parts = folder.load(place)
    jax.tree.map(np.testing.assert_array_equal, parts, whole)
    side = "encoder" if name == "bart" else "decoder"
    up = parts[side]["blocks"][0]["feed_forward"]["up"]["kernel"]
    # Over fsdp and tensor, and a copy for each of data.
    assert {shard.data.size * 4 for shard in up.addressable_shards} == {up.size}


MEASURE = """
import sys, jax
from benchmarks.resident import peak
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint

open_hf_checkpoint(sys.argv[1]).load()  # what loading imports and keeps is not counted
before = peak()
params = jax.block_until_ready(open_hf_checkpoint(sys.argv[2]).load())
print(peak() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="tells memory on Linux alone")
@pytest.mark.parametrize("layout", ["bert_bare", "gpt2"])  # tensors that are transposed, or split
@pytest.mark.slow
def test_loading_takes_little_more_than_the_model(tmp_path, layout):
    from safetensors.numpy import save_file

    names = {"bert_bare": ("hidden_size", "intermediate_size", "num_hidden_layers"),
             "gpt2": ("n_embd", "n_inner", "n_layer")}  # fmt: skip
    width, hidden, layers = 512, 2048, 12
    small = layouts.write(layout, tmp_path / "small")
    fields = layouts.LAYOUTS[layout]["config"] | dict(
        zip(names[layout], (width, hidden, layers), strict=True)
    )
    grown = {}
    sizes = {32: width, 48: hidden, 128: hidden, 96: 3 * width}
    for name, shape in layouts.LAYOUTS[layout]["tensors"].items():
        shape = tuple(sizes.get(size, size) for size in shape)
        for i in range(layers):
            again = name.replace(".layer.0.", f".layer.{i}.").replace("h.0.", f"h.{i}.")
            if i == 0 or again != name:
                grown[again] = np.ones(shape, np.float32)
    (tmp_path / "big").mkdir()
    (tmp_path / "big/config.json").write_text(json.dumps(fields))
    save_file(grown, tmp_path / "big/model.safetensors")
    begin_at(tmp_path / "big", 8)  # where tensors are read; mapped ones take nothing yet
    size = sum(array.nbytes for array in grown.values())
    assert size > 100e6
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(tmp_path / "big")],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 1.3 * size
