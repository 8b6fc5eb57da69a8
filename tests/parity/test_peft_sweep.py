"""A sweep of random adapters of PEFT: none differs from PEFT in silence (row B39)."""

import copy
import functools
import json
import os
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.opened import load
from transformer_jax.core.errors import UserError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.inference.merging import write_with_adapter
from transformer_jax.interop.hf_checkpoint import abstract_model, open_hf_checkpoint
from transformer_jax.interop.peft import CONFIG, read_peft, write_peft
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

SEED = os.environ["SWEEP_SEED"]  # given, or drawn by conftest.py for all workers
CASES = int(os.environ.get("SWEEP_CASES", "60"))
V, T = 60, 7
TOKENS = np.random.default_rng(0).integers(5, V, (2, T)).astype(np.int32)

INITS = (True, False, None, "gaussian", "orthogonal", "eva", "mica", "pissa", "olora")
# What PEFT makes only with data or other packages, and what differs each time that PEFT loads it.
REFUSED = ("pissa_niter_4", "corda", "loftq", "lora_ga")

MAPS = {
    "gpt2": ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"),
    "llama": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "qwen2": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "opt": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    "t5": ("q", "k", "v", "o", "wo"),
    "bert": ("query", "key", "value", "intermediate.dense"),
}
# The table of words, the output layer, and a module of another kind.
PLACES = {
    "gpt2": ("wte", "lm_head", "ln_f"),
    "llama": ("embed_tokens", "lm_head", "model.norm"),
    "qwen2": ("embed_tokens", "lm_head", "model.norm"),
    "opt": ("embed_tokens", "lm_head", "final_layer_norm"),
    "t5": (None, "lm_head", "encoder.final_layer_norm"),
    "bert": ("word_embeddings", "predictions.decoder", "embeddings.LayerNorm"),
}
NOT_TAKEN = (ValueError, TypeError, KeyError, RuntimeError, AttributeError)  # PEFT's errors
CHANGES = (
    "none", "table", "head", "both", "save table", "save head", "save both",
    "save table, adapt head", "rows", "rows of head", "rows apart",
)  # fmt: skip
LAYERS = {"gpt2": "h", "llama": "layers", "qwen2": "layers", "opt": "layers", "bert": "layer"}


@functools.cache
def published(kind, tied):
    """A small model of transformers of random sizes, with numbers that hide nothing."""
    draw = random.Random(f"{SEED} {kind}")
    torch.manual_seed(draw.randrange(10**6))
    heads = draw.choice([2, 4])
    D, F, L = heads * draw.choice([4, 6]), draw.choice([20, 33]), 2
    common = {
        "vocab_size": V, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "tie_word_embeddings": tied,
    }  # fmt: skip
    sizes = {"hidden_size": D, "num_hidden_layers": L, "num_attention_heads": heads}
    t = transformers
    if kind == "gpt2":
        config = t.GPT2Config(
            n_embd=D, n_layer=L, n_head=heads, n_positions=32, n_inner=F, **common
        )
        model = t.GPT2LMHeadModel(config)
    elif kind == "opt":
        config = t.OPTConfig(
            ffn_dim=F, word_embed_proj_dim=D, max_position_embeddings=32, **sizes, **common
        )
        model = t.OPTForCausalLM(config)
    elif kind == "t5":
        config = t.T5Config(
            d_model=D, d_kv=4, d_ff=F, num_layers=L, num_heads=heads, decoder_start_token_id=0,
            **common,
        )  # fmt: skip
        model = t.T5ForConditionalGeneration(config)
    elif kind == "bert":
        more = {"intermediate_size": F, "max_position_embeddings": 32}
        model = t.BertForMaskedLM(t.BertConfig(**sizes, **more, **common))
    else:
        more = {"intermediate_size": F, "max_position_embeddings": 32, "num_key_value_heads": 2}
        name = {"llama": "Llama", "qwen2": "Qwen2"}[kind]
        model = getattr(t, f"{name}ForCausalLM")(
            getattr(t, f"{name}Config")(**sizes, **more, **common)
        )
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p + 0.1 * torch.randn_like(p))
        if kind == "bert":  # two names of one bias
            model.cls.predictions.decoder.bias.copy_(model.cls.predictions.bias)
    return model.eval()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Folder, checkpoint and parameters of a base, and its program, tied or not."""

    @functools.cache
    def make(kind, tied):
        folder = tmp_path_factory.mktemp(kind) / "base"
        published(kind, tied).save_pretrained(folder)
        words = ["um dois três quatro cinco seis"] * 3
        special = ("<pad>", "<s>", "</s>", "<unk>")
        train_tokenizer("wordpiece", words, 50, special=special).save(folder / "tokenizer.json")
        checkpoint = open_hf_checkpoint(folder)
        return folder, checkpoint, checkpoint.load()

    return make


@functools.cache
def program(model):
    graph = nnx.graphdef(abstract_model(model))

    def run(params):
        module, tokens = nnx.merge(graph, params), jnp.asarray(TOKENS)
        if model.kind == "encoder-decoder":
            return module(tokens, tokens, jnp.ones(tokens.shape, bool))
        if model.kind == "encoder":
            return module.mlm_logits(module(tokens, jnp.full(len(tokens), T)))
        return module(tokens)

    return jax.jit(run)


def their_logits(model):
    ids = torch.tensor(TOKENS.astype(np.int64))
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model.eval()(input_ids=ids, **more).logits.numpy()


def reloaded(kind, tied, folder):
    return peft.PeftModel.from_pretrained(copy.deepcopy(published(kind, tied)), folder)


def drawn_config(draw, kind, tied, init):
    """Arguments of a LoraConfig, which PEFT may refuse."""
    table, head, norm = PLACES[kind]
    maps = draw.sample(MAPS[kind], draw.randint(1, 3))
    rank = draw.choice([2, 4, 8, 16])
    given = {
        "r": rank, "lora_alpha": draw.choice([1, 4, 16, 24]), "init_lora_weights": init,
        "use_rslora": draw.random() < 0.3, "use_dora": draw.random() < 0.2,
        "lora_dropout": draw.choice([0.0, 0.1]), "fan_in_fan_out": kind == "gpt2",
        "ensure_weight_tying": draw.random() < 0.3,
    }  # fmt: skip
    if draw.random() < 0.3:
        given["rank_pattern"] = {maps[0]: 2 * rank}
    if draw.random() < 0.3:
        given["alpha_pattern"] = {rf".*{maps[-1]}": 3}
    change = draw.choice(CHANGES)
    targets = list(maps)
    saved = []
    if table is None:  # one table of several modules, which is refused
        change = {"head": "head", "save head": "save head"}.get(change, "none")
    if change in ("table", "both"):
        targets.append(table)
        given["use_dora"] = False
    if change in ("head", "both", "save table, adapt head"):
        targets.append(head)
    if change in ("save table", "save both", "save table, adapt head"):
        saved.append(table)
    if change in ("save head", "save both"):
        saved.append(head)
    # PEFT leaves the bias of an output layer out, unless its rows are merged.
    if change == "rows" and (kind != "bert" or not tied):
        given["trainable_token_indices"] = [3, 40]
    elif change == "rows of head" and kind != "bert":
        given["trainable_token_indices"] = {head: [3, 41]}
    elif change == "rows apart" and kind != "bert":
        given["trainable_token_indices"] = {table: [3, 40], head: [7]}
        given["ensure_weight_tying"] = False
    if draw.random() < 0.3:
        saved.append(norm)
    given["modules_to_save"] = saved or None
    shape = draw.choice(["names", "names", "pattern", "layers", "exclude"])
    if shape == "pattern":
        given["target_modules"] = rf".*\.({'|'.join(map(re.escape, targets))})|{head}"
        if head not in targets:
            given["target_modules"] = rf".*\.({'|'.join(map(re.escape, targets))})"
    else:
        given["target_modules"] = targets
        if shape == "layers" and kind in LAYERS and not {table, head} & set(targets):
            given["layers_to_transform"] = draw.choice([1, [0]])
            given["layers_pattern"] = draw.choice([None, LAYERS[kind]])
        elif shape == "exclude" and len(maps) > 1:
            given["exclude_modules"] = draw.choice([[maps[0]], rf".*{re.escape(maps[0])}"])
    return given


def without_effect(draw, fields):
    """The same configuration with other values of keys that change nothing of a stored adapter."""
    values = {
        "auto_mapping": {"base_model_class": "X", "parent_library": "y"}, "revision": "main",
        "base_model_name_or_path": "another/name", "inference_mode": False,
        "peft_version": "0.10.0", "lora_dropout": 0.5, "megatron_core": "other.core",
        "fan_in_fan_out": not fields["fan_in_fan_out"], "qalora_group_size": 3,
        "loftq_config": {"loftq_bits": 2, "loftq_iter": 3}, "eva_config": {"rho": 1.5},
        "corda_config": {}, "lora_ga_config": {},
        "runtime_config": {"ephemeral_gpu_offload": True},
    }  # fmt: skip
    keys = draw.sample(sorted(values), draw.randint(0, 4))
    return {**fields, **{key: values[key] for key in keys}}


def drawn_adapter(draw, kind, tied, init, folder):
    """Makes an adapter with PEFT, drawing configurations until PEFT takes one."""
    for _ in range(40):
        given = drawn_config(draw, kind, tied, init)
        try:
            model = peft.get_peft_model(
                copy.deepcopy(published(kind, tied)), peft.LoraConfig(**given)
            )
        except NOT_TAKEN:
            continue
        generator = torch.Generator().manual_seed(draw.randrange(10**6))
        with torch.no_grad():
            for name, p in model.named_parameters():
                if any(part in name for part in ("lora_", "modules_to_save", "trainable_tokens")):
                    p.add_(0.1 * torch.randn(p.shape, generator=generator))
        try:
            trained = their_logits(model)
        except RuntimeError:  # OLoRA of GPT-2's kernels that are not square
            continue
        model.save_pretrained(folder)
        fields = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps(without_effect(draw, fields)))
        try:
            expected = their_logits(reloaded(kind, tied, folder))
        except NOT_TAKEN:
            continue
        if np.allclose(trained, expected, atol=1e-4):  # else PEFT forgets some of it
            return given, expected
    pytest.fail(f"PEFT takes no configuration with {init}")


def merged_logits(adapter, checkpoint, params):
    whole = merge_adapter(adapter, params)
    new = "head/table" in flatten_dict(whole) and "head/table" not in flatten_dict(params)
    return np.asarray(program(untied(checkpoint.model) if new else checkpoint.model)(whole))


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("number", range(CASES))
def test_a_random_adapter_gives_what_peft_gives(base, tmp_path, number):
    """Read, merged and written again; every sixth by the command, as a run."""
    draw = random.Random(f"{SEED} adapter {number}")
    kind, tied = list(MAPS)[number % len(MAPS)], draw.random() < 0.5
    init = INITS[(number // len(MAPS) + number) % len(INITS)]
    given, expected = drawn_adapter(draw, kind, tied, init, tmp_path / "theirs")
    label = f"SWEEP_SEED={SEED}: {kind}, {'tied' if tied else 'untied'}: {given}"
    folder, checkpoint, params = base(kind, tied)
    leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
    how = (checkpoint.family, checkpoint.model, leaves)
    try:
        adapter = read_peft(tmp_path / "theirs", *how)
    except UserError as error:
        raise AssertionError(f"{label}: refused: {error}") from error
    try:
        close(merged_logits(adapter, checkpoint, params), expected)
        # A table that several modules of T5 share cannot be written as one of them.
        if not (kind == "t5" and "embedding/table" in adapter.itself):
            write_peft(tmp_path / "ours", adapter, *how)
            close(their_logits(reloaded(kind, tied, tmp_path / "ours")), expected)
        if number % 6 == number // 6 % 6 and kind in ("gpt2", "llama", "qwen2", "opt"):
            write_with_adapter(folder, tmp_path / "theirs", tmp_path / "run")
            (graph, own), _ = load(tmp_path / "run", kind="decoder")
            close(jax.jit(lambda p: nnx.merge(graph, p)(jnp.asarray(TOKENS)))(own), expected)
    except AssertionError as error:
        raise AssertionError(f"{label}: {error}") from None


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("init", REFUSED)
def test_an_adapter_whose_base_nobody_knows_is_refused(base, tmp_path, init, tied):
    draw = random.Random(f"{SEED} refused {init}")
    drawn_adapter(draw, "llama", tied, True, tmp_path)
    fields = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps({**fields, "init_lora_weights": init}))
    _, checkpoint, params = base("llama", tied)
    leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
    with pytest.raises(UserError, match=f"init_lora_weights is {init}"):
        read_peft(tmp_path, checkpoint.family, checkpoint.model, leaves)
