"""Hugging Face folders as they are found: older names, missing keys, and what is refused."""

import json
import os
import time
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks.loading import begin_at
from tests.parity import layouts
from transformer_jax.cli.main import main
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.inference.pretrained import open_directory
from transformer_jax.interop import tensor_files
from transformer_jax.interop.config_reader import ConfigReader, is_hf_checkpoint
from transformer_jax.interop.export import write_folder
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint
from transformer_jax.interop.hf_run_directory import HFRunDirectory
from transformer_jax.runs.run_directory import RunDirectory


def folder_of(layout, path, *, tensors=lambda found: found, fields=lambda found: found):
    """A folder of a layout, with other tensors or another configuration."""
    layouts.write(layout, path)
    save_file(tensors(layouts.weights(layout)), path / "model.safetensors", {"format": "pt"})
    said = fields(dict(layouts.LAYOUTS[layout]["config"]))
    (path / "config.json").write_text(json.dumps(said))
    return path


def without(*names):
    return lambda found: {key: value for key, value in found.items() if key not in names}


def renamed(old, new):
    return lambda found: {
        (new + key.removeprefix(old) if key.startswith(old) else key): value
        for key, value in found.items()
    }


def equal(one, two):
    jax.tree.map(np.testing.assert_array_equal, one, two)


# Numbers that are none


@pytest.mark.parametrize(("value", "kind"), [(np.nan, "float32"), (-np.inf, "bfloat16")])
def test_a_tensor_that_is_not_finite_is_refused_by_every_door(tmp_path, capsys, value, kind):
    name = "vit.encoder.layer.1.output.dense.weight"

    def holed(found):
        whole = found[name].astype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
        whole[-1, -1] = value
        return found | {name: whole}

    path = folder_of("vit", tmp_path / "vit", tensors=holed)
    with pytest.raises(CheckpointError, match=f"the tensor {name} has NaN or infinity"):
        open_hf_checkpoint(path).load()
    for command in (["verify", path], ["convert", path, tmp_path / "run"]):
        assert main([str(word) for word in command]) == 4
        assert f"{name} has NaN or infinity" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    fine = folder_of("vit", tmp_path / "fine")
    assert main(["verify", str(fine)]) == 0
    assert "all finite" in capsys.readouterr().out


# Files of other versions


def test_a_classifier_of_roberta_may_hold_the_pooler_it_began_with(tmp_path):
    pooler = {f"roberta.pooler.dense.{part}": np.ones(shape, np.float32)
              for part, shape in (("weight", (32, 32)), ("bias", 32))}  # fmt: skip
    plain = open_hf_checkpoint(folder_of("roberta_cls", tmp_path / "a"))
    more = open_hf_checkpoint(
        folder_of("roberta_cls", tmp_path / "b", tensors=lambda f: f | pooler)
    )
    assert more.model == plain.model
    equal(more.load(), plain.load())


@pytest.mark.parametrize("layout", ["bart", "marian", "pegasus"])
def test_a_bias_of_scores_that_is_left_out_is_none(tmp_path, layout):
    folder = open_hf_checkpoint(
        folder_of(layout, tmp_path / "x", tensors=without("final_logits_bias"))
    )
    assert not folder.model.config.head.bias
    assert "bias" not in folder.load().get("head", {})


@pytest.mark.parametrize("layout", ["bart", "llama", "gemma2", "opt", "phi3", "starcoder2"])
def test_names_without_their_prefix(tmp_path, layout):
    plain = open_hf_checkpoint(folder_of(layout, tmp_path / "a"))
    bare = open_hf_checkpoint(folder_of(layout, tmp_path / "b", tensors=renamed("model.", "")))
    equal(bare.load(), plain.load())
    assert bare.model.prefix == ""


def test_versions_of_old_files_hold_nothing(tmp_path):
    version = {"model.encoder.version": np.array([3.0], np.float32)}
    open_hf_checkpoint(folder_of("bart", tmp_path / "x", tensors=lambda found: found | version))


def test_pegasus_computes_positions_that_are_not_stored(tmp_path):
    names = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    folder = open_hf_checkpoint(folder_of("pegasus", tmp_path / "x", tensors=without(*names)))
    assert folder.model.config.positions.kind == "sinusoidal_halves"


@pytest.mark.parametrize(
    ("layout", "table", "other"),
    [("t5", "shared.weight", "decoder.embed_tokens.weight"),
     ("gpt2", "transformer.wte.weight", "lm_head.weight"),
     ("llama3", "model.embed_tokens.weight", "lm_head.weight"),
     ("bart", "model.shared.weight", "model.encoder.embed_tokens.weight")],
)  # fmt: skip
def test_a_tied_table_may_be_stored_under_any_of_its_names(tmp_path, layout, table, other):
    plain = open_hf_checkpoint(folder_of(layout, tmp_path / "a"))
    found = open_hf_checkpoint(folder_of(layout, tmp_path / "b", tensors=renamed(table, other)))
    assert found.model == plain.model
    equal(found.load(), plain.load())


def config_of(layout, path, **changes):
    """The configuration as read with some keys changed; an ellipsis leaves one out."""

    def change(fields):
        fields |= changes
        return {key: value for key, value in fields.items() if value is not ...}

    return open_hf_checkpoint(folder_of(layout, path, fields=change)).model.config


def test_keys_that_are_left_out_have_the_value_that_transformers_gives_them(tmp_path):
    for number, (layout, key, path, value) in enumerate(
        [("mistral", "sliding_window", "scores.sliding_window", 4096),
         ("mistral", "max_position_embeddings", "positions.max_length", 2**17),
         ("qwen3", "max_position_embeddings", "positions.max_length", 2**15),
         ("gemma", "max_position_embeddings", "positions.max_length", 8192),
         ("phi3", "rms_norm_eps", "norm.eps", 1e-5),
         ("phi3", "sliding_window", "scores.sliding_window", None),
         ("starcoder2", "sliding_window", "scores.sliding_window", None),
         ("starcoder2", "norm_epsilon", "norm.eps", 1e-5),
         ("starcoder2", "hidden_act", "feed_forward.activation", "gelu_tanh"),
         ("starcoder2", "use_bias", "attention.out_bias", True),
         ("starcoder2", "max_position_embeddings", "positions.max_length", 4096),
         ("opt", "activation_function", "feed_forward.activation", "relu"),
         ("qwen2", "rms_norm_eps", "norm.eps", 1e-6),
         ("bert", "layer_norm_eps", "norm.eps", 1e-12),
         ("roberta", "pad_token_id", "positions.offset", 2),
         ("mpnet", "pad_token_id", "positions.offset", 2),
         ("mpnet", "relative_attention_num_buckets", "positions.num_buckets", 32),
         ("gpt2", "activation_function", "feed_forward.activation", "gelu_tanh"),
         ("bart", "activation_function", "feed_forward.activation", "gelu"),
         ("t5_gated", "relative_attention_max_distance", "positions.max_distance", 128)],
    ):  # fmt: skip
        config = config_of(layout, tmp_path / str(number), **{key: ...})
        for part in path.split("."):
            config = getattr(config, part)
        assert config == value, key


def test_null_is_not_left_out(tmp_path):
    assert config_of("mistral", tmp_path / "x", sliding_window=None).scores.sliding_window is None


def test_rotations_as_all_versions_say_them(tmp_path):
    base = lambda name, **keys: config_of("llama", tmp_path / name, **keys).positions.rope_theta
    assert base("a", rope_parameters=..., rope_theta=5e5) == 5e5
    assert base("b", rope_parameters={"rope_type": "default"}, rope_theta=5e5) == 5e5
    assert base("c", rope_parameters={"rope_type": "default", "rope_theta": 7e5}) == 7e5
    old = {"type": "linear", "factor": 2.0}
    assert config_of("llama", tmp_path / "d", rope_scaling=old).positions.rope_interpolation == 2
    both = [
        config_of("llama_yarn", tmp_path / f"e{number}", **keys).positions
        for number, keys in enumerate(
            [{}, {"rope_parameters": ..., "rope_theta": 50.0, "rope_scaling": OLD_YARN}]
        )
    ]
    assert both[0] == both[1]
    assert both[0].rope_yarn == (4.0, 2.0, 0.2, 24, True)
    assert both[0].rope_attention_factor == pytest.approx(0.1 * np.log(4) + 1)
    with pytest.raises(CheckpointError, match="known are default, linear"):
        config_of("llama", tmp_path / "f", rope_scaling={"type": "xpos", "factor": 2.0})


OLD_YARN = {
    "type": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.2,
    "original_max_position_embeddings": 24,
}  # fmt: skip
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("layout", "beside", "rope", "wanted"),
    [("llama", {}, {"rope_type": "yarn", "factor": 8.0},
      {"rope_yarn": (8.0, 32.0, 1.0, 64, True), "rope_attention_factor": 1 + np.log(8) / 10}),
     ("llama", {"original_max_position_embeddings": 48}, OLD_YARN,
      {"rope_yarn": (4.0, 2.0, 0.2, 48, True)}),
     ("llama", {}, OLD_YARN | {"attention_factor": 0.7}, {"rope_attention_factor": 0.7}),
     ("llama", {}, OLD_YARN | {"mscale": 2.0, "mscale_all_dim": 0.5},
      {"rope_attention_factor": (1 + np.log(4) / 5) / (1 + np.log(4) / 20)}),
     ("llama", {}, OLD_YARN | {"mscale": 2.0}, {"rope_attention_factor": 1 + np.log(4) / 10}),
     ("llama", {}, OLD_YARN | {"truncate": False}, {"rope_yarn": (4.0, 2.0, 0.2, 24, False)}),
     ("llama3", {"original_max_position_embeddings": 48},
      layouts.LAYOUTS["llama3"]["config"]["rope_parameters"],
      {"rope_scaling": (8.0, 1.0, 4.0, 48)}),
     ("llama", {}, {"type": "dynamic", "factor": 2.0}, {"rope_dynamic": (2.0, 64)}),
     ("llama", {"original_max_position_embeddings": 16}, LONGROPE,
      {"max_length": 16, "rope_original_max_length": 16,
       "rope_attention_factor": (1 + np.log(4) / np.log(16)) ** 0.5}),
     ("llama", {}, LONGROPE, {"max_length": 64, "rope_attention_factor": 1.0}),
     ("phi3", {"original_max_position_embeddings": 16}, LONGROPE | {"rope_type": "su"},
      {"max_length": 16, "rope_long_factor": (2.0,) * 4}),
     ("phi3", {"original_max_position_embeddings": 16}, LONGROPE | {"factor": 1.0},
      {"rope_attention_factor": 1.0}),
     ("phi3", {"partial_rotary_factor": 0.5}, {"rope_type": "default"}, {"rope_dim": 4})],
    ids=str,
)  # fmt: skip
def test_scaled_rotations_have_what_transformers_makes_of_their_keys(
    tmp_path, layout, beside, rope, wanted
):
    """Under the key of transformers 5 and under the one before it."""
    for number, key in enumerate(("rope_parameters", "rope_scaling")):
        keys = {"rope_parameters": ..., key: rope} | beside
        places = config_of(layout, tmp_path / str(number), **keys).positions
        for name, value in wanted.items():
            assert getattr(places, name) == pytest.approx(value), name


@pytest.mark.parametrize(
    ("layout", "keys", "said"),
    [("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_type"),
     ("llama", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one kind"),
     ("llama", {"rope_parameters": OLD_YARN | {"factor": None}}, "factor is missing"),
     ("llama", {"rope_parameters": OLD_YARN | {"truncate": None}}, "truncate"),
     ("llama", {"rope_parameters": OLD_YARN | {"beta_fast": -1.0}}, "beta_fast"),
     ("llama", {"rope_parameters": LONGROPE | {"short_factor": [1.0]}}, "4 are needed"),
     ("llama", {"rope_parameters": LONGROPE | {"long_factor": [0.0] * 4}}, "above 0"),
     ("llama", {"rope_parameters": LONGROPE | {"long_factor": "x"}}, "a list of numbers"),
     ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
     ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.4}}, "rope_dim is 3"),
     ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.1}}, "rope_dim is 0"),
     ("phi3_short", {"original_max_position_embeddings": None}, "an integer is needed, or no"),
     ("phi3_short", {"rope_parameters": {"long_factor": [1.0], "short_factor": [1.0]}},
      'rope_type is missing: factors are for "longrope"'),
     ("qwen2_late", {"layer_types": ["full_attention"] * 2}, "num_hidden_layers is 3"),
     ("qwen2_late", {"layer_types": ["chunked_attention"] * 3}, 'a list of "full_attention"'),
     ("qwen2_late", {"use_sliding_window": False}, "sliding_window is missing"),
     ("qwen2_late", {"num_hidden_layers": 10**9}, "at most 65536"),
     ("gemma2", {"sliding_window": None}, "sliding_window is missing"),
     ("stablelm", {"use_parallel_residual": True}, "only false can be loaded"),
     ("stablelm", {"qk_layernorm": True}, "only false can be loaded"),
     ("mpnet", {"relative_attention_num_buckets": 16}, "only 32 can be loaded"),
     ("mpnet", {"pad_token_id": 0}, "pad_token_id is 0: only 1 can be loaded"),
     ("starcoder2", {"partial_rotary_factor": 0.5}, "only 1.0 can be loaded"),
     ("starcoder2", {"use_bias": "yes"}, "use_bias is .*true or false is needed"),
     ("starcoder2", {"sliding_window": 0}, "sliding_window is 0"),
     ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
     ("modernbert", {"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}}, "rope_type"),
     ("modernbert", {"classifier_pooling": "max"}, "known are cls, mean"),
     ("modernbert", {"local_attention": -2}, "local_attention is -2"),
     ("opt", {"word_embed_proj_dim": 16}, "only hidden_size, 32, is supported"),
     ("opt", {"layer_norm_elementwise_affine": False}, "only true can be loaded")],
    ids=str,
)  # fmt: skip
def test_what_a_decoder_cannot_be_is_refused_by_name(tmp_path, layout, keys, said):
    with pytest.raises(CheckpointError, match=rf"^[^\n]*config.json[^\n]*{said}[^\n]*$"):
        config_of(layout, tmp_path / "x", **keys)


def test_windows_of_layers_as_all_versions_say_them(tmp_path):
    """Before transformers 5, Qwen had them from one layer on."""
    plain = config_of("qwen2_late", tmp_path / "a")
    old = config_of("qwen2_late", tmp_path / "b", layer_types=...)
    assert plain.scores.sliding_window_layers == (1, 2)
    assert old == plain
    late = config_of("qwen2_late", tmp_path / "c", layer_types=..., max_window_layers=...)
    assert late.scores.sliding_window is None  # layer 28 is the first that would have it
    named = config_of("qwen3_mixed", tmp_path / "d", layer_types=["sliding_attention"] * 4)
    assert (named.scores.sliding_window, named.scores.sliding_window_layers) == (5, None)
    full = config_of("gemma2", tmp_path / "e", layer_types=["full_attention"] * 3)
    assert full.scores.sliding_window is None


def test_local_layers_as_all_versions_say_them(tmp_path):
    """Before transformers 5, ModernBERT has a number, and a base of RoPE for each kind of layer."""
    new = {"layer_types": ..., "rope_parameters": ...}
    plain = config_of("modernbert", tmp_path / "a")
    assert config_of("modernbert", tmp_path / "b", **new) == plain
    assert [plain.scores.window_of(layer) for layer in range(4)] == [None, 7, 7, None]
    assert (plain.positions.rope_theta, plain.positions.rope_local_theta) == (160_000.0, 10_000.0)
    other = {"global_attn_every_n_layers": 2, "global_rope_theta": 9.0, "local_rope_theta": None}
    found = config_of("modernbert", tmp_path / "c", **new, **other)
    assert found.scores.full_attention_every == 2
    assert (found.positions.rope_theta, found.positions.rope_local_theta) == (9.0, None)
    full = config_of("modernbert", tmp_path / "d", layer_types=["full_attention"] * 4)
    assert (full.scores.sliding_window, full.positions.rope_local_theta) == (None, None)


def test_the_first_gemma_says_one_activation_and_means_another(tmp_path):
    """Its "gelu" is the tanh approximation; a key of later files counts for nothing."""
    for number, keys in enumerate(
        [{"hidden_act": "gelu"}, {"hidden_act": ...}, {"hidden_activation": "silu"}]
    ):
        config = config_of("gemma", tmp_path / str(number), **keys)
        assert config.feed_forward.activation == "gelu_tanh"
    later = config_of("gemma2", tmp_path / "x", hidden_act="silu", hidden_activation=...)
    assert later.feed_forward.activation == "gelu_tanh"


def test_an_exact_gelu_of_the_first_gemma_goes_back_by_its_other_name(tmp_path):
    exact = lambda found: found | {"hidden_act": "gelu_python"}
    folder = open_hf_checkpoint(folder_of("gemma", tmp_path / "x", fields=exact))
    assert folder.model.config.feed_forward.activation == "gelu"
    assert folder.family.fields(folder.model)["hidden_act"] == "gelu_python"


# What is refused


@pytest.mark.parametrize(
    ("layout", "keys"),
    [("llama", {"rms_norm_eps": 10**400}),
     ("llama", {"rms_norm_eps": -1}),
     ("gemma2", {"query_pre_attn_scalar": 0}), ("gemma2", {"query_pre_attn_scalar": -4}),
     ("qwen2", {"layer_types": 5}), ("llama", {"rope_parameters": {"rope_theta": 0}}),
     ("llama3", {"rope_parameters": {"rope_type": "llama3", "factor": 0}}),
     ("bert_cls", {"num_labels": 2**39, "id2label": {}}),
     ("bert", {"quantization_config": {"bits": 4}}),
     ("marian", {"max_position_embeddings": 2**24}), ("gpt2", {"model_type": ...}),
     ("bert_multi", {"problem_type": "regression"}), ("llama_cls", {"pad_token_id": 97}),
     ("gpt2_multi", {"pad_token_id": -1}), ("bert_cls", {"id2label": 3})],
    ids=str,
)  # fmt: skip
def test_values_that_cannot_be_are_one_line_and_at_once(tmp_path, layout, keys):
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=r"^[^\n]*config.json[^\n]*$"):
        config_of(layout, tmp_path / "x", **keys)
    assert time.perf_counter() - start < 1.5


def test_weights_are_floating_point(tmp_path):
    name = "transformer.ln_f.bias"
    whole = lambda found: found | {name: np.zeros(32, np.int64)}
    with pytest.raises(CheckpointError, match=rf"{name} is I64: weights are"):
        open_hf_checkpoint(folder_of("gpt2", tmp_path / "x", tensors=whole))


def test_a_head_for_pairs_alone_is_named(tmp_path):
    names = [n for n in layouts.weights("bert") if n.startswith("cls.predictions")]
    with pytest.raises(CheckpointError, match="head only for pairs"):
        open_hf_checkpoint(folder_of("bert", tmp_path / "x", tensors=without(*names)))


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_configurations_are_ordinary_files_of_the_folder(tmp_path, name):
    folder = folder_of("gpt2", tmp_path / "x")
    (tmp_path / "secret.json").write_text((folder / "config.json").read_text())
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret.json")
    with pytest.raises(CheckpointError, match="link that leaves the folder"):
        HFRunDirectory(folder).read_config()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(CheckpointError, match="not a regular file"):
        HFRunDirectory(folder).read_config()


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not tell")
def test_parameters_stay_in_the_file_where_they_lie_in_it_as_in_memory(tmp_path, monkeypatch):
    """Bits are the same wherever a file begins; what is written to a parameter never reaches it."""
    monkeypatch.setattr(tensor_files, "_LARGE", 1)
    folder = folder_of("gpt2", tmp_path / "x")
    wanted = open_hf_checkpoint(folder).load()
    counts = {}
    for at in range(0, 64, 8):
        begin_at(folder, at)
        params = open_hf_checkpoint(folder).load()
        equal(params, wanted)
        counts[at] = sum(in_file(leaf, folder) for leaf in jax.tree.leaves(params))
    assert counts[0] > 0
    assert not any(number for at, number in counts.items() if at)


def in_file(leaf, folder):
    at = leaf.unsafe_buffer_pointer()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(number, 16) for number in line.split()[0].split("-"))
        if first <= at < last:
            return line.endswith(str(folder / "model.safetensors"))
    return False


def test_a_step_of_training_leaves_the_published_file_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(tensor_files, "_LARGE", 1)
    folder = folder_of("gpt2", tmp_path / "x")
    begin_at(folder, 0)
    before = (folder / "model.safetensors").read_bytes()
    params = open_hf_checkpoint(folder).load()
    wanted = jax.tree.map(lambda leaf: np.asarray(leaf) + 1, params)
    step = jax.jit(lambda params: jax.tree.map(lambda leaf: leaf + 1, params), donate_argnums=0)
    equal(jax.block_until_ready(step(params)), wanted)
    assert (folder / "model.safetensors").read_bytes() == before


def test_comparing_tied_tables_takes_no_memory_for_them(tmp_path):
    import tracemalloc

    table = np.ones((4000, 1000), np.float32)
    save_file({"a": table, "b": table.copy(), "c": table * 2}, tmp_path / "model.safetensors")
    found = tensor_files.open_tensors(tmp_path)
    tracemalloc.start()
    assert found.same("a", "b")
    assert not found.same("a", "c")
    assert tracemalloc.get_traced_memory()[1] < table.nbytes / 3
    tracemalloc.stop()


# What transformers reads, and what it does not


def test_mt5_never_scales_what_its_head_reads(tmp_path):
    """Neither as transformers 5 writes it nor as the published files say it."""
    for name, tied in (("a", True), ("b", False), ("c", ...)):
        keys = {"scale_decoder_outputs": ..., "tie_word_embeddings": tied}
        config = config_of("t5_gated", tmp_path / name, model_type="mt5", **keys)
        assert config.head.scale == 1.0
    assert config_of("t5", tmp_path / "d", scale_decoder_outputs=...).head.scale != 1.0


def test_t5_scales_what_its_head_reads_where_its_file_says_so_or_nothing(tmp_path):
    """Null is read as no, as transformers reads it."""
    for name, said, scaled in (("a", True, True), ("b", False, False), ("c", None, False),
                               ("d", ..., True)):  # fmt: skip
        config = config_of("t5", tmp_path / name, scale_decoder_outputs=said)
        assert (config.head.scale != 1.0) == scaled


# A layout, its buckets, and how many distances have one of their own.
T5_BUCKETS = [("t5", 16, 8), ("t5_encoder", 32, 8)]


@pytest.mark.parametrize(("layout", "buckets", "exact"), T5_BUCKETS)
def test_t5_may_have_as_many_buckets_as_distances(tmp_path, layout, buckets, exact):
    """A distance beyond those with a bucket of their own is enough."""

    def distance(number):
        keys = {
            "relative_attention_num_buckets": buckets,
            "relative_attention_max_distance": number,
        }
        return folder_of(layout, tmp_path / str(number), fields=lambda fields: fields | keys)

    for number in (buckets, exact + 1):
        positions = open_hf_checkpoint(distance(number)).model.config.positions
        assert (positions.num_buckets, positions.max_distance) == (buckets, number)
    folder = distance(exact)
    with pytest.raises(CheckpointError, match=f"{exact} hold one distance each: fewer than"):
        open_hf_checkpoint(folder)


def test_mt5_is_gated_where_its_file_does_not_say(tmp_path):
    config = config_of("t5_gated", tmp_path / "x", model_type="mt5", feed_forward_proj=...)
    assert (config.feed_forward.gated, config.feed_forward.activation) == (True, "gelu_tanh")


def test_t5_believes_the_parts_of_its_feed_forward_where_they_are_said_too(tmp_path):
    """transformers does the same, and its newer files hold all three keys."""
    for name, keys, wanted in (
        ("a", {"dense_act_fn": "silu"}, (True, "silu")),
        ("b", {"feed_forward_proj": "relu"}, (True, "gelu_tanh")),
        ("c", {"feed_forward_proj": "gated-silu", "dense_act_fn": ...}, (True, "silu")),
        ("d", {"dense_act_fn": "gelu"}, (True, "gelu")),
    ):
        ff = config_of("t5_gated", tmp_path / name, **keys).feed_forward
        assert (ff.gated, ff.activation) == wanted
    with pytest.raises(CheckpointError, match=r"dense_act_fn is \"tan\": known are"):
        config_of("t5", tmp_path / "e", dense_act_fn="tan")


def test_a_classifier_of_images_has_no_use_for_a_pooler(tmp_path):
    pooler = {f"vit.pooler.dense.{part}": np.ones(shape, np.float32)
              for part, shape in (("weight", (32, 32)), ("bias", 32))}  # fmt: skip
    plain = open_hf_checkpoint(folder_of("vit", tmp_path / "a"))
    more = open_hf_checkpoint(
        folder_of("vit", tmp_path / "b", tensors=lambda found: found | pooler)
    )
    assert more.model == plain.model
    assert not more.model.config.head.pooler
    equal(more.load(), plain.load())


@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
def test_a_classifier_of_texts_needs_its_pooler(tmp_path, problem):
    names = [f"bert.pooler.dense.{part}" for part in ("weight", "bias")]
    how = {"tensors": without(*names), "fields": lambda said: said | {"problem_type": problem}}
    with pytest.raises(CheckpointError, match=r"bert.pooler.dense.weight is missing"):
        open_hf_checkpoint(folder_of("bert_cls", tmp_path / "x", **how))


@pytest.mark.parametrize("layout", ["llama", "gpt2"])
def test_keys_of_any_name_are_only_keys(tmp_path, layout):
    strange = {"self": 1, "usual": 2, "values": 3}
    plain = open_hf_checkpoint(folder_of(layout, tmp_path / "a"))
    found = open_hf_checkpoint(
        folder_of(layout, tmp_path / "b", fields=lambda said: said | strange)
    )
    assert found.model == plain.model


def test_what_was_asked_for_is_known_where_it_is_missing_too():
    fields = ConfigReader({})
    fields.whole("a", default=3)
    fields.number("b", default=0.5)
    fields.flag("c", True)
    assert fields.asked == {"a": 3, "b": 0.5, "c": True}


def test_each_family_reads_its_own_key_of_the_activation(tmp_path):
    """The other one is in some files, and read by nobody."""
    gemma = config_of("gemma2", tmp_path / "a", hidden_activation=..., hidden_act="relu")
    assert gemma.feed_forward.activation == "gelu_tanh"
    llama = config_of("llama", tmp_path / "b", hidden_act=..., hidden_activation="relu")
    assert llama.feed_forward.activation == "silu"


@pytest.mark.parametrize("layout", ["gpt2", "bert_cls", "roberta", "bart"])
def test_a_tokenizer_with_more_ids_than_embeddings_is_refused(tmp_path, layout, capfd):
    from tests.opened import load
    from transformer_jax.data.tokenizer import train_tokenizer

    text = "".join(chr(200 + i) for i in range(120))
    folder = folder_of(layout, tmp_path / "x")
    names = ("<s>", "<pad>", "</s>", "<unk>")
    train_tokenizer("characters", [text], 130, special=names).save(folder / "tokenizer.json")
    kinds = ("encoder", "encoder-task", "decoder", "encoder-decoder")
    with pytest.raises(CheckpointError, match=r"has \d+ tokens but the model 97"):
        load(folder, kind=kinds)
    assert main(["convert", str(folder), str(tmp_path / "run")]) == 4
    assert "tokens but the model 97" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_positions_that_count_from_padding_go_with_the_id_of_padding(tmp_path):
    """RoBERTa finds its first position by the id of padding: no other id can be written."""
    folder = open_hf_checkpoint(folder_of("roberta", tmp_path / "x"))
    params = folder.load()
    with pytest.raises(ConfigError, match=r"pad_token_id 1 .* the tokenizer has 3"):
        write_folder(tmp_path / "y", folder.model, params, ids={"pad_token_id": 3})
    write_folder(tmp_path / "y", folder.model, params, ids={"pad_token_id": 1})


# Folders and runs


def test_what_is_published_is_told_from_a_run(tmp_path):
    folder = folder_of("gpt2", tmp_path / "a")
    assert is_hf_checkpoint(folder)
    (folder / "checkpoints").mkdir()
    assert is_hf_checkpoint(folder)
    assert isinstance(open_directory(folder), HFRunDirectory)
    run = tmp_path / "run"
    run.mkdir()
    fields = {"model": {"width": 8}, "published": {"fields": {"model_type": "gpt2"}}}
    (run / "config.json").write_text(json.dumps(fields))
    assert not is_hf_checkpoint(run)
    nameless = folder_of("gpt2", tmp_path / "b", fields=without("model_type"))
    with pytest.raises(CheckpointError, match="model_type is missing: known are bert"):
        HFRunDirectory(nameless).read_config()
    assert is_hf_checkpoint(nameless)
    assert not is_hf_checkpoint("9" * 300)


def test_decoding_is_said_by_its_own_file_alone(tmp_path):
    """transformers does the same: keys of config.json count without the other file."""
    folder = folder_of("bart", tmp_path / "x", fields=lambda f: f | {"num_beams": 4})
    said = lambda: HFRunDirectory(folder).read_config()["published"]["generation"]
    assert said()["num_beams"] == 4
    (folder / "generation_config.json").write_text('{"max_length": 7, "eos_token_id": null}')
    assert said() == {"max_length": 7, "eos_token_id": None}


@pytest.mark.slow
def test_published_checkpoints_are_never_deleted(tmp_path, capfd):
    """Not by converting over them, or over itself, and not with --overwrite."""
    from transformer_jax.data.tokenizer import train_tokenizer

    one, two = (folder_of("gpt2", tmp_path / name) for name in ("one", "two"))
    for folder in (one, two):
        train_tokenizer("characters", ["abc"], 20, special=("<s>", "<pad>", "</s>", "<unk>")).save(
            folder / "tokenizer.json"
        )
    before = {path: path.read_bytes() for path in (*one.iterdir(), *two.iterdir())}
    for given in (
        ["convert", one, two], ["convert", one, one], ["convert", one, two, "--overwrite"],
        ["export", one, one, "--overwrite"], ["export", one, tmp_path, "--overwrite"],
    ):  # fmt: skip
        assert main([str(word) for word in given]) == 2
    with pytest.raises(ConfigError, match="never deleted"):
        RunDirectory.create(two, overwrite=True)
    assert {path: path.read_bytes() for path in before} == before
    assert main(["convert", str(one), str(tmp_path / "run")]) == 0
    assert main(["export", str(one), str(tmp_path / "run"), "--overwrite"]) == 2
    assert main(["verify", str(tmp_path / "run")]) == 0
    # What an earlier export wrote gives way as a whole.
    out = str(tmp_path / "out")
    assert main(["export", str(one), out, "--max-shard-size", "2e-5"]) == 0
    assert main(["export", str(one), out, "--overwrite", "--dtype", "bfloat16"]) == 0
    assert not list((tmp_path / "out").glob("*index*"))
    assert main(["verify", out]) == 0
    # Half as wide as they were read, they are written so again.
    assert main(["export", out, str(tmp_path / "again")]) == 0
    both = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again")]
    assert both[0] == both[1]
    capfd.readouterr()
