"""The family chosen for a model, if settings differ only where they have no effect."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from flax import nnx

from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.trees import flatten_dict, unflatten_dict
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.interop.export import TextForm, hf_tensors, with_post_processor, write_folder
from transformer_jax.interop.export_plan import choose_family
from transformer_jax.interop.family import Model
from transformer_jax.interop.hf_checkpoint import abstract_model, open_hf_checkpoint
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    PositionConfig,
    ScoreConfig,
)
from transformer_jax.models.presets import PRESETS, bert
from transformer_jax.models.transformer.models import Encoder
from transformer_jax.recipes.registry import named_runs

ENCODER = dataclasses.replace(
    bert(64, 1, vocab_size=40, max_length=12, dropout=0.0),
    attention=AttentionConfig(num_heads=2),
    head=HeadConfig(),
)
NARROW = dataclasses.replace(
    ENCODER,
    embedding=EmbeddingConfig(
        scale=1.0, layernorm_embedding=True, type_vocab_size=2, embedding_size=32, dropout=0.0
    ),
    positions=PositionConfig(max_length=12),
)
DECODER = dataclasses.replace(
    PRESETS["llama_style"],
    vocab_size=40,
    d_model=32,
    decoder_layers=1,
    attention=AttentionConfig(num_heads=4, bias=False, out_bias=False),
    feed_forward=FeedForwardConfig(d_ff=48, activation="silu", gated=True, bias=False),
)


def gemma2_like(scalar):
    """Gemma 2's architecture, its scores scaled by ``scalar ** -0.5``."""
    return dataclasses.replace(
        DECODER,
        embedding=EmbeddingConfig(scale=None, dropout=0.0),
        norm=dataclasses.replace(DECODER.norm, placement="sandwich", gain_offset=1.0),
        scores=ScoreConfig(scale=scalar**-0.5, attn_logit_softcapping=50.0),
    )


def params_of(model):
    state = flatten_dict(nnx.to_pure_dict(nnx.split(abstract_model(model))[1]))
    draw = np.random.default_rng(0)
    return unflatten_dict(
        {n: draw.standard_normal(s.shape).astype(np.float32) for n, s in state.items()}
    )


@pytest.mark.slow
def test_sinusoids_beside_narrow_embeddings_are_as_narrow(tmp_path):
    """They are exported as a table: the folder can be read, and is the same."""
    model, tokens, lengths = Model("encoder", NARROW), jnp.arange(12)[None], jnp.array([12])
    params = params_of(model)
    said = write_folder(tmp_path, model, params)
    assert said["model_type"] == "electra"
    there = open_hf_checkpoint(tmp_path)
    assert there.tensors.entries["embeddings.position_embeddings.weight"].shape == (12, 32)
    found = [
        nnx.merge(nnx.split(Encoder(config, rngs=nnx.Rngs(0)))[0], parameters)
        for config, parameters in ((NARROW, params), (there.model.config, there.load()))
    ]
    one, two = (jax.jit(lambda net: net(tokens, lengths))(net) for net in found)
    np.testing.assert_allclose(one, two, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "written"), [("sinusoidal", "learned"), ("sinusoidal_2d", "sinusoidal")]
)
def test_sinusoids_of_an_encoder_of_images_are_exported_as_a_table(kind, written, tmp_path):
    """Beside a decoder with a table, or with sinusoids of its own."""
    named = named_runs("captions")["scenes"][1]
    compute, positions = ComputeConfig(dtype="float32"), PositionConfig(kind)
    encoder = dataclasses.replace(
        named.encoder, encoder_layers=1, positions=positions, compute=compute
    )
    config = dataclasses.replace(
        named.model,
        vocab_size=11,
        decoder_layers=1,
        positions=PositionConfig(written, max_length=16),
        compute=compute,
    )
    model = Model("captioner", config, encoder=encoder)
    params = params_of(model)
    assert write_folder(tmp_path, model, params)["model_type"] == "vision-encoder-decoder"
    there = open_hf_checkpoint(tmp_path)
    images = jax.random.normal(jax.random.key(1), (2, 48, 48, 3))
    found = [
        jax.jit(lambda net: net(images, jnp.array([[1, 4]] * 2)))(
            nnx.merge(nnx.split(abstract_model(one))[0], parameters)
        )
        for one, parameters in ((model, params), (there.model, there.load()))
    ]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)


def test_a_parameter_of_another_shape_is_never_written():
    model = Model("encoder", ENCODER)
    params = params_of(model)
    params["encoder"]["positions"]["table"] = np.zeros((12, 63), np.float32)
    fit = choose_family(model)
    with pytest.raises(CheckpointError, match=r"positions/table is \[12, 63\], but \[12, 64\]"):
        hf_tensors(fit.family, fit.model, params)


@pytest.mark.parametrize(
    "head",
    [
        {"mlm_transform": True},
        {"bias": True},
        {"tie_word_embeddings": False},
        {"final_logit_softcapping": 30.0},
        {"scale": 0.5},
        {"mlm_transform_activation": "relu"},
    ],
)
def test_settings_of_a_head_that_there_is_not_hinder_nothing(head):
    """They say how words are told; with such a head they do."""
    config = dataclasses.replace(ENCODER, head=HeadConfig(**head))
    assert choose_family(Model("encoder", config)).fields["model_type"] == "electra"
    if "final_logit_softcapping" in head or "scale" in head:
        with pytest.raises(ConfigError, match=r"head\."):
            choose_family(Model("encoder", config, words=True))


def test_all_of_a_head_turning_is_said_in_two_ways():
    places = dataclasses.replace(DECODER.positions, rope_dim=8)
    wanted = choose_family(Model("decoder", DECODER)).fields
    other = dataclasses.replace(DECODER, positions=places)
    assert choose_family(Model("decoder", other)).fields["model_type"] == wanted["model_type"]
    half = dataclasses.replace(DECODER, positions=dataclasses.replace(places, rope_dim=4))
    assert choose_family(Model("decoder", half)).fields["model_type"] == "phi3"


def test_a_fractional_query_pre_attn_scalar_is_refused():
    """transformers reads it as a whole number: the exported scores would differ."""
    plan = choose_family(Model("decoder", gemma2_like(20)))
    assert plan.fields["query_pre_attn_scalar"] == 20
    with pytest.raises(ConfigError, match=r"gemma2 has scores\.scale"):
        choose_family(Model("decoder", gemma2_like(20.5)))


@pytest.mark.parametrize(
    ("kind", "first", "around", "expected"),
    [
        ("encoder-decoder", None, "<s> $A </s>", "<s> a </s>"),
        ("encoder-decoder", None, None, "a </s>"),
        ("encoder", None, "<s> $A </s>", "<s> a </s>"),
        ("encoder", None, "$A </s>", "<s> a </s>"),
        ("decoder", 0, "<s> $A", "<s> a"),
        ("decoder", 1, "<s> $A", "</s> a"),
        ("decoder", None, "<s> $A", "a"),
    ],
)
def test_an_exported_tokenizer_frames_texts_once(kind, first, around, expected):
    """The framing is this library's, whatever the file said before."""
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2, "a": 3}, unk_token="<unk>")
    )
    backend.add_special_tokens(["<s>", "</s>"])
    if around is not None:
        template = tokenizers.processors.TemplateProcessing(
            single=around, special_tokens=[("<s>", 0), ("</s>", 1)]
        )
        level = tokenizers.processors.ByteLevel(trim_offsets=False)
        backend.post_processor = tokenizers.processors.Sequence([level, template])
    model = Model(kind, ENCODER)
    text = with_post_processor(Tokenizer(backend.to_str()), model, TextForm(first))
    assert tokenizers.Tokenizer.from_str(text).encode("a").tokens == expected.split()


def test_numbers_beyond_the_range_of_a_dtype_are_refused(tmp_path):
    """Half of the bits has infinity where the exponent ends."""
    model = Model("decoder", DECODER)
    shapes = nnx.to_pure_dict(nnx.state(abstract_model(model)))
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 1e5, np.float32), shapes)
    with pytest.raises(ConfigError, match="beyond the range of float16"):
        write_folder(tmp_path / "half", model, params, dtype="float16")
    assert not (tmp_path / "half").exists()
    write_folder(tmp_path / "wide", model, params, dtype="bfloat16")
