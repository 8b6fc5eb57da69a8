"""Exported programs give what the same functions give under ``jax.jit``.

The compiler fuses a program of open sizes otherwise than one of fixed sizes, so on some
processors sums come in another order: floats are compared to a few units of the last place.
"""

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

from tests.decoding.finding import SearchRows, find
from tests.interop.word_level import tokenizer_of
from tests.parity import layouts
from transformer_jax.core.errors import CheckpointError, ConfigError, DataError
from transformer_jax.core.trees import flatten_dict, unflatten_dict
from transformer_jax.decoding.options import SpecialTokens
from transformer_jax.interop.exported_functions import functions, portable
from transformer_jax.interop.family import Model
from transformer_jax.interop.hf_checkpoint import abstract_model
from transformer_jax.interop.stablehlo import load_stablehlo, write_stablehlo
from transformer_jax.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import bert

pytest.importorskip("flatbuffers")

ROOT = Path(__file__).parents[2]
NEW = 6
ROUNDING = 16 * np.finfo(np.float32).eps
TRANSLATOR = TransformerConfig(
    vocab_size=40,
    d_model=16,
    encoder_layers=1,
    decoder_layers=1,
    positions=PositionConfig(max_length=24),
    attention=AttentionConfig(num_heads=4, num_kv_heads=2, implementation="chunked"),
    feed_forward=FeedForwardConfig(d_ff=24),
)
RELATIVE = PositionConfig(kind="relative", max_length=24, num_buckets=4, max_distance=8)
DECODER = dataclasses.replace(
    TRANSLATOR,
    encoder_layers=0,
    norm=NormConfig(placement="pre"),
    positions=PositionConfig(kind="rope", max_length=24),
)
ENCODER = dataclasses.replace(bert(64, 1, vocab_size=40, max_length=24), d_model=16)
SLOW = ("relative", "window", "wide")
MODELS = {
    "translator": Model("encoder-decoder", TRANSLATOR),
    "relative": Model(
        "encoder-decoder",
        dataclasses.replace(TRANSLATOR, positions=RELATIVE, norm=NormConfig(kind="rms")),
    ),
    "decoder": Model("decoder", DECODER),
    "window": Model("decoder", dataclasses.replace(DECODER, scores=ScoreConfig(sliding_window=3))),
    "wide": Model(
        "decoder",
        dataclasses.replace(
            DECODER,
            scores=ScoreConfig(sliding_window=130),
            positions=PositionConfig(max_length=160),
        ),
    ),
    "encoder": Model("encoder", ENCODER, words=True, next_sentence=True),
    "classifier": Model("encoder-task", ENCODER, task="classify", labels=("a", "b", "c")),
}
QUICK = [pytest.param(n, marks=pytest.mark.slow if n in SLOW else []) for n in MODELS]
TOKENIZER = tokenizer_of({}, 40)


@functools.cache
def params_of(name):
    """Noise on every parameter, by name."""
    state = nnx.to_pure_dict(nnx.split(abstract_model(MODELS[name]))[1])
    noise = lambda n, shape: 0.3 * layouts.random(n).standard_normal(shape)
    shapes = flatten_dict(state).items()
    return {n: jnp.asarray(noise(n, s.shape) + n.endswith("gain"), jnp.float32) for n, s in shapes}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    @functools.cache
    def make(name):
        folder = tmp_path_factory.mktemp("stablehlo") / name
        length = NEW if MODELS[name].config.decoder_layers else None
        write_stablehlo(
            folder, MODELS[name], unflatten_dict(params_of(name)), TOKENIZER, length=length
        )
        return folder

    return make


@pytest.fixture(scope="module")
def loaded(exported):
    return functools.cache(lambda name: load_stablehlo(exported(name)))


def inputs(part, B, sizes, seed=0):
    """Random arrays for a function: letters are sizes by name."""
    draw, found = np.random.RandomState(seed), {}
    for name, (shape, _) in part.inputs.items():
        shape = tuple(B if size == "B" else sizes.get(size, size) for size in shape)
        found[name] = draw.randint(4, 40, shape).astype(np.int32)
        if name == "types":
            found[name] %= 2
        elif name.endswith("lengths"):
            found[name] = draw.randint(1, 4, shape).astype(np.int32)
        elif name == "starts":
            found[name] = draw.randint(0, 2, shape).astype(np.int32)
        elif name == "limits":
            found[name] = draw.randint(1, NEW + 1, shape).astype(np.int32)
    return found


def jitted(part, weights, arrays):
    with portable():
        return jax.jit(part.call)(weights, *arrays.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_results_are_those_of_jit(loaded, name):
    """For several numbers of rows and lengths, of one program."""
    parts = functions(MODELS[name], TOKENIZER, NEW)
    assert loaded(name).manifest["functions"].keys() == parts.keys()
    for function, part in parts.items():
        for B, S, T in ((2, 4, 3), (5, 9, 17)):
            arrays = inputs(part, B, {"S": S, "T": T})
            found = getattr(loaded(name), function)(**arrays)
            wanted = jitted(part, params_of(name), arrays)
            assert found.keys() == wanted.keys()
            for key, value in wanted.items():
                whole = np.issubdtype(value.dtype, np.integer)
                apart = np.abs(found[key] - value).max()
                assert apart <= (0 if whole else ROUNDING * np.abs(value).max()), (function, B, key)
                assert found[key].dtype == value.dtype
                assert found[key].shape == value.shape
                assert np.isfinite(value).all()


@pytest.mark.slow
def test_it_is_what_the_model_itself_gives(loaded):
    """Nothing of an export: the model as it is used here, with the kernel that it asks for."""
    arrays = inputs(functions(MODELS["translator"], TOKENIZER)["translate"], 5, {"S": 9})
    arrays = {name: jnp.asarray(array) for name, array in arrays.items()}
    source, lengths = arrays["source"], arrays["source_lengths"]
    graph = nnx.split(abstract_model(MODELS["translator"]))[0]
    model = nnx.merge(graph, unflatten_dict(params_of("translator")))
    special = SpecialTokens(TOKENIZER.eos, TOKENIZER.pad, (TOKENIZER.bos, TOKENIZER.pad))

    @jax.jit
    def written(source, lengths):
        first = jnp.full(source.shape[:1], TOKENIZER.bos, jnp.int32)
        inputs = {"source": source, "source_lengths": lengths}
        cache = model.init_cache(inputs, len(source), NEW)
        rows = SearchRows(first, arrays["limits"])
        return find(model, cache, rows, special, vocab=model.config.vocab_size, length=NEW)

    ours, found = written(source, lengths), loaded("translator").translate(**arrays)
    assert np.array_equal(found["tokens"], ours.tokens[:, 0])
    assert np.array_equal(found["lengths"], ours.lengths[:, 0])
    assert np.allclose(found["log_probs"], ours.log_probs[:, 0], atol=1e-4)
    target = jnp.tile(source, 2)[:, :17]
    given = {"source": source, "source_lengths": lengths, "target": target}
    logits = loaded("translator").forward(**given)["logits"]
    assert np.allclose(logits, jax.jit(model)(source, target, lengths), atol=1e-4)


@pytest.mark.slow
def test_a_single_row_and_a_single_token_will_do(loaded):
    """Batches have any size; prompts are exported for two tokens or more."""
    loaded = loaded("decoder")
    part = functions(MODELS["decoder"], TOKENIZER, NEW)["generate"]
    arrays = inputs(part, 3, {"T": 5}) | {"starts": np.full(3, 4), "limits": np.full(3, NEW)}
    padded = loaded.generate(**arrays)
    for row in range(3):
        one = {"tokens": arrays["tokens"][row : row + 1, 4:], "starts": [0], "limits": [NEW]}
        found = loaded.generate(**one)
        assert found["tokens"].shape == (1, NEW)
        assert np.array_equal(found["tokens"][0], padded["tokens"][row])
        # So says the program itself, not only its caller in Python.
        assert not any("B" in limit for limit in loaded.manifest["functions"]["generate"]["limits"])
        one = {name: array[row : row + 1] for name, array in arrays.items()}
        assert np.array_equal(loaded.call("generate", **one)["tokens"][0], padded["tokens"][row])


@pytest.mark.parametrize("function", ["generate", "forward"])
@pytest.mark.slow
def test_programs_for_two_rows_at_least_take_a_single_one(loaded, exported, tmp_path, function):
    """So decoding was exported before: the manifest says it, and rows are given twice."""
    folder = shutil.copytree(exported("decoder"), tmp_path / "old")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["functions"][function]["limits"].insert(0, "B >= 2")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    part = functions(MODELS["decoder"], TOKENIZER, NEW)[function]
    arrays = inputs(part, 1, {"T": 5})
    old, sizes = load_stablehlo(folder), []
    run = old._calls[function]
    old._calls[function] = lambda weights, *given: (
        sizes.append(len(given[0])),
        run(weights, *given),
    )[1]
    found, wanted = old.call(function, **arrays), loaded("decoder").call(function, **arrays)
    assert sizes == [2]
    assert {name: array.shape for name, array in found.items()} == {
        name: array.shape for name, array in wanted.items()
    }
    first = next(iter(wanted))
    np.testing.assert_allclose(found[first], wanted[first], atol=1e-5)


@pytest.mark.slow
def test_a_single_sentence_is_translated_as_among_others(loaded):
    part = functions(MODELS["translator"], TOKENIZER, NEW)["translate"]
    arrays = inputs(part, 3, {"S": 7})
    together = loaded("translator").call("translate", **arrays)
    for row in range(3):
        one = {name: array[row : row + 1] for name, array in arrays.items()}
        alone = loaded("translator").call("translate", **one)
        assert np.array_equal(alone["tokens"][0], together["tokens"][row])
        assert np.allclose(alone["log_probs"][0], together["log_probs"][row], atol=1e-4)


@pytest.mark.slow
def test_weights_are_arguments(exported):
    """Others of the same shapes give other results, without another program."""
    loaded = load_stablehlo(exported("decoder"))
    before = loaded.forward(tokens=np.ones((1, 3)))["logits"]
    loaded.weights["embedding/table"] = loaded.weights["embedding/table"] * 2
    assert not np.allclose(before, loaded.forward(tokens=np.ones((1, 3)))["logits"])


FRESH = """
import sys
import numpy as np
from transformer_jax.interop.stablehlo import load_stablehlo
for folder in sys.argv[1:]:
    loaded = load_stablehlo(folder)
    for function in loaded.manifest["functions"]:
        found = loaded.call(function, **np.load(f"{folder}/{function}.npz"))
        np.savez(f"{folder}/{function}_found.npz", **found)
strange = {"flax", "optax", "orbax", "tokenizers", "transformer_jax.models"} & set(sys.modules)
assert not strange, strange
"""


@pytest.mark.slow
def test_a_fresh_interpreter_without_our_models_gives_the_same(exported, tmp_path):
    """For a translator, a decoder and an encoder, given nothing but their folders."""
    wanted, folders = {}, []
    for name in ("translator", "decoder", "encoder"):
        folders.append(shutil.copytree(exported(name), tmp_path / name))
        for function, part in functions(MODELS[name], TOKENIZER, NEW).items():
            arrays = inputs(part, 3, {"S": 7, "T": 8})
            np.savez(folders[-1] / f"{function}.npz", **arrays)
            wanted[name, function] = jitted(part, params_of(name), arrays)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FRESH, *map(str, folders)]
    subprocess.run(command, check=True, timeout=120, env=environment)
    assert len(wanted) == 5
    for (name, function), values in wanted.items():
        with np.load(tmp_path / name / f"{function}_found.npz") as file:
            found = dict(file)
        assert set(found) == set(values)
        assert all(found[key].tobytes() == np.asarray(values[key]).tobytes() for key in found)


@pytest.mark.slow
def test_the_manifest_says_what_is_taken_and_given(exported):
    folder = exported("translator")
    files = {path.name for path in folder.iterdir()}
    assert files == {
        "forward.stablehlo", "translate.stablehlo", "model.safetensors", "manifest.json",
        "tokenizer.json",
    }  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    parts = manifest.pop("functions")
    assert manifest == {
        "format": "transformer-jax stablehlo 1",
        "kind": "encoder-decoder",
        "jax": jax.__version__,
        "platforms": ["cpu", "cuda", "tpu"],
        "weights": "model.safetensors",
        "special": {"pad": 1, "bos": 0, "eos": 2, "unk": 3},
        "end_tokens": [2],
    }
    assert parts["forward"]["outputs"] == {"logits": {"shape": ["B", "T", 40], "dtype": "float32"}}
    translate = parts["translate"]
    assert translate["inputs"] == {
        "source": {"shape": ["B", "S"], "dtype": "int32"},
        "source_lengths": {"shape": ["B"], "dtype": "int32"},
        "limits": {"shape": ["B"], "dtype": "int32"},
    }
    assert translate["outputs"]["tokens"] == {"shape": ["B", NEW], "dtype": "int32"}
    assert translate["limits"] == ["S <= 24"]
    made = export.deserialize(bytearray((folder / "translate.stablehlo").read_bytes()))
    assert translate["calling_convention"] == made.calling_convention_version
    assert made.platforms == ("cpu", "cuda", "tpu")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.quick("translator", "decoder")
def test_no_platform_needs_code_of_its_own(exported, name):
    """Custom calls would tie a program to a platform; only checks of sizes are such."""
    for path in exported(name).glob("*.stablehlo"):
        text = export.deserialize(bytearray(path.read_bytes())).mlir_module()
        calls = [line for line in text.splitlines() if "custom_call" in line]
        assert all("@shape_assertion" in line for line in calls), calls


def test_what_a_program_does_not_take_is_said(loaded):
    loaded = loaded("translator")
    part = functions(MODELS["translator"], TOKENIZER, NEW)["forward"]
    arrays = inputs(part, 2, {"S": 4, "T": 3})
    with pytest.raises(DataError, match=r"^forward: S is 25: allowed is S <= 24$"):
        loaded.forward(**arrays | {"source": np.ones((2, 25))})
    with pytest.raises(DataError, match=r"source_lengths is \[2, 2\]: must be \['B'\] with B = 2,"):
        loaded.forward(**arrays | {"source_lengths": np.ones((2, 2))})
    with pytest.raises(DataError, match=r"target is \[3, 3\]: must be \['B', 'T'\] with B = 2"):
        loaded.forward(**arrays | {"target": np.ones((3, 3))})
    with pytest.raises(DataError, match="takes source, source_lengths, target, not source"):
        loaded.forward(source=arrays["source"])
    with pytest.raises(ConfigError, match="no function generate: the model has forward, translate"):
        loaded.generate(**arrays)


@pytest.mark.parametrize("length", [0, 25])
def test_lengths_beyond_the_positions_are_refused(tmp_path, length):
    with pytest.raises(ConfigError, match=f"--length {length}: allowed are 1 to 24"):
        write_stablehlo(
            tmp_path / "out",
            MODELS["translator"],
            unflatten_dict(params_of("translator")),
            TOKENIZER,
            length=length,
        )


def test_an_encoder_writes_nothing(tmp_path):
    with pytest.raises(ConfigError, match="leave --length out"):
        write_stablehlo(tmp_path / "out", MODELS["encoder"], {}, TOKENIZER, length=3)


def test_platforms_that_are_unknown_are_refused(tmp_path):
    params = unflatten_dict(params_of("classifier"))
    with pytest.raises(ConfigError, match="abacus"):
        write_stablehlo(
            tmp_path / "out", MODELS["classifier"], params, TOKENIZER, platforms=("abacus",)
        )
    assert not (tmp_path / "out").exists()


def test_damaged_folders_are_said(exported, tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_stablehlo(tmp_path)
    for path in exported("classifier").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    load_stablehlo(tmp_path)
    for name, reason in (
        ("forward.stablehlo", "damaged, or of another jax"),
        ("model.safetensors", "damaged"),
        ("manifest.json", "damaged"),
    ):
        (tmp_path / name).write_bytes(b"no")
        with pytest.raises(CheckpointError, match=reason):
            load_stablehlo(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(
        (exported("classifier") / "model.safetensors").read_bytes()
    )
    with pytest.raises(CheckpointError, match="not of the format"):
        load_stablehlo(tmp_path)


def test_without_the_package_it_says_how_to_get_it(exported, tmp_path, monkeypatch):
    folder = exported("classifier")
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    missing = r"pip install 'transformer-jax\[export\]'"
    with pytest.raises(ConfigError, match=missing):
        load_stablehlo(folder)
    with pytest.raises(ConfigError, match=missing):
        write_stablehlo(tmp_path / "out", MODELS["classifier"], {}, TOKENIZER)


@pytest.mark.slow
def test_what_every_target_begins_with_is_given(tmp_path):
    """Behind the start token, as ``<s>`` of BART; there is no position for more."""
    tokenizer = tokenizer_of({"forced_bos_token_id": 5}, 40)
    assert tokenizer.target_prefix_ids == (5,)
    weights = unflatten_dict(params_of("translator"))
    write_stablehlo(tmp_path / "run", MODELS["translator"], weights, tokenizer, length=NEW)
    loaded = load_stablehlo(tmp_path / "run")
    part = functions(MODELS["translator"], tokenizer, NEW)["translate"]
    arrays = inputs(part, 5, {"S": 9}) | {"limits": np.full(5, NEW, np.int32)}
    tokens = np.asarray(loaded.translate(**arrays)["tokens"])
    read = {name: arrays[name] for name in ("source", "source_lengths")}
    target = np.concatenate([np.tile([[tokenizer.bos, 5]], (5, 1)), tokens[:, :-1]], axis=1)
    logits = np.array(loaded.forward(**read, target=target.astype(np.int32))["logits"])[:, 1:]
    logits[..., [tokenizer.pad, tokenizer.bos]] = -np.inf
    ended = np.cumsum(tokens == tokenizer.eos, axis=1) - (tokens == tokenizer.eos)
    assert np.where(ended, tokens, logits.argmax(-1)).tolist() == tokens.tolist()
    with pytest.raises(ConfigError, match="--length 24: allowed are 1 to 23"):
        functions(MODELS["translator"], tokenizer, 24)
