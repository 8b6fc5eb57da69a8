"""ModernBERT: pre-norm, GeGLU, no biases, RoPE, and two local layers of every three.

Warner et al. 2024. Layout: https://huggingface.co/docs/transformers/model_doc/modernbert.
Files of transformers 5 have ``layer_types`` and a RoPE for each type; earlier files
``global_attn_every_n_layers``, ``global_rope_theta`` and ``local_rope_theta``. In training,
transformers drops out the output of attention, too, if ``attention_dropout`` is not 0, and the
input of the classifier by ``classifier_dropout``; here ``attention_dropout`` is of the weights
alone.
"""

import dataclasses

from transformer_jax.core.errors import ConfigError
from transformer_jax.core.json_types import Json
from transformer_jax.interop.config_reader import ConfigReader
from transformer_jax.interop.families.hf_heads import (
    architecture,
    encoder,
    label_fields,
    label_mappings,
    task_of,
)
from transformer_jax.interop.families.layer_types import FULL, SLIDING, layer_types, windows
from transformer_jax.interop.families.rope import KINDS, rope_fields, rope_positions
from transformer_jax.interop.family import (
    Model,
    ModelFamily,
    TensorMapping,
    Tensors,
    linear_mappings,
    norm_mappings,
    tied_names,
    ties_head,
)
from transformer_jax.interop.key_table import KeyTable, activation, flag, number, size, written
from transformer_jax.models.config import PositionConfig, ScoreConfig, TransformerConfig

__all__ = ["FAMILIES"]

_WORDS = "model.embeddings.tok_embeddings.weight"
_OWN = "decoder.weight"
_HEADS = ("classifier.weight",)
_POOLING = {"cls": "first", "mean": "mean"}
_THETAS = {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)}
# Angles that depend on the length of a text have no layers of another kind beside them here.
_KINDS = {name: KINDS[name] for name in ("default", "linear", "llama3", "yarn")}
_TABLE = KeyTable(
    size("vocab_size", "vocab_size", default=50_368),
    size("d_model", "hidden_size", default=768),
    size("encoder_layers", "num_hidden_layers", default=22),
    size("attention.num_heads", "num_attention_heads", default=12),
    size("feed_forward.d_ff", "intermediate_size", default=1152),
    activation("hidden_activation", "gelu", tanh="gelu_pytorch_tanh"),
    activation(
        "classifier_activation",
        "gelu",
        setting="head.mlm_transform_activation",
        tanh="gelu_pytorch_tanh",
    ),
    flag("norm.bias", "norm_bias", False),
    flag("attention.bias attention.out_bias", "attention_bias", False),
    flag("feed_forward.bias", "mlp_bias", False),
    flag("head.bias", "decoder_bias", True),
    flag("head.mlm_transform_bias", "classifier_bias", False),
    number("norm.eps", "norm_eps", default=1e-5, above=0),
    number("embedding.dropout", "embedding_dropout", default=0.0),
    number("attention.dropout", "attention_dropout", default=0.0),
    number("feed_forward.activation_dropout", "mlp_dropout", default=0.0),
    written("tie_word_embeddings", "head.tie_word_embeddings"),
)


def model(fields: ConfigReader, tensors: Tensors) -> Model:
    """Returns an encoder with the heads in the files, whose labels read a transform, too."""
    task = task_of(fields, tensors, _HEADS)
    words = tensors.has("head.dense.weight") and task is None
    fields = fields.filled(num_hidden_layers=22, max_position_embeddings=8192)
    every = fields.whole("global_attn_every_n_layers", default=3)
    # The size counts both sides, and the token between them once more.
    window = fields.whole("local_attention", default=128, least=0) // 2 + 1
    scores = _regular(windows(fields, window, lambda layer: layer % every > 0), fields)
    settings = {
        "decoder_layers": 0,
        "embedding.scale": 1.0,
        "embedding.layernorm_embedding": True,
        "positions": _positions(fields, local=scores.sliding_window is not None),
        "scores": scores,
        "feed_forward.gated": True,
        "norm.placement": "pre",
        "norm.first": False,
        "norm.residual_dropout": 0.0,
        "head.mlm_transform": True,
        "labels.transform": True,
        "labels.pooling": fields.choice(("classifier_pooling",), _POOLING, "cls"),
        "head.tie_word_embeddings": not words or ties_head(fields, tensors, _OWN, _WORDS),
    }
    prefix = "model." if tensors.has(_WORDS) else ""
    config = _TABLE.config(fields, settings)
    return encoder(fields, config, prefix=prefix, task=task, words=words)


def _regular(scores: ScoreConfig, fields: ConfigReader) -> ScoreConfig:
    """Returns the windows, by the distance between global layers if it is the same for all."""
    layers = fields.whole("num_hidden_layers")
    kinds = [FULL if scores.window_of(i) is None else SLIDING for i in range(layers)]
    every = _distance(kinds)
    if every is None or scores.sliding_window is None:
        return scores
    return ScoreConfig(sliding_window=scores.sliding_window, full_attention_every=every)


def _distance(kinds: list[str]) -> int | None:
    """Returns the distance between global layers, of which the first layer is one, or None."""
    layers = len(kinds)
    usual = lambda every: [SLIDING if layer % every else FULL for layer in range(layers)]
    return next((every for every in range(2, layers + 1) if kinds == usual(every)), None)


def _positions(fields: ConfigReader, *, local: bool) -> PositionConfig:
    """Returns the positions of global layers, and the base of local ones if there are any."""
    fields.only(rope_scaling=None)
    given = fields.group("rope_parameters")
    groups = {}
    for kind, (name, usual) in _THETAS.items():
        if fields.is_null(name):  # as in global layers
            name, usual = _THETAS[FULL]
        theta, group = fields.number(name, default=usual, above=0), given.group(kind)
        theta = group.number("rope_theta", default=theta, above=0)
        groups[kind] = group.replaced(rope_theta=theta)
    places = rope_positions(fields.replaced(rope_parameters=groups[FULL].values), kinds=_KINDS)
    if not local:
        return places
    inner = rope_positions(
        fields.replaced(rope_parameters=groups[SLIDING].values), kinds={"default": "default"}
    )
    if inner == places:
        return places
    return dataclasses.replace(places, rope_local_theta=inner.rope_theta)


def mappings(model: Model) -> list[TensorMapping]:
    """Returns the mappings of embeddings, layers and heads."""
    config, at = model.config, model.prefix
    norm = lambda ours, theirs: norm_mappings(ours, theirs, bias=config.norm.bias)
    found = [
        TensorMapping("embedding/table", f"{at}embeddings.tok_embeddings.weight"),
        *norm("encoder/embedding_norm", f"{at}embeddings.norm"),
        *norm("encoder/final_norm", f"{at}final_norm"),
    ]
    for i in range(config.encoder_layers):
        ours, theirs = f"encoder/blocks/{i}", f"{at}layers.{i}"
        if i:
            found += norm(f"{ours}/self_attention_norm", f"{theirs}.attn_norm")
        found += norm(f"{ours}/feed_forward_norm", f"{theirs}.mlp_norm")
        for name, parts, joint, out in (
            ("self_attention", ("query", "key", "value"), "attn.Wqkv", ("out", "attn.Wo")),
            ("feed_forward", ("up", "gate"), "mlp.Wi", ("down", "mlp.Wo")),
        ):
            bias = config.attention.bias if name == "self_attention" else config.feed_forward.bias
            linear = lambda part, to, bias=bias: linear_mappings(part, to, bias=bias)
            for n, part in enumerate(parts):
                rows = linear(f"{ours}/{name}/{part}", f"{theirs}.{joint}")
                found += [row._replace(part=(n, n + 1, len(parts))) for row in rows]
            found += linear(f"{ours}/{name}/{out[0]}", f"{theirs}.{out[1]}")
    if model.words or model.task:
        found += linear_mappings("transform", "head.dense", bias=config.head.mlm_transform_bias)
        found += norm("transform_norm", "head.norm")
    if model.words and config.head.bias:
        found.append(TensorMapping("head/bias", "decoder.bias"))
    if model.words and not config.head.tie_word_embeddings:
        found.append(TensorMapping("head/table", _OWN))
    return found + label_mappings(model, qa="classifier")


def fields(model: Model) -> dict[str, Json]:
    """Returns the configuration of an encoder as ModernBERT."""
    config = model.config
    kinds, pooling = layer_types(config), {ours: theirs for theirs, ours in _POOLING.items()}
    rope = rope_fields(config.positions, config.head_dim)
    inner = rope_fields(config.positions.local, config.head_dim)
    window = config.scores.sliding_window
    return {
        "model_type": "modernbert",
        "architectures": [architecture("ModernBert", task=model.task, words=model.words)],
        **_TABLE.fields(_with_activation(config)),
        **label_fields(model),
        "max_position_embeddings": config.positions.max_length,
        "classifier_pooling": pooling[config.labels.pooling],
        "local_attention": 128 if window is None else 2 * (window - 1),
        "layer_types": kinds,
        "rope_parameters": {FULL: rope["rope_parameters"], SLIDING: inner["rope_parameters"]},
        # Read by versions before transformers 5, which know no other order.
        "global_attn_every_n_layers": _distance(kinds) or (3 if SLIDING in kinds else 1),
        "global_rope_theta": rope["rope_theta"],
        "local_rope_theta": inner["rope_theta"],
    }


def _with_activation(config: TransformerConfig) -> TransformerConfig:
    """Returns the configuration with the activation of the transform, which ours may leave out."""
    act = config.head.mlm_transform_activation or config.feed_forward.activation
    head = dataclasses.replace(config.head, mlm_transform_activation=act)
    return dataclasses.replace(config, head=head)


def named(model: Model) -> Model:
    """Returns the model with the prefix of published names."""
    if model.next_sentence:
        raise ConfigError("ModernBERT has no head for pairs of texts")
    bare = not (model.words or model.task)
    return dataclasses.replace(model, prefix="" if bare else "model.")


FAMILIES = (
    ModelFamily(
        types=("modernbert",),
        model=model,
        mappings=mappings,
        fields=fields,
        tied_names=tied_names((_WORDS, _OWN)),
        copies=(r"decoder\.weight",),
        named=named,
    ),
)
