"""Two towers: all rows of a batch are compared, however it is divided."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.training import families
from transformer_jax.core.errors import ConfigError
from transformer_jax.models.layers.basic import Embed, Linear
from transformer_jax.models.partition import merging
from transformer_jax.models.two_towers import TwoTowers
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.settings import MeshConfig
from transformer_jax.training import objectives
from transformer_jax.training.micro_batches import Compared, cached
from transformer_jax.training.state import create_state
from transformer_jax.training.step import compile_step, make_step


class Plain(nnx.Module):
    """Vectors by one linear map and one table, compared as those of two towers are."""

    similarities = TwoTowers.similarities

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.image = Linear(192, 24, ("embed", None), rngs=rngs)
        self.text = Embed(24, 24, scale=1.0, rngs=rngs)
        self.logit_scale = nnx.Param(jnp.ones(1), axes=(None,))
        self.logit_bias = None

    def embed_images(self, images, *, key=None):
        return self.image(images.reshape(len(images), -1) / 10)

    def embed_texts(self, tokens, lengths, *, key=None):
        return self.text(tokens[:, 0])


@functools.cache
def whole(model):
    case = families.draw("images and texts")._replace(accumulation=1)
    if model == "plain":
        case = case._replace(make=Plain, objective=objectives.contrastive())
    params, loss = families.step_on(make_mesh(MeshConfig(1), jax.devices()[:1]), case)
    return case, jax.tree.map(np.asarray, params), loss


@pytest.mark.apart("sizes")
@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("sizes", [(1,), (2,), (8,), (1, 2), (2, 2, 2)])
@pytest.mark.parametrize("model", ["plain", "towers"])
def test_loss_and_gradients_are_those_of_the_whole_batch_on_one_device(model, sizes, accumulation):
    """By cached gradients too; the objective knows the texts of all devices."""
    case, expected, expected_loss = whole(model)
    mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])
    params, loss = families.step_on(mesh, case._replace(accumulation=accumulation))
    assert abs(loss - expected_loss) / families.scale(expected_loss) < 1e-5
    assert families.worst_difference(params, expected) < 1e-5


@pytest.mark.slow
def test_parts_alone_have_another_loss():
    """Comparing within micro-batches only would not pass for the whole."""
    case, _, expected_loss = whole("plain")
    rows = slice(0, len(case.batch["lengths"]) // 2)
    half = case._replace(batch=jax.tree.map(lambda x: x[rows], case.batch))
    _, loss = families.step_on(make_mesh(MeshConfig(1), jax.devices()[:1]), half)
    assert abs(loss - expected_loss) > 1e-2


def test_pmap_is_refused():
    """It would compare the rows of each device among themselves."""
    case, _, _ = whole("plain")
    mesh = make_mesh(MeshConfig(1), jax.devices()[:1])
    graph, state, shardings, _ = create_state(case.make, families.DESCENT, mesh)
    step = make_step(case.objective, families.DESCENT, merging(graph))
    with pytest.raises(ConfigError, match="use jit"):
        compile_step(step, mesh, shardings, "pmap")(state, {}, case.batch)


@pytest.mark.slow
def test_dropout_is_the_same_in_both_passes():
    """With noise from the key alone, cached gradients are those of the parts put together."""
    noise = lambda key, rows: jax.random.normal(key, (rows, 3))

    def embed(model, batch, key):
        return (batch["x"] + noise(key, len(batch["x"]))) * model["scale"]

    compare = lambda model, vectors, batch: {
        "loss": ((vectors @ vectors.T).sum(), jnp.float32(len(vectors)))
    }
    batch = {"x": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)}
    params, key = {"scale": jnp.float32(1.5)}, jax.random.key(0)
    objective = Compared(embed, compare)
    merge = lambda params, frozen, key: params
    sums, grads = cached(objective, merge, 2)(params, {}, batch, key)

    def loss(params):
        drawn = [noise(jax.random.fold_in(key, i), 2) for i in range(2)]
        x = batch["x"] + jnp.stack(drawn, 1).reshape(4, 3)  # row r is in part r % 2
        return compare(params, x * params["scale"], batch)["loss"][0]

    value, slope = jax.value_and_grad(loss)(params)
    np.testing.assert_allclose(sums["loss"][0], value, rtol=1e-6)
    np.testing.assert_allclose(grads["scale"], slope["scale"], rtol=1e-6)


def test_texts_of_one_image_are_no_negatives_on_a_mesh_either():
    """The batches above have such texts; without their numbers the loss is another."""
    case, _, expected_loss = whole("plain")
    assert case.batch["captions"].shape[1] > 1
    batch = {name: array for name, array in case.batch.items() if name != "captions"}
    alone = make_mesh(MeshConfig(1), jax.devices()[:1])
    _, loss = families.step_on(alone, case._replace(batch=batch))
    assert abs(loss - expected_loss) > 1e-2
