"""Damaged folders in PEFT's format end in one line (row B39); whole ones: ``tests/parity``."""

import functools
import json
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from tests.parity import layouts
from transformer_jax.cli.main import main as command
from transformer_jax.core.errors import CheckpointError, ConfigError, UserError
from transformer_jax.core.output_files import is_draft
from transformer_jax.core.trees import flatten_dict, unflatten_dict
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.inference.adapters import load_merged
from transformer_jax.inference.loading import load
from transformer_jax.inference.merging import write_with_adapter
from transformer_jax.inference.pretrained import read_facts
from transformer_jax.interop import hf_run_directory
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint
from transformer_jax.interop.hf_run_directory import convert
from transformer_jax.interop.peft import CONFIG, WEIGHTS, read_peft
from transformer_jax.interop.peft_modules import bare_name, linear_maps
from transformer_jax.runs.checkpoint_reader import load_params
from transformer_jax.training.adapter_parts import merge_adapter

SPECIAL = ("<start>", "<pad>", "<stop>", "<unk>", "</s>")
DAMAGED = [
    ({"lora_alpha": "much"}, "must be numbers"),
    ({"lora_alpha": float("nan")}, "must be numbers"),
    ({"alpha_pattern": ["c_attn"]}, "must be numbers"),
    ({"alpha_pattern": {"c_attn": None}}, "must be numbers"),
    ({"alpha_pattern": {"c_(attn": 4}}, "alpha_pattern 'c_\\(attn'"),
    ({"peft_type": "IA3"}, "only LORA is supported"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peft") / "gpt2"
    layouts.write("gpt2", folder)
    train_tokenizer("wordpiece", ["um dois três"], 40, special=SPECIAL).save(
        folder / "tokenizer.json"
    )
    return load(folder)


@pytest.mark.parametrize(("fields", "said"), DAMAGED, ids=[str(case[0]) for case in DAMAGED])
def test_a_configuration_that_says_nothing_is_one_line(base, tmp_path, fields, said):
    (tmp_path / CONFIG).write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 8} | fields))
    with pytest.raises(ConfigError, match=said) as found:
        base.with_adapters({"a": tmp_path})
    assert "\n" not in str(found.value)


ROWS = "base_model.model.transformer.wte.token_adapter.trainable_tokens_delta"
STRANGE = [
    ([3, 3], "is \\[3, 3\\]: must be unique ids"),
    ({"lm_head": [3, 4]}, "names no tokens of transformer.wte"),
    ([3], "does not match the base"),
    ([3, 999], "trains the row of token 999, but transformer.wte of the base has"),
    ([3, 4], "with rows of 2 tokens"),
]


@pytest.mark.parametrize(("tokens", "said"), STRANGE, ids=[str(case[0]) for case in STRANGE])
def test_trained_rows_that_fit_nothing_are_one_line(base, tmp_path, tokens, said):
    fields = {"peft_type": "LORA", "lora_alpha": 8, "trainable_token_indices": tokens}
    (tmp_path / CONFIG).write_text(json.dumps(fields))
    width = base.model.embedding.table.shape[1]
    save_file({ROWS: np.zeros((2, width), np.float32)}, tmp_path / WEIGHTS)
    with pytest.raises(UserError, match=said) as found:
        base.with_adapters({"a": tmp_path})
    assert "\n" not in str(found.value)


# Adapters that are made here, by the formulas of PEFT.

FIELDS = {
    "peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["c_attn"],
    "init_lora_weights": True, "fan_in_fan_out": True,
}  # fmt: skip
LLAMA = {**FIELDS, "target_modules": ["q_proj"], "fan_in_fan_out": False}
BEFORE = "base_model.model."


@functools.cache
def opened(layout):
    """The family, the model and the parameters of a small base, whose output layer is its table."""
    folder = layouts.write(layout, Path(tempfile.mkdtemp()) / layout)
    checkpoint = open_hf_checkpoint(folder)
    leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(checkpoint.load()).items()}
    return checkpoint.family, checkpoint.model, leaves


def drawn(*shape):
    return layouts.random(str(shape)).standard_normal(shape).astype(np.float32)


def weights(layout, module):
    """The weight of a module of theirs, [out, in]."""
    family, model, leaves = opened(layout)
    parts = linear_maps(family, model)[bare_name(module)]
    return np.concatenate([leaves[part.name] for part in parts], axis=1).T


def modules(layout, fields):
    """The linear maps of a base that a configuration names, by their names there."""
    family, model, _ = opened(layout)
    names = [m.hf_name.removesuffix(".weight") for m in family.mappings(model)]
    ends = tuple(f".{name}" for name in fields["target_modules"])
    return [name for name in dict.fromkeys(names) if name.endswith(ends)]


def tensors_of(layout, fields, rank=None):
    found = {}
    for module in modules(layout, fields):
        out, inputs = weights(layout, module).shape
        found[f"{BEFORE}{module}.lora_A.weight"] = drawn(rank or fields["r"], inputs)
        found[f"{BEFORE}{module}.lora_B.weight"] = 0.1 * drawn(out, rank or fields["r"])
    return found


def write(folder, fields, tensors):
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(fields))
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()},
              folder / WEIGHTS)  # fmt: skip
    return folder


def merged(layout, folder):
    family, model, leaves = opened(layout)
    adapter = read_peft(folder, family, model, leaves)
    return flatten_dict(merge_adapter(adapter, unflatten_dict(dict(leaves))))


def without_first(kind, weight, rank, scale):
    """The base of an adapter when its training begins."""
    if kind == "olora":
        q, r = np.linalg.qr(weight)
        return weight - scale * q[:, :rank] @ r[:rank]
    u, s, v = np.linalg.svd(weight.astype(np.float64), full_matrices=False)
    return weight - (u[:, :rank] * s[:rank]) @ v[:rank]


@pytest.mark.parametrize("layout", ["gpt2", "llama"])
@pytest.mark.parametrize("kind", ["pissa", "olora"])
def test_an_adapter_that_began_with_parts_of_the_base_is_of_what_is_left(layout, kind, tmp_path):
    """Source: Meng et al. 2024 (PiSSA), Büyükakyüz 2024 (OLoRA), as PEFT has them."""
    name = {"gpt2": "attn.c_proj", "llama": "v_proj"}[layout]
    fields = {**FIELDS, "target_modules": [name], "init_lora_weights": kind}
    tensors = tensors_of(layout, fields)
    found = merged(layout, write(tmp_path, fields, tensors))
    family, model, _ = opened(layout)
    for module in modules(layout, fields):
        a, b = (tensors[f"{BEFORE}{module}.lora_{leaf}.weight"] for leaf in "AB")
        weight = weights(layout, module)
        # OLoRA takes GPT-2's kernels as they are stored.
        stored = weight.T if layout == "gpt2" and kind == "olora" else weight
        left = without_first(kind, stored, 2, 3.0)
        left = left.T if stored is not weight else left
        [part] = linear_maps(family, model)[bare_name(module)]
        np.testing.assert_allclose(found[part.name].T, left + 3.0 * b @ a, atol=1e-5)
        assert np.abs(found[part.name].T - weight - 3.0 * b @ a).max() > 0.01


@pytest.mark.parametrize("value", ["gaussian", "orthogonal", "eva", "mica", True, False, None])
def test_other_initializations_leave_the_base_as_it_is(value, tmp_path):
    tensors = tensors_of("llama", LLAMA)
    plain = merged("llama", write(tmp_path, LLAMA, tensors))
    found = merged("llama", write(tmp_path, {**LLAMA, "init_lora_weights": value}, tensors))
    assert all(np.array_equal(found[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("pissa_niter_16", "is random"), ("corda", "training data"),
        ("lora_ga", "training data"), ("loftq", "quantizes the base"),
        ("pisa", "allowed are true, false, null"), (1, "allowed are true, false, null"),
    ],
)  # fmt: skip
def test_an_initialization_whose_base_nobody_knows_is_refused(value, said, tmp_path):
    write(tmp_path, {**LLAMA, "init_lora_weights": value}, tensors_of("llama", LLAMA))
    with pytest.raises(ConfigError, match=f"init_lora_weights is .*{said}"):
        merged("llama", tmp_path)


CONTRADICTIONS = [
    ({"use_dora": True}, "lacks its lora_magnitude_vector, but use_dora is true"),
    ({"r": 0}, "r and the values of rank_pattern must be integers of at least 1"),
    ({"r": True}, "r and the values of rank_pattern"),
    ({"r": 3}, "rank 3 in adapter_config.json"),
    ({"rank_pattern": {"q_proj": 3}}, "rank 3 in adapter_config.json"),
    ({"rank_pattern": {"q_proj": 0}}, "integers of at least 1"),
    ({"rank_pattern": {"q_(proj": 2}}, "rank_pattern 'q_\\(proj'"),
    ({"alpha_pattern": {"q_proj": True}}, "must be numbers"),
    ({"exclude_modules": ["q_proj"]}, "excludes it \\(exclude_modules\\)"),
    ({"exclude_modules": r".*layers\.1.*"}, "excludes it \\(exclude_modules\\)"),
    ({"layers_to_transform": 0}, "excludes it \\(layers_to_transform\\)"),
    ({"layers_to_transform": "0"}, "numbers of layers are allowed"),
    ({"layers_pattern": "layers"}, "layers_pattern is given without layers_to_transform"),
    ({"modules_to_save": ["q_proj"]}, "the file has no tensor|excludes it"),
    ({"modules_to_save": ["norm"]}, "the file has no tensor .*norm.weight"),
    ({"modules_to_save": ["pooler"]}, "names pooler, which is not a module of the base"),
    ({"target_modules": ["q_proj", "v_proj"]}, "includes .*v_proj, but the file has no tensors"),
    ({"target_modules": ["v_proj"]}, "v_proj, but the file has no|excludes it"),
    ({"target_modules": r".*layers\.0.*q_proj"}, "excludes it \\(target_modules\\)"),
    ({"target_modules": "q_(proj"}, "target_modules 'q_\\(proj'"),
    ({"target_modules": None}, "target_modules is empty"),
    ({"target_modules": [3]}, "a list of names, or a pattern is allowed"),
    ({"task_type": "SEQ_CLS", "modules_to_save": ["norm"]}, "the file has no tensor"),
    ({"trainable_token_indices": [3]}, "the file has no rows"),
    ({"lora_dropout": -1}, "lora_dropout is -1"),
    ({"use_rslora": "yes"}, "true or false"),
    ({"kasa_config": {}}, "kasa_config is \\{\\}"),
    ({"velora_config": {}}, "velora_config"),
    ({"target_parameters": ["x"]}, "target_parameters"),
    ({"megatron_config": {"a": 1}}, "megatron_config"),
    ({"lora_bias": True}, "lora_bias"),
    ({"use_qalora": True}, "use_qalora"),
    ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
    ({"layer_replication": [[0, 1]]}, "layer_replication"),
    ({"bias": "all"}, "trains biases"),
]


@pytest.mark.parametrize(
    ("change", "said"), CONTRADICTIONS, ids=[str(c[0]) for c in CONTRADICTIONS]
)
def test_a_configuration_that_contradicts_its_tensors_is_one_line(change, said, tmp_path):
    write(tmp_path, {**LLAMA, **change}, tensors_of("llama", LLAMA))
    with pytest.raises(UserError, match=said) as found:
        merged("llama", tmp_path)
    assert "\n" not in str(found.value)


def test_magnitudes_without_dora_are_one_line(tmp_path):
    tensors = tensors_of("llama", LLAMA)
    for module in modules("llama", LLAMA):
        size = len(weights("llama", module))
        tensors[f"{BEFORE}{module}.lora_magnitude_vector"] = np.ones(size, np.float32)
    write(tmp_path, {**LLAMA, "use_dora": True}, tensors)
    merged("llama", tmp_path)
    with pytest.raises(ConfigError, match="lora_magnitude_vector, but use_dora is false"):
        merged("llama", write(tmp_path, LLAMA, tensors))


def test_a_decomposition_has_no_more_ranks_than_its_kernel(tmp_path):
    """The scale is that of the rank of the configuration, not that of the tensors."""
    fields = {**LLAMA, "r": 1000, "target_modules": ["v_proj"], "init_lora_weights": "pissa"}
    most = min(weights("llama", modules("llama", fields)[0]).shape)
    tensors = tensors_of("llama", fields, rank=most)
    found = merged("llama", write(tmp_path, fields, tensors))
    for module in modules("llama", fields):
        a, b = (tensors[f"{BEFORE}{module}.lora_{leaf}.weight"] for leaf in "AB")
        name = linear_maps(*opened("llama")[:2])[bare_name(module)][0].name
        np.testing.assert_allclose(found[name].T, 0.006 * b @ a, atol=1e-5)


HEAD, TABLE = f"{BEFORE}lm_head.weight", f"{BEFORE}transformer.wte.weight"


def test_a_table_of_a_tied_model_that_was_saved_is_not_the_output_layer(tmp_path):
    """PEFT stores a copy of one of two modules; the other keeps the table of the base."""
    _, _, leaves = opened("gpt2")
    old = leaves["embedding/table"]
    new, tensors = drawn(*old.shape), tensors_of("gpt2", FIELDS)
    fields = {**FIELDS, "modules_to_save": ["wte"]}
    found = merged("gpt2", write(tmp_path, fields, {**tensors, TABLE: new}))
    assert np.array_equal(found["embedding/table"], new)
    assert np.array_equal(found["head/table"], old)
    fields = {**FIELDS, "modules_to_save": ["lm_head"]}
    found = merged("gpt2", write(tmp_path, fields, {**tensors, HEAD: new}))
    assert np.array_equal(found["embedding/table"], old)
    assert np.array_equal(found["head/table"], new)
    fields = {**FIELDS, "modules_to_save": ["lm_head", "wte"], "ensure_weight_tying": True}
    found = merged("gpt2", write(tmp_path, fields, {**tensors, HEAD: new, TABLE: new}))
    assert np.array_equal(found["embedding/table"], new)
    assert "head/table" not in found
    # Named nowhere, as of a vocabulary that has grown: the table of the base.
    found = merged("gpt2", write(tmp_path, FIELDS, {**tensors, TABLE: new}))
    assert np.array_equal(found["embedding/table"], new)
    assert "head/table" not in found
    with pytest.raises(UserError, match="the file has two different ones"):
        merged("gpt2", write(tmp_path, FIELDS, {**tensors, TABLE: new, HEAD: old}))
    fields = {**FIELDS, "modules_to_save": ["lm_head"], "ensure_weight_tying": True}
    with pytest.raises(UserError, match=r"includes transformer\.wte, but the file has no tensor"):
        merged("gpt2", write(tmp_path, fields, {**tensors, HEAD: new}))


def test_adapters_of_a_table_and_of_the_output_layer(tmp_path):
    _, _, leaves = opened("gpt2")
    table = leaves["embedding/table"]
    V, D = table.shape
    a, b, tensors = drawn(2, D), 0.1 * drawn(V, 2), tensors_of("gpt2", FIELDS)
    at = f"{BEFORE}lm_head."
    of_head = {f"{at}lora_A.weight": a, f"{at}lora_B.weight": b}
    fields = {**FIELDS, "target_modules": ["c_attn", "lm_head"]}
    found = merged("gpt2", write(tmp_path, fields, {**tensors, **of_head}))
    assert np.array_equal(found["embedding/table"], table)
    np.testing.assert_allclose(found["head/table"], table + 3.0 * b @ a, atol=1e-5)
    # PiSSA takes its part out of the table, which both share.
    pissa = {**fields, "target_modules": ["lm_head"], "init_lora_weights": "pissa"}
    found = merged("gpt2", write(tmp_path, pissa, of_head))
    left = without_first("pissa", table, 2, 3.0)
    np.testing.assert_allclose(found["embedding/table"], left, atol=1e-5)
    np.testing.assert_allclose(found["head/table"], left + 3.0 * b @ a, atol=1e-5)
    at = f"{BEFORE}transformer.wte."
    of_table = {f"{at}lora_embedding_A": b.T, f"{at}lora_embedding_B": a.T}
    fields = {**FIELDS, "target_modules": ["c_attn", "wte"]}
    found = merged("gpt2", write(tmp_path, fields, {**tensors, **of_table}))
    np.testing.assert_allclose(found["embedding/table"], table + 3.0 * b @ a, atol=1e-5)
    assert np.array_equal(found["head/table"], table)
    # One adapter for both: the output layer stays the table.
    fields = {**FIELDS, "target_modules": ["c_attn", "wte", "lm_head"]}
    found = merged("gpt2", write(tmp_path, fields, {**tensors, **of_table, **of_head}))
    np.testing.assert_allclose(found["embedding/table"], table + 3.0 * b @ a, atol=1e-5)
    assert "head/table" not in found
    # Two scales of one adapter: the output layer gets a table of its own.
    scaled = {**fields, "alpha_pattern": {"lm_head": 12}}
    found = merged("gpt2", write(tmp_path, scaled, {**tensors, **of_table, **of_head}))
    np.testing.assert_allclose(found["embedding/table"], table + 3.0 * b @ a, atol=1e-5)
    np.testing.assert_allclose(found["head/table"], table + 6.0 * b @ a, atol=1e-5)


@pytest.mark.parametrize(
    ("layout", "table", "head", "targets", "apart"),
    [
        ("gpt2", "transformer.wte", "lm_head", ["wte", "lm_head"], False),
        ("gpt2", "transformer.wte", "lm_head", "wte|.*(wte|head)", False),
        ("bert", "bert.embeddings.word_embeddings", "cls.predictions.decoder",
         ["word_embeddings", "predictions.decoder"], True),
        ("bert", "bert.embeddings.word_embeddings", "cls.predictions.decoder",
         "embed_tokens|.*(word_embeddings|predictions.decoder)", True),
    ],
)  # fmt: skip
def test_tied_adapters_differ_where_peft_keeps_them_apart(
    layout, table, head, targets, apart, tmp_path
):
    """PEFT ties the adapters of tables whose names it knows, and which no module contains."""
    _, _, leaves = opened(layout)
    V, D = leaves["embedding/table"].shape
    tensors = {
        f"{BEFORE}{table}.lora_embedding_A": drawn(2, V),
        f"{BEFORE}{table}.lora_embedding_B": drawn(D, 2),
        f"{BEFORE}{head}.lora_A.weight": 2 * drawn(2, D),
        f"{BEFORE}{head}.lora_B.weight": drawn(V, 2),
    }
    fields = {**FIELDS, "target_modules": targets, "ensure_weight_tying": True}
    if apart:
        found = merged(layout, write(tmp_path, fields, tensors))
        assert not np.array_equal(found["embedding/table"], found["head/table"])
    else:
        with pytest.raises(CheckpointError, match="ensure_weight_tying is true"):
            merged(layout, write(tmp_path, fields, tensors))


def test_modules_have_their_names_of_today_or_those_of_the_tensors(tmp_path):
    """The two differ for ViT: PEFT writes the names of the modules."""
    tensors = tensors_of("vit", old := {**LLAMA, "target_modules": ["attention.query"]})
    expected = merged("vit", write(tmp_path, old, tensors))
    before, after = (
        r"encoder\.layer\.(\d+)\.attention\.attention\.query",
        r"layers.\1.attention.q_proj",
    )
    today = {re.sub(before, after, name): array for name, array in tensors.items()}
    assert not today.keys() & tensors.keys()
    found = merged("vit", write(tmp_path, {**LLAMA, "target_modules": ["q_proj"]}, today))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    with pytest.raises(ConfigError, match="excludes it"):
        merged("vit", write(tmp_path, old, today))


def test_each_tensor_of_an_adapter_is_needed(tmp_path):
    """Each removed in turn, with every kind of tensor in one folder."""
    _, _, leaves = opened("gpt2")
    V, D = leaves["embedding/table"].shape
    fields = {
        **FIELDS, "target_modules": ["c_attn", "lm_head"], "modules_to_save": ["ln_f"],
        "trainable_token_indices": [3, 5], "use_dora": True,
    }  # fmt: skip
    tensors = tensors_of("gpt2", fields)
    at = f"{BEFORE}lm_head."
    tensors |= {f"{at}lora_A.weight": drawn(2, D), f"{at}lora_B.weight": drawn(V, 2)}
    for name in [one.removesuffix("lora_A.weight") for one in tensors if "lora_A" in one]:
        size = len(tensors[f"{name}lora_B.weight"])
        tensors[f"{name}lora_magnitude_vector"] = np.ones(size, np.float32)
    for leaf in ("weight", "bias"):
        tensors[f"{BEFORE}transformer.ln_f.{leaf}"] = drawn(D)
    tensors[f"{BEFORE}transformer.wte.token_adapter.trainable_tokens_delta"] = drawn(2, D)
    merged("gpt2", write(tmp_path, fields, tensors))
    for missing in tensors:
        rest = {name: array for name, array in tensors.items() if name != missing}
        with pytest.raises(UserError) as found:
            merged("gpt2", write(tmp_path, fields, rest))
        assert missing.split(".")[-2] in str(found.value) or "rows" in str(found.value), missing


@pytest.fixture(scope="module")
def gpt2(base):
    """The folder of the small GPT-2."""
    return base.opened.facts.source


class Killed(BaseException):
    """The place where a process is killed."""


def test_a_merge_that_is_killed_leaves_no_run(gpt2, tmp_path, monkeypatch):
    """The draft lies next to the target, and the next merge removes it."""
    adapter = write(tmp_path / "adapter", FIELDS, tensors_of("gpt2", FIELDS))
    place, left = tmp_path / "run", []

    def kill(run, *_):
        assert (run.path / "config.json").exists()
        left.extend(tmp_path.iterdir())
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(hf_run_directory, "save_converted", kill)
        with pytest.raises(Killed):
            write_with_adapter(gpt2, adapter, place)
    [draft] = set(left) - {adapter}
    assert is_draft(draft.name)
    assert not place.exists()
    # As a process leaves it that had no time to remove it.
    dead = tmp_path / draft.name.replace(f".{os.getpid()}.", ".4194305.", 1)
    dead.mkdir()
    (dead / "config.json").write_text("{}")
    write_with_adapter(gpt2, adapter, place)
    with pytest.raises(ConfigError) as error:  # nothing there could be resumed
        write_with_adapter(gpt2, adapter, place)
    assert str(error.value) == (
        f"{place}: has a run already: choose another --output, or delete it with --overwrite"
    )
    assert {path.name for path in tmp_path.iterdir()} == {"adapter", "run"}


@pytest.mark.parametrize("target", ["c_attn", "lm_head"])
def test_an_adapter_that_overflows_is_one_line(gpt2, base, tmp_path, target):
    fields = {**FIELDS, "target_modules": [target], "lora_alpha": 1e38}
    tensors = tensors_of("gpt2", fields)
    if target == "lm_head":
        V, D = opened("gpt2")[2]["embedding/table"].shape
        at = f"{BEFORE}lm_head."
        tensors = {f"{at}lora_A.weight": drawn(2, D), f"{at}lora_B.weight": drawn(V, 2)}
    tensors = {name: 1e3 * array for name, array in tensors.items()}
    adapter = write(tmp_path / "adapter", fields, tensors)
    with pytest.raises(CheckpointError, match="beyond the range of float32"):
        write_with_adapter(gpt2, adapter, tmp_path / "run")
    with pytest.raises(CheckpointError, match="beyond the range of float32"):
        base.with_adapters({"a": adapter})
    assert {path.name for path in tmp_path.iterdir()} == {"adapter"}


@pytest.mark.slow
def test_a_merged_output_layer_has_a_table_of_its_own(gpt2, base, tmp_path):
    """Merged, loaded and exported; prompts that choose adapters share the table."""
    fields = {**FIELDS, "target_modules": ["lm_head"]}
    V, D = opened("gpt2")[2]["embedding/table"].shape
    at = f"{BEFORE}lm_head."
    tensors = {f"{at}lora_A.weight": drawn(2, D), f"{at}lora_B.weight": drawn(V, 2)}
    adapter = write(tmp_path / "adapter", fields, tensors)
    expected = merged("gpt2", adapter)
    assert write_with_adapter(gpt2, adapter, tmp_path / "run") == 1
    found = load_params(tmp_path / "run").params
    assert np.array_equal(flatten_dict(found)["head/table"], expected["head/table"])
    settings = json.loads((tmp_path / "run/config.json").read_text())
    assert settings["model"]["head"]["tie_word_embeddings"] is False
    assert settings["published"]["fields"]["tie_word_embeddings"] is False
    score = load(tmp_path / "run").score("um dois")
    assert command(["export", str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    assert load(tmp_path / "hf").score("um dois") == score
    graph, params = load_merged(read_facts(gpt2), adapter).model
    assert np.array_equal(params["head"]["table"], expected["head/table"])
    assert nnx.merge(graph, params).config.head.tie_word_embeddings is False
    with pytest.raises(ConfigError, match="has further trained parameters"):
        base.with_adapters({"a": adapter})
    # Of a run too.
    convert(gpt2, tmp_path / "plain", overwrite=False)
    write_with_adapter(tmp_path / "plain", adapter, tmp_path / "again")
    assert load(tmp_path / "again").score("um dois") == score
