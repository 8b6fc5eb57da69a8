"""Laws of tokens whose rows are trained while their table is frozen (row B39)."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.training.test_lora import adapter_run, adapter_task, logits, nudged, small
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.models.build import make_model
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    LoRAConfig,
    TransformerConfig,
)
from transformer_jax.models.layers.parameters import is_projection, layer_depths, parameters, values
from transformer_jax.models.lora import lora
from transformer_jax.models.partition import EVERYTHING, where
from transformer_jax.models.trainable_tokens import put_in, split_rows, trainable_tokens
from transformer_jax.parallel.mesh import make_mesh, shard_batch
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.runs import manifest
from transformer_jax.runs.checkpoint_reader import load_params, load_parts
from transformer_jax.training import objectives
from transformer_jax.training.adapter_parts import merge_adapter, of_run
from transformer_jax.training.optimizers import make_optimizer, weight_decay_mask
from transformer_jax.training.preference_objectives import beside_reference
from transformer_jax.training.settings import OptimizerConfig, ScheduleConfig
from transformer_jax.training.state import abstract_parts, create_state, digest, split
from transformer_jax.training.step import compile_step, make_step

V, IDS = 12, (11, 4)
TOKENS = np.random.default_rng(0).integers(0, V, (4, 9)).astype(np.int32)
BATCH = {
    "tokens": jnp.asarray(TOKENS[:, :-1]),
    "targets": jnp.asarray(TOKENS[:, 1:]),
    "weights": jnp.ones((4, 8)).at[0, 3].set(0),
}
PAIRS = {
    "inputs": {"source": jnp.asarray(TOKENS), "source_lengths": jnp.full(4, 8)},
    "target": jnp.asarray(TOKENS),
    "lengths": jnp.full(4, 7),
}
SEQUENCES = objectives.sequence_to_sequence(bos=1, label_smoothing=0.1)
FROZEN = where(lambda path: "embedding" not in path)
UNTIED = HeadConfig(tie_word_embeddings=False, bias=True, scale=0.5, final_logit_softcapping=4.0)


def decoder(**how):
    return lambda: make_model("decoder", small(vocab_size=V, **how), rngs=nnx.Rngs(0))


def translator(shared):
    config = TransformerConfig(
        vocab_size=V, d_model=16, encoder_layers=1, decoder_layers=1,
        attention=AttentionConfig(num_heads=2), feed_forward=FeedForwardConfig(d_ff=16),
        embedding=EmbeddingConfig(share_encoder_decoder_embeddings=shared),
        head=HeadConfig(tie_word_embeddings=shared), decoder_vocab_size=None if shared else V,
    )  # fmt: skip
    return lambda: make_model("encoder-decoder", config, rngs=nnx.Rngs(0))


def masked():
    config = small(vocab_size=V, decoder_layers=0, head=HeadConfig(bias=True, mlm_transform=True))
    config = dataclasses.replace(config, encoder_layers=1)
    return make_model("encoder", config, next_sentence=False, rngs=nnx.Rngs(0))


def loss_of_masked(model, batch, key):
    inputs = {"tokens": batch["tokens"], "lengths": jnp.full(4, 8), "types": 0 * batch["tokens"]}
    positions = jnp.tile(jnp.arange(3), (4, 1))
    given = {"masked_positions": positions, "targets": batch["targets"][:, :3]}
    given |= {"weights": batch["weights"][:, :3], "next_sentence_label": jnp.zeros(4, jnp.int32)}
    return objectives.masked_lm(sentence_objective="none")(model, inputs | given, key)


def parts_of(make, partition, mesh=None, tx=None):
    """Graph, state and frozen parameters."""
    mesh = mesh or make_mesh(MeshConfig(1), jax.devices()[:1])
    return create_state(make, tx or optax.sgd(1.0), mesh, partition=partition)


@pytest.mark.parametrize(
    ("how", "config"),
    [
        ({}, LoRAConfig(2)),
        ({"scan": True, "head": UNTIED}, LoRAConfig(2)),
        ({"dtype": "bfloat16"}, LoRAConfig(2)),
        ({"head": UNTIED}, LoRAConfig(2, base_dtype="bfloat16")),
    ],
    ids=["tied", "untied scanned", "bfloat16", "bfloat16 base"],
)
@pytest.mark.slow
def test_step_0_is_the_base_bit_for_bit_and_later_ones_are_not(how, config):
    partition = trainable_tokens(lora(config), IDS)
    graph, state, _, frozen = parts_of(decoder(**how), partition)
    base = logits(nnx.merge(graph, frozen), TOKENS)
    at_first = partition.merge(graph, state.params, frozen, None)
    np.testing.assert_array_equal(logits(at_first, TOKENS), base)
    rows = split_rows(state.params, frozen)[1]
    own = {"head/table", "head/bias"} if "head" in how else set()
    assert rows.keys() == {"embedding/table", *own}
    assert {(len(leaf), leaf.dtype) for leaf in rows.values()} == {(2, np.dtype("float32"))}
    later = partition.merge(graph, nudged(state.params), frozen, None)
    assert np.abs(logits(later, TOKENS) - base).max() > 0.01


OBJECTIVES = {
    "fused": (decoder(), objectives.language_model(0.1)),
    "chunks": (decoder(head=UNTIED), objectives.language_model(0.1, chunk=5)),
    "logits": (decoder(head=UNTIED), objectives.language_model(chunk=0)),
    "bias": (decoder(head=HeadConfig(bias=True)), objectives.language_model()),
    "shared": (translator(True), SEQUENCES),
    "two tables": (translator(False), SEQUENCES),
    "masked": (masked, loss_of_masked),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OBJECTIVES)
def test_gradients_are_those_of_the_whole_table_at_these_rows(case):
    """Against the table trained as a whole, by the same model without this partition."""
    make, objective = OBJECTIVES[case]
    batch = PAIRS if objective is SEQUENCES else BATCH
    inner = lora(LoRAConfig(2, targets=("query",)))
    partition = trainable_tokens(inner, IDS)
    graph, state, _, frozen = parts_of(make, partition)
    params = nudged(state.params)
    rest, rows = split_rows(params, frozen)
    whole = jax.device_put(put_in(frozen, rows, IDS))

    def loss(params, frozen, part):
        return objective(part.merge(graph, params, frozen, None), batch, None)["loss"][0]

    found = jax.jit(jax.value_and_grad(lambda p: loss(p, frozen, partition)))(params)
    expected = jax.jit(jax.value_and_grad(lambda f: loss(rest, f, inner)))(whole)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    others = jax.jit(jax.grad(lambda p: loss(p, whole, inner)))(rest)
    adapters, own = split_rows(found[1], frozen)
    chex.assert_trees_all_close(adapters, others, atol=1e-5)
    at = {"fused": 1, "bias": 2, "shared": 1, "masked": 2, "two tables": 3}
    assert len(own) == at.get(case, 3)
    for name, gradient in own.items():
        right = flatten_dict(expected[1])[name][np.array(IDS)]
        np.testing.assert_allclose(gradient, right, atol=1e-5, err_msg=name)
        assert np.abs(right).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 0])
def test_no_gradient_of_a_whole_table_is_made(chunk):
    """A table of N rows costs 2 B T N D operations; its gradient would cost as many again."""
    make = lambda: make_model("decoder", small(vocab_size=4096), rngs=nnx.Rngs(0))
    objective = objectives.language_model(chunk=chunk)

    def operations(partition):
        graph, state, _, frozen = parts_of(make, partition)
        loss = lambda p, f: objective(partition.merge(graph, p, f, None), BATCH, None)["loss"][0]
        program = jax.jit(jax.grad(loss)).lower(state.params, frozen).compile()
        return program.cost_analysis()["flops"]

    adapters = lora(LoRAConfig(2, targets=("query",)))
    product = 2 * BATCH["tokens"].size * 4096 * 16
    more = operations(trainable_tokens(adapters, (4000, 4001))) - operations(adapters)
    assert more < product / 4
    with_table = lora(LoRAConfig(2, targets=("query",)), lambda path: path == "embedding/table")
    assert operations(with_table) - operations(adapters) > product / 2


@pytest.mark.slow
def test_few_rows_are_optimized_as_their_table_is():
    """Weight decay, depth and Muon's choice are those of the table and of its bias."""
    partition = trainable_tokens(lora(LoRAConfig(2)), IDS)
    trained, _ = abstract_parts(decoder(head=UNTIED), partition)
    whole = parameters(decoder(head=UNTIED)())
    for top in ("embedding", "head"):
        for leaf in set(whole[top]):
            rows, table = trained[top][f"{leaf}_rows"], whole[top][leaf]
            assert is_projection(rows) == is_projection(table) is False
            assert weight_decay_mask({"x": rows}) == weight_decay_mask({"x": table})
    assert layer_depths(trained)["embedding"]["table_rows"] == 0
    assert layer_depths(trained)["head"]["table_rows"] == layer_depths(whole)["head"]["table"]
    tx = make_optimizer(
        OptimizerConfig("muon", 0.1, ScheduleConfig("constant", 0), weight_decay=0.1,
                        layer_decay=0.5),
        16, 10, params=trained,
    )  # fmt: skip
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), values(trained))
    updates, _ = tx.update(params, tx.init(params), params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(updates))


@pytest.mark.parametrize("size", [V, V + 1], ids=["divides", "does not divide"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.slow
def test_two_by_two_devices_are_as_one(size, tied):
    head = HeadConfig() if tied else UNTIED
    make = lambda: make_model("decoder", small(vocab_size=size, head=head), rngs=nnx.Rngs(0))
    partition = trainable_tokens(lora(LoRAConfig(2)), (0, 4, size - 1))
    tx, found = optax.adam(0.1), []
    for shape in (MeshConfig(1), MeshConfig(fsdp=2, tensor=2)):
        mesh = make_mesh(shape, jax.devices()[: 1 if shape.data == 1 else 4])
        graph, state, placed, frozen = parts_of(make, partition, mesh, tx)
        fixed = jax.tree.map(lambda leaf: leaf.sharding, frozen)
        merge = lambda *parts, graph=graph: partition.merge(graph, *parts)
        raw = make_step(objectives.language_model(), tx, merge)
        step = compile_step(raw, mesh, placed, frozen=fixed)
        for _ in range(2):
            state, metrics = step(state, frozen, shard_batch(BATCH, mesh), None)
        if shape.data == 1:
            assert step._cache_size() == 1
        found.append(jax.tree.map(np.asarray, (state.params, metrics)))
    chex.assert_trees_all_close(found[1], found[0], atol=2e-5)


@pytest.mark.slow
def test_a_policy_learns_rows_that_its_reference_keeps():
    """Row B40: the reference has the rows as they began, and shares the rest of the table."""
    partition = beside_reference(trainable_tokens(lora(LoRAConfig(2)), IDS))
    graph, state, _, frozen = parts_of(decoder(), partition)
    both = partition.merge(graph, nudged(state.params), frozen, None)
    base = logits(nnx.merge(graph, frozen["policy"]), TOKENS)
    np.testing.assert_array_equal(logits(both.reference, TOKENS), base)
    assert np.abs(logits(both.policy, TOKENS) - base).max() > 0.01
    assert partition.stored["policy"]["tokens"] == list(IDS)


@pytest.mark.parametrize("kind", ["lora", "dora", "frozen"])
@pytest.mark.slow
def test_a_run_keeps_other_rows_resumes_bit_for_bit_and_loads_as_plain_weights(
    tmp_path, no_curves, kind
):
    config = LoRAConfig(2, dropout=0.2, variant="dora" if kind == "dora" else "lora")
    inner = FROZEN if kind == "frozen" else lora(config)
    task = dataclasses.replace(
        adapter_task(config, head=UNTIED), partition=trainable_tokens(inner, (2, 7))
    )
    whole = adapter_run(tmp_path / "whole", task).fit(steps=4)
    adapter_run(tmp_path / "cut", task).fit(steps=2)
    cut = adapter_run(tmp_path / "cut", task)
    done = cut.fit(steps=4)
    assert digest(done.state) == digest(whole.state)

    fields = manifest.read(tmp_path / "cut/checkpoints/step_00000004")
    stored = {name for name in fields["tree"] if name.startswith("params/")}
    if kind != "frozen":
        assert {name.rpartition("/")[2] for name in stored if "lora_" not in name} == {
            "table_rows", "bias_rows",
        }  # fmt: skip
    assert fields["frozen"] == digest(load_parts(tmp_path / "cut", "last").frozen)
    start = flatten_dict(split(cut._model())[1])
    plain = load_params(tmp_path / "cut", "last").params
    tables = ["embedding/table"]
    tables += [] if kind == "frozen" else ["head/table", "head/bias"]
    for name in tables:
        before, after = np.asarray(start[name]), flatten_dict(plain)[name]
        same = (before == after).reshape(11, -1)
        assert same[np.arange(11) % 5 != 2].all(), name
        assert not same[[2, 7]].any(), name
    np.testing.assert_allclose(
        logits(nnx.merge(cut.graph, plain)), logits(cut.load("last")), atol=1e-5
    )
    if kind != "frozen":
        adapter, frozen = of_run(tmp_path / "cut", "last")
        assert adapter.tokens == (2, 7)
        assert digest(merge_adapter(adapter, frozen)) == digest(plain)


@pytest.mark.parametrize(
    ("partition", "ids", "message"),
    [
        (lora(LoRAConfig(2)), (12,), "has no row 12: allowed are 0 to 11"),
        (lora(LoRAConfig(2)), (3, 3), "an id is given twice"),
        (EVERYTHING, (3,), "no table of tokens is frozen"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(partition, ids, message):
    with pytest.raises(ConfigError, match=message) as caught:
        abstract_parts(decoder(), trainable_tokens(partition, ids))
    assert "\n" not in str(caught.value)


def test_of_no_tokens_a_partition_is_as_it_was():
    inner = lora(LoRAConfig(2))
    assert trainable_tokens(inner, ()) is inner
