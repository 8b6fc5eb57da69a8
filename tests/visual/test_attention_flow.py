"""The shapes in pictures of attention are those of the module. Rows B9 and B10."""

import jax
from flax import nnx

from transformer_jax.models.config import AttentionConfig, TransformerConfig
from transformer_jax.models.transformer.layers import Attention
from transformer_jax.visual.attention_flow import (
    HeadSizes,
    plot_attention_head,
    plot_multi_head_attention,
)


def shapes(figure):
    """The shapes that a picture shows, by the name of the box."""
    lines = (text.get_text().split("\n") for ax in figure.axes for text in ax.texts)
    named = {line[0]: line[1] for line in lines if len(line) > 1}
    return {name: tuple(map(int, shape.split(" × "))) for name, shape in named.items()}


def test_b10_shapes_in_the_picture_are_those_of_the_module(tmp_path):
    N, D, C, D_k, D_v = 7, 8, 3, 4, 5
    attention = AttentionConfig(num_heads=C, head_dim=D_k, value_dim=D_v)
    config = TransformerConfig(d_model=D, attention=attention)
    layer = nnx.eval_shape(lambda: Attention(config, rngs=nnx.Rngs(0)))
    path = tmp_path / "attention.svg"
    shown = shapes(plot_multi_head_attention(HeadSizes(N, D, D_k, D_v), C, path))
    for name, part in (("q", layer.query), ("k", layer.key), ("v", layer.value)):
        rows, columns = shown[f"$W^{{({name})}}$"]
        assert (rows, C * columns) == part.kernel.shape
    assert shown["$W^{(o)}$"] == layer.out.kernel.shape
    assert shown["concatenate"] == (N, layer.out.kernel.shape[0])
    assert shown["X"] == shown["Y"] == (N, D)
    assert path.stat().st_size > 1000


def test_b9_shapes_in_the_picture_are_those_of_algorithm_1():
    shown = shapes(plot_attention_head(HeadSizes(5, 8, 4, 6)))
    x, w, values = jax.numpy.ones((5, 8)), jax.numpy.ones((8, 4)), jax.numpy.ones((8, 6))
    scores = jax.eval_shape(lambda: (x @ w) @ (x @ w).T)
    assert shown["Q Kᵀ"] == shown["softmax: A"] == scores.shape
    assert shown["A V"] == jax.eval_shape(lambda s: s @ (x @ values), scores).shape
