"""Faults of public code, written down as small models, are found by the laws that they break.

Each is named with its source. ``examples/check_another_library.py`` has the translation tutorial of
jax-ai-stack; ``tests/parity/test_laws.py`` calls PyTorch and transformers themselves.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.drawing import normals
from transformer_jax import laws
from transformer_jax.functional.attention import attend_heads_first
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import Scores

B, T, D = 2, 5, 8
REAL = np.arange(T)[None] < np.array([[T], [3]])
HEADS_LAST = lambda x: jnp.swapaxes(x, 1, 2)


def of_jax(q, k, v, mask):
    """``jax.nn.dot_product_attention``: a fully masked row gives the mean of the values."""
    return HEADS_LAST(jax.nn.dot_product_attention(*map(HEADS_LAST, (q, k, v)), mask=mask))


def of_flax(q, k, v, mask):
    """``flax.nnx.dot_product_attention`` does the same."""
    return HEADS_LAST(nnx.dot_product_attention(*map(HEADS_LAST, (q, k, v)), mask=mask))


def ours(q, k, v, mask):
    return attend_heads_first(q, k, v, Scores(Mask(dense=mask)))


@pytest.mark.quick("of_jax")
@pytest.mark.parametrize("attend", [of_jax, of_flax, ours])
def test_captioning_masks_query_rows(attend):
    """The captioner of jax-ai-stack passes ``mask[:, None, :, None]`` to cross-attention.

    It masks all keys of queries at padding, which then read the mean of all patches.
    """
    q, k = normals((B, 1, T, D), (B, 1, 3, D))
    by_row = np.broadcast_to(REAL[:, None, :, None], (B, 1, T, 3))
    found = laws.masked_rows(laws.with_gradients(attend), q, k, k, by_row)
    assert found.holds == (attend is ours)
    if not found.holds:
        assert found.where.startswith("output: row 1, head 0, query ")


def cross(source, real, target, mask):
    """Cross-attention of a target to a source, with the mask of a library."""
    x, y = (jnp.asarray(array)[:, None] for array in (source, target))
    return ours(y, x, x, jnp.broadcast_to(mask, (B, 1, T, T)))[:, 0]


def of_keras(source, real, target):
    """The translation example of keras.io: ``minimum(padding of the target, causal)``.

    The one mask of the decoder is that of cross-attention, too: word t reads t words of the source.
    """
    return cross(source, real, target, np.tri(T, dtype=bool))


def mended(source, real, target):
    return cross(source, real, target, jnp.asarray(real)[:, None, None])


@pytest.mark.slow
def test_cross_attention_with_the_causal_mask_of_the_target():
    source, target = normals((B, T, D), (B, T, D))
    visible = np.broadcast_to(REAL[:, None], (B, T, T))
    look = lambda run: lambda x: run(x, REAL, target)
    assert laws.visibility(look(of_keras), source, visible).where == (
        "row 0: position 0 does not read position 1"
    )
    assert not laws.source_padding(of_keras, source, REAL, target).holds
    laws.visibility(look(mended), source, visible).require()
    laws.source_padding(mended, source, REAL, target).require()


def test_a_loss_that_is_a_mean_over_padding():
    """Both tutorials of jax-ai-stack: ``softmax_cross_entropy_with_integer_labels(...).mean()``."""
    draw = np.random.default_rng(0)
    batch = {"logits": draw.standard_normal((B, T, 7)), "labels": draw.integers(0, 7, (B, T))}

    def token_losses(batch):
        log_probs = batch["logits"] - np.log(np.exp(batch["logits"]).sum(-1, keepdims=True))
        return -np.take_along_axis(log_probs, batch["labels"][..., None], axis=-1)[..., 0]

    for law in (laws.loss_padding, laws.loss_length):
        assert not law(lambda batch, real: token_losses(batch).mean(), batch, REAL).holds
        law(lambda batch, real: (token_losses(batch) * real).sum(), batch, REAL).require()


def attention(x, mask):
    """Attention without parameters, in NumPy."""
    scores = np.where(mask, x @ x.swapaxes(1, 2), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ x


def test_left_padding_without_positions():
    """GPT-2 of transformers: without ``position_ids``, left padding counts as positions."""
    words, places = map(np.asarray, normals((9, D), (T, D)))
    tokens, starts = np.random.default_rng(0).integers(0, 9, (B, T)), np.array([0, 2])
    causal = np.tri(T, dtype=bool)
    whole = lambda tokens: attention(words[tokens] + places, causal)

    def law(counts):
        def read(tokens, cache, starts=None):
            tokens = np.concatenate([cache[0], tokens], axis=1)
            starts = cache[1] if starts is None else starts
            n = tokens.shape[1]
            at = np.arange(n)[None]
            skipped = at if counts else np.maximum(at - starts[:, None], 0)
            mask = (at >= starts[:, None])[:, None] | np.eye(n, dtype=bool)
            y = attention(
                words[tokens] + places[skipped], mask & causal[: len(at[0]), : len(at[0])]
            )
            return y[:, -1], (tokens, starts)

        one = lambda token, cache: read(token[:, None], cache)
        empty = np.zeros((B, 0), int), np.zeros(B, int)
        return laws.prompt_padding(whole, read, one, empty, tokens, starts)

    assert law(counts=True).where.startswith("row 1, position ")
    law(counts=False).require()
