"""Recurrent layers against PyTorch's and Flax's, outputs and gradients (rows U2, B25, T8)."""

import chex
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.drawing import normals
from transformer_jax.models.layers.recurrent_layers import Recurrent, RecurrentLayer

B, T, I, D = 4, 9, 5, 8
LENGTHS = np.array([9, 4, 1, 6])


def from_torch(model, theirs, cell):
    """Gives a model the parameters of PyTorch's, whose kernels are transposed, with two biases."""
    for i in range(theirs.num_layers):
        for layers, end in ((model.forward, ""), (model.backward, "_reverse")):
            if layers is None:
                continue
            w, u, b, b2 = (
                getattr(theirs, f"{name}_l{i}{end}").detach().numpy()
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            layer = layers[i]
            layer.inputs.kernel[...], layer.kernel[...] = w.T, u.T
            if cell == "gru_reset_after":
                layer.bias[...] = b2[2 * D :]
                b2 = np.concatenate([b2[: 2 * D], np.zeros(D, np.float32)])
            layer.inputs.bias[...] = b + b2


def to_torch(layer, cell, name):
    """A gradient of ours, as PyTorch has it."""
    found = {"weight_ih": layer.inputs.kernel, "weight_hh": layer.kernel}
    if name in found:
        return np.asarray(found[name][...]).T
    b = np.asarray(layer.inputs.bias[...])
    if name == "bias_hh" and cell == "gru_reset_after":
        return np.concatenate([b[: 2 * D], layer.bias[...]])
    return b


@pytest.mark.parity
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", ["tanh", "relu", "lstm", "gru_reset_after"])
@pytest.mark.parametrize(("layers", "bidirectional"), [(1, False), (2, False), (2, True)])
def test_torch(cell, layers, bidirectional, packed):
    torch = pytest.importorskip("torch")
    from torch.nn.utils import rnn

    torch.manual_seed(0)
    how = {"num_layers": layers, "bidirectional": bidirectional, "batch_first": True}
    if cell in ("tanh", "relu"):
        theirs = torch.nn.RNN(I, D, nonlinearity=cell, **how)
    else:
        theirs = (torch.nn.LSTM if cell == "lstm" else torch.nn.GRU)(I, D, **how)
    x, g = normals((B, T, I), (B, T, D * (1 + bidirectional)))
    t = torch.tensor(np.asarray(x), requires_grad=True)
    lengths = LENGTHS if packed else np.full(B, T)
    read = rnn.pack_padded_sequence(t, torch.tensor(lengths), True, False) if packed else t
    wanted, last = theirs(read)
    if packed:
        wanted, _ = rnn.pad_packed_sequence(wanted, batch_first=True)
    (wanted * torch.tensor(np.asarray(g))).sum().backward()

    make = lambda: Recurrent(
        I, D, cell, layers=layers, bidirectional=bidirectional, rngs=nnx.Rngs(0)
    )
    model = make()
    from_torch(model, theirs, cell)
    graph, state = nnx.split(model)

    def loss(state, x):
        y, states = nnx.merge(graph, state)(x, jnp.asarray(lengths))
        return (y * g).sum(), (y, states)

    found, (of_model, of_x) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(state, x)[::-1]
    np.testing.assert_allclose(found[0], wanted.detach(), atol=1e-5)
    ends = (last,) if torch.is_tensor(last) else last
    for n, end in enumerate(ends):
        ours = np.stack([states[n] for states in found[1]])
        np.testing.assert_allclose(ours, end.detach(), atol=1e-5)
    np.testing.assert_allclose(of_x, t.grad, atol=1e-5)
    gradients = nnx.merge(graph, of_model)
    for name, parameter in theirs.named_parameters():
        what, _, place = name.partition("_l")
        side = gradients.backward if place.endswith("_reverse") else gradients.forward
        ours = to_torch(side[int(place[0])], cell, what)
        np.testing.assert_allclose(ours, parameter.grad, rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_flax_has_the_lstm_and_the_gru_whose_gate_comes_after_the_product():
    # Its cells multiply at each position; ours multiply the inputs of all positions at once.
    [x] = normals((B, T, I))
    lstm = nnx.OptimizedLSTMCell(I, D, rngs=nnx.Rngs(1))
    ours = RecurrentLayer(I, D, "lstm", rngs=nnx.Rngs(0))
    ours.inputs.kernel[...] = lstm.dense_i.kernel[...]
    ours.inputs.bias[...] = lstm.dense_h.bias[...]
    ours.kernel[...] = lstm.dense_h.kernel[...]
    chex.assert_trees_all_close(ours(x)[0], nnx.RNN(lstm)(x), atol=1e-5)
    gru = nnx.GRUCell(I, D, rngs=nnx.Rngs(1))
    ours = RecurrentLayer(I, D, "gru_reset_after", rngs=nnx.Rngs(0))
    ours.inputs.kernel[...] = gru.dense_i.kernel[...]
    ours.inputs.bias[...] = gru.dense_i.bias[...]
    ours.kernel[...] = gru.dense_h.kernel[...]
    chex.assert_trees_all_close(ours(x)[0], nnx.RNN(gru)(x), atol=1e-5)
