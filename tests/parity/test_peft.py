"""Adapters in PEFT's format give PEFT's logits, and go back to the last bit (row B39)."""

import copy
import dataclasses
import functools
import json
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from tests.opened import load
from transformer_jax.cli import decoder_only, encoder_only
from transformer_jax.cli.main import main as command
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.interop.export_plan import choose_family
from transformer_jax.interop.hf_checkpoint import abstract_model, open_hf_checkpoint
from transformer_jax.interop.peft import WEIGHTS, read_peft, write_peft
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.lora import with_adapters
from transformer_jax.models.lora_layers import LoRALinear
from transformer_jax.training.adapter_parts import merge_adapter

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


@functools.cache
def decoder_of_theirs(kind, tied):
    """A small decoder of transformers whose output layer is its table, or is not."""
    config = copy.deepcopy(published(kind).config)
    config.tie_word_embeddings = tied
    torch.manual_seed(2)
    model = type(published(kind))(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p + 0.1 * torch.randn_like(p))
    return model.eval()


@pytest.mark.parametrize(("kind", "tied"), [("gpt2", True), ("llama", True), ("llama", False)])
def test_trained_rows_of_tokens_go_both_ways(kind, tied, tmp_path):
    """Rows of ``trainable_token_indices``, of PEFT and of runs here, next to adapters."""
    theirs, ids = decoder_of_theirs(kind, tied), [58, 7]
    theirs.save_pretrained(tmp_path / "base")
    checkpoint = open_hf_checkpoint(tmp_path / "base")
    graph, params = nnx.graphdef(abstract_model(checkpoint.model)), checkpoint.load()
    run = jax.jit(lambda params: nnx.merge(graph, params)(jnp.asarray(TOKENS)))
    config = peft.LoraConfig(
        r=2, target_modules=TARGETS[kind][:1], fan_in_fan_out=kind == "gpt2",
        trainable_token_indices=ids if tied else {"embed_tokens": ids, "lm_head": ids},
    )  # fmt: skip
    model = peft.get_peft_model(copy.deepcopy(theirs), config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name or "trainable_tokens" in name:
                p.add_(torch.randn_like(p))
        expected = model(torch.tensor(TOKENS.astype(np.int64))).logits.numpy()
    model.save_pretrained(tmp_path / "theirs")
    leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
    how = (checkpoint.family, checkpoint.model, leaves)
    adapter = read_peft(tmp_path / "theirs", *how)
    assert adapter.tokens == (58, 7)
    assert adapter.rows.keys() == {"embedding/table", *(() if tied else ("head/table",))}
    np.testing.assert_allclose(run(merge_adapter(adapter, params)), expected, atol=1e-4)
    # As of a run that was trained here: PEFT loads it on the base, and computes the same.
    own = dataclasses.replace(adapter, origin={})
    write_peft(tmp_path / "ours", own, *how)
    again = peft.PeftModel.from_pretrained(copy.deepcopy(theirs), tmp_path / "ours").eval()
    with torch.no_grad():
        found = again(torch.tensor(TOKENS.astype(np.int64))).logits.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    files = [load_file(tmp_path / side / WEIGHTS) for side in ("theirs", "ours")]
    assert {n: a.tobytes() for n, a in files[0].items()} == {
        n: a.tobytes() for n, a in files[1].items()
    }
    of_bias = dataclasses.replace(own, rows={"head/bias": np.zeros(2)})
    with pytest.raises(ConfigError, match="head/bias: values of 2 tokens were trained"):
        write_peft(tmp_path / "no", of_bias, *how)


@pytest.mark.parametrize("kind", KINDS)
def test_peft_loads_what_is_written_here(kind, base, tmp_path):
    """Adapters that were trained here, each map with an A of its own, on attention alone."""
    folder, checkpoint, _, params, run = base(kind)
    leaves = {name: np.asarray(leaf) for name, leaf in flatten_dict(params).items()}
    from transformer_jax.training.adapter_parts import Adapter

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


@pytest.mark.parametrize("number", range(4))
def test_dora_of_a_kernel_with_zero_columns_has_the_outputs_and_gradients_of_peft(number):
    """PEFT divides 0 by 0 at ``B`` of zeros; the column stays zero here (row B39)."""
    rng, zeros = np.random.default_rng(number), [1, 4]
    linear = torch.nn.Linear(7, 6, bias=False)
    with torch.no_grad():
        linear.weight[zeros] = 0
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["0"], use_dora=True)
    model = peft.get_peft_model(torch.nn.Sequential(linear), config)
    own = {name.split(".")[3]: p for name, p in model.named_parameters() if "lora_" in name}
    with torch.no_grad():
        own["lora_B"].copy_(torch.tensor(rng.standard_normal((6, 2))))
        own["lora_B"][zeros[0]] *= number % 2  # B of zeros for one of the columns
        own["lora_magnitude_vector"] *= torch.tensor(rng.uniform(0.5, 2, 6))
        own["lora_magnitude_vector"][zeros[1]] = float(number // 2)
    x, g = (rng.standard_normal((5, size)).astype(np.float32) for size in (7, 6))
    y = model(torch.tensor(x))
    kernel = linear.weight.detach().numpy().T
    arrays = {
        "lora_a": own["lora_A"].detach().numpy().T,
        "lora_b": own["lora_B"].detach().numpy().T,
        "lora_magnitude": own["lora_magnitude_vector"].detach().numpy()
        - np.linalg.norm(kernel, axis=0),
    }
    base = Linear(7, 6, ("embed", "mlp"), bias=False, rngs=nnx.Rngs(0))
    base.kernel[...] = jnp.asarray(kernel)

    def ours(arrays):
        params = {name: nnx.Param(jnp.asarray(value)) for name, value in arrays.items()}
        return LoRALinear(base, params, 3.0, 0.0)(jnp.asarray(x))

    found, back = jax.vjp(ours, arrays)
    there = [column for column in range(6) if column != zeros[0] or number % 2]
    np.testing.assert_allclose(found[:, there], y.detach().numpy()[:, there], atol=1e-5)
    g[:, [column for column in range(6) if column not in there]] = 0
    y[:, there].backward(torch.tensor(g[:, there]))
    [grads] = back(jnp.asarray(g))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((found, grads)))
    where = {"lora_a": slice(None), "lora_b": there, "lora_magnitude": there}
    names = {"lora_a": "lora_A", "lora_b": "lora_B", "lora_magnitude": "lora_magnitude_vector"}
    for name, columns in where.items():
        if number % 2 == 0 and name == "lora_a":
            continue  # PEFT's is NaN: it is the sum over all columns
        expected = own[names[name]].grad.numpy().T
        np.testing.assert_allclose(
            grads[name][..., columns], expected[..., columns], rtol=1e-4, atol=1e-5
        )
    if number % 2 == 0:
        assert not np.asarray(found)[:, zeros[0]].any()


RUNS = {
    "gpt2": (decoder_only, ["train", "char-cpu", "--training.sequence-length", "16",
                            "--evaluation.sample", "0", "--evaluation.ngram-orders"]),
    "llama": (decoder_only, ["train", "char-cpu", "--training.sequence-length", "16",
                             "--evaluation.sample", "0", "--evaluation.ngram-orders",
                             "--lora.targets", "all-linear", "--lora.variant", "dora"]),
    "bert": (encoder_only, ["finetune", "classify", "--lora.variant", "rslora",
                            "--task.max-length", "16"]),
}  # fmt: skip
SPECIAL = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")


@pytest.fixture
def trained(base, tmp_path):
    """A run with adapters that began from a folder of transformers."""

    def make(kind):
        folder = shutil.copytree(base(kind)[0], tmp_path / "base")
        words = ["um dois três quatro cinco seis"] * 3
        special = SPECIAL if kind == "bert" else ("<pad>", "<s>", "</s>", "<unk>")
        train_tokenizer("wordpiece", words, 50, special=special).save(folder / "tokenizer.json")
        program, flags = RUNS[kind]
        if kind == "bert":
            rows = [f"um {a}\t{b}\n" for a, b in zip("abcdef" * 4, "xyz" * 8, strict=True)]
            (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(rows))
            flags = [*flags, "--init-from", folder, "--data.train", tmp_path / "train.tsv"]
        else:
            (tmp_path / "texts.txt").write_text("um dois três quatro\ncinco seis um dois\n" * 20)
            flags = [*flags, "--init-from", folder, "--data.text", tmp_path / "texts.txt"]
        flags += ["--lora.rank", 2, "--optimizer.learning-rate", 0.1, "--training.steps", 4]
        flags += ["--optimizer.schedule.warmup-steps", 1, "--distributed.num-local-devices", 1]
        assert program.main([*map(str, flags), "--output", str(tmp_path / "run")]) == 0
        return folder, tmp_path / "run"

    return make


def own_logits(run, kind):
    """The logits of a run of ours."""
    lengths = (jnp.full(len(TOKENS), TOKENS.shape[1]),) if kind == "bert" else ()
    family = "encoder-task" if kind == "bert" else "decoder"
    (graph, params), _ = load(run, kind=family)
    return jax.jit(lambda params: nnx.merge(graph, params)(jnp.asarray(TOKENS), *lengths))(params)


def their_logits(model):
    with torch.no_grad():
        return model.eval()(torch.tensor(TOKENS.astype(np.int64))).logits.numpy()


@pytest.mark.parametrize("kind", RUNS)
@pytest.mark.slow
def test_an_exported_run_has_its_logits_in_peft_and_merges_back(kind, trained, tmp_path):
    """Row B39: ``export --format peft`` opened by PeftModel, and ``merge`` of it again."""
    folder, run = trained(kind)
    auto = transformers.AutoModelForCausalLM
    if kind == "bert":
        auto = transformers.AutoModelForSequenceClassification
    assert command(["export", str(run), str(tmp_path / "peft"), "--format", "peft"]) == 0
    expected = own_logits(run, kind)
    plain = auto.from_pretrained(folder)
    assert np.abs(their_logits(plain) - expected).max() > 1e-2
    found = peft.PeftModel.from_pretrained(plain, tmp_path / "peft")
    np.testing.assert_allclose(their_logits(found), expected, atol=1e-5)
    fields = json.loads((tmp_path / "peft/adapter_config.json").read_text())
    assert fields["base_model_name_or_path"] == str(folder)
    given = ["merge", str(folder), "--adapter", str(tmp_path / "peft")]
    assert command([*given, "--output", str(tmp_path / "merged")]) == 0
    np.testing.assert_allclose(own_logits(tmp_path / "merged", kind), expected, atol=1e-5)
    assert command(["export", str(tmp_path / "merged"), str(tmp_path / "hf")]) == 0
    theirs = auto.from_pretrained(tmp_path / "hf")
    np.testing.assert_allclose(their_logits(theirs), expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_of_peft_merges_into_a_run_and_a_folder(kind, base, tmp_path):
    """Row B39: both have PEFT's logits."""
    expected = drawn_adapter(kind, 30, tmp_path / "theirs")
    folder = shutil.copytree(base(kind)[0], tmp_path / "base")
    train_tokenizer("wordpiece", ["um dois"], 30, special=SPECIAL).save(folder / "tokenizer.json")
    given = ["merge", str(folder), "--adapter", str(tmp_path / "theirs"), "--output"]
    assert command([*given, str(tmp_path / "run")]) == 0
    np.testing.assert_allclose(own_logits(tmp_path / "run", kind), expected, atol=1e-5)
    assert command(["export", str(tmp_path / "run"), str(tmp_path / "hf")]) == 0
    found = type(published(kind)).from_pretrained(tmp_path / "hf")
    np.testing.assert_allclose(their_logits(found), expected, atol=1e-5)
