"""Laws of the Vision Transformer (row L3): Dosovitskiy et al. 2021."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.drawing import drawn, normals
from transformer_jax import laws
from transformer_jax.core.errors import ConfigError
from transformer_jax.core.trees import flatten_dict
from transformer_jax.functional.partitioning import constrain, on_mesh
from transformer_jax.functional.patches import patchify
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    ImageConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.costs import accounting
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.models.prepare import stack_blocks
from transformer_jax.models.presets import PRESETS, bert, vit
from transformer_jax.models.transformer.models import Encoder
from transformer_jax.models.vision import ImageClassifier, VisionEncoder
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.sharding import shardings

D, SIZE, PATCH, CHANNELS, CLASSES = 16, 12, 4, 2, 3
PATCHES = (SIZE // PATCH) ** 2
SMALL = dataclasses.replace(
    vit(D, 2, image_size=SIZE, patch_size=PATCH, num_channels=CHANNELS),
    attention=AttentionConfig(num_heads=4),
)
change = functools.partial(dataclasses.replace, SMALL)
POOLED = change(head=dataclasses.replace(SMALL.head, pooler=True))
PLACELESS = change(positions=PositionConfig(kind="none", max_length=1 + PATCHES))
DRAW = np.random.default_rng(0)
IMAGES = jnp.asarray(DRAW.standard_normal((3, SIZE, SIZE, CHANNELS)), jnp.float32)
ORDER = jnp.asarray(DRAW.permutation(PATCHES))


@functools.lru_cache
def parts(config, labels=CLASSES):
    if labels:
        make = lambda: ImageClassifier(config, labels=labels, rngs=nnx.Rngs(0))
    else:
        make = lambda: VisionEncoder(config, rngs=nnx.Rngs(0))
    return drawn(make)


def compiled(config, function=lambda model, *args: model(*args), labels=CLASSES):
    """``function(model, ...)`` of arrays: op by op, these tests would take minutes."""
    graph, params = parts(config, labels)
    run = jax.jit(lambda params, *args: function(nnx.merge(graph, params), *args))
    return functools.partial(run, params)


def moved(images, order):
    """The same images with their patches in another order."""
    rows = SIZE // PATCH
    cut = patchify(images, PATCH)[:, order]
    squares = cut.reshape(len(images), rows, rows, PATCH, PATCH, CHANNELS)
    return jnp.swapaxes(squares, 2, 3).reshape(images.shape)


@pytest.mark.parametrize(
    ("name", "count"),
    [("vit_tiny", 5_717_416), ("vit_base", 86_567_656), ("vit_large", 304_326_632)],
)
def test_published_sizes_with_a_thousand_classes(name, count):
    stacked = dataclasses.replace(PRESETS[name], compute=ComputeConfig(scan_layers=True))
    make = lambda: ImageClassifier(stacked, labels=1000, rngs=nnx.Rngs(0))
    leaves = jax.tree.leaves(nnx.split(nnx.eval_shape(make))[1])
    assert sum(leaf.size for leaf in leaves) == count
    assert accounting.count_parameters(PRESETS[name]) == count - 1000 * (PRESETS[name].d_model + 1)


@pytest.mark.slow
def test_patches_moved_with_their_positions_move_their_vectors_and_nothing_else():
    run, params = compiled(SMALL, labels=0), parts(SMALL, 0)[1]
    table = params["encoder"]["positions"]["table"]
    there = jnp.concatenate([jnp.zeros(1, jnp.int32), 1 + ORDER])
    stack = params["encoder"] | {"positions": {"table": table[there]}}
    found = run.func(params | {"encoder": stack}, moved(IMAGES, ORDER))
    wanted = run(IMAGES)
    assert wanted.shape == (3, 1 + PATCHES, D)
    chex.assert_trees_all_close(found, wanted[:, there], atol=1e-5)


@pytest.mark.slow
def test_only_positions_tell_the_order_of_patches():
    other = moved(IMAGES, ORDER)
    assert not np.allclose(other, IMAGES)
    run = compiled(PLACELESS)
    chex.assert_trees_all_close(run(other), run(IMAGES), atol=1e-5)
    run = compiled(SMALL)
    assert not np.allclose(run(other), run(IMAGES), atol=1e-2)


@pytest.mark.parametrize("config", [SMALL, POOLED], ids=["small", "pooled"])
@pytest.mark.slow
def test_gradients_reach_every_parameter_and_every_pixel(config):
    graph, params = parts(config)
    weights = jnp.arange(1.0, 1.0 + CLASSES)[None]
    loss = lambda params, images: jnp.sum(weights * nnx.merge(graph, params)(images) ** 2)
    slopes, pixels = jax.jit(jax.grad(loss, argnums=(0, 1)))(params, IMAGES)
    still = {name for name, leaf in flatten_dict(slopes).items() if np.abs(leaf).max() < 1e-4}
    # The same number added to all of a query's scores.
    assert still == {f"encoder/blocks/{i}/self_attention/key/bias" for i in range(2)}
    assert np.asarray(pixels).all()
    assert np.asarray(slopes["embedding"]["kernel"]).any(1).all()
    assert np.asarray(slopes["encoder"]["positions"]["table"]).any(1).all()


@pytest.mark.slow
def test_rows_do_not_influence_one_another():
    run = compiled(SMALL)
    laws.batch_mates(run, IMAGES).require()
    laws.batch_of_one(run, IMAGES).require()


def test_what_the_first_block_sees_is_a_map_of_each_patch_and_a_place():
    p = jax.device_get(parts(SMALL, 0)[1])
    seen = lambda model, images: model.encoder.embed_inputs(
        model.embed(images), jnp.arange(1 + PATCHES)[None]
    )
    found = compiled(SMALL, seen, labels=0)(IMAGES)
    x = np.asarray(patchify(IMAGES, PATCH), np.float64) @ p["embedding"]["kernel"]
    first = np.broadcast_to(p["class_embedding"]["table"], (3, 1, D))
    x = np.concatenate([first, x + p["embedding"]["bias"]], 1)
    np.testing.assert_allclose(found, x + p["encoder"]["positions"]["table"], atol=1e-5)


@pytest.mark.slow
def test_a_class_is_told_from_the_first_vector_or_from_what_is_pooled():
    hidden = compiled(SMALL, lambda model, x: VisionEncoder.__call__(model, x))(IMAGES)
    for config in (SMALL, POOLED):
        p = jax.device_get(parts(config)[1])
        first = np.asarray(hidden[:, 0])
        if config is POOLED:
            first = np.tanh(first @ p["pooler"]["kernel"] + p["pooler"]["bias"])
        wanted = first @ p["labels"]["kernel"] + p["labels"]["bias"]
        np.testing.assert_allclose(compiled(config)(IMAGES), wanted, atol=1e-5)
    assert "pooler" not in parts(SMALL)[1]


@pytest.mark.slow
def test_scanned_and_recomputed_and_uncompiled_is_the_same():
    wanted, params = compiled(SMALL)(IMAGES), parts(SMALL)[1]
    stacked = params["encoder"] | {"blocks": stack_blocks(params["encoder"]["blocks"])}
    run = compiled(change(compute=ComputeConfig(scan_layers=True, remat=True)))
    found = run.func(params | {"encoder": stacked}, IMAGES)
    chex.assert_trees_all_close(found, wanted, atol=1e-5)
    assert wanted.dtype == jnp.float32
    graph, params = parts(SMALL)
    chex.assert_trees_all_close(nnx.merge(graph, params)(IMAGES), wanted, atol=1e-5)
    narrow = compiled(change(compute=ComputeConfig(dtype="bfloat16")))(IMAGES)
    assert narrow.dtype == jnp.float32
    chex.assert_trees_all_close(narrow, wanted, atol=0.2)
    assert not np.allclose(narrow, wanted, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_costs_counted_on_paper_are_those_of_xla(scale):
    """Row B13."""
    # Other kernels loop, and XLA counts the body of a loop once.
    attention = dataclasses.replace(SMALL.attention, implementation="xla")
    config = change(d_model=64, attention=attention, embedding=EmbeddingConfig(scale=scale))
    graph, params = parts(config, 0)
    forward = jax.jit(lambda params, images: nnx.merge(graph, params)(images))
    counted = forward.lower(params, IMAGES).cost_analysis()
    counted = counted[0] if isinstance(counted, list) else counted
    ours = accounting.model_cost(config, batch=3)
    assert ours.forward == pytest.approx(counted["flops"], rel=0.01)
    for part in accounting.components(config)[:2]:
        shapes = [leaf.shape for leaf in jax.tree.leaves(params[part.path])]
        assert sorted(shapes) == sorted(part.shapes)


def test_attention_maps_sum_to_one_over_all_places():
    maps = compiled(SMALL, lambda model, images: model.attention_maps(images))(IMAGES)
    chex.assert_shape(maps, (2, 3, 4, 1 + PATCHES, 1 + PATCHES))
    laws.weights_sum_to_one(maps, tolerance=1e-5).require()
    assert (np.asarray(maps) > 0).all()


@pytest.mark.slow
def test_dropout_needs_a_key_and_changes_with_it():
    wet = vit(D, 1, image_size=SIZE, patch_size=PATCH, num_channels=CHANNELS, dropout=0.5)
    run = compiled(wet, lambda model, images, key: model(images, key=key))
    keys = jax.random.split(jax.random.key(0))
    chex.assert_trees_all_equal(run(IMAGES, keys[0]), run(IMAGES, keys[0]))
    assert not np.allclose(run(IMAGES, keys[0]), run(IMAGES, keys[1]))
    assert not np.allclose(run(IMAGES, keys[0]), run(IMAGES, None))


KINDS = ["learned", "sinusoidal", "sinusoidal_2d", "rope", "alibi", "relative"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("learned", "sinusoidal_2d", "relative")
def test_any_positions_tell_the_order(kind):
    places = PositionConfig(kind=kind, max_length=1 + PATCHES)
    run = compiled(change(encoder_layers=1, positions=places))
    assert not np.allclose(run(moved(IMAGES, ORDER)), run(IMAGES), atol=1e-3)


def test_the_scale_of_embeddings_is_not_ignored():
    embed = lambda model, images: model.embed(images)
    scaled = change(embedding=EmbeddingConfig(scale=2.0))
    found, wanted = (compiled(config, embed)(IMAGES) for config in (scaled, SMALL))
    chex.assert_trees_all_close(found, 2 * wanted, atol=1e-6)


@pytest.mark.slow
def test_it_learns_where_an_image_is_bright():
    """The model finds the bright one of nine patches: pixels alone do not tell it."""
    config = vit(D, 1, image_size=SIZE, patch_size=PATCH, num_channels=CHANNELS)
    graph, state = nnx.split(ImageClassifier(config, labels=PATCHES, rngs=nnx.Rngs(0)))
    params, tx, rows = nnx.to_pure_dict(state), optax.adam(3e-3), SIZE // PATCH
    bright = np.kron(np.eye(PATCHES).reshape(-1, rows, rows), np.ones((PATCH, PATCH)))
    bright = jnp.asarray(np.tile(bright[..., None], (4, 1, 1, CHANNELS)), jnp.float32)
    where = jnp.tile(jnp.arange(PATCHES), 4)
    draw = lambda key: 2 * bright + 0.2 * jax.random.normal(key, bright.shape)
    scores = lambda params, key: nnx.merge(graph, params)(draw(key))

    def step(carry, key):
        params, held = carry
        wrong = optax.softmax_cross_entropy_with_integer_labels
        slopes = jax.grad(lambda params: wrong(scores(params, key), where).mean())(params)
        updates, held = tx.update(slopes, held)
        return (optax.apply_updates(params, updates), held), None

    keys = jax.random.split(jax.random.key(1), 400)
    learn = jax.jit(lambda params: jax.lax.scan(step, (params, tx.init(params)), keys)[0][0])
    found = jax.jit(scores)(learn(params), jax.random.key(2))
    np.testing.assert_array_equal(found.argmax(-1), where)


def test_every_parameter_has_a_place_on_a_mesh():
    declared = parameters(nnx.merge(*parts(POOLED)))
    found = shardings(declared, jax.sharding.AbstractMesh((1, 2, 1), ("data", "fsdp", "tensor")))
    assert found["embedding"]["kernel"].spec == P(None, "fsdp")
    assert found["embedding"]["bias"].spec == P(None)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"patch_size": 5}, "image.patch_size 5 does not divide image.image_size 12"),
        ({"patch_size": 24}, "image.patch_size 24 does not divide"),
        ({"patch_size": 0}, "image.patch_size is 0: at least 1"),
        ({"image_size": -12}, "image.image_size is -12: at least 0"),
        ({"num_channels": 0}, "image.num_channels is 0: at least 1"),
        ({"stem": "convolutions", "patch_size": 3}, "image.patch_size is 3: with image.stem"),
        ({"pooling": "sequence", "distillation": "head"}, "image.distillation head is for"),
    ],
)
def test_sizes_that_cannot_be_are_refused(fields, said):
    with pytest.raises(ConfigError, match=said):
        change(image=dataclasses.replace(SMALL.image, **fields))


def test_positions_of_a_grid_need_an_image_and_room_for_both_axes():
    grid = PositionConfig("sinusoidal_2d")
    with pytest.raises(ConfigError, match=r"is for images, and image\.image_size is 0"):
        TransformerConfig(positions=grid)
    with pytest.raises(ConfigError, match=r"d_model is 6: positions\.kind sinusoidal_2d needs"):
        change(d_model=6, attention=AttentionConfig(num_heads=1), positions=grid)


def test_positions_follow_from_the_image():
    assert change(image=dataclasses.replace(SMALL.image, image_size=16)).max_length == 17


def test_patches_of_no_size_are_refused():
    with pytest.raises(ConfigError, match="patch is 0: at least 1"):
        vit(D, 1, patch_size=0)


def test_words_and_images_are_told_apart():
    for fields, said in (
        ({"vocab_size": 5}, "vocab_size is 5: an image model has no vocabulary"),
        ({"decoder_layers": 1}, "image.image_size is for encoders, but there are decoder layers"),
        (
            {"image": ImageConfig()},
            "image.image_size and vocab_size are 0: a model of pictures needs",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            change(**fields)
    with pytest.raises(ConfigError, match=r"image\.image_size is 12: an encoder of words has 0"):
        Encoder(SMALL, rngs=nnx.Rngs(0))
    for config in (bert(D, 1), TransformerConfig(), change(encoder_layers=0)):
        with pytest.raises(ConfigError, match=r"encoder_layers is \d+ and image.image_size \d+"):
            VisionEncoder(config, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("shape", [(1, 16, 16, 2), (1, 2, 12, 12), (1, 12, 12, 3), (1, 12, 8, 2)])
def test_images_of_another_shape_are_refused(shape):
    graph, params = parts(SMALL)
    with pytest.raises(ConfigError, match=r"this model reads \[12, 12, 2\], channels last"):
        nnx.merge(graph, params)(jnp.zeros(shape))


FORMS = {
    "compact": {"stem": "convolutions", "stem_channels": 5, "pooling": "sequence"},
    "convolutions": {"stem": "convolutions", "stem_channels": 5},
    "convolutions without a bias": {
        "stem": "convolutions",
        "stem_channels": 5,
        "patch_bias": False,
    },
    "linear without a bias": {"patch_bias": False},
    "distilled": {"distillation": "head"},
    "second embedding": {"distillation": "embedding"},
}


@pytest.mark.parametrize("form", FORMS)
def test_parameters_of_every_form_are_counted(form):
    config = change(image=dataclasses.replace(SMALL.image, **FORMS[form]))
    _, params = parts(config, labels=0)
    found = {name: leaf.size for name, leaf in flatten_dict(params).items()}
    assert accounting.count_parameters(config) == sum(found.values()), found


def test_a_stem_of_convolutions_is_the_sum_over_neighbours():
    """Each convolution, its ReLU and its maximum, in loops of NumPy."""
    config = change(image=dataclasses.replace(SMALL.image, **FORMS["compact"]))
    p = jax.device_get(parts(config, labels=0)[1])
    found = compiled(config, lambda model, x: model.embed(x), labels=0)(IMAGES[:1])
    x = np.asarray(IMAGES[0], np.float64)
    for i in range(2):
        kernel = p["convolutions"][i]["kernel"].reshape(3, 3, x.shape[-1], -1)
        size = len(x)
        padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
        y = sum(
            padded[a : a + size, b : b + size] @ kernel[a, b] for a in range(3) for b in range(3)
        )
        y = np.pad(np.maximum(y, 0), ((1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
        x = np.array(
            [
                [y[r : r + 3, c : c + 3].max((0, 1)) for c in range(0, size, 2)]
                for r in range(0, size, 2)
            ]
        )
    assert found.shape == (1, PATCHES, D)
    np.testing.assert_allclose(found[0], x.reshape(PATCHES, D), atol=1e-5)


@pytest.mark.slow
def test_gradients_of_convolutions_on_a_mesh_are_those_of_one_device():
    """The context axis splits the patches of an image, but not its pixels."""
    config = vit(D, 1, image_size=8, patch_size=4, **FORMS["compact"])
    make = lambda: VisionEncoder(config, rngs=nnx.Rngs(0))
    images, weights = normals((16, 8, 8, 3), (16, 4, D))
    graph, params = drawn(make)

    def loss(params, images):
        patches = nnx.merge(graph, params).embed(images)
        return (constrain(patches, ("batch", "sequence", None)) * weights).sum()

    one = jax.jit(jax.grad(loss))(params, images)
    mesh = make_mesh(fsdp=2, tensor=2, context=2)
    declared = parameters(nnx.eval_shape(make))
    rows = NamedSharding(mesh, P(("data", "fsdp")))
    placed = jax.device_put((params, images), (shardings(declared, mesh), rows))
    with on_mesh(mesh):
        found = jax.block_until_ready(jax.jit(jax.grad(loss))(*placed))
    chex.assert_trees_all_close(found, one, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_sequence_pooling_is_a_weighted_sum_of_patches():
    config = change(image=dataclasses.replace(SMALL.image, **FORMS["compact"]))
    p = jax.device_get(parts(config)[1])
    hidden = compiled(config, lambda model, x: VisionEncoder.__call__(model, x))(IMAGES)
    scores = np.asarray(hidden) @ p["pool"]["kernel"] + p["pool"]["bias"]
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    wanted = (weights * np.asarray(hidden)).sum(1) @ p["labels"]["kernel"] + p["labels"]["bias"]
    np.testing.assert_allclose(compiled(config)(IMAGES), wanted, atol=1e-5)
