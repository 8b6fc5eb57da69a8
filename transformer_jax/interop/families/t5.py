"""T5 and mT5, the first version and the gated one (1.1, Flan), and encoders without decoders.

Raffel et al. 2020; Shazeer 2020. Layout: https://huggingface.co/docs/transformers/model_doc/t5.
"""

import dataclasses
from typing import cast

from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    attention_mappings,
    linear_mappings,
    norm_mappings,
    ties_head,
)
from transformer_jax.interop.key_table import ACTIVATIONS, KeyTable, number, size
from transformer_jax.models.config import Activation

__all__ = ["FAMILIES"]

# T5's "gelu" is the tanh approximation.
_FEED_FORWARD = {name: (ours, False) for name, ours in ACTIVATIONS.items()}
_FEED_FORWARD |= {f"gated-{name}": (ours, True) for name, ours in ACTIVATIONS.items()}
_FEED_FORWARD["gated-gelu"] = ("gelu_tanh", True)
_TABLE = KeyTable(
    size("vocab_size", "vocab_size"),
    size("d_model", "d_model"),
    size("attention.head_dim", "d_kv", write=lambda config: config.head_dim),
    size("feed_forward.d_ff", "d_ff"),
    size("encoder_layers", "num_layers"),
    size("attention.num_heads", "num_heads"),
    size("positions.num_buckets", "relative_attention_num_buckets", default=32),
    size("positions.max_distance", "relative_attention_max_distance", default=128),
    size("positions.max_length", "n_positions", default=512),
    number("norm.eps", "layer_norm_epsilon", default=1e-6, above=0),
    number(
        "norm.residual_dropout attention.dropout embedding.dropout feed_forward.activation_dropout",
        "dropout_rate",
        default=0.1,
    ),
)


def t5(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns a T5 of any version; the first one scales the input of its head."""
    # A key since transformers 5; before, it was implied by tying.
    tied = fields.flag("tie_word_embeddings", True)
    default = tied and not fields.is_null("scale_decoder_outputs")
    scaled = fields.flag("scale_decoder_outputs", default)
    return _model(fields, tensors, "relu", scaled=scaled)


def mt5(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an mT5, which never scales, regardless of tying in its configuration."""
    return _model(fields, tensors, "gated-gelu", scaled=False)


def _model(fields: ConfigReader, tensors: Tensors, feed_forward: str, *, scaled: bool) -> Model:
    """Returns an encoder-decoder, or an encoder if the configuration names this class."""
    alone = _alone(fields)
    activation, gated = _activation(fields, feed_forward)
    layers = fields.whole("num_layers")
    settings = {
        "decoder_layers": 0 if alone else fields.whole("num_decoder_layers", default=layers),
        "embedding.scale": 1.0,
        "positions.kind": "relative",
        "attention.bias": False,
        "attention.out_bias": False,
        "scores.scale": 1.0,
        "feed_forward.activation": activation,
        "feed_forward.gated": gated,
        "feed_forward.bias": False,
        "norm.kind": "rms",
        "norm.placement": "pre",
    }
    if not alone:
        tied = ties_head(fields, tensors, "lm_head.weight", "shared.weight")
        scale = fields.whole("d_model") ** -0.5 if scaled else 1.0
        settings |= {"head.tie_word_embeddings": tied, "head.scale": scale}
    config = _TABLE.config(fields, settings)
    return Model("encoder" if alone else "encoder-decoder", config)


def _activation(fields: ConfigReader, usual: str) -> tuple[Activation, bool]:
    """Returns the activation and whether it is gated, from ``feed_forward_proj`` or its parts.

    Newer files repeat the parts under separate keys, which take precedence in transformers.
    """
    activation, gated = fields.choice(("feed_forward_proj",), _FEED_FORWARD, usual)
    if fields.values.get("dense_act_fn") is not None:
        activation = fields.choice(("dense_act_fn",), ACTIVATIONS, usual)
    return activation, fields.flag("is_gated_act", gated)


def _alone(fields: ConfigReader) -> bool:
    """Returns whether a configuration describes an encoder without a decoder."""
    names = fields.values.get("architectures")
    return isinstance(names, list) and any(str(name).endswith("EncoderModel") for name in names)


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and an untied head."""
    config = model.config
    found = [TensorMapping("embedding/table", "shared.weight")]
    if not config.head.tie_word_embeddings:
        found.append(TensorMapping("head/table", "lm_head.weight"))
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        if not layers:
            continue
        first = f"{side}.block.0.layer.0.SelfAttention"
        found += [
            TensorMapping(f"{side}/relative/table", f"{first}.relative_attention_bias.weight"),
            *norm_mappings(f"{side}/final_norm", f"{side}.final_layer_norm", bias=False),
        ]
        for i in range(layers):
            theirs = f"{side}.block.{i}.layer"
            found += _layer(
                f"{side}/blocks/{i}", theirs, side == "decoder", config.feed_forward.gated
            )
    return found


def _layer(ours: str, theirs: str, cross: bool, gated: bool) -> list[TensorMapping]:
    last, names = 2 if cross else 1, ("q", "k", "v", "o")
    wide = f"{theirs}.{last}.DenseReluDense"
    norm = lambda part, n: norm_mappings(
        f"{ours}/{part}_norm", f"{theirs}.{n}.layer_norm", bias=False
    )
    mix = lambda part, place: attention_mappings(
        f"{ours}/{part}", f"{theirs}.{place}", names, bias=False
    )
    maps = {"up": "wi_0", "gate": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    found = [
        *mix("self_attention", "0.SelfAttention"),
        *norm("self_attention", 0),
        *norm("feed_forward", last),
    ]
    for part, name in maps.items():
        found += linear_mappings(f"{ours}/feed_forward/{part}", f"{wide}.{name}", bias=False)
    if cross:
        found += [*mix("cross_attention", "1.EncDecAttention"), *norm("cross_attention", 1)]
    return found


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of an encoder-decoder or an encoder as T5."""
    config, both = model.config, model.kind == "encoder-decoder"
    ff = config.feed_forward
    # If gated, "gelu" means the tanh approximation.
    theirs = {"gelu_tanh": "gelu_new", "gelu": "gelu_python" if ff.gated else "gelu"}
    activation = "gated-" * ff.gated + theirs.get(ff.activation, ff.activation)
    head = {
        "num_decoder_layers": config.decoder_layers,
        "scale_decoder_outputs": config.head.scale != 1.0,
        "tie_word_embeddings": config.head.tie_word_embeddings,
    }
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration" if both else "T5EncoderModel"],
        "is_encoder_decoder": both,
        **_TABLE.fields(config),
        "feed_forward_proj": activation,
        **(head if both else {}),
    }


def _mt5_fields(model: Model) -> dict[str, Json]:
    """Returns the configuration as mT5, which has no scale."""
    said = fields(model)
    names = [f"M{name}" for name in cast(list[str], said["architectures"])]
    return {
        key: value
        for key, value in (said | {"model_type": "mt5", "architectures": names}).items()
        if key != "scale_decoder_outputs"
    }


_T5 = ModelFamily(
    types=("t5",),
    model=t5,
    mappings=mappings,
    fields=fields,
    ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
    # An encoder may have been saved with the complete model.
    unused=lambda model: (
        () if model.config.decoder_layers else (r"decoder\..*", r"lm_head\.weight")
    ),
    # Both sides always share one table, whether or not the head is tied to it.
    tied_names=lambda fields: (
        ("shared.weight", "encoder.embed_tokens.weight"),
        ("shared.weight", "decoder.embed_tokens.weight"),
    ),
    copies=(r"lm_head\.weight", r"(encoder|decoder)\.embed_tokens\.weight"),
)
_MT5 = dataclasses.replace(_T5, types=("mt5",), model=mt5, fields=_mt5_fields)
FAMILIES = (_T5, _MT5)
