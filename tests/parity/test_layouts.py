"""Published layouts give what transformers gives, and go back bit by bit.

The references are stored: ``remake.py`` makes them anew with torch and transformers.
"""

import dataclasses
import functools
import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.parity import layouts, ours
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.interop import hf_checkpoint as published
from transformer_jax.interop.export import hf_tensors, write_folder
from transformer_jax.interop.export_plan import choose_family, unscan_layers
from transformer_jax.interop.family import Model
from transformer_jax.interop.hf_checkpoint import abstract_model, open_hf_checkpoint
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    FeedForwardConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import PRESETS
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder

REFERENCES = np.load(layouts.REFERENCES / "outputs.npz")
LAYOUTS = list(layouts.LAYOUTS)
# One of each family, between them with every head.
QUICK = (
    "bert_mlm", "bert_qa", "roberta", "camembert_tag", "distilbert_cls", "electra", "mpnet", "gpt2",
    "modernbert_cls", "gpt2_multi", "llama_yarn", "qwen3_number", "gemma2", "phi3_short",
    "stablelm", "starcoder2", "opt_post", "bart", "marian_unshared", "t5_gated", "vit", "deit",
    "clip", "siglip",
)  # fmt: skip
# Of each kind of model, with the mechanisms in which they differ.
QUICK_OUTPUTS = ("bert_mlm", "gpt2_multi", "gemma2", "marian_unshared")
KINDS = [name for name in REFERENCES.files if not name.endswith("error")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    return lambda name: root / name if (root / name).exists() else layouts.write(name, root / name)


@pytest.fixture(scope="module")
def loaded(folders):
    @functools.cache
    def load(name):
        folder = open_hf_checkpoint(folders(name))
        return folder, folder.load()

    return load


def errors(name, model, params):
    """The distance of each output from the reference in float64, and the allowed one.

    No farther than 1e-5, or than twice what transformers itself is in float32.
    """
    far = {}
    model = layouts.in_context(name, model)
    for kind, value in ours.compute(model, params, layouts.inputs(name)).items():
        wanted = REFERENCES[f"{name}/{kind}"]
        if value.shape != wanted.shape:
            columns = layouts.random(f"{name} columns").permutation(value.shape[-1])
            value = value[..., np.sort(columns[: wanted.shape[-1]])]
        error = np.abs(value.astype(np.float64) - wanted)
        real = layouts.inputs(name).get("attention_mask", np.ones(0)).astype(bool)
        if error.shape[:2] == real.shape:
            error = error[real]
        far[kind] = error.max(), max(1e-5, 2 * float(REFERENCES[f"{name}/{kind}/error"]))
    return far


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.quick(*QUICK_OUTPUTS)
def test_layouts_give_what_transformers_gives(loaded, name):
    """Long inputs, padded right, left and in the middle."""
    folder, params = loaded(name)
    found = errors(name, folder.model, params)
    assert {f"{name}/{kind}" for kind in found} == {k for k in KINDS if k.startswith(f"{name}/")}
    for kind, (error, allowed) in found.items():
        assert error <= allowed, f"{kind}: {error:.2g}, allowed {allowed:.2g}"


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.quick(*QUICK)
def test_layouts_go_back_bit_by_bit(loaded, name):
    folder, params = loaded(name)
    back = hf_tensors(folder.family, folder.model, params)
    wanted = layouts.weights(name)
    assert back.keys() == wanted.keys()
    for tensor, value in wanted.items():
        assert back[tensor].dtype == value.dtype
        assert back[tensor].tobytes() == value.tobytes(), tensor


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.quick(*QUICK[::2])
def test_a_configuration_made_for_a_model_describes_it(loaded, name, tmp_path):
    """For a model trained here, which was never published."""
    folder, params = loaded(name)
    write_folder(tmp_path / name, folder.model, params)
    again = open_hf_checkpoint(tmp_path / name)
    assert abstract(again) == abstract(folder)
    jax.tree.map(np.testing.assert_array_equal, again.load(), params)
    if again.model != folder.model:  # the same by other words
        found = errors(name, again.model, params)
        assert all(error <= allowed for error, allowed in found.values())


def abstract(folder):
    return jax.tree.map(lambda leaf: leaf.shape, nnx.split(abstract_model(folder.model))[1])


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


# Each setting, a layout whose output tells it, and another value.
CHANGES = [
    ("vocab_size", "gpt2", 96),
    ("d_model", "gpt2", 28),
    ("encoder_layers", "bert", 1),
    ("decoder_layers", "gpt2", 2),
    ("decoder_vocab_size", "marian_unshared", 82),
    ("decoder_attention_heads", "bart", 4),
    ("decoder_ffn_dim", "bart", 48),
    ("embedding.scale", "marian", 1.0),
    ("embedding.scale", "gemma2", 1.0),
    ("embedding.layernorm_embedding", "bart", False),
    ("embedding.type_vocab_size", "bert", 0),
    ("embedding.embedding_size", "electra", None),
    ("embedding.embedding_size", "electra_cls", 16),
    ("embedding.share_encoder_decoder_embeddings", "marian", False),
    ("positions.kind", "marian", "sinusoidal"),
    ("positions.kind", "m2m_100", "sinusoidal_halves"),
    ("positions.kind", "llama", "none"),
    ("positions.kind", "mpnet", "learned"),
    ("positions.kind", "mpnet", "relative"),
    ("positions.max_length", "bert", 43),
    ("positions.offset", "bart", 0),
    ("positions.offset", "roberta", 1),
    ("positions.offset", "m2m_100", 0),
    ("positions.skip_padding", "roberta", False),
    slow("positions.skip_padding", "m2m_100", False),
    ("positions.rope_theta", "llama", 20_000.0),
    ("positions.rope_local_theta", "modernbert", None),
    slow("positions.rope_local_theta", "modernbert_cls", 200.0),
    ("positions.rope_scaling", "llama3", None),
    ("positions.rope_scaling", "llama3", (8.0, 1.0, 4.0, 32)),
    ("positions.rope_dim", "phi3_short", 4),
    ("positions.rope_yarn", "llama_yarn", None),
    slow("positions.rope_yarn", "llama_yarn", (5.0, 2.0, 0.2, 24, True)),
    slow("positions.rope_yarn", "llama_yarn", (4.0, 3.9, 0.2, 24, True)),
    slow("positions.rope_yarn", "llama_yarn", (4.0, 2.0, 0.1, 24, True)),
    slow("positions.rope_yarn", "llama_yarn", (4.0, 2.0, 0.2, 48, True)),
    slow("positions.rope_yarn", "llama_yarn", (4.0, 2.0, 0.2, 24, False)),
    ("positions.rope_dynamic", "llama_dynamic", None),
    slow("positions.rope_dynamic", "llama_dynamic", (2.0, 36)),
    slow("positions.rope_dynamic", "llama_dynamic", (3.0, 40)),
    ("positions.rope_short_factor", "phi3_short", (1.0, 1.1, 1.2)),
    ("positions.rope_long_factor", "phi3_long", (1.0, 2.0, 3.0)),
    slow("positions.rope_original_max_length", "phi3_short", 63),
    ("positions.rope_original_max_length", "phi3_long", 40),
    ("positions.rope_attention_factor", "llama_yarn", 1.0),
    slow("positions.rope_attention_factor", "phi3_short", 1.0),
    ("positions.rope_interpolation", "llama", 2.0),
    ("positions.num_buckets", "t5", 12),
    ("positions.max_distance", "t5", 32),
    ("attention.num_heads", "bert", 2),
    ("attention.num_kv_heads", "llama", 1),
    ("attention.head_dim", "t5", 8),
    ("attention.bias", "qwen2", False),
    ("attention.out_bias", "gpt2", False),
    ("attention.qk_norm", "qwen3", False),
    ("scores.scale", "t5", None),
    ("scores.scale", "gemma2", None),
    ("scores.attn_logit_softcapping", "gemma2", None),
    ("scores.sliding_window", "mistral", 8),
    ("scores.sliding_window_every", "gemma2", 1),
    ("scores.sliding_window_layers", "qwen2_late", (1,)),
    ("scores.full_attention_every", "modernbert", 2),
    slow("scores.sliding_window_layers", "qwen3_mixed", (0, 1, 2)),
    ("feed_forward.d_ff", "gpt2", 96),
    ("feed_forward.activation", "bert", "gelu_tanh"),
    ("feed_forward.activation", "gpt2", "gelu"),
    ("feed_forward.activation", "marian", "relu"),
    ("feed_forward.gated", "t5_gated", False),
    ("feed_forward.bias", "gpt2", False),
    ("norm.kind", "t5", "layer"),
    ("norm.placement", "gpt2", "post"),
    ("norm.placement", "gemma2", "pre"),
    ("norm.eps", "bert", 1e-5),
    ("norm.eps", "bart", 1e-6),
    ("norm.gain_offset", "gemma2", 0.0),
    ("norm.bias", "gpt2", False),
    ("norm.final", "mbart", False),
    ("norm.first", "modernbert", True),
    ("head.tie_word_embeddings", "llama3", False),
    ("head.bias", "marian", False),
    ("head.scale", "t5", 1.0),
    ("head.final_logit_softcapping", "gemma2", None),
    ("head.mlm_transform", "bert_mlm", False),
    ("head.mlm_transform_activation", "camembert", None),
    ("head.mlm_transform_activation", "camembert", "gelu_tanh"),
    ("head.mlm_transform_bias", "modernbert_cls", False),
    ("labels.transform", "modernbert_tag", False),
    ("labels.pooling", "modernbert_cls", "first"),
    ("head.pooler", "bert", False),
    ("head.pooler_activation", "distilbert_cls", "tanh"),
    ("head.pooler_activation", "vit_bare", "relu"),
    ("image.image_size", "vit", 0),
    ("image.image_size", "vit", 64),
    ("image.patch_size", "vit", 4),
    ("image.num_channels", "vit", 1),
    ("embedding.scale", "vit", None),
    ("attention.bias", "vit", False),
    ("feed_forward.activation", "vit", "gelu_tanh"),
    ("feed_forward.activation", "vit_bare", "gelu"),
    ("norm.eps", "vit", 1e-5),
    ("norm.final", "vit", False),
    ("norm.placement", "vit", "post"),
    ("image.distillation", "vit", "embedding"),
    ("image.distillation", "deit", "none"),
    ("image.stem", "vit", "convolutions"),
    ("image.pooling", "vit", "sequence"),
    ("image.patch_bias", "vit", False),
]
# What no published family sets, or what changes no result.
OTHERS = {
    "attention.value_dim", "attention.implementation", "attention.dropout", "embedding.dropout",
    "embedding.init",
    "feed_forward.activation_dropout", "norm.residual_dropout", "compute.dtype",
    "compute.scan_layers", "compute.remat", "compute.logits_dtype", "compute.logits_chunk",
    "mixer.kind", "mixer.cell", "mixer.kernel_size", "mixer.dilations",
    "mixer.bptt_length",
    "features.num_features", "features.stacked_frames", "image.stem_channels",
}  # fmt: skip


def changed(config, path, value):
    group, _, field = path.rpartition(".")
    if not group:
        return dataclasses.replace(config, **{field: value})
    inner = dataclasses.replace(getattr(config, group), **{field: value})
    return dataclasses.replace(config, **{group: inner})


@pytest.mark.parametrize(("path", "name", "value"), CHANGES)
@pytest.mark.quick(
    "norm.eps-bert-1e-05",
    "feed_forward.activation-gpt2-gelu",
    "norm.gain_offset-gemma2-0.0",
    "attention.bias-vit-False",
    "norm.final-mbart-False",
    "decoder_layers-gpt2-2",
)
def test_each_setting_matters(loaded, path, name, value):
    """Changed alone, it makes the test of its layout fail, or the parameters not fit."""
    folder, params = loaded(name)
    try:
        model = dataclasses.replace(folder.model, config=changed(folder.model.config, path, value))
        state = nnx.to_pure_dict(nnx.split(abstract_model(model))[1])
    except ConfigError:
        return
    shapes = lambda tree: jax.tree.map(lambda leaf: tuple(leaf.shape), tree)
    if shapes(state) != shapes(params):
        return
    found = errors(name, model, params)
    assert any(error > 2 * allowed for error, allowed in found.values()), found


def test_every_setting_has_a_change():
    changes = [getattr(case, "values", case) for case in CHANGES]
    assert make_paths() - {path for path, _, _ in changes} == OTHERS


def make_paths():
    found = set()
    for field in dataclasses.fields(TransformerConfig):
        if dataclasses.is_dataclass(field.default):
            inner = dataclasses.fields(field.default)
            found |= {f"{field.name}.{sub.name}" for sub in inner}
        else:
            found.add(field.name)
    return found


# Keys of each Hugging Face configuration, and another value.
KEYS = {
    "bert": {"hidden_act": "relu", "hidden_size": 64, "intermediate_size": 40,
             "layer_norm_eps": 1e-5, "max_position_embeddings": 40, "num_attention_heads": 2,
             "num_hidden_layers": 3, "type_vocab_size": 3, "vocab_size": 90, "is_decoder": True,
             "position_embedding_type": "relative_key", "model_type": "roberta",
             "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2},
    "bert_cls": {"id2label": {"0": "a", "1": "b"}, "architectures": ["BertForMaskedLM"]},
    "bert_multi": {"problem_type": "single_label_classification",
                   "id2label": {"0": "a", "1": "b"}},
    "gpt2_multi": {"problem_type": None, "n_positions": 40,
                   "architectures": ["GPT2ForTokenClassification"]},
    "llama_cls": {"problem_type": "multi_label_classification", "rms_norm_eps": 1e-5,
                  "architectures": ["LlamaForQuestionAnswering"], "id2label": {"0": "a"}},
    "qwen3_number": {"problem_type": "multi_label_classification"},
    "roberta": {"pad_token_id": 2, "max_position_embeddings": 45},
    "distilbert": {"activation": "relu", "dim": 64, "n_heads": 2, "n_layers": 2, "hidden_dim": 40,
                   "dropout": 0.2, "attention_dropout": 0.2},
    "gpt2": {"activation_function": "gelu", "n_embd": 16, "n_head": 2, "n_inner": 64, "n_layer": 2,
             "n_positions": 40, "layer_norm_epsilon": 1e-6, "scale_attn_weights": False,
             "scale_attn_by_inverse_layer_idx": True, "add_cross_attention": True,
             "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2},
    "bart": {"activation_function": "relu", "d_model": 16, "decoder_attention_heads": 4,
             "decoder_ffn_dim": 48, "decoder_layers": 2, "encoder_attention_heads": 2,
             "encoder_ffn_dim": 64, "encoder_layers": 3, "max_position_embeddings": 40,
             "scale_embedding": True, "normalize_before": True, "add_final_layer_norm": True,
             "dropout": 0.2, "attention_dropout": 0.2, "activation_dropout": 0.2},
    "m2m_100": {"activation_function": "gelu", "pad_token_id": 2, "scale_embedding": False,
                "max_position_embeddings": 40, "normalize_before": False, "dropout": 0.2,
                "attention_dropout": 0.2, "activation_dropout": 0.2, "model_type": "nllb-moe",
                "tie_word_embeddings": False},
    "marian": {"share_encoder_decoder_embeddings": False, "max_position_embeddings": 40,
               "scale_embedding": False},
    "marian_unshared": {"decoder_vocab_size": 82, "share_encoder_decoder_embeddings": True},
    "t5": {"d_ff": 40, "d_kv": 8, "d_model": 16, "dense_act_fn": "gelu_new", "is_gated_act": True,
           "layer_norm_epsilon": 1e-5, "num_decoder_layers": 2, "num_heads": 2, "num_layers": 3,
           "relative_attention_max_distance": 64, "relative_attention_num_buckets": 32,
           "scale_decoder_outputs": False, "dropout_rate": 0.2},
    "t5_gated": {"dense_act_fn": "silu"},
    "t5_encoder": {"architectures": ["T5ForConditionalGeneration"], "num_layers": 1,
                   "relative_attention_num_buckets": 16, "dense_act_fn": "relu"},
    "electra": {"embedding_size": 32, "hidden_size": 64, "hidden_act": "gelu",
                "intermediate_size": 40, "layer_norm_eps": 1e-5, "num_attention_heads": 2,
                "num_hidden_layers": 3, "type_vocab_size": 3, "vocab_size": 90,
                "max_position_embeddings": 40, "is_decoder": True, "hidden_dropout_prob": 0.2},
    "electra_cls": {"embedding_size": None, "problem_type": "multi_label_classification",
                    "architectures": ["ElectraForTokenClassification"]},
    "mpnet": {"hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 40,
              "layer_norm_eps": 1e-5, "max_position_embeddings": 40, "num_attention_heads": 2,
              "num_hidden_layers": 3, "vocab_size": 90, "pad_token_id": 0,
              "relative_attention_num_buckets": 16, "hidden_dropout_prob": 0.2,
              "attention_probs_dropout_prob": 0.2},
    "modernbert": {"vocab_size": 90, "hidden_size": 64, "num_hidden_layers": 3, "norm_eps": 1e-6,
                   "num_attention_heads": 2, "intermediate_size": 40, "local_attention": 8,
                   "hidden_activation": "relu", "classifier_activation": "relu",
                   "norm_bias": True, "attention_bias": True, "mlp_bias": True,
                   "decoder_bias": False, "classifier_bias": True, "embedding_dropout": 0.1,
                   "attention_dropout": 0.1, "mlp_dropout": 0.1, "max_position_embeddings": 60,
                   "layer_types": ["full_attention"] * 4, "rope_scaling": {"rope_type": "yarn"},
                   "rope_parameters": {"sliding_attention": {"rope_theta": 77.0}}},
    "modernbert_cls": {"classifier_pooling": "cls", "id2label": {"0": "a", "1": "b"},
                       "rope_parameters": {"full_attention": {"rope_theta": 77.0}}},
    "camembert": {"hidden_act": "gelu_new", "pad_token_id": 2, "type_vocab_size": 2},
    "camembert_tag": {"architectures": ["CamembertForMaskedLM"]},
    "llama": {"attention_bias": True, "head_dim": 16, "hidden_act": "gelu", "mlp_bias": True,
              "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 60,
              "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
              "partial_rotary_factor": 0.5, "attention_dropout": 0.2},
    "llama3": {"rope_parameters": {"rope_type": "yarn", "factor": 8.0},
               "original_max_position_embeddings": 32},
    "llama_dynamic": {"max_position_embeddings": 40},
    "mistral": {"sliding_window": None},
    "qwen2": {"layer_types": ["sliding_attention"] * 3},
    "qwen2_late": {"use_sliding_window": False, "sliding_window": 6,
                   "layer_types": ["full_attention"] * 3},
    "gemma": {"hidden_act": "silu", "rms_norm_eps": 1e-5, "head_dim": 8, "attention_bias": True,
              "use_bidirectional_attention": True, "max_position_embeddings": 60},
    "phi3": {"sliding_window": None, "hidden_act": "gelu", "rms_norm_eps": 1e-4,
             "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attention_dropout": 0.2,
             "num_key_value_heads": 4, "max_position_embeddings": 60},
    "phi3_short": {"original_max_position_embeddings": 63, "max_position_embeddings": 128},
    "opt": {"activation_function": "gelu", "ffn_dim": 40, "hidden_size": 16,
            "num_attention_heads": 2, "num_hidden_layers": 2, "max_position_embeddings": 40,
            "do_layer_norm_before": False, "_remove_final_layer_norm": True, "enable_bias": False,
            "word_embed_proj_dim": 16, "layer_norm_elementwise_affine": False, "dropout": 0.2,
            "attention_dropout": 0.2},
    "starcoder2": {"hidden_act": "gelu", "hidden_size": 16, "intermediate_size": 40,
                   "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 4,
                   "head_dim": 16, "use_bias": False, "norm_epsilon": 1e-6, "sliding_window": 6,
                   "max_position_embeddings": 60, "tie_word_embeddings": False,
                   "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
                   "partial_rotary_factor": 0.5, "embedding_dropout": 0.2,
                   "attention_dropout": 0.2, "residual_dropout": 0.2},
    "gemma2": {"attn_logit_softcapping": None, "final_logit_softcapping": 20.0,
               "hidden_activation": "silu", "query_pre_attn_scalar": 16, "sliding_window": 6,
               "layer_types": ["full_attention"] * 3},
    "vit": {"image_size": 64, "patch_size": 4, "num_channels": 1, "hidden_act": "relu",
            "hidden_size": 64, "intermediate_size": 40, "layer_norm_eps": 1e-5, "qkv_bias": False,
            "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_dropout_prob": 0.2,
            "attention_probs_dropout_prob": 0.2, "id2label": {"0": "a", "1": "b"},
            "problem_type": "multi_label_classification", "model_type": "bert"},
    "vit_bare": {"pooler_act": "relu", "pooler_output_size": 16, "qkv_bias": True},
    "deit": {"image_size": 64, "hidden_act": "relu", "id2label": {"0": "a", "1": "b"}},
    "clip": {"projection_dim": 20, "text_config": {"vocab_size": 97}, "vision_config": {}},
    "siglip": {"text_config": {"vocab_size": 97}, "vision_config": {"vision_use_head": False}},
    "deit_bare": {"pooler_act": "tanh", "pooler_output_size": 16, "qkv_bias": False},
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_each_published_key_is_read(folders, tmp_path, monkeypatch, name):
    """Changed alone, it is refused or describes another model."""
    here = folders(name)
    other = tmp_path / name
    other.mkdir()
    (other / "model.safetensors").hardlink_to(here / "model.safetensors")
    # Whether the tensors fit the model described is another question.
    monkeypatch.setattr(published, "_first_mismatch", lambda *_: None)
    described = open_hf_checkpoint(here).model
    for key, value in KEYS[name].items():
        fields = layouts.LAYOUTS[name]["config"] | {key: value}
        (other / "config.json").write_text(json.dumps(fields))
        try:
            found = open_hf_checkpoint(other).model
        except CheckpointError:
            found = None
        assert found != described, key


def test_old_names_are_read(loaded, tmp_path):
    """Norms called gamma and beta, buffers, and tied tables that are stored twice."""
    from safetensors.numpy import save_file

    def again(name, tensors):
        folder = layouts.write(name, tmp_path / name)
        save_file(tensors, folder / "model.safetensors")
        found = open_hf_checkpoint(folder)
        assert found.model == loaded(name)[0].model
        return found

    gamma = lambda key: re.sub("LayerNorm.weight$", "LayerNorm.gamma", key)
    beta = lambda key: re.sub("LayerNorm.bias$", "LayerNorm.beta", key)
    old = {gamma(beta(key)): value for key, value in layouts.weights("bert").items()}
    old["bert.embeddings.position_ids"] = np.arange(44)[None]
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"]
    old["cls.predictions.decoder.bias"] = old["cls.predictions.bias"]
    again("bert", old)
    old = layouts.weights("gpt2")
    for i in range(3):
        old[f"transformer.h.{i}.attn.bias"] = np.tril(np.ones((1, 1, 44, 44), np.uint8))
    again("gpt2", old | {"lm_head.weight": old["transformer.wte.weight"]})
    old = layouts.weights("marian")
    for name in ("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"):
        old[f"{name}.weight"] = old["model.shared.weight"]
    old["model.encoder.embed_positions.weight"] = np.zeros((44, 32), np.float32)
    again("marian", old)
    old = layouts.weights("m2m_100")
    old["lm_head.weight"] = old["model.shared.weight"]
    old["model.decoder.embed_positions.weights"] = np.zeros((46, 32), np.float32)
    again("m2m_100", old)


def test_gpt2_without_the_prefix_of_its_names(loaded, tmp_path):
    from safetensors.numpy import save_file

    folder = layouts.write("gpt2", tmp_path / "x")
    bare = {
        key.removeprefix("transformer."): value for key, value in layouts.weights("gpt2").items()
    }
    save_file(bare, folder / "model.safetensors")
    found = open_hf_checkpoint(folder)
    assert found.model.prefix == ""
    known = loaded("gpt2")[1]
    jax.tree.map(np.testing.assert_array_equal, found.load(), known)
    assert hf_tensors(found.family, found.model, known).keys() == bare.keys()


WRONG = [
    ("missing", lambda w: w.pop("transformer.ln_f.bias"), "transformer.ln_f.bias is missing"),
    ("more", lambda w: w.update({"transformer.extra": w["transformer.ln_f.bias"]}),
     "neither a parameter"),
    ("other head", lambda w: w.update({"transformer.h.7.ln_1.weight": w["transformer.ln_f.bias"]}),
     "neither a parameter"),
    ("shape", lambda w: w.update({"transformer.ln_f.bias": w["transformer.ln_f.bias"][:-1]}),
     "[31], but [32]"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_tensors_that_do_not_fit_are_refused(tmp_path, change, said):
    from safetensors.numpy import save_file

    folder = layouts.write("gpt2", tmp_path / "x")
    tensors = layouts.weights("gpt2")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"^[^\n]*$") as error:
        open_hf_checkpoint(folder)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "change",
    [{"vocab_size": 10**12}, {"n_embd": 10**9, "n_head": 1}, {"n_layer": 10**9},
     {"n_positions": 10**12}, {"n_inner": 10**12}, {"vocab_size": 1e3}, {"vocab_size": -1},
     {"vocab_size": True}, {"n_head": 5}, {"model_type": "evil", "auto_map": {"AutoModel": "x.y"}},
     {"n_layer": 10**30}, {"layer_norm_epsilon": "x"}, {"layer_norm_epsilon": float("nan")}],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused_at_once(tmp_path, change):
    import time

    folder = layouts.write("gpt2", tmp_path / "x")
    fields = layouts.LAYOUTS["gpt2"]["config"] | change
    (folder / "config.json").write_text(json.dumps(fields))
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=r"config.json[^\n]*$"):
        open_hf_checkpoint(folder)
    assert time.perf_counter() - start < 1


def test_a_key_twice_is_refused(tmp_path):
    folder = layouts.write("gpt2", tmp_path / "x")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("{", '{"n_layer": 3,', 1))
    with pytest.raises(CheckpointError, match="has a duplicate key, 'n_layer'"):
        open_hf_checkpoint(folder)


def test_what_no_family_has_is_not_published(loaded):
    folder, _ = loaded("gpt2")
    odd = dataclasses.replace(
        folder.model, config=changed(folder.model.config, "positions.kind", "alibi")
    )
    with pytest.raises(ConfigError, match=r"gpt2 has positions.kind learned instead of alibi"):
        choose_family(odd)


@pytest.mark.slow
@pytest.mark.parity
def test_references_are_what_transformers_gives_today(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    source = layouts.REFERENCES.parent
    code = (
        f"import sys; sys.path.insert(0, {str(source)!r}); import pathlib, layouts, remake\n"
        f"layouts.REFERENCES = pathlib.Path({str(tmp_path)!r})\n"
        f"layouts.FILE = layouts.REFERENCES / 'layouts.json'\n"
        f"remake.main()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600, capture_output=True)
    assert json.loads((tmp_path / "layouts.json").read_text()) == layouts.LAYOUTS
    new = np.load(tmp_path / "outputs.npz")
    assert new.files == REFERENCES.files
    for name in new.files:
        if not name.endswith("error"):
            np.testing.assert_allclose(new[name], REFERENCES[name], atol=1e-9)


@pytest.mark.parametrize("scan", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("place", "kind"), [pytest.param("post", "marian", marks=pytest.mark.slow), ("pre", "pegasus")]
)
@pytest.mark.slow
def test_translators_trained_here_are_published(tmp_path, place, kind, scan):
    """Vaswani's model has its sines and cosines in turns, and no biases: Marian has neither."""
    config = TransformerConfig(
        vocab_size=60, d_model=20, encoder_layers=2, decoder_layers=1,
        positions=PositionConfig(max_length=24),
        attention=AttentionConfig(num_heads=2, bias=False, out_bias=False),
        feed_forward=FeedForwardConfig(d_ff=28), norm=NormConfig(placement=place),
        compute=ComputeConfig(scan_layers=scan),
    )  # fmt: skip
    graph, state = nnx.split(TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)))
    noise = lambda path, leaf: leaf + 0.1 * layouts.random(str(path)).standard_normal(leaf.shape)
    params = jax.tree_util.tree_map_with_path(noise, nnx.to_pure_dict(state))
    params = jax.tree.map(jnp.float32, params)
    said = write_folder(tmp_path / "x", *unscan_layers(Model("encoder-decoder", config), params))
    assert said["model_type"] == kind
    folder = open_hf_checkpoint(tmp_path / "x")
    there = nnx.merge(nnx.split(abstract_model(folder.model))[0], folder.load())
    draw = layouts.random("translations")
    source, target = draw.randint(0, 60, (3, 20)), draw.randint(0, 60, (3, 15))
    lengths = jnp.array([20, 9, 15])
    given = (jnp.asarray(source), jnp.asarray(target), lengths)
    with jax.default_matmul_precision("highest"):
        ours, found = nnx.merge(graph, params)(*given), there(*given)
    np.testing.assert_allclose(found, ours, atol=3e-6)


@pytest.mark.slow
def test_a_language_model_without_biases_is_published(tmp_path):
    config = dataclasses.replace(
        PRESETS["nanogpt_char"], vocab_size=60, d_model=24, decoder_layers=2
    )
    config = changed(changed(config, "attention.num_heads", 2), "feed_forward.d_ff", 40)
    graph, state = nnx.split(Decoder(config, rngs=nnx.Rngs(0)))
    params = nnx.to_pure_dict(state)
    assert write_folder(tmp_path / "x", Model("decoder", config), params)["model_type"] == "gpt2"
    folder = open_hf_checkpoint(tmp_path / "x")
    there = nnx.merge(nnx.split(abstract_model(folder.model))[0], folder.load())
    tokens = jnp.asarray(layouts.random("text").randint(0, 60, (2, 30)))
    np.testing.assert_allclose(there(tokens), nnx.merge(graph, params)(tokens), atol=2e-6)
