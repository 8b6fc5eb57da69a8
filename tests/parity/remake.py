"""Makes ``references/`` anew: ``python tests/parity/remake.py [NAME…]``.

With names of layouts, only theirs; what is stored of others stays. Needs torch and transformers.

``layouts.json`` holds configurations and names; ``outputs.npz`` what the models give for
:func:`layouts.inputs` in float64, in a few columns, and how far float32 is from that.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
import transformers as hf

sys.path.insert(0, str(Path(__file__).parent))
import layouts
from exact import exact

V = 97
COLUMNS = 12  # of the vocabulary, compared
BERT = {
    "vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 44,
}  # fmt: skip
ROBERTA = BERT | {"type_vocab_size": 1, "max_position_embeddings": 46}
DISTIL = {
    "vocab_size": V, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48,
    "max_position_embeddings": 44,
}  # fmt: skip
ELECTRA = BERT | {"embedding_size": 20}
MPNET = BERT | {"max_position_embeddings": 46}
MODERN = {
    "vocab_size": V, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 64, "local_attention": 12,
    "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3,
}  # fmt: skip
MODERN_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
GPT2 = {
    "vocab_size": V, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 44,
    "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
}  # fmt: skip
BART = {
    "vocab_size": V, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 64, "max_position_embeddings": 44,
}  # fmt: skip
MARIAN = BART | {
    "scale_embedding": True, "activation_function": "swish", "pad_token_id": V - 1,
    "decoder_start_token_id": V - 1, "eos_token_id": 0, "forced_eos_token_id": 0,
}  # fmt: skip
T5 = {
    "vocab_size": V, "d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 2,
    "num_decoder_layers": 3, "num_heads": 4, "decoder_start_token_id": 0,
}  # fmt: skip
LLAMA = {
    "vocab_size": V, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
}  # fmt: skip
# Inputs are longer than the training was, where angles depend on it.
YARN = {
    "rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.2,
    "original_max_position_embeddings": 24,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.0, 4.0],
    "partial_rotary_factor": 0.75,
}  # fmt: skip
HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
OPT = {
    "vocab_size": V, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 44, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2,
}  # fmt: skip
MIXED = ("full", "sliding", "sliding", "full")
VIT = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
CROSS = {"is_decoder": True, "add_cross_attention": True}
MULTI = {"num_labels": 4, "problem_type": "multi_label_classification"}
TOWER = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
READS = TOWER | {
    "vocab_size": V, "max_position_embeddings": 20, "eos_token_id": V - 1, "bos_token_id": 0,
    "pad_token_id": 1,
}  # fmt: skip
SEES = TOWER | {"image_size": 32, "patch_size": 8}
MODELS = {
    "bert": (hf.BertForPreTraining, hf.BertConfig(**BERT)),
    "bert_mlm": (hf.BertForMaskedLM, hf.BertConfig(**BERT, hidden_act="gelu_new")),
    "bert_bare": (hf.BertModel, hf.BertConfig(**BERT)),
    "bert_cls": (hf.BertForSequenceClassification, hf.BertConfig(**BERT, num_labels=3)),
    "bert_multi": (hf.BertForSequenceClassification, hf.BertConfig(**BERT, **MULTI)),
    "bert_tag": (hf.BertForTokenClassification, hf.BertConfig(**BERT, num_labels=5)),
    "bert_qa": (hf.BertForQuestionAnswering, hf.BertConfig(**BERT)),
    "roberta": (hf.RobertaForMaskedLM, hf.RobertaConfig(**ROBERTA)),
    "roberta_cls": (
        hf.RobertaForSequenceClassification, hf.RobertaConfig(**ROBERTA, num_labels=3)
    ),
    "camembert": (hf.CamembertForMaskedLM, hf.CamembertConfig(**ROBERTA, hidden_act="relu")),
    "camembert_tag": (
        hf.CamembertForTokenClassification, hf.CamembertConfig(**ROBERTA, num_labels=5)
    ),
    "distilbert": (hf.DistilBertForMaskedLM, hf.DistilBertConfig(**DISTIL)),
    "distilbert_cls": (
        hf.DistilBertForSequenceClassification, hf.DistilBertConfig(**DISTIL, num_labels=2)
    ),
    "electra": (hf.ElectraForPreTraining, hf.ElectraConfig(**ELECTRA, hidden_act="relu")),
    "electra_mlm": (hf.ElectraForMaskedLM, hf.ElectraConfig(**ELECTRA, hidden_act="relu")),
    "electra_bare": (hf.ElectraModel, hf.ElectraConfig(**ELECTRA)),
    "electra_cls": (
        hf.ElectraForSequenceClassification,
        hf.ElectraConfig(**ELECTRA | {"embedding_size": 32}, num_labels=3),
    ),
    "mpnet": (hf.MPNetForMaskedLM, hf.MPNetConfig(**MPNET, hidden_act="relu")),
    "mpnet_bare": (hf.MPNetModel, hf.MPNetConfig(**MPNET)),
    "mpnet_cls": (
        hf.MPNetForSequenceClassification, hf.MPNetConfig(**MPNET, num_labels=3)
    ),
    "modernbert": (hf.ModernBertForMaskedLM, hf.ModernBertConfig(**MODERN)),
    "modernbert_cls": (
        hf.ModernBertForSequenceClassification,
        hf.ModernBertConfig(
            # A first token that is padding, of which cls makes a vector, sees some real ones.
            **MODERN | {"local_attention": 64}, num_labels=3, classifier_pooling="mean",
            classifier_activation="silu",
            norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True,
            layer_types=[f"{k}_attention" for k in MIXED], rope_parameters=MODERN_ROPE,
        ),
    ),
    "modernbert_tag": (
        hf.ModernBertForTokenClassification,
        hf.ModernBertConfig(**MODERN, num_labels=5, hidden_activation="gelu_new"),
    ),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2)),
    "gpt2_multi": (hf.GPT2ForSequenceClassification, hf.GPT2Config(**GPT2, **MULTI)),
    "bart": (hf.BartForConditionalGeneration, hf.BartConfig(**BART)),
    "mbart": (
        hf.MBartForConditionalGeneration,
        hf.MBartConfig(**BART, scale_embedding=True, decoder_start_token_id=3),
    ),
    "m2m_100": (
        hf.M2M100ForConditionalGeneration,
        hf.M2M100Config(**BART, forced_bos_token_id=7),
    ),
    "marian": (hf.MarianMTModel, hf.MarianConfig(**MARIAN)),
    "marian_unshared": (
        hf.MarianMTModel,
        hf.MarianConfig(**MARIAN | {
            "decoder_vocab_size": 83, "pad_token_id": 80, "decoder_start_token_id": 80,
            "activation_function": "relu", "share_encoder_decoder_embeddings": False,
        }),
    ),
    "pegasus": (
        hf.PegasusForConditionalGeneration,
        hf.PegasusConfig(
            **BART, scale_embedding=True, activation_function="relu", pad_token_id=0,
            decoder_start_token_id=0, eos_token_id=1, forced_eos_token_id=1,
        ),
    ),
    "t5": (
        hf.T5ForConditionalGeneration,
        hf.T5Config(
            **T5, relative_attention_num_buckets=16, relative_attention_max_distance=24
        ),
    ),
    "t5_gated": (
        hf.T5ForConditionalGeneration,
        hf.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
    "t5_encoder": (hf.T5EncoderModel, hf.T5Config(**T5, feed_forward_proj="gated-gelu")),
    "vit": (hf.ViTForImageClassification, hf.ViTConfig(**VIT, num_labels=5)),
    "vit_bare": (
        hf.ViTModel,
        hf.ViTConfig(**VIT, num_channels=1, qkv_bias=False, hidden_act="gelu_new"),
    ),
    "deit": (hf.DeiTForImageClassificationWithTeacher, hf.DeiTConfig(**VIT, num_labels=5)),
    "deit_one_head": (
        hf.DeiTForImageClassification, hf.DeiTConfig(**VIT, num_labels=3, qkv_bias=False)
    ),
    "deit_bare": (hf.DeiTModel, hf.DeiTConfig(**VIT, num_channels=1, pooler_act="relu")),
    "vit_gpt2": (
        hf.VisionEncoderDecoderModel,
        hf.VisionEncoderDecoderConfig(
            encoder=hf.ViTConfig(**VIT).to_dict(),
            decoder=hf.GPT2Config(**GPT2 | {"n_embd": 24}, **CROSS).to_dict(),
            decoder_start_token_id=0, eos_token_id=2, pad_token_id=1,
        ),
    ),
    "vit_gpt2_narrow": (
        hf.VisionEncoderDecoderModel,
        hf.VisionEncoderDecoderConfig(
            encoder=hf.ViTConfig(**VIT, num_channels=1, qkv_bias=False).to_dict(),
            decoder=hf.GPT2Config(
                **GPT2, **CROSS, n_inner=40, activation_function="relu", scale_attn_weights=False,
                tie_word_embeddings=False,
            ).to_dict(),
            decoder_start_token_id=0, eos_token_id=2, pad_token_id=1,
        ),
    ),
    "clip": (
        hf.CLIPModel,
        hf.CLIPConfig(
            text_config=READS | {"hidden_size": 32, "num_hidden_layers": 3},
            vision_config=SEES | {"hidden_size": 24}, projection_dim=18,
        ),
    ),
    "clip_gelu": (
        hf.CLIPModel,
        hf.CLIPConfig(
            text_config=READS | {"hidden_size": 24, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
            vision_config=SEES | {"hidden_size": 32, "hidden_act": "gelu", "num_channels": 1},
            projection_dim=32,
        ),
    ),
    "siglip": (
        hf.SiglipModel,
        hf.SiglipConfig(
            text_config=READS | {"hidden_size": 32, "projection_size": 24},
            vision_config=SEES | {"hidden_size": 24, "num_hidden_layers": 3},
        ),
    ),
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA)),
    "llama3": (
        hf.LlamaForCausalLM,
        hf.LlamaConfig(**LLAMA, tie_word_embeddings=True, rope_parameters=LLAMA3),
    ),
    "llama_cls": (
        hf.LlamaForSequenceClassification, hf.LlamaConfig(**LLAMA, num_labels=3)
    ),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**LLAMA, sliding_window=7)),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**LLAMA)),
    "qwen3": (
        hf.Qwen3ForCausalLM, hf.Qwen3Config(**LLAMA, head_dim=16, tie_word_embeddings=True)
    ),
    "qwen3_number": (
        hf.Qwen3ForSequenceClassification, hf.Qwen3Config(**LLAMA, head_dim=16, num_labels=1)
    ),
    "gemma2_cls": (
        hf.Gemma2ForSequenceClassification,
        hf.Gemma2Config(**LLAMA, head_dim=16, sliding_window=7, num_labels=2),
    ),
    "gemma2": (
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config(**LLAMA, head_dim=16, sliding_window=7, query_pre_attn_scalar=20),
    ),
    "gemma2_full": (
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config(
            **LLAMA, head_dim=16, query_pre_attn_scalar=20, layer_types=["full_attention"] * 3
        ),
    ),
    "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig(**LLAMA, head_dim=16)),
    "qwen2_late": (
        hf.Qwen2ForCausalLM,
        hf.Qwen2Config(**LLAMA, use_sliding_window=True, sliding_window=7, max_window_layers=1),
    ),
    "qwen3_mixed": (
        hf.Qwen3ForCausalLM,
        hf.Qwen3Config(
            **LLAMA | {"num_hidden_layers": 4}, head_dim=16, use_sliding_window=True,
            sliding_window=5, layer_types=[f"{k}_attention" for k in MIXED],
        ),
    ),
    "llama_yarn": (hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA, head_dim=16, rope_parameters=YARN)),
    "llama_dynamic": (
        hf.LlamaForCausalLM,
        hf.LlamaConfig(
            **LLAMA | {"max_position_embeddings": 36},
            rope_parameters={"rope_type": "dynamic", "factor": 3.0},
        ),
    ),
    "phi3": (hf.Phi3ForCausalLM, hf.Phi3Config(**LLAMA, sliding_window=9)),
    "phi3_short": (
        hf.Phi3ForCausalLM,
        hf.Phi3Config(
            **LLAMA | {"max_position_embeddings": 256}, original_max_position_embeddings=64,
            rope_parameters=LONGROPE, tie_word_embeddings=True,
        ),
    ),
    "phi3_long": (
        hf.Phi3ForCausalLM,
        hf.Phi3Config(
            **LLAMA, original_max_position_embeddings=36, rope_parameters=LONGROPE
        ),
    ),
    "stablelm": (
        hf.StableLmForCausalLM,
        hf.StableLmConfig(**LLAMA, use_qkv_bias=True, rope_parameters=HALF),
    ),
    "starcoder2": (hf.Starcoder2ForCausalLM, hf.Starcoder2Config(**LLAMA, sliding_window=7)),
    "starcoder2_plain": (
        hf.Starcoder2ForCausalLM,
        hf.Starcoder2Config(
            **LLAMA, use_bias=False, hidden_act="gelu", tie_word_embeddings=False,
            rope_parameters=LLAMA3,
        ),
    ),
    "opt": (hf.OPTForCausalLM, hf.OPTConfig(**OPT)),
    "opt_post": (
        hf.OPTForCausalLM,
        hf.OPTConfig(
            **OPT, do_layer_norm_before=False, enable_bias=False, activation_function="gelu"
        ),
    ),
}  # fmt: skip


def describe(names: Collection[str]) -> dict:
    """The files that transformers writes for each model of these names; as stored for others."""
    found = {}
    for name, (cls, config) in MODELS.items():
        if name not in names:
            found[name] = layouts.LAYOUTS[name]
            continue
        with tempfile.TemporaryDirectory() as folder:
            cls(config).save_pretrained(folder)
            from safetensors import safe_open

            with safe_open(f"{folder}/model.safetensors", "np") as file:
                shapes = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
            fields = json.loads(Path(folder, "config.json").read_text())
        if name == "t5_gated":  # as the published 1.1 files: a head of its own
            shapes["lm_head.weight"] = [V, T5["d_model"]]
        fields.pop("transformers_version")
        found[name] = {"config": fields, "tensors": dict(sorted(shapes.items()))}
    return found


def outputs(name: str, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """The outputs of the model for the inputs of its layout."""
    cls, _ = MODELS[name]
    with tempfile.TemporaryDirectory() as folder:
        layouts.write(name, Path(folder))
        model, said = cls.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
        )
    wrong = {kind: names for kind, names in said.items() if names}
    if wrong:
        raise SystemExit(f"{name}: {wrong}")
    given = {key: torch.tensor(value) for key, value in layouts.inputs(name).items()}
    if "pixel_values" in given:
        given["pixel_values"] = given["pixel_values"].to(dtype)
    model = model.eval().to(dtype)
    with torch.no_grad(), exact() if dtype == torch.float64 else contextlib.nullcontext():
        out = model(**given)
    kinds = ("logits", "prediction_logits", "seq_relationship_logits", "start_logits",
             "end_logits", "pooler_output", "last_hidden_state", "logits_per_image",
             "image_embeds", "text_embeds")  # fmt: skip
    return {kind: out[kind].double().numpy() for kind in kinds if out.get(kind) is not None}


def main(*names: str) -> None:
    """Writes both files: what belongs to some layouts anew, or to all."""
    torch.set_num_threads(1)
    layouts.REFERENCES.mkdir(exist_ok=True)
    file, chosen = layouts.REFERENCES / "outputs.npz", names or tuple(MODELS)
    before = dict(np.load(file)) if names else {}
    layouts.LAYOUTS = describe(chosen)
    lines = [f'"{name}": {json.dumps(what)}' for name, what in layouts.LAYOUTS.items()]
    layouts.FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    stored = {}
    for name in MODELS:
        if name not in chosen:
            stored |= {key: value for key, value in before.items() if key.startswith(f"{name}/")}
            continue
        usual, true = outputs(name, torch.float32), outputs(name, torch.float64)
        for kind, value in true.items():
            wide = value.shape[-1] > 2 * COLUMNS
            columns = layouts.random(f"{name} columns").permutation(value.shape[-1])[:COLUMNS]
            stored[f"{name}/{kind}"] = value[..., np.sort(columns)] if wide else value
            error = np.abs(usual[kind] - value).max()
            stored[f"{name}/{kind}/error"] = error
            print(f"{name:16s} {kind:24s} {np.abs(value).max():8.3f} {error:.1e}")
    np.savez_compressed(file, **stored)


if __name__ == "__main__":
    main(*sys.argv[1:])
