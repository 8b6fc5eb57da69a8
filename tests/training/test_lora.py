"""Laws of adapters (row B39): what they change, what they leave alone, and what is stored."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from transformer_jax import laws
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.data.plan import ArrayPlan
from transformer_jax.functional.low_rank import column_gain
from transformer_jax.models.build import make_model
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    FeedForwardConfig,
    LoRAConfig,
)
from transformer_jax.models.layers.basic import Linear
from transformer_jax.models.layers.parameters import values
from transformer_jax.models.lora import lora, merged, split_adapters
from transformer_jax.models.lora_layers import LoRALinear, choose_rows, init_adapter
from transformer_jax.models.partition import overlay
from transformer_jax.models.presets import PRESETS
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.placement import prepare_for_decoding
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.runs import manifest
from transformer_jax.runs.checkpoint_reader import load_params, load_parts
from transformer_jax.training import objectives
from transformer_jax.training.adapter_parts import Adapter, with_choice
from transformer_jax.training.settings import LoopConfig
from transformer_jax.training.state import TrainState, abstract_parts, create_state, digest, split
from transformer_jax.training.step import make_step
from transformer_jax.training.task import Data, Task
from transformer_jax.training.trainer import Trainer

VARIANTS = ("lora", "rslora", "dora")
TOKENS = np.random.default_rng(0).integers(1, 11, (4, 9)).astype(np.int32)


def small(scan=False, dtype="float32", **changed):
    """The configuration of a small decoder."""
    sizes = {"vocab_size": 11, "d_model": 16, "decoder_layers": 2} | changed
    return dataclasses.replace(
        PRESETS["nanogpt_char"],
        attention=AttentionConfig(num_heads=4),
        feed_forward=FeedForwardConfig(d_ff=24),
        compute=ComputeConfig(dtype=dtype, scan_layers=scan),
        **sizes,
    )


def decoder(**how):
    return lambda: make_model("decoder", small(**how), rngs=nnx.Rngs(0))


def parts_of(make, config, seed=0):
    """Graph, adapters and frozen parameters."""
    mesh = make_mesh(MeshConfig(1), jax.devices()[:1])
    graph, state, _, frozen = create_state(
        make, optax.sgd(1.0), mesh, partition=lora(config), seed=seed
    )
    return graph, state.params, frozen


def shapes_of(make, partition):
    """Trainable and frozen parameters without their values."""
    return tuple(map(values, abstract_parts(make, partition)))


def nudged(tree, seed=1):
    """Adapters as after training: none is zero."""
    draw = np.random.default_rng(seed)
    return jax.tree.map(
        lambda a: a + jnp.asarray(0.1 * draw.standard_normal(a.shape), a.dtype), tree
    )


def logits(model, tokens=TOKENS):
    graph, params = split(model)
    run = jax.jit(lambda params, x: nnx.merge(graph, params)(x))
    return run(params, jnp.asarray(tokens))


def test_an_adapter_of_rank_8_on_a_768_by_768_matrix_has_12288_parameters():
    make = lambda: make_model("decoder", PRESETS["gpt2_small"], rngs=nnx.Rngs(0))
    trained, frozen = shapes_of(make, lora(LoRAConfig(8)))
    sizes = {name: leaf.size for name, leaf in flatten_dict(trained).items()}
    query = "decoder/blocks/0/self_attention/query"
    assert flatten_dict(frozen)[f"{query}/kernel"].shape == (768, 768)
    assert sizes[f"{query}/lora_a"] + sizes[f"{query}/lora_b"] == 12_288
    assert sum(sizes.values()) == 12 * 4 * 12_288


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "how", [{}, {"scan": True}, {"dtype": "bfloat16"}], ids=["looped", "scanned", "bfloat16"]
)
@pytest.mark.slow
def test_step_0_is_the_base_bit_for_bit_and_later_ones_are_not(variant, how):
    make, config = decoder(**how), LoRAConfig(4, targets=("all-linear",), variant=variant)
    graph, trainable, frozen = parts_of(make, config)
    base = logits(nnx.merge(graph, frozen))
    merge = lora(config).merge
    np.testing.assert_array_equal(logits(merge(graph, trainable, frozen, None)), base)
    # Dropout is of what adapters read: it changes nothing either.
    rated = lora(dataclasses.replace(config, dropout=0.5)).merge
    dropped = jax.jit(lambda *parts: rated(graph, *parts)(jnp.asarray(TOKENS)))
    np.testing.assert_array_equal(dropped(trainable, frozen, jax.random.key(0)), base)
    assert np.abs(logits(merge(graph, nudged(trainable), frozen, None)) - base).max() > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("scan", [False, True], ids=["looped", "scanned"])
def test_merged_weights_compute_what_adapters_compute(variant, scan):
    config = LoRAConfig(4, targets=("all-linear",), variant=variant)
    graph, trainable, frozen = parts_of(decoder(scan=scan), config)
    trainable = nudged(trainable)
    adapted = lora(config).merge(graph, trainable, frozen, None)
    plain = nnx.merge(graph, jax.device_put(merged(trainable, frozen, config.scale)))
    np.testing.assert_allclose(logits(adapted), logits(plain), atol=1e-5)
    np.testing.assert_allclose(logits(prepare_for_decoding(adapted, 1)), logits(plain), atol=1e-5)
    kernel = lambda tree: flatten_dict(tree)[
        "decoder/blocks/self_attention/query/kernel"
        if scan
        else "decoder/blocks/1/self_attention/query/kernel"
    ]
    assert np.abs(kernel(split(plain)[1]) - kernel(frozen)).max() > 0.01


@pytest.mark.slow
def test_rows_of_a_scanned_model_choose_their_adapters():
    """Row B39: stacked layers, and their adapters, become separate ones."""
    config = LoRAConfig(4, targets=("all-linear",), variant="dora")
    make = decoder(scan=True)
    graph, trainable, frozen = parts_of(make, config)
    adapters, plain = [], [nnx.merge(graph, frozen)]
    for seed in (1, 2):
        own = nudged(trainable, seed)
        params, itself = split_adapters(jax.device_get(own))
        adapters.append(Adapter(params, dict.fromkeys(params, config.scale), itself))
        plain.append(nnx.merge(graph, jax.device_put(merged(own, frozen, config.scale))))
    chosen, rows = with_choice(nnx.merge(graph, frozen), adapters), np.array([2, 0, 1, 2])
    own_graph, params = split(chosen)
    found = logits(nnx.merge(own_graph, choose_rows(params, rows)))
    for row, number in enumerate(rows):
        np.testing.assert_allclose(found[row], logits(plain[number])[row], atol=1e-5)


def test_the_formulas_of_the_variants():
    """By the definitions of the papers, on one kernel in NumPy."""
    rng = np.random.default_rng(2)
    W, A, B = (rng.standard_normal(s).astype(np.float32) for s in ((6, 5), (6, 4), (4, 5)))
    change = rng.standard_normal(5).astype(np.float32)
    scale = {v: LoRAConfig(4, 8.0, variant=v).scale for v in VARIANTS}
    assert scale == {"lora": 2.0, "rslora": 4.0, "dora": 2.0}
    adapter = {"up": {"lora_a": A, "lora_b": B}}
    for variant in ("lora", "rslora"):
        found = merged(adapter, {"up": {"kernel": W}}, scale[variant])["up"]["kernel"]
        np.testing.assert_allclose(found, W + scale[variant] * A @ B, atol=1e-5)
    adapter["up"]["lora_magnitude"] = change
    found = merged(adapter, {"up": {"kernel": W}}, 2.0)["up"]["kernel"]
    V = W + 2 * A @ B
    m = np.linalg.norm(W, axis=0) + change
    np.testing.assert_allclose(found, m * V / np.linalg.norm(V, axis=0), rtol=1e-4, atol=1e-5)


def loss_of(graph, config, key=None):
    batch = {
        "tokens": jnp.asarray(TOKENS[:, :-1]),
        "targets": jnp.asarray(TOKENS[:, 1:]),
        "weights": jnp.ones((4, 8)),
    }

    def loss(trainable, frozen):
        model = lora(config).merge(graph, trainable, frozen, key)
        return objectives.language_model()(model, batch, key)["loss"][0]

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradients_are_those_of_attention_adapters_alone(variant):
    config = LoRAConfig(4, variant=variant, dropout=0.1)
    graph, trainable, frozen = parts_of(decoder(), config)
    grads = jax.jit(jax.grad(loss_of(graph, config, jax.random.key(1))))(nudged(trainable), frozen)
    names = flatten_dict(grads)
    assert not any("feed_forward" in name for name in names)  # MLP weights are fixed
    kinds = {name.split("/")[4] for name in names}
    assert kinds == {"query", "key", "value", "out"}
    assert all(np.abs(leaf).max() > 0 for leaf in names.values())


@pytest.mark.slow
def test_dora_takes_the_length_of_directions_for_a_constant():
    """Section 4.3 of Liu et al. 2024: the gradient is that of m V / c with c = ‖V‖ held."""
    config = LoRAConfig(2, variant="dora")
    graph, trainable, frozen = parts_of(decoder(), config)
    trainable = nudged(trainable)
    grads = flatten_dict(jax.jit(jax.grad(loss_of(graph, config)))(trainable, frozen))
    at = "decoder/blocks/0/self_attention/value"
    kernel = frozen["decoder"]["blocks"][0]["self_attention"]["value"]["kernel"]
    own = trainable["decoder"]["blocks"][0]["self_attention"]["value"]
    length = jnp.linalg.norm(kernel + config.scale * own["lora_a"] @ own["lora_b"], axis=0)
    magnitude = jnp.linalg.norm(kernel, axis=0) + own["lora_magnitude"]

    whole = jax.device_put(merged(trainable, frozen, config.scale))

    def held(b):
        V = kernel + config.scale * own["lora_a"] @ b
        whole["decoder"]["blocks"][0]["self_attention"]["value"]["kernel"] = (
            V * (magnitude / length)[None]
        )
        model = nnx.merge(graph, whole)
        batch = {"tokens": TOKENS[:, :-1], "targets": TOKENS[:, 1:], "weights": np.ones((4, 8))}
        batch = {name: jnp.asarray(value) for name, value in batch.items()}
        return objectives.language_model()(model, batch, None)["loss"][0]

    expected = jax.jit(jax.grad(held))(own["lora_b"])
    np.testing.assert_allclose(grads[f"{at}/lora_b"], expected, rtol=1e-3, atol=1e-4)


def test_dora_trains_a_column_of_zeros():
    """Row B39: such a column has no direction; it starts at zero, and no gradient is NaN."""
    rng = np.random.default_rng(5)
    kernel = rng.standard_normal((6, 5)).astype(np.float32)
    kernel[:, 1], kernel[:, 3] = 0, 1e-30  # the squares of the latter are 0 in float32
    base = Linear(6, 5, ("embed", "mlp"), rngs=nnx.Rngs(0))
    base.kernel[...] = jnp.asarray(kernel)
    own = init_adapter(base.kernel, 2, True, nnx.Rngs(1))
    x, wanted = (rng.standard_normal((7, n)).astype(np.float32) for n in (6, 5))

    def loss(own):
        params = {name: nnx.Param(value) for name, value in own.items()}
        y = LoRALinear(base, params, 2.0, 0.0)(jnp.asarray(x))
        return jnp.square(y - wanted).mean(), y

    own = {name: param[...] for name, param in own.items()}
    W = jnp.asarray(kernel)
    gain = jax.jit(lambda p: column_gain(W, p["lora_a"], p["lora_b"], 2.0, p["lora_magnitude"]))
    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    losses = []
    for i in range(300):
        (_, y), grads = step(own)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((y, grads)))
        if i == 0:
            np.testing.assert_array_equal(gain(own), 1)
            np.testing.assert_allclose(y, x @ kernel, atol=1e-5)
        losses.append(np.square(y - wanted).mean(0)[jnp.array([1, 3])])
        own = jax.tree.map(lambda p, g: p - 0.1 * g, own, grads)
    assert (losses[-1] < 0.95 * losses[0]).all()
    arrays = [np.asarray(own[name]) for name in ("lora_a", "lora_b", "lora_magnitude")]
    V = kernel + 2 * arrays[0] @ arrays[1]
    m = np.linalg.norm(kernel, axis=0) + arrays[2]
    plain = merged({"up": own}, {"up": {"kernel": kernel}}, 2.0)["up"]["kernel"]
    np.testing.assert_allclose(plain, m * V / np.linalg.norm(V, axis=0), rtol=1e-4, atol=1e-5)


def adapter_task(config, **how):
    rng = np.random.default_rng(3)
    rows = rng.integers(1, 11, (24, 9)).astype(np.int32)
    make = lambda i: {
        "tokens": rows[i][:, :-1],
        "targets": rows[i][:, 1:],
        "weights": np.ones((len(i), 8), np.float32),
    }
    data = Data(ArrayPlan(24, 8, 0), make, "rows")
    model = lambda rngs: make_model("decoder", small(**how), rngs=rngs)
    objective = objectives.language_model()
    return Task(model, data, objective, valid={"valid": data}, partition=lora(config))


def adapter_run(path, task, mesh=None, **how):
    mesh = mesh or make_mesh(MeshConfig(1), jax.devices()[:1])
    loop = LoopConfig(evaluate_every=2, checkpoint_every=2)
    return Trainer(task, path, optax.adam(0.05), mesh, seed=5, loop=loop, **how)


@pytest.mark.parametrize(
    "config",
    [
        LoRAConfig(2, dropout=0.2),
        LoRAConfig(2, variant="dora", targets=("all-linear",), base_dtype="bfloat16"),
    ],
    ids=["lora", "dora on bfloat16"],
)
@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_and_stores_adapters_alone(tmp_path, no_curves, config):
    task = adapter_task(config)
    cut = adapter_run(tmp_path / "cut", task)

    def train(stops):
        for stop in stops:
            adapter_run(tmp_path / "cut", task).fit(steps=stop)
        run = adapter_run(tmp_path / ("cut" if stops else "whole"), task)
        return digest(run.fit(steps=4).state)

    laws.resumed(train, [(2,)]).require()
    first, last = (load_parts(tmp_path / "cut", step) for step in (2, 4))
    assert digest(first.frozen) == digest(last.frozen)
    start = split(cut._model())[1]
    kept = flatten_dict(last.frozen)
    for name, value in flatten_dict(start).items():
        assert kept[name].tobytes() == np.asarray(value.astype(kept[name].dtype)).tobytes()
    fields = manifest.read(tmp_path / "cut/checkpoints/step_00000004")
    stored = [name for name in fields["tree"] if name.startswith(("params", "opt_state"))]
    arrays = [name for name in stored if fields["tree"][name]["shape"]]
    assert arrays
    assert all("lora_" in name for name in arrays)
    assert fields["frozen"] == digest(last.frozen)
    # What loads a run for use gets plain weights that compute the same.
    plain = nnx.merge(cut.graph, load_params(tmp_path / "cut", "last").params)
    adapted = cut.load("last")
    tolerance = 1e-5 if config.base_dtype == "float32" else 0.05
    np.testing.assert_allclose(logits(plain), logits(adapted), atol=tolerance)


@pytest.mark.slow
def test_a_bfloat16_base_has_half_of_the_bytes():
    both = [
        parts_of(decoder(), LoRAConfig(2, base_dtype=dtype))[2] for dtype in ("float32", "bfloat16")
    ]
    whole, half = (
        sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if leaf.ndim > 1) for tree in both
    )
    assert whole == 2 * half


def test_what_is_trained_beside_adapters_is_trained_itself(tmp_path):
    partition = lora(LoRAConfig(2, targets=("query",)), lambda path: path.startswith("head/"))
    make = lambda: make_model("decoder", small(vocab_size=12), rngs=nnx.Rngs(0))
    trained, frozen = shapes_of(make, partition)
    names = set(flatten_dict(trained))
    heads = {name for name in flatten_dict(split(make())[1]) if name.startswith("head/")}
    assert heads <= names
    assert {name.rpartition("/")[2] for name in names - heads} == {"lora_a", "lora_b"}
    assert not heads & set(flatten_dict(frozen))
    assert flatten_dict(overlay(frozen, {})).keys() | heads == flatten_dict(split(make())[1]).keys()


def test_a_step_moves_adapters_and_nothing_else():
    config = LoRAConfig(2)
    graph, trainable, frozen = parts_of(decoder(), config)
    tx = optax.sgd(0.1)
    batch = {
        "tokens": jnp.asarray(TOKENS[:, :-1]),
        "targets": jnp.asarray(TOKENS[:, 1:]),
        "weights": jnp.ones((4, 8)),
    }
    merge = lambda *parts: lora(config).merge(graph, *parts)
    step = jax.jit(make_step(objectives.language_model(), tx, merge))
    state, metrics = step(TrainState.create(trainable, tx), frozen, batch, None)
    moved = {
        name
        for name, value in flatten_dict(state.params).items()
        if np.any(np.asarray(value) != np.asarray(flatten_dict(trainable)[name]))
    }
    # B is zero, so that A has no gradient yet.
    assert {name.rpartition("/")[2] for name in moved} == {"lora_b"}
    assert np.isfinite(metrics["loss"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 17}, "rank is 17: decoder/blocks/0/self_attention/key is 16 x 16"),
        ({"rank": 2, "targets": ("quary",)}, "targets is quary: the model has no linear map"),
        ({"rank": 2, "targets": ()}, "targets is empty"),
        ({"rank": 0}, "rank is 0"),
        ({"rank": -1}, "rank is -1: at least 0"),
        ({"rank": 2, "alpha": 0.0}, "alpha is 0.0"),
        ({"rank": 2, "dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(fields, message):
    with pytest.raises(ConfigError, match=message) as caught:
        abstract_parts(decoder(), lora(LoRAConfig(**fields)))
    assert "\n" not in str(caught.value)
