"""Shapes, types, gradients and declarations of every module, traced from one table.

Nothing is compiled: a row of the table costs a trace. A new module needs a row.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil

import chex
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from transformer_jax import models
from transformer_jax.functional.losses import OutputTable
from transformer_jax.functional.masks import Mask
from transformer_jax.models.captioner import Captioner
from transformer_jax.models.composed import EncoderDecoder
from transformer_jax.models.config import (
    AttentionConfig,
    EmbeddingConfig,
    FeatureConfig,
    FeedForwardConfig,
    HeadConfig,
    ImageConfig,
    MixerConfig,
    NormConfig,
    PositionConfig,
    TransformerConfig,
)
from transformer_jax.models.contrast_config import ContrastConfig
from transformer_jax.models.heads import (
    DecoderSequenceClassifier,
    EncoderForMaskedLM,
    ReplacedTokenDetector,
    SequenceClassifier,
    TokenClassifier,
    ValuedDecoder,
)
from transformer_jax.models.layers.basic import Embed, Linear, LinearTransposed, Norm, TrainedRows
from transformer_jax.models.layers.mixer import ConvolutionMixer, RecurrentMixer
from transformer_jax.models.layers.parameters import parameters, stacked, unstacked, values
from transformer_jax.models.layers.recurrent_attention import (
    AdditiveScore,
    GeneralScore,
    LocationScore,
)
from transformer_jax.models.layers.recurrent_layers import Recurrent, RecurrentLayer
from transformer_jax.models.lora_layers import LoRALinear, SelectedLoRA
from transformer_jax.models.prepare import fuse_qkv, stack_blocks, unstack_blocks
from transformer_jax.models.protocol import Encoded
from transformer_jax.models.recurrent_config import RecurrentConfig
from transformer_jax.models.recurrent_modules import (
    ContextDecoder,
    RecurrentDecoder,
    RecurrentEncoder,
)
from transformer_jax.models.recurrent_translator import RecurrentEncoderDecoder
from transformer_jax.models.sentence_encoder import DenseForm, SentenceEncoder, SentenceForm
from transformer_jax.models.transformer.layers import Attention, Block, FeedForward, Memory, Stack
from transformer_jax.models.transformer.models import (
    Decoder,
    Encoder,
    FeatureProjection,
    Head,
    TransformerDecoder,
    TransformerEncoder,
    TransformerEncoderDecoder,
)
from transformer_jax.models.two_towers import TextTower, TwoTowers
from transformer_jax.models.vision import AttentionPool, ImageClassifier, VisionEncoder

B, T, S, D, V, R = 2, 5, 6, 8, 11, 3
X, Y = jnp.ones((B, T, D)), jnp.ones((B, S, D))
TOKENS, SOURCE = jnp.zeros((B, T), jnp.int32), jnp.zeros((B, S), jnp.int32)
LENGTHS, ENDS = jnp.array([T, 2]), jnp.array([S, 1])
ENCODED = Encoded(Y, ENDS)
INPUTS = {"source": SOURCE, "source_lengths": ENDS}

BOTH = TransformerConfig(
    vocab_size=V, d_model=D, encoder_layers=2, decoder_layers=2,
    attention=AttentionConfig(num_heads=2, num_kv_heads=1), feed_forward=FeedForwardConfig(d_ff=12),
)  # fmt: skip
READER = dataclasses.replace(
    BOTH, decoder_layers=0, head=HeadConfig(pooler=True, mlm_transform=True),
    embedding=EmbeddingConfig(type_vocab_size=2, layernorm_embedding=True),
)  # fmt: skip
WRITER = dataclasses.replace(BOTH, encoder_layers=0, positions=PositionConfig(kind="rope"))
PICTURES = dataclasses.replace(
    READER, vocab_size=0, embedding=EmbeddingConfig(),
    positions=PositionConfig(kind="learned", max_length=5),
    image=ImageConfig(image_size=8, patch_size=4), head=HeadConfig(),
)  # fmt: skip
IMAGES, PLACES = jnp.ones((B, 8, 8, 3)), 5
LSTM = dataclasses.replace(BOTH, mixer=MixerConfig("recurrent"))


def low_rank(rngs):
    kernel = lambda *shape, axes: nnx.Param(jnp.ones(shape), axes=axes)
    adapter = {
        "lora_a": kernel(D, R, axes=("embed", None)), "lora_b": kernel(R, 4, axes=(None, "mlp")),
    }  # fmt: skip
    return LoRALinear(Linear(D, 4, ("embed", "mlp"), rngs=rngs), adapter, 2.0, 0.0)


def selected(rngs):
    base = Linear(D, 4, ("embed", "mlp"), rngs=rngs)
    made = SelectedLoRA(base, jnp.ones((2, D, R)), jnp.ones((2, R, 4)), None)
    made.adapter_rows = nnx.Param(jnp.zeros(B, jnp.int32), axes=(None,))
    return made


def with_rows(rngs):
    table = Embed(V, D, scale=1.0, rngs=rngs)
    table.trained = nnx.data(
        TrainedRows(nnx.Param(jnp.ones((2, D)), axes=("trained_row", "embed")), (3, 4))
    )
    return table


def recurrent(decoder):
    def make(rngs):
        read = Recurrent(D, D, rngs=rngs)
        write = Recurrent(D if decoder is RecurrentDecoder else 2 * D, D, rngs=rngs)
        table = lambda: Embed(V, D, scale=1.0, rngs=rngs)
        made = decoder(table(), write, read, GeneralScore(D, D, rngs=rngs), rngs=rngs)
        return EncoderDecoder(RecurrentEncoder(table(), read), made)

    return make


def linear(rngs):
    return Linear(D, 4, ("embed", "mlp"), rngs=rngs)


hidden = lambda model: model.hidden(INPUTS, TOKENS)
score = lambda model: model(jnp.ones((B, 1, T, D)), jnp.ones((B, 1, S, D)))
first = lambda model: model(X, Mask(causal=True))[0]
names = lambda model: model(TOKENS, LENGTHS)

SENTENCE = SentenceForm(pools=("mean", "cls"), dense=DenseForm(4, tanh=True), normalize=True)
# Two texts in each row, of one token and of the others.
PACKED = {
    "tokens": TOKENS, "segments": jnp.ones((B, T), jnp.int32).at[:, 1:].set(2),
    "positions": jnp.zeros((B, T), jnp.int32).at[:, 1:].set(jnp.arange(T - 1)),
    "starts": jnp.tile(jnp.array([0, 1]), (B, 1)),
    "lengths": jnp.tile(jnp.array([1, T - 1]), (B, 1)),
}  # fmt: skip

# Class, how it is made, what is computed with it, and the shape of the result.
CASES = {
    "Linear": (Linear, linear, lambda m: m(X), (B, T, 4)),
    "LinearTransposed": (
        LinearTransposed, lambda rngs: LinearTransposed(linear(rngs)), lambda m: m(X), (B, T, 4),
    ),
    "Norm": (Norm, lambda rngs: Norm(NormConfig(), D), lambda m: m(X), (B, T, D)),
    "Norm-rms": (Norm, lambda rngs: Norm(NormConfig("rms"), D), lambda m: m(X), (B, T, D)),
    "FeedForward": (
        FeedForward, lambda rngs: FeedForward(BOTH, rngs=rngs), lambda m: m(X), (B, T, D),
    ),
    "Embed": (
        Embed, lambda rngs: Embed(V, D, scale=1.0, rngs=rngs), lambda m: m(TOKENS), (B, T, D),
    ),
    "TrainedRows": (TrainedRows, with_rows, lambda m: m(TOKENS), (B, T, D)),
    "Head": (
        Head, lambda rngs: Head(dataclasses.replace(BOTH, head=HeadConfig(False, True)), rngs=rngs),
        lambda m: m.output_table(Embed(V, D, scale=1.0, rngs=nnx.Rngs(0))).logits(X), (B, T, V),
    ),
    "FeatureProjection": (
        FeatureProjection,
        lambda rngs: FeatureProjection(FeatureConfig(2, 3), D, dtype="float32", rngs=rngs),
        lambda m: m(jnp.ones((B, S, 6))), (B, S, D),
    ),
    "LoRALinear": (LoRALinear, low_rank, lambda m: m(X), (B, T, 4)),
    "SelectedLoRA": (SelectedLoRA, selected, lambda m: m(X), (B, T, 4)),
    "Attention": (Attention, lambda rngs: Attention(BOTH, rngs=rngs), first, (B, T, D)),
    "Attention-memory": (
        Attention, lambda rngs: Attention(BOTH, rngs=rngs),
        lambda m: m(X, memory=m.project_memory(Y))[0], (B, T, D),
    ),
    "Attention-last": (
        Attention, lambda rngs: Attention(BOTH, rngs=rngs), lambda m: m(X, last_n=1)[0], (B, 1, D),
    ),
    "Attention-fused": (
        Attention, lambda rngs: fuse_qkv(Attention(BOTH, rngs=rngs)), first, (B, T, D),
    ),
    "RecurrentMixer": (
        RecurrentMixer, lambda rngs: RecurrentMixer(LSTM, causal=True, rngs=rngs), first, (B, T, D),
    ),
    "ConvolutionMixer": (
        ConvolutionMixer, lambda rngs: ConvolutionMixer(LSTM, causal=False, rngs=rngs),
        lambda m: m(X)[0], (B, T, D),
    ),
    "Block": (Block, lambda rngs: Block(BOTH, cross=False, rngs=rngs), first, (B, T, D)),
    "Block-cross": (
        Block, lambda rngs: Block(BOTH, cross=True, rngs=rngs),
        lambda m: m(X, memory=Memory(Y), last_n=2)[0], (B, 2, D),
    ),
    "Stack": (
        Stack, lambda rngs: Stack(BOTH, 2, decoder=True, cross=False, rngs=rngs),
        lambda m: m(X), (B, T, D),
    ),
    "RecurrentLayer": (
        RecurrentLayer, lambda rngs: RecurrentLayer(D, 4, rngs=rngs), lambda m: m(X)[0], (B, T, 4),
    ),
    "Recurrent": (
        Recurrent, lambda rngs: Recurrent(D, 4, layers=2, bidirectional=True, rngs=rngs),
        lambda m: m(X)[0], (B, T, 8),
    ),
    "GeneralScore": (GeneralScore, lambda rngs: GeneralScore(D, D, rngs=rngs), score, (B, 1, T, S)),
    "AdditiveScore": (
        AdditiveScore, lambda rngs: AdditiveScore(D, D, 4, rngs=rngs), score, (B, 1, T, S),
    ),
    "LocationScore": (
        LocationScore, lambda rngs: LocationScore(D, S, rngs=rngs), score, (B, 1, T, S),
    ),
    "Encoder": (Encoder, lambda rngs: Encoder(READER, rngs=rngs), names, (B, T, D)),
    "Encoder-pooled": (
        Encoder, lambda rngs: Encoder(READER, rngs=rngs), lambda m: m.pooled(names(m)), (B, D),
    ),
    "EncoderForMaskedLM": (
        EncoderForMaskedLM, lambda rngs: EncoderForMaskedLM(READER, rngs=rngs),
        lambda m: m.output_table().logits(m.mlm_transform(names(m))), (B, T, V),
    ),
    "SequenceClassifier": (
        SequenceClassifier, lambda rngs: SequenceClassifier(READER, labels=3, rngs=rngs),
        names, (B, 3),
    ),
    "TokenClassifier": (
        TokenClassifier, lambda rngs: TokenClassifier(READER, labels=3, rngs=rngs),
        names, (B, T, 3),
    ),
    "ReplacedTokenDetector": (
        ReplacedTokenDetector, lambda rngs: ReplacedTokenDetector(READER, rngs=rngs),
        names, (B, T, 1),
    ),
    "SentenceEncoder": (
        SentenceEncoder, lambda rngs: SentenceEncoder(READER, SENTENCE, rngs=rngs),
        lambda m: m.vectors(PACKED), (B, 2, 4),
    ),
    "Decoder": (
        Decoder, lambda rngs: Decoder(WRITER, rngs=rngs), lambda m: m(TOKENS), (B, T, V),
    ),
    "ValuedDecoder": (
        ValuedDecoder, lambda rngs: ValuedDecoder(WRITER, rngs=rngs),
        lambda m: m.values(m.hidden(None, TOKENS)), (B, T),
    ),
    "DecoderSequenceClassifier": (
        DecoderSequenceClassifier,
        lambda rngs: DecoderSequenceClassifier(WRITER, labels=3, rngs=rngs), names, (B, 3),
    ),
    "TransformerEncoder": (
        TransformerEncoder, lambda rngs: TransformerEncoder.from_config(BOTH, rngs=rngs),
        lambda m: m(SOURCE, ENDS).states, (B, S, D),
    ),
    "TransformerDecoder": (
        TransformerDecoder, lambda rngs: TransformerDecoder.from_config(BOTH, rngs=rngs),
        lambda m: m.hidden(ENCODED, TOKENS), (B, T, D),
    ),
    "TransformerEncoderDecoder": (
        TransformerEncoderDecoder, lambda rngs: TransformerEncoderDecoder(BOTH, rngs=rngs),
        lambda m: m(SOURCE, TOKENS, ENDS), (B, T, V),
    ),
    "EncoderDecoder": (EncoderDecoder, recurrent(RecurrentDecoder), hidden, (B, T, D)),
    "RecurrentEncoder": (
        RecurrentEncoder, recurrent(RecurrentDecoder), lambda m: m.encoded(INPUTS).states,
        (B, S, D),
    ),
    "RecurrentDecoder": (
        RecurrentDecoder, recurrent(RecurrentDecoder), lambda m: m.logits(hidden(m)), (B, T, V),
    ),
    "ContextDecoder": (
        ContextDecoder, recurrent(ContextDecoder), lambda m: m.logits(hidden(m)), (B, T, V),
    ),
    "RecurrentEncoderDecoder": (
        RecurrentEncoderDecoder,
        lambda rngs: RecurrentEncoderDecoder(
            RecurrentConfig(vocab_size=V, d_model=D, num_layers=1), rngs=rngs
        ),
        lambda m: m(SOURCE, TOKENS, ENDS), (B, T, V),
    ),
    "VisionEncoder": (
        VisionEncoder, lambda rngs: VisionEncoder(PICTURES, rngs=rngs), lambda m: m(IMAGES),
        (B, PLACES, D),
    ),
    "ImageClassifier": (
        ImageClassifier, lambda rngs: ImageClassifier(PICTURES, labels=3, rngs=rngs),
        lambda m: m(IMAGES), (B, 3),
    ),
    "AttentionPool": (
        AttentionPool, lambda rngs: AttentionPool(READER, rngs=rngs), lambda m: m(X), (B, D),
    ),
    "Captioner": (
        Captioner, lambda rngs: Captioner(PICTURES, WRITER, rngs=rngs),
        lambda m: m(IMAGES, TOKENS, target_lengths=LENGTHS), (B, T, V),
    ),
    "TextTower": (
        TextTower, lambda rngs: TextTower(WRITER, rngs=rngs), lambda m: m(TOKENS, LENGTHS), (B, D),
    ),
    "TwoTowers": (
        TwoTowers, lambda rngs: TwoTowers(PICTURES, WRITER, ContrastConfig(), rngs=rngs),
        lambda m: m.embed_images(IMAGES), (B, ContrastConfig().projection_dim),
    ),
}  # fmt: skip
# What others derive from, and modules around others, which return what these do.
BASES = {"Autoregressive", "StepDecoder", "Module", "_Labelled", "_Watched", "_WatchedBlock"}


@functools.cache
def module_of(name):
    """The module of a row, abstract."""
    return nnx.eval_shape(lambda: CASES[name][1](nnx.Rngs(0)))


def parts_of(name):
    graph, state = nnx.split(module_of(name))
    compute = CASES[name][2]
    return (lambda params: compute(nnx.merge(graph, params))), nnx.to_pure_dict(state)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] if place % 2 else [])
    for place, name in enumerate(CASES)
])  # fmt: skip
def test_result_has_its_shape_and_gradients_are_a_tree_like_the_parameters(name):
    compute, params = parts_of(name)

    def total(params):
        y = compute(params)
        return y.astype("float32").sum(), y

    grads, y = jax.eval_shape(jax.grad(total, has_aux=True, allow_int=True), params)
    chex.assert_shape(y, CASES[name][3])
    floats = lambda tree: jax.tree.map(
        lambda g, a: g if a.dtype != jnp.int32 else None, tree, params
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(floats(grads), floats(params))


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_declares_an_axis_for_each_dimension(name):
    declared = parameters(module_of(name))
    ranks = jax.tree.map(lambda a: a.ndim, values(declared))
    is_param = lambda node: isinstance(node, nnx.Variable)
    axes = jax.tree.map(lambda p: len(p.get_metadata("axes")), declared, is_leaf=is_param)
    chex.assert_trees_all_equal(axes, ranks)


@pytest.mark.parametrize("name", ["Block", "FeedForward", "Attention"])
def test_stacked_modules_are_separate_ones_with_a_leading_axis(name):
    make, L = CASES[name][1], 3
    whole = nnx.eval_shape(lambda: stacked(make, L, nnx.Rngs(0)))
    alone = values(parameters(module_of(name)))
    chex.assert_tree_shape_prefix(values(parameters(whole)), (L,))
    each = [
        values(parameters(one))
        for one in nnx.eval_shape(lambda: unstacked(stacked(make, L, nnx.Rngs(0)), L))
    ]
    for one in each:
        chex.assert_trees_all_equal_shapes_and_dtypes(one, alone)
    again = jax.eval_shape(stack_blocks, dict(enumerate(each)))
    chex.assert_trees_all_equal_shapes_and_dtypes(again, values(parameters(whole)))
    chex.assert_trees_all_equal_structs(jax.eval_shape(unstack_blocks, again)[0], alone)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["Decoder", "TransformerEncoderDecoder", "ContextDecoder"])
def test_a_step_of_decoding_keeps_the_shapes_of_the_cache(name, beams):
    _, params = parts_of(name)
    graph = nnx.split(module_of(name))[0]

    def steps(params):
        model = nnx.merge(graph, params)
        inputs = None if name == "Decoder" else INPUTS
        cache = model.init_cache(inputs, B, T, beams=beams)
        logits, after = model.step(jnp.zeros(B * beams, jnp.int32), cache)
        parents = jnp.zeros((B, beams), jnp.int32)
        return logits, cache, after, model.reorder(after, parents), model.take(after, jnp.arange(B))

    logits, before, *later = jax.eval_shape(steps, params)
    chex.assert_shape(logits, (B * beams, V))
    for cache in later:
        chex.assert_trees_all_equal_shapes_and_dtypes(cache, before)


def test_an_output_table_is_a_tree_of_its_arrays():
    table = OutputTable(jnp.ones((V, D)), None, 2.0)
    doubled = jax.tree.map(lambda a: 2 * a, table)
    chex.assert_trees_all_close(doubled.logits(X), 2 * table.logits(X))
    chex.assert_tree_all_finite(table)


def test_every_module_has_a_row():
    there = {case[0].__name__ for case in CASES.values()} | BASES
    for found in pkgutil.walk_packages(models.__path__, f"{models.__name__}."):
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            own = inspect.isclass(value) and value.__module__ == module.__name__
            if own and issubclass(value, nnx.Module):
                assert name in there, f"{module.__name__}.{name}"
