"""The shapes in pictures of small networks are those of their arrays. Rows B18, B19, B25, B39."""

import jax.numpy as jnp
import pytest

from tests.visual.test_attention_flow import shapes
from transformer_jax.core.errors import ArgumentError
from transformer_jax.functional.low_rank import low_rank_kernel
from transformer_jax.functional.recurrent import CELLS, recur
from transformer_jax.functional.word2vec import cbow_loss, skip_gram_loss
from transformer_jax.visual.networks import plot_cbow, plot_low_rank, plot_skip_gram, plot_unrolled

CONTEXT = ["a", "b", "d", "e"]


@pytest.mark.parametrize("plot", [plot_cbow, plot_skip_gram])
def test_b18_b19_matrices_of_word2vec(plot):
    shown = shapes(plot(CONTEXT, "c", 7, 3))
    E, U = jnp.ones(shown["E"]), jnp.ones(shown["U"])
    ids, target = jnp.arange(4), jnp.array([4])
    loss = cbow_loss(E, U, ids[None], jnp.ones((1, 4), bool), target)
    assert loss == pytest.approx(jnp.log(shown["softmax"][0]))  # all words are equally probable
    assert skip_gram_loss(E, U, jnp.repeat(target, 4), ids) == pytest.approx(4 * loss)
    assert {*CONTEXT, "c"} <= {*shown}
    assert E.shape[1:] == shown.get("mean", (3,))


def test_b25_states_and_inputs_of_an_unrolled_layer():
    figure = plot_unrolled(4, 2, 5)
    shown, [ax] = shapes(figure), figure.axes
    arrows = [text.get_text().strip() for text in ax.texts]
    assert (arrows.count("W"), arrows.count("U")) == (4, 4)
    x, (z,) = jnp.ones((1, 4, *shown["$x_{1}$"])), shown["$z_{4}$"]
    states, _ = recur(CELLS["tanh"], x @ jnp.ones((2, z)), jnp.ones((z, z)), (jnp.zeros((1, z)),))
    assert states.shape == (1, 4, z)


def test_b39_matrices_of_a_low_rank_change(tmp_path):
    shown = shapes(plot_low_rank(6, 2, tmp_path / "a.svg"))
    W, A, B = (jnp.ones(shown[name]) for name in ("W, frozen", "A", "B, zero at first"))
    assert (W + A @ B).shape == low_rank_kernel(W, A, B, 1.0).shape == (6, 6)


def test_words_twice_and_no_steps_are_refused():
    for context in ([], ["a", "a"], ["c"]):
        with pytest.raises(ArgumentError, match="around another"):
            plot_cbow(context, "c", 7, 3)
    with pytest.raises(ArgumentError, match="steps is 0: at least 1"):
        plot_unrolled(0, 2, 5)
