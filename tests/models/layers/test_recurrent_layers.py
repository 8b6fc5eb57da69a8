"""Recurrent layers: NumPy's formulas, invisible padding, gradients of the unrolled loop."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.drawing import drawn, normals
from transformer_jax import laws
from transformer_jax.core.errors import UserError
from transformer_jax.functional.partitioning import on_mesh
from transformer_jax.functional.recurrent import CELLS, recur, reverse_texts
from transformer_jax.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    MixerConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.layers.parameters import parameters
from transformer_jax.models.layers.recurrent_layers import Recurrent, RecurrentLayer
from transformer_jax.models.transformer.layers import Stack
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.sharding import shardings

B, T, I, D = 4, 7, 5, 6
LENGTHS = np.array([7, 3, 1, 5])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_step(cell, x, kernel, state):
    """The formula of each cell, with the blocks of columns of ``CELLS``; rows B25, U2, T8."""
    h = state[0]
    u = np.split(kernel, kernel.shape[1] // D, axis=1)
    if cell in ("tanh", "relu"):
        a = x + h @ kernel
        return (np.tanh(a) if cell == "tanh" else np.maximum(a, 0),)
    x = np.split(x, x.shape[1] // D, axis=1)
    if cell == "lstm":
        i, f, g, o = (x[n] + h @ u[n] for n in range(4))
        c = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(c), c
    r, z = (sigmoid(x[n] + h @ u[n]) for n in range(2))
    before = cell == "gru"
    new = x[2] + (r * h) @ u[2] if before else x[3] + r * (x[2] + h @ u[2])
    return (z * h + (1 - z) * np.tanh(new),)


def arrays(cell, seed=1):
    kind = CELLS[cell]
    shapes = [(B, T, kind.inputs * D), (D, kind.products * D), *[(B, D)] * kind.states]
    x, kernel, *state = normals(*shapes, seed=seed)
    return x, kernel * 0.5, tuple(state)


def looped(cell, x, kernel, state, lengths, truncate=None):
    """The loop over positions, written out: what reverse mode is compared with."""
    D, outputs = kernel.shape[0], []
    for t in range(x.shape[1]):
        if truncate and t and t % truncate == 0:
            state = jax.lax.stop_gradient(state)

        def add(operand, start, stop, t=t):
            columns = slice(start * D, stop * D)
            part = operand @ kernel[:, columns] if start < CELLS[cell].products else 0
            return x[:, t, columns] + part

        new, inside = CELLS[cell].step(add, state), (t < lengths)[:, None]
        state = tuple(jnp.where(inside, a, b) for a, b in zip(new, state, strict=True))
        outputs.append(jnp.where(inside, new[0], 0))
    return jnp.stack(outputs, 1), state


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_is_its_formula(cell):
    x, kernel, state = arrays(cell)
    y, last = jax.jit(lambda *a: recur(CELLS[cell], *a))(x, kernel, state, LENGTHS)
    x, kernel, now = jax.tree.map(np.asarray, (x, kernel, state))
    for t in range(T):
        new = numpy_step(cell, x[:, t], kernel, now)
        inside = (t < LENGTHS)[:, None]
        now = tuple(np.where(inside, a, b) for a, b in zip(new, now, strict=True))
        np.testing.assert_allclose(y[:, t], np.where(inside, new[0], 0), atol=1e-5)
    chex.assert_trees_all_close(last, now, atol=1e-5)


@pytest.mark.quick("gru_reset_after-2")
@pytest.mark.parametrize("truncate", [None, 2])
@pytest.mark.parametrize("cell", CELLS)
def test_gradients_are_those_of_the_unrolled_loop(cell, truncate):
    given = arrays(cell)
    weights = normals((B, T, D), *[(B, D)] * CELLS[cell].states, seed=3)

    def loss(function):
        def total(x, kernel, state):
            y, last = function(x, kernel, state)
            return sum((w * a).sum() for w, a in zip(weights, (y, *last), strict=True))

        return jax.jit(jax.value_and_grad(total, (0, 1, 2)))

    scanned = loss(lambda *a: recur(CELLS[cell], *a, jnp.array(LENGTHS), truncate))(*given)
    unrolled = loss(lambda *a: looped(cell, *a, LENGTHS, truncate))(*given)
    chex.assert_trees_all_close(scanned, unrolled, rtol=1e-4, atol=2e-5)


def test_truncation_stops_gradients_at_multiples_of_its_number():
    x, kernel, state = arrays("gru")
    gradient = jax.grad(lambda x: recur(CELLS["gru"], x, kernel, state, None, 3)[0][:, 5].sum())(x)
    assert (gradient[:, :3] == 0).all()
    assert (np.abs(gradient[:, 3:6]).max((0, 2)) > 0).all()


@pytest.mark.slow
def test_b25_blocks_learn_back_to_the_last_multiple_and_compute_the_same():
    """Row B25: truncation leaves outputs as they are, and gradients end at position 3."""
    [x] = normals((1, 6, D))
    found = {}
    for length in (None, 3):
        config = TransformerConfig(
            vocab_size=8, d_model=D, encoder_layers=0, decoder_layers=2,
            mixer=MixerConfig("recurrent", cell="gru", bptt_length=length),
            positions=PositionConfig(kind="none"), attention=AttentionConfig(num_heads=2),
            feed_forward=FeedForwardConfig(d_ff=0),
        )  # fmt: skip
        graph, params = drawn(
            lambda config=config: Stack(config, 2, decoder=True, cross=False, rngs=nnx.Rngs(0))
        )
        model = nnx.merge(graph, params)
        last = jax.value_and_grad(lambda x, model: (model(x)[0, 5] ** 2).sum())
        found[length] = nnx.jit(last)(x, model)
    np.testing.assert_array_equal(found[None][0], found[3][0])
    reached = {length: np.abs(g[0]).max(1) > 0 for length, (_, g) in found.items()}
    assert reached[None].all()
    assert reached[3].tolist() == [False, False, False, True, True, True]


def test_sizes_that_do_not_fit_are_refused():
    x, kernel, state = arrays("lstm")
    lstm = CELLS["lstm"]
    for given, message in (
        ((x[..., 1:], kernel, state), "projected has 23 columns or arrays, the cell 24"),
        ((x, kernel[:, 1:], state), "kernel has 23 columns or arrays, the cell 24"),
        ((x, kernel, state[:1]), "state has 1 columns or arrays, the cell 2"),
        ((x, kernel, state, None, 0), "truncate is 0: at least 1"),
    ):
        with pytest.raises(UserError, match=f"recur: {message}"):
            recur(lstm, *given)


def stack(cell, **how):
    how = {"layers": 2, "bidirectional": True, "dropout": 0.3} | how
    return Recurrent(I, D, cell, **how, rngs=nnx.Rngs(0))


run = nnx.jit(lambda model, x, lengths, states=None: model(x, lengths, states))


@pytest.mark.slow
@pytest.mark.parametrize("cell", CELLS)
def test_padding_is_invisible_in_both_directions(cell):
    model, [x] = stack(cell), normals((B, T, I))
    inside = np.arange(T) < LENGTHS[:, None]
    lengths = lambda real: jnp.asarray(real.sum(1), jnp.int32)
    both = lambda x, real, _: run(model, jnp.asarray(x), lengths(real))
    outputs = lambda x, real: both(x, real, None)[0]
    laws.padding(outputs, x, inside).require()
    laws.padding_length(outputs, x, inside, tolerance=1e-6).require()
    states = lambda *given: both(*given)[1]
    laws.source_padding(states, x, inside, None).require()
    laws.source_length(states, x, inside, None, tolerance=1e-6).require()
    assert (np.where(inside[:, :, None], 0, outputs(x, inside)) == 0).all()


@pytest.mark.quick("lstm")
@pytest.mark.parametrize("cell", CELLS)
def test_one_position_after_the_other_gives_what_all_at_once_give(cell):
    model, [x] = stack(cell, bidirectional=False), normals((B, T, I))
    y, states = run(model, x, None)
    now, outputs = None, []
    for t in range(T):
        one, now = run(model, x[:, t : t + 1], None, now)
        outputs.append(one)
    np.testing.assert_allclose(np.concatenate(outputs, 1), y, atol=1e-6)
    chex.assert_trees_all_close(now, states, atol=1e-6)


def test_the_backward_direction_reads_the_text_reversed():
    model, [x] = stack("gru", layers=1), normals((B, T, I))
    turned, _ = run(model, reverse_texts(x, jnp.array(LENGTHS)), LENGTHS)
    model.forward, model.backward = model.backward, model.forward
    y, _ = run(model, x, LENGTHS)
    back = reverse_texts(y, jnp.array(LENGTHS))
    np.testing.assert_allclose(jnp.roll(back, D, axis=-1), turned, atol=1e-6)


@pytest.mark.slow
def test_dropout_is_between_layers_alone(key):
    [x] = normals((B, T, I))
    for layers, differs in ((1, False), (2, True)):
        model = stack("lstm", layers=layers)
        assert (model(x, key=key)[0] != model(x)[0]).any() == differs


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("sizes", [{"data": 2, "fsdp": 4}, {"data": 2, "fsdp": 2, "tensor": 2}])
@pytest.mark.slow
def test_a_mesh_gives_what_one_device_gives(cell, sizes):
    x, weights = normals((8, T, I), (8, T, 2 * D))
    lengths = jnp.arange(8) % T + 1
    graph, params = drawn(lambda: stack(cell))
    loss = lambda params, x: (nnx.merge(graph, params)(x, lengths)[0] * weights).sum()
    both = jax.value_and_grad(loss, (0, 1))
    one = jax.jit(both)(params, x)
    mesh = make_mesh(**sizes)
    declared = parameters(nnx.eval_shape(lambda: stack(cell)))
    rows = NamedSharding(mesh, P(("data", "fsdp")))
    placed = jax.device_put((params, x), (shardings(declared, mesh), rows))
    with on_mesh(mesh):
        found = jax.block_until_ready(jax.jit(both)(*placed))
    chex.assert_trees_all_close(found, one, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", ["lstm", "gru_reset_after"])
@pytest.mark.quick("gru_reset_after")
def test_states_are_in_float32_where_inputs_are_in_bfloat16(cell):
    layer, [x] = RecurrentLayer(I, D, cell, rngs=nnx.Rngs(0)), normals((B, T, I))
    y, state = layer(x.astype(jnp.bfloat16))
    assert (y.dtype, {one.dtype for one in state}) == (jnp.bfloat16, {jnp.dtype("float32")})
    np.testing.assert_allclose(y.astype(jnp.float32), layer(x)[0], atol=0.03)
