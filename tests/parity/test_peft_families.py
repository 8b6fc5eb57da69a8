"""Adapters of PEFT of every family and head give PEFT's outputs (row B39)."""

import copy

import numpy as np
import pytest

from tests.parity.ours import compute
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.interop.hf_checkpoint import open_hf_checkpoint
from transformer_jax.interop.peft import read_peft
from transformer_jax.interop.peft_modules import untied
from transformer_jax.training.adapter_parts import merge_adapter

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

SPECIAL = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "max_position_embeddings": 40, **SPECIAL,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, **SIZES}
SIDES = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 24))
}
BART = {"d_model": 16, "max_position_embeddings": 40, "decoder_start_token_id": 2} | SIDES | SPECIAL
T5 = {
    "vocab_size": 60, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 40, **SPECIAL}
DISTILBERT = {
    "vocab_size": 60, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24,
    "max_position_embeddings": 40, "pad_token_id": 0,
}  # fmt: skip
VIT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24,
    "image_size": 16, "patch_size": 8, "num_labels": 3,
}  # fmt: skip

# The class, its configuration, and the arguments of the adapter: targets, and what else there is.
CASES = [
    ("RobertaForSequenceClassification", SIZES, "query value", {"task_type": "SEQ_CLS"}),
    ("RobertaForMaskedLM", SIZES, "query lm_head.decoder", {}),
    ("RobertaForMaskedLM", SIZES, "query", {"modules_to_save": ["lm_head"]}),
    ("RobertaForMaskedLM", SIZES, "dense", {}),
    ("BertModel", SIZES, "dense", {}),
    ("MPNetForMaskedLM", SIZES | {"pad_token_id": 1}, "q v o lm_head.decoder", {}),
    ("BertForSequenceClassification", SIZES, "all-linear",
     {"task_type": "SEQ_CLS", "init_lora_weights": "pissa"}),
    ("BertForTokenClassification", SIZES, "query", {"task_type": "TOKEN_CLS"}),
    ("BertForQuestionAnswering", SIZES, "query", {"task_type": "QUESTION_ANS"}),
    ("BertForSequenceClassification", SIZES, "query classifier", {}),
    ("DistilBertForSequenceClassification", DISTILBERT, "q_lin v_lin", {"task_type": "SEQ_CLS"}),
    ("ElectraForMaskedLM", SIZES | {"embedding_size": 12}, "query generator_lm_head",
     {"init_lora_weights": "olora"}),
    ("GPT2LMHeadModel", GPT2, "all-linear", {"init_lora_weights": "pissa"}),
    ("GPT2LMHeadModel", GPT2, "wpe wte", {}),
    ("Phi3ForCausalLM", GROUPED, "qkv_proj gate_up_proj", {"init_lora_weights": "pissa"}),
    ("GemmaForCausalLM", GROUPED | {"head_dim": 4}, "q_proj embed_tokens", {}),
    ("Gemma2ForCausalLM", GROUPED | {"head_dim": 4}, "q_proj", {"modules_to_save": ["lm_head"]}),
    ("Qwen3ForCausalLM", GROUPED | {"head_dim": 4}, "all-linear", {"init_lora_weights": "olora"}),
    ("MistralForCausalLM", GROUPED, "q_proj lm_head", {"use_dora": True}),
    # PEFT ties adapters of tables that it knows by name; each has a scale of its own.
    ("MistralForCausalLM", GROUPED | {"tie_word_embeddings": True}, "q_proj embed_tokens",
     {"ensure_weight_tying": True, "alpha_pattern": {"lm_head": 3}}),
    ("BertForMaskedLM", SIZES, "query word_embeddings predictions.decoder",
     {"ensure_weight_tying": True, "use_rslora": True}),
    ("BartForConditionalGeneration", BART, "q_proj lm_head", {}),
    ("BartForConditionalGeneration", BART, "fc1 out_proj", {"init_lora_weights": "pissa"}),
    ("BartForConditionalGeneration", BART, "fc1", {"trainable_token_indices": [3, 7]}),
    ("MarianMTModel", BART, "fc1 lm_head", {}),
    ("M2M100ForConditionalGeneration", BART, "q_proj fc2", {"trainable_token_indices": [3, 7]}),
    ("T5ForConditionalGeneration", T5, "q", {"trainable_token_indices": [3, 7]}),
    ("T5ForConditionalGeneration", T5, "q relative_attention_bias", {}),
    ("ViTForImageClassification", VIT, "q_proj o_proj fc1 fc2",
     {"modules_to_save": ["classifier", "layernorm_before"], "init_lora_weights": "pissa"}),
]  # fmt: skip


def drawn(name, sizes):
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**sizes))
    with torch.no_grad():
        for at, p in model.named_parameters():
            if "embed_positions" not in at or "Marian" not in name:
                p.add_(0.1 * torch.randn_like(p))
    return model.eval()


def adapted(model, targets, more, folder):
    """A model with an adapter that PEFT made, stored and loaded."""
    wanted = targets if targets == "all-linear" else targets.split()
    config = peft.LoraConfig(r=4, target_modules=wanted, **more)
    made = peft.get_peft_model(copy.deepcopy(model), config)
    with torch.no_grad():
        for at, p in made.named_parameters():
            if any(part in at for part in ("lora_", "modules_to_save", "trainable_tokens")):
                p.add_(0.1 * torch.randn_like(p))
    made.save_pretrained(folder)
    return peft.PeftModel.from_pretrained(copy.deepcopy(model), folder).eval()


def inputs_of(model):
    draw = np.random.default_rng(0)
    if "pixel" in model.main_input_name:
        return {"pixel_values": draw.standard_normal((2, 3, 16, 16)).astype(np.float32)}
    ids = draw.integers(5, 60, (2, 7))
    found = {"input_ids": ids, "attention_mask": np.ones((2, 7), np.int64)}
    if model.config.is_encoder_decoder:
        found["decoder_input_ids"] = draw.integers(5, 60, (2, 6))
    return found


def opened(model, folder):
    model.save_pretrained(folder)
    checkpoint = open_hf_checkpoint(folder)
    params = checkpoint.load()
    leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
    return checkpoint, params, leaves


@pytest.mark.parametrize("case", CASES, ids=[f"{c[0]}-{c[2]}-{i}" for i, c in enumerate(CASES)])
def test_an_adapter_of_each_family_gives_what_peft_gives(case, tmp_path):
    name, sizes, targets, more = case
    model = drawn(name, sizes)
    inputs = inputs_of(model)
    theirs = adapted(model, targets, more, tmp_path / "adapter")
    with torch.no_grad():
        expected = theirs(**{key: torch.tensor(value) for key, value in inputs.items()})
    checkpoint, params, leaves = opened(model, tmp_path / "base")
    adapter = read_peft(tmp_path / "adapter", checkpoint.family, checkpoint.model, leaves)
    whole, described = merge_adapter(adapter, params), checkpoint.model
    if "head/table" in adapter.itself and "head/table" not in leaves:
        described = untied(described)
    if described.kind == "decoder":
        inputs["position_ids"] = np.tile(np.arange(7), (2, 1))
    for key, found in compute(described, whole, inputs).items():
        wanted = expected[key].numpy()
        np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("targets", "more"),
    [("fc1", {"modules_to_save": ["shared"]}), ("fc1 embed_tokens", {}),
     ("fc1", {"modules_to_save": ["lm_head"], "ensure_weight_tying": True})],
)  # fmt: skip
def test_one_of_the_modules_that_share_a_table_is_refused(targets, more, tmp_path):
    model = drawn("BartForConditionalGeneration", BART)
    adapted(model, targets, more, tmp_path / "adapter")
    checkpoint, _, leaves = opened(model, tmp_path / "base")
    with pytest.raises(ConfigError, match="one of several modules that share a table"):
        read_peft(tmp_path / "adapter", checkpoint.family, checkpoint.model, leaves)
