"""One attention path: texts, prompts, single tokens, beams and memory."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import compiled, drawn, normals
from transformer_jax.functional.masks import Mask, causal, length_mask
from transformer_jax.models.config import AttentionConfig, FeedForwardConfig, TransformerConfig
from transformer_jax.models.layers.cache import LayerCache
from transformer_jax.models.prepare import fuse_qkv
from transformer_jax.models.transformer.layers import Attention, Block, Memory, Positions

B, T, S, D, N, K, H, U = 2, 5, 3, 12, 4, 2, 6, 5
CONFIG = TransformerConfig(
    vocab_size=11,
    d_model=D,
    encoder_layers=1,
    decoder_layers=1,
    attention=AttentionConfig(num_heads=N, num_kv_heads=K, head_dim=H, value_dim=U, qk_norm=True),
    feed_forward=FeedForwardConfig(d_ff=8),
)
X, MEMORY = normals((B, T, D), (B, S, D))
IDS = jnp.arange(T)[None]
POSITIONS = Positions(IDS)


def attention(rotate=True):
    return nnx.merge(*drawn(lambda: Attention(CONFIG, rotate=rotate, rngs=nnx.Rngs(0))))


def empty(slots, beams=1):
    return LayerCache.empty((B, K), slots, (H, U), jnp.float32, beams)


def cached(module):
    """``x`` from slot ``t`` on, as one program for every ``t``: the outputs and the new cache."""

    def function(module, x, t, cache):
        positions = t + jnp.arange(x.shape[1])[None]
        return module(x, causal(t), cache=cache, positions=Positions(positions, t))

    return compiled(module, function)


def of_text(module):
    """The outputs of whole texts as one program."""
    return compiled(
        module,
        lambda module, x: module(x, causal(), positions=Positions(jnp.arange(x.shape[1])[None]))[0],
    )


@pytest.mark.quick("3")
@pytest.mark.parametrize("prompt", [0, 3])
def test_prompt_and_tokens_with_a_cache_equal_the_text(prompt):
    part = attention()
    whole, step = of_text(part)(X), cached(part)
    chex.assert_shape(whole, (B, T, D))
    cache, found = empty(T), []
    if prompt:  # its slots begin at 0, as those of a cache that no slot is given for
        fill = lambda part, x, cache: part(
            x, causal(), cache=cache, positions=Positions(IDS[:, :prompt])
        )
        y, cache = compiled(part, fill)(X[:, :prompt], cache)
        found.append(y)
    for t in range(prompt, T):
        y, extended = step(X[:, t : t + 1], t, cache)
        chex.assert_trees_all_equal_shapes_and_dtypes(extended, cache)
        cache = extended
        found.append(y)
    chex.assert_trees_all_close(jnp.concatenate(found, 1), whole, atol=1e-5)


def test_several_tokens_at_once_equal_one_by_one():
    part = attention()
    step = cached(part)
    _, cache = step(X[:, :2], 0, empty(T))
    chex.assert_trees_all_close(step(X[:, 2:], 2, cache)[0], of_text(part)(X)[:, 2:], atol=1e-5)


def test_beams_are_queries_of_their_sequence():
    part, M = attention(), 3
    [beams] = normals((B, M, D), seed=5)

    def function(part, x, beams):
        _, cache = part(x, causal(), cache=empty((T + 1) * M, M), positions=POSITIONS)
        # Each beam sees the prompt, in the slots of the first beam, and itself.
        slots = jnp.arange((T + 1) * M)
        prompt = (slots % M == 0) & (slots < T * M)
        own = slots[None] == T * M + jnp.arange(M)[:, None]
        mask = Mask(dense=(prompt[None] | own)[None, None])
        here = {"cache": cache, "positions": Positions(jnp.full((1, M), T), jnp.int32(T * M))}
        return part(beams, mask, **here)[0]

    found, alone = compiled(part, function)(X, beams), of_text(part)
    for m in range(M):
        text = np.concatenate([X, beams[:, m : m + 1]], 1)
        chex.assert_trees_all_close(found[:, m], alone(text)[:, -1], atol=1e-5)


def test_memory_is_projected_once_for_any_queries():
    part, lengths = attention(rotate=False), jnp.array([S, 1])
    project = compiled(part, lambda part, states: part.project_memory(states))
    read = compiled(part, lambda part, x, m: part(x, length_mask(lengths), memory=m)[0])
    memory = project(MEMORY)
    chex.assert_shape(memory, [(B, K, S, H), (B, K, S, U)])
    whole = read(X, memory)
    in_cache = empty(T).with_memory(memory).memory
    for t in range(T):
        for here in (memory, in_cache):
            chex.assert_trees_all_close(read(X[:, t : t + 1], here), whole[:, t : t + 1], atol=1e-6)
    # Padding of the memory is invisible.
    other = project(MEMORY.at[1, 1:].set(9.0))
    chex.assert_trees_all_close(read(X, other), whole, atol=1e-6)


def test_the_last_queries_and_their_weights_are_those_of_all():
    part = attention()

    def function(part, x):
        weights = []
        how = {"positions": POSITIONS, "last_n": 2, "on_weights": weights.append}
        return part(x, causal(), **how)[0], weights

    last, [w] = compiled(part, function)(X)
    chex.assert_trees_all_close(last, of_text(part)(X)[:, -2:], atol=1e-6)
    chex.assert_shape(w, (B, N, 2, T))
    assert (w[:, :, 0, -1] == 0).all()


def test_a_prepared_layer_computes_the_same():
    part = attention()
    fused = fuse_qkv(part)
    assert fused.query is None
    both = lambda part, x, cache: [
        part(x, causal(), positions=POSITIONS, cache=c) for c in (None, cache)
    ]
    found, wanted = (compiled(f, both)(X, empty(T)) for f in (fused, part))
    chex.assert_trees_all_close(found, wanted, atol=1e-6)


@pytest.mark.slow
def test_maps_that_are_not_plain_are_called():
    class Doubled(nnx.Module):
        def __init__(self, base):
            self.base = base

        def __call__(self, x):
            return 2 * self.base(x)

    part = attention(rotate=False)
    part.key_norm = part.query_norm = None
    plain = nnx.clone(part)
    plain.value.kernel.set_value(2 * plain.value.kernel[...])
    plain.value.bias.set_value(2 * plain.value.bias[...])
    part.value = Doubled(part.value)
    found, wanted = (f(X, causal(), positions=POSITIONS)[0] for f in (part, plain))
    chex.assert_trees_all_close(found, wanted, atol=1e-5)
    assert fuse_qkv(part) is part


class Doubled(Attention):
    def project_qkv(self, x):
        return 2 * super().project_qkv(x)


class Turned(Attention):
    def split_qkv(self, qkv):
        return super().split_qkv(-qkv)


@pytest.mark.parametrize(("kind", "factor"), [(Attention, 1), (Doubled, 2), (Turned, -1)])
def test_projections_of_a_subclass_are_called(kind, factor):
    config = dataclasses.replace(
        CONFIG, attention=dataclasses.replace(CONFIG.attention, qk_norm=False)
    )
    module = kind(config, rngs=nnx.Rngs(0))
    kernels = [part.kernel[...] for part in (module.query, module.key, module.value)]
    for found, kernel in zip(module.project_heads(X), kernels, strict=True):
        whole = found.swapaxes(1, 2).reshape(B, T, -1)
        np.testing.assert_allclose(whole, factor * X @ kernel, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_block_reads_memory_from_its_cache():
    config = dataclasses.replace(CONFIG, attention=AttentionConfig(num_heads=N))
    block = nnx.merge(*drawn(lambda: Block(config, cross=True, rngs=nnx.Rngs(0))))
    mask = length_mask(jnp.array([S, 1]))
    read = lambda block, x: block(x, causal(), memory=Memory(MEMORY, mask))[0]
    advance = lambda block, x, t, cache: block(
        x, causal(t), memory=Memory(None, mask), cache=cache, positions=Positions(slots=t)
    )
    step = compiled(block, advance)
    whole = compiled(block, read)(X)
    size = config.head_dim
    cache = LayerCache.empty((B, N), T, (size, size), jnp.float32)
    cache = cache.with_memory(block.cross_attention.project_memory(MEMORY))
    for t in range(T):
        y, cache = step(X[:, t : t + 1], t, cache)
        np.testing.assert_allclose(y[:, 0], whole[:, t], atol=1e-5)
    chex.assert_tree_all_finite(jax.tree.leaves(cache))
