"""Folders for CTranslate2: it loads them, and writes token for token what ours writes."""

import dataclasses
import json
import sys
from typing import get_args

import jax
import numpy as np
import pytest
from flax import nnx

from tests.interop.word_level import tokenizer_of
from tests.parity import layouts
from transformer_jax.core.config_fields import field_types
from transformer_jax.core.errors import CheckpointError, ConfigError
from transformer_jax.core.trees import flatten_dict, unflatten_dict
from transformer_jax.data.tokenizer import train_tokenizer
from transformer_jax.decoding.hf_config import GenerationConfig
from transformer_jax.decoding.hf_generate import HFGenerator
from transformer_jax.interop.ctranslate2 import never_written, vocabulary, write_ctranslate2
from transformer_jax.interop.family import Model
from transformer_jax.interop.hf_checkpoint import abstract_model, open_hf_checkpoint
from transformer_jax.models.config import (
    AttentionConfig,
    ComputeConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadConfig,
    NormConfig,
    PositionConfig,
    ScoreConfig,
    TransformerConfig,
)
from transformer_jax.models.presets import PRESETS

ct2 = pytest.importorskip("ctranslate2")

TEXTS, LONGEST, NEW = 32, 20, 12
TRANSLATOR = TransformerConfig(
    vocab_size=97,
    d_model=32,
    encoder_layers=2,
    decoder_layers=3,
    positions=PositionConfig(max_length=40),
    attention=AttentionConfig(num_heads=4, bias=False, out_bias=False),
    feed_forward=FeedForwardConfig(d_ff=48),
    norm=NormConfig(eps=1e-2),
)


def variant(config=TRANSLATOR, **groups):
    """The configuration with some settings of its groups, or some groups, replaced."""
    found = {
        name: dataclasses.replace(getattr(config, name), **value)
        if isinstance(value, dict)
        else value
        for name, value in groups.items()
    }
    return dataclasses.replace(config, **found)


DECODER = variant(encoder_layers=0, norm={"placement": "pre"})
ROTARY = {"kind": "rope"}
OURS = {
    "vaswani": TRANSLATOR,
    "torch": variant(norm={"final": True}),
    "pre_open": variant(norm={"placement": "pre", "final": False}),
    "scanned": variant(compute=ComputeConfig(scan_layers=True)),
    "sides": variant(
        decoder_attention_heads=2, decoder_ffn_dim=80, head=HeadConfig(tie_word_embeddings=False)
    ),
    "rotary_sides": variant(positions=ROTARY, norm={"placement": "pre", "kind": "rms"}),
    "slowed_sides": variant(positions=ROTARY | {"rope_interpolation": 4.0}),
    "no_positions": variant(positions={"kind": "none"}, attention={"num_kv_heads": 2}),
    "gated": variant(feed_forward={"gated": True, "activation": "gelu"}),
    "alibi": variant(
        DECODER, d_model=36, positions={"kind": "alibi"}, attention={"num_heads": 6, "head_dim": 6}
    ),
    "sandwich": variant(
        DECODER,
        positions=ROTARY,
        norm={"placement": "sandwich", "kind": "rms", "gain_offset": 1.0},
        scores=ScoreConfig(scale=0.4, sliding_window=20, sliding_window_every=2),
        head=HeadConfig(final_logit_softcapping=3.0),
    ),
    "qk_norm": variant(DECODER, attention={"qk_norm": True, "num_kv_heads": 1}),
    "slowed": variant(
        DECODER,
        positions=ROTARY | {"rope_interpolation": 4.0, "rope_scaling": (8.0, 1.0, 4.0, 16)},
    ),
    "embedding_norm": variant(
        DECODER, embedding=EmbeddingConfig(layernorm_embedding=True, scale=0.7)
    ),
    "post": variant(DECODER, norm=NormConfig(bias=False), positions=PositionConfig(max_length=40)),
    "head": variant(
        DECODER,
        attention={"head_dim": 12, "out_bias": True},
        head=HeadConfig(tie_word_embeddings=False, bias=True, scale=0.3),
        feed_forward={"activation": "quick_gelu", "bias": False},
    ),
    "tanh": variant(DECODER, feed_forward={"activation": "tanh"}),
    "window": variant(DECODER, positions=ROTARY, scores=ScoreConfig(sliding_window=20)),
}
PART_SHORT = layouts.LAYOUTS["phi3_long"]["config"]["rope_parameters"] | {"attention_factor": 1.0}
QUICK = {(name, 4) for name in ("marian", "t5", "gpt2", "llama", "bart", "vaswani")}
QUICK |= {("llama", 1)}
PUBLISHED = (
    "marian", "marian_unshared", "pegasus", "bart", "mbart", "m2m_100", "t5", "t5_gated", "gpt2",
    "llama", "llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma", "qwen3_mixed", "llama_yarn",
    "llama_dynamic", "phi3", "phi3_long", "stablelm", "starcoder2",
    "starcoder2_plain", "opt", "opt_post",
)  # fmt: skip


def open_layout(name, root, **changed):
    """A tiny Hugging Face model: what it is, its parameters and its tokenizer."""
    path = layouts.write(name, root / name)
    fields = layouts.LAYOUTS[name]["config"] | changed
    (path / "config.json").write_text(json.dumps(fields))
    folder = open_hf_checkpoint(path)
    return folder.model, folder.load(), tokenizer_of(fields, 97)


def open_ours(name, unk=None):
    """A model of ours with noise on every parameter."""
    config = OURS[name]
    model = Model("encoder-decoder" if config.encoder_layers else "decoder", config)
    shapes = flatten_dict(nnx.to_pure_dict(nnx.split(abstract_model(model))[1]))
    noise = lambda name, shape: 0.3 * layouts.random(name).standard_normal(shape)
    gain = lambda name: name.endswith("gain") and config.norm.gain_offset == 0.0
    params = {n: (noise(n, s.shape) + gain(n)).astype(np.float32) for n, s in shapes.items()}
    return model, unflatten_dict(params), tokenizer_of({}, 97, unk)


def open_any(name, root):
    if name in OURS:
        return open_ours(name)
    # Scores are not capped there, and a window is not met by prompts as long.
    changed = {"mistral": {"sliding_window": 20}, "qwen3_mixed": {"sliding_window": 20}}
    changed["phi3"] = changed["starcoder2"] = {"sliding_window": 20}
    changed["phi3_long"] = {"rope_parameters": PART_SHORT}
    changed["gemma2"] = {"sliding_window": 20, "attn_logit_softcapping": None}
    return open_layout(name, root, **changed.get(name, {}))


def texts(tokenizer, both):
    """Random texts of many lengths, as rows padded on the side that ours wants."""
    draw = layouts.random("texts")
    ids, real = draw.randint(5, 80, (TEXTS, LONGEST)), np.ones((TEXTS, LONGEST), int)
    for row, length in enumerate(draw.randint(3, LONGEST + 1, TEXTS)):
        if both:
            ids[row, length - 1], real[row, length:] = tokenizer.eos, 0
        else:
            real[row, : LONGEST - length] = 0
    return np.where(real, ids, tokenizer.pad), real


def written_by_ours(model, params, tokenizer, ids, real, beams):
    both = model.kind == "encoder-decoder"
    rules = GenerationConfig(
        max_new_tokens=NEW,
        min_new_tokens=1,  # its min_decoding_length unless told
        num_beams=beams,
        length_penalty=0,
        early_stopping="never" if beams > 1 else False,
        eos_token_id=(tokenizer.eos,),
        pad_token_id=tokenizer.pad,
        decoder_start_token_id=tokenizer.bos,
        suppress_tokens=never_written(tokenizer, model.config.decoder().vocab_size) if both else (),
        renormalize_logits=True,
    )
    graph = nnx.split(abstract_model(model))[0]
    generator = HFGenerator((graph, params), rules, rows=(TEXTS,), lengths=(LONGEST,))
    with jax.default_matmul_precision("highest"):
        found = generator.generate(ids, real)
    rows = found.tokens[:, 1 if both else LONGEST :].tolist()
    cut = [row[: row.index(tokenizer.eos)] if tokenizer.eos in row else row for row in rows]
    return cut, found.scores


def written_by_theirs(folder, model, tokenizer, ids, real, beams):
    names = vocabulary(tokenizer, model.config.vocab_size)
    given = [[names[id] for id in row[seen > 0]] for row, seen in zip(ids, real, strict=True)]
    common = {"beam_size": beams, "length_penalty": 0, "return_scores": True}
    threads = {"device": "cpu", "intra_threads": 1, "inter_threads": 1}
    if model.kind == "encoder-decoder":
        their = ct2.Translator(str(folder), **threads)
        found = their.translate_batch(given, max_decoding_length=NEW, **common)
        back = {name: id for id, name in enumerate(names)}
        rows = [[back[token] for token in result.hypotheses[0]] for result in found]
        return rows, [result.scores[0] for result in found]
    their = ct2.Generator(str(folder), **threads)
    how = {"max_length": NEW, "min_length": 1, "include_prompt_in_result": False}
    # Of prompts in one batch, lengths count from where the shortest ends.
    found = their.generate_batch(given, max_batch_size=1, **how, **common)
    return [result.sequences_ids[0] for result in found], [result.scores[0] for result in found]


@pytest.mark.parametrize(
    ("name", "beams"),
    [
        pytest.param(name, beams, marks=[] if (name, beams) in QUICK else [pytest.mark.slow])
        for name in (*PUBLISHED, *OURS)
        for beams in (1, 4)
    ],
)
@pytest.mark.apart("name")
@pytest.mark.quick("llama-1")
def test_it_writes_what_ours_writes(tmp_path, name, beams):
    """Greedily and by beams, on texts of many lengths at once."""
    model, params, tokenizer = open_any(name, tmp_path)
    write_ctranslate2(tmp_path / "out", model, params, tokenizer)
    given = texts(tokenizer, model.kind == "encoder-decoder")
    ours = written_by_ours(model, params, tokenizer, *given, beams)
    theirs = written_by_theirs(tmp_path / "out", model, tokenizer, *given, beams)
    assert theirs[0] == ours[0]
    assert len(set(np.round(theirs[1], 3))) > TEXTS // 2  # texts are not all alike
    if beams > 1:  # ours tells greedy texts' probability with all tokens allowed
        assert np.abs(np.subtract(theirs[1], ours[1])).max() < 3e-4 * max(1, np.abs(ours[1]).max())


@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.slow
def test_ends_are_those_of_ours(tmp_path, beams):
    """If the end is likely, texts end at many lengths, and beams finish before their limit."""
    model, params, tokenizer = open_layout("marian", tmp_path)
    params["head"]["bias"] = params["head"]["bias"].at[tokenizer.eos].add(2.5)
    write_ctranslate2(tmp_path / "out", model, params, tokenizer)
    given = texts(tokenizer, True)
    ours = written_by_ours(model, params, tokenizer, *given, beams)
    theirs = written_by_theirs(tmp_path / "out", model, tokenizer, *given, beams)
    assert theirs[0] == ours[0]
    assert sum(len(row) < NEW for row in ours[0]) > TEXTS // 4


@pytest.mark.slow
def test_marian_starts_from_its_padding_row_and_never_writes_it(tmp_path):
    """Its converters there drop the row, and assume zeros; here it is any row."""
    model, params, tokenizer = open_layout("marian", tmp_path)
    assert tokenizer.bos == tokenizer.pad
    assert np.abs(params["embedding"]["table"][tokenizer.pad]).max() > 0.1
    params["head"]["bias"] = params["head"]["bias"].at[tokenizer.pad].set(99.0)
    write_ctranslate2(tmp_path / "out", model, params, tokenizer)
    given = texts(tokenizer, True)
    theirs = written_by_theirs(tmp_path / "out", model, tokenizer, *given, 1)[0]
    assert not any(tokenizer.pad in row for row in theirs)
    assert theirs == written_by_ours(model, params, tokenizer, *given, 1)[0]


def test_the_folder_has_the_tokenizer_and_says_how_texts_are_framed(tmp_path):
    model, params, tokenizer = open_ours("vaswani", unk="w3")
    said = write_ctranslate2(tmp_path / "out", model, params, tokenizer)
    assert said == "ctranslate2: TransformerSpec, float32; sources are tokens framed as … w2"
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"config.json", "model.bin", "shared_vocabulary.json", "tokenizer.json"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    special = {key: value for key, value in config.items() if key.endswith("token")}
    assert special == {
        "bos_token": "w0", "eos_token": "w2", "unk_token": "w3", "decoder_start_token": "w0",
    }  # fmt: skip
    assert config["layer_norm_epsilon"] == model.config.norm.eps


def test_what_an_earlier_export_left_is_not_read(tmp_path):
    """A shared vocabulary would hide two separate ones."""
    for name in ("marian", "marian_unshared"):
        write_ctranslate2(tmp_path / "out", *open_layout(name, tmp_path))
    files = {path.name for path in (tmp_path / "out").glob("*vocabulary.json")}
    assert files == {"source_vocabulary.json", "target_vocabulary.json"}
    assert len(json.loads((tmp_path / "out" / "target_vocabulary.json").read_text())) == 83


def test_a_window_is_told(tmp_path):
    """Prompts longer than it would be read past it; what is written sees no farther."""
    said = write_ctranslate2(tmp_path / "out", *open_layout("mistral", tmp_path))
    assert said.endswith("exact for prompts of at most 7 tokens")


def test_ids_without_a_token_get_names_of_their_own():
    tokenizer = train_tokenizer("bytes", [])
    names = vocabulary(tokenizer, tokenizer.vocab_size + 3)
    assert len(set(names)) == tokenizer.vocab_size + 3
    assert names[: tokenizer.vocab_size] == [tokenizer.name(i) for i in range(tokenizer.vocab_size)]


NOT_THERE = {
    "scores.attn_logit_softcapping": variant(
        DECODER, scores=ScoreConfig(attn_logit_softcapping=50.0)
    ),
    "scores.sliding_window": variant(scores=ScoreConfig(sliding_window=7)),
    "norm.placement sandwich": variant(norm={"placement": "sandwich"}),
    "embedding.type_vocab_size": variant(DECODER, embedding={"type_vocab_size": 2}),
    "attention.value_dim": variant(attention={"value_dim": 4}),
    "attention.qk_norm": variant(attention={"qk_norm": True}),
    "positions.kind alibi": variant(positions={"kind": "alibi"}),
    "positions.kind relative": variant(DECODER, positions={"kind": "relative"}),
    "positions.kind learned_relative": variant(positions={"kind": "learned_relative"}),
    "positions.rope_scaling": variant(positions=ROTARY | {"rope_scaling": (8.0, 1.0, 4.0, 16)}),
    "positions.rope_dynamic": variant(positions=ROTARY | {"rope_dynamic": (2.0, 16)}),
    "positions.rope_attention_factor": variant(
        DECODER, positions=ROTARY | {"rope_dim": 4, "rope_attention_factor": 1.2}
    ),
}


@pytest.mark.parametrize("setting", NOT_THERE)
def test_what_it_cannot_express_is_refused_by_name(tmp_path, setting):
    config = NOT_THERE[setting]
    model = Model("encoder-decoder" if config.encoder_layers else "decoder", config)
    with pytest.raises(ConfigError, match=f"^CTranslate2 cannot run this model: {setting} "):
        write_ctranslate2(tmp_path / "out", model, {}, tokenizer_of({}, 97))
    assert not (tmp_path / "out").exists()


# What becomes of every setting of a model: a new one that no line mentions would be dropped.
SETTINGS = {
    "written, or refused with a reason": """
        vocab_size d_model encoder_layers decoder_layers decoder_vocab_size decoder_attention_heads
        decoder_ffn_dim embedding.scale embedding.layernorm_embedding embedding.type_vocab_size
        embedding.share_encoder_decoder_embeddings positions.kind positions.max_length
        positions.offset positions.skip_padding positions.rope_theta positions.rope_dim
        positions.rope_scaling
        positions.rope_yarn positions.rope_dynamic positions.rope_short_factor
        positions.rope_long_factor positions.rope_original_max_length
        positions.rope_attention_factor positions.rope_interpolation positions.num_buckets
        positions.max_distance attention.num_heads attention.num_kv_heads attention.head_dim
        attention.value_dim attention.bias attention.out_bias attention.qk_norm scores.scale
        scores.attn_logit_softcapping scores.sliding_window scores.sliding_window_every
        scores.sliding_window_layers mixer.kind feed_forward.d_ff feed_forward.activation
        feed_forward.gated feed_forward.bias norm.kind norm.placement norm.eps norm.gain_offset
        norm.bias norm.final head.tie_word_embeddings head.bias head.scale
        head.final_logit_softcapping""",
    "of training, or of the device": """
        embedding.dropout embedding.init attention.dropout attention.implementation
        feed_forward.activation_dropout norm.residual_dropout compute.dtype compute.scan_layers
        compute.remat compute.logits_dtype compute.logits_chunk""",
    "of other models, which are refused": """
        embedding.embedding_size mixer.cell mixer.bptt_length mixer.kernel_size mixer.dilations
        head.mlm_transform head.mlm_transform_activation head.mlm_transform_bias
        labels.transform labels.pooling positions.rope_local_theta norm.first
        scores.full_attention_every
        head.pooler head.pooler_activation image.image_size image.patch_size image.num_channels
        image.stem image.stem_channels image.patch_bias image.pooling image.distillation
        features.num_features features.stacked_frames""",
}
# The same for choices: the writer has an else for the last one. Others raise a KeyError there.
CHOICES = {
    (PositionConfig, "kind"): """none learned sinusoidal sinusoidal_halves sinusoidal_fairseq
        sinusoidal_2d concatenated rope alibi relative learned_relative""",
    (NormConfig, "kind"): "layer rms",
    (NormConfig, "placement"): "post pre sandwich",
}


def test_every_setting_of_a_model_is_written_or_refused():
    groups = dataclasses.asdict(TransformerConfig())
    paths = [
        f"{name}.{part}" if part else name
        for name, group in groups.items()
        for part in (group if isinstance(group, dict) else [""])
    ]
    known = [name for group in SETTINGS.values() for name in group.split()]
    assert sorted(known) == sorted(paths), "does CTranslate2 run it? If not: `refusal`"
    for (group, name), choices in CHOICES.items():
        assert {*get_args(field_types(group)[name])} == {*choices.split()}


def test_gemma_is_refused_for_its_capped_scores(tmp_path):
    with pytest.raises(ConfigError, match=r"scores\.attn_logit_softcapping"):
        write_ctranslate2(tmp_path / "out", *open_layout("gemma2", tmp_path))


@pytest.mark.parametrize("kind", ["encoder", "encoder-task"])
def test_encoders_are_refused(tmp_path, kind):
    model = Model(kind, PRESETS["bert_tiny"])
    with pytest.raises(ConfigError, match="it is an encoder"):
        write_ctranslate2(tmp_path / "out", model, {}, tokenizer_of({}, 97))


def test_without_the_package_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(ConfigError, match=r"pip install 'transformer-jax\[ctranslate2\]'"):
        write_ctranslate2(tmp_path / "out", *open_ours("vaswani"))


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "out").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_ctranslate2(tmp_path / "out", *open_ours("vaswani"))
