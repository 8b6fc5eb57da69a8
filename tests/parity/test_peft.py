"""Adapters in PEFT's format give PEFT's logits, and go back to the last bit (row B39)."""

import copy
import functools
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from transformer_jax.interop.export_plan import choose_family
from transformer_jax.interop.hf_checkpoint import abstract_model, open_hf_checkpoint
from transformer_jax.interop.peft import WEIGHTS, read_peft, write_peft
from transformer_jax.training.adapters import merge_adapter
from transformer_jax.training.lora import with_adapters
from transformer_jax.training.trees import flatten_dict

peft = pytest.importorskip("peft")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# PEFT asks transformers for what that has renamed.
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore:.*gradient_checkpointing")]

TOKENS = np.random.default_rng(0).integers(5, 60, (2, 7)).astype(np.int32)
# Names of linear maps that adapters are put on: one or more of them.
TARGETS = {
    "gpt2": ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"],
    "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "bert": ["query", "key", "value", "attention.output.dense", "intermediate.dense"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
}
KINDS = tuple(TARGETS)


@functools.cache
def published(kind):
    """A small model of transformers, with numbers that hide nothing."""
    torch.manual_seed(1)
    common = {"vocab_size": 60, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 24, "max_position_embeddings": 32,
    }  # fmt: skip
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=16, n_layer=2, n_head=4, n_positions=32, n_inner=24, **common
        )
        model = transformers.GPT2LMHeadModel(config)
    elif kind == "bert":
        config = transformers.BertConfig(num_labels=3, **sizes, **common)
        model = transformers.BertForSequenceClassification(config)
    elif kind == "phi3":
        config = transformers.Phi3Config(num_key_value_heads=2, **sizes, **common)
        model = transformers.Phi3ForCausalLM(config)
    else:
        config = transformers.LlamaConfig(num_key_value_heads=2, **sizes, **common)
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p + 0.1 * torch.randn_like(p))
    return model.eval()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Folder, checkpoint, graph and parameters of a base, and its program."""

    @functools.cache
    def make(kind):
        folder = tmp_path_factory.mktemp(kind) / "base"
        published(kind).save_pretrained(folder)
        checkpoint = open_hf_checkpoint(folder)
        graph = nnx.graphdef(abstract_model(checkpoint.model))
        lengths = jnp.full(len(TOKENS), TOKENS.shape[1])
        more = (lengths,) if kind == "bert" else ()
        run = jax.jit(lambda params: nnx.merge(graph, params)(jnp.asarray(TOKENS), *more))
        return folder, checkpoint, graph, checkpoint.load(), run

    return make


def drawn_adapter(kind, number, folder):
    """A random adapter that PEFT made and stored, and its logits."""
    draw = random.Random(f"{kind} {number}")
    targets = draw.sample(TARGETS[kind], draw.randint(1, len(TARGETS[kind])))
    config = peft.LoraConfig(
        r=(rank := draw.randint(1, 8)), lora_alpha=draw.choice([1, 4, 16, 24]),
        target_modules=targets, use_rslora=draw.random() < 0.3, use_dora=draw.random() < 0.3,
        rank_pattern={targets[0]: rank + 1} if draw.random() < 0.3 else {},
        alpha_pattern={targets[-1]: 3} if draw.random() < 0.3 else {},
        fan_in_fan_out=kind == "gpt2",
        task_type="SEQ_CLS" if kind == "bert" else "CAUSAL_LM",
    )  # fmt: skip
    model = peft.get_peft_model(copy.deepcopy(published(kind)), config)
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "lora_magnitude" in name:
                p.mul_(1 + 0.2 * torch.tanh(noise))
            elif "lora_" in name or "modules_to_save" in name:
                p.add_(0.1 * noise)
    model.save_pretrained(folder)
    with torch.no_grad():
        return model.eval()(torch.tensor(TOKENS.astype(np.int64))).logits.numpy()


def check(kind, number, base, folder):
    expected = drawn_adapter(kind, number, folder / "theirs")
    _, checkpoint, graph, params, run = base(kind)
    leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
    how = (checkpoint.family, checkpoint.model, leaves)
    adapter = read_peft(folder / "theirs", *how)
    np.testing.assert_allclose(run(merge_adapter(adapter, params)), expected, atol=1e-5)
    write_peft(folder / "ours", adapter, *how)
    theirs, ours = (load_file(folder / side / WEIGHTS) for side in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    for name, array in theirs.items():
        assert array.tobytes() == ours[name].tobytes(), name
    files = [folder / side / "adapter_config.json" for side in ("theirs", "ours")]
    assert json.loads(files[0].read_text()) == json.loads(files[1].read_text())
    return adapter, graph, params, expected


@pytest.mark.parametrize("kind", KINDS)
def test_some_adapters_of_peft_compute_the_same_and_go_back(kind, base, tmp_path):
    for number in range(3):
        adapter, graph, params, expected = check(kind, number, base, tmp_path / str(number))
    # Beside the weights instead of in them.
    own = merge_adapter(type(adapter)({}, {}, adapter.itself), params)
    model = with_adapters(
        nnx.merge(graph, jax.device_put(own)), jax.device_put(adapter.params), adapter.scales
    )
    lengths = (jnp.full(len(TOKENS), TOKENS.shape[1]),) if kind == "bert" else ()
    np.testing.assert_allclose(model(jnp.asarray(TOKENS), *lengths), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_adapters_of_peft_compute_the_same_and_go_back(kind, base, tmp_path):
    for number in range(3, 28):
        check(kind, number, base, tmp_path / str(number))


@pytest.mark.parametrize("kind", KINDS)
def test_peft_loads_what_is_written_here(kind, base, tmp_path):
    """Adapters that were trained here, each map with an A of its own, on attention alone."""
    folder, checkpoint, _, params, run = base(kind)
    leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
    from transformer_jax.training.adapters import Adapter

    rng = np.random.default_rng(3)
    own = {}
    for name, kernel in leaves.items():
        if name.endswith(("query/kernel", "value/kernel", "up/kernel")):
            D, F = kernel.shape
            a, b, m = rng.standard_normal((D, 2)), rng.standard_normal((2, F)), rng.random(F)
            arrays = {"lora_a": a, "lora_b": 0.1 * b} | (
                {"lora_magnitude": 0.1 * m} if kind == "llama" else {}
            )
            own[name.removesuffix("/kernel")] = {
                leaf: array.astype(np.float32) for leaf, array in arrays.items()
            }
    adapter = Adapter(own, dict.fromkeys(own, 4.0))
    expected = run(merge_adapter(adapter, params))
    plan = choose_family(checkpoint.model, checkpoint.fields.values)
    write_peft(tmp_path, adapter, plan.family, plan.model, leaves, base=str(folder))
    model = peft.PeftModel.from_pretrained(copy.deepcopy(published(kind)), tmp_path).eval()
    with torch.no_grad():
        found = model(torch.tensor(TOKENS.astype(np.int64))).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
