"""The step: one loss and one update however a batch is cut up, and nothing from a bad one."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.platforms import trace_for
from transformer_jax import laws
from transformer_jax.core.errors import ArgumentError, ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    FeedForwardConfig,
    TransformerConfig,
)
from transformer_jax.models.partition import merging, where
from transformer_jax.models.transformer.models import TransformerEncoderDecoder
from transformer_jax.parallel.mesh import make_mesh, shard_batch
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.parallel.sharding import replicated
from transformer_jax.training.objectives import sequence_to_sequence
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.settings import OptimizerConfig, ScheduleConfig
from transformer_jax.training.state import TrainState, abstract_state, create_state, digest, split
from transformer_jax.training.step import compile_eval, compile_step, make_eval_step, make_step

OBJECTIVE = sequence_to_sequence(bos=1, label_smoothing=0.1)
# With plain descent at rate 1 the change of a parameter is its gradient.
DESCENT = optax.sgd(1.0)


def fresh(make, tx, average=False):
    graph, params = split(make())
    kept = jax.tree.map(jnp.copy, params) if average else None
    return graph, TrainState(jnp.int32(0), params, jax.jit(tx.init)(params), kept)


@pytest.fixture(scope="module")
def alone():
    """Loss, metrics and new parameters of one step on one device, computed once."""
    found = {}

    def run(make, batch):
        if not found:
            graph, state = fresh(make, DESCENT)
            found["all"] = jax.jit(make_step(OBJECTIVE, DESCENT, merging(graph)))(state, {}, batch)
        return found["all"]

    return run


@pytest.mark.parametrize("accumulation", [2, 4])
@pytest.mark.quick("4")
def test_accumulated_micro_batches_equal_the_big_batch(alone, make_toy, sentences, accumulation):
    batch = sentences()
    weights = batch["lengths"].reshape(-1, accumulation).sum(0)
    assert len(set(weights)) > 1, "micro-batches of equal weight would not show a mean of means"
    graph, state = fresh(make_toy, DESCENT)
    step = jax.jit(make_step(OBJECTIVE, DESCENT, merging(graph), accumulation=accumulation))
    chex.assert_trees_all_close(
        step(state, {}, batch), alone(make_toy, batch), atol=1e-6, rtol=1e-6
    )


def test_the_step_of_a_gpu_is_the_same(alone, make_toy, sentences, monkeypatch):
    batch = sentences()
    wanted = alone(make_toy, batch)
    trace_for(monkeypatch, "cuda")
    graph, state = fresh(make_toy, DESCENT)
    found = jax.jit(make_step(OBJECTIVE, DESCENT, merging(graph)))(state, {}, batch)
    chex.assert_trees_all_close(found, wanted, atol=1e-6, rtol=1e-6)


MESHES = [
    MeshConfig(data=8),
    MeshConfig(fsdp=8),
    MeshConfig(fsdp=4, tensor=2),
    MeshConfig(data=2, fsdp=2, tensor=2),
    MeshConfig(fsdp=2, context=2, tensor=2),
]


@pytest.mark.parametrize(
    "config", MESHES, ids=lambda c: f"{c.data}x{c.fsdp}x{c.context}x{c.tensor}"
)
@pytest.mark.quick("-1x2x2x2")
def test_sharded_step_equals_one_device_and_compiles_once(alone, make_toy, sentences, config):
    mesh, batch = make_mesh(config), sentences()
    params = jax.tree.map(np.asarray, split(make_toy())[1])
    graph, state, shardings, _ = create_state(make_toy, DESCENT, mesh, params=params)
    step = compile_step(make_step(OBJECTIVE, DESCENT, merging(graph)), mesh, shardings)
    found = jax.block_until_ready(step(state, {}, shard_batch(batch, mesh), None))
    state = found[0]
    laws.sharded(lambda mesh: found if mesh else alone(make_toy, batch), [config]).require()
    for leaf in jax.tree.leaves(state.params):
        held = leaf.addressable_shards[0].data.size
        split_by = config.fsdp * config.tensor if leaf.ndim > 1 else 1
        assert held * split_by <= leaf.size, f"{leaf.shape} is whole on {leaf.sharding}"

    # The second call finds the shardings of the first, and plain arrays are split like put ones.
    state, _ = jax.block_until_ready(step(state, {}, shard_batch(sentences(1), mesh), None))
    jax.block_until_ready(step(state, {}, shard_batch(sentences(2), mesh), None))
    assert step._cache_size() == 1


@pytest.mark.slow
def test_parameters_and_gradients_travel_and_of_the_rows_only_those_of_tables(
    alone, make_toy, sentences
):
    mesh, batch = make_mesh(MeshConfig(fsdp=8)), sentences()
    params = jax.tree.map(np.asarray, split(make_toy())[1])
    graph, state, shardings, _ = create_state(make_toy, DESCENT, mesh, params=params)
    step = compile_step(
        make_step(OBJECTIVE, DESCENT, merging(graph), accumulation=2), mesh, shardings
    )
    compiled = step.lower(state, {}, shard_batch(batch, mesh), None).compile()
    pattern = r"= \(?(\w+)\[.* (all-\w+|reduce-scatter|collective-\w+)(?:-start)?\("
    # Looking up rows of a table, whose parts are everywhere, gathers token ids in a shard_map.
    lines = [line for line in compiled.as_text().splitlines() if "/shard_map/" not in line]
    moves = set(re.findall(pattern, "\n".join(lines)))
    assert {name for _, name in moves} <= {"all-gather", "all-reduce", "reduce-scatter"}, moves
    assert {kind for kind, _ in moves - {("s32", "all-gather")}} == {"f32"}, moves
    result = jax.block_until_ready(compiled(state, {}, shard_batch(batch, mesh), None))
    chex.assert_trees_all_close(result, alone(make_toy, batch), atol=1e-5)


@pytest.mark.apart
@pytest.mark.slow
@pytest.mark.parametrize(
    ("compute", "shapes"),
    [
        (ComputeConfig(), (*MESHES, MeshConfig(tensor=8))),  # the last cuts through heads
        (
            ComputeConfig(scan_layers=True, remat=True),
            (MeshConfig(fsdp=8), MeshConfig(2, 2, 2), MeshConfig(context=4)),
        ),
    ],
    ids=["loop", "scan"],
)
def test_encoder_decoder_is_the_same_on_every_mesh(sentences, key, compute, shapes):
    config = TransformerConfig(
        vocab_size=24, d_model=32, encoder_layers=2, decoder_layers=2,
        attention=AttentionConfig(num_heads=4), feed_forward=FeedForwardConfig(d_ff=64),
        compute=compute,
    )  # fmt: skip
    make, batch = lambda: TransformerEncoderDecoder(config, rngs=nnx.Rngs(0)), sentences()
    params = jax.tree.map(np.asarray, split(make())[1])

    def step_on(shape):
        one = shape is None
        mesh = make_mesh(shape or MeshConfig(data=1), jax.devices()[:1] if one else None)
        graph, state, shardings, _ = create_state(make, DESCENT, mesh, params=params)
        step = compile_step(make_step(OBJECTIVE, DESCENT, merging(graph)), mesh, shardings)
        return jax.block_until_ready(step(state, {}, shard_batch(batch, mesh), key))

    laws.sharded(step_on, shapes).require()


@pytest.mark.slow
def test_pmapped_step_equals_one_device(alone, make_toy, sentences):
    mesh, batch = make_mesh(MeshConfig()), sentences()
    params = jax.tree.map(np.asarray, split(make_toy())[1])
    graph, state, shardings, _ = create_state(make_toy, DESCENT, mesh, params=params)
    step = compile_step(make_step(OBJECTIVE, DESCENT, merging(graph)), mesh, shardings, mode="pmap")
    state, metrics = jax.block_until_ready(step(state, {}, shard_batch(batch, mesh)))
    expected, of_one = alone(make_toy, batch)
    chex.assert_trees_all_close(metrics, of_one, atol=1e-6, rtol=1e-6)
    chex.assert_trees_all_close(state.params, expected.params, atol=1e-6)
    assert state.params["embedding"]["table"].sharding == shardings.params["embedding"]["table"]
    with pytest.raises(ConfigError, match="9 rows does not divide by 8 devices"):
        step(state, {}, sentences(rows=9))


def test_pmap_is_for_whole_copies_in_one_process(make_toy):
    mesh = make_mesh(MeshConfig(fsdp=2))
    graph, _, shardings, _ = abstract_state(make_toy, DESCENT, mesh)
    with pytest.raises(ConfigError, match="use jit"):
        compile_step(make_step(OBJECTIVE, DESCENT, merging(graph)), mesh, shardings, "pmap")


@pytest.mark.slow
def test_dropout_draws_the_same_masks_on_every_mesh(make_dropping_toy, sentences, key):
    graph, params = split(make_dropping_toy())

    def loss(params, batch, key):
        return OBJECTIVE(nnx.merge(graph, params), batch, key)["loss"][0]

    expected = jax.jit(loss)(params, sentences(), key)
    assert abs(expected - jax.jit(loss)(params, sentences(), None)) > 1
    for config in (MeshConfig(), MeshConfig(fsdp=4, tensor=2)):
        there = shard_batch(sentences(), make_mesh(config))
        chex.assert_trees_all_close(jax.jit(loss)(params, there, key), expected, rtol=1e-6)


# --- with the smallest of models -----------------------------------------------------------------


def make_line():
    return nnx.Linear(3, 1, rngs=nnx.Rngs(0))


def squares(model, batch, key):
    """Squared errors; ``poison`` 0 makes one gradient leaf NaN, other poisons reach the loss."""
    x = batch["x"]
    if key is not None:
        x = x * jax.random.bernoulli(key, 0.5, x.shape)
    error = ((model(x) - batch["y"]) ** 2).sum(-1)
    poison = batch["poison"][0]
    bad = jnp.where(poison == 0.0, jnp.sqrt(poison * (model.bias[0] + 2.0)), poison - 1.0)
    weight = jnp.float32(len(x))
    return {"loss": (error.sum() + bad, weight), "largest": (error.sum(), weight)}


def points(number=0, poison=1.0):
    rng = np.random.default_rng(number)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return {"x": draw(8, 3), "y": draw(8, 1), "poison": np.full(8, poison, np.float32)}


ADAM = make_optimizer(OptimizerConfig("adam", 0.1, ScheduleConfig("constant", 3)), 8, 100)


@pytest.fixture(scope="module")
def line():
    graph, state = fresh(make_line, ADAM, average=True)
    return state, jax.jit(make_step(squares, ADAM, merging(graph), ema_decay=0.9))


@pytest.mark.parametrize("poison", [0.0, np.nan, np.inf, -np.inf])
def test_nonfinite_step_leaves_state_bitwise_and_training_continues(line, poison):
    start, step = line
    state, good = step(start, {}, points(0))
    skipped, metrics = step(state, {}, points(1, poison))
    assert metrics["skipped"] == 1
    assert good["skipped"] == 0
    assert jnp.isfinite(metrics["loss"]) == (poison == 0.0)  # then only a gradient is not
    assert not jnp.isfinite(metrics["grad_norm"]) or poison != 0.0
    assert skipped.step == state.step + 1
    assert digest(skipped._replace(step=state.step)) == digest(state)
    after, metrics = step(skipped, {}, points(2))
    assert metrics["skipped"] == 0
    direct, _ = step(state._replace(step=skipped.step), {}, points(2))
    assert digest(after) == digest(direct)
    assert digest(after.params) != digest(skipped.params)


@pytest.mark.slow
def test_a_nonfinite_gradient_is_let_through_if_asked(line):
    state, _ = line
    graph, _ = split(make_line())
    step = make_step(squares, ADAM, merging(graph), ema_decay=0.9, skip_nonfinite=False)
    after, metrics = step(state, {}, points(0, np.nan))
    assert metrics["skipped"] == 0
    assert not jnp.isfinite(after.params["kernel"]).all()


def test_a_batch_of_padding_alone_is_finite():
    graph, state = fresh(make_line, DESCENT)
    zero = lambda sums: {"loss": (0.0 * sums["loss"][0], jnp.float32(0))}
    nothing = lambda model, batch, key: zero(squares(model, batch, key))
    after, metrics = jax.jit(make_step(nothing, DESCENT, merging(graph)))(state, {}, points())
    chex.assert_trees_all_equal(after.params, state.params)
    assert metrics["loss"] == 0


def test_average_starts_at_the_parameters_and_follows_them(line):
    start, step = line
    chex.assert_trees_all_equal(start.ema_params, start.params)
    state, average = start, start.params
    for n in range(4):
        state, _ = step(state, {}, points(n))
        keep = np.float32(min(0.9, (1 + n) / (10 + n)))
        follow = lambda a, p, d=keep: d * np.asarray(a) + (1 - d) * np.asarray(p)
        average = jax.tree.map(follow, average, state.params)
    chex.assert_trees_all_close(state.ema_params, average, rtol=1e-5)


def test_average_is_kept_if_and_only_if_it_has_a_decay():
    graph, state = fresh(make_line, DESCENT)
    with pytest.raises(ConfigError, match="go together"):
        make_step(squares, DESCENT, merging(graph), ema_decay=0.9)(state, {}, points())
    with pytest.raises(ArgumentError, match=r"ema_decay is 1\.0"):
        make_step(squares, DESCENT, merging(graph), ema_decay=1.0)


def test_keys_are_folded_with_the_step_and_nothing_else(line, key):
    start, step = line
    same = [step(start, {}, points(), key)[1]["loss"] for _ in range(2)]
    later = step(start._replace(step=jnp.int32(1)), {}, points(), key)[1]["loss"]
    assert same[0] == same[1] != later
    assert same[0] != step(start, {}, points(), None)[1]["loss"]
    assert same[0] != step(start, {}, points(), jax.random.key(1))[1]["loss"]


def test_micro_batches_draw_masks_of_their_own(key):
    graph, state = fresh(make_line, DESCENT)
    twice = jax.tree.map(lambda x: np.repeat(x, 2, axis=0), points())  # both parts are points()
    make = lambda **how: jax.jit(make_step(squares, DESCENT, merging(graph), **how))
    once = make()(state, {}, points(), key)[1]["loss"]
    parts = make(accumulation=2)(state, {}, twice, key)[1]["loss"]
    assert once != parts


def test_metrics_are_scalars_with_the_rate_and_the_objectives_sums(line):
    state, step = line
    state, metrics = step(state, {}, points())
    chex.assert_shape(list(metrics.values()), ())
    names = {"loss", "weight", "grad_norm", "skipped", "learning_rate", "largest"}
    assert set(metrics) == names
    assert metrics["weight"] == 8
    chex.assert_trees_all_close(metrics["largest"], metrics["loss"], rtol=1e-6)
    chex.assert_trees_all_close(metrics["learning_rate"], 0.1 / 3, rtol=1e-6)


def test_gradient_norm_is_that_before_clipping():
    tx = make_optimizer(
        OptimizerConfig("sgd", 1.0, ScheduleConfig("constant", 0), 0.0, max_grad_norm=0.5), 8, 9
    )
    graph, state = fresh(make_line, tx)
    after, metrics = jax.jit(make_step(squares, tx, merging(graph)))(state, {}, points())
    moved = optax.tree.norm(jax.tree.map(jnp.subtract, after.params, state.params))
    assert metrics["grad_norm"] > 1
    chex.assert_trees_all_close(moved, 0.5, rtol=1e-5)


def test_rows_that_do_not_divide_are_refused():
    graph, state = fresh(make_line, DESCENT)
    with pytest.raises(ConfigError, match="8 rows cannot be divided into 3 micro-batches"):
        make_step(squares, DESCENT, merging(graph), accumulation=3)(state, {}, points())
    with pytest.raises(ArgumentError, match="accumulation is 0"):
        make_step(squares, DESCENT, merging(graph), accumulation=0)


def test_evaluation_sums_add_up_to_the_loss_of_training():
    mesh = make_mesh(MeshConfig(fsdp=2), jax.devices()[:2])
    params = jax.tree.map(np.asarray, split(make_line())[1])
    graph, state = fresh(make_line, DESCENT)
    whole = jax.tree.map(lambda _: replicated(mesh), params)
    evaluate = compile_eval(make_eval_step(squares, merging(graph)), mesh, whole)
    sums = [
        jax.block_until_ready(evaluate(params, {}, shard_batch(points(n), mesh))) for n in (0, 1)
    ]
    total = functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), sums)
    both = jax.tree.map(lambda a, b: np.concatenate([a, b]), points(0), points(1))
    _, metrics = jax.jit(make_step(squares, DESCENT, merging(graph)))(state, {}, both, None)
    chex.assert_trees_all_close(total["loss"][0] / total["loss"][1], metrics["loss"], rtol=1e-6)
    assert evaluate._cache_size() == 1


@pytest.mark.slow
def test_learns_a_batch_by_heart(make_toy, sentences):
    tx = make_optimizer(OptimizerConfig("adam", 1e-2, ScheduleConfig("constant", 10)), 16, 100)
    graph, state = fresh(make_toy, tx)
    step, batch = jax.jit(make_step(sequence_to_sequence(bos=1), tx, merging(graph))), sentences()
    for _ in range(120):
        state, metrics = jax.block_until_ready(step(state, {}, batch))
    assert metrics["loss"] < 0.1, metrics


def test_b38_frozen_parameters_have_no_gradient_and_no_optimizer_state():
    """The norm that clipping goes by is that of what is trained."""
    graph, state = fresh(make_line, ADAM)
    step = jax.jit(make_step(squares, DESCENT, merging(graph)))
    whole, of_all = step(state._replace(opt_state=DESCENT.init(state.params)), {}, points())
    part = where(lambda path: path == "bias")
    trainable, frozen = part.split(state.params, nnx.Rngs(0))
    start = TrainState(jnp.int32(0), trainable, DESCENT.init(trainable))
    after, metrics = step(start, frozen, points())
    assert set(after.params) == {"bias"}
    np.testing.assert_array_equal(after.params["bias"], whole.params["bias"])
    moved = float(jnp.abs(after.params["bias"] - state.params["bias"])[0])
    np.testing.assert_allclose(metrics["grad_norm"], moved, rtol=1e-6)
    np.testing.assert_array_equal(metrics["loss"], of_all["loss"])
    names = set(flatten_dict(ADAM.init(trainable)))
    assert not any("kernel" in name for name in names)
    assert any("bias" in name for name in names)


def test_every_sum_is_divided_by_its_own_weight_however_the_batch_is_split():
    """Rows of unequal weight, so that a mean of means would differ."""

    def objective(model, batch, key):
        sums = squares(model, batch, key)
        marked = (batch["y"][:, 0] > 0).astype(jnp.float32)
        return sums | {"marked": ((batch["x"].sum(1) * marked).sum(), marked.sum())}

    graph, state = fresh(make_line, DESCENT)
    batch = points(3)
    marked = batch["y"][:, 0] > 0
    assert len(set(marked.reshape(4, 2).sum(0))) == 2, (
        "equal weights would not show a mean of means"
    )
    for accumulation in (1, 2):
        step = jax.jit(make_step(objective, DESCENT, merging(graph), accumulation=accumulation))
        _, metrics = step(state, {}, batch)
        np.testing.assert_allclose(metrics["marked"], batch["x"].sum(1)[marked].mean(), rtol=1e-5)
        assert metrics["weight"] == 8


def test_an_objective_of_whole_batches_refuses_accumulation():
    def contrast(model, batch, key):
        return squares(model, batch, key)

    contrast.whole_batch = True
    graph, _ = fresh(make_line, DESCENT)
    make_step(contrast, DESCENT, merging(graph))
    with pytest.raises(ConfigError, match="compares all rows"):
        make_step(contrast, DESCENT, merging(graph), accumulation=2)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (jnp.float32(1), "this one returned"),
        ({"accuracy": (1.0, 1.0)}, "this one returned dict of accuracy"),
        ({"loss": jnp.float32(1)}, r"loss is one array of shape \[\] here"),
        ({"loss": (jnp.ones(3), 3.0)}, r"loss is 2 arrays of shapes \[3\], \[\] here"),
        ({"loss": (1.0, 1.0), "right": (1.0,)}, r"right is 1 array of shape \[\] here"),
    ],
)
def test_an_objective_without_a_sum_and_its_weight_is_refused(returned, says):
    graph, state = fresh(make_line, DESCENT)
    step = make_step(lambda model, batch, key: returned, DESCENT, merging(graph))
    with pytest.raises(ConfigError, match=f"an objective returns a dictionary.*; {says}"):
        step(state, {}, points())
