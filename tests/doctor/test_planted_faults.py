"""Faults in models, each found by the law that it breaks, and none in healthy models."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.doctor.tiny_models import MODELS
from transformer_jax import laws
from transformer_jax.doctor import examine, kernel_laws
from transformer_jax.functional.kernels import choice
from transformer_jax.functional.masks import Mask
from transformer_jax.functional.scores import ScaledDot, Scores
from transformer_jax.models.layers.cache import Cache, LayerCache
from transformer_jax.models.recurrent_modules import RecurrentEncoder
from transformer_jax.models.transformer import layers, models
from transformer_jax.models.transformer.layers import Attention, Block, Stack
from transformer_jax.models.transformer.models import Decoder, TransformerEncoderDecoder
from transformer_jax.models.two_towers import TwoTowers
from transformer_jax.training import objectives

FAULTS = {}


def fault(model, law, where=""):
    """Registers a function that plants a fault, by its name and a monkeypatch, into a model."""

    def register(plant):
        FAULTS[plant.__name__.replace("_", " ")] = (plant, model, law, where)
        return plant

    return register


def wrap(monkeypatch, owner, name, change):
    """Replaces a function by ``change(function)``."""
    monkeypatch.setattr(owner, name, change(getattr(owner, name)))


# --- Masks ----------------------------------------------------------------------------------------


@fault("encoder", "padding", r"from layer 1 on: row [13], position \d$")
def mask_flipped(monkeypatch, model):
    flip = lambda old: lambda lengths: Mask(dense=~old(lengths).array(1, 12))
    wrap(monkeypatch, models, "padding_mask", flip)


@fault("translator", "padding", r"from encoder layer 1 on: row [13], position")
def padding_visible(monkeypatch, model):
    wrap(monkeypatch, models, "padding_mask", lambda old: lambda lengths: Mask())


@fault("translator", "padding", r"from decoder layer 1 on: row [13], position")
def cross_attention_reads_padding(monkeypatch, model):
    forget = lambda old: lambda *args, **how: old(*args, **how)._replace(mask=None)
    wrap(monkeypatch, TransformerEncoderDecoder, "encoded", forget)


@fault("speech recognizer", "padding", r"row [13], position")
def padding_off_by_one(monkeypatch, model):
    wrap(monkeypatch, models, "padding_mask", lambda old: lambda n: old(n + 1))


@fault("decoder", "causality", "reads position")
def causal_mask_missing(monkeypatch, model):
    model.decoder.decoder = False


@fault("decoder", "causality", r"from layer 1 on: row \d: position (\d) reads position (\d+)")
def causal_mask_off_by_one(monkeypatch, model):
    def init(old):
        return lambda self, **how: old(self, **({"offset": 1} if how.get("causal") else {}) | how)

    wrap(monkeypatch, Mask, "__init__", init)


class Unmasked(Block):
    """A block that ignores its mask."""

    def __call__(self, x, mask=None, **rest):
        return super().__call__(x, None, **rest)


@fault("decoder", "causality", "from layer 2 on")
def one_layer_without_a_mask(monkeypatch, model):
    model.decoder.blocks[1].__class__ = Unmasked


# --- Scores and kernels ---------------------------------------------------------------------------


@fault("decoder", "attention_kernel", "decoder/blocks/1/self_attention")
def scale_missing(monkeypatch, model):
    model.decoder.blocks[1].self_attention.score = ScaledDot(scale=1.0)


def kernel(monkeypatch, change):
    """Plants ``change(q, k, v, scores)`` before the plain kernel."""
    plain = choice.KERNELS["xla"]
    run = lambda q, k, v, scores, **how: plain.run(*change(q, k, v, scores), **how)
    monkeypatch.setitem(choice.KERNELS, "xla", plain._replace(run=run))


@fault("encoder", "mask_polarity", "encoder/blocks/0/self_attention, xla: row")
def key_positions_shifted(monkeypatch, model):
    shift = lambda x: jnp.roll(x, 1, axis=2)
    kernel(monkeypatch, lambda q, k, v, scores: (q, shift(k), shift(v), scores))


@fault("modern decoder", "attention_kernel", "blocks/0/self_attention, xla: ")
def key_heads_in_another_order(monkeypatch, model):
    kernel(monkeypatch, lambda q, k, v, scores: (q, k[:, ::-1], v, scores))


@fault("decoder", "attention_kernel", "blocks/0/self_attention, xla: ")
def kernel_of_a_layer_that_cudnn_does_not_support(monkeypatch, model):
    monkeypatch.setattr(kernel_laws, "device_reason", lambda *device: None)
    for _, layer in kernel_laws.attention_layers(model):
        layer.attention = dataclasses.replace(layer.attention, implementation="cudnn")
    kernel(monkeypatch, lambda q, k, v, scores: (2 * q, k, v, scores))


@fault("decoder", "masked_rows", "self_attention, xla: .*row 1")
def fully_masked_rows_give_the_mean(monkeypatch, model):
    plain = choice.KERNELS["xla"]

    def run(q, k, v, scores, **how):
        mask = scores.mask.array(q.shape[2], k.shape[2])
        s = jnp.where(mask, q @ k.swapaxes(2, 3), jnp.finfo(q.dtype).min)
        return jax.nn.softmax(s) @ v

    monkeypatch.setitem(choice.KERNELS, "xla", plain._replace(run=run))


@fault("encoder", "weights_sum_to_one", "layer [12]: row")
def softmax_over_queries(monkeypatch, model):
    over = lambda weights: weights / weights.sum(-2, keepdims=True)
    wrap(monkeypatch, Scores, "weights", lambda old: lambda *args: over(old(*args)))


# --- Caches ---------------------------------------------------------------------------------------


@fault("decoder", "cached", "row \\d, position 0")
def cache_off_by_one(monkeypatch, model):
    def visible(old):
        return lambda self, *args: old(dataclasses.replace(self, length=self.length - 1), *args)

    wrap(monkeypatch, Cache, "visible", visible)


@fault("decoder", "cached", "row")
def positions_of_steps_start_at_one(monkeypatch, model):
    wrap(monkeypatch, Cache, "positions", lambda old: lambda self, n=1: old(self, n) + 1)


@fault("modern decoder", "prefilled", "row")
def another_rotary_base_in_steps(monkeypatch, model):
    def rotate(old):
        def apply(self, q, k, ids):
            positions = self.positions
            if q.shape[2] == 1:
                self.positions = dataclasses.replace(positions, rope_theta=100.0)
            found = old(self, q, k, ids)
            self.positions = positions
            return found

        return apply

    wrap(monkeypatch, Attention, "apply_rope", rotate)


@fault("translator", "cached", "row")
def slots_are_written_over(monkeypatch, model):
    write = lambda old: lambda self, k, v, slots: old(self, k, v, jnp.minimum(slots, 4))
    wrap(monkeypatch, LayerCache, "extend", write)


@fault("decoder", "prompt_padding", "reads its padding")
def left_padding_visible(monkeypatch, model):
    read = lambda old: lambda self, tokens, cache, starts=None: old(self, tokens, cache)
    wrap(monkeypatch, Decoder, "prefill", read)


@fault("decoder", "prompt_padding", r"row [123], position 1[01]")
def left_padding_counts_as_positions(monkeypatch, model):
    count = lambda old: lambda self, n=1: (self.length + jnp.arange(n))[None]
    wrap(monkeypatch, Cache, "positions", count)


@fault("translator", "reordered", "beam")
def beams_keep_their_places(monkeypatch, model):
    wrap(monkeypatch, Cache, "reorder", lambda old: lambda self, parents: self)


@fault("recurrent translator", "reordered", "beam")
def states_gathered_across_sentences(monkeypatch, model):
    owner = type(model.decoder)

    def reorder(old):
        return lambda self, cache, parents: old(self, cache, parents[::-1])

    wrap(monkeypatch, owner, "reorder", reorder)


@fault("translator", "beam_search", r"text \d")
def scores_of_search_have_another_temperature(monkeypatch, model):
    def step(old):
        def halved(self, tokens, cache):
            logits, cache = old(self, tokens, cache)
            return logits / 2, cache

        return halved

    wrap(monkeypatch, TransformerEncoderDecoder, "step", step)


# --- Rows -----------------------------------------------------------------------------------------


@fault("classifier", "batch_mates", "from embeddings on: row")
def inputs_are_normalized_over_the_batch(monkeypatch, model):
    mean = lambda x: x - x.mean(0, keepdims=True)
    wrap(monkeypatch, Stack, "embed_inputs", lambda old: lambda *args: mean(old(*args)))


@fault("classifier", "batch_of_one", "scores: row")
def scores_are_divided_by_the_rows(monkeypatch, model):
    wrap(monkeypatch, type(model), "scores", lambda old: lambda self, x, key: x.mean() + 0 * x)


@fault("tagger", "padding_length", "row [13]")
def positions_count_from_the_end(monkeypatch, model):
    back = lambda old: lambda self, T, lengths: T - 1 - jnp.broadcast_to(jnp.arange(T), (1, T))
    wrap(monkeypatch, Stack, "position_ids", back)


@fault("classifier", "padding", "scores: row [13]")
def mean_over_padding(monkeypatch, model):
    wrap(monkeypatch, type(model), "pooled", lambda old: lambda self, hidden: hidden.mean(1))


@fault("two towers", "padding", "row [13]")
def last_position_instead_of_last_token(monkeypatch, model):
    whole = lambda old: (
        lambda self, tokens, lengths, **how: old(
            self, tokens, jnp.full_like(lengths, tokens.shape[1]), **how
        )
    )
    wrap(monkeypatch, TwoTowers, "embed_texts", whole)


@fault("recurrent translator", "padding", "encoder: row [13]")
def the_way_back_begins_at_padding(monkeypatch, model):
    whole = lambda old: (
        lambda self, source, source_lengths, **how: old(
            self, source, jnp.full_like(source_lengths, source.shape[1]), **how
        )
    )
    wrap(monkeypatch, RecurrentEncoder, "__call__", whole)


@fault("decoder", "packed_mates", "document 1")
def packed_texts_see_each_other(monkeypatch, model):
    forget = lambda old: (
        lambda self, inputs, *args, **how: old(
            self, {"positions": (inputs or {}).get("positions")}, *args, **how
        )
    )
    wrap(monkeypatch, Decoder, "hidden", forget)


@fault("decoder", "packing", "document 1, position")
def positions_run_through_packed_texts(monkeypatch, model):
    forget = lambda old: (
        lambda self, inputs, *args, **how: old(
            self, {"segment_ids": (inputs or {}).get("segment_ids")}, *args, **how
        )
    )
    wrap(monkeypatch, Decoder, "hidden", forget)


# --- Losses and dropout ---------------------------------------------------------------------------


@fault("translator", "loss_padding", "loss sum")
def loss_over_padding(monkeypatch, model):
    ones = lambda old: lambda lengths, T: jnp.ones((len(lengths), T))
    wrap(monkeypatch, objectives, "length_weights", ones)


@fault("captioner", "loss_split", "loss")
def loss_is_a_mean(monkeypatch, model):
    def loss(old):
        return lambda hidden, *args, **how: (
            old(hidden, *args, **how)[0] / len(hidden),
            jnp.float32(1),
        )

    wrap(monkeypatch, objectives, "linear_cross_entropy", loss)


@fault("tagger", "loss_length", "loss")
def loss_is_divided_by_the_longest_row(monkeypatch, model):
    def loss(old):
        def mean(logits, targets, weights, *args):
            total, weight = old(logits, targets, weights, *args)
            return total / logits.shape[1], weight

        return mean

    wrap(monkeypatch, objectives, "cross_entropy", loss)


@fault("decoder", "batch_of_one", "row")
def dropout_with_one_key_in_evaluation(monkeypatch, model):
    always = lambda old: lambda x, rate, key: old(x, 0.5, jax.random.key(0))
    wrap(monkeypatch, layers, "dropout", always)


@fault("image classifier", "repeatability", "vectors")
def dropout_in_evaluation(monkeypatch, model):
    draw = np.random.default_rng(0)

    def drop(x, rate, key):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        keep = lambda: (draw.random(x.shape) < 0.5).astype(x.dtype)
        return x * jax.pure_callback(keep, shape)

    monkeypatch.setattr(layers, "dropout", drop)


@pytest.mark.quick("mask flipped", "one layer without a mask")
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found(name, monkeypatch):
    plant, kind, law, where = FAULTS[name]
    model = MODELS[kind]()
    plant(monkeypatch, model)
    found = examine(model, {law})
    assert [one.law for one in found.broken] == [law]
    assert re.search(where, found.broken[0].where)


def test_twenty_faults_are_planted():
    assert len(FAULTS) >= 20
    assert {law for _, _, law, _ in FAULTS.values()} <= {*laws.ALL}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_healthy_models_break_no_law(name):
    model = MODELS[name]()
    assert isinstance(model, nnx.Module)
    found = examine(model)
    assert not found.broken, [str(one) for one in found.broken]
    assert len(found.results) >= 5
